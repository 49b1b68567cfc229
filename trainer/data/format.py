"""The format of packed data sets: what is in a folder, and what its meta files say.

A folder holds ``{train,val}-NNNNN.parquet``, each with the one column ``tokens``, a list of T + 1 token ids a row that
starts with the id of BOS (uint16, uint32 for a vocabulary above 65,536); and ``meta_train.json`` and ``meta_val.json``.
Those of the hub have the keys of `REQUIRED` alone; those packed here also say what they were made of, how, and the
digests of what came out, by which damage is noticed (`Meta`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.errors import DataError

TRAIN, VALIDATION = SPLITS = ("train", "val")
COLUMN = "tokens"
ROWS_PER_SHARD = 15_000
REQUIRED = ("row_capacity", "seq_len", "vocab_size", "bos_token_id", "total_rows", "split")
PACKER = 1
"""Version of the packer: it goes up with any change that packs the same documents to other rows."""

TOKENIZER_FILE = "tokenizer.json"
AGAIN = "get the folder again: copy it, or pack it with `bayeslaw data pack`"

Ids = NDArray[Any]
"""Token ids, uint16 or uint32."""


def meta_name(split: str) -> str:
    """``meta_train.json`` or ``meta_val.json``."""
    return f"meta_{split}.json"


def shard_name(split: str, number: int) -> str:
    """``train-00000.parquet`` and so on."""
    return f"{split}-{number:05d}.parquet"


def storage(vocab_size: int) -> np.dtype[Any]:
    """The type that ids of a vocabulary are stored in: little-endian, two bytes where they suffice."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def combined(digests: Sequence[str]) -> str:
    """The digest of a split by those of its shards, in their order."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def is_packed(folder: Path) -> bool:
    """Whether a folder is a packed data set, or what is left of one."""
    if not folder.is_dir():
        return False
    return any((folder / meta_name(split)).exists() for split in SPLITS) or (folder / shard_name(TRAIN, 0)).exists()


@dataclass(frozen=True)
class Meta:
    """What the meta file of a split says.

    Parameters
    ----------
    folder : Path
    split : str
        ``train`` or ``val``.
    seq_len : int
        T; a row has T + 1 ids.
    vocab_size : int
        Every id is below it.
    bos : int
        The id that every row starts with.
    rows : int
        Of all shards of the split.
    shards : tuple of (int, str), optional
        Rows of each shard and the SHA-256 of its ids (little-endian, row after row); None where the data were not
        packed here.
    tokenizer : dict, optional
        ``name`` and ``sha256`` of the tokenizer; None where the data were not packed here.
    """

    folder: Path
    split: str
    seq_len: int
    vocab_size: int
    bos: int
    rows: int
    shards: tuple[tuple[int, str], ...] | None
    tokenizer: dict[str, str] | None

    @property
    def capacity(self) -> int:
        """Ids of a row, T + 1."""
        return self.seq_len + 1

    @property
    def digest(self) -> str | None:
        """Of all rows of the split, None where the data were not packed here."""
        return None if self.shards is None else combined([sha for _, sha in self.shards])

    def files(self) -> list[Path]:
        """The shards of the split, in their order.

        Raises
        ------
        DataError
            A number is missing, or there are more or fewer shards than the meta file lists.
        """
        endings = ((path.name, path.stem.removeprefix(f"{self.split}-")) for path in self.folder.iterdir())
        numbers = {int(n) for name, n in endings if n.isdecimal() and name == shard_name(self.split, int(n))}
        count = len(self.shards) if self.shards is not None else max(numbers, default=0) + 1
        for number in range(count):
            if not (path := self.folder / shard_name(self.split, number)).exists():  # a link to nothing does not
                raise DataError(f"{path} is missing", do=AGAIN)
        if more := sorted(numbers - set(range(count))):
            raise DataError(
                f"{self.folder / shard_name(self.split, more[0])} is not of the data set: {meta_name(self.split)} "
                f"lists {count} shard{'' if count == 1 else 's'}",
                do="take it out of the folder",
            )
        return [self.folder / shard_name(self.split, number) for number in range(count)]


def read_meta(folder: Path, split: str) -> Meta:
    """What the meta file of a split says.

    Raises
    ------
    DataError
        There is none (a packing or a copy that did not come to its end), or it says what cannot be.
    """
    path = folder / meta_name(split)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} holds packed shards and no {path.name}", allowed="a folder that is there whole", do=AGAIN
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", do=AGAIN) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object", do=AGAIN)
    if missing := [key for key in REQUIRED if key not in content]:
        raise DataError(f"{path} lacks {', '.join(missing)}", allowed=", ".join(REQUIRED), do=AGAIN)
    least = {"seq_len": 1, "vocab_size": 1, "bos_token_id": 0, "total_rows": 1, "row_capacity": 2}
    for key, low in least.items():
        value = content[key]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**32:
            raise DataError(f"{path}: {key} = {value!r}", allowed=f"a whole number, {low} or more", do=AGAIN)
    if content["split"] != split:
        raise DataError(f"{path}: split = {content['split']!r}", allowed=split, do=AGAIN)
    if content["row_capacity"] != content["seq_len"] + 1:
        raise DataError(
            f"{path}: row_capacity = {content['row_capacity']} with seq_len = {content['seq_len']}",
            allowed="seq_len + 1: the inputs of a row and the token after the last",
            do="such rows are of another format: pack the documents with `bayeslaw data pack`",
        )
    if content["bos_token_id"] >= content["vocab_size"]:
        raise DataError(
            f"{path}: bos_token_id = {content['bos_token_id']} with vocab_size = {content['vocab_size']}",
            allowed="an id below vocab_size",
            do=AGAIN,
        )
    shards, tokenizer = _own(path, content)
    return Meta(
        folder,
        split,
        content["seq_len"],
        content["vocab_size"],
        content["bos_token_id"],
        content["total_rows"],
        shards,
        tokenizer,
    )


def _own(path: Path, content: dict[str, Any]) -> tuple[tuple[tuple[int, str], ...] | None, dict[str, str] | None]:
    """What only the meta files of data packed here say: shards and tokenizer; None where they do not."""
    packer = content.get("packer", PACKER)
    if not isinstance(packer, int) or packer > PACKER:
        raise DataError(
            f"{path}: packer = {packer!r}",
            allowed=f"{PACKER} or less in this version",
            do="read the folder with the version of bayeslaw that packed it, or a later one",
        )
    try:
        listed = content.get("shards")
        shards = None if listed is None else tuple((int(shard["rows"]), str(shard["sha256"])) for shard in listed)
        made_with = content.get("tokenizer")
        tokenizer = None if made_with is None else {key: str(made_with[key]) for key in ("name", "sha256")}
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{path}: shards or tokenizer are not as this version writes them", do=AGAIN) from error
    if shards is None:
        if "packer" in content:
            raise DataError(f"{path} was written by `bayeslaw data pack` and lacks shards", do=AGAIN)
        return shards, tokenizer
    if sum(rows for rows, _ in shards) != content["total_rows"]:
        raise DataError(
            f"{path}: total_rows = {content['total_rows']}, and its shards have {sum(rows for rows, _ in shards)}",
            do=AGAIN,
        )
    digest = combined([sha for _, sha in shards])
    if content.get("digest", digest) != digest:
        raise DataError(
            f"{path}: digest = {content['digest']!r}, and that of its shards is {digest}",
            allowed="the digest of the shards that it lists",
            do=AGAIN,
        )
    return shards, tokenizer


def require_apart(folder: Path, train: Sequence[str], validation: Sequence[str]) -> None:
    """Refuse a data set that is trained on what it holds out; the digests are those of each split's shards.

    Raises
    ------
    DataError
        A training shard and a held-out one hold the same rows.
    """
    empty = hashlib.sha256().hexdigest()
    for number, digest in enumerate(train):
        if digest != empty and digest in validation:
            raise DataError(
                f"{folder}: {shard_name(TRAIN, number)} and {shard_name(VALIDATION, validation.index(digest))} hold "
                "the same rows: what is held out would be trained on",
                allowed="splits that share no shard",
                do=AGAIN,
            )


def read_metas(folder: Path) -> tuple[Meta, Meta]:
    """The meta files of both splits.

    Raises
    ------
    DataError
        One is missing or wrong, or they disagree on what both must share.
    """
    train, validation = (read_meta(folder, split) for split in SPLITS)
    for name in ("seq_len", "vocab_size", "bos"):
        here, there = getattr(train, name), getattr(validation, name)
        if here != there:
            raise DataError(
                f"{folder}: {name} is {here} in {meta_name(TRAIN)} and {there} in {meta_name(VALIDATION)}",
                allowed="splits of one packing",
                do=AGAIN,
            )
    return train, validation
