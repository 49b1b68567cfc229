"""What a probe is, and what it draws from."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import NamedTuple


class Draw:
    """Random numbers that are the same everywhere, for ever.

    Python keeps the stream of ``random.random()`` alone from version to version, and none of what is made of it
    (choice, shuffle, randrange). SHA-256 of a seed and a counter is the same in all of them.

    Parameters
    ----------
    *seed : object
        What the stream depends on, by its text.
    """

    def __init__(self, *seed: object) -> None:
        self._seed = "/".join(map(str, seed))
        self._words = self._stream()

    def _stream(self) -> Iterator[int]:
        for block in count():
            yield from struct.unpack(">4Q", sha256(f"{self._seed}/{block}".encode()).digest())

    def below(self, bound: int) -> int:
        """A whole number from 0 to ``bound`` - 1, each as likely but for one part in 2^64 / ``bound``."""
        return next(self._words) * bound >> 64

    def between(self, least: int, most: int) -> int:
        """A whole number from ``least`` to ``most``, both included."""
        return least + self.below(most - least + 1)

    def one[T](self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def some[T](self, items: Iterable[T], number: int) -> list[T]:
        """That many different items, in random order."""
        pool = list(items)
        for place in range(number):
            other = place + self.below(len(pool) - place)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:number]


class Question(NamedTuple):
    """What is read, and what follows.

    Both are ASCII on one line, and neither ends in a space: one that parts them leads the answer, as in the vocabulary
    of a BPE.
    """

    text: str
    answer: str


@dataclass(frozen=True)
class Probe:
    """A kind of question that is made here.

    Parameters
    ----------
    name : str
    axis : str
        One of `bayeslaw.evaluations.AXES`.
    meaning : str
        What is asked, in one sentence.
    shots : int
        Examples shown before each question where no other number is asked for.
    difficulty : int
        The same of the difficulty.
    knob : str
        What the difficulty counts.
    allowed : range
        Its values.
    question : callable
        One question of a difficulty.
    """

    name: str
    axis: str
    meaning: str
    shots: int
    difficulty: int
    knob: str
    allowed: range
    question: Callable[[Draw, int], Question]

    @property
    def difficulties(self) -> str:
        """What the difficulty counts, and its range."""
        return f"{self.knob}, {self.allowed[0]} to {self.allowed[-1]}"
