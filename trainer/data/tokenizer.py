"""Tokenizers: bytes, or those of the `tokenizers` library from a file, from the hub, or trained here."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bayeslaw.errors import DataError, UsageError
from trainer.checks import nearest, some
from trainer.data.format import TOKENIZER_FILE, Ids, Meta, storage
from trainer.sections import BYTE_VALUES

BYTES = "bytes"
BOS_NAMES = (
    "<s>", "<|bos|>", "<bos>", "<BOS>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|begin_of_sentence|>",
    "<|endoftext|>",
)  # fmt: skip
"""Tokens that are taken for BOS where none is named; the last both begins and ends documents in GPT-2's vocabulary."""

OWN_BOS = "<|bos|>"
ALLOWED = f"{BYTES}; the path of a tokenizer.json or of a folder with one; or NAME[@REVISION] of the hub"


class Tokenizer(Protocol):
    """What turns text into token ids and back.

    ``encode`` adds no special token, and takes text that looks like one for text.
    """

    name: str
    vocab_size: int
    bos: int

    @property
    def content(self) -> bytes | None:
        """The file that is kept beside the shards; None where the name says all."""

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""

    def texts(self, ids: Iterable[int]) -> Iterator[str]:
        """What each id completes of the text, and what is left after the last."""


def digest(tokenizer: Tokenizer) -> str:
    """SHA-256 of what a tokenizer does: of its file, or of its name."""
    return hashlib.sha256(tokenizer.content or tokenizer.name.encode()).hexdigest()


class ByteTokenizer:
    """A token is a byte of UTF-8; BOS is an id of its own above them, or the zero byte that texts do not hold."""

    content = None

    def __init__(self, bos: int = BYTE_VALUES) -> None:
        self.name = BYTES
        self.bos = bos
        self.vocab_size = max(BYTE_VALUES, bos + 1)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The bytes of each text."""
        return [np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8).astype("<u2") for text in texts]

    def texts(self, ids: Iterable[int]) -> Iterator[str]:
        """What each byte completes; BOS as an id of its own stands for no text."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in ids:
            yield decoder.decode(bytes([token]) if token < BYTE_VALUES else b"")
        yield decoder.decode(b"", final=True)


