"""``bayeslaw sweep``: plan and run an iso-FLOP grid of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from bayeslaw.cli.lists import Floats, Integers
from bayeslaw.cli.output import keep_input, note, own, print_json, print_table
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK
from bayeslaw.plan import Plan, read_plan, write_plan
from bayeslaw.store import resolve_uri

app = App(name="sweep", help="Plan and run an iso-FLOP grid of runs.")

Json = Annotated[bool, Parameter(name="--json", negative="")]


@app.command(name="plan")
def plan(
    *,
    budgets: Annotated[list[float], Floats],
    widths: Annotated[list[int], Integers],
    recurrences: Annotated[list[int], Integers],
    prelude_layers: int = 1,
    unrolled_layers: int = 4,
    coda_layers: int = 1,
    head_size: int = 16,
    seq_len: int = 64,
    batch_tokens: int = 512,
    seeds: Annotated[list[int], Integers] = [0],  # noqa: B006 (cyclopts shows the default; nothing changes it)
    corpus: str = "stdlib",
    validation_tokens: int = 65_536,
    recipe: str = "baseline",
    study: str = "bayeslaw",
    min_steps: int | None = None,
    out: Path | None = None,
    as_json: Json = False,
) -> int:
    """Plan an iso-FLOP grid: every budget x width x recurrences x seed at one effective depth.

    Parameters
    ----------
    budgets
        Training FLOPs of a run, one or more.
    widths
        d_model, one or more, each a multiple of the head size.
    recurrences
        How often the shared block runs, one or more divisors of --unrolled-layers.
    prelude_layers
        Layers before the recurrent part.
    unrolled_layers
        Layers of the recurrent part, recurrences x shared layers.
    coda_layers
        Layers after the recurrent part.
    head_size
        Size of an attention head.
    seq_len
        Context in tokens.
    batch_tokens
        Tokens of an optimiser step.
    seeds
        One or more; more than one plans replicates.
    corpus
        stdlib, or the path of a text file or a folder of them; a token is a byte.
    validation_tokens
        Held-out tokens of the validation loss.
    recipe
        Name of the recipe in the run table.
    study
        MLflow experiment.
    min_steps
        Leave out cells of fewer optimiser steps, 20 by default.
    out
        Write the plan to this file.
    as_json
        Print the plan as one JSON object.
    """
    keep_input(out, corpus)
    trainer_sweep = own("trainer.sweep")
    planned: Plan = trainer_sweep.plan_grid(
        study=study,
        budgets=budgets,
        widths=widths,
        recurrences=recurrences,
        prelude_layers=prelude_layers,
        unrolled_layers=unrolled_layers,
        coda_layers=coda_layers,
        seq_len=seq_len,
        batch_tokens=batch_tokens,
        seeds=seeds,
        min_steps=trainer_sweep.MIN_STEPS if min_steps is None else min_steps,
        left_out=note,
        head_size=head_size,
        corpus=corpus,
        validation_tokens=validation_tokens,
        recipe=recipe,
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
    limit: int | None = None,
    as_json: Json = False,
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
    outcomes = trainer_sweep.run_plan(planned, out, tracking_uri=resolve_uri(tracking_uri), limit=limit)
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
