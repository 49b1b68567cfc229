"""Budget lines: how many tokens a model of each size can be trained on within limits.

A limit is an amount at hand, of which a model of size x takes ``fixed(x)`` whatever it is trained on and ``cost(x)`` a
token: training FLOPs (with lifetime inference as the fixed part), tokens of data, seconds of a device. All are
quadratics in the size, so where one limit takes over from another is the root of a polynomial, the same for every
posterior draw. A line is then a chain of pieces, each under one limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from bayeslaw.errors import DecisionError
from bayeslaw.sizes import Sizes, along, size_at

Array = NDArray[np.float64]

NOTHING = np.zeros(3)

ROUNDING = 1e-9
"""By so little, relatively, a limit may seem to be exceeded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Limit:
    """So much of something that a run uses up.

    Parameters
    ----------
    name : str
        What it is, for messages: "budget", "data", "device time".
    amount : float
    unit : str
    cost : ndarray, shape (3,)
        What a token takes of it, coefficients of powers of the size.
    fixed : ndarray, shape (3,)
        What a model takes besides.
    """

    name: str
    amount: float
    unit: str
    cost: Array
    fixed: Array

    def tokens(self, size: Array | float) -> Array:
        """Tokens that it leaves for a model of each size; 0 or less where none."""
        return (self.amount - along(self.fixed, size)) / along(self.cost, size)

    def taken(self, size: float, tokens: float = 0.0) -> float:
        """What a model of one size takes for so many tokens."""
        return float(along(self.fixed + tokens * self.cost, size))

    def largest(self, tokens: float) -> float:
        """The largest size that it leaves so many tokens for; 0 where there is none, inf where size costs nothing."""
        growing = self.fixed + tokens * self.cost
        if not growing[1:].any():
            return np.inf if growing[0] <= self.amount * (1 + ROUNDING) else 0.0
        return float(size_at(growing, self.amount))

    def lacks(self, size: float, called: str, tokens: float = 0.0) -> str:
        """A sentence where it does not leave a model of one size so many tokens; else empty."""
        taken = self.taken(size, tokens)
        if taken <= self.amount * (1 + ROUNDING):
            return ""
        step = f" for a step of {tokens:g} tokens" if tokens else ""
        return (
            f"{self.name} of {self.amount:.4g} {self.unit}: {called} takes {taken:.4g}{step}, "
            f"{taken / self.amount:.3g} times as much"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """The sizes that limits leave open, in pieces that each have one limit.

    Parameters
    ----------
    limits : tuple of Limit
    edges : ndarray, shape (piece + 1,)
        Ends of the pieces, ascending sizes.
    active : ndarray of int, shape (piece,)
        The limit that holds in each.
    held_by : str
        The bound that keeps the largest size from being larger; empty where the limits themselves do.
    """

    limits: tuple[Limit, ...]
    edges: Array
    active: NDArray[np.int64]
    held_by: str = ""

    @property
    def smallest(self) -> float:
        """The smallest size."""
        return float(self.edges[0])

    @property
    def largest(self) -> float:
        """The largest size."""
        return float(self.edges[-1])

    def tokens(self, size: Array | float) -> Array:
        """Tokens that a model of each size can be trained on."""
        return reduce(np.minimum, (limit.tokens(size) for limit in self.limits))

    def binding(self, size: float) -> Limit:
        """The limit that says how many tokens a model of one size is trained on."""
        return min(self.limits, key=lambda limit: float(limit.tokens(size)))

    def whole_tokens(self, size: float, batch_tokens: int) -> int:
        """Tokens in whole batches within all limits, at least one batch."""
        return batch_tokens * max(1, int(float(self.tokens(size)) / batch_tokens * (1 + ROUNDING)))


def budget_line(sizes: Sizes, limits: Sequence[Limit], *, smallest: float = 0.0, largest: float = np.inf) -> Line:
    """The line of some limits, between two sizes.

    Parameters
    ----------
    sizes : Sizes
    limits : sequence of Limit
        One or more, of which at least one makes larger models dearer or ``largest`` is finite.
    smallest, largest : float
        Further bounds of the size.

    Raises
    ------
    DecisionError
        A limit leaves not one batch for the smallest model, or the bounds leave no size: says which and by how much.
    """
    smallest = max(sizes.smallest, smallest)
    lacking = [limit.lacks(smallest, sizes.called(smallest), sizes.batch_tokens) for limit in limits]
    if any(lacking):
        raise DecisionError("; ".join(filter(None, lacking)))
    largest = min(sizes.largest, largest, *(limit.largest(sizes.batch_tokens) for limit in limits))
    largest = max(smallest, largest)
    crossings = [
        root.real
        for i, one in enumerate(limits)
        for other in limits[:i]
        for root in _crossings(one, other)
        if abs(root.imag) <= 1e-9 * abs(root) and smallest < root.real < largest
    ]
    edges = np.unique([smallest, *crossings, largest])
    if len(edges) == 1:
        edges = np.repeat(edges, 2)
    middles = np.sqrt(edges[1:] * edges[:-1])
    active = np.array([limit.tokens(middles) for limit in limits]).argmin(axis=0)
    return Line(limits=tuple(limits), edges=edges, active=active)


def _crossings(one: Limit, other: Limit) -> NDArray[np.complex128]:
    """Sizes at which two limits leave the same tokens."""
    left, right = (limit.amount * np.array([1.0, 0, 0]) - limit.fixed for limit in (one, other))
    difference = np.convolve(left, other.cost) - np.convolve(right, one.cost)
    return np.roots(np.trim_zeros(difference, "b")[::-1]).astype(np.complex128)
