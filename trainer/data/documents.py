"""Documents of a source, one after another: text files, JSON lines, Parquet, data sets of the hub.

A source is never in memory as a whole; a document is. Files ending in .gz, .zst, .bz2 or .lz4 are decompressed as they
are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayeslaw.errors import DataError, UsageError
from trainer.checks import nearest, some
from trainer.data.corpora import COMPRESSED, JSON_LINES, PARQUET, STDLIB, hidden, stdlib_sources

HUB = "hf:"
ALLOWED = (
    f"{STDLIB}; the path of a text file, of JSON lines (.jsonl), of a Parquet file or of a folder of them; "
    f"or {HUB}NAME[/CONFIG][@REVISION], a data set of the hub"
)
BLOCK = 2**20
"""Characters of a text file read at a time."""


@dataclass(frozen=True)
class Documents:
    """The documents of a source, in the same order each time.

    Parameters
    ----------
    source : str
        ``stdlib``, a path, or ``hf:NAME[/CONFIG][@REVISION]``: the split ``train`` of a data set of the hub, streamed.
        Hidden files of a folder are left out, the others sorted by path.
    text_field : str
        The field of JSON lines, or column, that holds the text. A null is an empty document.
    separator : str, optional
        What stands between documents within a text file; without it each text file is a document.

    Raises
    ------
    UsageError
        There is no such source, or it has no such field.
    DataError
        While documents are read: a file is damaged, not UTF-8, or holds what is no text.
    """

    source: str
    text_field: str = "text"
    separator: str | None = None

    def __post_init__(self) -> None:
        if self.separator == "":
            raise UsageError("an empty separator", allowed="the text between documents, such as '<|endoftext|>'")
        if self.source.startswith(HUB) or self.source == STDLIB:
            return
        path = Path(self.source)
        if not self.source or not path.exists():
            raise UsageError(
                f"source {self.source!r}", allowed=ALLOWED, do=nearest(self.source, [STDLIB]) or "check the path"
            )
        if not self._files():
            raise UsageError(f"source {self.source!r} holds no file", allowed=ALLOWED)

    def __iter__(self) -> Iterator[str]:
        if self.source.startswith(HUB):
            yield from _of_hub(self.source, self.text_field)
            return
        for path in self._files():
            yield from self._of_file(path)

    @property
    def name(self) -> str:
        """What the source is called in records: nothing of where it lies."""
        return self.source if self.source.startswith(HUB) or self.source == STDLIB else Path(self.source).resolve().name

    def _files(self) -> list[Path]:
        if self.source == STDLIB:
            return stdlib_sources()
        path = Path(self.source)
        if not path.is_dir():
            return [path]
        return sorted(file for file in path.rglob("*") if file.is_file() and not hidden(file.relative_to(path)))

    def _of_file(self, path: Path) -> Iterator[str]:
        kind = path.name.lower()
        kind = kind.removesuffix(path.suffix.lower()) if kind.endswith(COMPRESSED) else kind
        if kind.endswith(PARQUET):
            return _of_parquet(path, self.text_field)
        if kind.endswith(JSON_LINES):
            return _of_lines(path, self.text_field)
        return _of_text(path, self.separator)


def _opened(path: Path) -> Any:
    """A file of bytes, decompressed as its name says."""
    import pyarrow as pa

    try:
        return pa.input_stream(str(path), compression="detect")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", do="name another source") from error


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, a block at a time."""
    import pyarrow as pa

    with _opened(path) as file:
        while True:
            try:
                block = file.read(BLOCK)
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{path} is damaged: {error}", do="get the file again, or leave it out") from error
            if not block:
                return
            yield bytes(block)


