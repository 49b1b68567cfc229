"""Readers of run tables: shipped data sets, CSV, Parquet, MLflow experiments, journal folders.

Each gives the runs as found. What they must hold is checked in `bayeslaw.runs`, which is also the only importer.
"""

from __future__ import annotations

import csv
import difflib
import io
from pathlib import Path

import pandas as pd

from bayeslaw import datasets
from bayeslaw.errors import JournalError, NoRunsError, RunTableError, UsageError
from bayeslaw.found import Entry, RawRuns, settled
from bayeslaw.journal import FILE_NAME, find_journals, read_journal
from bayeslaw.mlflow_rows import from_json
from bayeslaw.mlflow_runs import MLFLOW_PREFIX, raw_runs, read_mlflow

FILE_KINDS = (".csv", ".parquet")

MANIFEST = "study.json"
"""In the folder of an imported study: what `bayeslaw.archive` says of it. One of the next names holds its runs, or
journals do."""
ROWS = "mlflow_runs.jsonl"
TABLES = ("runs.csv", "runs.parquet")

_OTHER_SOURCES = "a .csv or .parquet file, mlflow:EXPERIMENT, or a folder of run journals or of an imported study"


def read_source(source: str | Path, *, tracking_uri: str | None = None, cache: bool = True) -> RawRuns:
    """Read a source by what it is.

    Parameters
    ----------
    source : str or Path
        A shipped data set's name, a .csv or .parquet file, ``mlflow:EXPERIMENT``, the folder of an imported study, or
        one that holds run journals at any depth.
    tracking_uri : str, optional
        The MLflow store, see `bayeslaw.store.resolve_uri`.
    cache : bool
        Fetch from MLflow only what has changed since the last query, see `bayeslaw.cache`.

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
            return read_mlflow(experiment, tracking_uri=tracking_uri, cached=cache)
    path = Path(source).expanduser()
    kind = path.suffix.lower()
    if str(source).strip() and path.is_dir():
        return read_folder(path)
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


def read_folder(folder: Path) -> RawRuns:
    """Read the folder of an imported study, or the journals at and below any other.

    Raises
    ------
    NoRunsError, RunTableError
        It holds no run, or what it holds cannot be read.
    """
    if (folder / MANIFEST).is_file():
        for name in TABLES:
            if (folder / name).is_file():
                return RawRuns(read_csv(folder / name) if name.endswith(".csv") else read_parquet(folder / name))
        if (folder / ROWS).is_file():
            try:
                return raw_runs(from_json(_text(folder / ROWS).splitlines()))
            except (ValueError, RecursionError) as error:
                raise RunTableError(
                    f"{folder / ROWS} is damaged: {error}", do="import the study again with `bayeslaw runs import`"
                ) from error
    return read_journals(folder)


def read_journals(folder: Path) -> RawRuns:
    """Read all run journals at and below a folder; each is named by its own folder in there.

    Journals that cannot be read are left out with the reason. Of several with one run_id, or one config hash, the
    newest finished one is taken.

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
        place = path.relative_to(folder)
        try:
            entries.append(_entry(path, place.parent.as_posix()))
        except (JournalError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = error.what if isinstance(error, JournalError) else f"damaged journal ({error!r})"
            unreadable.append((place.as_posix(), reason.replace(str(path), place.as_posix())))
    if not entries:
        raise NoRunsError(f"none of the {len(paths)} journals below {folder} can be read: {unreadable[0][1]}")
    return settled(entries, unreadable)


def _entry(path: Path, place: str) -> Entry:
    journal = read_journal(path)
    row = {**journal.row, "run_id": journal.run_id}
    origin = journal.start["config"].get("continues")  # <run_id>@<step>:<digest>
    if isinstance(origin, str):
        row.setdefault("training_run", origin.rpartition("@")[0])
    age = float(next(record["time"] for record in reversed(journal.records) if record["event"] != "metrics"))
    return Entry(row, place, age, str(journal.start["config_hash"]))


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
