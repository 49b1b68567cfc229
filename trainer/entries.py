"""What the records of a journal mean to MLflow: which points, in which order, marked how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bayeslaw import schema
from bayeslaw.journal import JournalTail, read_journal
from trainer.experiments import milliseconds


class Point(NamedTuple):
    """One value of a metric.

    Parameters
    ----------
    name : str
    value : float
    when : int
        Milliseconds since 1970.
    step : int
    """

    name: str
    value: float
    when: int
    step: int


@dataclass(frozen=True)
class Entry:
    """A record, and what it means after those before it.

    Parameters
    ----------
    number : int
        Of the record, from 1.
    crc : int, optional
        Its checksum.
    record : dict
    points : tuple of Point
        What MLflow has not of an earlier record: the values of a metrics record, the results of an end.
    resumes : int
        Resumes up to here.
    """

    number: int
    crc: int | None
    record: dict[str, Any]
    points: tuple[Point, ...]
    resumes: int

    @property
    def is_curve(self) -> bool:
        """Holds points of the curve alone."""
        return bool(self.record["event"] == "metrics")

    @property
    def mark(self) -> str:
        """What MLflow's tag says when everything up to here has arrived."""
        return str(self.number) if self.crc is None else f"{self.number} {self.crc:08x}"


class Entries:
    """Reads a journal while it grows.

    Parameters
    ----------
    path : Path
        The journal file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = JournalTail(path)
        self._number = 0
        self._values: dict[tuple[str, int], str] = {}  # of the points that a resume may have done again
        self._resumes = 0
        # A resume may go back, but MLflow takes the value of the highest step for the run's.
        self._last_step = 0

    def read(self) -> list[Entry]:
        """What has come since the last call.

        Raises
        ------
        JournalError
            The journal cannot be read, or is damaged.
        """
        return [self._entry(record, crc) for record, crc in self._tail.read()]

    def _entry(self, record: dict[str, Any], crc: int | None) -> Entry:
        points: list[Point] = []
        when = milliseconds(record["time"])
        if record["event"] == "metrics":
            step = record["step"]
            self._last_step = max(self._last_step, step)
            for name, value in record["values"].items():
                if self._values.get((name, step)) != repr(value):
                    points.append(Point(name, value, when, step))
        elif record["event"] == "end":
            for name, value in record["row"].items():
                if name in schema.COLUMNS and schema.COLUMNS[name].result:
                    points.append(Point(name, float(value), when, self._last_step))
        elif record["event"] == "resume":
            self._resumes += 1
            for earlier in read_journal(self._path).records[: self._number]:
                if earlier["event"] == "metrics" and earlier["step"] > record["step"]:
                    self._values |= {(name, earlier["step"]): repr(value) for name, value in earlier["values"].items()}
        self._number += 1
        return Entry(self._number, crc, record, tuple(points), self._resumes)