def _decoded(content: bytes, path: Path, begin: int = 0) -> str:
    """The text of bytes that begin at an offset of a file."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8: byte {begin + error.start}",
            allowed="text in UTF-8",
            do="convert it, or leave it out",
        ) from error


def _of_text(path: Path, separator: str | None) -> Iterator[str]:
    mark = separator.encode("utf-8", "surrogateescape") if separator is not None else None
    begin, rest = 0, bytearray()
    for block in _blocks(path):
        if b"\0" in block:
            raise DataError(
                f"{path} is a binary file: it holds zero bytes",
                allowed="text files, .jsonl, .parquet",
                do="leave it out",
            )
        searched = max(0, len(rest) - len(mark or b"") + 1)
        rest += block
        while mark is not None and (end := rest.find(mark, searched)) >= 0:
            yield _decoded(bytes(rest[:end]), path, begin)
            del rest[: end + len(mark)]
            begin, searched = begin + end + len(mark), 0
    yield _decoded(bytes(rest), path, begin)


def _of_lines(path: Path, field: str) -> Iterator[str]:
    rest, number = b"", 0
    for block in _blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield _of_line(line, f"{path}:{number}", field)
    if rest.strip():
        yield _of_line(rest, f"{path}:{number + 1}", field)


def _of_line(line: bytes, place: str, field: str) -> str:
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8: byte {error.start} of the line", allowed="text in UTF-8") from error
    except ValueError as error:
        raise DataError(f"{place} is no JSON: {error}", allowed="one JSON object a line", do="mend the line") from error
    except RecursionError as error:
        raise DataError(f"{place} is nested too deep", allowed="one JSON object a line", do="mend the line") from error
    if not isinstance(content, dict):
        raise DataError(f"{place} holds {_shown(content)}", allowed=f"a JSON object with the field {field}")
    if field not in content:
        raise _without(field, content, place)
    return _checked(content[field], place, field)


def _of_parquet(path: Path, field: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise _without(field, names, str(path))
            kind = file.schema_arrow.field(field).type
            text = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
                raise UsageError(f"{path}: the column {field} is {kind}", allowed="a column of text")
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield _checked(value, f"{path}: row {row}", field)
                    row += 1
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is no whole Parquet file (after row {row}): {error}", do="get the file again, or leave it out"
        ) from error


def _of_hub(source: str, field: str) -> Iterator[str]:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(
            f"{source}: the package datasets is not installed",
            do="pip install 'bayeslaw[data]', in a checkout '.[data]'",
        ) from error
    name, config, revision = hub_name(source)
    rows: Callable[[], Any] = lambda: datasets.load_dataset(  # noqa: E731
        name, config, split="train", revision=revision, streaming=True
    )
    number = 0
    try:
        for number, row in enumerate(rows()):
            if field not in row:
                raise _without(field, row, f"{source}: row {number}")
            yield _checked(row[field], f"{source}: row {number}", field)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, ConnectionError) or "Offline" in type(error).__name__:
            raise DataError(
                f"{source}: the hub cannot be reached",
                do=f"download it on a machine that can (hf download {name} --repo-type dataset --local-dir DIR), "
                "and name its folder or files as the source",
            ) from error
        raise DataError(
            f"{source}: cannot be read (after row {number}): {error}",
            allowed=f"{HUB}NAME[/CONFIG][@REVISION], a data set with the split train",
        ) from error


def hub_name(source: str) -> tuple[str, str | None, str | None]:
    """Name, config and revision of ``hf:OWNER/NAME[/CONFIG][@REVISION]``; a local folder is a name as it is.

    Raises
    ------
    UsageError
        No name, or more parts than that.
    """
    rest = source.removeprefix(HUB)
    if _is_local(source):
        return rest, None, None
    match = re.fullmatch(r"([^/@]+(?:/[^/@]+)?)(?:/([^/@]+))?(?:@(.+))?", rest)
    if not match:
        raise UsageError(f"source {source!r}", allowed=f"{HUB}OWNER/NAME[/CONFIG][@REVISION]")
    return match[1], match[2], match[3]


def _is_local(source: str) -> bool:
    """Whether what is named as a data set of the hub is a folder here, which the hub's client reads as well."""
    rest = source.removeprefix(HUB)
    return rest != "" and Path(rest).is_dir()


def pinned(source: str) -> str:
    """The source with the commit that a data set of the hub is at; as it is where there is none or it is not told."""
    if not source.startswith(HUB) or _is_local(source):
        return source
    name, config, revision = hub_name(source)
    try:
        from huggingface_hub import HfApi

        commit = HfApi().dataset_info(name, revision=revision).sha
    except Exception:  # whatever is wrong with the hub, reading the documents says it
        return source
    return f"{HUB}{name}{'/' + config if config else ''}{'@' + commit if commit else ''}"


def _checked(value: object, place: str, field: str) -> str:
    """A document that is a field's value; ``place`` is FILE:LINE or the like."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{place}: {field} is {_shown(value)}", allowed="a text", do="name another --text-field")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: {field} holds half of a surrogate pair", allowed="Unicode text", do="mend it, or leave it out"
        ) from error
    return value


def _without(field: str, there: Any, place: str) -> UsageError:
    names = [str(name) for name in there]
    return UsageError(
        f"{place} has no {field}",
        allowed=f"--text-field {some(names, 8) or '(it has none)'}",
        do=nearest(field, names) or "name the field that holds the text",
    )


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
