"""Tracking in MLflow: `Tracking` has journals followed while runs go on, `sync` delivers them afterwards.

The journal is written first, and both feed MLflow from it by the one `trainer.delivery.Delivery`: `Tracking` in a
process of its own, see `trainer.courier`. mlflow is imported only by what delivers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from bayeslaw import schema, store
from bayeslaw.errors import BayeslawError, NoRunsError, TrackingError, UsageError
from bayeslaw.journal import read_journal, require_journals
from trainer.delivery import Delivery, end_as_killed
from trainer.evaluation.delivery import deliver_evaluations
from trainer.experiments import SweepParent, milliseconds
from trainer.rundir import STALE_SECONDS, alive, holder, last_sign, reason

if TYPE_CHECKING:
    from mlflow import MlflowClient


def connect(tracking_uri: str | None) -> MlflowClient:
    """A client that prints nothing on stdout; a missing sqlite database is made.

    Raises
    ------
    TrackingError
        mlflow is not installed, or the store cannot be used.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise TrackingError("mlflow is not installed here", do="deliver from a machine that has it")
    return store.connect(tracking_uri, create=True)


class Tracking:
    """Has journals followed into MLflow; a store that fails is a warning, never an error, and costs no time.

    Closed by `close` or the end of a ``with`` block, which waits until everything is there, or the store is given up.
    Where the process dies, what follows its journals delivers what is left and says that the runs were killed.

    Parameters
    ----------
    tracking_uri : str, optional
        See `bayeslaw.store.resolve_uri`.
    """

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri = store.resolve_uri(tracking_uri)
        self._courier: subprocess.Popen[bytes] | None = None
        self._followed: list[Path] = []
        self._warned = False

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def follow(self, *journals: Path) -> None:
        """Have journals followed, from now on or from when they exist; those that are complete are delivered."""
        paths = [journal.absolute() for journal in journals]
        if self._running():
            self._write(*paths)
        self._followed += paths

    def flush(self) -> None:
        """Have delivered now what is in the journals; it is not waited for."""
        if self._followed and self._running():
            self._write()

    def close(self) -> None:
        """Wait until everything is in MLflow, or the store is given up, with a warning that says how to go on."""
        courier, self._courier = self._courier, None
        self._followed = []
        if courier is None or courier.stdin is None:
            return
        with contextlib.suppress(OSError):
            courier.stdin.close()
        if courier.wait() < 0:
            self._warn(f"what delivers was killed by signal {-courier.returncode}")

    def _running(self) -> bool:
        """Whether there is a courier; one that died is replaced."""
        if self._warned:
            return False
        if importlib.util.find_spec("mlflow") is None:
            self._warn("mlflow is not installed here")
            return False
        if self._courier is None or self._courier.poll() is not None:
            if self._courier is not None:
                print("what delivers to MLflow has died; another takes its place, nothing is lost", file=sys.stderr)
            try:
                self._courier = subprocess.Popen(
                    [sys.executable, "-P", "-m", "trainer.courier"],  # -P: no other `trainer` of the working folder
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env=os.environ | {store.URI_VARIABLE: self.uri},
                    start_new_session=True,  # Ctrl-C is for the training, whose end is still to be delivered
                )
            except OSError as error:
                self._warn(reason(error))
                return False
            self._write(*self._followed)
        return True

    def _write(self, *journals: Path) -> None:
        """Name journals to the courier, or none: deliver now, if it is not too busy to read that."""
        assert self._courier is not None
        assert self._courier.stdin is not None
        pipe = self._courier.stdin.fileno()
        with contextlib.suppress(OSError):  # it is dead, and replaced at the next call
            if journals or select.select([], [pipe], [], 0)[1]:
                self._courier.stdin.write(b"".join(os.fsencode(journal) + b"\n" for journal in journals) or b"\n")
                self._courier.stdin.flush()

    def _warn(self, why: str) -> None:
        self._warned = True
        print(
            f"warning: not delivered to MLflow ({store.public_uri(self.uri)}): {why}\n"
            "  training goes on, its journal has everything; deliver later with `bayeslaw runs sync DIR`",
            file=sys.stderr,
        )


def _is_dead(delivery: Delivery, run_dir: Path) -> bool:
    """Whether the process of a run without an end is gone, for all that can be seen from here.

    The folder may be a copy, whose run goes on elsewhere: then MLflow hears of it.
    """
    if alive(run_dir):
        return False
    by = holder(run_dir)
    if by and by.here and not by.running:
        return True
    return time.time() - delivery.heartbeat() > STALE_SECONDS


