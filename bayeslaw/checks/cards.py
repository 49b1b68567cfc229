"""What a check of a fit found: `CheckCard`, and how one that goes wrong says so and takes no other down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bayeslaw.errors import BayeslawError

OK, WARNING, NOT_APPLICABLE, FAILED = "ok", "warning", "not applicable", "failed"
"""Verdicts of a card: within its threshold, beyond it, not to be asked of these runs, not answered for an error."""


@dataclass(frozen=True, kw_only=True)
class CheckCard:
    """One finding on a fit.

    Parameters
    ----------
    name : str
        Short and unique.
    title : str
    verdict : str
        `OK`, `WARNING`, `NOT_APPLICABLE` or `FAILED`.
    reading : str
        One sentence with the numbers; where there is no answer, why not.
    advice : str
        What to do about it; empty where nothing needs doing.
    value : float or None
        The number that the verdict rests on.
    threshold : float or None
        Where the value, or how far it is off what it should be, becomes a warning.
    weight : float
        How far beyond its threshold the value is, in thresholds: findings are told in this order.
    header, rows : tuple
        A table of texts behind the number.
    arrays : mapping
        What its figure is drawn from.
    """

    name: str
    title: str
    verdict: str
    reading: str
    advice: str = ""
    value: float | None = None
    threshold: float | None = None
    weight: float = 0.0
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @property
    def warns(self) -> bool:
        """Whether it is a warning."""
        return self.verdict == WARNING

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all but the figure's arrays."""
        return {
            "name": self.name,
            "title": self.title,
            "verdict": self.verdict,
            "value": self.value,
            "threshold": self.threshold,
            "reading": self.reading,
            "advice": self.advice,
            "table": {"header": list(self.header), "rows": [list(row) for row in self.rows]},
        }


class NotApplicableError(Exception):
    """These runs, or this law, have not what a check needs; the message says what."""


def made(name: str, title: str, body: Callable[[], CheckCard]) -> CheckCard:
    """The card that ``body`` makes or, where there is none, one that says why."""
    try:
        return body()
    except NotApplicableError as error:
        return CheckCard(name=name, title=title, verdict=NOT_APPLICABLE, reading=str(error))
    except Exception as error:
        told = str(error) if isinstance(error, BayeslawError) else f"{type(error).__name__}: {error}"
        return CheckCard(name=name, title=title, verdict=FAILED, reading=told)


def judged(beyond: bool) -> str:
    """The verdict of a value that is or is not beyond its threshold."""
    return WARNING if beyond else OK
