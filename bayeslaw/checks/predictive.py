"""Posterior predictive checks: whether runs drawn from the fit look like those that were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.checks.cards import CheckCard, judged
from bayeslaw.checks.cells import cells_of
from bayeslaw.checks.residuals import thinned
from bayeslaw.inputs import Inputs
from bayeslaw.likelihood import error_variance, predicted_log_loss
from bayeslaw.structure import Structure

Array = NDArray[np.float64]

EXTREME = 0.01
"""A p-value nearer than this to 0 or 1 is a warning."""

MOST_WEIGHT = 2.0
"""A share of draws cannot say how far beyond the threshold it is: such a warning never leads the others."""

DRAWS = 1000
"""Draws behind a p-value: enough to tell .01 from .02."""

LARGEST = "largest residual, in sigma"

TITLE = "Runs drawn from the fit against the measured ones"


def predictive_check(
    parameters: xr.Dataset,
    replicated: xr.DataArray,
    structure: Structure,
    inputs: Inputs,
    *,
    ids: Sequence[str] | None = None,
    compute: Array | None = None,
) -> CheckCard:
    """Bayesian p-values of what the law and its errors should repeat.

    Each discrepancy is computed draw by draw, with that draw's parameters, of the measured log losses and of those
    drawn anew; p is how often the drawn ones have the larger.

    Parameters
    ----------
    parameters : xarray.Dataset
        Posterior draws, as `bayeslaw.likelihood.named` gives them.
    replicated : xarray.DataArray
        Log losses drawn from the same draws, over chain, draw and run.
    structure : Structure
    inputs : Inputs
    ids : sequence of str, optional
        Names of the runs; by default their places in the table.
    compute : ndarray, shape (run,), optional
        As for `bayeslaw.checks.cells.cells_of`.
    """
    parameters, replicated = thinned(parameters, DRAWS), thinned(replicated, DRAWS)
    shape = (-1, len(inputs.loss))
    law = predicted_log_loss(parameters, structure, inputs).values.reshape(shape)
    scale = np.sqrt(error_variance(parameters, structure, inputs)).reshape(shape)
    measured = (inputs.log_loss - law) / scale
    drawn = (replicated.transpose("chain", "draw", "run").values.reshape(shape) - law) / scale
    cells = cells_of(inputs, compute)
    level = cells.level[cells.index]
    told: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "sd": ("sd of residuals, in sigma", lambda z: np.sqrt((z**2).mean(axis=1))),
        "largest": (LARGEST, lambda z: np.abs(z).max(axis=1)),
    }
    several = np.bincount(cells.index) > 1
    if len(several) > 1 and several.any():
        told["cells"] = ("correlation of residuals within cells", lambda z: _together(z, cells.index))
    if level.max() > 0:
        told["budgets"] = ("correlation of residuals' size with budget", lambda z: _growth(z, level))
    rows, p = [], {}
    arrays = {}
    for name, (label, discrepancy) in told.items():
        own, anew = discrepancy(measured), discrepancy(drawn)
        p[name] = float((anew > own).mean() + 0.5 * (anew == own).mean())
        arrays[name] = {"label": label, "measured": own, "drawn": anew}
        rows.append((label, _rounded(own), _rounded(anew), _share(p[name])))
    worst = min(p, key=lambda name: min(p[name], 1 - p[name]))
    tail = min(p[worst], 1 - p[worst])
    failing = [told[name][0] for name in p if min(p[name], 1 - p[name]) < EXTREME]
    if failing:
        farthest = int(np.abs(measured).mean(axis=0).argmax())
        owner = {LARGEST: f" ({ids[farthest] if ids else f'row {farthest + 1}'})"}
        reading = "runs drawn from the fit are not like the measured ones: " + "; ".join(
            f"{row[0]} {row[1]} measured{owner.get(row[0], '')}, {row[2]} drawn (p: {row[3]})"
            for row in rows
            if row[0] in failing
        )
    else:
        reading = (
            f"runs drawn from the fit look like the measured ones; the most extreme p is {_share(p[worst])} "
            f"({told[worst][0]})"
        )
    return CheckCard(
        name="predictive",
        title=TITLE,
        verdict=judged(tail < EXTREME),
        value=float(np.clip(p[worst], 1 / DRAWS, 1 - 1 / DRAWS)),
        threshold=EXTREME,
        weight=min(MOST_WEIGHT, EXTREME / max(tail, 1e-4)) if failing else 0.0,
        reading=reading,
        advice=_advice(p, structure) if failing else "",
        header=("discrepancy", "measured", "drawn", "p"),
        rows=tuple(rows),
        arrays=arrays,
    )


def _rounded(draws: Array) -> str:
    """Their mean, and no minus zero."""
    return f"{round(float(draws.mean()), 2) + 0.0:.2f}"


def _share(p: float) -> str:
    """A share of draws, which cannot tell a probability from 0 or 1 beyond their number."""
    return f"< {1 / DRAWS:.3f}" if p < 1 / DRAWS else f"> {1 - 1 / DRAWS:.3f}" if p > 1 - 1 / DRAWS else f"{p:.3f}"


def _together(z: Array, index: NDArray[np.int64]) -> Array:
    """Mean product of residuals of two runs of one cell over their mean square, for every draw."""
    sizes = np.bincount(index)
    totals = np.stack([z[:, index == cell].sum(axis=1) for cell in range(len(sizes))], axis=1)
    squares = (z**2).sum(axis=1)
    products = (totals**2).sum(axis=1) - squares
    pairs = float((sizes * (sizes - 1)).sum())
    out: Array = products / pairs / (squares / z.shape[1])
    return out


def _growth(z: Array, level: NDArray[np.int64]) -> Array:
    """Correlation of log |residual| with the budget's place, for every draw; robust against single outliers."""
    size = np.log(np.abs(z) + 1e-3)
    x = level - level.mean()
    size = size - size.mean(axis=1, keepdims=True)
    out: Array = (size @ x) / np.sqrt((x @ x) * (size**2).sum(axis=1))
    return out


def _advice(p: dict[str, float], structure: Structure) -> str:
    parts = []
    if "cells" in p and min(p["cells"], 1 - p["cells"]) < EXTREME:
        parts.append(
            "residuals of a cell go together, which independent errors leave out: hold the answer against --noise cells"
        )
    if min(p["largest"], 1 - p["largest"]) < EXTREME and structure.outliers == "gaussian":
        parts.append("single runs lie too far off: use --outliers student")
    if "budgets" in p and min(p["budgets"], 1 - p["budgets"]) < EXTREME:
        parts.append("errors change with budget: try --error-scale compute")
    return "; ".join(parts) or "the errors are not what the fit takes them for: read its intervals with care"
