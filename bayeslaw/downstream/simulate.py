"""Evaluation tables drawn from planted regimes: for tests of recovery, and for how often a verdict is wrong.

Each axis is planted by itself: its regime, the effect of every looped architecture at matched validation loss, and the
rest from the priors. The noise of the axes "without signal" is from the upper third of its prior, that of the others
from the lower two thirds, so that a third of axes without signal makes the prior whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from bayeslaw.downstream.axis import REFERENCE
from bayeslaw.downstream.priors import DEFAULT, RegimePriors
from bayeslaw.evaluations import AXIS_MEAN
from bayeslaw.priors import Prior

Array = NDArray[np.float64]

EFFECTS: dict[str, tuple[float, ...]] = {
    "tracks": (0.0,),
    "closes": (-0.02, -0.05, -0.1, -0.2),
    "no signal": (0.0, -0.02, -0.05, -0.1, -0.2),
}
"""Planted regimes and the effects that each is tried with, nats per token."""

_NOISY = 2 / 3  # quantile of its priors from which on the noise is that of an axis without signal


@dataclass(frozen=True, kw_only=True)
class Planted:
    """The truth of one axis.

    Parameters
    ----------
    regime : str
        One of `EFFECTS`.
    effect : float
        Of every looped architecture at matched validation loss, the mean over the tasks, nats per token.
    slopes : ndarray, shape (T,)
        At the mean validation loss, nats per nat.
    curvature : float
    omega, sigma, rho : float
        As in `bayeslaw.downstream.model`.
    """

    regime: str
    effect: float
    slopes: Array
    curvature: float
    omega: float
    sigma: float
    rho: float

    def rise(self, x: Array) -> Array:
        """Mean over the tasks of h at x."""
        return np.asarray(self.slopes.mean() * (np.expm1(self.curvature * x) / self.curvature))


def planted(
    regime: str, *, tasks: int, rng: np.random.Generator, effect: float | None = None, priors: RegimePriors = DEFAULT
) -> Planted:
    """The truth of one axis, drawn.

    Parameters
    ----------
    regime : str
    tasks : int
    rng : numpy Generator
    effect : float, optional
        Default one of the regime's `EFFECTS` by chance.
    priors : RegimePriors
    """
    low, high = (_NOISY, 1.0) if regime == "no signal" else (0.0, _NOISY)

    def drawn(prior: Prior, at: float) -> float:
        value = prior.mu + prior.sd * float(ndtri(at))
        return float(np.exp(value)) if prior.log else value

    omega, scatter = (drawn(prior, rng.uniform(low, high)) for prior in (priors.checkpoint, priors.scatter))
    lasting = expit(drawn(priors.lasting, rng.uniform()))
    spread = drawn(priors.slope_spread, rng.uniform())
    factor = np.exp(spread * rng.standard_normal(tasks))
    return Planted(
        regime=regime,
        effect=float(rng.choice(EFFECTS[regime])) if effect is None else effect,
        slopes=drawn(priors.slope, rng.uniform()) * factor / factor.mean(),
        curvature=drawn(priors.curvature, rng.uniform()),
        omega=omega,
        sigma=scatter * float(np.sqrt(1 - lasting)),
        rho=scatter * float(np.sqrt(lasting)),
    )


def simulated(rows: pd.DataFrame, truth: Planted, *, rng: np.random.Generator) -> pd.DataFrame:
    """Rows of one axis with task losses drawn anew.

    Parameters
    ----------
    rows : DataFrame
        As `bayeslaw.downstream.axis.axis_data` takes them; standard errors of the examples stay and are drawn from.
    truth : Planted
    rng : numpy Generator
    """
    tasks = [str(task) for task in dict.fromkeys(rows["task"]) if task != AXIS_MEAN]
    looped = [name for name in dict.fromkeys(rows["architecture"]) if name != REFERENCE]
    loss = rows.drop_duplicates("checkpoint").set_index("checkpoint")["loss"]
    x = (loss - loss.mean()).to_dict()
    off = {name: truth.omega * rng.standard_normal() for name in loss.index}
    level = dict(zip(tasks, 2 + rng.standard_normal(len(tasks)), strict=True))
    slope = dict(zip(tasks, truth.slopes, strict=True))
    own = {REFERENCE: dict.fromkeys(tasks, 0.0)}
    for name in looped:
        deviation = truth.rho * rng.standard_normal(len(tasks))
        own[name] = dict(zip(tasks, truth.effect + deviation - deviation.mean(), strict=True))

    def of_task(row: pd.Series, task: str) -> float:
        error = 0.0 if np.isnan(row["task_loss_se"]) else row["task_loss_se"]
        curve = slope[task] * np.expm1(truth.curvature * x[row["checkpoint"]]) / truth.curvature
        noise = np.hypot(truth.sigma, error) * rng.standard_normal()
        return float(level[task] + curve + own[row["architecture"]][task] + noise)

    def loss_of(row: pd.Series) -> float:
        members: Sequence[str] = tasks if row["task"] == AXIS_MEAN else [str(row["task"])]
        return float(np.mean([of_task(row, task) for task in members]) + off[row["checkpoint"]])

    return rows.assign(task_loss=[loss_of(row) for _, row in rows.iterrows()])
