"""Readers of run tables: shipped data sets, CSV, Parquet, MLflow experiments, journal folders.

Each gives the runs as found. What they must hold is checked in `bayeslaw.runs`, which is also the only importer.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bayeslaw import datasets
from bayeslaw.errors import JournalError, NoRunsError, RunTableError, TrackingError, UsageError
from bayeslaw.journal import FILE_NAME, find_journals, read_journal
from bayeslaw.schema import COLUMNS, MLFLOW_INFINITY, TAG_RUN_ID, TAG_STATE
from bayeslaw.store import connect, public_uri, resolve_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

MLFLOW_PREFIX = "mlflow:"
FILE_KINDS = (".csv", ".parquet")

_PAGE = 1000
_PARENT_TAG = "mlflow.parentRunId"
_MLFLOW_STATES = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
    "RUNNING": "running",
    "SCHEDULED": "running",
}
_OTHER_SOURCES = "a .csv or .parquet file, mlflow:EXPERIMENT, or a folder of run journals"


@dataclass(frozen=True)
class RawRuns:
    """Runs as a source holds them.

    Parameters
    ----------
    frame : DataFrame
        One row a run, columns as named in the source. The index labels the rows in messages and its name is what a
        label is called: line (of a file), row, or run.
    excluded : tuple of (run_id, reason)
        Runs already left out.
    """

    frame: pd.DataFrame
    excluded: tuple[tuple[str, str], ...] = ()


def read_source(source: str | Path, *, tracking_uri: str | None = None) -> RawRuns:
    """Read a source by what it is.

    Parameters
    ----------
    source : str or Path
        A shipped data set's name, a .csv or .parquet file, ``mlflow:EXPERIMENT``, or a folder that holds run journals
        at any depth.
    tracking_uri : str, optional
        The MLflow store, see `bayeslaw.store.resolve_uri`.

    Raises
    ------
    UsageError
        There is no such source.
    RunTableError, NoRunsError, TrackingError
        The source cannot be read, or holds no run.
    """
    if isinstance(source, str):
        if source in datasets.NAMES:
            return RawRuns(datasets.load_dataset(source))
        if source.startswith(MLFLOW_PREFIX):
            experiment = source.removeprefix(MLFLOW_PREFIX)
            if not experiment:
                raise UsageError(f"{source} names no experiment", allowed=f"{MLFLOW_PREFIX}EXPERIMENT")
            return read_mlflow(experiment, tracking_uri=tracking_uri)
    path = Path(source).expanduser()
    kind = path.suffix.lower()
    if str(source).strip() and path.is_dir():
        return read_journals(path)
    if path.is_file():
        if kind not in FILE_KINDS:
            raise UsageError(f"{source} is neither CSV nor Parquet by its name", allowed=_OTHER_SOURCES)
        return RawRuns(read_csv(path) if kind == ".csv" else read_parquet(path))
    if kind in FILE_KINDS:
        raise UsageError(f"there is no file {source}", do="check the path")
    near = difflib.get_close_matches(str(source), datasets.NAMES, n=1, cutoff=0.5)
    raise UsageError(
        f"unknown source {str(source)!r}" + (f", did you mean {near[0]}?" if near else ""),
        allowed=f"{', '.join(datasets.NAMES)}, or {_OTHER_SOURCES}",
    )


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file as text cells, None where a cell is empty; the index holds the file's line numbers.

    Raises
    ------
    RunTableError
        The file is empty, binary, not UTF-8, or its rows do not fit its header.
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    lines: list[int] = []
    rows: list[list[str | None]] = []
    header: list[str] = []
    try:
        for cells in reader:
            if not cells:
                continue
            if not header:
                header = [cell.strip() or f"column {number}" for number, cell in enumerate(cells, start=1)]
                if len(header) == 1 and any(sign in header[0] for sign in ";\t"):
                    raise RunTableError(f"{path}: no comma in the header {header[0]!r}", do="put commas between values")
                continue
            if len(cells) != len(header):
                raise RunTableError(
                    f"{path}, line {reader.line_num}: {len(cells)} values under {len(header)} columns",
                    do="give each row one value a column; a comma inside a value needs quotes around the value",
                )
            lines.append(reader.line_num)
            rows.append([cell.strip() or None for cell in cells])
    except csv.Error as error:
        raise RunTableError(f"{path}, line {reader.line_num}: not CSV ({error})") from error
    if not header:
        raise RunTableError(f"{path} is empty", do="write a header and one row a run")
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name="line", dtype="int64"), dtype=object)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file; the index counts its rows from 1.

    Raises
    ------
    RunTableError
        The file is empty or no Parquet file.
    """
    import pyarrow.parquet

    try:
        if path.stat().st_size == 0:
            raise RunTableError(f"{path} is empty")
        table = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise RunTableError(f"{path} is no readable Parquet file: {error}") from error
    frame = pd.DataFrame({number: column.to_pandas() for number, column in enumerate(table.itercolumns())})
    frame.columns = pd.Index(table.column_names)  # set afterwards: a name may come twice, which is refused later
    frame.index = pd.RangeIndex(1, len(frame) + 1, name="row")
    return frame


