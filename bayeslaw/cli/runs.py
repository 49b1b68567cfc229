"""``bayeslaw runs``: list the runs of a source; import, export and unpack them; deliver journals to MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bayeslaw.cli import deliveries
from bayeslaw.cli.output import keep_input, note, print_json, print_table
from bayeslaw.errors import UsageError
from bayeslaw.texts import printable

app = App(name="runs", help="List the runs of a source; import, export and unpack them; deliver journals to MLflow.")


@app.default
def show(
    source: str,
    /,
    *,
    where: str | None = None,
    recipe: str | None = None,
    tracking_uri: str | None = None,
    cache: bool = True,
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """List the runs of a source, checked and completed; deliver journals to MLflow; unpack shipped ones.

    Parameters
    ----------
    source
        isodepth, isodepth-recipes, desk, desk-rates, a .csv or .parquet file, mlflow:EXPERIMENT, a folder of run
        journals, or that of an imported study.
    where
        Keep the runs that match, for example "recurrences in (2, 4) and budget >= 1e18 and recipe == 'baseline'".
    recipe
        Keep one recipe, with the r = 1 runs of the baseline where it has none of its own.
    tracking_uri
        The MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    cache
        Fetch from MLflow only what has changed since the last query.
    out
        Write the runs to this .csv or .parquet file as well.
    json
        Print one JSON object.
    """
    from bayeslaw.runs import load_runs

    keep_input(out, source)
    table = load_runs(source, where=where, recipe=recipe, tracking_uri=tracking_uri, cache=cache)
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
        note(f"{len(table.runs)} runs of {printable(table.source)}, data {table.data_hash}")
        for text in table.notes:
            note(f"note: {printable(text)}")
        for row in excluded:
            note(f"excluded: {printable(row['run_id'])}: {printable(row['reason'])}")
    if out is not None:
        note(f"wrote {len(table.runs)} runs to {out}")


for verb in (deliveries.sync, deliveries.verify, deliveries.close):
    app.command(verb)


@app.command(name="import")
def import_(
    file: Path,
    /,
    *,
    out: Path,
    column: Annotated[list[str] | None, Parameter(negative="")] = None,
    columns: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Import runs: the archive of a study into a new folder, or the table of another program into a run table.

    A table may be a Weights & Biases export, whose Name and State are known, or any other. What gives a column of the
    run table is one of its columns, a column * number, a number, or a text in quotes; columns that have their names
    already need no --column.

    Parameters
    ----------
    file
        study.tar.xz of `bayeslaw runs export`, or a .csv or .parquet file.
    out
        A folder that does not exist yet for a study, else a .csv or .parquet file.
    column
        What gives a column, any number of times: --column loss="val/loss" --column tokens="step * 524288" --column
        recipe="'baseline'".
    columns
        A TOML file of such lines: loss = "val/loss".
    json
        Print one JSON object.
    """
    from bayeslaw.archive import SUFFIX, import_study

    if file.name.lower().endswith(SUFFIX):
        if column or columns:
            raise UsageError("--column with the archive of a study", allowed="a .csv or .parquet file")
        table = import_study(file, out)
    else:
        from bayeslaw.foreign import column_map, import_table
        from bayeslaw.runs import save_table

        keep_input(out, file, *([columns] if columns else []))
        runs, table = import_table(file, columns=column_map(column or (), columns))
        save_table(runs, out)
    excluded = table.excluded.to_dict("records")
    if json:
        print_json(
            {
                "source": str(out),
                "n_runs": len(table.runs),
                "data_hash": table.data_hash,
                "excluded": excluded,
                "notes": list(table.notes),
            }
        )
    else:
        print(f"{len(table.runs)} runs, data {table.data_hash}, in {out}")
        for row in excluded:
            note(f"excluded: {printable(row['run_id'])}: {printable(row['reason'])}")
        note(f"`bayeslaw runs {out}` lists them")


@app.command
def export(
    source: str,
    /,
    *,
    out: Path,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a study to one archive, which `bayeslaw runs import` makes the same study of on another machine.

    Parameters
    ----------
    source
        As for `bayeslaw runs`. Of a folder its journals are taken, of an MLflow experiment its runs and curves.
    out
        The archive, such as study.tar.xz.
    tracking_uri
        The MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    json
        Print one JSON object.
    """
    from bayeslaw.archive import export_study

    keep_input(out, source)
    table = export_study(source, out, tracking_uri=tracking_uri)
    if json:
        print_json({"out": str(out), "n_runs": len(table.runs), "data_hash": table.data_hash})
    else:
        print(f"{len(table.runs)} runs of {printable(source)}, data {table.data_hash}, in {out}")
        note(f"`bayeslaw runs import {out} --out DIR` makes them a source of runs again")


@app.command
def curves(
    source: str,
    /,
    *,
    metric: str,
    out: Path,
    where: str | None = None,
    tracking_uri: str | None = None,
    cache: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write one training curve of each finished run: run_id, step, time in seconds since 1970, value.

    Parameters
    ----------
    source
        mlflow:EXPERIMENT, a folder of run journals, or that of an imported study.
    metric
        Such as val/loss, train/loss or train/gradient_norm.
    out
        A .csv or .parquet file.
    where
        Keep the runs that match, as for `bayeslaw runs`.
    tracking_uri
        The MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    cache
        Fetch from MLflow only the runs that have changed since the last query.
    json
        Print one JSON object.
    """
    from bayeslaw.curves import load_curves
    from bayeslaw.runs import save_table

    keep_input(out, source)
    table = load_curves(source, metric=metric, where=where, tracking_uri=tracking_uri, cache=cache)
    save_table(table, out)
    n_runs = int(table["run_id"].nunique())
    if json:
        print_json({"out": str(out), "metric": metric, "n_runs": n_runs, "n_points": len(table)})
    else:
        print(f"{len(table)} points of {printable(metric)}, {n_runs} runs, in {out}")


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
