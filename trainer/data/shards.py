"""Packed shards as they lie in Parquet files: read row by row, and every row checked."""

from __future__ import annotations

import difflib
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayeslaw.errors import DataError
from trainer.data.format import AGAIN, COLUMN, Ids, Meta, storage

ROWS_AT_ONCE = 1024
"""Rows that are in memory at a time while a shard is read."""


@dataclass
class Shard:
    """One Parquet file of a packed data set, whose rows are handed out once, each checked.

    Parameters
    ----------
    path : Path
    meta : Meta
        Of its split.
    number : int
        From 0.
    """

    path: Path
    meta: Meta
    number: int
    digest: str | None = None
    """SHA-256 of the ids as they are stored, once all rows are read."""

    @functools.cached_property
    def rows(self) -> int:
        """Rows by the file's own account.

        Raises
        ------
        DataError
            The file cannot be read, or lists another number of rows than the meta file.
        """
        with self._opened() as file:
            rows = int(file.metadata.num_rows)
        if self.meta.shards is not None and rows != self.meta.shards[self.number][0]:
            raise DataError(
                f"{self.path} has {rows} rows",
                allowed=f"{self.meta.shards[self.number][0]}, as its meta file says",
                do=AGAIN,
            )
        return rows

    def read(self) -> Iterator[Ids]:
        """Its rows, [n, T + 1] at a time, in the type of `storage`.

        Raises
        ------
        DataError
            The file is damaged or foreign: the message names file and row.
        """
        import pyarrow as pa

        sha, begin = hashlib.sha256(), 0
        with self._opened() as file:
            try:
                for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[COLUMN]):
                    ids = self._checked(batch.column(0), begin)
                    begin += len(ids)
                    sha.update(ids)
                    yield ids
            except (pa.ArrowException, OSError) as error:
                raise self._damaged(f"is damaged after row {begin}: {error}") from error
        self.digest = sha.hexdigest()
        if self.meta.shards is not None and self.digest != (given := self.meta.shards[self.number][1]):
            raise self._damaged(
                f"holds other rows than were packed: their digest is {self.digest[:16]}, by its meta file {given[:16]}"
            )

    def _opened(self) -> Any:
        """The Parquet file, whose column is the right one."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"is no whole Parquet file: {error}") from error
        schema = file.schema_arrow
        if COLUMN not in schema.names:
            file.close()
            close = difflib.get_close_matches(COLUMN, schema.names, n=1)
            raise DataError(
                f"{self.path} has the columns {', '.join(schema.names) or 'none'}",
                allowed=f"packed shards, with the column {COLUMN}",
                do=f"rename the column {close[0]} to {COLUMN} if it holds them; documents are packed with "
                "`bayeslaw data pack`"
                if close
                else "pack documents with `bayeslaw data pack`",
            )
        kind = schema.field(COLUMN).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not (lists and pa.types.is_integer(kind.value_type)):
            file.close()
            raise DataError(
                f"{self.path}: {COLUMN} is {kind}", allowed="lists of whole numbers, such as list<uint16>", do=AGAIN
            )
        return file

    def _checked(self, column: Any, begin: int) -> Ids:
        """Rows as an array, each of T + 1 ids below the vocabulary and led by BOS; ``begin`` counts those before."""
        meta = self.meta
        if column.null_count:
            raise self._wrong(begin + np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0], "is null")
        if hasattr(column, "offsets"):
            lengths = np.diff(column.offsets.to_numpy())
            if (other := np.flatnonzero(lengths != meta.capacity)).size:
                length = int(lengths[other[0]])
                raise self._wrong(begin + other[0], f"has {length} ids", f"{meta.capacity}: seq_len + 1")
        elif column.type.list_size != meta.capacity:
            raise self._wrong(begin, f"has {column.type.list_size} ids", f"{meta.capacity}: seq_len + 1")
        values = column.flatten()
        if values.null_count:
            place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._wrong(begin + place // meta.capacity, "holds a null", "token ids")
        ids_RS = values.to_numpy().reshape(-1, meta.capacity)
        if ids_RS.size and not (int(ids_RS.min()) >= 0 and int(ids_RS.max()) < meta.vocab_size):
            row, place = np.argwhere((ids_RS < 0) | (ids_RS >= meta.vocab_size))[0]
            raise self._wrong(
                begin + row,
                f"holds the id {ids_RS[row, place]}",
                f"0 to {meta.vocab_size - 1}: vocab_size is {meta.vocab_size}",
            )
        if (other := np.flatnonzero(ids_RS[:, 0] != meta.bos)).size:
            raise self._wrong(
                begin + other[0], f"starts with the id {ids_RS[other[0], 0]}", f"{meta.bos}: each row is led by BOS"
            )
        return np.ascontiguousarray(ids_RS, dtype=storage(meta.vocab_size))

    def _wrong(self, row: int, what: str, allowed: str | None = None) -> DataError:
        return DataError(f"{self.path}: row {row} {what}", allowed=allowed, do=AGAIN)

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self.path} {what}", do=AGAIN)


def shards(meta: Meta) -> list[Shard]:
    """The shards of a split, which are all there and have the rows that the meta file says.

    Raises
    ------
    DataError
        A shard is missing, cannot be read or has another number of rows than the meta file says.
    """
    found = [Shard(path, meta, number) for number, path in enumerate(meta.files())]
    if (rows := sum(shard.rows for shard in found)) != meta.rows:
        more = rows > meta.rows
        raise DataError(
            f"{meta.folder}: the {len(found)} {meta.split} shards have {rows} rows",
            allowed=f"{meta.rows}, the total_rows of its meta file: "
            + ("a shard may be of another data set" if more else "the last shards may be missing"),
            do=("take out what is not of this one, or " if more else "") + AGAIN,
        )
    return found
