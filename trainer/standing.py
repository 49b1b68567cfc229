"""Where each run of a plan stands, by its files alone: journal, claims, attempts, and the mark that it is cancelled.

Without torch: who only looks needs none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayeslaw import schema
from bayeslaw.errors import UsageError
from bayeslaw.journal import Journal
from bayeslaw.plan import Plan, PlannedRun
from trainer import rundir
from trainer.attempts import CANCELLED, SWEEP, History, history, recorded
from trainer.checks import nearest, some

WAITING, RUNNING, STALE, FAILED, GIVEN_UP = "waiting", "running", "stale", "failed", "given up"
STATES = (RUNNING, WAITING, STALE, FAILED, "finished", "diverged", GIVEN_UP, CANCELLED)
"""Stale: begun, nobody is at it, it will be gone on with. Failed: it will be tried again. Given up: it will not."""

LEFT = (WAITING, STALE, FAILED)
"""States of runs that a worker may take."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one planned run stands.

    Parameters
    ----------
    run_id : str
    run_dir : Path
    state : str
        One of `STATES`.
    row : dict
        Run-table row as far as known.
    attempts, failures : int
        How often it was begun by a worker, and failures in a row without a step gained.
    step, steps : int
        Optimiser steps done, and those of the whole run.
    loss : float, optional
        Validation loss at the end, else the newest training loss, nats per token.
    seconds : float
        Spent by workers until now.
    eta : float, optional
        Seconds left by the speed of the attempt in hand; None where nobody is at it or nothing is known.
    flops_per_second : float, optional
        Speed of the attempt in hand.
    holder : Holder, optional
        Who is at it, or was last.
    last_sign : float, optional
        When that process last renewed its claim, in seconds since 1970.
    by_sweep : bool
        Whether who is at it is a worker, which heeds the mark that a run is cancelled.
    error : str, optional
        Why the last attempt failed.
    """

    run_id: str
    run_dir: Path
    state: str
    row: dict[str, Any]
    attempts: int
    failures: int
    step: int
    steps: int
    loss: float | None
    seconds: float
    eta: float | None
    flops_per_second: float | None
    holder: rundir.Holder | None
    last_sign: float | None
    by_sweep: bool
    error: str | None

    def as_dict(self) -> dict[str, Any]:
        """The standing as JSON can hold it."""
        kept = (
            "run_id",
            "state",
            "attempts",
            "failures",
            "step",
            "steps",
            "loss",
            "seconds",
            "eta",
            "last_sign",
            "error",
        )
        by = self.holder
        who = {"host": by.host if by else None, "pid": by.pid if by else None, "job": by.job if by else None}
        return {name: getattr(self, name) for name in kept} | who | {"run_dir": str(self.run_dir)}


def standings(plan: Plan, out: Path, *, retries: int | None = None) -> list[Standing]:
    """Where every run of the plan stands, in the plan's order; see `standing`."""
    return [standing(run, out, retries=retries) for run in plan.runs]


def standing(run: PlannedRun, out: Path, *, retries: int | None = None, mine: bool = False) -> Standing:
    """Where one planned run stands.

    Parameters
    ----------
    run : PlannedRun
    out : Path
        Output folder of the sweep.
    retries : int, optional
        Failures in a row after which it is tried once more; by default those that it was last tried under.
    mine : bool
        This process holds the worker's claim itself, which then counts for nothing.
    """
    run_dir = rundir.run_directory(out, run.run_id)
    there = rundir.attempt(run_dir, run.config_hash)
    worked = not mine and rundir.alive(run_dir, SWEEP)
    claim = SWEEP if worked or not rundir.alive(run_dir) else rundir.LOCK
    held = worked or claim == rundir.LOCK
    batch = int(run.config["optimizer"]["batch_tokens"])
    step = _step(there, batch)
    past = history(recorded(run_dir), step, held=held)
    state = _state(run_dir, there, past, held, past.retries if retries is None else retries)
    by = rundir.holder(run_dir, claim) or rundir.holder(run_dir)
    speed = _speed(there) if state == RUNNING else None
    steps = int(run.row["tokens"]) // batch
    since = time.time() - past.begun if state == RUNNING and past.begun is not None else 0.0
    error = past.error or (there.end.get("error") if there and there.end else rundir.damage(run_dir))
    return Standing(
        run_id=run.run_id,
        run_dir=run_dir,
        state=state,
        row=there.row if there and there.state in rundir.SETTLED else run.known,
        attempts=past.attempts,
        failures=past.failures,
        step=step,
        steps=steps,
        loss=_loss(there),
        seconds=past.seconds + max(0.0, since),
        eta=(steps - step) / speed if speed else None,
        flops_per_second=speed * batch * run.row["flops_per_token"] if speed else None,
        holder=by,
        last_sign=rundir.last_sign(run_dir, claim),
        by_sweep=worked,
        error=None if state in rundir.SETTLED else error,
    )


def named(plan: Plan, names: Iterable[str]) -> tuple[PlannedRun, ...]:
    """The runs of a plan that have these names; all of them where none is given.

    Raises
    ------
    UsageError
        A name that no run of the plan has.
    """
    known = {run.run_id: run for run in plan.runs}
    chosen = dict.fromkeys(names)
    for name in chosen:
        if name not in known:
            raise UsageError(f"no run {name!r} in the plan", allowed=some(list(known)), do=nearest(name, known))
    return tuple(known[name] for name in chosen) or plan.runs


def left(stand: Sequence[Standing]) -> list[Standing]:
    """Those that a worker may take."""
    return [each for each in stand if each.state in LEFT]


def _state(run_dir: Path, there: Journal | None, past: History, held: bool, retries: int) -> str:
    if there and there.state in rundir.SETTLED:
        return there.state
    if held:
        return RUNNING
    if (run_dir / CANCELLED).exists():
        return CANCELLED
    if past.failures > retries:
        return GIVEN_UP
    if past.last == "failed" or (there and there.state == "failed"):
        return FAILED
    return STALE if there or past.attempts else WAITING


def _step(there: Journal | None, batch_tokens: int) -> int:
    """Optimiser steps that the journal shows."""
    if there is None:
        return 0
    if there.end and "tokens" in there.end["row"]:
        return int(there.end["row"]["tokens"]) // batch_tokens
    newest = next((record for record in reversed(there.records) if "step" in record), None)
    return int(newest["step"]) if newest else 0


def _speed(there: Journal | None) -> float | None:
    """Steps a second of the attempt in hand, by the journal's own times."""
    if there is None:
        return None
    begun = max(place for place, record in enumerate(there.records) if record["event"] in ("start", "resume"))
    points = [record for record in there.records[begun:] if record["event"] == "metrics"]
    if len(points) < 2 or points[-1]["time"] <= points[0]["time"] or points[-1]["step"] <= points[0]["step"]:
        return None
    return float((points[-1]["step"] - points[0]["step"]) / (points[-1]["time"] - points[0]["time"]))


def _loss(there: Journal | None) -> float | None:
    if there is None:
        return None
    if "loss" in there.row:
        return float(there.row["loss"])
    losses = (record["values"].get(schema.METRIC_TRAIN_LOSS) for record in reversed(list(there.metrics)))
    return next((float(loss) for loss in losses if loss is not None), None)
