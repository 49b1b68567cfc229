"""Recurrence maps as small objects over one interface, and the registry that names them.

A recurrence map says what r recurrences of a block are worth in unique blocks, g(r), with g(1) = 1. A new one is a
subclass with its equation, gradient and inverse, added to `MAPS`; priors for its parameters go to `bayeslaw.priors`,
and the common suite in ``tests/bayeslaw/test_laws.py`` tests it.

References
----------
power : arXiv 2604.21106. unrolled : Parcae, r (N_once + N_rec). The others are rivals from public threads on looped
models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class RecurrenceMap(ABC):
    """What r recurrences are worth.

    Parameters
    ----------
    levels : tuple of float
        The looped r that a fit has seen, ascending; only `Free` has parameters for them.
    """

    levels: tuple[float, ...] = ()

    name: ClassVar[str]
    equation: ClassVar[str]
    unrolls_once: ClassVar[bool] = False
    """True where N_once counts r times as well."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters."""

    @property
    def positive(self) -> tuple[bool, ...]:
        """Which parameters are above 0; the others are real."""
        return tuple(True for _ in self.parameters)

    @abstractmethod
    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """log g(r).

        Parameters
        ----------
        r : recurrences, real, at least 1
        values : sequence of the parameters, each broadcasting against ``r``
        xp : the array module to compute with (numpy or pytensor.tensor)
        """

    @abstractmethod
    def gradient(self, r: Any, values: Any) -> list[Any]:
        """d log g(r) / d value of every parameter, numpy."""

    @abstractmethod
    def elasticity(self, r: Any, values: Any) -> Any:
        """d log g / d log r at r, numpy: 1 where one more recurrence is worth one more block."""

    @abstractmethod
    def inverse(self, worth: Any, values: Any) -> Any:
        """The r >= 1 of that worth, numpy; inf where no r reaches it, nan for a worth below 1."""

    def worth(self, r: Any, values: Any) -> Any:
        """g(r), unique blocks, numpy."""
        return np.exp(self.log_worth(r, values))

    def once(self, n_once: Any, r: Any) -> Any:
        """What N_once counts as in N_eff, parameters."""
        return n_once * r if self.unrolls_once else n_once


class Power(RecurrenceMap):
    """g = r^phi: phi = 1 makes a recurrence worth a unique block, 0 worth nothing."""

    name = "power"
    equation = "g(r) = r^phi"
    parameters = ("phi",)
    positive = (False,)

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """Phi log r."""
        (phi,) = values
        return phi * xp.log(r)

    def gradient(self, r: Any, values: Any) -> list[Any]:
        """Log r."""
        return [np.log(r) + 0 * values[0]]

    def elasticity(self, r: Any, values: Any) -> Any:
        """Phi, whatever r."""
        return values[0] + 0 * np.asarray(r)

    def inverse(self, worth: Any, values: Any) -> Any:
        """worth^(1 / phi)."""
        (phi,) = values
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            r = np.exp(np.log(worth) / phi)
        return np.where(np.equal(worth, 1), 1.0, np.where(np.isfinite(r) & (r >= 1), r, _out_of_reach(worth)))


class _Fixed(RecurrenceMap):
    """A map without parameters."""

    parameters = ()

    def gradient(self, r: Any, values: Any) -> list[Any]:
        """Nothing to derive by."""
        return []


class Nothing(_Fixed):
    """g = 1: a recurrence is worth nothing."""

    name = "none"
    equation = "g(r) = 1"

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """0."""
        return 0.0 * xp.log(r)

    def elasticity(self, r: Any, values: Any) -> Any:
        """0."""
        return 0.0 * np.asarray(r)

    def inverse(self, worth: Any, values: Any) -> Any:
        """1 for a worth of 1; nothing else is reached."""
        return np.where(np.equal(worth, 1), 1.0, _out_of_reach(worth))


class Full(_Fixed):
    """g = r: a recurrence is worth a unique block."""

    name = "full"
    equation = "g(r) = r"

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """Log r."""
        return xp.log(r)

    def elasticity(self, r: Any, values: Any) -> Any:
        """1."""
        return 1.0 + 0 * np.asarray(r)

    def inverse(self, worth: Any, values: Any) -> Any:
        """The worth itself."""
        return np.where(np.greater_equal(worth, 1), worth, np.nan)


