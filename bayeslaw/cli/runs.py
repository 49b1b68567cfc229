"""``bayeslaw runs``: list the runs of a source, deliver journals to MLflow, unpack shipped journals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bayeslaw.cli import deliveries
from bayeslaw.cli.output import keep_input, note, print_json, print_table

app = App(name="runs", help="List the runs of a source, deliver journals to MLflow, or unpack shipped ones.")


@app.default
def show(
    source: str,
    /,
    *,
    where: str | None = None,
    recipe: str | None = None,
    tracking_uri: str | None = None,
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """List the runs of a source, checked and completed; deliver journals to MLflow; unpack shipped ones.

    Parameters
    ----------
    source
        isodepth, isodepth-recipes, desk, desk-rates, a .csv or .parquet file, mlflow:EXPERIMENT, or a folder of run
        journals.
    where
        Keep the runs that match, for example "recurrences in (2, 4) and budget >= 1e18 and recipe == 'baseline'".
    recipe
        Keep one recipe, with the r = 1 runs of the baseline where it has none of its own.
    tracking_uri
        The MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    out
        Write the runs to this .csv or .parquet file as well.
    json
        Print one JSON object.
    """
    from bayeslaw.runs import load_runs

    keep_input(out, source)
    table = load_runs(source, where=where, recipe=recipe, tracking_uri=tracking_uri)
    if out is not None:
        table.save(out)
    excluded = table.excluded.to_dict("records")
    if json:
        print_json(
            {
                "source": table.source,
                "n_runs": len(table.runs),
                "data_hash": table.data_hash,
                "runs": table.runs.to_dict("records"),
                "excluded": excluded,
                "notes": list(table.notes),
            }
        )
    else:
        print_table(*table.cells())
        note(f"{len(table.runs)} runs of {table.source}, data {table.data_hash}")
        for text in table.notes:
            note(f"note: {text}")
        for row in excluded:
            note(f"excluded: {row['run_id']}: {row['reason']}")
    if out is not None:
        note(f"wrote {len(table.runs)} runs to {out}")


app.command(deliveries.sync)


@app.command
def unpack(
    name: Annotated[str, Parameter(name="STUDY")],
    /,
    *,
    out: Path,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write the run journals of a shipped study to a new folder, for `bayeslaw runs sync` or as a source of runs.

    Parameters
    ----------
    name
        desk or desk-rates.
    out
        A folder that does not exist yet.
    json
        Print one JSON object.
    """
    from bayeslaw.datasets.journals import unpack_journals

    count = unpack_journals(name, out)
    if json:
        print_json({"study": name, "journals": count, "out": str(out)})
    else:
        print(f"{count} journals of {name} in {out}")
        note(f"`bayeslaw runs {out}` lists the runs, `bayeslaw runs sync {out}` delivers them to MLflow")
