"""Cells of an iso-FLOP grid (recipe, budget, r), a parabola through each, and the scatter that parabolas leave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.checks.cards import NotApplicableError
from bayeslaw.inputs import NEAR, Inputs, optional
from bayeslaw.origins import budget_levels
from bayeslaw.schema import STEP

Array = NDArray[np.float64]
Index = NDArray[np.int64]

LEAST_SIZES = 4
"""Distinct sizes from which on a parabola leaves something over to tell its scatter by."""

UNKNOWN = "the runs have neither a budget nor FLOPs, so that none are known to share a budget"

SAME_SIZE = 1e-3
"""Sizes nearer to each other than this, by their logarithm, are one."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Runs of one recipe, budget and r together.

    Every statistic of a cell is linear in the runs' log losses, and is given as a matrix of shape (cell, run) to
    multiply them with.

    Parameters
    ----------
    log_n : ndarray, shape (run,)
        Logarithm of the unique parameters, as the fit counts them.
    index : ndarray of int, shape (run,)
        Cell of every run.
    compute : ndarray, shape (run,)
        Training FLOPs that the runs are grouped by: as recorded, else the aimed budget, else 6 N D.
    known : ndarray of bool, shape (run,)
        Whether they are recorded or aimed at. Runs are not told to share a budget by 6 N D.
    recipe : ndarray of int, shape (cell,)
    level : ndarray of int, shape (cell,)
        Place of its budget, from 0.
    recurrences, flops : ndarray, shape (cell,)
        r, and the geometric mean of its training FLOPs.
    curved : ndarray of bool, shape (cell,)
        Whether it is a budget line with at least `LEAST_SIZES` sizes.
    """

    log_n: Array
    index: Index
    compute: Array
    known: NDArray[np.bool_]
    recipe: Index
    level: Index
    recurrences: Array
    flops: Array
    curved: NDArray[np.bool_]

    @property
    def steps(self) -> Array:
        """Steps of compute from the lowest cell, shape (cell,)."""
        steps: Array = np.log(self.flops / self.flops.min()) / np.log(STEP)
        return steps

    def require_curved(self) -> None:
        """Make sure that there are budget lines to look along."""
        if not self.curved.any():
            raise NotApplicableError(
                "no cell (recipe, budget, r) holds four sizes trained at one budget" if self.known.any() else UNKNOWN
            )

    @property
    def assumed(self) -> str:
        """What a reading over budgets must add where FLOPs are not known; else empty."""
        if self.known.all():
            return ""
        whose = f"the {int((~self.known).sum())} runs" if self.known.any() else "these runs, all"
        return f"; compute is taken as 6 N D for {whose} without recorded FLOPs or budget"

    @cached_property
    def members(self) -> list[Index]:
        """Runs of each cell."""
        return [np.flatnonzero(self.index == cell) for cell in range(len(self.flops))]

    @cached_property
    def means(self) -> Array:
        """Mean of each cell, shape (cell, run)."""
        member = self.index[None, :] == np.arange(len(self.flops))[:, None]
        means: Array = member / member.sum(axis=1, keepdims=True)
        return means

    @cached_property
    def parabolas(self) -> Array:
        """Coefficients (at the cell's centre, slope, curvature) of its parabola over log N, shape (cell, 3, run).

        0 for a cell that is not ``curved``.
        """
        out = np.zeros((len(self.flops), 3, len(self.log_n)))
        for cell in np.flatnonzero(self.curved):
            rows = self.members[cell]
            out[cell][:, rows] = np.linalg.pinv(np.vander(self.log_n[rows] - self.centres[cell], 3, increasing=True))
        return out

    @cached_property
    def centres(self) -> Array:
        """Mean log N of each cell, shape (cell,)."""
        centres: Array = self.means @ self.log_n
        return centres

    def off_parabolas(self, values: Array) -> tuple[Array, int]:
        """What the cells' parabolas leave of values over the runs, for the runs of curved cells; degrees of freedom."""
        left, free = [], 0
        for cell in np.flatnonzero(self.curved):
            rows = self.members[cell]
            x = np.vander(self.log_n[rows] - self.centres[cell], 3, increasing=True)
            left.append(values[rows] - x @ (self.parabolas[cell][:, rows] @ values[rows]))
            free += len(rows) - 3
        return (np.concatenate(left) if left else np.empty(0)), free

    @property
    def in_curved(self) -> NDArray[np.bool_]:
        """Runs of curved cells, shape (run,)."""
        inside: NDArray[np.bool_] = self.curved[self.index]
        return inside


def compute_of(runs: pd.DataFrame) -> Array:
    """Training FLOPs of every run as recorded, else its aimed budget, else nan, shape (run,)."""
    flops = optional(runs, "flops", np.nan)
    return np.where(np.isfinite(flops), flops, optional(runs, "budget", np.nan))


def cells_of(inputs: Inputs, compute: Array | None = None) -> Cells:
    """The cells of a run table: by recipe, r and level of compute, see `bayeslaw.origins.budget_levels`.

    Parameters
    ----------
    inputs : Inputs
    compute : ndarray, shape (run,), optional
        What `compute_of` gives; by default all FLOPs of ``inputs`` are taken for recorded.
    """
    known = np.isfinite(inputs.flops if compute is None else compute)
    compute = inputs.flops if compute is None else np.where(known, compute, inputs.flops)
    level = budget_levels(compute)
    keys = np.column_stack([inputs.recipe, level, inputs.recurrences])
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.ravel()
    logs, log_n = np.log(compute), np.log(inputs.n_once + inputs.n_rec)
    members = [np.flatnonzero(index == cell) for cell in range(len(unique))]
    return Cells(
        log_n=log_n,
        index=index,
        compute=compute,
        known=known,
        recipe=unique[:, 0].astype(np.int64),
        level=unique[:, 1].astype(np.int64),
        recurrences=unique[:, 2],
        flops=np.exp([logs[rows].mean() for rows in members]),
        curved=np.array(
            [
                bool(known[rows].all()) and np.ptp(logs[rows]) < np.log(NEAR) and _sizes(log_n[rows]) >= LEAST_SIZES
                for rows in members
            ]
        ),
    )


def replicates(inputs: Inputs) -> list[Index]:
    """Runs of one design that were trained more than once: same counts, r, recipe and tokens, so no checkpoints."""
    keys = np.column_stack(
        [inputs.recipe, inputs.recurrences, inputs.n_once, inputs.n_rec, np.round(np.log(inputs.tokens), 3)]
    )
    _, index, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return [np.flatnonzero(index.ravel() == group) for group in np.flatnonzero(counts > 1)]


def _sizes(log_n: Array) -> int:
    return 1 + int(sum(after - before > SAME_SIZE for before, after in pairwise(np.sort(log_n))))
