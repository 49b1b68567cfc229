"""The directory of a run: where it is, who may write it, and what happens to an attempt that did not finish."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bayeslaw import journal
from bayeslaw.errors import BayeslawError, JournalError
from trainer import checkpoint


class BusyError(BayeslawError):
    """Another process is training the run."""


SETTLED = ("finished", "diverged")
"""States that training again with the same config would only repeat."""


def run_directory(out: Path, run_id: str) -> Path:
    """``out/runs/<run_id with "/" replaced by "-">``."""
    return out / "runs" / run_id.replace("/", "-")


def settled(run_dir: Path, config_hash: str) -> journal.Journal | None:
    """The journal of a run of this config that came to its end, None if there is no such run in the directory."""
    path = run_dir / journal.FILE_NAME
    if not path.is_file():
        return None
    try:
        there = journal.read_journal(path)
    except JournalError:
        return None
    return there if there.start["config_hash"] == config_hash and there.state in SETTLED else None


def settled_row(run_dir: Path, config_hash: str) -> dict[str, Any] | None:
    """The run-table row of a `settled` run, None if there is none."""
    there = settled(run_dir, config_hash)
    return there.row if there else None


def resumable(run_dir: Path, config_hash: str) -> checkpoint.Checkpoint | None:
    """The checkpoint that a run of this config goes on from, None if it must begin anew."""
    try:
        there = journal.read_journal(run_dir / journal.FILE_NAME)
    except JournalError:  # none, or too damaged to be gone on with
        return None
    if there.start["config_hash"] != config_hash:
        return None
    point = checkpoint.latest(run_dir / checkpoint.FOLDER)
    return point if point and point.facts.get("config_hash") == config_hash else None


def set_aside(run_dir: Path) -> None:
    """Keep the journal and the checkpoints of an earlier attempt under names that end in ``.<n>``, if there are any."""
    kept = (journal.FILE_NAME, checkpoint.FOLDER)
    number = next(n for n in itertools.count(1) if not any((run_dir / f"{name}.{n}").exists() for name in kept))
    for name in kept:
        if (run_dir / name).exists():
            (run_dir / name).rename(run_dir / f"{name}.{number}")


def earlier_attempts(run_dir: Path) -> list[Path]:
    """Journals that `set_aside` kept, in no special order."""
    return list(run_dir.glob(f"{journal.FILE_NAME}.*"))


def reason(error: BaseException) -> str:
    """Why an attempt ended: our own errors by their message alone, others with their class."""
    return str(error) if isinstance(error, BayeslawError) else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """Hold the directory for this process; the claim ends with the process however that ends.

    Raises
    ------
    JournalError
        The directory cannot be made.
    BusyError
        Another process is training the run.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(run_dir / "lock", "w")  # noqa: SIM115
    except OSError as error:
        raise JournalError(
            f"cannot write the run directory {run_dir}: {error.strerror}",
            do="choose another output folder with --out, or make this one writable",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(
                f"another process is training in {run_dir}", do="wait for it, or choose another --out"
            ) from error
        checkpoint.tidy(run_dir / checkpoint.FOLDER)  # a run killed after its last step saves none that would do it
        yield
