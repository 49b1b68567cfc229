"""Texts from data, as they may be shown."""

from __future__ import annotations


def printable(text: object) -> str:
    """The text with control characters (terminal escapes among them) shown instead of sent."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in str(text))


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))
