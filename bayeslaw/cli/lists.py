"""Flags that take several values: 1,2,4 or 1 2 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cyclopts import Parameter, Token


def _split(kind: type, text: str) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        noun = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{text!r} is no list of {noun}: write 1,2,4 or 1 2 4") from error


def _integers(_: Any, tokens: Sequence[Token]) -> list[int]:
    return [value for token in tokens for value in _split(int, token.value)]


def _floats(_: Any, tokens: Sequence[Token]) -> list[float]:
    return [value for token in tokens for value in _split(float, token.value)]


def _texts(_: Any, tokens: Sequence[Token]) -> list[str]:
    return [value for token in tokens for value in token.value.split(",")]


Integers = Parameter(consume_multiple=True, negative="", converter=_integers)
"""Annotation of a flag that takes whole numbers."""

Floats = Parameter(consume_multiple=True, negative="", converter=_floats)
"""Annotation of a flag that takes numbers."""

Texts = Parameter(consume_multiple=True, negative="", converter=_texts)
"""Annotation of a flag that takes names."""
