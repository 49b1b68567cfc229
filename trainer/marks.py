"""Retry and cancel: what a person says of the runs of a plan, kept as files that workers heed wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bayeslaw.errors import JournalError
from bayeslaw.plan import Plan
from trainer import rundir
from trainer.attempts import CANCELLED, SWEEP, record
from trainer.standing import FAILED, GIVEN_UP, RUNNING, Standing, named, standing


@dataclass(frozen=True)
class Marked:
    """What became of one run that was to be tried again, or cancelled.

    Parameters
    ----------
    run_id : str
    before : str
        Where it stood, see `trainer.standing.STATES`.
    done : bool
        Whether anything was to be done, and is.
    text : str
        What happened.
    """

    run_id: str
    before: str
    done: bool
    text: str


def cancel(plan: Plan, out: Path, runs: Iterable[str] = ()) -> list[Marked]:
    """Have runs not trained, and those stopped that workers are training; by default all that are not settled.

    A worker notices the mark within seconds, saves its run as for any stop, and goes on with the next one.

    Parameters
    ----------
    plan : Plan
    out : Path
        Output folder of the sweep.
    runs : iterable of str
        Their names.

    Raises
    ------
    UsageError
        A name that no run of the plan has.
    JournalError
        The output folder cannot be written.
    """

    def mark(stands: Standing) -> tuple[bool, str]:
        if stands.state in rundir.SETTLED:
            return False, f"{stands.state} before, and stays so"
        if stands.state == CANCELLED:
            return False, "cancelled before"
        if stands.state == RUNNING and not stands.by_sweep:
            return False, f"left alone: {stands.holder or 'a process'} trains it, which is no worker of a sweep"
        try:
            stands.run_dir.mkdir(parents=True, exist_ok=True)
            (stands.run_dir / CANCELLED).touch()
        except OSError as error:
            raise JournalError(
                f"cannot write {stands.run_dir}: {error.strerror}",
                do="cancel as who started the sweep, or free some space",
            ) from error
        if stands.state == RUNNING:
            return True, f"cancelled: {stands.holder or 'its worker'} saves it and goes on with another"
        return True, "cancelled"

    return _each(plan, out, runs, mark)


def retry(plan: Plan, out: Path, runs: Iterable[str] = ()) -> list[Marked]:
    """Have runs tried again that failed, were given up or cancelled: by default all of them.

    Workers that are at the plan take them in their next pass; nothing is started here.

    Parameters
    ----------
    plan, out, runs
        As for `cancel`.

    Raises
    ------
    UsageError
        A name that no run of the plan has.
    JournalError
        The output folder cannot be written.
    """

    def arm(stands: Standing) -> tuple[bool, str]:
        if stands.state == RUNNING and (stands.run_dir / CANCELLED).exists():
            return False, "its worker is still stopping it; again in a moment"
        if stands.state not in (FAILED, GIVEN_UP, CANCELLED):
            why = "the same config would diverge again" if stands.state == "diverged" else "nothing keeps it back"
            return False, f"{stands.state}: {why}"
        try:
            with rundir.claimed(stands.run_dir, SWEEP):
                record(stands.run_dir, "retry")
                (stands.run_dir / CANCELLED).unlink(missing_ok=True)
        except rundir.BusyError:
            return False, "a worker has it again already"
        return True, "armed: it will be tried again"

    return _each(plan, out, runs, arm)


def _each(plan: Plan, out: Path, runs: Iterable[str], do: Callable[[Standing], tuple[bool, str]]) -> list[Marked]:
    done = []
    for run in named(plan, runs):
        stands = standing(run, out)
        done.append(Marked(run.run_id, stands.state, *do(stands)))
    return done
