"""What was tried of a planned run: ``attempts.jsonl`` in its directory, and the mark that it is not to be trained.

One JSON line an event, appended by the worker that holds the run's claim `SWEEP`:

- ``begin``: ``time, host, pid, job, step, retries`` - steps that the journal shows, the limit that it is tried under;
- ``error``: ``time, error`` - why a process of several that train together gave up;
- ``end``: ``time, state, step, seconds, error`` - ``finished``, ``diverged``, ``failed``, ``killed`` or ``cancelled``;
- ``retry``: ``time`` - failures before it no longer count.

A ``begin`` without an ``end``, and nobody at it, is an attempt whose process died. Standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayeslaw.errors import JournalError
from trainer.rundir import Holder, holder

SWEEP = "sweep"
"""Name of the claim that a worker holds while it tries a run, around that of the training itself."""

FILE_NAME = "attempts.jsonl"
CANCELLED = "cancelled"
"""Name of the mark: who holds the run stops soon, and no worker takes it."""

RETRIES = 2
"""Failures in a row after which a run is tried once more for the last time."""


def recorded(run_dir: Path) -> list[dict[str, Any]]:
    """The events of a run in their order; a line cut off by a crash is left out."""
    try:
        lines = (run_dir / FILE_NAME).read_bytes().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def record(run_dir: Path, event: str, **fields: Any) -> None:
    """Append an event, and wait until the disk has it.

    Raises
    ------
    JournalError
        The file cannot be written.
    """
    line = json.dumps({"event": event, "time": time.time(), **fields}) + "\n"
    try:
        with open(run_dir / FILE_NAME, "a+b") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                line = "\n" + line  # after one that a crash cut off
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise JournalError(
            f"cannot write {run_dir / FILE_NAME}: {error.strerror}",
            do="free some disk space, or choose another output folder with --out; what is finished is safe",
        ) from error


def begin(run_dir: Path, *, step: int, retries: int) -> None:
    """Record that this process, which holds the claim, begins to try the run.

    Raises
    ------
    JournalError
        The file cannot be written.
    """
    by = holder(run_dir, SWEEP)
    record(run_dir, "begin", **(dataclasses.asdict(by) if by else {}), step=step, retries=retries)


@dataclass(frozen=True)
class History:
    """What the events of a run come to.

    Parameters
    ----------
    attempts : int
        How often it was begun.
    failures : int
        Attempts in a row that ended by an error or with their process, and got no further than those before.
    retries : int
        The limit that the last attempt was under.
    seconds : float
        Spent in all attempts that came to an end.
    last : str, optional
        State of the last attempt, ``died`` where its process did, None where it goes on or there was none.
    error : str, optional
        Why the last attempt failed.
    begun : float, optional
        When the last attempt began, in seconds since 1970.
    """

    attempts: int
    failures: int
    retries: int
    seconds: float
    last: str | None
    error: str | None
    begun: float | None


def history(events: Sequence[dict[str, Any]], step: int, *, held: bool) -> History:
    """Count the attempts of a run.

    Parameters
    ----------
    events : sequence of dict
        As `recorded` gives them.
    step : int
        Steps that the journal shows now.
    held : bool
        Whether somebody is at the run: then its last attempt goes on.
    """
    begins = [place for place, event in enumerate(events) if event["event"] == "begin"]
    failures, furthest, seconds = 0, 0, 0.0
    last = error = begun = None
    for number, place in enumerate(begins):
        newest = number + 1 == len(begins)
        stretch = events[place : None if newest else begins[number + 1]]
        begin, end = stretch[0], next((event for event in stretch if event["event"] == "end"), None)
        later = step if newest else events[begins[number + 1]].get("step", 0)
        reached = max(later, end.get("step", 0)) if end else later
        begun = begin["time"]
        if end:
            last, error = end["state"], end.get("error")
            seconds += end.get("seconds", 0.0)
        elif newest and held:
            last = error = None
        else:
            by = Holder(begin.get("host", ""), begin.get("pid", 0), begin.get("job"))
            last, error = "died", f"{by} died"
        if reached > furthest:
            failures, furthest = 0, reached
        failures += last in ("failed", "died")
        if any(event["event"] == "retry" for event in stretch):
            failures = 0
    retries = int(events[begins[-1]].get("retries", RETRIES)) if begins else RETRIES
    return History(len(begins), failures, retries, seconds, last, error, begun)
