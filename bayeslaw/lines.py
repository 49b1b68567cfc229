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
    whole : bool
        Whether it must never be exceeded: tokens are then rounded down to whole batches, else to the nearest.
    """

    name: str
    amount: float
    unit: str
    cost: Array
    fixed: Array
    whole: bool = True

    def tokens(self, size: Array | float) -> Array:
        """Tokens that it leaves for a model of each size; 0 or less where none."""
        return (self.amount - along(self.fixed, size)) / along(self.cost, size)

    def taken(self, size: float, tokens: float = 0.0) -> float:
        """What a model of one size takes for so many tokens."""
        return float(along(self.fixed + tokens * self.cost, size))

    def largest(self, tokens: float) -> float:
        """The largest size that it leaves so many tokens for; 0 where there is none, inf where size costs nothing."""
        return float(size_at(self.fixed + tokens * self.cost, self.amount))


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
        """Tokens in whole batches, at least one of them."""
        most = []
        for limit in self.limits:
            batches = float(limit.tokens(size)) / batch_tokens
            most.append(int(batches * (1 + 1e-12)) if limit.whole else round(batches))
        return batch_tokens * max(1, min(most))


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
    for limit in limits:
        # To the nearest step half of one is enough.
        taken = limit.taken(smallest, sizes.batch_tokens * (1.0 if limit.whole else 0.5))
        if taken > limit.amount:
            raise DecisionError(
                f"{limit.name} of {limit.amount:.3g} {limit.unit}: {sizes.called(smallest)} takes {taken:.3g} for a "
                f"step of {sizes.batch_tokens} tokens, {taken / limit.amount:.3g} times as much",
                allowed=f"{taken:.3g} {limit.unit} or more",
            )
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
