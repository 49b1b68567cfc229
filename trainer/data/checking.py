"""Every row of a packed data set read and counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayeslaw.errors import DataError, UsageError
from trainer.data.format import AGAIN, Meta, combined, is_packed, read_metas, require_apart
from trainer.data.rows import verify_decoded
from trainer.data.shards import shards
from trainer.data.tokenizer import tokenizer_of


@dataclass(frozen=True)
class SplitFacts:
    """What the rows of a split hold.

    Parameters
    ----------
    split : str
    shards, rows, seq_len, vocab_size, bos : int
    tokens : int
        Ids that are not BOS.
    utilisation : float
        Their share of all ids; rows have no padding, the rest is BOS.
    pieces_per_row : float
        Documents and pieces of documents in a row, by their BOS.
    largest_id : int
    distinct_ids : int
        How many ids of the vocabulary occur.
    digest : str
        Of all rows.
    verified : bool
        Whether the meta file has digests, which the rows have too.
    """

    split: str
    shards: int
    rows: int
    seq_len: int
    vocab_size: int
    bos: int
    tokens: int
    utilisation: float
    pieces_per_row: float
    largest_id: int
    distinct_ids: int
    digest: str
    verified: bool


def check(folder: Path) -> tuple[SplitFacts, SplitFacts]:
    """Read every shard of a packed data set from its Parquet file, what it was decoded into, and the tokenizer.

    Returns
    -------
    What the training and the held-out rows hold.

    Raises
    ------
    UsageError
        The folder is no packed data set.
    DataError
        Anything is damaged, foreign or missing; the message names file and row.
    """
    if not is_packed(folder):
        raise UsageError(
            f"{folder} is no packed data set",
            allowed="a folder with meta_train.json and shards",
            do="check the path, or pack documents into a new folder with `bayeslaw data pack`",
        )
    train, validation = read_metas(folder)
    for meta in (train, validation):
        if meta.tokenizer is not None and tokenizer_of(meta).vocab_size != meta.vocab_size:
            raise DataError(
                f"{folder}: the tokenizer beside the shards has {tokenizer_of(meta).vocab_size} tokens, their "
                f"vocab_size is {meta.vocab_size}",
                do=AGAIN,
            )
    (of_train, train_digests), (of_validation, validation_digests) = _facts(train), _facts(validation)
    require_apart(folder, train_digests, validation_digests)
    return of_train, of_validation


def _facts(meta: Meta) -> tuple[SplitFacts, list[str]]:
    """What the rows of a split hold, and the digests of its shards."""
    counts = np.zeros(meta.vocab_size, dtype=np.int64)
    rows, digests = 0, []
    found = shards(meta)
    for shard in found:
        for ids in shard.read():
            counts += np.bincount(ids.ravel(), minlength=meta.vocab_size)
            rows += len(ids)
        assert shard.digest is not None  # all of it was read
        digests.append(shard.digest)
        verify_decoded(shard)
    total, begins = int(counts.sum()), int(counts[meta.bos])
    facts = SplitFacts(
        meta.split,
        len(found),
        rows,
        meta.seq_len,
        meta.vocab_size,
        meta.bos,
        total - begins,
        (total - begins) / total,
        begins / rows,
        int(np.flatnonzero(counts)[-1]),
        int(np.count_nonzero(counts)),
        combined(digests),
        meta.shards is not None,
    )
    return facts, digests
