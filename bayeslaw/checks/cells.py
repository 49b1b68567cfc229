"""Cells of an iso-FLOP grid (recipe, budget, r), a parabola through each, and the scatter that parabolas leave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bayeslaw.inputs import NEAR, Inputs
from bayeslaw.origins import budget_levels
from bayeslaw.schema import STEP

Array = NDArray[np.float64]
Index = NDArray[np.int64]

LEAST_SIZES = 4
"""Distinct sizes from which on a parabola leaves something over to tell its scatter by."""

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


def cells_of(inputs: Inputs) -> Cells:
    """The cells of a run table: by recipe, r and level of compute, see `bayeslaw.origins.budget_levels`."""
    level = budget_levels(inputs.flops)
    keys = np.column_stack([inputs.recipe, level, inputs.recurrences])
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.ravel()
    logs, log_n = np.log(inputs.flops), np.log(inputs.n_once + inputs.n_rec)
    members = [np.flatnonzero(index == cell) for cell in range(len(unique))]
    return Cells(
        log_n=log_n,
        index=index,
        recipe=unique[:, 0].astype(np.int64),
        level=unique[:, 1].astype(np.int64),
        recurrences=unique[:, 2],
        flops=np.exp([logs[rows].mean() for rows in members]),
        curved=np.array([np.ptp(logs[rows]) < np.log(NEAR) and _sizes(log_n[rows]) >= LEAST_SIZES for rows in members]),
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
