"""What an effect at matched validation loss is called, defined before any data.

With e the effect of looping on an axis at matched validation loss (nats per token of the answers, below 0 is better)
and a stated delta:

- "tracks validation loss" if P(\\|e\\| < delta), "closes the gap" if P(e < -delta), "falls behind" if P(e > delta) is
  at least `SURE`; the three probabilities sum to 1;
- else "no signal" if delta is below the smallest effect that the data could resolve, which is the effect that a 90 %
  interval would keep apart from 0 with probability .8: (1.645 + .842) standard deviations of the posterior;
- else "undecided".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

DELTA = 0.02
"""Effects below it are none to speak of, nats per token: 2 % of perplexity, and the least of what one doubling of
r costs in validation loss at the top of published grids (.02-.04)."""

SURE = 0.95
"""Posterior probability from which on a verdict is given."""

SIDE, POWER = 1.645, 0.842
"""Normal quantiles of .95 (one end of a 90 % interval) and of .8 (how often the effect has to be told)."""

TRACKS, CLOSES, BEHIND = "tracks validation loss", "closes the gap", "falls behind"
NO_SIGNAL, UNDECIDED = "no signal", "undecided"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Draws in numbers: mean, standard deviation, 50 and 90 % intervals."""

    mean: float
    sd: float
    q05: float
    q25: float
    q75: float
    q95: float

    @property
    def text(self) -> str:
        """Mean and 90 % interval."""
        return f"{self.mean:+.3f} ({self.q05:+.3f} to {self.q95:+.3f})"


def estimate(draws: Array) -> Estimate:
    """Draws of shape (sample,) in numbers."""
    q05, q25, q75, q95 = map(float, np.quantile(draws, [0.05, 0.25, 0.75, 0.95]))
    return Estimate(mean=float(draws.mean()), sd=float(draws.std()), q05=q05, q25=q25, q75=q75, q95=q95)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is said of one architecture, or of all looped ones of a recipe, on one axis.

    Parameters
    ----------
    axis, architecture : str
    pooled : bool
        Whether it is the mean over the looped architectures of a recipe.
    effect : Estimate
        At matched validation loss, architecture less r = 1, nats per token.
    p_tracks, p_closes, p_behind : float
        Their sum is 1.
    resolvable : float
        Smallest effect that the data could tell from 0, nats per token.
    power : float
        Probability that an effect of delta is told from 0.
    verdict : str
        One of the five of the module's text.
    """

    axis: str
    architecture: str
    pooled: bool
    effect: Estimate
    p_tracks: float
    p_closes: float
    p_behind: float
    resolvable: float
    power: float
    verdict: str


def verdict_of(draws: Array, *, delta: float, axis: str, architecture: str, pooled: bool) -> Verdict:
    """The verdict on an effect from its draws, shape (sample,)."""
    found = estimate(draws)
    chance = {TRACKS: float((abs(draws) <= delta).mean()), CLOSES: float((draws < -delta).mean())}
    chance[BEHIND] = float((draws > delta).mean())
    likeliest = max(chance, key=lambda name: chance[name])
    least = resolvable(found.sd)
    otherwise = NO_SIGNAL if delta < least else UNDECIDED
    return Verdict(
        axis=axis, architecture=architecture, pooled=pooled, effect=found, p_tracks=chance[TRACKS],
        p_closes=chance[CLOSES], p_behind=chance[BEHIND], resolvable=least, power=power(delta, found.sd),
        verdict=likeliest if chance[likeliest] >= SURE else otherwise,
    )  # fmt: skip


def resolvable(sd: float) -> float:
    """Smallest effect that a 90 % interval keeps apart from 0 with probability .8, of a posterior sd."""
    return (SIDE + POWER) * sd


def power(effect: float, sd: float) -> float:
    """Probability that a 90 % interval keeps an effect apart from 0, on its own side."""
    return float(ndtr(effect / sd - SIDE))
