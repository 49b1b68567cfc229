"""Tracking in MLflow: `Tracking` follows the runs of this process, `sync` imports journals afterwards.

The journal is written first and both are fed from it by the one `trainer.delivery.Delivery`. mlflow is imported only
when something is delivered.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bayeslaw import store
from bayeslaw.errors import BayeslawError, NoRunsError, TrackingError
from bayeslaw.journal import find_journals
from trainer.delivery import BATCH_POINTS, Delivery
from trainer.rundir import reason

if TYPE_CHECKING:
    from mlflow import MlflowClient

FLUSH_SECONDS = 10.0
RETRY_SECONDS = 60.0


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
    """Follows the runs of this process into MLflow; a store that fails is a warning, never an error.

    Parameters
    ----------
    tracking_uri : str, optional
        See `bayeslaw.store.resolve_uri`.
    """

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri = store.resolve_uri(tracking_uri)
        self.failed = False
        self._client: MlflowClient | None = None
        self._retry_at = 0.0

    def follow(self, journal: Path) -> Follower:
        """A follower of the journal of a run that is about to begin."""
        return Follower(self, journal)

    def deliver(self, journal: Path) -> None:
        """Deliver a whole journal that nobody follows any more."""
        Follower(self, journal).close()

    def attempt(self, action: Callable[[MlflowClient], object]) -> None:
        """Do ``action``; after a failure warn (the first time), and leave the store alone for a minute."""
        if time.monotonic() < self._retry_at:
            return
        try:
            self._client = self._client or connect(self.uri)
            action(self._client)
        except Exception as error:  # whatever a store or its libraries raise: the training is worth more
            if not self.failed:
                why = error.what if isinstance(error, BayeslawError) else reason(error)
                print(
                    f"warning: not delivered to MLflow ({store.public_uri(self.uri)}): {why}\n"
                    "  training goes on, its journal has everything; deliver later with `bayeslaw runs sync DIR`",
                    file=sys.stderr,
                )
            self.failed = True
            self._retry_at = time.monotonic() + RETRY_SECONDS


class Follower:
    """Delivers one journal at intervals while it grows."""

    def __init__(self, tracking: Tracking, journal: Path) -> None:
        self._tracking = tracking
        self._journal = journal
        self._delivery: Delivery | None = None
        self._points = 0
        self._last = time.monotonic()

    def recorded(self, points: int) -> None:
        """Take note of new points in the journal, and deliver when there are many or the last delivery is long ago."""
        self._points += points
        if self._points >= BATCH_POINTS or time.monotonic() - self._last >= FLUSH_SECONDS:
            self.close()

    def close(self) -> None:
        """Deliver what is left."""
        self._tracking.attempt(self._push)
        self._points = 0
        self._last = time.monotonic()

    def _push(self, client: MlflowClient) -> None:
        self._delivery = self._delivery or Delivery(client, self._journal, self._tracking.uri)
        self._delivery.push()


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
        State by the journal.
    records, delivered : int
        Records of the journal, and how many of them were new to MLflow.
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
    journals = find_journals(folder)
    if not journals:
        raise NoRunsError(f"no run journal at or below {folder}", do="point at the --out folder of a training or sweep")
    uri = store.resolve_uri(tracking_uri)
    client = connect(uri)
    from mlflow.exceptions import MlflowException

    results = []
    for path in journals:
        delivery = Delivery(client, path, uri)
        try:
            journal, delivered = delivery.push()
            result = SyncResult(
                journal.run_id, path, delivery.mlflow_run_id, journal.state, len(journal.records), delivered
            )
        except (BayeslawError, MlflowException, KeyError, TypeError, ValueError) as error:
            result = SyncResult("", path, delivery.mlflow_run_id, "", 0, 0, reason(error))
        results.append(result)
        if progress:
            progress(result)
    return results