class Unrolled(Full):
    """N_eff = r (N_once + N_rec): prelude and coda gain as if they were repeated too (Parcae)."""

    name = "unrolled"
    equation = "N_eff = r (N_once + N_rec)"
    unrolls_once = True


class Bounded(RecurrenceMap):
    """g = 1 + gain (1 - exp(-(r - 1) / scale)): endless recurrence is worth 1 + gain blocks."""

    name = "bounded"
    equation = "g(r) = 1 + gain (1 - exp(-(r - 1) / scale))"
    parameters = ("gain", "scale")

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """Logarithm of the equation."""
        gain, scale = values
        return xp.log1p(-gain * xp.expm1(-(r - 1) / scale))

    def gradient(self, r: Any, values: Any) -> list[Any]:
        """By gain and scale."""
        gain, scale = values
        g = self.worth(r, values)
        return [-np.expm1(-(r - 1) / scale) / g, -gain * np.exp(-(r - 1) / scale) * (r - 1) / scale**2 / g]

    def elasticity(self, r: Any, values: Any) -> Any:
        """Falls towards 0."""
        gain, scale = values
        return r * gain / scale * np.exp(-(r - 1) / scale) / self.worth(r, values)

    def inverse(self, worth: Any, values: Any) -> Any:
        """Inf from 1 + gain on."""
        gain, scale = values
        with np.errstate(divide="ignore", invalid="ignore"):
            r = 1 - scale * np.log1p(-(worth - 1) / gain)
        return np.where(np.less(worth, 1), np.nan, np.where(np.less(worth - 1, gain), r, np.inf))


class Logarithmic(RecurrenceMap):
    """g = 1 + slope log r."""

    name = "log"
    equation = "g(r) = 1 + slope log r"
    parameters = ("slope",)

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """Logarithm of the equation."""
        (slope,) = values
        return xp.log1p(slope * xp.log(r))

    def gradient(self, r: Any, values: Any) -> list[Any]:
        """By slope."""
        return [np.log(r) / self.worth(r, values)]

    def elasticity(self, r: Any, values: Any) -> Any:
        """Slope / g."""
        return values[0] / self.worth(r, values)

    def inverse(self, worth: Any, values: Any) -> Any:
        """exp((worth - 1) / slope)."""
        with np.errstate(over="ignore"):
            return np.where(np.less(worth, 1), np.nan, np.exp((worth - 1) / values[0]))


class Hill(RecurrenceMap):
    """g = 1 + gain (r - 1) / (r - 1 + half): half of the gain is reached after ``half`` further recurrences."""

    name = "hill"
    equation = "g(r) = 1 + gain (r - 1) / (r - 1 + half)"
    parameters = ("gain", "half")

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """Logarithm of the equation."""
        gain, half = values
        return xp.log1p(gain * (r - 1) / (r - 1 + half))

    def gradient(self, r: Any, values: Any) -> list[Any]:
        """By gain and half."""
        gain, half = values
        g, q = self.worth(r, values), r - 1 + half
        return [(r - 1) / q / g, -gain * (r - 1) / q**2 / g]

    def elasticity(self, r: Any, values: Any) -> Any:
        """Falls towards 0."""
        gain, half = values
        return r * gain * half / (r - 1 + half) ** 2 / self.worth(r, values)

    def inverse(self, worth: Any, values: Any) -> Any:
        """Inf from 1 + gain on."""
        gain, half = values
        with np.errstate(divide="ignore", invalid="ignore"):
            r = 1 + half * (worth - 1) / (gain - (worth - 1))
        return np.where(np.less(worth, 1), np.nan, np.where(np.less(worth - 1, gain), r, np.inf))


