"""What every verb prints: results on stdout, notes on stderr, one JSON object under ``--json``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import bayeslaw
from bayeslaw.errors import BayeslawError, UsageError
from bayeslaw.files import require_writable
from bayeslaw.schema import SCHEMA_VERSION
from bayeslaw.texts import printable as printable  # verbs take it from here


def print_json(answer: Mapping[str, Any]) -> None:
    """Print one JSON object; ``schema_version`` leads and what is not finite becomes null."""
    print(json.dumps(plain({"schema_version": SCHEMA_VERSION, **answer}), indent=1, allow_nan=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain table: first column left, the others right."""
    for line in table_lines(header, rows):
        print(line)


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a plain table, its header first."""
    lines = [list(map(printable, header)), *(list(map(printable, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    out = []
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        out.append("  ".join(cells).rstrip())
    return out


def note(text: str) -> None:
    """Tell the person something on stderr."""
    print(text, file=sys.stderr)


def keep_input(out: Path | None, *inputs: str | Path) -> None:
    """Make sure that the output does not take the place of what is read.

    Raises
    ------
    UsageError
        ``out`` is one of the inputs.
    """
    if out is not None and out.exists() and any(Path(name).exists() and out.samefile(name) for name in inputs):
        raise UsageError(f"--out {out} is the file that is read", allowed="another file", do="choose another --out")


def require_page(out: Path | None, *inputs: str | Path) -> None:
    """Make sure before any work that a page can be written, and takes the place of no file but a page.

    Raises
    ------
    UsageError
        ``out`` is one of the inputs, has not the name of a page, or is a file that is no page.
    BayeslawError
        It cannot be written.
    """
    keep_input(out, *inputs)
    if out is None:
        return
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out}: the result is a page", allowed="a name such as page.html")
    if out.is_file() and out.stat().st_size and not _is_page(out):
        raise UsageError(
            f"--out {out} exists and is no HTML page", allowed="a new name, or that of an older page", do="rename it"
        )
    require_writable(out)


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html"))


def own(package: str) -> ModuleType:
    """Import one of our generically named packages and make sure that it is ours.

    Raises
    ------
    BayeslawError
        Another ``models``, ``trainer`` or ``reports`` comes first on the path, or torch is missing.
    """
    ours = Path(bayeslaw.__file__).parent.parent / package.split(".")[0]
    spec = importlib.util.find_spec(ours.name)
    found = Path(spec.origin).resolve().parent if spec and spec.origin else None
    if found != ours.resolve():
        raise BayeslawError(
            f"the package {ours.name!r} is found at {found}, which is not bayeslaw's",
            allowed=str(ours),
            do="run the `bayeslaw` command from another folder or take that one off PYTHONPATH",
        )
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise BayeslawError(
            "torch is not installed", do="pip install 'bayeslaw[train]', in a checkout '.[train]'"
        ) from error


def plain(value: Any) -> Any:
    """The value as JSON can hold it: plain numbers, lists and dicts, what is not finite as None.

    Bytes of a path or flag that are no text, which Python holds as lone surrogates, become U+FFFD.
    """
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # numpy scalars
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
