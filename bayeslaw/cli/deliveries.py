"""The verbs of ``bayeslaw runs`` that bring journals to MLflow."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bayeslaw.cli.output import note, own, print_json, print_table
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK, UsageError


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
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", do="name the folder that a training run or sweep wrote")
    results = own("trainer.tracking").sync(folder, tracking_uri=tracking_uri)
    rows = [dataclasses.asdict(result) for result in results]
    if json:
        print_json({"runs": [{**row, "path": str(row["path"])} for row in rows]})
    else:
        header = ("run_id", "state", "records", "delivered")
        print_table(header, [[str(row[name]) for name in header] for row in rows])
    failed = [result for result in results if result.error]
    for result in failed:
        note(f"error: {result.path}: {result.error}")
    note(f"{len(results) - len(failed)} of {len(results)} journals in and below {folder} are in MLflow")
    return EXIT_FAILURE if failed else EXIT_OK
