"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayeslaw.errors import BayeslawError


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
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except OSError as problem:
        raise error(f"cannot write {path}: {problem.strerror or problem}", do="choose another --out") from problem
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
