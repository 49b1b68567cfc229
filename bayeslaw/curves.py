"""Training curves of the runs of a source: one metric, step by step, from journals, MLflow or an imported study."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pandas as pd

from bayeslaw.errors import JournalError, RunTableError, UsageError
from bayeslaw.found import RawRuns
from bayeslaw.journal import read_journal
from bayeslaw.mlflow_runs import MLFLOW_PREFIX, Experiment, read_rows, runs_of
from bayeslaw.runs import table_of
from bayeslaw.schema import MLFLOW_INFINITY
from bayeslaw.sources import ROWS, read_folder

CURVES = "curves.csv"
"""In the folder of a study imported from MLflow: what `write_points` wrote."""

COLUMNS = ("mlflow_id", "metric", "step", "milliseconds", "value")

Point = tuple[int, int, float]
"""Step, time in milliseconds since 1970, value."""


def load_curves(
    source: str | Path,
    *,
    metric: str,
    where: str | None = None,
    tracking_uri: str | None = None,
    cache: bool = True,
) -> pd.DataFrame:
    """Load one training curve of each run that `bayeslaw.runs.load_runs` gives.

    Parameters
    ----------
    source : str or Path
        ``mlflow:EXPERIMENT``, a folder of run journals, or that of an imported study.
    metric : str
        Name of the metric, such as ``val/loss``, see ``METRIC_`` in `bayeslaw.schema`.
    where, tracking_uri, cache
        As for `bayeslaw.runs.load_runs`.

    Returns
    -------
    DataFrame, one row a run and step, runs in the order of the run table, steps ascending: ``run_id``, ``step``,
    ``time`` (seconds since 1970, whole milliseconds), ``value``. A step that was done twice, by a run that was resumed,
    has its last value.

    Raises
    ------
    UsageError
        The source holds no curves, or no run has the metric.
    NoRunsError, RunTableError, TrackingError
        As for `bayeslaw.runs.load_runs`.
    """
    name = str(source)
    if name.startswith(MLFLOW_PREFIX):
        found = read_rows(name.removeprefix(MLFLOW_PREFIX), tracking_uri=tracking_uri, cached=cache)
        curves = _from_mlflow(found, _places(runs_of(found), name, where), metric)
    else:
        folder = Path(source).expanduser()
        raw = read_folder(folder) if folder.is_dir() else None
        if raw is None or raw.frame.index.name != "run":  # a table
            raise UsageError(
                f"{name} holds no curves",
                allowed="mlflow:EXPERIMENT, a folder of run journals, or that of a study imported from either",
            )
        read = _from_file if (folder / ROWS).is_file() else _from_journals
        curves = read(folder, _places(raw, name, where), metric)
    frames = [_frame(run_id, points) for run_id, points in curves]
    table = pd.concat(frames, ignore_index=True)
    return table.astype({"run_id": "str", "step": "int64", "time": "float64", "value": "float64"})


def mlflow_points(found: Experiment, mlflow_id: str, metric: str) -> list[Point]:
    """All points of one metric of a run, as MLflow has them."""
    with found.refusals():
        return [
            (point.step, point.timestamp, point.value) for point in found.client.get_metric_history(mlflow_id, metric)
        ]


def write_points(path: Path, curves: Iterable[tuple[str, str, Iterable[Point]]]) -> None:
    """Write the points of (mlflow_id, metric), each value so that it is read back to the bit."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for mlflow_id, metric, points in curves:
            writer.writerows((mlflow_id, metric, step, when, repr(value)) for step, when, value in points)


def _places(raw: RawRuns, name: str, where: str | None) -> dict[str, str]:
    """Where each run of the table is in its source."""
    place = dict(zip(raw.frame["run_id"].astype(str), map(str, raw.frame.index), strict=True))
    return {run_id: place[run_id] for run_id in table_of(raw, name, where=where).runs["run_id"]}


Curves = list[tuple[str, list[Point]]]


def _from_mlflow(found: Experiment, places: Mapping[str, str], metric: str) -> Curves:
    curves = [(run_id, mlflow_points(found, place, metric)) for run_id, place in places.items()]
    if not any(points for _, points in curves):
        with found.refusals():
            some = list(places.values())[-10:]
            names = {name for place in some for name in found.client.get_run(place).data.metrics}
        _no_metric(metric, names)
    return curves


def _from_journals(folder: Path, places: Mapping[str, str], metric: str) -> Curves:
    curves = []
    names: set[str] = set()
    for run_id, place in places.items():
        try:
            records = list(read_journal(folder / place).metrics)
        except JournalError as error:  # it was whole a moment ago
            raise RunTableError(error.what, do="try again") from error
        names |= {name for record in records for name in record["values"]}
        points = [
            (record["step"], int(record["time"] * 1000), float(record["values"][metric]))
            for record in records
            if metric in record["values"]
        ]
        curves.append((run_id, points))
    if metric not in names:
        _no_metric(metric, names)
    return curves


def _from_file(folder: Path, places: Mapping[str, str], metric: str) -> Curves:
    by_place: dict[str, list[Point]] = {place: [] for place in places.values()}
    names: set[str] = set()
    for place, name, point in _read_points(folder / CURVES):
        if place in by_place:
            names.add(name)
            if name == metric:
                by_place[place].append(point)
    if metric not in names:
        _no_metric(metric, names)
    return [(run_id, by_place[place]) for run_id, place in places.items()]


def _read_points(path: Path) -> Iterator[tuple[str, str, Point]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            if tuple(next(reader, ())) != COLUMNS:
                raise ValueError("its header is another")
            for mlflow_id, metric, step, when, value in reader:
                yield mlflow_id, metric, (int(step), int(when), float(value))
    except (OSError, ValueError, csv.Error) as error:
        raise RunTableError(f"{path} is damaged: {error}", do="import the study again") from error


def _frame(run_id: str, points: Iterable[Point]) -> pd.DataFrame:
    """One row a step, its last point."""
    last = {step: (when, value) for step, when, value in sorted(points, key=lambda point: point[:2])}
    values = [math.copysign(math.inf, value) if abs(value) >= MLFLOW_INFINITY else value for _, value in last.values()]
    times = [when / 1000 for when, _ in last.values()]
    return pd.DataFrame({"run_id": run_id, "step": list(last), "time": times, "value": values})


def _no_metric(metric: str, names: Iterable[str]) -> NoReturn:
    raise UsageError(
        f"no run has the metric {metric!r}", allowed=", ".join(sorted(names)) or "none, there are no curves"
    )
