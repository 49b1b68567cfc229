"""Corpora of bytes, their held-out part, and the batch of every step.

A token is a byte. Files are joined in the order of their relative paths, a zero byte before each (text holds none),
so that a document's start is marked.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayeslaw.errors import UsageError

STDLIB = "stdlib"
FINEWEB_EDU = "KristianS7/prepacked-fineweb-edu-llama2-32K-T2048"
HUB_CORPORA = (FINEWEB_EDU,)
"""Packed data sets of the Hugging Face hub: runs on them can be planned, but the data are not on this machine."""

HELD_OUT_OF = 20
"""One file in so many (by the hash of its relative path), or that part of a single file's end, is held out."""

_NOT_SOURCES = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "ensurepip"}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """Training and held-out bytes.

    Parameters
    ----------
    name : str
        The spec it was loaded by.
    train, validation : array of uint8
        Tokens; no file is in both.
    digest : str
        First 16 hex digits of the SHA-256 over both parts.
    files : int
        Number of files read.
    """

    name: str
    train: Bytes
    validation: Bytes
    digest: str
    files: int


def load_corpus(spec: str) -> Corpus:
    """The corpus called ``spec``, read once a process.

    Parameters
    ----------
    spec : str
        ``stdlib``, the Python standard library's own sources without its test packages; or a text file; or a
        folder of text files (hidden files and folders left out).

    Raises
    ------
    UsageError
        There is no such corpus, it is empty, not on this machine, or a file of it is no text.
    """
    return _load(spec, str(Path(spec).resolve()))


@functools.cache
def _load(spec: str, _place: str) -> Corpus:
    """Load and keep; ``_place`` tells equal relative paths in different working directories apart."""
    if spec == STDLIB:
        return _split_by_file(spec, Path(sysconfig.get_path("stdlib")), _stdlib_sources())
    path = Path(spec)
    if spec in HUB_CORPORA:
        raise UsageError(
            f"corpus {spec!r}: the packed data set is not on this machine",
            allowed=f"{STDLIB}, or the path of a text file or of a folder of text files",
            do="name another --corpus",
        )
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path)))
        return _split_by_file(spec, path, files)
    if path.is_file():
        content = _read_text(path, otherwise="name another --corpus")
        cut = len(content) - len(content) // HELD_OUT_OF
        return _corpus(spec, content[:cut], content[cut:], files=1)
    close = difflib.get_close_matches(spec, [STDLIB], n=1)
    raise UsageError(
        f"corpus {spec!r}",
        allowed=f"{STDLIB}, or the path of a text file or of a folder of text files",
        do=f"the nearest is {close[0]}" if close else "check the path",
    )


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in relative.parts)


def _stdlib_sources() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    # _sysconfigdata and config-* hold the paths of whoever built the interpreter: they differ from host to host.
    return sorted(
        file
        for file in root.rglob("*.py")
        if not _NOT_SOURCES.intersection(file.relative_to(root).parts)
        and not any(part.startswith(("_sysconfigdata", "config-")) for part in file.relative_to(root).parts)
    )


def held_out(relative_path: str) -> bool:
    """Whether the file of this path belongs to the held-out part: by its name alone, whatever else is there."""
    return int.from_bytes(hashlib.sha256(relative_path.encode()).digest()[:8], "big") % HELD_OUT_OF == 0


def _split_by_file(spec: str, root: Path, files: Iterable[Path]) -> Corpus:
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for file in files:
        if content := _read_text(file):
            parts[held_out(file.relative_to(root).as_posix())].append(content)
    count = len(parts[True]) + len(parts[False])
    if not count:
        raise UsageError(f"corpus {spec!r} holds no text", allowed="a folder with text files in it")
    if not parts[True] or not parts[False]:
        raise UsageError(
            f"corpus {spec!r} has {count} files, of which {len(parts[True])} would be held out for validation",
            allowed=f"a folder of more files (one in {HELD_OUT_OF} is held out), or a single text file",
            do="add files, or join them into one",
        )
    return _corpus(spec, *(b"".join(b"\0" + content for content in parts[held]) for held in (False, True)), files=count)


