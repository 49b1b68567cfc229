"""Parts of a run table that models are fitted to, and the runs that they then have to forecast."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.inputs import Inputs, optional
from bayeslaw.origins import budget_levels
from bayeslaw.runs import RunTable

Mask = NDArray[np.bool_]
Index = NDArray[np.int64]

CELL, BUDGET, FORWARD = "cell", "budget", "forward"
"""Kinds of split: one (recipe, budget, r) left out, one budget left out, all budgets beyond one left out."""

LEAVE = (CELL, BUDGET)
"""Kinds of groups that can be left out in turn."""

LEAST_LEVELS = 4
"""Budgets that forward chaining needs: three to learn from, and one to forecast."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Runs that a model is fitted to, and runs that it forecasts.

    Parameters
    ----------
    kind : str
        `CELL`, `BUDGET` or `FORWARD`.
    trained, held : ndarray of bool, shape (run,)
    trained_to : float
        Largest FLOPs fitted.
    cells : ndarray of int, shape (held run,)
        The cell (recipe, budget, r) of each run that is forecast.
    levels : int
        Budgets of the runs that are forecast.
    main : bool
        Whether this is the forecast that models are judged by: from the lower two thirds of the budgets.
    """

    kind: str
    trained: Mask
    held: Mask
    trained_to: float
    cells: Index
    levels: int
    main: bool = False


def levels_of(table: RunTable, inputs: Inputs) -> Index:
    """Budget of every run, from 0: the aimed one where all have it, else by FLOPs."""
    aimed = optional(table.runs, "budget", np.nan)
    return budget_levels(aimed if np.isfinite(aimed).all() else inputs.flops)


def splits_of(
    inputs: Inputs, level: Index, *, leave: Collection[str] = LEAVE, needed: int = 0
) -> tuple[tuple[Split, ...], tuple[str, ...]]:
    """The splits of a run table that every model is tried on, and what is said of those that could not be made.

    No model is asked about an architecture (recipe and r) that it has not seen. With a group go the other rows of its
    training runs, which would tell of it.

    Parameters
    ----------
    inputs : Inputs
    level : ndarray of int, shape (run,)
        Budget of each run, from 0.
    leave : collection of str
        Of `LEAVE`.
    needed : int
        Training runs that have to stay.
    """
    architecture = np.unique(np.column_stack([inputs.recipe, inputs.recurrences]), axis=0, return_inverse=True)[1]
    cell = np.unique(np.column_stack([level, architecture]), axis=0, return_inverse=True)[1].ravel()
    architecture = architecture.ravel()

    def usable(trained: Mask, held: Mask) -> bool:
        enough = len(np.unique(inputs.run.index[trained])) >= max(needed, 1)
        return enough and bool(np.isin(architecture[held], architecture[trained]).all()) and bool(held.any())

    def split(kind: str, trained: Mask, held: Mask, main: bool = False) -> Split:
        reach = float(inputs.flops[trained].max())
        return Split(
            kind=kind, trained=trained, held=held, trained_to=reach, cells=cell[held], main=main,
            levels=len(np.unique(level[held])),
        )  # fmt: skip

    out: list[Split] = []
    notes: list[str] = []
    for kind, groups in ((CELL, cell), (BUDGET, level)):
        if kind not in leave:
            continue
        skipped = 0
        for each in np.unique(groups):
            held = groups == each
            trained = ~held & ~np.isin(inputs.run.index, inputs.run.index[held])
            if usable(trained, held):
                out.append(split(kind, trained, held))
            else:
                skipped += 1
        if skipped:
            count = len(np.unique(groups))
            notes.append(
                f"{skipped} of {count} {kind}s (of {'recipe, budget, r' if kind == CELL else 'compute'}) not left out: "
                "without them some recipe's r has no run, or fewer runs stay than the models have free parameters"
            )
    count = int(level.max()) + 1
    if count < LEAST_LEVELS:
        notes.append(
            f"no forward chaining: it needs runs at {LEAST_LEVELS} budgets or more, and these have {count}; how well "
            "the models forecast higher budgets is not known from them"
        )
        return tuple(out), tuple(notes)
    for known in range(LEAST_LEVELS - 1, count):
        trained = level < known
        held = ~trained & np.isin(architecture, architecture[trained])
        if usable(trained, held):
            out.append(split(FORWARD, trained, held, main=known == round(2 * count / 3)))
        else:
            notes.append(f"no forecast from the lowest {known} budgets: too few runs, or too few r, that low")
    if not any(each.main for each in out):
        notes.append("the forecast from the lower two thirds of the budgets could not be made")
    return tuple(out), tuple(notes)