class LibraryTokenizer:
    """A tokenizer of the `tokenizers` library.

    Parameters
    ----------
    name : str
        Of records.
    inner : tokenizers.Tokenizer
    bos_token : str, optional
        The token that leads documents; by default the first of `BOS_NAMES` that there is.

    Raises
    ------
    UsageError
        It has no such token.
    """

    def __init__(self, name: str, inner: Any, bos_token: str | None = None) -> None:
        self.name = name
        self._inner = inner
        inner.no_truncation()  # what a model's own file may ask for, and no packer may do
        inner.no_padding()
        self.content: bytes | None = inner.to_str(pretty=True).encode()
        inner.encode_special_tokens = True  # a document that says "<s>" has no second beginning
        known: dict[str, int] = inner.get_vocab(with_added_tokens=True)
        if not known:
            raise UsageError(f"the tokenizer {name} has no token", allowed="a trained tokenizer")
        self.vocab_size = max(known.values()) + 1
        names = BOS_NAMES if bos_token is None else (bos_token,)
        found = [known[token] for token in names if token in known]
        if not found:
            special = [token.content for token in inner.get_added_tokens_decoder().values()]
            raise UsageError(
                f"the tokenizer {name} has no {bos_token or 'token that is known to begin documents'}",
                allowed=f"--bos-token with one of its tokens; its special ones are {some(special, 8) or 'none'}",
                do=nearest(bos_token, special) if bos_token else "name the token that leads documents",
            )
        self.bos = found[0]
        self._type = storage(self.vocab_size)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text.

        Raises
        ------
        UsageError
            A text that is not Unicode.
        """
        try:
            found = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError("a text that is not Unicode", allowed="text in UTF-8") from error
        return [np.array(each.ids, dtype=self._type) for each in found]

    def texts(self, ids: Iterable[int]) -> Iterator[str]:
        """What each id completes; special tokens stand for no text."""
        from tokenizers.decoders import DecodeStream

        decoder, seen, said = DecodeStream(skip_special_tokens=True), [], ""
        for token in ids:
            seen.append(token)
            piece = decoder.step(self._inner, token) or ""
            said += piece
            yield piece
        whole: str = self._inner.decode(seen, skip_special_tokens=True)
        yield whole.removeprefix(said) if whole.startswith(said) else ""


def load_tokenizer(spec: str, bos_token: str | None = None) -> Tokenizer:
    """The tokenizer called ``spec``.

    Parameters
    ----------
    spec : str
        ``bytes``, the path of a tokenizer.json or of a folder with one, or ``NAME[@REVISION]`` of the hub.
    bos_token : str, optional
        The token that leads documents.

    Raises
    ------
    UsageError
        There is none of this name, it cannot be had, or it lacks the token.
    DataError
        The file is no tokenizer.
    """
    if spec == BYTES:
        if bos_token is not None:
            raise UsageError(f"--bos-token {bos_token} with {BYTES}", allowed="its own BOS alone", do="leave it out")
        return ByteTokenizer()
    path = Path(spec)
    if path.is_dir():
        path = path / TOKENIZER_FILE
    if path.is_file():
        return _read(path, str(path.resolve().name), bos_token)
    if "/" not in spec or spec.startswith((".", "/")) or spec.endswith(".json"):
        raise UsageError(f"tokenizer {spec!r}", allowed=ALLOWED, do=nearest(spec, [BYTES]) or "check the path")
    name, _, revision = spec.partition("@")
    try:
        inner = _library().from_pretrained(name, revision=revision or "main")
    except UsageError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise UsageError(
            f"tokenizer {spec!r}: the hub cannot be reached, or has none of this name",
            allowed=ALLOWED,
            do=f"download it elsewhere (hf download {name} tokenizer.json --local-dir DIR), and name the file",
        ) from error
    return LibraryTokenizer(spec, inner, bos_token)


def tokenizer_of(meta: Meta) -> Tokenizer:
    """The tokenizer that packed shards were made with.

    Raises
    ------
    DataError
        It is not beside them, or another is.
    """
    if meta.tokenizer is None:
        raise DataError(
            f"{meta.folder} says nothing of the tokenizer it was packed with", do="name it with --tokenizer"
        )
    if meta.tokenizer["name"] == BYTES:
        return ByteTokenizer(meta.bos)
    path = meta.folder / TOKENIZER_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", do="restore it, or name one with --tokenizer"
        ) from error
    if hashlib.sha256(content).hexdigest() != meta.tokenizer["sha256"]:
        raise DataError(f"{path} is not the tokenizer that the shards were packed with", do="restore it")
    return _read(path, meta.tokenizer["name"], None, bos=meta.bos)


def _read(path: Path, name: str, bos_token: str | None, bos: int | None = None) -> LibraryTokenizer:
    try:
        inner = _library().from_file(str(path))
    except UsageError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise DataError(f"{path} is no tokenizer: {error}", allowed="a tokenizer.json", do="name another") from error
    return LibraryTokenizer(name, inner, bos_token if bos is None else inner.id_to_token(bos))


def _library() -> Any:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise UsageError(
            "the package tokenizers is not installed",
            allowed=f"without it: {BYTES}",
            do="pip install 'bayeslaw[data]', in a checkout '.[data]'",
        ) from error
    return Library


def trained(texts: Iterable[str], vocab_size: int) -> bytes:
    """A byte-level BPE of these texts as the content of a tokenizer.json; the same texts give the same bytes.

    Parameters
    ----------
    texts : iterable of str
    vocab_size : int
        Tokens in all: BOS, 256 bytes, and merges as far as the texts have pairs that come twice.

    Raises
    ------
    UsageError
        A vocabulary without room for BOS and the bytes.
    """
    if vocab_size <= BYTE_VALUES:
        raise UsageError(f"vocab_size = {vocab_size}", allowed=f"{BYTE_VALUES + 1} or more: BOS and the bytes")
    library = _library()
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = library(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[OWN_BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    inner.train_from_iterator(iter(texts), trainer)
    return bytes(inner.to_str(pretty=True).encode())


def size_of(content: bytes) -> int:
    """Tokens of a tokenizer.json made by `trained`."""
    return len(json.loads(content)["model"]["vocab"])
