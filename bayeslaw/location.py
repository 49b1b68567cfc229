"""How far the best size lies off the law's, learnt from the minima that the runs themselves show.

A posterior of a law is far surer of N* than the minima of the cells it was fitted to bear out: no law has the shape of
every cell. What scatter the law's uncertainty and the cells' own errors do not explain is a noise of location, with a
standard deviation tau on log N: measured - law ~ N(0, tau^2 + se^2 + law_se^2), tau half-normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.checks.cards import NotApplicableError
from bayeslaw.checks.cells import compute_of
from bayeslaw.checks.optima import optima
from bayeslaw.checks.residuals import Residuals
from bayeslaw.inputs import inputs_of
from bayeslaw.posterior import Fit
from bayeslaw.priors import DEFAULT
from bayeslaw.structure import structure_of

Array = NDArray[np.float64]

PRIOR_SCALE = 0.1
"""Of the half-normal prior on tau: a law whose optima are off by more than 20 % would not be used for them."""

LEAST_CELLS = 4
"""Minima from which on their scatter says more than the prior."""

GRID = 400


@dataclass(frozen=True, kw_only=True)
class Location:
    """Noise of the place of an optimum.

    Parameters
    ----------
    tau : float
        Posterior mean of the standard deviation on log N.
    cells : int
        Minima behind it; 0 where no noise is known and tau is 0.
    """

    tau: float
    cells: int

    def draws(self, count: int, *seed: int) -> Array:
        """Draws of the noise on log N, shape (count,); the same for the same seeds."""
        drawn: Array = self.tau * np.random.default_rng(seed).standard_normal(count)
        return drawn

    def __str__(self) -> str:
        if not self.cells:
            return (
                "the runs show too few minima of their own to learn how far off the law they lie: intervals of size "
                "and tokens are those of the law's parameters alone"
            )
        return (
            f"intervals of size and tokens allow for {self.tau:.1%} by which the {self.cells} minima of the runs "
            "lie off the law's"
        )


def location_of(fit: Fit) -> Location:
    """The noise of location that a fit's own runs show.

    Parameters
    ----------
    fit : Fit
    """
    inputs = inputs_of(fit.runs, injection_in=fit.spec.counted_in)
    left = Residuals.of(fit.posterior, structure_of(inputs, fit.spec, DEFAULT), inputs, compute_of(fit.runs))
    try:
        left.cells.require_curved()
    except NotApplicableError:
        return Location(tau=0.0, cells=0)
    found = optima(left)
    if len(found.cell) < LEAST_CELLS:
        return Location(tau=0.0, cells=0)
    error = np.log(found.measured / found.law)
    tau = np.linspace(0, 5 * PRIOR_SCALE, GRID)
    variance = tau[:, None] ** 2 + found.measured_se**2 + found.law_se**2
    log_density = -0.5 * (error**2 / variance + np.log(variance)).sum(axis=1) - 0.5 * (tau / PRIOR_SCALE) ** 2
    weight = np.exp(log_density - log_density.max())
    return Location(tau=float(weight @ tau / weight.sum()), cells=len(error))
