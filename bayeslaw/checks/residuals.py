"""What a fit leaves of the runs, and how sure a linear combination of residuals is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.checks.cells import Cells, cells_of
from bayeslaw.deviation import Deviating
from bayeslaw.inputs import Inputs
from bayeslaw.likelihood import of_runs, predicted_log_loss
from bayeslaw.schema import STUDENT_NU
from bayeslaw.structure import Structure

Array = NDArray[np.float64]

DRAWS = 200
"""Posterior draws that the checks use, evenly spaced: their sd is then known to 5 %."""

LEAST_FREE = 8
"""Degrees of freedom from which on the cells' own scatter is taken for the errors' scale."""

NUDGE = 1e-4
"""Step of log g for a derivative."""


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """A fit's residuals of log loss.

    Parameters
    ----------
    parameters : xarray.Dataset
        Thinned posterior draws, as `bayeslaw.likelihood.named` gives them.
    structure : Structure
    inputs : Inputs
    cells : Cells
    """

    parameters: xr.Dataset
    structure: Structure
    inputs: Inputs
    cells: Cells

    @classmethod
    def of(
        cls, parameters: xr.Dataset, structure: Structure, inputs: Inputs, compute: Array | None = None
    ) -> Residuals:
        """Of any number of draws; ``compute`` as for `bayeslaw.checks.cells.cells_of`."""
        return cls(
            parameters=thinned(parameters, DRAWS),
            structure=structure,
            inputs=inputs,
            cells=cells_of(inputs, compute),
        )

    @cached_property
    def predicted(self) -> Array:
        """Log loss by the law, group effects left out, shape (sample, run)."""
        values = predicted_log_loss(self.parameters, self.structure, self.inputs).values
        return np.ascontiguousarray(values.reshape(-1, len(self.inputs.loss)))

    @cached_property
    def law(self) -> Array:
        """Posterior mean of `predicted`, shape (run,)."""
        mean: Array = self.predicted.mean(axis=0)
        return mean

    @cached_property
    def values(self) -> Array:
        """Measured less predicted log loss, shape (run,)."""
        return self.inputs.log_loss - self.law

    @cached_property
    def by_worth(self) -> Array:
        """Derivative of each run's predicted log loss by its log g(r), shape (run,)."""
        few = thinned(self.parameters, DRAWS // 4)
        there = [
            predicted_log_loss(few, self.structure, replace(self.inputs, n_rec=self.inputs.n_rec * np.exp(step))).values
            for step in (NUDGE, -NUDGE)
        ]
        slope: Array = (there[0] - there[1]).mean(axis=(0, 1)) / (2 * NUDGE)
        return slope

    @cached_property
    def exponents(self) -> Array:
        """Posterior mean of log g(r) / log r of every run, shape (run,); nan at r = 1 and where there is no map."""
        own = of_runs(self.parameters, self.structure, self.inputs)
        mapped = self.structure.law.map
        values = [own[name] for name in mapped.parameters]
        r = self.inputs.recurrences
        log_g = mapped.log_worth(xr.DataArray(r, dims="run"), values)
        if values:
            log_g = log_g.mean(("chain", "draw"))
        with np.errstate(divide="ignore", invalid="ignore"):
            out: Array = np.where(r > 1, np.broadcast_to(log_g, r.shape) / np.log(r), np.nan)
        return out

    @cached_property
    def scatter(self) -> tuple[float, bool]:
        """Scale of the errors of single runs on log loss, and whether the cells' own parabolas tell it."""
        left, free = self.cells.off_parabolas(self.values)
        if free >= LEAST_FREE:
            return float(np.sqrt((left**2).sum() / free)), True
        heavy = STUDENT_NU / (STUDENT_NU - 2) if self.structure.outliers == "student" else 1.0
        return float(np.sqrt(heavy) * np.median(self.parameters["sigma"])), False

    @cached_property
    def cell_names(self) -> list[str]:
        """Each cell by recipe (where there are several), budget and r."""
        cells, recipes = self.cells, self.inputs.recipes
        return [
            (f"{recipes[recipe]}, " if len(recipes) > 1 else "") + f"{flops:.3g} FLOPs, r = {r:g}"
            for recipe, flops, r in zip(cells.recipe, cells.flops, cells.recurrences, strict=True)
        ]

    def error(self, combination: Array) -> float:
        """Standard error of a linear combination of residuals, shape (run,) its weights.

        Of single errors, of the effects of cells and training runs that the fit has, and of the law's parameters. (The
        last are not independent of the errors; taken for that, they make the check a little too cautious.)
        """
        variance = self.scatter[0] ** 2 * float(combination @ combination) + float((self.predicted @ combination).var())
        for effect in self.structure.effects:
            totals = np.bincount(getattr(self.inputs, effect).index, combination)
            variance += float(np.median(self.parameters[f"tau_{effect}"])) ** 2 * float(totals @ totals)
        return float(np.sqrt(variance))


def thinned[Draws: (xr.Dataset, xr.DataArray)](draws: Draws, count: int) -> Draws:
    """About so many draws, evenly spaced."""
    wanted = max(1, count // draws.sizes["chain"])
    return draws.isel(draw=slice(None, None, max(1, draws.sizes["draw"] // wanted)))


def advice(structure: Structure, otherwise: str) -> str:
    """What to do about a misfit: the default model where the fit is a plainer one."""
    if structure.law.terms != "coupled":
        return "use the default model (fit without --law), whose size and data terms couple"
    if (
        not isinstance(structure.law.map, Deviating)
        and structure.law.map.parameters
        and structure.law.map.name != "free"
    ):
        return f"use the default model (fit without --law), which lets each r deviate from the map; {otherwise}"
    return otherwise