def read_mlflow(experiment: str, *, tracking_uri: str | None = None) -> RawRuns:
    """Read all runs of an MLflow experiment: params as texts, result columns from the metrics of their name.

    Parents of nested runs are left out. Of several runs with one run_id the newest finished one is taken.

    Raises
    ------
    TrackingError
        The store cannot be reached or refuses the request.
    NoRunsError
        There is no such experiment, or it has no runs.
    RunTableError
        No finished run has the metrics that the law needs.
    """
    client = connect(tracking_uri)
    from mlflow.exceptions import MlflowException

    place = f"the MLflow store {public_uri(resolve_uri(tracking_uri))}"
    try:
        found = _search(client, experiment, place)
    except (MlflowException, OSError) as error:
        raise TrackingError(f"{place} refuses to list the runs of {experiment!r}: {error}") from error
    parents = {run.data.tags.get(_PARENT_TAG) for run in found}
    runs = [run for run in found if run.info.run_id not in parents]
    if not runs:
        raise NoRunsError(f"the experiment {experiment!r} in {place} has no runs")
    entries = []
    for run in runs:
        results = {name: value for name, value in run.data.metrics.items() if _result(name)}
        # A result is never taken from a param: a param "loss" would name the loss function. "None" is a missing value.
        params = {name: text for name, text in run.data.params.items() if not _result(name) and text != "None"}
        names = {
            "run_id": run.data.tags.get(TAG_RUN_ID, run.info.run_id),
            "state": run.data.tags.get(TAG_STATE, _MLFLOW_STATES.get(run.info.status, "failed")),
        }
        age = run.info.end_time or run.info.start_time or 0
        entries.append(_Entry({**params, **results, **names}, run.info.run_id, age))
    metrics = {name for run in runs for name in run.data.metrics}
    missing = [name for name in ("tokens", "loss") if name not in metrics]
    if missing and any(entry.row["state"] == "finished" for entry in entries):
        raise RunTableError(
            f"no run of {MLFLOW_PREFIX}{experiment} has the metric {' or '.join(missing)}; the metrics found are: "
            + (", ".join(sorted(metrics)) or "none"),
            allowed="metrics tokens and loss (final values), params as named in the run table",
            do="log these, or write the runs as a CSV file with the columns of the run table",
        )
    return _settle(entries)


