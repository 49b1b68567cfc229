"""Whether MLflow has of a run what its journal says, bit for bit."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslaw import schema, store
from bayeslaw.errors import BayeslawError
from bayeslaw.evaluations import METRIC, evaluations_of
from bayeslaw.journal import Journal, read_journal, require_journals
from trainer.delivery import CONFIG_ARTIFACT, CURVE_ARTIFACT, STATUS, curve_text, param_text
from trainer.entries import Entries
from trainer.experiments import milliseconds, runs_tagged
from trainer.rundir import reason

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Key = tuple[str, int, int, bytes]
"""A point: metric, step, milliseconds, the bits of its value."""


@dataclass(frozen=True)
class Verification:
    """What was found of one journal.

    Parameters
    ----------
    run_id : str
        Name of the run, empty when the journal could not be read.
    path : Path
        The journal.
    points : int
        Points that MLflow must have.
    differences : tuple of str
        What is otherwise in MLflow; empty if all agrees.
    """

    run_id: str
    path: Path
    points: int
    differences: tuple[str, ...]


def verify(
    folder: Path, *, tracking_uri: str | None = None, progress: Callable[[Verification], None] | None = None
) -> list[Verification]:
    """Compare every journal at and below a folder with its run in MLflow.

    Points, params, state, status, config and curve are compared, values by their bits. What MLflow cannot hold is taken
    as what it makes of it: the largest float for an infinity, 0 for -0.

    Parameters
    ----------
    folder : Path
    tracking_uri : str, optional
        See `bayeslaw.store.resolve_uri`.
    progress : callable, optional
        Told of every journal's result.

    Raises
    ------
    NoRunsError
        There is no journal.
    TrackingError
        The store cannot be used.
    """
    journals = require_journals(folder)
    client = store.connect(tracking_uri)
    from mlflow.exceptions import MlflowException

    results = []
    for path in journals:
        try:
            journal = read_journal(path)
            points, differences = _compared(client, journal)
            result = Verification(journal.run_id, path, points, tuple(differences))
        except (BayeslawError, MlflowException, KeyError, TypeError, ValueError) as error:
            result = Verification("", path, 0, (store.scrubbed(reason(error)),))
        results.append(result)
        if progress:
            progress(result)
    return results


def _compared(client: MlflowClient, journal: Journal) -> tuple[int, list[str]]:
    """The number of points that there must be, and all differences."""
    wanted = Counter(
        (point.name, point.step, point.when, _bits(point.value))
        for entry in Entries(journal.path).read()
        for point in entry.points
    )
    for each in evaluations_of(journal.path.parent):
        when, step = milliseconds(each.time), each.checkpoint["step"]
        wanted.update((name, step, when, _bits(value)) for name, value in each.metrics.items())
    experiment = client.get_experiment_by_name(journal.start["study"])
    same = (
        runs_tagged(client, experiment.experiment_id, schema.TAG_CONFIG_HASH, journal.start["config_hash"])
        if experiment
        else []
    )
    began = milliseconds(journal.start["time"])
    found = [
        run for run in same if run.info.start_time == began and run.data.tags.get(schema.TAG_RUN_ID) == journal.run_id
    ]
    if len(found) != 1:
        return wanted.total(), [f"{len(found)} runs in MLflow, not one"]
    (run,) = found
    there = Counter(_points(client, run))
    missing, extra = wanted - there, there - wanted
    # What was evaluated again stays in MLflow beside what took its place.
    extra = Counter({point: count for point, count in extra.items() if not point[0].startswith(METRIC)})
    differences = [
        f"{points.total()} points {what}, such as {_shown(next(iter(points)))}"
        for what, points in (("missing", missing), ("too many", extra))
        if points
    ]
    return wanted.total(), differences + list(_other_differences(client, run, journal))


def _points(client: MlflowClient, run: Run) -> Iterator[Key]:
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            yield name, point.step, point.timestamp, _bits(point.value)


def _other_differences(client: MlflowClient, run: Run, journal: Journal) -> Iterator[str]:
    row = journal.start["row"]
    for name, column in schema.COLUMNS.items():
        if name in row and name != "state" and not column.result and run.data.params.get(name) != param_text(row[name]):
            yield f"param {name} is {run.data.params.get(name)!r}, not {param_text(row[name])!r}"
    state = run.data.tags.get(schema.TAG_STATE, "")
    allowed = {journal.state} if journal.end else {"running", "killed"}
    if state not in allowed or run.info.status != STATUS[state]:
        yield f"state {state!r} with status {run.info.status}, not {' or '.join(sorted(allowed))}"
    if _artifact(client, run, CONFIG_ARTIFACT, json.loads) != journal.start["config"]:
        yield f"{CONFIG_ARTIFACT} is missing or another"
    if journal.end and _artifact(client, run, CURVE_ARTIFACT, str) != curve_text(journal):
        yield f"{CURVE_ARTIFACT} is missing or another"


def _artifact(client: MlflowClient, run: Run, name: str, read: Callable[[str], Any]) -> Any:
    """The content of an artifact, None where there is none that can be read."""
    import tempfile

    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as folder:
        try:
            return read(Path(client.download_artifacts(run.info.run_id, name, folder)).read_text(encoding="utf-8"))
        except (MlflowException, OSError, ValueError):
            return None


def _bits(value: float) -> bytes:
    if math.isnan(value):
        value = math.nan
    elif math.isinf(value):
        value = math.copysign(sys.float_info.max, value)
    return struct.pack("<d", value + 0.0)


def _shown(point: Key) -> str:
    name, step, when, bits = point
    return f"{name} = {struct.unpack('<d', bits)[0]!r} at step {step}, {when} ms"
