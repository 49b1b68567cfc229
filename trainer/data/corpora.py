"""Corpora by name: text whose tokens are its bytes, or packed shards; each with its held-out part.

Of a text, a token is a byte. Files are joined in the order of their relative paths, a zero byte before each (text holds
none), so that a document's start is marked.
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

from bayeslaw.errors import DataError, UsageError
from trainer.data.format import is_packed, read_metas, require_apart
from trainer.data.rows import Rows, mapped
from trainer.data.shards import shards
from trainer.sections import BYTE_VALUES

STDLIB = "stdlib"
FINEWEB_EDU = "KristianS7/prepacked-fineweb-edu-llama2-32K-T2048"
HUB_CORPORA = (FINEWEB_EDU,)
"""Packed data sets of the Hugging Face hub by name: runs on them can be planned wherever the data are."""

HERE = f"{STDLIB}, or the path of a text file, of a folder of text files or of a folder of packed shards"
ALLOWED = f"{HERE}; or, of the hub, {', '.join(HUB_CORPORA)}"

COMPRESSED = (".gz", ".zst", ".bz2", ".lz4")
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
"""Endings of files of documents that are packed before they are a corpus."""

HELD_OUT_OF = 20
"""One file in so many (by the hash of its relative path), or that part of a single file's end, is held out."""

_NOT_SOURCES = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "ensurepip"}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text.

    Parameters
    ----------
    name : str
        The spec it was loaded by.
    train, validation : array of uint8, or Rows
        Tokens, or packed rows of them; no file or document is in both.
    digest : str
        First 16 hex digits of the SHA-256 over both parts.
    files : int
        Number of files or shards.
    """

    name: str
    train: Bytes | Rows
    validation: Bytes | Rows
    digest: str
    files: int

    @property
    def vocab_size(self) -> int:
        """Every token is below it."""
        return self.train.vocab_size if isinstance(self.train, Rows) else BYTE_VALUES

    @property
    def seq_len(self) -> int | None:
        """T that the rows were packed for; a text can be cut to any."""
        return self.train.seq_len if isinstance(self.train, Rows) else None


def load_corpus(spec: str) -> Corpus:
    """The corpus called ``spec``, read once a process.

    Parameters
    ----------
    spec : str
        ``stdlib``, the Python standard library's own sources without its test packages; or a text file; or a
        folder of text files (hidden files and folders left out); or a folder of packed shards, see
        `trainer.data.format`; or one of `HUB_CORPORA`, downloaded into the cache of the hub's own client.

    Raises
    ------
    UsageError
        There is no such corpus, it is empty, not on this machine and not to be had, or a file of it is no text.
    DataError
        Packed shards are damaged, foreign or incomplete.
    """
    return _load(spec, str(Path(spec).resolve()))


@functools.cache
def _load(spec: str, _place: str) -> Corpus:
    """Load and keep; ``_place`` tells equal relative paths in different working directories apart."""
    if spec == STDLIB:
        return _split_by_file(spec, Path(sysconfig.get_path("stdlib")), stdlib_sources())
    path = _hub_folder(spec) if spec in HUB_CORPORA else Path(spec)
    if is_packed(path):
        return _packed(spec, path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not hidden(file.relative_to(path)))
        return _split_by_file(spec, path, files)
    if path.is_file():
        if path.name.lower().endswith((*COMPRESSED, *JSON_LINES, PARQUET)):
            raise UsageError(
                f"corpus {spec!r} is no text file by its name: its bytes are not those of its documents",
                allowed=ALLOWED,
                do=f"pack it with `bayeslaw data pack {spec} --tokenizer bytes --seq-len T --out DIR` (or another "
                "--tokenizer), and train on DIR",
            )
        content = _read_text(path, otherwise="name another --corpus")
        cut = len(content) - len(content) // HELD_OUT_OF
        return _corpus(spec, content[:cut], content[cut:], files=1)
    if (unfinished := path.with_name(f".{path.name}.packing")).is_dir():
        raise UsageError(
            f"corpus {spec!r} is not packed to its end: {unfinished} is what there is of it",
            do="wait for the packing, or give its command again if it was stopped",
        )
    close = difflib.get_close_matches(spec, [STDLIB, *HUB_CORPORA], n=1)
    raise UsageError(
        f"corpus {spec!r}", allowed=ALLOWED, do=f"the nearest is {close[0]}" if close else "check the path"
    )


def _packed(spec: str, folder: Path) -> Corpus:
    metas = read_metas(folder)
    train, validation = (mapped(meta) for meta in metas)
    require_apart(folder, train.digests, validation.digests)
    digest = hashlib.sha256(f"{train.digest}{validation.digest}".encode()).hexdigest()[:16]
    return Corpus(spec, train, validation, digest, len(train.maps) + len(validation.maps))


def on_this_machine(spec: str) -> bool:
    """Whether a corpus of the hub was downloaded to its end."""
    return _downloaded(spec) is not None


def _downloaded(spec: str) -> Path | None:
    """The folder of a hub corpus in the cache of the hub's client, None where it is not there or not whole."""
    try:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(spec, repo_type="dataset", local_files_only=True))
        return folder if all(shards(meta) for meta in read_metas(folder)) else None
    except (ImportError, OSError, DataError):
        return None


