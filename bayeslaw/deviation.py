"""A recurrence map with a deviation of its own for each r that was trained.

log g(r) = log g_map(r) + u(r). u is what the runs of one r are worth beside the map's curve: a free number at each
trained r, linear in log r between them from u(1) = 0, and constant beyond the last. The numbers share a normal prior
whose spread is learnt, so a map that fits keeps its tight interval, and one that does not is not believed too much.

An r that no run trained has a deviation of its own too, which nobody measured: `fresh` draws it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.maps import RecurrenceMap, knots_of, reaches_of, slopes_of

Array = NDArray[np.float64]

PREFIX = "deviation_"

MOST = 2.0**40
"""The largest r that `Deviating.inverse` looks at."""

_GRID, _STEPS = 500, 60


@dataclass(frozen=True)
class Deviating(RecurrenceMap):
    """Another map, with deviations.

    Parameters
    ----------
    levels : tuple of float
        The looped r that have one, ascending.
    base : RecurrenceMap
    """

    base: RecurrenceMap | None = None

    @property
    def map(self) -> RecurrenceMap:
        """The map that is deviated from."""
        assert self.base is not None
        return self.base

    @property
    def name(self) -> str:  # type: ignore[override]  # a class variable of the plain maps
        """Of the map that is deviated from."""
        return self.map.name

    @property
    def equation(self) -> str:  # type: ignore[override]
        """As the map's, with the deviation."""
        return f"{self.map.equation}, times exp(u_r) with a deviation u_r for each r"

    @property
    def unrolls_once(self) -> bool:  # type: ignore[override]
        """As the map's."""
        return self.map.unrolls_once

    @property
    def parameters(self) -> tuple[str, ...]:
        """The map's, then deviation_2, deviation_4, ... by r."""
        return (*self.map.parameters, *(f"{PREFIX}{r:g}" for r in self.levels))

    @property
    def positive(self) -> tuple[bool, ...]:
        """The map's; deviations are real."""
        return (*self.map.positive, *(False for _ in self.levels))

    def log_worth(self, r: Any, values: Any, *, xp: Any = np) -> Any:
        """The map's log g(r), plus u(r)."""
        own, deviations = self._parted(values)
        # Without parameters a map needs numbers alone, and numpy for them.
        total = self.map.log_worth(r, own, xp=xp) if own else self.map.log_worth(r, own)
        for slope, reach in self._pieces(r, deviations):
            total = total + slope * reach
        return total

    def interpolated(self, r: Any, deviations: Any) -> Any:
        """u(r) of deviations at the levels, numpy."""
        return sum((slope * reach for slope, reach in self._pieces(r, deviations)), 0.0)

    def knows(self, r: float) -> bool:
        """Whether r has a deviation of its own: it is a level, or 1, where there is nothing to deviate."""
        return r == 1 or f"{r:g}" in {f"{level:g}" for level in self.levels}

    def with_level(self, r: float) -> Deviating:
        """The same map with a deviation for one more r."""
        return replace(self, levels=tuple(sorted((*self.levels, float(r)))))

    def gradient(self, r: Any, values: Any) -> list[Any]:
        """The map's, then each deviation's share of u(r)."""
        own, deviations = self._parted(values)
        shares = [
            self.log_worth(r, [*own, *unit]) - self.log_worth(r, [*own, *np.zeros(len(unit))])
            for unit in np.eye(len(deviations))
        ]
        return [
            *self.map.gradient(r, own),
            *(share + 0 * value for share, value in zip(shares, deviations, strict=True)),
        ]

    def elasticity(self, r: Any, values: Any) -> Any:
        """The map's, plus the slope of the piece of u that ends at r (of the first at r = 1; 0 beyond the last)."""
        own, deviations = self._parted(values)
        total = self.map.elasticity(r, own)
        knots = knots_of(self.levels)
        piece = np.maximum(np.searchsorted(knots, np.log(r), side="left") - 1, 0)
        for i, slope in enumerate(slopes_of(knots, deviations)):
            total = total + np.where(piece == i, slope, 0.0)
        return total

    def inverse(self, worth: Any, values: Any) -> Any:
        """The least r of that worth, up to `MOST`: the first of a fine grid beyond it, then bisection."""
        target = np.log(np.maximum(worth, np.finfo(float).tiny))
        shape = np.broadcast_shapes(*(np.shape(value) for value in (target, *values)))
        grid = np.concatenate(
            [np.linspace(0.0, knots_of(self.levels)[-1], _GRID), np.linspace(0.0, np.log(MOST), _GRID)]
        )
        grid = np.unique(grid)
        curve = np.stack([np.broadcast_to(self.log_worth(np.exp(point), values), shape) for point in grid])
        beyond = curve >= target
        first = beyond.argmax(axis=0)
        low, high = grid[np.maximum(first - 1, 0)], grid[first]
        for _ in range(_STEPS):
            middle = (low + high) / 2
            below = self.log_worth(np.exp(middle), values) < target
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.where(np.less(worth, 1), np.nan, np.where(beyond.any(axis=0), np.exp(high), np.inf))

    def _pieces(self, r: Any, deviations: Any) -> Iterator[tuple[Any, Any]]:
        """Slope of u in each piece of log r, and how far r reaches into it."""
        knots = knots_of(self.levels)
        return zip(slopes_of(knots, deviations), reaches_of(knots, r, xp=np, open_end=False), strict=False)

    def _parted(self, values: Any) -> tuple[list[Any], list[Any]]:
        """The map's own values, and the deviations."""
        count = len(self.map.parameters)
        return list(values[:count]), list(values[count:])


def fresh(known: Deviating, r: float, deviations: list[Array], spread: Array, recipe: str) -> Array:
    """Deviation of an r that no run trained, for every draw, shape (sample,): u(r) and a draw around it.

    Drawn anew for each r and recipe, but always the same.

    Parameters
    ----------
    known : Deviating
    r : float
    deviations : list of ndarray, shape (sample,)
        At the levels.
    spread : ndarray, shape (sample,)
        Their standard deviation.
    recipe : str
    """
    rng = np.random.default_rng([round(1e6 * r), *recipe.encode()])
    values: Array = known.interpolated(r, deviations) + spread * rng.standard_normal(spread.shape)
    return values
