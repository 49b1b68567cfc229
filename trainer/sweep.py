"""A worker: walks a plan, takes what is left and nobody else is at, trains it, and goes on until nothing is left.

Any number of workers share a plan by claims alone, wherever they run. Without torch until something is trained.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayeslaw.errors import JournalError, UsageError
from bayeslaw.journal import FILE_NAME
from bayeslaw.plan import Plan, PlannedRun
from trainer import attempts
from trainer.attempts import CANCELLED, RETRIES, SWEEP
from trainer.checks import require_count
from trainer.data import HUB_CORPORA, load_corpus, on_this_machine
from trainer.execution import Execution
from trainer.presets import PRESETS
from trainer.rundir import SETTLED, BusyError, claimed, reason, run_directory
from trainer.standing import GIVEN_UP, LEFT, RUNNING, Standing, standing
from trainer.tracking import Tracking
from trainer.watch import Watch

BUSY = "busy"

Trained = Callable[[PlannedRun], tuple[str, dict[str, Any]]]
"""What trains a planned run: gives its state, ``finished`` or ``diverged``, and its run-table row."""


@dataclass(frozen=True)
class RunOutcome:
    """What became of one planned run.

    Parameters
    ----------
    run_id : str
    state : str
        ``finished``, ``diverged``, ``failed``, ``cancelled``, ``given up`` when it failed as often as it may, or
        ``busy`` while another process trains it.
    row : dict
        Run-table row as far as known.
    run_dir : Path
    trained : bool
        False when an earlier sweep had finished it, another process is at it, or it is not to be trained.
    seconds : float
        Wall time spent on it now.
    error : str, optional
        Why it failed.
    """

    run_id: str
    state: str
    row: dict[str, Any]
    run_dir: Path
    trained: bool
    seconds: float
    error: str | None = None

    def __str__(self) -> str:
        if self.state == BUSY:
            return f"{self.run_id}: being trained by another process, skipped"
        if not self.trained and self.state == GIVEN_UP:
            return f"{self.run_id}: given up, skipped; `bayeslaw sweep retry` has it tried again; {self.error}"
        if not self.trained:
            return f"{self.run_id}: {self.state} before, skipped"
        loss = f", loss {self.row['loss']:.4f}" if "loss" in self.row else ""
        return f"{self.run_id}: {self.state}{loss}, {self.seconds:.1f} s" + (f"; {self.error}" if self.error else "")


def unread(plan: Plan) -> list[str]:
    """The corpora of a plan that are on the hub and not on this machine."""
    named = dict.fromkeys(run.config.get("data", {}).get("corpus") for run in plan.runs)
    return [corpus for corpus in named if corpus in HUB_CORPORA and not on_this_machine(corpus)]


def require_read(plan: Plan) -> None:
    """Have all corpora of a plan on this machine before anything is trained.

    Raises
    ------
    UsageError
        One of `unread` cannot be downloaded.
    """
    for corpus in unread(plan):
        try:
            load_corpus(corpus)
        except UsageError as error:
            again = plan.study if plan.study in PRESETS else "NAME"
            raise UsageError(
                error.what,
                allowed=error.allowed,
                do=f"plan again with `bayeslaw sweep plan --preset {again} --corpus PATH`, or {error.do}",
            ) from error


def require_device(execution: Execution, gpus: bool) -> None:
    """Refuse GPUs that are not there, before every run of a plan fails of it.

    Raises
    ------
    UsageError
        The device is cuda, and this machine has none.
    """
    if execution.device == "cuda" and not gpus:
        raise UsageError(
            "--device cuda, and this machine shows no GPU",
            allowed="auto, cpu",
            do="leave --device out, or run the plan where there is one; nothing was tried",
        )


def run_plan(
    plan: Plan,
    out: Path,
    *,
    tracking_uri: str | None = None,
    limit: int | None = None,
    quiet: bool = False,
    execution: Execution | None = None,
    retries: int = RETRIES,
) -> list[RunOutcome]:
    """Train the runs of a plan one after another in this process, into ``out/runs/``.

    A run whose journal says that it came to its end with the same config is not trained again; one that was begun is
    gone on with. A run that fails does not stop the others, and is tried again after them. One that another process is
    training is left to it.

    Parameters
    ----------
    plan : Plan
    out : Path
        Output folder.
    tracking_uri : str, optional
        MLflow store that the journals are delivered to; without it the journals are all there is.
    limit : int, optional
        Train at most so many times now.
    quiet : bool
        Show no progress on stderr.
    execution : Execution, optional
        How the runs are carried out.
    retries : int
        A run that failed so often in a row is tried once more, and then given up.

    Returns
    -------
    One outcome for each planned run reached, in the plan's order.

    Raises
    ------
    UsageError
        A limit below 1, or a corpus of `unread` that cannot be downloaded: nothing is trained.
    JournalError
        The output folder cannot be written.
    KeyboardInterrupt, SystemExit
        Ctrl-C or SIGTERM; the run in training ends as ``killed``, finished ones stay.
    """
    if limit is not None:
        require_count("limit", limit)
    require_count("retries", retries, 0)
    require_read(plan)
    if (execution or Execution()).device == "cuda":
        import torch

        require_device(execution or Execution(), torch.cuda.is_available())

    def tell(number: int, outcome: RunOutcome) -> None:
        if not quiet:
            print(f"[{number}/{len(plan.runs)}] {outcome}", file=sys.stderr, flush=True)

    with Watch() as watch, Tracking(tracking_uri) if tracking_uri else contextlib.nullcontext() as tracking:
        trained = trained_here(plan, out, tracking, execution or Execution(), quiet=quiet)
        outcomes = work(plan, out, trained, watch=watch, retries=retries, limit=limit, tell=tell)
        if tracking:
            # finished earlier; a busy one is delivered by the process that trains it
            tracking.follow(*(o.run_dir / FILE_NAME for o in outcomes if o.state in SETTLED and not o.trained))
    return outcomes


def trained_here(plan: Plan, out: Path, tracking: Tracking | None, execution: Execution, *, quiet: bool) -> Trained:
    """What trains a run of the plan in this process."""

    def trained(run: PlannedRun) -> tuple[str, dict[str, Any]]:
        from trainer.config import TrainConfig
        from trainer.loop import train

        result = train(
            TrainConfig.from_dict(run.config),
            out,
            study=plan.study,
            sweep={"plan": plan.sweep, "runs": len(plan.runs)},
            tracking=tracking,
            quiet=quiet,
            execution=execution,
        )
        return result.state, result.row

    return trained


def work(
    plan: Plan,
    out: Path,
    trained: Trained,
    *,
    watch: Watch,
    retries: int,
    limit: int | None = None,
    tell: Callable[[int, RunOutcome], None],
) -> list[RunOutcome]:
    """Pass over the plan, take what is left, and pass again, until a pass finds nothing to take.

    Parameters
    ----------
    plan, out, retries, limit
        As for `run_plan`.
    trained : callable
        Trains one run.
    watch : Watch
        Hears who asks to stop.
    tell : callable
        Told of every outcome, with the run's number in the plan.

    Returns
    -------
    The newest outcome of every planned run reached, in the plan's order.
    """
    outcomes: dict[str, RunOutcome] = {}
    times, before = 0, -1
    while before < times:
        before = times
        for number, run in enumerate(plan.runs, start=1):
            if limit is not None and times >= limit:
                break
            known = outcomes.get(run.run_id)
            if known and known.state in SETTLED:
                continue
            watch.heed()
            outcome = _taken(run, out, trained, watch, retries)
            times += outcome.trained
            if known and known.trained and outcome.state == GIVEN_UP:
                continue  # what it failed of says more
            outcomes[run.run_id] = outcome
            if known is None or outcome.trained or outcome.state != known.state:
                tell(number, outcome)
    return [outcomes[run.run_id] for run in plan.runs if run.run_id in outcomes]


def _taken(run: PlannedRun, out: Path, trained: Trained, watch: Watch, retries: int) -> RunOutcome:
    """The outcome of a run that is trained now if that is for this worker to do."""
    run_dir = run_directory(out, run.run_id)
    stands = standing(run, out, retries=retries)
    if stands.state not in LEFT:
        return _skipped(stands)
    try:
        with claimed(run_dir, SWEEP):
            stands = standing(run, out, retries=retries, mine=True)  # another may have had it meanwhile
            if stands.state not in LEFT:
                return _skipped(stands)
            return _attempted(run, out, trained, watch, stands, retries)
    except BusyError:
        return RunOutcome(run.run_id, BUSY, run.known, run_dir, trained=False, seconds=0.0)


def _skipped(stands: Standing) -> RunOutcome:
    state = BUSY if stands.state == RUNNING else stands.state
    return RunOutcome(stands.run_id, state, stands.row, stands.run_dir, trained=False, seconds=0.0, error=stands.error)


def _attempted(
    run: PlannedRun, out: Path, trained: Trained, watch: Watch, stands: Standing, retries: int
) -> RunOutcome:
    """Train a run that this process has claimed, and record how that went."""
    run_dir, begun = stands.run_dir, time.monotonic()
    attempts.begin(run_dir, step=stands.step, retries=retries)

    def ended(state: str, error: str | None = None) -> float:
        seconds = time.monotonic() - begun
        step = standing(run, out, mine=True).step
        attempts.record(run_dir, "end", state=state, step=step, seconds=seconds, error=error)
        return seconds

    try:
        with watch.over((run_dir / CANCELLED).exists):
            state, row = trained(run)
    except BusyError:
        ended(BUSY)
        raise
    except JournalError as error:
        with contextlib.suppress(JournalError):  # most likely for the same reason
            ended("failed", reason(error))
        raise
    except Exception as error:
        why = reason(error)
        return RunOutcome(run.run_id, "failed", run.known, run_dir, True, ended("failed", why), why)
    except (KeyboardInterrupt, SystemExit):
        if not watch.ended:
            with contextlib.suppress(JournalError):
                ended("killed")
            raise
        return RunOutcome(run.run_id, CANCELLED, run.known, run_dir, True, ended(CANCELLED))
    return RunOutcome(run.run_id, state, row, run_dir, True, ended(state))
