"""Reader of MLflow experiments: plain rows -> one row a run of the run table."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayeslaw import cache
from bayeslaw.errors import NoRunsError, RunTableError, TrackingError
from bayeslaw.found import Entry, RawRuns, settled
from bayeslaw.mlflow_rows import PAGE, PARENT_TAG, MlflowRow
from bayeslaw.schema import TAG_CONFIG_HASH, TAG_HEARTBEAT, TAG_RUN_ID, TAG_STATE, TAG_SWEEP
from bayeslaw.store import connect, public_uri, resolve_uri, scrubbed

if TYPE_CHECKING:
    from mlflow import MlflowClient

MLFLOW_PREFIX = "mlflow:"

SILENT_HOURS = 1.0
"""A run that says it runs, and was not heard of for so long, is called by name."""

_STATES = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
    "RUNNING": "running",
    "SCHEDULED": "running",
}


def read_mlflow(experiment: str, *, tracking_uri: str | None = None, cached: bool = True) -> RawRuns:
    """Read all runs of an MLflow experiment: params as texts, result columns from the metrics of their name.

    Parents of nested runs are left out. Of several runs with one run_id, or one config hash, the newest finished one
    is taken.

    Parameters
    ----------
    experiment : str
    tracking_uri : str, optional
        See `bayeslaw.store.resolve_uri`.
    cached : bool
        Fetch only what has changed since the last query, see `bayeslaw.cache`.

    Raises
    ------
    TrackingError
        The store cannot be reached or refuses the request.
    NoRunsError
        There is no such experiment, or it has no runs.
    RunTableError
        No finished run has the metrics that the law needs.
    """
    return runs_of(read_rows(experiment, tracking_uri=tracking_uri, cached=cached))


def runs_of(found: Experiment) -> RawRuns:
    """Runs of the run table from an experiment as it was found; errors as for `read_mlflow`."""
    rows = without_parents(found.rows)
    if not rows:
        raise NoRunsError(f"the experiment {found.name!r} in {found.place} has no runs")
    if missing := _missing_metrics(rows):
        with found.refusals():
            page = found.client.search_runs([found.experiment_id], max_results=PAGE)  # the newest runs
        metrics = sorted({name for run in page for name in run.data.metrics})
        raise RunTableError(
            f"no run of {MLFLOW_PREFIX}{found.name} has the metric {' or '.join(missing)}; the metrics found are: "
            + (", ".join(metrics) or "none"),
            allowed="metrics tokens and loss (final values), params as named in the run table",
            do="log these, or write the runs as a CSV file with the columns of the run table",
        )
    silent = _silent(rows, f"{MLFLOW_PREFIX}{found.name}")
    return settled(map(_entry, rows), notes=(*found.notes, *silent))


@dataclass(frozen=True)
class Experiment:
    """An MLflow experiment as it was found.

    Parameters
    ----------
    client : MlflowClient
    place : str
        What to call the store in messages.
    name, experiment_id : str
    rows : tuple of MlflowRow
        All its runs, parents among them.
    notes : tuple of str
        What to tell about the cache.
    """

    client: MlflowClient
    place: str
    name: str
    experiment_id: str
    rows: tuple[MlflowRow, ...]
    notes: tuple[str, ...]

    def refusals(self) -> contextlib.AbstractContextManager[None]:
        """What the store refuses in the block becomes a `TrackingError`."""
        return _refusals(self.place, self.name)


def read_rows(experiment: str, *, tracking_uri: str | None = None, cached: bool = True) -> Experiment:
    """Read an MLflow experiment as it is; parameters and errors as for `read_mlflow`."""
    uri = resolve_uri(tracking_uri)
    client = connect(uri)
    place = f"the MLflow store {public_uri(uri)}"
    with _refusals(place, experiment):
        found = _find(client, experiment, place)
        rows: Iterable[MlflowRow]
        notes: tuple[str, ...] = ()
        if cached:
            rows, notes = cache.cached_rows(client, uri, found)
        else:
            rows = cache.all_rows(client, found.experiment_id).values()
    return Experiment(client, place, experiment, found.experiment_id, tuple(rows), notes)


@contextlib.contextmanager
def _refusals(place: str, experiment: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise TrackingError(f"{place} refuses to list the runs of {experiment!r}: {scrubbed(str(error))}") from error


def raw_runs(rows: Sequence[MlflowRow]) -> RawRuns:
    """Runs of the run table from rows of an experiment that were exported."""
    return settled(map(_entry, without_parents(rows)))


def without_parents(rows: Sequence[MlflowRow]) -> list[MlflowRow]:
    """The rows without those that only hold other runs together: sweeps, and parents of nested runs."""
    parents = {row.tags.get(PARENT_TAG) for row in rows}
    return [
        row for row in rows if row.mlflow_id not in parents and (TAG_SWEEP not in row.tags or TAG_RUN_ID in row.tags)
    ]


def _find(client: MlflowClient, name: str, place: str) -> Any:
    """MLflow's experiment of that name; where there is none, the names that there are, the nearest first."""
    known = client.get_experiment_by_name(name)
    if known is not None and known.lifecycle_stage == "active":
        return known
    names: list[str] = []
    token = None
    while True:
        page = client.search_experiments(max_results=PAGE, page_token=token)
        names += [found.name for found in page]
        token = page.token
        if not token:
            break
    near = difflib.get_close_matches(name, names, n=len(names) or 1, cutoff=0.5)
    listed = near + [other for other in names if other not in near]
    raise NoRunsError(f"no experiment {name!r} in {place}", allowed=", ".join(listed) or "none, the store is empty")


def _entry(row: MlflowRow) -> Entry:
    columns = {
        **{name: text for name, text in row.params.items() if text != "None"},  # MLflow's text of a missing value
        **row.metrics,
        "run_id": row.tags.get(TAG_RUN_ID, row.mlflow_id),
        "state": row.tags.get(TAG_STATE, _STATES.get(row.status, "failed")),
    }
    return Entry(columns, row.mlflow_id, row.end or row.start or 0, row.tags.get(TAG_CONFIG_HASH))


def _missing_metrics(rows: Sequence[MlflowRow]) -> list[str]:
    """The metrics that the law needs and no run has, where one has finished."""
    if not any(_entry(row).row["state"] == "finished" for row in rows):
        return []
    return [name for name in ("tokens", "loss") if not any(name in row.metrics for row in rows)]


def _silent(rows: Sequence[MlflowRow], source: str) -> tuple[str, ...]:
    """A note on the runs that say they run and have long been silent."""
    since = (time.time() - 3600 * SILENT_HOURS) * 1000
    silent = [
        row.tags.get(TAG_RUN_ID, row.mlflow_id)
        for row in rows
        if row.tags.get(TAG_STATE, _STATES.get(row.status)) == "running" and (row.time(TAG_HEARTBEAT) or since) < since
    ]
    if not silent:
        return ()
    more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
    return (
        f"{len(silent)} runs say that they are running and were not heard of for {SILENT_HOURS:g} hour or more "
        f"({', '.join(silent[:3])}{more}): if they are dead, `bayeslaw runs close {source}` says so in MLflow",
    )
