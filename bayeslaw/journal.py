"""The run journal: one JSON line a record, append-only, written before anything else hears of a run.

A run directory holds ``journal.jsonl``. Records, in order:

- ``start``: ``schema_version, time, study, config, config_hash, versions, row, host, environment, sweep`` - ``row``
  holds the run-table columns known beforehand (see `bayeslaw.schema.COLUMNS`), ``run_id`` among them; ``sweep`` is
  null, or of the plan that the run is trained for ``plan``, its hash, and ``runs``, their number;
- ``metrics``: ``time, step, values`` - ``values`` maps metric names to floats (NaN allowed);
- ``resume``: ``time, step, versions, row, host`` - a run that was killed goes on from its state after ``step`` steps;
  ``row`` holds the columns that are others now (the device);
- ``end``: ``time, state, row, error`` - ``row`` holds the columns known at the end, ``error`` is a text or null.

Every line closes with ``crc``: the CRC-32 of its text up to there, begun with that of the line before, so that a
changed, lost or moved line is noticed. (Journals written before 0.7.0 have none, and get none.) Times never go back,
nor stand still, whatever the clock does: the order of two points of one step is the order of their times.

After a ``resume`` an ``end`` before it no longer counts, nor do metrics of later steps before it: those steps are done
again.

Standard library only: written on a training node that has neither mlflow nor pandas.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayeslaw.errors import JournalError, NoRunsError
from bayeslaw.schema import SCHEMA_VERSION

FILE_NAME = "journal.jsonl"

TICK = 0.002
"""Seconds between two records at least: MLflow counts in milliseconds, and what is rounded must differ still."""

_CRC = ', "crc": "'

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

    A record that the disk has no room for leaves nothing behind.

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
        self._crc: int | None = 0
        self._time = 0.0
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            self._continue()
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
        environment: Mapping[str, Any] | None = None,
        sweep: Mapping[str, Any] | None = None,
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
            host=socket.gethostname(),
            environment={"platform": platform.platform(), **(environment or {})},
            sweep=dict(sweep) if sweep else None,
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of one step."""
        self._append("metrics", step=step, values=dict(values))

    def resume(self, *, step: int, versions: Mapping[str, str], row: Mapping[str, Any]) -> None:
        """Write that the run goes on from its state after ``step`` steps, and wait until the disk has it."""
        self._append("resume", step=step, versions=dict(versions), row=dict(row), host=socket.gethostname())
        self.sync()

    def end(self, *, state: str, row: Mapping[str, Any], error: str | None = None) -> None:
        """Write the end record and wait until the disk has it."""
        self._append("end", state=state, row=dict(row), error=error)
        self.sync()

    def sync(self) -> None:
        """Wait until the disk has all records; to be called before a checkpoint, whose steps are not recorded again."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _continue(self) -> None:
        """Cut off a last line that is no record, end one that is, and take up its checksum and time."""
        with open(self.path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        if not lines:
            return
        try:
            before = _of_line(lines[-2])[1] if len(lines) > 1 else 0
            record, self._crc = _of_line(lines[-1], before)
        except ValueError as error:
            if not _is_cut_off(lines[-1], error):
                raise _no_record(self.path, len(lines), str(error)) from error
            os.ftruncate(self._file, sum(map(len, lines[:-1])))
            record, self._crc = _of_line(lines[-2]) if len(lines) > 1 else ({}, 0)
        else:
            if not lines[-1].endswith(b"\n"):
                os.write(self._file, b"\n")
        self._time = float(record.get("time", 0.0)) if isinstance(record, dict) else 0.0
        os.fsync(self._file)

    def _append(self, event: str, **fields: Any) -> None:
        self._time = max(time.time(), self._time + TICK)
        text = json.dumps({"event": event, "time": self._time, **fields})
        crc = self._crc
        if crc is not None:
            crc = zlib.crc32(text.encode(), crc)
            text = f'{text[:-1]}{_CRC}{crc:08x}"}}'
        line = text.encode() + b"\n"
        length = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, length)
            raise self._unwritable(error) from error
        self._crc = crc

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"cannot write the run journal {self.path}: {error.strerror}",
            do="free some disk space, then give the same command again: it goes on from the last checkpoint, and what "
            "is in the journal so far is safe",
        )


def _of_line(line: bytes, before: int | None = None) -> tuple[Any, int | None]:
    """The JSON value of a line and its checksum, which is None where it has none.

    ``before`` is the checksum of the line before, with which this one's is compared; None compares nothing.

    Raises
    ------
    ValueError
        It is no JSON, or not what was written.
    """
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict) or not isinstance(record.get("crc"), str):
        return record, None
    crc = record.pop("crc")
    if before is not None:
        text = line.decode().rstrip().rpartition(_CRC)[0] + "}"
        if f"{zlib.crc32(text.encode(), before):08x}" != crc:
            raise _ChangedError("its checksum does not fit: this line was changed, or one before it is lost")
    return record, int(crc, 16)


class _ChangedError(ValueError):
    """A line that is JSON, but not what was written."""


def _is_cut_off(line: bytes, error: ValueError) -> bool:
    """Whether a last line that cannot be used is what a crash leaves: a part of a line, or rubbish."""
    return not (isinstance(error, _ChangedError) and line.endswith(b"\n"))


class JournalTail:
    """Reads a journal while it grows, each record once.

    Parameters
    ----------
    path : Path
        The journal file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._crc: int | None = 0
        self._offset = 0
        self._open = False  # the last line had no end yet

    def read(self) -> list[tuple[dict[str, Any], int | None]]:
        """The whole records that have come since the last call, each with its checksum.

        Raises
        ------
        JournalError
            The file is missing, is no journal, is damaged before its last line, or holds a line that is no record.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                lines = file.read().splitlines(keepends=True)
        except OSError as error:
            raise JournalError(f"cannot read the run journal {self.path}: {error.strerror}") from error
        if lines and self._open and not lines[0].strip():
            self._offset += len(lines.pop(0))  # the end of the line that was read before
        records = []
        for place, line in enumerate(lines, start=1):
            try:
                record, crc = _of_line(line, self._crc)
            except ValueError as error:
                if place == len(lines) and _is_cut_off(line, error):
                    break
                raise _no_record(self.path, self._number + 1, str(error)) from error
            if not self._number and not (isinstance(record, dict) and record.get("event") == "start"):
                raise _no_start(self.path)
            fault = _fault(record)
            if not fault and self._number and (crc is None) != (self._crc is None):
                fault = "unlike the lines before it " + ("without a checksum" if crc is None else "with one")
            if fault:
                raise _no_record(self.path, self._number + 1, fault)
            self._number, self._crc, self._offset = self._number + 1, crc, self._offset + len(line)
            self._open = not line.endswith(b"\n")
            records.append((record, crc))
        return records


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
    records = JournalTail(path).read()
    if not records:
        raise _no_start(path)
    return Journal(path, tuple(record for record, _ in records))


def whole_part(path: Path) -> bytes:
    """The lines of a journal up to the first that is damaged, empty where the start record is.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    crc: int | None = 0
    kept: list[bytes] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            record, crc = _of_line(line, crc)
            if not _fault(record) and line.endswith(b"\n") and (kept or record["event"] == "start"):
                kept.append(line)
                continue
        break
    return b"".join(kept)


def read_start(path: Path) -> dict[str, Any]:
    """The start record of a journal, whatever became of the rest.

    Raises
    ------
    JournalError
        The file cannot be read, or does not begin with a start record.
    """
    try:
        with open(path, "rb") as file:
            record, _ = _of_line(file.readline(), 0)
    except (OSError, ValueError) as error:
        raise _no_start(path) from error
    if _fault(record) or record["event"] != "start":
        raise _no_start(path)
    return dict(record)


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
        do="train the run again with the same command: it goes on from its last checkpoint, and this journal is kept",
    )


def _no_start(path: Path) -> JournalError:
    return JournalError(f"{path} has no start record", do="point at a folder that `bayeslaw train` or a sweep wrote")


def require_journals(folder: Path) -> list[Path]:
    """All journal files at and below ``folder``, of which there is one at least.

    Raises
    ------
    NoRunsError
        There is none.
    """
    journals = find_journals(folder)
    if not journals:
        raise NoRunsError(f"no run journal at or below {folder}", do="point at the --out folder of a training or sweep")
    return journals


def find_journals(folder: Path) -> list[Path]:
    """All journal files at and below ``folder``, sorted by path."""
    return sorted(folder.rglob(FILE_NAME))
