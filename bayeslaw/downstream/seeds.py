"""What more seeds would show: how many runs, and which FLOPs, bring the smallest effect that can be told down.

With K copies of every run, each with a seed of its own, on the same questions: what one checkpoint is off (omega) and
what it is off on one task (sigma) shrink as 1 / sqrt(K); the standard errors of the examples do not, since the
questions are the same; nor does what the validation losses that there are leave open of slope and curvature, beyond
what less noise tells of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.downstream.axis import AxisData
from bayeslaw.downstream.model import Posterior, growth, scales
from bayeslaw.downstream.priors import RegimePriors
from bayeslaw.downstream.verdicts import resolvable

Array = NDArray[np.float64]

MOST = 1000
"""Copies of every run beyond which more seeds are no answer."""

DRAWS = 200
"""Posterior draws that the expected variance is averaged over."""


@dataclass(frozen=True, kw_only=True)
class More:
    """What it takes to tell a stated effect from 0 on one axis by more seeds of the same runs.

    Parameters
    ----------
    effect : float
        The stated effect of the looped architectures together, nats per token.
    resolvable : float
        Smallest effect that the data tell now.
    copies : int, optional
        Runs of each design in all, one now; None where seeds alone do not do it.
    runs : int, optional
        Further runs.
    flops : float, optional
        Training FLOPs of these; None where the FLOPs of the runs are unknown.
    floor : float
        Smallest effect that could be told with seeds without end.
    examples : float
        Smallest that could be told were the examples' standard errors gone besides.
    """

    effect: float
    resolvable: float
    copies: int | None
    runs: int | None
    flops: float | None
    floor: float
    examples: float

    @property
    def sentence(self) -> str:
        """In one sentence, for a person."""
        said = f"The smallest effect that these runs tell from 0 is {self.resolvable:.3f} nats"
        if self.copies == 1:
            return f"{said}, so {self.effect:g} would show."
        if self.copies is not None:
            cost = "" if self.flops is None else f" ({self.flops:.2g} training FLOPs)"
            return f"{said}; {self.effect:g} would show after {self.runs} more runs{cost}, new seeds of these."
        remedy = "more examples" if self.examples <= self.effect < self.floor else "more budgets or tasks"
        return (
            f"{said}; no number of new seeds up to {MOST} a run would show {self.effect:g} (at last {self.floor:.3f} "
            f"would): it takes {remedy}."
        )


def more_seeds(data: AxisData, posterior: Posterior, priors: RegimePriors, *, weights: Array, effect: float) -> More:
    """How many copies of the runs tell a stated effect.

    Parameters
    ----------
    data, posterior, priors
    weights : ndarray, shape (R,)
        Of the architectures' effects in the effect that is to be told.
    effect : float
        Nats per token, above 0.
    """
    sd = float((posterior.effects @ weights).std())
    pick = np.linspace(0, len(posterior.omega) - 1, min(DRAWS, len(posterior.omega))).astype(int)
    now = _expected_sd(data, posterior, priors, weights, pick, 1.0)

    def after(copies: float, *, examples: bool = True) -> float:
        # The linear normal approximation says by how much the sd shrinks, the posterior from where.
        return resolvable(sd * _expected_sd(data, posterior, priors, weights, pick, copies, examples=examples) / now)

    copies: int | None = None
    if after(1) <= effect:
        copies = 1
    elif after(MOST) <= effect:
        low, high = 1, MOST  # the first is too few, the second enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if after(middle) <= effect else (middle, high)
        copies = high
    runs = data.checkpoints.groupby("run_id")["flops"].max()
    cost = float(runs.sum()) if runs.notna().all() else None
    extra = None if copies is None else copies - 1
    return More(
        effect=effect,
        resolvable=after(1),
        copies=copies,
        runs=None if extra is None else extra * len(runs),
        flops=None if extra is None or cost is None else extra * cost,
        floor=after(1e9),
        examples=after(1e9, examples=False),
    )


def _expected_sd(
    data: AxisData, posterior: Posterior, priors: RegimePriors, weights: Array, pick: NDArray[np.int64], copies: float,
    *, examples: bool = True,
) -> float:  # fmt: skip
    """Standard deviation of the effect with so many copies of each run: curves linearised at every draw."""
    curvature, slopes = posterior.curvature[pick, None], posterior.slopes[pick]
    height = growth(data.x, curvature, xp=np)
    slope = slopes @ data.weights.T
    step = 1e-4
    by_curvature = slope * (growth(data.x, curvature + step, xp=np) - height) / step
    level = (slope * height)[..., None]
    each = data.weights * (slopes[:, None, :] * height[..., None]) * posterior.spread[pick, None, None]
    curve = np.concatenate([level * priors.slope.sd, each, by_curvature[..., None] * priors.curvature.sd], axis=2)
    scale = scales(data, posterior.rho[pick], posterior.omega[pick] / np.sqrt(copies))
    design = np.concatenate([data.design * scale[:, None, :], curve], axis=2)
    noise = data.known * examples + data.share * posterior.sigma[pick, None] ** 2 / copies
    weighted = design / noise[..., None]
    precision = np.eye(design.shape[2]) + np.swapaxes(design, 1, 2) @ weighted
    aim = np.zeros(design.shape[2])
    aim[data.effects] = weights * priors.effect.sd
    variance = np.linalg.solve(precision, np.broadcast_to(aim, (len(pick), len(aim)))[..., None])[..., 0] @ aim
    return float(np.sqrt(variance.mean()))
