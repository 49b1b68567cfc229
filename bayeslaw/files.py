"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayeslaw.errors import BayeslawError


def require_writable(path: str | Path, *, error: type[BayeslawError] = BayeslawError) -> None:
    """Find out before a long computation that its result can be written to ``path``.

    Raises
    ------
    error
        The folder or file cannot be written.
    """
    with contextlib.suppress(_Tried), written_whole(path, error=error) as partial:
        partial.touch()
        raise _Tried


class _Tried(Exception):
    """Ends a trial before it replaces anything."""


@contextmanager
def written_whole(path: str | Path, *, error: type[BayeslawError] = BayeslawError) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; it takes the place of ``path`` when the block ends without an error.

    Missing folders are made. What was at ``path`` before stays until then, and a failed block leaves nothing behind.

    Raises
    ------
    error
        The folder or file cannot be written.
    """
    path = Path(path)
    if not path.name or path.is_dir():
        raise error(f"cannot write {path}: it is a folder", do="give the name of a file")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except OSError as problem:
        reason = "a part of its path is a file" if isinstance(problem, FileExistsError) else problem.strerror or problem
        raise error(f"cannot write {path}: {reason}", do="choose another --out") from problem
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
