"""Probes: tasks that are made here from a seed, the same bytes on every machine, and need no download."""

from __future__ import annotations

from collections.abc import Iterable

from bayeslaw.errors import UsageError
from trainer.checks import require_count, require_known
from trainer.evaluation.probes import assignment, dyck, induction, words
from trainer.evaluation.probes.drawing import Draw, Probe, Question
from trainer.evaluation.tasks import Example, Task

__all__ = ["EXAMPLES", "PROBES", "Probe", "probe"]

PROBES: dict[str, Probe] = {
    each.name: each for module in (induction, assignment, dyck, words) for each in module.PROBES
}
"""Every probe by name."""

EXAMPLES = 1000
MOST_EXAMPLES = 1_000_000
VERSION = 1  # of all texts: another digest without another version is a fault

SHOTS = range(33)  # far fewer than the least probe has questions, so that some are always left to ask
PATIENCE = 1000


def probe(
    name: str, *, examples: int = EXAMPLES, shots: int | None = None, difficulty: int | None = None, seed: int = 0
) -> Task:
    """The task that a probe makes.

    No example's question is one of the shots. Questions are different as long as there are any left; after that each
    may come again. Fewer examples of a seed are the first of more.

    Parameters
    ----------
    name : str
        Of `PROBES`.
    examples : int
    shots : int, optional
        Examples shown before each question, the same for all; by default the probe's own number.
    difficulty : int, optional
        By default the probe's own.
    seed : int

    Raises
    ------
    UsageError
        There is no such probe, or a number is out of range.
    """
    require_known("probe", [name], PROBES)
    made = PROBES[name]
    shots = made.shots if shots is None else shots
    difficulty = made.difficulty if difficulty is None else difficulty
    _require_within(f"examples = {examples!r}", examples, range(1, MOST_EXAMPLES + 1), f"1 to {MOST_EXAMPLES:,}")
    require_count("seed", seed, 0)
    _require_within(f"shots = {shots!r}", shots, SHOTS, f"{SHOTS[0]} to {SHOTS[-1]}")
    _require_within(f"difficulty = {difficulty!r} of the probe {name}", difficulty, made.allowed, made.difficulties)

    shown = _questions(made, difficulty, shots, Draw(name, difficulty, seed, "shots"))
    asked = _questions(
        made, difficulty, examples, Draw(name, difficulty, seed, "examples"), but=[each.text for each in shown]
    )
    before = tuple(f"{each.text}{each.answer}\n" for each in shown)
    return Task(
        name=name if difficulty == made.difficulty else f"{name}-{difficulty}",  # scores of two never take one place
        axis=made.axis,
        shots=shots,
        examples=tuple(Example((*before, each.text), (each.answer,)) for each in asked),
        source="made here",
        settings={"seed": seed, "difficulty": difficulty, "version": VERSION},
    )


def _questions(made: Probe, difficulty: int, number: int, draw: Draw, but: Iterable[str] = ()) -> list[Question]:
    """Questions, none of those in ``but``, and none a second time before hardly any is left that did not come."""
    found: list[Question] = []
    seen, misses = set(but), 0
    while len(found) < number:
        question = made.question(draw, difficulty)
        if question.text not in seen:
            found.append(question)
            seen.add(question.text)
            misses = 0
        elif (misses := misses + 1) == PATIENCE:
            seen, misses = set(but), 0
    return found


def _require_within(given: str, value: object, allowed: range, words: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise UsageError(given, allowed=f"a whole number: {words}")
