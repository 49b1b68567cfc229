"""Rows -> Parquet shards, a row group at a time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.format import COLUMN, Ids, shard_name

ROWS_TOGETHER = 1000
"""Rows of a row group."""


@dataclass
class ShardWriter:
    """Writes rows into shards of so many.

    Parameters
    ----------
    folder : Path
    split : str
    capacity : int
        Ids of a row.
    dtype : numpy dtype
    rows_per_shard : int
    """

    folder: Path
    split: str
    capacity: int
    dtype: np.dtype[Any]
    rows_per_shard: int
    rows: int = 0
    shards: list[dict[str, Any]] = field(default_factory=list)
    """Rows and digest of each shard that is whole."""

    def __post_init__(self) -> None:
        self._group: list[Ids] = []
        self._file: Any = None
        self._in_shard = 0

    def add(self, row: Ids) -> None:
        """Write a row, in time."""
        self._group.append(row)
        self.rows += 1
        if len(self._group) == ROWS_TOGETHER or self._in_shard + len(self._group) == self.rows_per_shard:
            self._write()

    def close(self) -> None:
        """Write all that is left."""
        if self._group:
            self._write()
        self._end()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        ids = np.stack(self._group)
        # From buffers: pa.array would import pandas wherever it is installed.
        offsets = np.arange(len(ids) + 1, dtype=np.int32) * self.capacity
        kind = pa.from_numpy_dtype(self.dtype)
        values = pa.Array.from_buffers(kind, ids.size, [None, pa.py_buffer(ids)])
        lists = pa.Array.from_buffers(pa.list_(kind), len(ids), [None, pa.py_buffer(offsets)], children=[values])
        table = pa.Table.from_arrays([lists], names=[COLUMN])
        if self._file is None:
            path = self.folder / shard_name(self.split, len(self.shards))
            self._file = pq.ParquetWriter(path, table.schema, compression="zstd")
            self._sha = hashlib.sha256()
        self._file.write_table(table)
        self._sha.update(ids)
        self._in_shard += len(ids)
        self._group = []
        if self._in_shard == self.rows_per_shard:
            self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self.shards.append({"rows": self._in_shard, "sha256": self._sha.hexdigest()})
        self._file, self._in_shard = None, 0
