"""Dyck words: brackets of four kinds, of which some are still open; what closes them is asked."""

from __future__ import annotations

from trainer.evaluation.probes.drawing import Draw, Probe, Question

OPENING, CLOSING = "([{<", ")]}>"
PAIRS = tuple(zip(OPENING, CLOSING, strict=True))


def _question(draw: Draw, most: int) -> Question:
    still_open = [draw.one(PAIRS) for _ in range(draw.between(1, most))]
    said = [opening for opening, _ in still_open]
    for _ in range(most):  # a pair set anywhere, side by side, leaves all others matched; later ones come into it
        place = draw.below(len(said) + 1)
        said[place:place] = draw.one(PAIRS)
    return Question(f"Sequence: {' '.join(said)} Rest:", "".join(f" {closing}" for _, closing in reversed(still_open)))


PROBES = (
    Probe(
        name="dyck",
        axis="compositional",
        meaning="brackets of four kinds, some still open: what closes them, the innermost first",
        shots=10,
        difficulty=5,
        knob="pairs closed, and at most as many brackets left open",
        allowed=range(2, 33),
        question=_question,
    ),
)
