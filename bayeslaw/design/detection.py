"""Whether a difference in phi will be told from none, before any of the runs is trained.

With normal beliefs the posterior mean m of a difference delta that is truly d has, over what runs may show,

    m ~ N(m0 + rho (d - m0), rho V1),   rho = 1 - V1 / V0,

m0 and V0 the mean and variance of delta before and V1 the variance after the runs: m is the regression of delta on the
data, so Cov(m, delta) = Var m = V0 - V1. The difference is declared when P(its sign) reaches `SURE`, which is
|m| >= z sqrt(V1), so that

    P(declared | d) = Phi((m0 + rho (d - m0) - z sqrt(V1)) / sqrt(rho V1)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SURE = 0.95
"""Probability of a sign from which on it is declared."""

EVERY = 4
"""Probabilities are given for so many runs, twice as many, ..."""


@dataclass(frozen=True, kw_only=True)
class Detection:
    """How likely a true difference is declared.

    Parameters
    ----------
    difference : float
        The true |delta phi|.
    power : float
        The probability asked for.
    by_runs : dict of int to float
        P(declared, with the right sign) after so many runs of the proposal in their order.
    needed : int or None
        The least such number for which it reaches ``power``; None where the proposal has too few.
    endless : float
        P(declared) after endless runs at the same r.
    sd_endless : float
        Standard deviation of delta phi then: what the deviations of single r from the map leave.
    """

    difference: float
    power: float
    by_runs: dict[int, float]
    needed: int | None
    endless: float
    sd_endless: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "difference": self.difference, "power": self.power, "sure": SURE,
            "by_runs": {str(n): probability for n, probability in self.by_runs.items()}, "needed": self.needed,
            "endless": self.endless, "sd_endless": self.sd_endless,
        }  # fmt: skip

    def __str__(self) -> str:
        ways = ", ".join(f"{chance:.2f} after {n}" for n, chance in self.by_runs.items())
        text = (
            f"A true |delta phi| of {self.difference:g} is declared (P(sign) >= {SURE:g}) with probability {ways} "
            f"{'run' if list(self.by_runs) == [1] else 'runs'}."
        )
        if self.needed is not None:
            return f"{text} {self.needed} reach {self.power:g}."
        endless = (
            f"endless ones of these candidates leave an sd of {self.sd_endless:.3f} and come to {self.endless:.2f}"
        )
        more = "" if self.endless < self.power else ": raise --purse"
        return f"{text} None of these reaches {self.power:g}; {endless}{more}."


def probability(difference: float, mean: float, before: float, after: float) -> float:
    """P(a difference is declared with the right sign).

    Parameters
    ----------
    difference : float
        The true one, d > 0.
    mean, before : float
        m0 and V0.
    after : float
        V1.
    """
    from scipy.stats import norm

    after = max(after, np.finfo(float).tiny)
    rho = 1 - after / before
    if rho <= 0:
        return float(mean >= norm.ppf(SURE) * np.sqrt(before))
    expected = mean + rho * (difference - mean)
    return float(norm.cdf((expected - norm.ppf(SURE) * np.sqrt(after)) / np.sqrt(rho * after)))


def either_way(difference: float, mean: float, before: float, after: float) -> float:
    """`probability` for a difference that is as likely below 0 as above."""
    ways = [probability(difference, sign * mean, before, after) for sign in (1, -1)]
    return sum(ways) / 2


def detection(
    delta: Array, after: Sequence[float] | Array, *, difference: float, power: float, endless: float
) -> Detection:
    """How likely a difference is declared after each number of runs.

    Parameters
    ----------
    delta : ndarray, shape (sample,)
        Draws of delta phi before.
    after : sequence of float
        Its variance before any run and after each.
    difference, power : float
    endless : float
        Its variance after endless runs.
    """
    mean, before = float(delta.mean()), float(delta.var(ddof=1))
    chances = [either_way(difference, mean, before, variance) for variance in after]
    count = len(chances) - 1
    shown = [*range(EVERY, count + 1, EVERY)]
    if count and (not shown or shown[-1] != count):
        shown.append(count)
    return Detection(
        difference=difference,
        power=power,
        by_runs={n: chances[n] for n in shown},
        needed=next((n for n, chance in enumerate(chances) if chance >= power), None),
        endless=either_way(difference, mean, before, endless),
        sd_endless=float(np.sqrt(endless)),
    )