@dataclass(frozen=True)
class SyncResult:
    """What became of one journal in `sync`.

    Parameters
    ----------
    run_id : str
        Name of the run, empty when the journal could not be read.
    path : Path
        The journal.
    mlflow_run_id : str
        Its run in MLflow.
    state : str
        State by the journal; ``killed`` where it has no end and the process is gone.
    records, delivered : int
        Records of the journal, and how many of them and of the run's evaluations were sent.
    error : str, optional
        Why it was not delivered.
    """

    run_id: str
    path: Path
    mlflow_run_id: str
    state: str
    records: int
    delivered: int
    error: str | None = None


def sync(
    folder: Path, *, tracking_uri: str | None = None, progress: Callable[[SyncResult], None] | None = None
) -> list[SyncResult]:
    """Deliver every journal at and below a folder; doing it again changes nothing.

    Parameters
    ----------
    folder : Path
        A run directory, or any folder above some.
    tracking_uri : str, optional
        See `bayeslaw.store.resolve_uri`.
    progress : callable, optional
        Told of every journal's result.

    Returns
    -------
    One result a journal; a journal that is damaged or refused has its ``error``, and the others are delivered.

    Raises
    ------
    NoRunsError
        There is no journal.
    TrackingError
        The store cannot be used.
    """
    journals = require_journals(folder)
    uri = store.resolve_uri(tracking_uri)
    client = connect(uri)
    from mlflow.exceptions import MlflowException

    results = []
    for path in journals:
        delivery = Delivery(client, path, uri)
        try:
            delivered = delivery.push()
            journal = read_journal(path)
            state = journal.state
            if state == "running" and _is_dead(delivery, path.parent):
                delivery.mark_killed(last_sign(path.parent) or journal.records[-1]["time"])
                state = "killed"
            delivered += deliver_evaluations(client, delivery.mlflow_run_id, path.parent)
            result = SyncResult(journal.run_id, path, delivery.mlflow_run_id, state, len(journal.records), delivered)
        except (BayeslawError, MlflowException, KeyError, TypeError, ValueError) as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # MLflow takes Ctrl-C for a failure of its own
                raise error.__context__ from None
            result = SyncResult("", path, delivery.mlflow_run_id, "", 0, 0, store.scrubbed(reason(error)))
        results.append(result)
        if progress:
            progress(result)
    return results


def close_silent(experiment: str, *, minutes: float, tracking_uri: str | None = None) -> list[tuple[str, float]]:
    """Mark as killed the runs of an experiment that MLflow takes for running though they have long been silent.

    Parameters
    ----------
    experiment : str
        Name of the MLflow experiment.
    minutes : float
        How long a run must have been silent.
    tracking_uri : str, optional
        See `bayeslaw.store.resolve_uri`.

    Returns
    -------
    Name and minutes of silence of each run that was closed.

    Raises
    ------
    NoRunsError
        There is no such experiment.
    UsageError
        ``minutes`` is not above 0.
    TrackingError
        The store cannot be used.
    """
    if not minutes > 0:
        raise UsageError(f"minutes = {minutes}", allowed="a number above 0")
    client = store.connect(tracking_uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        raise NoRunsError(f"no experiment {experiment!r} in the MLflow store", do="name the --study of the runs")
    closed = []
    sweeps: dict[str, int] = {}
    for run in list(client.search_runs([found.experiment_id], "attributes.status = 'RUNNING'", max_results=50_000)):
        sweep = run.data.tags.get(schema.TAG_SWEEP)
        if sweep and schema.TAG_RUN_ID not in run.data.tags:
            sweeps[sweep] = run.info.start_time  # it stands for a sweep, and ends with the last of its runs
            continue
        heard = int(run.data.tags.get(schema.TAG_HEARTBEAT, run.info.start_time)) / 1000
        silent = (time.time() - heard) / 60
        if silent > minutes:
            end_as_killed(client, run.info.run_id, milliseconds(heard))
            closed.append((run.data.tags.get(schema.TAG_RUN_ID, run.info.run_name), silent))
    for sweep, began in sweeps.items():
        SweepParent(client, found.experiment_id, sweep, began=began).tell(milliseconds(time.time()))
    return closed
