"""Whether ranks and intervals of simulated truths are those of a calibrated posterior: plain arrays and numbers.

Definitions, for one quantity of n simulated truths:

- the rank of a truth is the number of draws below it among `RANKED` thinned posterior draws, ties broken at random:
  uniform on 0, ..., `RANKED` when the posterior is calibrated and its draws are independent;
- the position of a truth is (draws below it + U) / (draws + 1) among all draws, ties broken at random, with U uniform
  on (0, 1): uniform on (0, 1);
- coverage at level c is the share of positions from (1 - c) / 2 to (1 + c) / 2: that of truths inside the central c
  interval of the draws. It passes inside the central `BAND` interval of the binomial (n, c). A simulation without a
  posterior counts once as a miss and once as a hit, and both shares have to pass;
- ranks pass where their empirical distribution function stays inside the envelope that a share `BAND` of sets of n
  uniform ranks stays inside at all values at once. The statistic is the smallest two-sided binomial tail over the
  values, as in Säilynoja, Bürkner and Vehtari (2022), Statistics and Computing 32:32; its distribution comes from
  `SETS` simulated sets, and ``p`` is the share of them that stray as far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

RANKED = 99
"""Draws that a truth is ranked among: about independent ones, a rank for each per cent."""

LEVELS = (0.5, 0.8, 0.9)
BAND = 0.997
"""Probability that a calibrated posterior passes any one check."""

SETS = 20_000


def place(draws: Array, truth: float, rng: np.random.Generator) -> tuple[int, float]:
    """Rank and position of a truth.

    Parameters
    ----------
    draws : ndarray, shape (sample,)
        At least `RANKED`, chains joined.
    truth : float
    rng : Generator
        Breaks ties, such as those of optima at the end of an axis.
    """
    thinned = draws[np.linspace(0, len(draws) - 1, RANKED).round().astype(int)]
    rank = int((thinned < truth).sum() + rng.integers((thinned == truth).sum() + 1))
    position = ((draws < truth).sum() + rng.uniform() * ((draws == truth).sum() + 1)) / (len(draws) + 1)
    return rank, float(position)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many truths the central intervals of one level hold.

    Parameters
    ----------
    level : float
    share : float
        Among the simulations that have a posterior.
    least, most : float
        With those that have none counted as misses, and as hits.
    low, high : float
        Band of the share when the posterior is calibrated.
    """

    level: float
    share: float
    least: float
    most: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        """Whether the share lies in its band, whatever the simulations without a posterior would have been."""
        return self.low <= self.least and self.most <= self.high

    @property
    def cautious(self) -> bool:
        """Whether the intervals hold more truths than they should: they are wider than needed."""
        return self.least > self.high

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"share": self.share, "low": self.low, "high": self.high, "passed": self.passed}


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibrated:
    """One quantity's verdict.

    Parameters
    ----------
    name : str
    ranks : ndarray of int, shape (simulation,)
    coverage : tuple of Coverage
        By `LEVELS`.
    p : float
        Probability that uniform ranks stray as far at some value.
    """

    name: str
    ranks: Counts
    coverage: tuple[Coverage, ...]
    p: float

    @property
    def ranks_passed(self) -> bool:
        """Whether the ranks stay inside their envelope."""
        return self.p >= 1 - BAND

    @property
    def faults(self) -> tuple[str, ...]:
        """The checks that do not pass, in words."""
        levels = (f"{100 * part.level:.0f} %" for part in self.coverage if not part.passed)
        return (*levels, *(() if self.ranks_passed else ("ranks",)))

    @property
    def passed(self) -> bool:
        """Whether every check passes."""
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "coverage": {f"{100 * part.level:.0f}": part.as_dict() for part in self.coverage},
            "ranks": {"p": self.p, "mean": float(self.ranks.mean()) / RANKED, "passed": self.ranks_passed},
            "passed": self.passed,
        }


def judged(name: str, ranks: Sequence[int], positions: Sequence[float], *, failed: int = 0) -> Calibrated:
    """The verdict on one quantity.

    Parameters
    ----------
    name : str
    ranks, positions : sequence, shape (simulation,)
        As `place` gives them.
    failed : int
        Simulations that have no posterior, and none of these.
    """
    found, u = np.asarray(ranks, dtype=np.int64), np.asarray(positions)
    n = len(u)
    coverage = []
    for level in LEVELS:
        inside = int((np.abs(u - 0.5) <= level / 2).sum())
        low, high = stats.binom.ppf([(1 - BAND) / 2, (1 + BAND) / 2], n + failed, level) / (n + failed)
        coverage.append(
            Coverage(
                level=level, share=inside / n, least=inside / (n + failed), most=(inside + failed) / (n + failed),
                low=float(low), high=float(high),
            )
        )  # fmt: skip
    return Calibrated(name=name, ranks=found, coverage=tuple(coverage), p=Uniform.of(n).p(found))


@dataclass(frozen=True, kw_only=True, eq=False)
class Uniform:
    """What the ranks of n calibrated simulations look like.

    Parameters
    ----------
    tail : ndarray, shape (n + 1, value)
        Two-sided binomial tail of a count of ranks up to each value.
    least : ndarray, shape (set,)
        The smallest tail of each simulated set of ranks, ascending.
    """

    tail: Array
    least: Array

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, n: int) -> Uniform:
        """For n simulations."""
        shares = np.arange(1, RANKED + 1) / (RANKED + 1)
        counts = np.arange(n + 1)[:, None]
        tail = 2 * np.minimum(stats.binom.cdf(counts, n, shares), stats.binom.sf(counts - 1, n, shares))
        rng = np.random.default_rng(n)
        least = np.concatenate(
            [
                tail[_up_to(rng.multinomial(n, np.full(RANKED + 1, 1 / (RANKED + 1)), size=SETS // 20)), _VALUES].min(1)
                for _ in range(20)
            ]
        )
        return cls(tail=tail, least=np.sort(least))

    def p(self, ranks: Counts) -> float:
        """Share of the sets that stray as far as these ranks."""
        least = self.tail[_up_to(np.bincount(ranks, minlength=RANKED + 1)), _VALUES].min()
        return float(np.searchsorted(self.least, least * (1 + 1e-9), side="right") / len(self.least))

    def envelope(self, probability: float) -> tuple[Array, Array]:
        """Least and largest share of ranks up to each value, shape (value,), that pass at this probability."""
        threshold = self.least[int((1 - probability) * len(self.least))]
        allowed = self.tail >= threshold
        n = len(self.tail) - 1
        return allowed.argmax(axis=0) / n, (n - allowed[::-1].argmax(axis=0)) / n

    @cached_property
    def shares(self) -> Array:
        """Share of ranks up to each value that is expected, shape (value,)."""
        expected: Array = (_VALUES + 1) / (RANKED + 1)
        return expected


_VALUES = np.arange(RANKED)


def _up_to(counts: Counts) -> Counts:
    """Number of ranks up to each value but the last, from the number at each."""
    total: Counts = counts.cumsum(axis=-1)[..., :-1]
    return total


def cumulative(ranks: Counts) -> Array:
    """Share of ranks up to each value but the last, shape (value,)."""
    shares: Array = _up_to(np.bincount(ranks, minlength=RANKED + 1)) / len(ranks)
    return shares