def read_journals(folder: Path) -> RawRuns:
    """Read all run journals at and below a folder.

    Journals that cannot be read are left out with the reason. Of several with one run_id the newest finished one is
    taken.

    Raises
    ------
    NoRunsError
        The folder holds no journal, or none that can be read.
    """
    paths = find_journals(folder)
    if not paths:
        raise NoRunsError(
            f"no {FILE_NAME} in or below {folder}", do="point at a folder that `bayeslaw train` or a sweep wrote"
        )
    entries = []
    unreadable = []
    for path in paths:
        place = str(path.parent)
        try:
            journal = read_journal(path)
            row = {**journal.row, "run_id": journal.run_id}
            age = float(next(r["time"] for r in reversed(journal.records) if r["event"] != "metrics"))
        except (JournalError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = error.what if isinstance(error, JournalError) else f"damaged journal ({error!r})"
            unreadable.append((place, reason))
        else:
            entries.append(_Entry(row, place, age))
    if not entries:
        raise NoRunsError(f"none of the {len(paths)} journals below {folder} can be read: {unreadable[0][1]}")
    return _settle(entries, unreadable)


@dataclass(frozen=True)
class _Entry:
    """One run found: its row, where it is, and when it ended (later is larger)."""

    row: dict[str, Any]
    place: str
    age: float


def _settle(entries: Iterable[_Entry], excluded: Iterable[tuple[str, str]] = ()) -> RawRuns:
    """One row a run_id; finished runs without a usable loss become diverged or are left out."""
    left_out = list(excluded)
    kept: dict[str, _Entry] = {}
    usable = []
    for entry in entries:
        row = entry.row
        if row["state"] == "finished" and not _finite(row.get("loss", 0.0)):
            row = {**row, "state": "diverged"}
        missing = [name for name in ("tokens", "loss") if row.get(name) is None]
        if row["state"] == "finished" and missing:
            left_out.append((str(row["run_id"]), f"finished without {' and '.join(missing)}"))
        else:
            usable.append(_Entry(row, entry.place, entry.age))
    for entry in sorted(usable, key=lambda entry: (entry.row["state"] == "finished", entry.age), reverse=True):
        run_id = str(entry.row["run_id"])
        if run_id in kept:
            left_out.append((run_id, f"{entry.row['state']} run at {entry.place}: {kept[run_id].place} has its run_id"))
        else:
            kept[run_id] = entry
    settled = sorted(kept.values(), key=lambda entry: entry.age)
    index = pd.Index([entry.place for entry in settled], name="run", dtype=object)
    frame = pd.DataFrame([entry.row for entry in settled], index=index, dtype=object)
    return RawRuns(frame, tuple(left_out))


def _search(client: MlflowClient, experiment: str, place: str) -> list[Any]:
    known = client.get_experiment_by_name(experiment)
    if known is None or known.lifecycle_stage != "active":
        names = [found.name for found in _pages(client.search_experiments)]
        near = difflib.get_close_matches(experiment, names, n=len(names), cutoff=0.5)
        listed = near + [name for name in names if name not in near]
        raise NoRunsError(
            f"no experiment {experiment!r} in {place}", allowed=", ".join(listed) or "none, the store is empty"
        )
    return _pages(client.search_runs, experiment_ids=[known.experiment_id])


def _pages(search: Any, **arguments: Any) -> list[Any]:
    found: list[Any] = []
    token = None
    while True:
        page = search(**arguments, max_results=_PAGE, page_token=token)
        found.extend(page)
        token = page.token
        if not token:
            return found


def _result(name: str) -> bool:
    return name in COLUMNS and COLUMNS[name].result


def _finite(value: Any) -> bool:
    return value is None or not isinstance(value, float) or (math.isfinite(value) and abs(value) < MLFLOW_INFINITY)


def _text(path: Path) -> str:
    """The text of a file that should be CSV."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunTableError(f"cannot read {path}: {error.strerror}") from error
    if not content.strip():
        raise RunTableError(f"{path} is empty", do="write a header and one row a run")
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in content and not utf16:
        kind = "a Parquet file" if content.startswith(b"PAR1") else "a binary file"
        raise RunTableError(f"{path} is {kind}, not CSV", do="name it .parquet if it is one, or export it as CSV")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RunTableError(
            f"{path}, line {line}: byte {content[error.start]:#04x} is not UTF-8", do="save the file as UTF-8"
        ) from error
