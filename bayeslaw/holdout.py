"""Forecasts of runs that a fit did not see: the same model, compiled once, sampled without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw import sampling
from bayeslaw.drift import draw_drift, drifted
from bayeslaw.inputs import Inputs, inputs_of
from bayeslaw.likelihood import error_variance, errors, log_density, named, new_effects, predicted_log_loss
from bayeslaw.origins import budget_levels, origins
from bayeslaw.priors import DEFAULT, Priors
from bayeslaw.runs import RunTable
from bayeslaw.scores import Forecast, log_mean_exp
from bayeslaw.spec import Spec
from bayeslaw.structure import Structure, structure_of

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model of a run table, ready to be fitted to parts of it.

    Parameters
    ----------
    inputs : Inputs
        Of all runs.
    structure : Structure
    spec : Spec
        Its ``draws``, ``tune`` and ``chains`` are those of every such fit.
    priors : Priors
    """

    inputs: Inputs
    structure: Structure
    spec: Spec
    priors: Priors

    @classmethod
    def of(cls, table: RunTable, spec: Spec, *, priors: Priors = DEFAULT) -> Candidate:
        """The model that a spec means for a run table."""
        inputs = inputs_of(table.runs, injection_in=spec.counted_in)
        return cls(inputs=inputs, structure=structure_of(inputs, spec, priors), spec=spec, priors=priors)

    def forecast(self, trained: Mask, held: Mask) -> Forecast:
        """Sample the posterior given some runs and forecast others, drift included.

        Parameters
        ----------
        trained, held : ndarray of bool, shape (run,)
        """
        seen, unseen = self.inputs.subset(trained), self.inputs.subset(held)
        sampled = sampling.sample(
            self.structure, seen, self.priors, self.spec, progress=lambda message: None, timed=lambda stage: None
        )
        rng = np.random.default_rng(self.spec.seed)
        parameters = named(sampled["posterior"].to_dataset()["theta"].values, self.structure, seen)
        mean = predicted_log_loss(parameters, self.structure, unseen).values
        mean = mean + new_effects(parameters, self.structure, unseen, rng)
        variance = error_variance(parameters, self.structure, unseen).reshape(-1, len(unseen.loss))
        mean = mean.reshape(variance.shape)
        edge = float(seen.flops.max())
        if self.spec.drift and (unseen.flops > edge).any():
            found = origins(self.structure, seen, self.priors, seed=self.spec.seed)
            drift = draw_drift(
                found, self.priors, np.unique(seen.recurrences), chains=self.spec.chains, draws=self.spec.draws,
                seed=self.spec.seed,
            )  # fmt: skip
            places = zip(unseen.recurrences.tolist(), unseen.flops.tolist(), strict=True)
            mean = mean + np.stack([drifted(drift, edge, r, flops) for r, flops in places], axis=1)
        density = log_density(unseen.log_loss - mean, variance, self.structure.outliers)
        noise = np.sqrt(variance) * errors(self.structure.outliers, mean.shape, rng)
        return Forecast(
            loss=unseen.loss,
            draws=np.exp(mean + noise),
            log_density=log_mean_exp(density) - unseen.log_loss,
        )

    def forward(self, least: int = 3) -> Iterator[tuple[float, Mask, Forecast]]:
        """Forward chaining: for every number of lower budgets from ``least`` on, forecasts of all higher ones.

        Yields
        ------
        trained_to : float
            Largest FLOPs fitted.
        held : ndarray of bool, shape (run,)
        forecast : Forecast
        """
        level = budget_levels(self.inputs.flops)
        for edge in range(least - 1, int(level.max())):
            below = level <= edge
            yield float(self.inputs.flops[below].max()), ~below, self.forecast(below, ~below)
