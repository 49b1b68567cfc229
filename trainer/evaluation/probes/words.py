"""Word problems: short stories of things that are bought, lost, compared; how many there are is asked."""

from __future__ import annotations

from trainer.evaluation.probes.drawing import Draw, Probe, Question

NAMES = (
    "Alice", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack", "Kate", "Leo", "Mary", "Noah",
    "Olivia", "Paul",
)  # fmt: skip
THINGS = (
    "apples", "balls", "books", "cards", "coins", "cups", "eggs", "flowers", "keys", "marbles", "nuts", "pens", "rings",
    "shells", "stamps", "stones",
)  # fmt: skip
SENTENCES = {
    "+": (
        "{holder} buys {number} more.",
        "{holder} finds {number} more.",
        "{other} has {number} more {things} than {holder}.",
    ),
    "-": (
        "{holder} loses {number} of them.",
        "{holder} gives {number} of them away.",
        "{other} has {number} fewer {things} than {holder}.",
    ),
    "*": (
        "{holder} trades each of them for {number} new ones.",
        "{other} has {number} times as many {things} as {holder}.",
    ),
}
"""Sign -> sentences of such a step; one with ``{other}`` is of a new person, of whom the story goes on."""

LEAST, MOST_TIMES = 2, 9  # no "1 apples"; tables learnt by heart
LEVELS = {1: (1, 10), 2: (1, 100), 3: (2, 100), 4: (2, 1000)}
"""Difficulty -> steps, largest number in the story."""


def _question(draw: Draw, level: int) -> Question:
    steps, most = LEVELS[level]
    holder, *others = draw.some(NAMES, 1 + steps)
    things = draw.one(THINGS)
    total = draw.between(LEAST, most)
    story = [f"{holder} has {total} {things}."]
    for other in others:
        sign = draw.one("+-*") if total >= LEAST else "+"  # of none or one there is little to lose or multiply
        sentence = draw.one(SENTENCES[sign])
        number = draw.between(LEAST, {"+": most, "-": min(total, most), "*": MOST_TIMES}[sign])
        story.append(sentence.format(holder=holder, other=other, number=number, things=things))
        total = {"+": total + number, "-": total - number, "*": total * number}[sign]
        holder = other if "{other}" in sentence else holder
    return Question(" ".join([*story, f"How many {things} does {holder} have? Answer:"]), f" {total}")


PROBES = (
    Probe(
        name="words",
        axis="math",
        meaning="short stories of things bought, lost, compared: how many there are",
        shots=5,
        difficulty=2,
        knob=f"steps and largest number ({', '.join(f'{steps} and {most}' for steps, most in LEVELS.values())})",
        allowed=range(min(LEVELS), max(LEVELS) + 1),
        question=_question,
    ),
)
