"""Flags that take whole numbers, and flags that take several values: 1,2,4 or 1 2 4."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any

from cyclopts import Parameter, Token

from bayeslaw.errors import UsageError

MOST_DIGITS = 30
"""Of a whole number: none that is meant has more."""


def _whole(token: Token, text: str, allowed: str) -> int:
    """The whole number that a text states exactly: 4, 1e3, 47e9; never rounded."""
    try:
        number = Decimal(text)
    except decimal.InvalidOperation:
        number = Decimal("nan")
    if number.is_finite() and number.adjusted() < MOST_DIGITS and number == (whole := int(number)):
        return whole
    raise _refused(token, text, allowed)


def _number(token: Token, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _refused(token, text, "numbers, as 1,2,4 or 1 2 4") from None


def _refused(token: Token, text: str, allowed: str) -> UsageError:
    return UsageError(f"{token.keyword or 'argument'} {text!r}", allowed=allowed)


def _integer(_: Any, tokens: Sequence[Token]) -> int:
    return _whole(tokens[-1], tokens[-1].value, "a whole number, such as 4 or 1e3")


def _integers(_: Any, tokens: Sequence[Token]) -> list[int]:
    allowed = "whole numbers, as 1,2,4 or 1 2 4"
    return [_whole(token, part, allowed) for token in tokens for part in token.value.split(",")]


def _floats(_: Any, tokens: Sequence[Token]) -> list[float]:
    return [_number(token, part) for token in tokens for part in token.value.split(",")]


def _texts(_: Any, tokens: Sequence[Token]) -> list[str]:
    return [value for token in tokens for value in token.value.split(",")]


Integer = Annotated[int, Parameter(converter=_integer)]
"""A flag that takes a whole number (cyclopts alone would round 1.5)."""

OptionalInteger = Annotated[int | None, Parameter(converter=_integer)]
"""A flag that takes a whole number or is not given."""

Integers = Parameter(consume_multiple=True, negative="", converter=_integers)
"""Annotation of a flag that takes whole numbers."""

Floats = Parameter(consume_multiple=True, negative="", converter=_floats)
"""Annotation of a flag that takes numbers."""

Texts = Parameter(consume_multiple=True, negative="", converter=_texts)
"""Annotation of a flag that takes names."""