def _corpus(spec: str, train: bytes, validation: bytes, *, files: int) -> Corpus:
    if not train or not validation:
        raise UsageError(f"corpus {spec!r} is too short: {len(train) + len(validation)} bytes", allowed="more text")
    digest = hashlib.sha256(hashlib.sha256(train).digest() + hashlib.sha256(validation).digest()).hexdigest()[:16]
    return Corpus(spec, np.frombuffer(train, np.uint8), np.frombuffer(validation, np.uint8), digest, files)


def _read_text(file: Path, otherwise: str = "leave it out") -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", do="name another --corpus") from error
    if b"\0" in content:
        raise UsageError(f"{file} is a binary file: it holds zero bytes", allowed="text files", do=otherwise)
    return content


@dataclass(frozen=True)
class Batches:
    """The training batches of a run: windows of the corpus, shuffled anew each epoch, no window twice within one.

    Parameters
    ----------
    tokens : array of uint8
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

    tokens: Bytes
    seq_len: int
    sequences: int
    seed: int

    def __post_init__(self) -> None:
        if self.windows < self.sequences:
            there = len(self.tokens)
            most = max(0, self.windows)
            raise UsageError(
                f"a batch of {self.sequences} sequence{'s' if self.sequences > 1 else ''} of {self.seq_len} tokens "
                f"from a training corpus of {there} tokens, which is too short for one batch",
                allowed=f"at most {most} sequence{'s' if most > 1 else ''} of this length, "
                f"--batch-tokens {most * self.seq_len}"
                if most
                else f"no sequence of this length; at most --seq-len {there // 2}",
                do=f"use a larger corpus ({(self.sequences + 1) * self.seq_len} training tokens or more), "
                "a shorter --seq-len or a smaller --batch-tokens",
            )

    @property
    def windows(self) -> int:
        """Windows of an epoch; one is given up so that each epoch can start at another offset."""
        return (len(self.tokens) - self.seq_len) // self.seq_len

    def at(self, step: int, rank: int = 0, size: int = 1) -> NDArray[np.int64]:
        """Tokens [B / size, T + 1] of a process's share of a step.

        The whole batch is a pure function of (seed, step); processes share it out by rank, whatever their number.
        """
        share = self.sequences // size
        begin = step * self.sequences + rank * share
        window = np.arange(begin, begin + share)
        epoch, place = np.divmod(window, self.windows)
        starts = np.empty_like(window)
        for number in np.unique(epoch):
            order, offset = _epoch_order(self.seed, int(number), self.windows, self.seq_len)
            starts[epoch == number] = order[place[epoch == number]] * self.seq_len + offset
        return _cut(self.tokens, starts, self.seq_len)


@functools.lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, windows: int, seq_len: int) -> tuple[NDArray[np.int64], int]:
    generator = np.random.default_rng([seed, epoch])
    offset = int(generator.integers(seq_len))
    return generator.permutation(windows), offset


def validation_sequences(corpus: Corpus, seq_len: int, tokens: int) -> NDArray[np.int64]:
    """Held-out sequences [n, T + 1], evenly spread over the held-out part, none overlapping in what is predicted.

    Raises
    ------
    UsageError
        The held-out part has fewer tokens than asked for: nothing is ever used twice.
    """
    there = (len(corpus.validation) - 1) // seq_len
    wanted = tokens // seq_len
    if there < 1:
        raise UsageError(
            f"validation sequences of {seq_len} tokens from {len(corpus.validation)} held-out tokens",
            allowed=f"sequences of at most {len(corpus.validation) - 1} tokens",
            do=f"choose a shorter --seq-len, or a larger corpus (one with more than {seq_len} held-out tokens)",
        )
    if there < wanted:
        raise UsageError(
            f"{tokens} validation tokens in sequences of {seq_len} from {len(corpus.validation)} held-out tokens",
            allowed=f"at most {there * seq_len} at this sequence length",
            do="ask for fewer --validation-tokens, or use a larger corpus",
        )
    starts = (np.arange(wanted) * there // wanted) * seq_len
    return _cut(corpus.validation, starts, seq_len)


def _cut(tokens: Bytes, starts: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
    """Windows [len(starts), T + 1]: T inputs and the token after each."""
    windows: NDArray[np.int64] = tokens[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64)
    return windows
