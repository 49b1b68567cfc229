"""The law's best size along each cell's own budget line, against the minimum of the cell's own parabola."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bayeslaw.checks.cards import CheckCard, NotApplicableError, judged
from bayeslaw.checks.residuals import Residuals, advice, thinned
from bayeslaw.likelihood import predicted_log_loss

Array = NDArray[np.float64]

MEDIAN, ANY = 0.1, 0.25
"""How far the median ratio of best sizes, and any, may be off 1."""

SURE, SURE_ANY = 3.0, 4.0
"""Standard errors that the cells' slopes at the law's best sizes must be off 0, together or any; of many cells one is
three off by chance."""

REACH = np.log(2.0)
"""How far past a cell's sizes the law's minimum is looked for, by the logarithm of the size."""

GRID = 61
DRAWS = 40


@dataclass(frozen=True, kw_only=True)
class Optima:
    """Minima over size of the cells that have one inside their sizes, each array of shape (cell,).

    Parameters
    ----------
    cell : ndarray of int
        Which cells.
    measured, law : ndarray
        N* of the cell's parabola and of the law, parameters.
    measured_se, law_se : ndarray
        Standard errors of their logarithms.
    measured_loss, law_loss : ndarray
        Loss there, nats per token.
    """

    cell: NDArray[np.int64]
    measured: Array
    law: Array
    measured_se: Array
    law_se: Array
    measured_loss: Array
    law_loss: Array


def optima(left: Residuals) -> Optima:
    """The minima of every cell that has its own inside its sizes."""
    cells, log_loss, scatter = left.cells, left.inputs.log_loss, left.scatter[0]
    chosen, log_n, se, lowest = [], [], [], []
    for place in np.flatnonzero(cells.curved):
        level, slope, bend = cells.parabolas[place] @ log_loss
        sizes = cells.log_n[cells.members[place]] - cells.centres[place]
        at = -slope / (2 * bend) if bend > 0 else np.inf
        if sizes.min() <= at <= sizes.max():
            row = -cells.parabolas[place, 1] / (2 * bend) + slope / (2 * bend**2) * cells.parabolas[place, 2]
            chosen.append(place)
            log_n.append(at + cells.centres[place])
            se.append(scatter * np.sqrt(row @ row))
            lowest.append(level - slope**2 / (4 * bend))
    cell = np.array(chosen, dtype=np.int64)
    law, law_se, law_loss = _by_the_law(left, cell)
    return Optima(
        cell=cell, measured=np.exp(log_n), law=law, measured_se=np.array(se), law_se=law_se,
        measured_loss=np.exp(lowest), law_loss=law_loss,
    )  # fmt: skip


def _by_the_law(left: Residuals, chosen: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    """N*, standard error of its logarithm, and loss there, of the law along each cell's budget line.

    Between and a little beyond the cell's runs, tokens and both counts of parameters follow curves in log N.
    """
    cells, inputs = left.cells, left.inputs
    first, columns, grids = [], [], []
    for cell in chosen:
        rows = cells.members[cell]
        centre, x = cells.centres[cell], cells.log_n[rows] - cells.centres[cell]
        grid = np.linspace(x.min() - REACH, x.max() + REACH, GRID)
        n = np.exp(centre + grid)
        share = np.polynomial.Polynomial.fit(x, inputs.n_rec[rows] / np.exp(cells.log_n[rows]), 1)(grid).clip(0, 1)
        tokens = np.exp(np.polynomial.Polynomial.fit(x, np.log(inputs.tokens[rows]), 2)(grid))
        first.append(rows[0])
        grids.append(centre + grid)
        columns.append((n * (1 - share), n * share, tokens))
    if not len(chosen):
        return (np.empty(0),) * 3
    n_once, n_rec, tokens = (np.concatenate(column) for column in zip(*columns, strict=True))
    line = replace(inputs.subset(np.repeat(first, GRID)), n_once=n_once, n_rec=n_rec, tokens=tokens)
    drawn = predicted_log_loss(thinned(left.parameters, DRAWS), left.structure, line).values
    by_draw: Array = drawn.reshape(-1, len(chosen), GRID)
    curves = np.concatenate([by_draw.mean(axis=0)[None], by_draw])
    best = curves.argmin(axis=2).clip(1, GRID - 2)
    left_of, at, right_of = (np.take_along_axis(curves, (best + step)[..., None], 2)[..., 0] for step in (-1, 0, 1))
    shift = np.clip(0.5 * (left_of - right_of) / np.maximum(left_of - 2 * at + right_of, 1e-12), -1, 1)
    step = np.array([grid[1] - grid[0] for grid in grids])
    log_n = np.array([grid[0] for grid in grids]) + (best + shift) * step
    return np.exp(log_n[0]), log_n[1:].std(axis=0), np.exp(at[0] - 0.25 * (left_of - right_of)[0] * shift[0])


def optimum(left: Residuals, title: str) -> CheckCard:
    """Ratios of the law's best sizes to the cells' own, and the differences of loss there."""
    left.cells.require_curved()
    found = optima(left)
    if not len(found.cell):
        raise NotApplicableError("no cell has its minimum inside the sizes that were trained")
    ratio = found.law / found.measured
    logs, se = np.log(ratio), np.hypot(found.measured_se, found.law_se)
    median = float(np.median(ratio))
    together, each = _slopes(left)
    beyond = (np.abs(ratio - 1) > ANY) & (np.abs(each[found.cell]) > SURE_ANY)
    loss = found.law_loss - found.measured_loss
    noise = float(logs.std(ddof=1)) if len(logs) > 1 else float("nan")
    worst = int(np.argmax(np.where(beyond, np.abs(logs), -1.0)) if beyond.any() else np.abs(logs).argmax())
    # One cell alone may owe its parabola to a single stray run: it is named, but is no warning.
    several = beyond.sum() > 1
    weight = max(
        abs(median - 1) / MEDIAN if abs(together) > SURE else 0.0, abs(ratio[worst] - 1) / ANY if several else 0.0
    )
    far = f", {beyond.sum()} of them beyond {ANY:.0%} for sure" if beyond.any() else ""
    return CheckCard(
        name="optimum",
        title=title,
        verdict=judged(weight > 1),
        value=median,
        threshold=MEDIAN,
        weight=weight,
        reading=f"the law's best size is {ratio.min():.2f} to {ratio.max():.2f} times that of the cells' own parabolas "
        f"(median {median:.2f}, scatter {noise:.0%}, {len(ratio)} cells{far}); at the law's best sizes the slope of "
        f"measured loss over size, all cells together, is {abs(together):.1f} of its standard errors off 0; the law's "
        f"loss at its best sizes is off by {_rms(loss):.4f} nats rms, {np.abs(loss).max():.4f} at most",
        advice=advice(
            left.structure,
            f"allow for {noise:.0%} when taking a size from the law; worst at {left.cell_names[found.cell[worst]]}",
        ),
        header=("cell", "N* measured", "±", "N* law", "ratio", "loss law - measured"),
        rows=tuple(
            (left.cell_names[cell], f"{own:.4g}", f"{error:.0%}", f"{law:.4g}", f"{one:.2f}", f"{difference:+.4f}")
            for cell, own, error, law, one, difference in zip(
                found.cell, found.measured, found.measured_se, found.law, ratio, loss, strict=True
            )
        ),
        arrays={
            "flops": left.cells.flops[found.cell],
            "recurrences": left.cells.recurrences[found.cell],
            "ratio": ratio,
            "error": se,
            "loss_difference": loss,
        },
    )


def _slopes(left: Residuals) -> tuple[float, Array]:
    """Slope of log loss over log N at the law's best size, in standard errors: of all cells together, and of each.

    It is 0 where the law puts the minimum right. Unlike the place of a minimum it is linear in the losses, and known of
    cells whose own parabola has none inside its sizes: what tells noise from a wrong law.
    """
    cells = left.cells
    each, together = np.zeros(len(cells.flops)), np.zeros(len(left.law))
    for cell in np.flatnonzero(cells.curved):
        _, slope, bend = cells.parabolas[cell] @ left.law
        sizes = cells.log_n[cells.members[cell]] - cells.centres[cell]
        at = -slope / (2 * bend) if bend > 0 else np.inf
        row = cells.parabolas[cell, 1] + 2 * np.clip(at, sizes.min(), sizes.max()) * cells.parabolas[cell, 2]
        each[cell] = row @ left.values / left.error(row)
        if sizes.min() <= at <= sizes.max():
            together += bend * row / (row @ row)
    score = together @ left.values / left.error(together) if together.any() else 0.0
    return float(score), each


def _rms(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))
