"""The run journal: one JSON line a record, append-only, written before anything else hears of a run.

A run directory holds ``journal.jsonl``. Records, in order:

- ``start``: ``schema_version, time, study, config, config_hash, versions, row`` - ``row`` holds the run-table columns
  known beforehand (see `bayeslaw.schema.COLUMNS`), ``run_id`` among them;
- ``metrics``: ``time, step, values`` - ``values`` maps metric names to floats (NaN allowed);
- ``resume``: ``time, step, versions, row`` - a run that was killed goes on from its state after ``step`` steps;
  ``row`` holds the columns that are others now (the device);
- ``end``: ``time, state, row, error`` - ``row`` holds the columns known at the end, ``error`` is a text or null.

After a ``resume`` an ``end`` before it no longer counts, nor do metrics of later steps before it: those steps are done
again.

Standard library only: written on a training node that has neither mlflow nor pandas.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bayeslaw.errors import JournalError
from bayeslaw.schema import SCHEMA_VERSION

FILE_NAME = "journal.jsonl"

_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "start": {"time": (int, float), "study": str, "config": dict, "config_hash": str, "versions": dict, "row": dict},
    "metrics": {"time": (int, float), "step": int, "values": dict},
    "resume": {"time": (int, float), "step": int, "versions": dict, "row": dict},
    "end": {"time": (int, float), "state": str, "row": dict},
}
"""The events, and what a record of each must hold."""


@dataclass(frozen=True)
class Journal:
    """What a journal file says.

    Parameters
    ----------
    path : Path
        The file.
    records : tuple of dict
        All whole records, the start record first.
    """

    path: Path
    records: tuple[dict[str, Any], ...]

    @property
    def start(self) -> dict[str, Any]:
        """The start record."""
        return self.records[0]

    @property
    def end(self) -> dict[str, Any] | None:
        """The last end record, None while the run goes on, again or for the first time, or was killed outright."""
        last = next((record for record in reversed(self.records) if record["event"] in ("end", "resume")), None)
        return last if last and last["event"] == "end" else None

    @property
    def run_id(self) -> str:
        """The run's unique name."""
        return str(self.start["row"]["run_id"])

    @property
    def state(self) -> str:
        """State by the journal alone: that of the end record, else ``running``."""
        return str(self.end["state"]) if self.end else "running"

    @property
    def row(self) -> dict[str, Any]:
        """The run-table row: columns known at the start, then when resumed, then at the end, then the state."""
        row = dict(self.start["row"])
        for record in self.records:
            if record["event"] == "resume":
                row |= record["row"]
        return {**row, **(self.end["row"] if self.end else {}), "state": self.state}

    @property
    def metrics(self) -> Iterator[dict[str, Any]]:
        """The metrics records that count, in file order: those whose steps no resume had done again."""
        counting: list[dict[str, Any]] = []
        done = math.inf  # steps that all later attempts took as done
        for record in reversed(self.records):
            if record["event"] == "resume":
                done = min(done, record["step"])
            elif record["event"] == "metrics" and record["step"] <= done:
                counting.append(record)
        return iter(counting[::-1])


class JournalWriter:
    """Appends records to the journal of one run; every record is on its way to the disk before the call returns.

    Parameters
    ----------
    run_dir : Path
        Made when missing. An existing journal is continued, after a last line that a crash cut off is removed.

    Raises
    ------
    JournalError
        The directory or file cannot be written.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                _mend(self.path)
            self._file: TextIO = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise JournalError(
                f"cannot write the run journal {self.path}: {error.strerror}",
                do="choose another output folder with --out, or make this one writable",
            ) from error

    def start(
        self,
        *,
        study: str,
        config: Mapping[str, Any],
        config_hash: str,
        versions: Mapping[str, str],
        row: Mapping[str, Any],
    ) -> None:
        """Write the start record."""
        self._append(
            "start",
            schema_version=SCHEMA_VERSION,
            study=study,
            config=dict(config),
            config_hash=config_hash,
            versions=dict(versions),
            row=dict(row),
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of one step."""
        self._append("metrics", step=step, values=dict(values))

    def resume(self, *, step: int, versions: Mapping[str, str], row: Mapping[str, Any]) -> None:
        """Write that the run goes on from its state after ``step`` steps, and wait until the disk has it."""
        self._append("resume", step=step, versions=dict(versions), row=dict(row))
        self.sync()

    def end(self, *, state: str, row: Mapping[str, Any], error: str | None = None) -> None:
        """Write the end record and wait until the disk has it."""
        self._append("end", state=state, row=dict(row), error=error)
        self.sync()

    def sync(self) -> None:
        """Wait until the disk has all records; to be called before a checkpoint, whose steps are not recorded again."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: str, **fields: Any) -> None:
        try:
            self._file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"cannot write the run journal {self.path}: {error.strerror}",
            do="free some disk space; what is in the journal so far is safe",
        )


def _mend(path: Path) -> None:
    """Cut off a last line that is no JSON, which a record after it would make a damage; end a whole one."""
    with open(path, "r+b") as file:
        lines = file.read().splitlines(keepends=True)
        if not lines:
            return
        try:
            json.loads(lines[-1])
        except (ValueError, RecursionError):
            file.truncate(sum(map(len, lines[:-1])))
        else:
            if lines[-1].endswith(b"\n"):
                return
            file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_journal(path: Path) -> Journal:
    """Read one journal; a last line cut off by a crash is left out.

    Parameters
    ----------
    path : Path
        The ``journal.jsonl`` file or the run directory that holds it.

    Raises
    ------
    JournalError
        The file is missing, is no journal, is damaged before its last line, or holds a line that is no record.
    """
    path = path / FILE_NAME if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(f"cannot read the run journal {path}: {error}") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise _no_record(path, number, str(error)) from error
        records.append(record)
    if not records or not isinstance(records[0], dict) or records[0].get("event") != "start":
        raise JournalError(f"{path} has no start record", do="point at a folder that `bayeslaw train` or a sweep wrote")
    for number, record in enumerate(records, start=1):
        if fault := _fault(record):
            raise _no_record(path, number, fault)
    return Journal(path, tuple(records))


def _fault(record: Any) -> str | None:
    """What keeps the JSON value of a line from being a record; None when it is one."""
    if not isinstance(record, dict):
        return f"a JSON {type(record).__name__}, not an object"
    event = record.get("event")
    if not isinstance(event, str) or event not in _FIELDS:
        return f"event {event!r}, not one of {', '.join(_FIELDS)}"
    wrong = [name for name, kind in _FIELDS[event].items() if not isinstance(record.get(name), kind)]
    return f"{event} without a usable {', '.join(wrong)}" if wrong else None


def _no_record(path: Path, number: int, fault: str) -> JournalError:
    return JournalError(
        f"{path}, line {number}: damaged journal, no record ({fault})",
        do="take that line out, or train the run again",
    )


def find_journals(folder: Path) -> list[Path]:
    """All journal files at and below ``folder``, sorted by path."""
    return sorted(folder.rglob(FILE_NAME))
