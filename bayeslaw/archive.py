"""A study in one archive: what its source holds of each run, unchanged, and what a run table made of it must be.

The first file of the archive, ``study.json``, lists the others with size and sha256, and holds the data hash, excluded
runs and notes. An import makes the table again and refuses an archive that gives another. What the archive holds:
journals of a folder; of an MLflow experiment its runs as found and all their curves; a table as it is.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bayeslaw import datasets, packing
from bayeslaw.curves import CURVES, Point, mlflow_points, write_points
from bayeslaw.errors import BayeslawError, NoRunsError, UsageError
from bayeslaw.journal import FILE_NAME, find_journals
from bayeslaw.mlflow_rows import is_result, to_json
from bayeslaw.mlflow_runs import MLFLOW_PREFIX, Experiment, read_rows, without_parents
from bayeslaw.runs import RunTable, load_runs
from bayeslaw.schema import SCHEMA_VERSION
from bayeslaw.sources import FILE_KINDS, MANIFEST, ROWS
from bayeslaw.version import __version__

SUFFIX = ".tar.xz"


def export_study(source: str | Path, out: Path, *, tracking_uri: str | None = None) -> RunTable:
    """Write a study to one archive; the same study gives the same bytes.

    Parameters
    ----------
    source : str or Path
        As for `bayeslaw.runs.load_runs`. Of a folder only the journals are taken.
    out : Path
        The archive, its name ends in .tar.xz; written whole or not at all.
    tracking_uri : str, optional
        The MLflow store, see `bayeslaw.store.resolve_uri`.

    Returns
    -------
    RunTable
        The runs as an import gives them.

    Raises
    ------
    UsageError
        The source is unknown, or the archive has another name.
    NoRunsError, RunTableError, TrackingError
        As for `bayeslaw.runs.load_runs`.
    BayeslawError
        The archive cannot be written.
    """
    if not out.name.lower().endswith(SUFFIX):
        raise UsageError(f"an archive named {out}", allowed=f"a name that ends in {SUFFIX}")
    with tempfile.TemporaryDirectory(prefix="bayeslaw-") as place:
        folder = Path(place)
        names = _collect(source, folder, tracking_uri)
        (folder / MANIFEST).touch()  # what makes it the folder of a study
        table = load_runs(folder)
        about = {
            "schema_version": SCHEMA_VERSION,
            "bayeslaw": __version__,
            "n_runs": len(table.runs),
            **_result(table),
            "members": packing.listing(folder, names),
        }
        (folder / MANIFEST).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        packing.pack(folder, [MANIFEST, *names], out)
    return table


def import_study(archive: Path, folder: Path) -> RunTable:
    """Unpack a study into a new folder, which then is a source of runs.

    Parameters
    ----------
    archive : Path
        What `export_study` wrote.
    folder : Path
        Must not exist yet; there in the end only if all is well.

    Returns
    -------
    RunTable
        The runs, the same as where they were exported.

    Raises
    ------
    UsageError
        There is no such archive, or the folder exists.
    BayeslawError
        The archive is damaged, is none, or gives another result here.
    """
    if not archive.is_file():
        raise UsageError(f"there is no file {archive}", do="check the path")
    with packing.new_folder(folder) as partial:
        with archive.open("rb") as stream:
            try:
                about = packing.unpack(stream, partial, list_name=MANIFEST)
            except packing.PackedError as error:
                raise BayeslawError(
                    f"{archive} is no archive of a study, or is damaged: {error.what}",
                    allowed="what `bayeslaw runs export` wrote",
                    do="copy it again, or export the study again",
                ) from error
        _require_same(archive, about, partial)
    return load_runs(folder)


def _collect(source: str | Path, folder: Path, tracking_uri: str | None) -> list[str]:
    """Put what a source holds into a folder; the names of the files, sorted."""
    name = str(source)
    if name in datasets.NAMES:
        datasets.load_dataset(name).to_csv(folder / "runs.csv", index=False)
        return ["runs.csv"]
    if name.startswith(MLFLOW_PREFIX):
        found = read_rows(name.removeprefix(MLFLOW_PREFIX), tracking_uri=tracking_uri)
        rows = sorted(found.rows, key=lambda row: row.mlflow_id)
        (folder / ROWS).write_text("".join(f"{to_json(row)}\n" for row in rows), encoding="utf-8")
        write_points(folder / CURVES, _all_points(found))
        return sorted((ROWS, CURVES))
    path = Path(source).expanduser()
    if path.is_file() and path.suffix.lower() in FILE_KINDS:
        table = f"runs{path.suffix.lower()}"
        shutil.copyfile(path, folder / table)
        return [table]
    if not path.is_dir():
        load_runs(source)  # says what is wrong with it
    kept = [path / table for table in ("runs.csv", "runs.parquet", ROWS, CURVES) if (path / MANIFEST).is_file()]
    files = [file for file in kept if file.is_file()] or find_journals(path)
    if not files:
        raise NoRunsError(f"no {FILE_NAME} in or below {source}", do="name a folder that holds runs")
    names = [file.relative_to(path).as_posix() for file in files]
    for each in names:
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path / each, folder / each)
    return sorted(names)


def _all_points(found: Experiment) -> Iterator[tuple[str, str, list[Point]]]:
    """Every curve of every run; results of the run table are in its rows."""
    for row in sorted(without_parents(found.rows), key=lambda row: row.mlflow_id):
        with found.refusals():
            metrics = found.client.get_run(row.mlflow_id).data.metrics
        for metric in sorted(name for name in metrics if not is_result(name)):
            yield row.mlflow_id, metric, mlflow_points(found, row.mlflow_id, metric)


def _result(table: RunTable) -> dict[str, Any]:
    """What an import must give again."""
    return {
        "data_hash": table.data_hash,
        "excluded": table.excluded.to_dict("records"),
        "notes": list(table.notes),
    }


def _require_same(archive: Path, about: dict[str, Any], folder: Path) -> None:
    if about.get("schema_version") != SCHEMA_VERSION:
        raise BayeslawError(
            f"{archive} has schema_version {about.get('schema_version')!r}",
            allowed=str(SCHEMA_VERSION),
            do=f"import it with bayeslaw {about.get('bayeslaw')}",
        )
    try:
        here = _result(load_runs(folder))
    except BayeslawError as error:
        here = {"data_hash": f"none ({error.what})"}
    differing = [name for name in ("data_hash", "excluded", "notes") if about.get(name) != here.get(name)]
    if differing:
        name = differing[0]
        raise BayeslawError(
            f"{archive} gives another result here than where it was exported: {name} is {here.get(name)}, "
            f"not {about.get(name)} (exported by bayeslaw {about.get('bayeslaw')}, this is {__version__})",
            do=f"import it with bayeslaw {about.get('bayeslaw')}, or export the study again",
        )
