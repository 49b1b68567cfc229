"""Stands in for torch where faults are tried: a worker whose training writes a journal and checkpoints of one number.

``python -m tests.services.journalling PLAN OUT MODULE JOBS`` launches a plan, as `bayeslaw sweep run` does, with
workers of this module or of `trainer.worker`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from bayeslaw.journal import JournalWriter
from bayeslaw.plan import Plan, PlannedRun
from trainer import worker
from trainer.execution import Execution
from trainer.launch import Order, local
from trainer.rundir import attempt, claimed, run_directory
from trainer.signals import Signals, stopped

STEPS, SECONDS, SAVED_EVERY = 40, 0.05, 10
NAMES = ("train/loss", "train/gradient_norm", "train/flops", "train/tokens_per_second")


def plan_of(runs: int, study: str) -> Plan:
    """A plan that only a stand-in can train."""

    def run(seed: int) -> PlannedRun:
        config = {"optimizer": {"batch_tokens": 1}, "data": {}, "seed": seed, "study": study}
        row = {
            "run_id": f"{study}/{seed}",
            "seed": seed,
            "tokens": STEPS,
            "flops": 10.0 * STEPS,
            "flops_per_token": 10.0,
        }
        return PlannedRun(config, row)

    return Plan(study, tuple(map(run, range(runs))))


def value(seed: int, name: str, step: int) -> float:
    """The same whenever it is computed."""
    return (seed + 1.0) / (step + len(name))


def trained(run: PlannedRun, plan: Plan, out: Path) -> tuple[str, dict[str, Any]]:
    """Train one run, from its checkpoint where there is one."""
    run_dir = run_directory(out, run.run_id)
    saved = run_dir / "step"
    with claimed(run_dir), contextlib.closing(JournalWriter(run_dir)) as journal, Signals() as signals:
        there = attempt(run_dir, run.config_hash)
        step = int(saved.read_text()) if there and saved.exists() else 0
        if there:
            journal.resume(step=step, versions={}, row={})
        else:
            journal.start(
                study=plan.study,
                config=run.config,
                config_hash=run.config_hash,
                versions={},
                row=run.known,
                sweep={"plan": plan.sweep, "runs": len(plan.runs)},
            )
        state: str = "failed"
        try:
            while step < STEPS:
                time.sleep(SECONDS)
                step += 1
                journal.metrics(step, {name: value(run.config["seed"], name, step) for name in NAMES})
                if step % SAVED_EVERY == 0:
                    journal.sync()
                    partial = saved.with_suffix(".partial")
                    partial.write_text(str(step))
                    partial.replace(saved)
                if signals.requested is not None:
                    state = "killed"
                    raise stopped(signals.requested)
            state = "finished"
        finally:
            row = {"tokens": step, "flops": 10.0 * step} | ({"loss": 0.5} if state == "finished" else {})
            journal.end(state=state, row=row, error=None if state == "finished" else "stopped")
    return state, run.known | row


def launch(plan: str, out: str, module: str, jobs: str) -> None:
    often = Execution(checkpoint_every=SAVED_EVERY)
    order = Order(plan=Path(plan), out=Path(out), module=module, retries=20, execution=often)
    uri = os.environ["MLFLOW_TRACKING_URI"]
    local.launch(order, jobs=int(jobs), tracking_uri=uri, tell=lambda text: print(text, file=sys.stderr, flush=True))


if __name__ == "__main__":
    if len(sys.argv) == 5:
        launch(*sys.argv[1:])
    else:
        from bayeslaw.plan import read_plan

        place = Path(sys.argv[sys.argv.index("--out") + 1])
        known = read_plan(Path(sys.argv[1]))
        sys.exit(worker.main(trained=lambda run: trained(run, known, place)))