def _hub_folder(spec: str) -> Path:
    """The folder of a hub corpus; it is downloaded once, and the hub is not asked again."""
    if (there := _downloaded(spec)) is not None:
        return there
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(spec, repo_type="dataset", allow_patterns=["*.parquet", "meta_*.json"]))
    except ImportError:
        reason = "the hub's client is not installed (pip install 'bayeslaw[data]')"
    except Exception as error:  # of the client, of its transport, of the system
        reason = f"the hub did not give it ({type(error).__name__})"
    raise UsageError(
        f"corpus {spec!r}: {reason}, and the packed data set is not on this machine",
        allowed=HERE,
        do="name another --corpus, such as a copy of the folder DIR that a machine with a way to the hub makes by "
        f"`hf download {spec} --repo-type dataset --local-dir DIR`",
    )


def context_and_vocabulary(spec: object) -> dict[str, int]:
    """The seq_len and vocab_size that a config on packed shards has where none are given; empty for other corpora."""
    if not isinstance(spec, str) or spec in (STDLIB, *HUB_CORPORA) or not is_packed(Path(spec)):
        return {}
    meta, _ = read_metas(Path(spec))
    return {"seq_len": meta.seq_len, "vocab_size": max(BYTE_VALUES, meta.vocab_size)}


def require_fit(corpus: Corpus, *, seq_len: int, vocab_size: int) -> None:
    """Refuse a network that a corpus cannot be read by.

    Raises
    ------
    UsageError
        Its vocabulary is smaller than the corpus's, or its context is not that of the packed rows.
    """
    if vocab_size < corpus.vocab_size:
        raise UsageError(
            f"vocab_size = {vocab_size} with the corpus {corpus.name!r}, whose vocabulary is {corpus.vocab_size}",
            allowed=f"{corpus.vocab_size} or more",
            do=f"set --vocab-size {corpus.vocab_size}, or leave it out",
        )
    if corpus.seq_len is not None and seq_len != corpus.seq_len:
        raise UsageError(
            f"seq_len = {seq_len} with the corpus {corpus.name!r}, whose rows are packed for {corpus.seq_len}",
            allowed=str(corpus.seq_len),
            do=f"set --seq-len {corpus.seq_len} or leave it out, or pack the documents with --seq-len {seq_len}",
        )


def hidden(relative: Path) -> bool:
    """Whether a path within a folder is none of its texts: hidden, or Python's own cache."""
    return any(part.startswith(".") or part == "__pycache__" for part in relative.parts)


def stdlib_sources() -> list[Path]:
    """The sources of the Python standard library without its tests, sorted."""
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
