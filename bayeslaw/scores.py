"""How well forecasts of held-out runs did: root mean squared error, log density, CRPS and coverage, in nats per token.

References
----------
Gneiting, Raftery, "Strictly proper scoring rules, prediction, and estimation", J. Am. Stat. Assoc. 102 (2007): log
score, CRPS.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Means over held-out runs.

    Parameters
    ----------
    runs : int
        How many runs.
    rmse : float
        Of the predictive mean, nats per token.
    log_density : float
        Of the measured loss under the predictive distribution, per run; higher is better.
    crps : float
        Continuous ranked probability score, nats per token; lower is better.
    cover50, cover90 : float
        Share of runs inside the central 50 and 90 % intervals.
    """

    runs: int
    rmse: float
    log_density: float
    crps: float
    cover50: float
    cover90: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecasts of held-out runs against what was measured.

    Parameters
    ----------
    loss : ndarray, shape (run,)
        Measured, nats per token.
    draws : ndarray, shape (sample, run)
        Predictive draws of a new run's loss, nats per token.
    log_density : ndarray, shape (run,)
        Log predictive density of the measured losses, per nat.
    """

    loss: Array
    draws: Array
    log_density: Array

    @property
    def crps(self) -> Array:
        """CRPS of each run, nats per token: E|X - y| - E|X - X'| / 2 over the draws."""
        ordered = np.sort(self.draws, axis=0)
        count = len(ordered)
        rank = (2 * np.arange(1, count + 1) - count - 1)[:, None]
        spread = (rank * ordered).sum(axis=0) / count**2
        distance: Array = np.abs(self.draws - self.loss).mean(axis=0)
        return distance - spread

    def inside(self, share: float) -> NDArray[np.bool_]:
        """Which runs lie in the central interval of that probability."""
        low, high = np.quantile(self.draws, [(1 - share) / 2, (1 + share) / 2], axis=0)
        out: NDArray[np.bool_] = (low <= self.loss) & (self.loss <= high)
        return out

    @property
    def scores(self) -> Scores:
        """Their means."""
        error = self.loss - self.draws.mean(axis=0)
        return Scores(
            runs=len(self.loss),
            rmse=float(np.sqrt((error**2).mean())),
            log_density=float(self.log_density.mean()),
            crps=float(self.crps.mean()),
            cover50=float(self.inside(0.5).mean()),
            cover90=float(self.inside(0.9).mean()),
        )


def joined(parts: list[Forecast]) -> Forecast:
    """Forecasts of several splits as one; as many draws of each as the shortest has."""
    count = min(len(part.draws) for part in parts)
    return Forecast(
        loss=np.concatenate([part.loss for part in parts]),
        draws=np.concatenate([part.draws[:count] for part in parts], axis=1),
        log_density=np.concatenate([part.log_density for part in parts]),
    )


def log_mean_exp(values: Array) -> Array:
    """Log of the mean of exponentials over the first axis."""
    out: Array = logsumexp(values, axis=0) - np.log(len(values))
    return out
