"""Variable assignment: letters that stand for numbers, or for letters that do (aliases); the number of one is asked."""

from __future__ import annotations

from functools import partial
from itertools import batched
from string import ascii_lowercase

from trainer.evaluation.probes.drawing import Draw, Probe, Question

VALUES = range(1, 26)
DEPTHS = {0: "given as such", 1: "given by an alias"}
SURFACES = {"math": ("=", "", ", "), "code": (" =", " ", "; ")}
"""Surface -> sign, gap between it and the value, and what parts the assignments."""


def _question(draw: Draw, variables: int, *, depth: int, surface: str) -> Question:
    sign, gap, joint = SURFACES[surface]
    values = list(map(str, draw.some(VALUES, variables)))  # different ones, so that chance is 1 / variables
    meant: dict[str, str] = {}  # letter -> its number
    said: list[str] = []
    for letters in batched(draw.some(ascii_lowercase, variables * (depth + 1)), variables):
        meant |= {letter: meant.get(value, value) for letter, value in zip(letters, values, strict=True)}
        said += [f"{letter}{sign}{gap}{value}" for letter, value in zip(letters, values, strict=True)]
        values = draw.some(letters, variables)  # those that the next letters, aliases, stand for
    asked = draw.one(letters)
    return Question(joint.join([*said, f"{asked}{sign}"]), f"{gap}{meant[asked]}")


PROBES = tuple(
    Probe(
        name=f"assignment_d{depth}_{surface}",
        axis="primitives",
        meaning=f"letters that stand for numbers, written as in {surface}: the number of one, {words}",
        shots=5,
        difficulty=5,
        knob="variables with a number" + ", each with an alias" * depth,
        allowed=range(1, min(len(VALUES), len(ascii_lowercase) // (depth + 1)) + 1),
        question=partial(_question, depth=depth, surface=surface),
    )
    for depth, words in DEPTHS.items()
    for surface in SURFACES
)
