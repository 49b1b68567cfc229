"""``bayeslaw sweep run``: have a plan trained, in this process, by workers of this machine, or by Slurm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslaw.cli import flags, standings
from bayeslaw.cli.lists import OptionalInteger
from bayeslaw.cli.output import note, own, print_json, print_table
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK, UsageError
from bayeslaw.plan import Plan, read_plan
from bayeslaw.store import resolve_uri

if TYPE_CHECKING:
    from trainer.launch import Order
    from trainer.sweep import RunOutcome

EXECUTORS = ("local", "slurm")


def run(
    plan: Path,
    /,
    *,
    out: Path,
    tracking_uri: str | None = None,
    limit: OptionalInteger = None,
    workers: flags.Workers = None,
    slurm: flags.Slurm = None,
    execution: flags.Execution = None,
    as_json: flags.Json = False,
) -> int:
    """Train the runs of a plan; finished ones are skipped, begun ones gone on with, and failed ones tried again.

    Any number of these may work on one plan and folder: each run is trained by one of them.

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
        Train at most so many times now; with one worker.
    as_json
        Print one JSON object.
    """
    asked, jobs_of = flags.given(workers), flags.given(slurm)
    jobs, executor = asked.pop("jobs", 1), asked.pop("executor", EXECUTORS[0])
    if executor not in EXECUTORS:
        nearest = own("trainer.checks").nearest(executor, EXECUTORS)
        raise UsageError(f"--executor {executor}", allowed=", ".join(EXECUTORS), do=nearest)
    if executor == "local" and jobs_of:
        raise UsageError(
            f"--{next(iter(jobs_of)).replace('_', '-')} with the executor local", allowed="--executor slurm"
        )
    planned = read_plan(plan)
    carried_out = own("trainer.execution").Execution(**flags.given(execution))
    retries = {"retries": asked["retries"]} if "retries" in asked else {}
    alone = executor == "local" and jobs == 1 and asked.get("gpus_per_run", 1) == 1
    uri = resolve_uri(tracking_uri)
    if alone:
        outcomes = own("trainer.sweep").run_plan(
            planned, out, tracking_uri=uri, limit=limit, execution=carried_out, **retries
        )
        return _report(planned, outcomes, as_json)
    if limit is not None:
        raise UsageError(f"--limit {limit} with several workers", allowed="--limit with --jobs 1", do="leave it out")
    order = own("trainer.launch").Order(
        plan=plan,
        out=out,
        processes=asked.get("gpus_per_run", 1),
        nodes=jobs_of.pop("nodes", 1),
        tracked=executor == "slurm",
        execution=carried_out,
        **retries,
    )
    if executor == "slurm":
        return _submitted(planned, order, jobs, jobs_of, uri, gpus="gpus_per_run" in asked, as_json=as_json)
    outcomes = own("trainer.launch.local").launch(
        order, jobs=jobs, tracking_uri=uri, tell=lambda text: print(text, file=sys.stderr, flush=True)
    )
    return _report(planned, outcomes, as_json)


def _submitted(
    plan: Plan, order: Order, jobs: int, jobs_of: dict[str, Any], uri: str, *, gpus: bool, as_json: bool
) -> int:
    """Submit the workers, say how to follow them, and wait for them if that is asked for."""
    waits = jobs_of.pop("wait", False)
    executor, local, standing = map(own, ("trainer.launch.slurm", "trainer.launch.local", "trainer.standing"))
    asked = {"options": jobs_of.pop("slurm", ()), "setup": jobs_of.pop("slurm_setup", ())}
    slurm = executor.Slurm(gpus=gpus and order.execution.device != "cpu", **asked, **jobs_of)
    left = standing.left(standing.standings(plan, order.out, retries=order.retries))
    before = local.attempts_before(order)
    if not left:
        note("nothing is left to train: no job submitted")
        return _report(plan, local.outcomes(order, before), as_json)
    submitted = executor.submit(order, slurm, jobs=min(jobs, len(left)), tracking_uri=uri)
    status = standings.command("status", order.plan, order.out)
    note(f"jobs {', '.join(submitted.jobs)}, their logs in {submitted.folder}")
    if waits:
        executor.wait(submitted)
        return _report(plan, local.outcomes(order, before), as_json)
    if as_json:
        print_json(
            {"study": plan.study, "planned": len(plan.runs), "jobs": submitted.jobs, "logs": str(submitted.folder)}
        )
    else:
        print(f"{len(submitted.jobs)} workers for {len(left)} runs submitted; `{status}` says where they stand")
    return EXIT_OK


def _report(plan: Plan, outcomes: Sequence[RunOutcome], as_json: bool) -> int:
    """Print what became of the runs; the exit code says whether one went wrong."""
    busy = [outcome for outcome in outcomes if outcome.state == "busy"]
    cancelled = [outcome for outcome in outcomes if outcome.state == "cancelled"]
    done = [outcome for outcome in outcomes if outcome.state == "finished"]
    left = [outcome for outcome in outcomes if outcome.state in ("waiting", "stale")]
    bad = len(outcomes) - len(busy) - len(cancelled) - len(done) - len(left)
    if as_json:
        runs = [{**o.row, "state": o.state, "trained": o.trained, "error": o.error} for o in outcomes]
        print_json({"study": plan.study, "planned": len(plan.runs), "runs": runs})
        return EXIT_FAILURE if bad or left else EXIT_OK
    print_table(
        ("run", "state", "loss", "FLOPs"),
        [(o.run_id, o.state, _loss(o.row), f"{o.row.get('flops', 0.0):.4g}") for o in outcomes],
    )
    skipped = sum(not outcome.trained for outcome in done)
    line = f"{len(done)} of {len(plan.runs)} runs are finished, {skipped} since before; {bad} went wrong"
    if cancelled:
        line += f"; {len(cancelled)} cancelled"
    if left:
        line += f"; {len(left)} are left, the same command goes on with them"
    if busy:
        line += f"; {len(busy)} {'is' if len(busy) == 1 else 'are'} being trained by another process"
    print(line)
    return EXIT_FAILURE if bad or left else EXIT_OK


def _loss(row: dict[str, Any]) -> str:
    return f"{row['loss']:.4f}" if "loss" in row else "-"
