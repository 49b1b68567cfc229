"""Packed rows without copies: each shard decoded once into a raw file, which is mapped into memory.

The raw files hold ids as `format.storage` says, row after row. They lie in the folder ``.rows`` of the data set, or,
where that cannot be written, below ``$XDG_CACHE_HOME/bayeslaw`` (``~/.cache/bayeslaw``); they may be deleted at any
time. A raw file stands for its shard while both keep size and time of change.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayeslaw.errors import DataError
from bayeslaw.files import written_whole
from trainer.data.format import Ids, Meta, combined, storage
from trainer.data.shards import Shard, shards

FOLDER = ".rows"

WORTH_A_WORD = 2**30
"""Bytes of shards whose decoding takes so long that the person is told."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a split, in memory only where they are touched.

    Parameters
    ----------
    maps : tuple of array, each [rows of a shard, T + 1]
    vocab_size, bos : int
    digests : tuple of str
        SHA-256 of each shard's ids.
    """

    maps: tuple[Ids, ...]
    vocab_size: int
    bos: int
    digests: tuple[str, ...]

    def __len__(self) -> int:
        return sum(map(len, self.maps))

    @functools.cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Rows up to the end of each shard."""
        return np.cumsum([len(rows) for rows in self.maps])

    @property
    def digest(self) -> str:
        """Of all rows, see `format.Meta.digest`."""
        return combined(self.digests)

    @property
    def seq_len(self) -> int:
        """T, one less than the ids of a row."""
        return int(self.maps[0].shape[1]) - 1

    def take(self, places: NDArray[np.int64]) -> Ids:
        """The rows at these places, [len(places), T + 1]."""
        numbers = np.searchsorted(self._ends, places, side="right")
        out = np.empty((len(places), self.seq_len + 1), dtype=self.maps[0].dtype)
        for number in np.unique(numbers):
            here = numbers == number
            rows = self.maps[number]
            out[here] = rows[places[here] - (self._ends[number] - len(rows))]
        return out


def mapped(meta: Meta) -> Rows:
    """The rows of a split; at the first use each shard is read, checked and decoded.

    Raises
    ------
    DataError
        A shard is damaged or foreign, or there is no place for the decoded rows.
    """
    found = shards(meta)
    places = _places(meta.folder)
    for place in places:  # decoded before, perhaps by somebody who may write there
        digests: Sequence[str | None] = [_known(shard, place) for shard in found]
        if all(digests):
            break
    else:
        with _held(meta.folder, places) as place:
            digests = _all_decoded(found, place)
    maps = tuple(
        np.asarray(np.memmap(_raw(shard, place), storage(meta.vocab_size), "r", shape=(shard.rows, meta.capacity)))
        for shard in found
        if shard.rows
    )
    return Rows(maps, meta.vocab_size, meta.bos, tuple(str(digest) for digest in digests))


def verify_decoded(shard: Shard) -> None:
    """Read the raw files that stand for a shard, where there are any.

    Raises
    ------
    DataError
        One holds other ids than were decoded into it.
    """
    for place in _places(shard.meta.folder):
        if (expected := _known(shard, place)) is None:
            continue
        with _raw(shard, place).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise DataError(
                f"{_raw(shard, place)} holds other rows than were decoded from {shard.path.name}: their digest is "
                f"{found[:16]}, by the file beside it {expected[:16]}",
                do=f"delete the folder {place}: the shards are decoded anew",
            )


def _raw(shard: Shard, place: Path) -> Path:
    return place / f"{shard.path.stem}.ids"


def _all_decoded(found: Sequence[Shard], place: Path) -> Sequence[str | None]:
    """`_decoded` of all shards, several at a time; of several that are damaged the first is told of."""
    if sum(shard.path.stat().st_size for shard in found if not _known(shard, place)) > WORTH_A_WORD:
        print(
            f"{found[0].meta.folder}: the {found[0].meta.split} shards are decoded once into {place}", file=sys.stderr
        )
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        return list(pool.map(lambda shard: _decoded(shard, place), found))
    finally:
        pool.shutdown(cancel_futures=True)


def _decoded(shard: Shard, place: Path) -> str:
    """The digest of a shard whose raw file is made where it is missing or of another state of the shard."""
    if digest := _known(shard, place):
        return digest
    facts, raw = _facts(shard), _raw(shard, place)
    try:
        with written_whole(raw, error=DataError) as partial, partial.open("wb") as file:
            for ids in shard.read():
                file.write(ids)
            file.flush()
            os.fsync(file.fileno())  # a crash of the machine must not leave a whole file of zeros
        assert shard.digest is not None  # all of it was read
        with written_whole(raw.with_suffix(".json"), error=DataError) as partial:
            partial.write_text(json.dumps(facts | {"decoded": raw.stat().st_mtime_ns, "sha256": shard.digest}))
    except DataError as error:
        if error.what.startswith("cannot write"):
            raise DataError(error.what, do=f"make room in {place}") from error
        raise
    return shard.digest


def _facts(shard: Shard) -> dict[str, int]:
    """By what the state of a shard, and the way of reading it, are known again."""
    status, meta = shard.path.stat(), shard.meta
    return {
        "size": status.st_size,
        "changed": status.st_mtime_ns,
        "rows": shard.rows,
        "capacity": meta.capacity,
        "vocab_size": meta.vocab_size,
        "bos": meta.bos,
    }


def _known(shard: Shard, place: Path) -> str | None:
    """The digest of a shard whose raw file stands for it as it is now, None where there is none."""
    raw, meta = _raw(shard, place), shard.meta
    try:
        known = json.loads(raw.with_suffix(".json").read_text())
        digest, decoded = known.pop("sha256"), known.pop("decoded")
        status = raw.stat()
    except (OSError, ValueError, AttributeError, KeyError):
        return None
    whole = status.st_size == shard.rows * meta.capacity * storage(meta.vocab_size).itemsize
    untouched = status.st_mtime_ns == decoded  # what was written since may be anything of the same size
    expected = meta.shards[shard.number][1] if meta.shards is not None else digest
    return str(digest) if known == _facts(shard) and whole and untouched and digest == expected else None


def _places(folder: Path) -> tuple[Path, Path]:
    """Where the raw files of a data set may lie."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return folder / FOLDER, home / "bayeslaw" / name


@contextlib.contextmanager
def _held(folder: Path, places: tuple[Path, Path]) -> Iterator[Path]:
    """The place for raw files, held by one process at a time: of those of a run one decodes, the others wait."""
    problem: OSError | None = None
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            lock = open(place / "lock", "w")  # noqa: SIM115
        except OSError as error:
            problem = error
            continue
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for partial in (*place.glob(".*.ids.*"), *place.glob(".*.json.*")):  # of a process that was killed
                with contextlib.suppress(OSError):
                    partial.unlink()
            yield place
        return
    raise DataError(
        f"no place for the decoded rows of {folder}: {problem}",
        allowed=f"a folder that can be written: {places[0]} or {places[1]}",
        do="set XDG_CACHE_HOME to a folder with room for them",
    )
