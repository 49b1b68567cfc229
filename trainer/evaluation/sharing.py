"""Which sequences begin alike, so that what they share is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trainer.data.format import Ids

OVERHEAD = 16
"""Tokens that one more forward pass is worth: a group must save more."""

MOST_LEVELS = 200
"""Groups within groups that are looked for: bounds the recursion."""


@dataclass(frozen=True)
class Group:
    """Sequences that begin with the same tokens.

    Parameters
    ----------
    members : tuple of int
        Places of the sequences.
    shared : int
        Tokens that they have in common, at least one fewer than each has; 0 for sequences that go on their own.
    """

    members: tuple[int, ...]
    shared: int


def grouped(sequences: Sequence[Ids]) -> list[Group]:
    """Groups of sequences that save the most tokens when each group's common beginning is computed once.

    A group is an interval of the sorted sequences; of an interval either all its sequences share what all have in
    common, or it is split where they have least in common, whichever saves more.

    Parameters
    ----------
    sequences : sequence of integer arrays
        Each of one token or more.

    Returns
    -------
    Every place once. Those that share nothing worth while are one group with ``shared`` 0, which comes first.
    """
    keys = [np.asarray(each, dtype=">u4").tobytes() for each in sequences]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    common = np.array([_common(sequences[a], sequences[b]) for a, b in pairwise(order)], dtype=np.int64)
    groups = [
        Group(tuple(order[low:high]), shared) for low, high, shared in _split(common, 0, len(order), 0)[1] if shared
    ]
    found = {place for group in groups for place in group.members}
    alone = tuple(place for place in range(len(keys)) if place not in found)
    return ([Group(alone, 0)] if alone else []) + groups


def _common(a: Ids, b: Ids) -> int:
    """Tokens that two sequences begin with alike; one is left for each of them."""
    most = min(len(a), len(b)) - 1
    differing = np.flatnonzero(a[:most] != b[:most])
    return int(differing[0]) if len(differing) else most


def _split(common: NDArray[np.int64], low: int, high: int, level: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Tokens that the best groups of the sorted sequences low to high save, and the groups as (low, high, shared)."""
    if high - low < 2:
        return 0, []
    inside = common[low : high - 1]
    shared = int(inside.min())
    whole = shared * (high - low - 1) - OVERHEAD
    parts = (0, list[tuple[int, int, int]]())
    if level < MOST_LEVELS:
        cuts = [low, *(low + 1 + np.flatnonzero(inside == shared)), high]
        parts = _joined(_split(common, int(a), int(b), level + 1) for a, b in pairwise(cuts))
    return (whole, [(low, high, shared)]) if whole > parts[0] else parts


def _joined(found: Iterator[tuple[int, list[tuple[int, int, int]]]]) -> tuple[int, list[tuple[int, int, int]]]:
    saved, groups = 0, list[tuple[int, int, int]]()
    for more, others in found:
        saved += more
        groups += others
    return saved, groups