class Free(RecurrenceMap):
    """One exponent for each r that was seen, log g(r) = phi_r log r; between them log g is linear in log r."""

    name = "free"
    equation = "g(r) = r^phi_r, one phi_r for each r"

    @property
    def parameters(self) -> tuple[str, ...]:
        """phi_r for each level."""
        return tuple(f"phi_{level:g}" for level in self.levels)

    @property
    def positive(self) -> tuple[bool, ...]:
        """All real."""
        return tuple(False for _ in self.levels)

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """Piecewise linear in log r; beyond the last level its last piece goes on."""
        total: Any = 0.0 * xp.log(r)
        for slope, reach in zip(self._slopes(values), self._reaches(r, xp), strict=bool(self.levels)):
            total = total + slope * reach
        return total

    def gradient(self, r: Any, values: Any) -> list[Any]:
        """The hat function of each level, times the level's log r."""
        knots, reaches = self._knots(), self._reaches(r, np)
        out = []
        for i, knot in enumerate(knots[1:]):
            rise = reaches[i] / (knot - knots[i])
            fall = reaches[i + 1] / (knots[i + 2] - knot) if i + 2 < len(knots) else 0.0
            out.append((rise - fall) * knot + 0 * values[i])
        return out

    def elasticity(self, r: Any, values: Any) -> Any:
        """Slope of the piece that ends at r (of the first at r = 1, of the last beyond the last level)."""
        piece = np.clip(np.searchsorted(self._knots(), np.log(r), side="left") - 1, 0, len(self.levels) - 1)
        out: Any = 0.0
        for i, slope in enumerate(self._slopes(values)):
            out = out + np.where(piece == i, slope, 0.0)
        return out

    def inverse(self, worth: Any, values: Any) -> Any:
        """The least r of that worth."""
        with np.errstate(divide="ignore", invalid="ignore"):
            target = np.log(worth)
        best: Any = np.where(np.equal(worth, 1), 1.0, _out_of_reach(worth))
        base: Any = 0.0
        knots = self._knots()
        for i, slope in enumerate(self._slopes(values)):
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = (target - base) / slope
                length = knots[i + 1] - knots[i] if i < len(self.levels) - 1 else np.inf
                beyond = (step - length) * abs(slope)  # in log worth, where rounding is known
                step = np.where(
                    abs(target - base) < 1e-12, 0.0, np.where(beyond < 1e-12, np.minimum(step, length), step)
                )
                r = np.exp(knots[i] + step)
            fits = (step >= 0) & (step <= length) & np.isfinite(r)
            best = np.where(fits & ~np.isfinite(best), r, best)
            base = base + slope * (knots[i + 1] - knots[i])
        return best

    def _knots(self) -> list[float]:
        return knots_of(self.levels)

    def _slopes(self, values: Any) -> list[Any]:
        """d log g / d log r of each piece."""
        knots = self._knots()
        return slopes_of(knots, [value * knot for value, knot in zip(values, knots[1:], strict=True)])

    def _reaches(self, r: Any, xp: Any) -> list[Any]:
        return reaches_of(self._knots(), r, xp=xp, open_end=True)


MAPS: dict[str, type[RecurrenceMap]] = {
    cls.name: cls for cls in (Power, Nothing, Full, Bounded, Logarithmic, Hill, Unrolled, Free)
}
"""The recurrence maps by name."""


def _out_of_reach(worth: Any) -> Any:
    """Inf for a worth of at least 1 that no r reaches, nan for one below 1."""
    return np.where(np.less(worth, 1), np.nan, np.inf)


def knots_of(levels: tuple[float, ...]) -> list[float]:
    """Where the pieces of a function that is linear in log r meet: log 1, then those of the levels."""
    return [0.0, *(float(np.log(level)) for level in levels)]


def slopes_of(knots: list[float], heights: list[Any]) -> list[Any]:
    """Slope of each piece; ``heights`` at all knots but the first, where it is 0."""
    ends = [0.0, *heights]
    return [
        (above - below) / (right - left)
        for below, above, left, right in zip(ends, ends[1:], knots, knots[1:], strict=False)
    ]


def reaches_of(knots: list[float], r: Any, *, xp: Any, open_end: bool) -> list[Any]:
    """How far log r reaches into each piece; ``open_end`` lets the last one go on for ever."""
    log_r = xp.log(r)
    ends = [*knots[1:-1], np.inf if open_end else knots[-1]]
    return [
        xp.clip(log_r - left, 0.0, right - left) if np.isfinite(right) else xp.maximum(log_r - left, 0.0)
        for left, right in zip(knots, ends, strict=False)
    ]
