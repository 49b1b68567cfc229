"""The directory of a run: where it is, who may write it, and what happens to an attempt that did not finish.

A claim is an exclusive lock (flock) on a file that names its holder. It ends with the process however that ends. Where
a shared file system does not show the locks of other machines, the file's time of change tells: the holder renews it.

Without torch: what follows and counts runs needs none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bayeslaw import journal
from bayeslaw.errors import BayeslawError, JournalError
from bayeslaw.files import written_whole

LOCK = "lock"
HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 150.0
"""A holder on another machine that has not renewed its claim for so long is dead."""


class BusyError(BayeslawError):
    """Another process is training the run."""


@dataclass(frozen=True)
class Holder:
    """Who holds a claim.

    Parameters
    ----------
    host : str
    pid : int
    job : str, optional
        Number of the cluster's job that the process belongs to.
    """

    host: str
    pid: int
    job: str | None = None

    @property
    def here(self) -> bool:
        """On this machine."""
        return self.host == socket.gethostname()

    @property
    def running(self) -> bool:
        """Whether there is a process of its number here, which has not died."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # somebody else's
            return True
        with contextlib.suppress(OSError):  # killed, and nobody has asked yet what became of it
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
        return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" (job {self.job})" if self.job else "")


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


def damage(run_dir: Path) -> str | None:
    """What is wrong with the journal in the directory; None where there is none, or nothing."""
    path = run_dir / journal.FILE_NAME
    try:
        if path.exists():
            journal.read_journal(path)
    except JournalError as error:
        return error.what
    return None


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


def set_aside(run_dir: Path, *names: str) -> list[str]:
    """Keep what an earlier attempt left under these names as ``<name>.<n>``; the new names."""
    number = next(n for n in itertools.count(1) if not any((run_dir / f"{name}.{n}").exists() for name in names))
    there = [name for name in names if (run_dir / name).exists()]
    for name in there:
        (run_dir / name).rename(run_dir / f"{name}.{number}")
    return [f"{name}.{number}" for name in there]


def begin_from(damaged: Path, path: Path, config_hash: str) -> bool:
    """Begin a journal with the whole part of a damaged one of the same config; whether there is such a part."""
    try:
        if journal.read_start(damaged)["config_hash"] != config_hash:
            return False
        with written_whole(path, error=JournalError) as partial:
            partial.write_bytes(journal.whole_part(damaged))
    except (JournalError, OSError):
        return False
    return True


def earlier_attempts(run_dir: Path) -> list[Path]:
    """Journals that `set_aside` kept, in no special order."""
    return list(run_dir.glob(f"{journal.FILE_NAME}.*"))


def reason(error: BaseException) -> str:
    """Why an attempt ended: our own errors by their message alone, others with their class."""
    return str(error) if isinstance(error, BayeslawError) else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def claimed(run_dir: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the directory for this process; the claim ends with the process however that ends.

    Raises
    ------
    JournalError
        The directory cannot be made.
    BusyError
        Another process is training the run.
    """
    path = run_dir / name
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(path, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise JournalError(
            f"cannot write the run directory {run_dir}: {error.strerror}",
            do="choose another output folder with --out, or make this one writable",
        ) from error
    with lock:
        busy = not _taken(lock.fileno(), fcntl.LOCK_EX) or _renewed_elsewhere(path)
        if busy:
            by = holder(run_dir, name)
            raise BusyError(
                f"another process is training in {run_dir}" + (f": {by}" if by else ""),
                do="wait for it, or choose another --out",
            )
        released = threading.Event()
        renewing = threading.Thread(target=_renew, args=(path, released), daemon=True)
        with contextlib.suppress(OSError):  # on a full disk the lock alone holds
            lock.truncate(0)
            json.dump(dataclasses.asdict(Holder(socket.gethostname(), os.getpid(), job_number())), lock)
            lock.flush()
        renewing.start()
        try:
            yield
        finally:
            released.set()
            renewing.join()
            with contextlib.suppress(OSError):
                lock.truncate(0)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock on a file of this name; wait for it where another process has it.

    In a folder that cannot be written there is no lock, and nobody else who would want it.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock = held.enter_context(open(path, "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def holder(run_dir: Path, name: str = LOCK) -> Holder | None:
    """Who holds the directory, or held it when it was killed; None where nobody does, or the file does not say."""
    try:
        return Holder(**json.loads((run_dir / name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def alive(run_dir: Path, name: str = LOCK) -> bool:
    """Whether a process holds the directory."""
    path = run_dir / name
    try:
        with open(path, "rb") as lock:
            return not _taken(lock.fileno(), fcntl.LOCK_SH) or _renewed_elsewhere(path)
    except OSError:
        return False


def last_sign(run_dir: Path, name: str = LOCK) -> float | None:
    """When the holder last renewed its claim, in seconds since 1970; None where there never was one."""
    try:
        return (run_dir / name).stat().st_mtime
    except OSError:
        return None


def _taken(descriptor: int, kind: int) -> bool:
    """Try for the lock; somebody who only looks, in `alive`, has it for a moment."""
    for attempt in range(5):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError:
            if kind == fcntl.LOCK_SH:
                return False
            time.sleep(0.02 * attempt)
        else:
            return True
    return False


def _renewed_elsewhere(path: Path) -> bool:
    """Whether a process of another machine, whose locks are not seen here, has renewed its claim lately.

    One of this process's own job is none: the job was requeued, and came back elsewhere.
    """
    by = holder(path.parent, path.name)
    if by is None or by.here or (by.job is not None and by.job == job_number()):
        return False
    return time.time() - path.stat().st_mtime < STALE_SECONDS


def _renew(path: Path, released: threading.Event) -> None:
    while not released.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)


def job_number() -> str | None:
    """The number of the Slurm job that this process belongs to, as squeue and scancel call it."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")
