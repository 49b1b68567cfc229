"""Documents -> packed shards: split, shuffled, tokenised, packed and written, in one pass and bounded memory.

The folder is made under another name, ``.NAME.packing``, and gets its own name when all of it is written: what has the
name is whole. The same source, tokenizer and settings give the same bytes (with the same versions of pyarrow and of the
tokenizers library).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bayeslaw.errors import DataError, UsageError
from trainer.checks import require_count
from trainer.data.corpora import HELD_OUT_OF
from trainer.data.documents import Documents, pinned
from trainer.data.format import (
    PACKER,
    ROWS_PER_SHARD,
    SPLITS,
    TOKENIZER_FILE,
    TRAIN,
    VALIDATION,
    combined,
    meta_name,
    storage,
)
from trainer.data.packing import Packer
from trainer.data.tokenizer import Tokenizer, digest
from trainer.data.writer import ShardWriter

SHUFFLED_DOCUMENTS = 16_384
SHUFFLED_CHARACTERS = 2**26
"""A split's documents are shuffled among so many that wait, or so many characters: the memory of it is bounded."""

AT_ONCE = 2**20
"""Characters that are tokenised together."""

LONGEST = 2**20
"""Tokens of a row at most: a thousand rows are in memory together."""

TELL_EVERY = 10.0
"""Seconds between words of progress."""

VALIDATION_SHARE = 1 / HELD_OUT_OF


@dataclass(frozen=True)
class PackedSplit:
    """What became of the documents of a split.

    Parameters
    ----------
    split : str
    rows, shards : int
    documents, empty_documents : int
        Documents packed, and those without a token, which were left out.
    tokens, tokens_left_out : int
        Tokens of the documents, BOS not counted: those in rows, and those of the last row, which was not full.
    digest : str
        Of all rows, see `trainer.data.format.Meta`.
    """

    split: str
    rows: int
    shards: int
    documents: int
    empty_documents: int
    tokens: int
    tokens_left_out: int
    digest: str


def is_held_out(text: str, share: float) -> bool:
    """Whether a document belongs to the held-out part: by its text alone, so that its copies do too."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8], "big") < share * 2**64


def require_share(share: float) -> None:
    """Refuse what is no share of the documents.

    Raises
    ------
    UsageError
    """
    if not 0 < share < 1:
        raise UsageError(f"validation_share = {share}", allowed="a number above 0 and below 1, such as 0.05")


def pack(
    documents: Documents,
    tokenizer: Tokenizer,
    out: Path,
    *,
    seq_len: int,
    seed: int = 0,
    rows_per_shard: int = ROWS_PER_SHARD,
    validation_share: float = VALIDATION_SHARE,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[PackedSplit, PackedSplit]:
    """Pack documents into the folder ``out``, in the format of `trainer.data.format`.

    Parameters
    ----------
    documents : Documents
    tokenizer : Tokenizer
    out : Path
        A folder that is not there yet, or empty.
    seq_len : int
        T, `LONGEST` at most; a row has T + 1 ids.
    seed : int
        Of the order of the documents, which are shuffled among `SHUFFLED_DOCUMENTS` at a time.
    rows_per_shard : int
    validation_share : float
        About this share of the documents is held out, see `is_held_out`.
    tell : callable
        Told of the progress.

    Returns
    -------
    What became of the training and of the held-out documents.

    Raises
    ------
    UsageError
        A value that cannot be meant, a folder that is not empty, or too little text for a row of each split.
    DataError
        A document cannot be read, or the folder not be written.
    """
    for name, value in (("seq_len", seq_len), ("rows_per_shard", rows_per_shard)):
        require_count(name, value)
    if seq_len > LONGEST:
        raise UsageError(f"seq_len = {seq_len}", allowed=f"a whole number, 1 to {LONGEST}")
    require_count("seed", seed, 0)
    require_share(validation_share)
    documents = Documents(pinned(documents.source), documents.text_field, documents.separator)
    with _unfinished(out) as folder:
        splits = [_Split(folder, split, tokenizer, seq_len + 1, seed, rows_per_shard) for split in SPLITS]
        told = time.monotonic()
        for number, text in enumerate(documents, start=1):
            splits[is_held_out(text, validation_share)].add(text)
            if time.monotonic() - told > TELL_EVERY:
                told = time.monotonic()
                tell(f"{number:,} documents read, {sum(split.writer.rows for split in splits):,} rows written")
        made = [split.finish() for split in splits]
        for each in made:
            _require_rows(each, documents.source, seq_len, validation_share)
        if tokenizer.content is not None:
            (folder / TOKENIZER_FILE).write_bytes(tokenizer.content)
        facts = {
            "packer": PACKER,
            "source": documents.name,
            "text_field": documents.text_field,
            "separator": documents.separator,
            "tokenizer": {"name": tokenizer.name, "sha256": digest(tokenizer)},
            "seed": seed,
            "rows_per_shard": rows_per_shard,
            "validation_share": validation_share,
        }
        for each, split in zip(made, splits, strict=True):
            meta = {
                "split": each.split,
                "seq_len": seq_len,
                "row_capacity": seq_len + 1,
                "vocab_size": tokenizer.vocab_size,
                "bos_token_id": tokenizer.bos,
                "total_rows": each.rows,
                **facts,
                "documents": each.documents,
                "empty_documents": each.empty_documents,
                "tokens": each.tokens,
                "tokens_left_out": each.tokens_left_out,
                "digest": each.digest,
                "shards": split.writer.shards,
            }
            (folder / meta_name(each.split)).write_text(json.dumps(meta, indent=1) + "\n")
    return made[0], made[1]


def _require_rows(made: PackedSplit, source: str, seq_len: int, share: float) -> None:
    if made.rows:
        return
    which = "training" if made.split == TRAIN else "held-out"
    raise UsageError(
        f"{source}: the {which} part is {made.documents} document{'' if made.documents == 1 else 's'} of "
        f"{made.tokens_left_out} tokens, no whole row of {seq_len} tokens and their BOS",
        allowed=f"text for a row of each split; {share:.2g} of the documents are held out",
        do="add documents, choose a shorter --seq-len"
        + (" or a larger --validation-share" if made.split == VALIDATION else "")
        + "; a text file is one document unless --separator says what stands between documents",
    )


@contextlib.contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """A folder to write to, which becomes ``out`` when the block ends without an error and else is removed.

    One that a killed process left is begun anew.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(
            f"--out {out} is there already", allowed="a folder that is new or empty", do="choose another, or remove it"
        )
    out = out.resolve()
    folder, claim = out.with_name(f".{out.name}.packing"), out.with_name(f".{out.name}.packing.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with claim.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"another process is packing into {out}", do="wait for it, or choose another --out"
                ) from error
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                yield folder
                os.replace(folder, out)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                claim.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write {out}: {error.strerror or error}", do="free some space, or choose another --out"
        ) from error


