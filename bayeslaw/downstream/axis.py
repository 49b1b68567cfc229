"""One axis of an evaluation table as the arrays that the model needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.downstream.priors import RegimePriors
from bayeslaw.evaluations import AXIS_MEAN

Array = NDArray[np.float64]

REFERENCE = "r = 1"
"""The architecture that the others are held against."""

CHECKPOINT_COLUMNS = ("run_id", "recipe", "recurrences", "architecture", "budget", "flops", "loss")

FIXED, RHO, OMEGA = 0, 1, 2
"""What scales a Gaussian effect: a standard deviation of its own, rho, or omega."""


@dataclass(frozen=True, eq=False)
class AxisData:
    """Observations j = (checkpoint, task) of one axis.

    The losses are ``y = (weights @ slopes) h(x) + design @ b + e`` with Gaussian b: levels of the tasks, effects of the
    architectures, deviations of the tasks from those (which sum to 0 over an axis's tasks, so that an effect is the
    mean over the tasks), and what each checkpoint is off.

    Parameters
    ----------
    axis : str
    tasks : tuple of str, length T
    checkpoints : DataFrame
        One row a checkpoint, with `CHECKPOINT_COLUMNS`.
    architectures : tuple of str, length R
        The looped ones, in the order of the effects.
    losses : ndarray, shape (N,)
        Task losses, nats per token.
    y : ndarray, shape (N,)
        The same less their task's mean.
    x : ndarray, shape (N,)
        Validation loss less ``centre``, nats per token.
    known : ndarray, shape (N,)
        Squared standard errors from the examples, 0 where unknown.
    share : ndarray, shape (N,)
        Share of sigma^2 in the noise: 1, or 1 / T for the mean of the axis.
    weights : ndarray, shape (N, T)
        What of each task an observation holds: one task, or 1 / T of all.
    design : ndarray, shape (N, B)
    kind : ndarray of int, shape (B,)
        `FIXED`, `RHO` or `OMEGA`.
    fixed : ndarray, shape (B,)
        Standard deviation where the kind is `FIXED`, else 0.
    checkpoint : ndarray of int, shape (N,)
        Row of ``checkpoints``.
    centre : float
        Mean validation loss of the checkpoints.
    means : ndarray, shape (T,)
        Mean loss of each task.
    """

    axis: str
    tasks: tuple[str, ...]
    checkpoints: pd.DataFrame
    architectures: tuple[str, ...]
    losses: Array
    y: Array
    x: Array
    known: Array
    share: Array
    weights: Array
    design: Array
    kind: NDArray[np.int64]
    fixed: Array
    checkpoint: NDArray[np.int64]
    centre: float
    means: Array

    @property
    def effects(self) -> slice:
        """Where the effects of the architectures are among the Gaussian effects; the tasks' levels precede them."""
        return slice(len(self.tasks), len(self.tasks) + len(self.architectures))


def axis_data(rows: pd.DataFrame, priors: RegimePriors) -> AxisData:
    """The arrays of one axis.

    Parameters
    ----------
    rows : DataFrame
        Rows of one axis: ``axis``, ``checkpoint`` (what tells checkpoints apart), ``task``, ``task_loss``,
        ``task_loss_se`` (NaN where unknown) and the columns of `AxisData.checkpoints`.
    priors : RegimePriors
    """
    index, names = pd.factorize(rows["checkpoint"])
    checkpoints = rows.drop_duplicates("checkpoint").set_index("checkpoint").loc[names, list(CHECKPOINT_COLUMNS)]
    looped = checkpoints[checkpoints["architecture"] != REFERENCE].sort_values(["recipe", "recurrences"])
    architectures = tuple(dict.fromkeys(looped["architecture"]))
    tasks = tuple(dict.fromkeys(rows.loc[rows["task"] != AXIS_MEAN, "task"])) or (AXIS_MEAN,)
    count, kinds = len(tasks), len(architectures)
    of_task = (rows["task"].to_numpy()[:, None] == np.array(tasks)).astype(float)
    whole = of_task.sum(axis=1) == 0  # means of the axis
    of_task[whole] = 1 / count
    losses = rows["task_loss"].to_numpy(dtype=float)
    error = rows["task_loss_se"].to_numpy(dtype=float)
    loss = checkpoints["loss"].to_numpy(dtype=float)
    centre = float(loss.mean())
    means = np.array([losses[of_task[:, t] == 1].mean() for t in range(count)])
    of_kind = (checkpoints["architecture"].to_numpy()[index, None] == np.array(architectures)).astype(float)
    deviations = [of_kind[:, [r]] * (of_task @ contrasts(count)) for r in range(kinds)]
    blocks: list[tuple[Any, int, float]] = [
        (of_task, FIXED, priors.level.sd), (of_kind, FIXED, priors.effect.sd), (np.hstack(deviations), RHO, 0.0),
        (np.eye(len(checkpoints))[index], OMEGA, 0.0),
    ]  # fmt: skip
    return AxisData(
        axis=str(rows["axis"].iloc[0]),
        tasks=tasks,
        checkpoints=checkpoints.reset_index(drop=True),
        architectures=architectures,
        losses=losses,
        y=losses - of_task @ means,
        x=loss[index] - centre,
        known=np.nan_to_num(error) ** 2,
        share=np.where(whole, 1 / count, 1.0),
        weights=of_task,
        design=np.hstack([block for block, _, _ in blocks]),
        kind=np.concatenate([np.full(block.shape[1], kind) for block, kind, _ in blocks]),
        fixed=np.concatenate([np.full(block.shape[1], sd) for block, _, sd in blocks]),
        checkpoint=index.astype(np.int64),
        centre=centre,
        means=means,
    )


def contrasts(count: int) -> Array:
    """Orthonormal basis of what sums to 0, shape (count, count - 1); Gaussian weights on it are exchangeable tasks."""
    basis, _ = np.linalg.qr(np.eye(count) - 1 / count)
    return np.asarray(basis[:, : count - 1], dtype=float)
