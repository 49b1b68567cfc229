"""The batch of every step, and the held-out sequences: pure functions of a corpus, a seed and a step."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.errors import UsageError
from trainer.data.corpora import Bytes, Corpus
from trainer.data.format import Ids
from trainer.data.rows import Rows


@dataclass(frozen=True)
class Batches:
    """The training batches of a run: windows of a text or packed rows, shuffled anew each epoch, none twice within one.

    Parameters
    ----------
    tokens : array of uint8, or Rows
        The training part.
    seq_len, sequences : int
        T, and B, sequences of a batch.
    seed : int
        Seed of the order.

    Raises
    ------
    UsageError
        The corpus is shorter than one batch.
    """

    tokens: Bytes | Rows
    seq_len: int
    sequences: int
    seed: int

    def __post_init__(self) -> None:
        if self.windows < self.sequences:
            most = max(0, self.windows)
            raise UsageError(
                f"a batch of {self.sequences} sequence{'s' if self.sequences > 1 else ''} of {self.seq_len} tokens "
                f"from a training corpus of {self.epoch_tokens} tokens, which is too short for one batch",
                allowed=f"at most {most} sequence{'s' if most > 1 else ''} of this length, "
                f"--batch-tokens {most * self.seq_len}"
                if most
                else f"no sequence of this length; at most --seq-len {self.epoch_tokens // 2}",
                do=f"use a larger corpus ({(self.sequences + self._given_up) * self.seq_len} training tokens or more), "
                "a shorter --seq-len or a smaller --batch-tokens",
            )

    @property
    def windows(self) -> int:
        """Sequences of an epoch; of a text one is given up so that each epoch can start at another offset."""
        if isinstance(self.tokens, Rows):
            return len(self.tokens)
        return (len(self.tokens) - self.seq_len) // self.seq_len

    @property
    def _given_up(self) -> int:
        return 0 if isinstance(self.tokens, Rows) else 1

    @property
    def epoch_tokens(self) -> int:
        """Tokens of an epoch: those of the text, or those that the packed rows predict."""
        return len(self.tokens) * (self.seq_len if isinstance(self.tokens, Rows) else 1)

    def at(self, step: int, rank: int = 0, size: int = 1) -> NDArray[np.int64]:
        """Tokens [B / size, T + 1] of a process's share of a step.

        The whole batch is a pure function of (seed, step); processes share it out by rank, whatever their number.
        """
        share = self.sequences // size
        begin = step * self.sequences + rank * share
        window = np.arange(begin, begin + share)
        epoch, place = np.divmod(window, self.windows)
        chosen, offsets = np.empty_like(window), np.empty_like(window)
        for number in np.unique(epoch):
            order, offset = _epoch_order(self.seed, int(number), self.windows, self.seq_len)
            chosen[epoch == number], offsets[epoch == number] = order[place[epoch == number]], offset
        if isinstance(self.tokens, Rows):
            return self.tokens.take(chosen).astype(np.int64)
        return _cut(self.tokens, chosen * self.seq_len + offsets, self.seq_len).astype(np.int64)


@functools.lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, windows: int, seq_len: int) -> tuple[NDArray[np.int64], int]:
    """A permutation of the windows, and by how many tokens those of a text are moved."""
    generator = np.random.default_rng([seed, epoch])
    offset = int(generator.integers(seq_len))
    return generator.permutation(windows), offset


def require_held_out(corpus: Corpus, seq_len: int, tokens: int) -> int:
    """The sequences of the held-out part, which suffice for so many validation tokens; no row is read.

    Raises
    ------
    UsageError
        The held-out part has fewer tokens than asked for: nothing is ever used twice.
    """
    held_out = corpus.validation
    if isinstance(held_out, Rows):
        there, has = len(held_out), len(held_out) * seq_len
    else:
        there, has = (len(held_out) - 1) // seq_len, len(held_out)
    if there < 1:
        raise UsageError(
            f"validation sequences of {seq_len} tokens from {has} held-out tokens",
            allowed=f"sequences of at most {has - 1} tokens",
            do=f"choose a shorter --seq-len, or a larger corpus (one with more than {seq_len} held-out tokens)",
        )
    if there < tokens // seq_len:
        raise UsageError(
            f"{tokens} validation tokens in sequences of {seq_len} from {has} held-out tokens",
            allowed=f"at most {there * seq_len} at this sequence length",
            do="ask for fewer --validation-tokens, or use a larger corpus",
        )
    return there


def validation_sequences(corpus: Corpus, seq_len: int, tokens: int) -> Ids:
    """Held-out sequences [n, T + 1], evenly spread over the held-out part, none overlapping in what is predicted.

    They are of the type that they are stored in: of a large data set they take a quarter of what int64 would.

    Raises
    ------
    UsageError
        As `require_held_out`.
    """
    held_out, wanted = corpus.validation, tokens // seq_len
    there = require_held_out(corpus, seq_len, tokens)
    places = np.arange(wanted) * there // wanted
    if isinstance(held_out, Rows):
        return held_out.take(places)
    return _cut(held_out, places * seq_len, seq_len)


def _cut(tokens: Bytes, starts: NDArray[np.int64], seq_len: int) -> Bytes:
    """Windows [len(starts), T + 1]: T inputs and the token after each."""
    windows: Bytes = tokens[starts[:, None] + np.arange(seq_len + 1)]
    return windows
