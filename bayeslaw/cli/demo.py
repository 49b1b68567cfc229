"""`bayeslaw demo`: the main job end to end on this machine, from training to the recommendation."""

from __future__ import annotations

import json as json_module
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from bayeslaw.cli.lists import Integer
from bayeslaw.cli.output import note, own, plain, print_json
from bayeslaw.errors import EXIT_DIAGNOSTICS, EXIT_OK

if TYPE_CHECKING:
    from bayeslaw.posterior import Fit

app = App(name="demo", help="Train, track, fit, allocate and report, end to end, on this machine.")


@app.default
def demo(
    *,
    out: Path = Path("demo-out"),
    seed: Integer = 0,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train 18 small looped models on CPU, track them in MLflow, fit phi, recommend an allocation, write a report.

    A second call trains only what is not finished.

    Parameters
    ----------
    out
        Folder for runs/ (journals), mlflow.db, runs.csv, fit.nc, allocation.json and report.html.
    seed
        Seed of the training runs and of the sampler.
    json
        Print one JSON object.
    """
    started = time.perf_counter()
    sweep = own("trainer.sweep")
    reports = own("reports.build")
    plan = own("trainer.planning").demo_plan(seed=seed)
    store = f"sqlite:///{(out / 'mlflow.db').resolve()}"
    note(f"1/5 training {len(plan.runs)} runs, {plan.flops:.2g} FLOPs in all, tracked in {store}")
    sweep.run_plan(plan, out, tracking_uri=store)
    trained = time.perf_counter()

    from bayeslaw.allocate import allocate
    from bayeslaw.cli.answers import show
    from bayeslaw.cli.fit import report_table
    from bayeslaw.diagnostics import check
    from bayeslaw.files import written_whole
    from bayeslaw.fit import fit
    from bayeslaw.runs import load_runs

    note("2/5 reading the runs back from MLflow")
    table = load_runs(f"mlflow:{plan.study}", tracking_uri=store)
    report_table(table)
    table.save(out / "runs.csv")
    note("3/5 sampling the posterior")
    result = fit(table, law="additive", noise="iid", outliers="gaussian", seed=seed, progress=note)
    result.save(out / "fit.nc")
    verdict = check(result)
    note("4/5 choosing width, tokens and r for the largest budget of the grid")
    allocation = allocate(result, flops=float(table.runs["budget"].max()))
    allocation = replace(allocation, notes=(*verdict.messages, *allocation.notes))
    with written_whole(out / "allocation.json") as partial:
        partial.write_text(json_module.dumps(plain(allocation.as_dict()), indent=1) + "\n", encoding="utf-8")
    note("5/5 writing the report")
    reports.write_report(result, out / "report.html")

    meaning = what_it_tells(result)
    seconds = {"train": trained - started, "total": time.perf_counter() - started}
    if json:
        print_json(
            {"out": str(out), "n_runs": len(table.runs), "phi": meaning, "seconds": seconds, **allocation.as_dict()}
        )
    else:
        show(result, verdict)
        print(allocation)
        print(meaning["sentence"])
        print(f"Results in {out}: report.html, fit.nc, runs.csv, allocation.json, mlflow.db, runs/")
    for message in allocation.notes:
        note(f"warning: {message}")
    note(f"trained for {seconds['train']:.0f} s of {seconds['total']:.0f} s")
    return EXIT_OK if verdict.passed else EXIT_DIAGNOSTICS


def what_it_tells(result: Fit) -> dict[str, Any]:
    """How far the runs moved phi from its prior, in numbers and in a sentence."""
    phi = result.draws()["phi"]
    prior = result.data["prior"]["phi"].to_numpy()
    q05, q95 = (float(quantile) for quantile in result.posterior["phi"].quantile([0.05, 0.95]).values)
    kept = float(phi.std() / prior.std())
    largest = float(result.runs["n_unique"].max())
    sentence = (
        f"What this tells about phi: {len(result.runs)} runs of at most {largest:.2g} parameters leave phi at "
        f"{phi.mean():.2f} (90 % {q05:.2f} to {q95:.2f}); the prior's standard deviation of {prior.std():.2f} shrank "
        f"to {phi.std():.2f} ({kept:.0%}). "
    )
    ends = {"a worthless recurrence (0)": 0.0, "the worth of a unique block (1)": 1.0}
    open_ends = [name for name, value in ends.items() if q05 < value < q95]
    sentence += f"That does not rule out {' or '.join(open_ends)}. " if open_ends else "That rules out 0 and 1. "
    sentence += (
        "The interval holds for this law with independent errors and for models of this size, depth and training; "
        "one seed a design, untuned rates and the law's misfit are not in it. This run shows that the chain works, not "
        "what phi is."
    )
    return {"mean": float(phi.mean()), "q05": q05, "q95": q95, "sd_ratio": kept, "sentence": sentence}
