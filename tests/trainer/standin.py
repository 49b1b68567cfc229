"""Stands in for torch in tests of launching: a worker whose training only writes a journal.

BAYESLAW_STANDIN holds JSON: ``seconds`` a step takes; ``stillborn``, killed before any run; and ``faults`` by run:
``die`` (killed at step 5 of its first so many attempts) or ``fail`` (an error there).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from bayeslaw.journal import JournalWriter
from bayeslaw.plan import Plan, PlannedRun
from trainer import worker
from trainer.attempts import recorded
from trainer.rundir import attempt, claimed, run_directory

STEPS, FAULT_AT, SAVED_EVERY = 10, 5, 2


def plan_of(runs: int, study: str = "standin") -> Plan:
    """A plan that only a stand-in can train."""
    return Plan(
        study,
        tuple(
            PlannedRun(
                {"optimizer": {"batch_tokens": 1}, "data": {}, "seed": seed},
                {"run_id": f"a/{seed}", "seed": seed, "tokens": STEPS, "flops": 10.0 * STEPS, "flops_per_token": 10.0},
            )
            for seed in range(runs)
        ),
    )


def trained(run: PlannedRun, out: Path, *, seconds: float = 0.0, faults: dict | None = None):
    """Write the journal of a run as training would, and go on with one that was begun."""
    run_dir = run_directory(out, run.run_id)
    fault = (faults or {}).get(run.run_id, {})
    tries = sum(event["event"] == "begin" for event in recorded(run_dir))
    with claimed(run_dir), contextlib.closing(JournalWriter(run_dir)) as journal:
        there = attempt(run_dir, run.config_hash)
        step = there.records[-1].get("step", 0) // SAVED_EVERY * SAVED_EVERY if there else 0
        if there:
            journal.resume(step=step, versions={}, row={})
        else:
            journal.start(
                study="standin",
                config=run.config,
                config_hash=run.config_hash,
                versions={},
                row=run.known,
                sweep={"plan": "5", "runs": 1},
            )
        try:
            while step < STEPS:
                time.sleep(seconds)
                step += 1
                journal.metrics(step, {"train/loss": 5.0 / step})
                if step == FAULT_AT and 0 < tries <= fault.get("die", 0):
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == FAULT_AT and 0 < tries <= fault.get("fail", 0):
                    raise OSError("no luck")
        except BaseException as error:
            state = "failed" if isinstance(error, Exception) else "killed"
            journal.end(state=state, row={"tokens": step}, error=str(error))
            raise
        row = {"tokens": STEPS, "flops": 10.0 * STEPS, "loss": 0.5}
        journal.end(state="finished", row=row)
    return "finished", run.known | row


if __name__ == "__main__":
    told = json.loads(os.environ.get("BAYESLAW_STANDIN", "{}"))
    place = sys.argv.index("--out")
    if told.pop("stillborn", False):
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(worker.main(trained=lambda run: trained(run, Path(sys.argv[place + 1]), **told)))
