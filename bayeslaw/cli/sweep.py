"""``bayeslaw sweep``: plan an iso-FLOP grid of runs, have it trained, and see to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bayeslaw.cli import flags, simulation, standings
from bayeslaw.cli.launches import run
from bayeslaw.cli.lists import Floats, Integers, OptionalInteger, Texts
from bayeslaw.cli.output import keep_input, note, own, print_json, print_table
from bayeslaw.errors import EXIT_OK, DecisionError, UsageError
from bayeslaw.plan import Plan, write_plan

app = App(name="sweep", help="Plan an iso-FLOP grid of runs, train it here or on a cluster, and see to it.")


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
    speed: str | None = None,
    device: str | None = None,
    longest_first: Annotated[bool, Parameter(negative="")] = False,
    replay: simulation.Replayed = None,
    out: Path | None = None,
    as_json: flags.Json = False,
) -> int:
    """Plan an iso-FLOP grid: every recipe x recurrences x budget x width x seed at one effective depth.

    With a preset the grid is the preset's, of which --recipes, --recurrences, --budgets and --widths select a part.

    Parameters
    ----------
    preset
        paper, paper-47b, desk, desk-rates or desk-probes. Without one --budgets, --widths and --recurrences are the
        grid.
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
    speed
        A source of runs whose measured speed gives the expected hours: a data set, file, folder or mlflow:EXPERIMENT.
    device
        The device of --speed, where its runs were measured on several.
    longest_first
        Plan the longest runs first instead of the cheapest: results come later, many workers are done sooner.
    out
        Write the plan to this file.
    as_json
        Print the plan as one JSON object.
    """
    fields = flags.given(model, optimizer, data)
    keep_input(out, *([fields["corpus"]] if "corpus" in fields else []), *([speed] if speed else []))
    if device is not None and speed is None:
        raise UsageError("--device without --speed", allowed="--speed SOURCE --device NAME")
    simulated = simulation.asked(replay)
    planning = own("trainer.planning")
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
        planned = planning.plan_grid(study=study, left_out=note, **grid, **fields)
    elif unrolled_layers is not None:
        raise UsageError(f"--unrolled-layers with --preset {preset}", allowed="the preset's own depth")
    else:
        planned = planning.plan_preset(preset, study=study, left_out=note, **grid, **fields)
    if speed is not None:
        planned = _timed(planned, speed, device)
    if longest_first:
        planned = planned.longest_first
    for corpus in own("trainer.sweep").unread(planned):
        note(
            f"note: the corpus {corpus} is not on this machine; where the plan is run it is downloaded, "
            "unless you plan with --corpus PATH (text, or a folder of packed shards)"
        )
    if out is not None:
        write_plan(planned, out)
        note(f"plan of {len(planned.runs)} runs written to {out}")
    if simulated and replay:
        return simulation.print_replay(planned, replay, as_json=as_json)
    if as_json:
        totals = {"sweep": planned.sweep, "flops": planned.flops, "hours": planned.hours}
        print_json({"study": planned.study, **totals, "runs": planned.as_dict()["runs"]})
        return EXIT_OK
    print_table(
        ("run", "config", "parameters", "tokens", "FLOPs", "memory", "hours"),
        [
            (
                run.run_id,
                run.config_hash,
                f"{run.row['n_unique']:,}",
                f"{run.row['tokens']:,}",
                f"{run.row['flops']:.4g}",
                f"{run.row['memory'] / 1e9:.3g} GB",
                _hours(run.row.get("hours")),
            )
            for run in planned.runs
        ],
    )
    hours = f", {_hours(planned.hours)} device hours" if planned.hours is not None else ""
    print(f"{len(planned.runs)} runs, {planned.flops:.4g} FLOPs{hours} in all")
    if out is None:
        note("not written: name a file with --out to run the plan with `bayeslaw sweep run`")
    return EXIT_OK


def _timed(plan: Plan, source: str, device: str | None) -> Plan:
    """The plan with the hours that runs of the source would have taken for it."""
    from bayeslaw.runs import load_runs
    from bayeslaw.throughput import throughput_of

    try:
        measured = throughput_of(load_runs(source).runs, device)
    except DecisionError as error:
        raise UsageError(
            f"--speed {source}: {error.what}", allowed=error.allowed, do=error.do if error.allowed else _SPEED
        ) from error
    note(f"note: {measured}")
    costs = [run.row["flops_per_token"] for run in plan.runs]
    if max(costs) > 1.1 * measured.most or min(costs) < measured.least / 1.1:
        note(
            f"note: the plan's runs take {min(costs):.3g} to {max(costs):.3g} FLOPs a token, those measured "
            f"{measured.least:.3g} to {measured.most:.3g}: their hours are extrapolated"
        )
    return plan.timed(lambda flops: measured.per_flop * flops + measured.overhead)


_SPEED = "name runs that `bayeslaw sweep run` trained: they have tokens_per_second"


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.3g}"


app.command(run)
app.command(standings.status)
app.command(standings.retry)
app.command(standings.cancel)
