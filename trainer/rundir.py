"""The directory of a run: where it is, who may write it, and what happens to an attempt that did not finish."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
from collections.abc import Iterator
from pathlib import Path

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


def attempt(run_dir: Path, config_hash: str) -> journal.Journal | None:
    """The journal of a run of this config in the directory; None where there is none, or none that can be read."""
    try:
        there = journal.read_journal(run_dir / journal.FILE_NAME)
    except JournalError:
        return None
    return there if there.start["config_hash"] == config_hash else None


def trained_on(run_dir: Path) -> str | None:
    """The digest of the corpus by the journal in the directory; None where none can be read or says it."""
    try:
        config = journal.read_journal(run_dir / journal.FILE_NAME).start["config"]
    except JournalError:
        return None
    data = config.get("data")
    return data.get("corpus_digest") if isinstance(data, dict) else None


def settled(run_dir: Path, config_hash: str) -> journal.Journal | None:
    """The journal of a run of this config that came to its end, None if there is no such run in the directory."""
    there = attempt(run_dir, config_hash)
    return there if there and there.state in SETTLED else None


def resumable(run_dir: Path, config_hash: str) -> checkpoint.Checkpoint | None:
    """The checkpoint that a run of this config goes on from, None if it must begin anew."""
    point = checkpoint.latest(run_dir / checkpoint.FOLDER)
    return point if point and point.facts.get("config_hash") == config_hash else None


def set_aside(run_dir: Path, *names: str) -> list[str]:
    """Keep what an earlier attempt left under these names as ``<name>.<n>``; the new names."""
    number = next(n for n in itertools.count(1) if not any((run_dir / f"{name}.{n}").exists() for name in names))
    there = [name for name in names if (run_dir / name).exists()]
    for name in there:
        (run_dir / name).rename(run_dir / f"{name}.{number}")
    return [f"{name}.{number}" for name in there]


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
