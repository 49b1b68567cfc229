"""What is wrong with a law on an iso-FLOP grid, found without a statistician: checks that need no further sampling.

Each holds a number that the runs give by themselves against the same number by the law, with its standard error from
the scatter about the cells' own parabolas, which no law has a part in.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.checks.cards import CheckCard, NotApplicableError, judged, made
from bayeslaw.checks.cells import UNKNOWN, replicates
from bayeslaw.checks.optima import optimum
from bayeslaw.checks.residuals import Residuals, advice
from bayeslaw.checks.trends import exponent_drift, residuals_over_budget, residuals_over_r
from bayeslaw.checks.within import Within, offsets, phi_within
from bayeslaw.inputs import Inputs
from bayeslaw.priors import Priors
from bayeslaw.structure import Structure

Array = NDArray[np.float64]

CURVATURE = 0.15
"""How far the ratio of measured to predicted curvature may be off 1."""

LACK_OF_FIT = 5.0
"""Largest lack-of-fit F that is no warning."""

LEAST_PURE = 8
"""Degrees of freedom that a pure error needs."""

TITLES = {
    "curvature": "Curvature of loss over size within cells",
    "offsets": "Offsets of cells, the law fitted within them",
    "within-between": "The exponent within cells and between them",
    "lack-of-fit": "Lack of fit against the cells' own curves",
    "exponent-drift": "The exponent by budget",
    "residuals-r": "Residuals by r",
    "residuals-budget": "Residuals by budget",
    "optimum": "Best size: the law's against the cells' own",
}


def misfit_checks(
    parameters: xr.Dataset,
    structure: Structure,
    inputs: Inputs,
    priors: Priors,
    *,
    compute: Array | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[CheckCard, ...]:
    """The automatic checks of a posterior, some tenths of a second, nothing compiled.

    Parameters
    ----------
    parameters : xarray.Dataset
        Posterior draws over chain and draw, as `bayeslaw.likelihood.named` gives them; any number of them.
    structure : Structure
    inputs : Inputs
    priors : Priors
    compute : ndarray, shape (run,), optional
        Known training FLOPs or budgets, see `bayeslaw.checks.cells.compute_of`; by default those of ``inputs``.
    rng : numpy Generator, optional
        For the standard errors of the fits within and between cells.
    """
    left = Residuals.of(parameters, structure, inputs, compute)
    parts = Within(left=left, priors=priors, rng=rng or np.random.default_rng(0))
    bodies = {
        "curvature": partial(curvature, left),
        "offsets": partial(offsets, left, parts),
        "within-between": partial(phi_within, left, parts),
        "lack-of-fit": partial(lack_of_fit, left),
        "exponent-drift": partial(exponent_drift, left),
        "residuals-r": partial(residuals_over_r, left),
        "residuals-budget": partial(residuals_over_budget, left),
        "optimum": partial(optimum, left),
    }
    return tuple(made(name, TITLES[name], partial(body, title=TITLES[name])) for name, body in bodies.items())


def curvature(left: Residuals, title: str) -> CheckCard:
    """Quadratic coefficient of log loss over log N in each cell against the law's at the same runs."""
    cells = left.cells
    cells.require_curved()
    chosen = np.flatnonzero(cells.curved)
    rows = cells.parabolas[chosen, 2]
    measured, lawful = rows @ left.inputs.log_loss, rows @ left.law
    weight = 1 / (rows**2).sum(axis=1)
    combination = (weight * lawful) @ rows / (weight * lawful**2).sum()
    ratio = float(combination @ left.inputs.log_loss)
    own = left.scatter[0] * float(np.sqrt(combination @ combination))
    threshold = max(CURVATURE, 3 * left.error(combination))
    more = int((measured > lawful).sum())
    return CheckCard(
        name="curvature",
        title=title,
        verdict=judged(abs(ratio - 1) > threshold),
        value=ratio,
        threshold=threshold,
        weight=abs(ratio - 1) / threshold,
        reading=f"within cells log loss curves {ratio:.2f} ± {own:.2f} times as much over log N as the law says "
        f"({more} of {len(chosen)} cells curve more), where 1 is right and {threshold:.2f} off it is tolerated",
        advice=advice(left.structure, "do not trust how much loss this law says a wrong size costs"),
        header=("cell", "measured", "law", "ratio"),
        rows=tuple(
            (left.cell_names[cell], f"{m:.4f}", f"{p:.4f}", f"{m / p:.2f}")
            for cell, m, p in zip(chosen, measured, lawful, strict=True)
        ),
        arrays={
            "measured": measured,
            "law": lawful,
            "error": left.scatter[0] / np.sqrt(weight),
            "recurrences": cells.recurrences[chosen],
            "flops": cells.flops[chosen],
            "ratio": ratio,
        },
    )


def lack_of_fit(left: Residuals, title: str) -> CheckCard:
    """F of the law's residuals against what repeated runs, else the cells' parabolas, leave."""
    inputs, structure = left.inputs, left.structure
    groups = replicates(inputs)
    within = "cell" in structure.effects
    unknowns = sum(len(block.levels) for block in structure.blocks)
    if groups and sum(len(rows) - 1 for rows in groups) >= LEAST_PURE:
        against, rows = "repeated runs of one design", np.arange(len(inputs.loss))
        squares = sum(float(((inputs.log_loss[g] - inputs.log_loss[g].mean()) ** 2).sum()) for g in groups)
        free = sum(len(g) - 1 for g in groups)
    else:
        off, free = left.cells.off_parabolas(inputs.log_loss)
        if free < LEAST_PURE:
            few = "the cells hold too few sizes for parabolas to leave anything"
            raise NotApplicableError(
                f"no design was trained more than once, and {few if left.cells.known.any() else UNKNOWN}"
            )
        against, rows = "the cells' own parabolas", np.flatnonzero(left.cells.in_curved)
        squares = float((off**2).sum())
    values = left.values
    spent = unknowns
    if within:
        values = values - (left.cells.means @ values)[left.cells.index]
        spent += len(np.unique(left.cells.index[rows]))
    total, more = float((values[rows] ** 2).sum()), len(rows) - spent - free
    if more < 1:
        raise NotApplicableError("the law has as many parameters as the runs could fault it by")
    noise = squares / free
    statistic = max(0.0, total - squares) / more / noise
    beyond = " beyond the effects of cells that the fit has" if within else ""
    return CheckCard(
        name="lack-of-fit",
        title=title,
        verdict=judged(statistic > LACK_OF_FIT),
        value=statistic,
        threshold=LACK_OF_FIT,
        weight=statistic / LACK_OF_FIT,
        reading=f"the law misses the runs{beyond} by {statistic:.1f} times the variance that {against} leave "
        f"({np.sqrt(noise):.2g} on log loss; F with {more} and {free} degrees of freedom, tolerated up to "
        f"{LACK_OF_FIT:.0f})",
        advice=advice(structure, "take intervals that rest on independent errors as too narrow"),
        header=("what", "degrees of freedom", "rms on log loss"),
        rows=(
            (against, str(free), f"{np.sqrt(noise):.3g}"),
            ("law", str(len(rows) - spent), f"{np.sqrt(total / len(rows)):.3g}"),
        ),
        arrays={"n_unique": np.exp(left.cells.log_n), "residual": left.values, "cell": left.cells.index},
    )
