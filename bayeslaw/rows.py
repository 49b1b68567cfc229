"""Rows of a table under check, and how messages name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.errors import RunTableError
from bayeslaw.schema import COLUMNS

Mask = NDArray[np.bool_]


class Rows:
    """The rows under check, with what each is called in messages."""

    def __init__(self, frame: pd.DataFrame, labels: list[Any], unit: str, source: str, plain: bool) -> None:
        self.frame = frame
        self.labels = labels
        self.unit = unit
        self.source = source
        self.plain = plain

    def pick(self, mask: Mask) -> Rows:
        """Some of the rows."""
        labels = [label for label, kept in zip(self.labels, mask, strict=True) if kept]
        return Rows(self.frame[mask].reset_index(drop=True), labels, self.unit, self.source, self.plain)

    def at(self, mask: Mask) -> str:
        """Where the rows are, such as ``lines 3, 5, 8 and 12 more``."""
        labels = [str(label) for label, bad in zip(self.labels, mask, strict=True) if bad]
        more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
        return f"{self.unit}{'s' if len(labels) > 1 else ''} {', '.join(labels[:5])}{more}"

    def refuse(
        self, column: str, bad: Mask, problem: str, *, allowed: str | None = None, do: str | None = None
    ) -> None:
        """Raise if any row is bad; ``{}`` in the problem stands for the first bad value."""
        if not bad.any():
            return
        if self.plain and column == "n_once":
            column = "n"
        value = self.frame[column].to_numpy(dtype=object)[int(bad.argmax())] if column in self.frame else "missing"
        allowed = allowed or (f"{COLUMNS[column].meaning}, {_kind(column)}" if column in COLUMNS else None)
        text = problem.format(value if as_text(value) else "missing")
        raise RunTableError(f"{self.source}, {self.at(bad)}: {column} {text}", allowed=allowed, do=do)


def as_text(value: Any) -> str | None:
    """The value as a text without outer spaces, None where it is missing."""
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else str(value).strip()


def _kind(column: str) -> str:
    kind, positive = COLUMNS[column].kind, COLUMNS[column].positive
    return {"int": "a whole number", "float": "a number", "text": "a text"}[kind] + (" above 0" if positive else "")
