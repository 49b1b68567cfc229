"""Simulations of a calibration, made by one process or several and kept in a folder that can be gone on with.

A folder holds ``settings.json``, what decides the simulations, and ``simulations.jsonl``, one line each, in the order
in which they were done.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bayeslaw.calibration.trials import Calibration
from bayeslaw.errors import FitError, UsageError
from bayeslaw.files import written_whole

LEAST = 10
"""Fewer simulations than this tell nothing."""

EVERY = 10.0
"""Seconds between words on how far it is."""

SIMULATIONS, SETTINGS = "simulations.jsonl", "settings.json"


def simulations_of(
    calibration: Calibration,
    count: int,
    *,
    out: Path | None = None,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda message: None,
) -> list[dict[str, Any]]:
    """Make the simulations that a folder does not hold yet.

    Each is written as a line of its own as soon as it is done, so a run that is stopped goes on where it was, and a
    folder that holds a hundred grows to a thousand. Which processes make them changes nothing.

    Parameters
    ----------
    calibration : Calibration
    count : int
        How many in all: those numbered from 0.
    out : Path, optional
        The folder; made where missing. Without one the simulations are kept in memory only.
    jobs : int
        Processes; each samples with as many threads as there are chains and cores.
    progress : callable
        Told in a few words what is being done.

    Returns
    -------
    list of dict
        As `Calibration.simulate` makes them, in order.

    Raises
    ------
    UsageError
        The folder holds something else, or a number is too small.
    FitError
        It cannot be written.
    """
    for name, value, least in (("simulations", count, LEAST), ("jobs", jobs, 1)):
        if value < least:
            raise UsageError(f"--{name} {value}", allowed=f"{least} or more")
    found = {} if out is None else _opened(out, calibration, progress)
    missing = [number for number in range(count) if number not in found]
    if found:
        progress(f"{count - len(missing)} of {count} simulations are in {out} already")
    started = told = time.perf_counter()
    for done, record in enumerate(_made(calibration, missing, jobs), 1):
        found[record["simulation"]] = record
        if out is not None:
            _append(out, json.dumps(record))
        now = time.perf_counter()
        if now - told >= EVERY or done == len(missing):
            each = (now - started) / done
            left = (len(missing) - done) * each
            progress(
                f"{count - len(missing) + done} of {count} simulations, {each:.1f} s each, {_duration(left)} to go"
            )
            told = now
    return [found[number] for number in range(count)]


def _made(calibration: Calibration, numbers: list[int], jobs: int) -> Iterator[dict[str, Any]]:
    """Simulations as they are done."""
    if jobs == 1 or len(numbers) < 2:
        yield from map(calibration.simulate, numbers)
        return
    # Threads of a sampler do not survive a fork.
    pool = ProcessPoolExecutor(
        min(jobs, len(numbers)), mp_context=get_context("spawn"), initializer=_prepare, initargs=(calibration,)
    )
    try:
        yield from (future.result() for future in as_completed([pool.submit(_simulate, i) for i in numbers]))
    except BrokenProcessPool as error:
        raise FitError(
            f"one of {jobs} processes was killed, perhaps for want of memory", do="run it again with fewer --jobs"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_prepared: list[Calibration] = []


def _prepare(calibration: Calibration) -> None:
    """Make a process ready; it is the parent that Ctrl-C ends, when the simulations in hand are done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepared.append(calibration)


def _simulate(number: int) -> dict[str, Any]:
    return _prepared[-1].simulate(number)


def _opened(out: Path, calibration: Calibration, progress: Callable[[str], None]) -> dict[int, dict[str, Any]]:
    """The simulations of a folder by number; a new folder gets its settings."""
    path, settings = out / SIMULATIONS, out / SETTINGS
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file", allowed="a folder", do="choose another --out")
    if not settings.is_file():
        if out.is_dir() and any(out.iterdir()):
            raise UsageError(
                f"--out {out} is no calibration and not empty", allowed="a new folder, or that of the same calibration",
                do="choose another --out",
            )  # fmt: skip
        with written_whole(settings, error=FitError) as partial:
            partial.write_text(json.dumps({"key": calibration.key, **calibration.settings}, indent=1) + "\n")
    try:
        held = json.loads(settings.read_text())
        texts = path.read_text(errors="replace").split("\n") if path.is_file() else [""]
    except (OSError, ValueError) as error:
        raise FitError(f"cannot read {out}: {error}", do="choose another --out") from error
    if not isinstance(held, dict) or held.get("key") != calibration.key:
        raise UsageError(
            f"--out {out} holds a calibration with other settings: {_differences(held, calibration.settings)}",
            allowed="a new folder, or the same design, model, seed and sampler",
            do="choose another --out, or give the settings of that one",
        )
    if texts[-1]:  # a line cut off by a crash: the next one must not continue it
        _append(out, "")
    records = [record for text in texts if (record := _whole(text, calibration.key)) is not None]
    if damaged := sum(1 for text in texts if text.strip()) - len(records):
        progress(f"{damaged} damaged line{'s' if damaged > 1 else ''} in {path}: those simulations are made again")
    return {record["simulation"]: record for record in records}


def _whole(text: str, key: str) -> dict[str, Any] | None:
    """The simulation that a line holds, None where it does not hold one."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(record, dict) and record.get("settings") == key and {"simulation", "seconds"} <= set(record)
    return record if whole and ("quantities" in record or "failed" in record) else None


def _append(out: Path, line: str) -> None:
    """Write a line and see that it is on its way to the disk."""
    try:
        with open(out / SIMULATIONS, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise FitError(
            f"cannot write {out / SIMULATIONS}: {error.strerror or error}", do="free some space, and run it again"
        ) from error


def _differences(held: Any, settings: Mapping[str, Any]) -> str:
    """Which settings a folder has otherwise, with both values where they are short."""
    if not isinstance(held, dict):
        return "none that can be read"
    out = []
    for name, value in settings.items():
        there = held.get(name)
        if name == "spec" and isinstance(there, dict):
            out += [f"{key} {there.get(key)}, not {own}" for key, own in value.items() if there.get(key) != own]
        elif there != value:
            out.append(name if isinstance(value, dict) else f"{name} {there}, not {value}")
    return "; ".join(out) or "its key"


def _duration(seconds: float) -> str:
    """A time in words a person needs no more of: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
