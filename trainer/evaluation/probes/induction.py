"""Induction: pairs of random words, then one of their first words again; what followed it follows."""

from __future__ import annotations

from string import ascii_lowercase

from trainer.evaluation.probes.drawing import Draw, Probe, Question

KEY_LETTERS, VALUE_LETTERS = 4, 3


def _words(draw: Draw, number: int, letters: int) -> list[str]:
    """Different random words."""
    found: dict[str, None] = {}
    while len(found) < number:
        found["".join(draw.one(ascii_lowercase) for _ in range(letters))] = None
    return list(found)


def _question(draw: Draw, pairs: int) -> Question:
    keys, values = _words(draw, pairs, KEY_LETTERS), _words(draw, pairs, VALUE_LETTERS)
    asked = draw.below(pairs)
    shown = [f"{key} {value}" for key, value in zip(keys, values, strict=True)]
    return Question(", ".join([*shown, keys[asked]]), f" {values[asked]}")


PROBES = (
    Probe(
        name="induction",
        axis="primitives",
        meaning="pairs of random words, then the first of a pair again: its second follows",
        shots=0,
        difficulty=8,
        knob="pairs",
        allowed=range(1, 129),
        question=_question,
    ),
)
