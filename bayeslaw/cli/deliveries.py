"""The verbs of ``bayeslaw runs`` that bring journals to MLflow."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from bayeslaw.cli.output import note, own, print_json, print_table
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK, UsageError
from bayeslaw.texts import printable_lines


def sync(
    folder: Annotated[Path, Parameter(name="DIR")],
    /,
    *,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Deliver the run journals in and below a folder to MLflow; what is there already is not sent again.

    Parameters
    ----------
    folder
        Holds journal.jsonl files at any depth.
    tracking_uri
        The MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    json
        Print one JSON object.
    """
    _require_folder(folder)
    results = own("trainer.tracking").sync(folder, tracking_uri=tracking_uri)
    rows = [dataclasses.asdict(result) for result in results]
    if json:
        print_json({"runs": [{**row, "path": str(row["path"])} for row in rows]})
    else:
        header = ("run_id", "state", "records", "delivered")
        print_table(header, [[str(row[name]) for name in header] for row in rows])
    failed = [result for result in results if result.error]
    for result in failed:
        note(f"error: {_named(result.path, result.error)}")
    note(f"{len(results) - len(failed)} of {len(results)} journals in and below {folder} are in MLflow")
    return EXIT_FAILURE if failed else EXIT_OK


def verify(
    folder: Annotated[Path, Parameter(name="DIR")],
    /,
    *,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare the run journals in and below a folder with MLflow, point by point and bit by bit.

    Parameters
    ----------
    folder
        Holds journal.jsonl files at any depth.
    tracking_uri
        The MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    json
        Print one JSON object.
    """
    _require_folder(folder)
    results = own("trainer.verification").verify(folder, tracking_uri=tracking_uri)
    different = [result for result in results if result.differences]
    if json:
        rows = [dataclasses.asdict(result) for result in results]
        print_json({"runs": [{**row, "path": str(row["path"])} for row in rows]})
    else:
        print_table(
            ("run_id", "points", "agrees"),
            [(result.run_id or str(result.path), f"{result.points:,}", _agrees(result)) for result in results],
        )
    for result in different:
        for difference in result.differences:
            note(_named(result.path, difference))
    note(f"{len(results) - len(different)} of {len(results)} journals in and below {folder} agree with MLflow")
    if any(result.run_id for result in different):
        note(
            f"next: `bayeslaw runs sync {folder}` delivers what is missing; where points are too many, which MLflow "
            "cannot\n  take back, delete that run in MLflow first: the journals are the truth"
        )
    return EXIT_FAILURE if different else EXIT_OK


def close(
    experiment: Annotated[str, Parameter(name="EXPERIMENT")],
    /,
    *,
    minutes: float = 60.0,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Mark runs as killed that MLflow takes for running though nothing was heard of them for long.

    A run that lives after all is marked as running again when it next goes on or ends.

    Parameters
    ----------
    experiment
        Name of the MLflow experiment, or mlflow:NAME.
    minutes
        How long a run must have been silent.
    tracking_uri
        The MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    json
        Print one JSON object.
    """
    name = experiment.removeprefix("mlflow:")
    closed = own("trainer.tracking").close_silent(name, minutes=minutes, tracking_uri=tracking_uri)
    if json:
        print_json({"experiment": name, "closed": [{"run_id": run_id, "silent_minutes": m} for run_id, m in closed]})
    else:
        print_table(("run_id", "silent for"), [(run_id, f"{m:.0f} min") for run_id, m in closed])
    note(f"{len(closed)} runs of {name} are marked as killed")


def _named(path: Path, text: str) -> str:
    """The text with the journal that it is about, which errors of journals name themselves."""
    return printable_lines(text if str(path) in text else f"{path}: {text}")


def _agrees(result: Any) -> str:
    return "no" if result.differences else "yes"


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", do="name the folder that a training run or sweep wrote")
