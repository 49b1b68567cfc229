"""Flags that take an amount with a unit: bytes as 24GB or 24GiB, counts as 47e9 or 47B."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from bayeslaw.errors import UsageError

BYTES: Mapping[str, float] = {
    "": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
COUNTS: Mapping[str, float] = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def _amount(token: Token, units: Mapping[str, float], kind: str) -> float:
    """The number a text states, in the first of the units."""
    allowed = f"a number of {kind}, with one of {', '.join(filter(None, units))} or without a unit"
    parts = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z]*)\s*", token.value)
    unit = parts.group(2) if parts else ""
    try:
        known = {name.lower(): size for name, size in units.items()}
        value = float(parts.group(1)) * known[unit.lower()] if parts else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{token.keyword or 'argument'} {token.value!r}", allowed=allowed)
    return value


def _bytes(_: Any, tokens: Sequence[Token]) -> float:
    return _amount(tokens[-1], BYTES, "bytes")


def _tokens(_: Any, tokens: Sequence[Token]) -> float:
    return _amount(tokens[-1], COUNTS, "tokens")


Bytes = Annotated[float | None, Parameter(converter=_bytes)]
"""A flag that takes bytes or is not given."""

RequiredTokens = Annotated[float, Parameter(converter=_tokens)]
"""A flag that takes a number of tokens."""

Tokens = Annotated[float | None, Parameter(converter=_tokens)]
"""A flag that takes a number of tokens or is not given."""