class _Split:
    """The documents of one split on their way to its shards."""

    def __init__(
        self, folder: Path, split: str, tokenizer: Tokenizer, capacity: int, seed: int, rows_per_shard: int
    ) -> None:
        dtype = storage(tokenizer.vocab_size)
        self._split = split
        self._tokenizer = tokenizer
        self._packer = Packer(capacity, tokenizer.bos, dtype)
        self.writer = ShardWriter(folder, split, capacity, dtype, rows_per_shard)
        self._draw = random.Random(f"{seed}/{split}")
        self._waiting: list[str] = []
        self._characters = 0
        self._batch: list[str] = []
        self._batched = 0
        self._documents = self._empty = self._tokens = 0

    def add(self, text: str) -> None:
        """Take a document; another one that waited may go on."""
        if not text:
            self._empty += 1
            return
        self._waiting.append(text)
        self._characters += len(text)
        while len(self._waiting) > SHUFFLED_DOCUMENTS or self._characters > SHUFFLED_CHARACTERS:
            self._draw_one()

    def finish(self) -> PackedSplit:
        """Write what waits; what became of the split."""
        while self._waiting:
            self._draw_one()
        self._encode()
        for row in self._packer.rest():
            self.writer.add(row)
        self.writer.close()
        left_out = self._packer.waiting_tokens
        return PackedSplit(
            self._split,
            self.writer.rows,
            len(self.writer.shards),
            self._documents,
            self._empty,
            self._tokens - left_out,
            left_out,
            combined([shard["sha256"] for shard in self.writer.shards]),
        )

    def _draw_one(self) -> None:
        place = self._draw.randrange(len(self._waiting))
        self._waiting[place], self._waiting[-1] = self._waiting[-1], self._waiting[place]
        text = self._waiting.pop()
        self._characters -= len(text)
        self._batch.append(text)
        self._batched += len(text)
        if self._batched >= AT_ONCE:
            self._encode()

    def _encode(self) -> None:
        for tokens in self._tokenizer.encode(self._batch):
            if not len(tokens):
                self._empty += 1
                continue
            self._documents += 1
            self._tokens += len(tokens)
            for row in self._packer.add(tokens):
                self.writer.add(row)
        self._batch, self._batched = [], 0
