"""``bayeslaw sweep``: plan and run an iso-FLOP grid of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from bayeslaw.cli import flags
from bayeslaw.cli.lists import Floats, Integers, OptionalInteger, Texts
from bayeslaw.cli.output import keep_input, note, own, print_json, print_table
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK, UsageError
from bayeslaw.plan import Plan, read_plan, write_plan
from bayeslaw.store import resolve_uri

app = App(name="sweep", help="Plan and run an iso-FLOP grid of runs.")


@app.command(name="plan")
def plan(
    *,
    preset: str | None = None,
    budgets: Annotated[list[float] | None, Floats] = None,
    widths: Annotated[list[int] | None, Integers] = None,
    recurrences: Annotated[list[int] | None, Integers] = None,
    recipes: Annotated[list[str] | None, Texts] = None,
    seeds: Annotated[list[int] | None, Integers] = None,
    unrolled_layers: OptionalInteger = None,
    min_steps: OptionalInteger = None,
    model: flags.Model = None,
    optimizer: flags.Optimizer = None,
    data: flags.Data = None,
    study: str | None = None,
    out: Path | None = None,
    as_json: flags.Json = False,
) -> int:
    """Plan an iso-FLOP grid: every recipe x recurrences x budget x width x seed at one effective depth.

    With a preset the grid is the preset's, of which --recipes, --recurrences, --budgets and --widths select a part.

    Parameters
    ----------
    preset
        paper, paper-47b, desk or desk-rates. Without one --budgets, --widths and --recurrences are the grid.
    budgets
        Training FLOPs of a run, one or more.
    widths
        d_model, one or more, each a multiple of the head size.
    recurrences
        How often the shared block runs, one or more divisors of --unrolled-layers.
    recipes
        One or more of baseline (the default), truncated_bptt, hyperconnections, additive, passthrough; any other name
        is only a label. For r = 1, the same network for all, the first one's runs serve.
    seeds
        One or more, by default the preset's own, without a preset 0; more than one plans replicates.
    unrolled_layers
        Layers of the recurrent part, recurrences x shared layers, 4 by default.
    min_steps
        Leave out cells of fewer optimiser steps, 20 by default.
    study
        MLflow experiment, by default the preset or bayeslaw.
    out
        Write the plan to this file.
    as_json
        Print the plan as one JSON object.
    """
    fields = flags.given(model, optimizer, data)
    keep_input(out, *([fields["corpus"]] if "corpus" in fields else []))
    trainer_sweep = own("trainer.sweep")
    grid = flags.given(
        budgets=budgets,
        widths=widths,
        recurrences=recurrences,
        recipes=recipes,
        seeds=seeds,
        unrolled_layers=unrolled_layers,
        min_steps=min_steps,
    )
    for doubt in filter(None, map(own("trainer.presets").mistyped, recipes or [])):
        note(f"warning: {doubt}")
    study = study if study is not None else preset or "bayeslaw"
    planned: Plan
    if preset is None:
        missing = [f"--{name}" for name in ("budgets", "widths", "recurrences") if name not in grid]
        if missing:
            raise UsageError(
                f"no {', '.join(missing)}", allowed="--budgets, --widths and --recurrences, or the grid of a --preset"
            )
        planned = trainer_sweep.plan_grid(study=study, left_out=note, **grid, **fields)
    elif unrolled_layers is not None:
        raise UsageError(f"--unrolled-layers with --preset {preset}", allowed="the preset's own depth")
    else:
        planned = trainer_sweep.plan_preset(preset, study=study, left_out=note, **grid, **fields)
    for corpus in trainer_sweep.unread(planned):
        note(
            f"note: the corpus {corpus} is not on this machine; where the plan is run it is downloaded, "
            "unless you plan with --corpus PATH (text, or a folder of packed shards)"
        )
    if out is not None:
        write_plan(planned, out)
        note(f"plan of {len(planned.runs)} runs written to {out}")
    if as_json:
        print_json({"study": planned.study, "flops": planned.flops, "runs": planned.as_dict()["runs"]})
        return EXIT_OK
    print_table(
        ("run", "parameters", "tokens", "FLOPs/token", "FLOPs"),
        [
            (
                run.row["run_id"],
                f"{run.row['n_unique']:,}",
                f"{run.row['tokens']:,}",
                f"{run.row['flops_per_token']:.4g}",
                f"{run.row['flops']:.4g}",
            )
            for run in planned.runs
        ],
    )
    print(f"{len(planned.runs)} runs, {planned.flops:.4g} FLOPs in all")
    if out is None:
        note("not written: name a file with --out to run the plan with `bayeslaw sweep run`")
    return EXIT_OK


@app.command(name="run")
def run(
    plan: Path,
    /,
    *,
    out: Path,
    tracking_uri: str | None = None,
    limit: OptionalInteger = None,
    execution: flags.Execution = None,
    as_json: flags.Json = False,
) -> int:
    """Train the runs of a plan one after another; those already finished in the output folder are skipped.

    Parameters
    ----------
    plan
        File written by `bayeslaw sweep plan --out`.
    out
        Output folder.
    tracking_uri
        MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db. Where mlflow is missing, or the store away,
        the journals are kept for `bayeslaw runs sync`.
    limit
        Train at most so many runs now.
    as_json
        Print one JSON object.
    """
    planned = read_plan(plan)
    trainer_sweep = own("trainer.sweep")
    carried_out = own("trainer.execution").Execution(**flags.given(execution))
    outcomes = trainer_sweep.run_plan(
        planned, out, tracking_uri=resolve_uri(tracking_uri), limit=limit, execution=carried_out
    )
    busy = [outcome for outcome in outcomes if outcome.state == trainer_sweep.BUSY]
    bad = [outcome for outcome in outcomes if outcome.state not in ("finished", trainer_sweep.BUSY)]
    if as_json:
        runs = [{**o.row, "state": o.state, "trained": o.trained, "error": o.error} for o in outcomes]
        print_json({"study": planned.study, "planned": len(planned.runs), "runs": runs})
    else:
        print_table(
            ("run", "state", "loss", "FLOPs"),
            [(o.run_id, o.state, _loss(o.row), f"{o.row.get('flops', 0.0):.4g}") for o in outcomes],
        )
        done = len(outcomes) - len(bad) - len(busy)
        skipped = sum(not outcome.trained for outcome in outcomes) - len(busy)
        are = "is" if len(busy) == 1 else "are"
        elsewhere = f"; {len(busy)} {are} being trained by another process" if busy else ""
        print(
            f"{done} of {len(planned.runs)} runs are finished, {skipped} since before; {len(bad)} went wrong{elsewhere}"
        )
    return EXIT_FAILURE if bad else EXIT_OK


def _loss(row: dict[str, Any]) -> str:
    return f"{row['loss']:.4f}" if "loss" in row else "-"
