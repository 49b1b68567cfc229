"""``python -m trainer.worker``: one worker of a sweep as a process of its own, or one process of several of a run.

A worker works as long as its standard input is open: who launched it closes it to stop it, or by dying.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bayeslaw.errors import EXIT_INTERRUPTED, EXIT_OK, BayeslawError
from bayeslaw.plan import Plan, PlannedRun, read_plan
from trainer import attempts
from trainer.execution import Execution
from trainer.launch import Order, torchrun
from trainer.rundir import SETTLED, alive, attempt, reason, run_directory
from trainer.standing import named
from trainer.sweep import RunOutcome, Trained, trained_here, work
from trainer.tracking import Tracking
from trainer.watch import Watch

STOP = "stop"
"""Name of the mark by which a worker has the processes that train its run save and end."""


def main(arguments: Sequence[str] | None = None, trained: Trained | None = None) -> int:
    """Work through a plan; the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        As `trainer.launch.Order.arguments` gives them; those of the process by default.
    trained : callable, optional
        What trains a run, in the place of `trainer.loop.train`.
    """
    order, name, run = _told(arguments)
    try:
        plan = read_plan(order.plan)
        if run is not None:
            return _take_part(plan, order, run)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the launcher of a job takes it, and stops the worker
        with Watch(launcher=sys.stdin.fileno()) as watch, _tracking(order) as tracking:
            if trained is None and order.processes > 1:
                trained = _together(order, name)
            elif trained is None:
                trained = trained_here(plan, order.out, tracking, order.execution, quiet=True)
            work(plan, order.out, trained, watch=watch, retries=order.retries, tell=_teller(name, len(plan.runs)))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BayeslawError as error:
        if run is None or _first():
            print(f"[{name}] error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return EXIT_OK


def _told(arguments: Sequence[str] | None) -> tuple[Order, str, str | None]:
    parser = argparse.ArgumentParser(prog="trainer.worker", description="One worker of `bayeslaw sweep run`.")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="worker")
    for flag in ("--retries", "--processes", "--nodes"):
        parser.add_argument(flag, type=int, default=getattr(Order, flag[2:]))
    parser.add_argument("--tracked", action="store_true")
    parser.add_argument("--execution", type=json.loads, default={})
    parser.add_argument("--only")
    told = vars(parser.parse_args(arguments))
    name, run, execution = told.pop("name"), told.pop("only"), Execution(**told.pop("execution"))
    return Order(**told, execution=execution), name, run


@contextlib.contextmanager
def _tracking(order: Order) -> Iterator[Tracking | None]:
    """What delivers the worker's journals, waited for at its end; one that is stopped has no time for that.

    What then is not delivered, is by the worker that goes on with the run.
    """
    tracking = Tracking() if order.tracked else None
    yield tracking
    if tracking:
        tracking.close()


def _teller(name: str, runs: int) -> Any:
    def tell(number: int, outcome: RunOutcome) -> None:
        if outcome.trained:  # what others trained, they tell
            print(f"[{name}] [{number}/{runs}] {outcome}", file=sys.stderr, flush=True)

    return tell


def _together(order: Order, name: str) -> Trained:
    """What has a run trained by several processes."""

    def trained(run: PlannedRun) -> tuple[str, dict[str, Any]]:
        run_dir = run_directory(order.out, run.run_id)
        command = [*torchrun.command(order), *order.arguments(name), "--only", run.run_id]
        env = os.environ | {"PYTHONSAFEPATH": "1"}  # no other `trainer` of the working folder
        (run_dir / STOP).unlink(missing_ok=True)  # of a worker that was killed
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env) as child:
            try:
                child.wait()
            except BaseException:  # a signal, which neither torchrun nor srun would leave the time to save for
                (run_dir / STOP).touch()
                try:
                    child.wait()
                except BaseException:
                    child.kill()
                    raise
                raise
            finally:
                (run_dir / STOP).unlink(missing_ok=True)
        there = attempt(run_dir, run.config_hash)
        if there and there.state in SETTLED:
            return there.state, there.row
        errors = [event["error"] for event in attempts.recorded(run_dir)[-order.processes :] if "error" in event]
        raise BayeslawError(errors[-1] if errors else f"torchrun ended with code {child.returncode}")

    return trained


def _take_part(plan: Plan, order: Order, name: str) -> int:
    """Be one of the processes that train a run, as long as a worker holds the run's claim and wants it trained."""
    (run,) = named(plan, [name])
    run_dir = run_directory(order.out, run.run_id)

    def over() -> bool:
        return (run_dir / STOP).exists() or not alive(run_dir, attempts.SWEEP)

    try:
        with Watch() as watch, watch.over(over if _first() else bool), _tracking(order) as tracking:
            trained_here(plan, order.out, tracking, order.execution, quiet=True)(run)
    except Exception as error:
        if _first():
            attempts.record(run_dir, "error", error=reason(error))
        raise
    except SystemExit:
        return EXIT_OK  # saved: torchrun would tell of a failure
    return EXIT_OK


def _first() -> bool:
    """Whether this process is the one that writes."""
    return os.environ.get("RANK", "0") == "0"


if __name__ == "__main__":
    sys.exit(main())
