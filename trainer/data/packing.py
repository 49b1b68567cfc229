"""Best-fit packing of documents into rows of one length.

A row is full: pieces of documents stand in it one after another, each led by BOS. A document longer than a row is cut
into whole rows and a rest. Into what is left of a row goes the longest piece that fits, of a bounded number waiting;
where none fits, the longest is cut: what does not fit goes on waiting as a piece led by a BOS of its own. So no token
is lost but those of the last row, which stays incomplete.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np

from trainer.data.format import Ids

WAITING = 4096
"""Pieces among which the best fit is looked for."""


class Packer:
    """Rows of documents; the same documents in the same order give the same rows.

    Parameters
    ----------
    capacity : int
        Ids of a row, T + 1; 2 or more.
    bos : int
    dtype : numpy dtype
        Of the rows.
    waiting : int
        Pieces among which the best fit is looked for.
    """

    def __init__(self, capacity: int, bos: int, dtype: np.dtype[np.generic], *, waiting: int = WAITING) -> None:
        assert capacity >= 2
        self.capacity = capacity
        self._bos, self._dtype, self._least = bos, dtype, waiting
        self._pieces: defaultdict[int, deque[Ids]] = defaultdict(deque)  # by their tokens, BOS left out
        self._lengths = 0  # bit n is set while a piece of n tokens waits
        self._count = 0
        self._ids = 0  # of all that wait, their BOS counted

    @property
    def waiting_tokens(self) -> int:
        """Tokens that are in no row yet; after `rest` those that stay out."""
        return self._ids - self._count

    def add(self, tokens: Ids) -> Iterator[Ids]:
        """Take a document of at least one token; the rows [T + 1] that are full with it."""
        most = self.capacity - 1
        whole = len(tokens) - len(tokens) % most
        for begin in range(0, whole, most):
            row = self._row()
            row[1:] = tokens[begin : begin + most]
            yield row
        if whole < len(tokens):
            self._push(tokens[whole:].copy())  # a view would hold all of a long document
        while self._count > self._least and self._ids >= self.capacity:
            yield self._packed()

    def rest(self) -> Iterator[Ids]:
        """The rows that are still full when no document follows."""
        while self._ids >= self.capacity:
            yield self._packed()

    def _row(self) -> Ids:
        row = np.empty(self.capacity, self._dtype)
        row[0] = self._bos
        return row

    def _packed(self) -> Ids:
        """One row of what waits: it is enough for one."""
        row, begin = self._row(), 0
        while (left := self.capacity - begin) > 0:
            fitting = self._lengths & ((1 << left) - 1)  # with its BOS a piece of n tokens takes n + 1 of what is left
            piece = self._pop((fitting or self._lengths).bit_length() - 1)
            row[begin] = self._bos
            taken = piece[: left - 1]
            row[begin + 1 : begin + 1 + len(taken)] = taken
            begin += 1 + len(taken)
            if len(taken) < len(piece):
                self._push(piece[len(taken) :])
        return row

    def _push(self, piece: Ids) -> None:
        self._pieces[len(piece)].append(piece)
        self._lengths |= 1 << len(piece)
        self._count += 1
        self._ids += 1 + len(piece)

    def _pop(self, tokens: int) -> Ids:
        """The first that waits of the pieces of this length."""
        queue = self._pieces[tokens]
        piece = queue.popleft()
        if not queue:
            del self._pieces[tokens]
            self._lengths ^= 1 << tokens
        self._count -= 1
        self._ids -= 1 + len(piece)
        return piece
