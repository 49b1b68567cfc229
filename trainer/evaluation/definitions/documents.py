"""What some of these data sets need before their rows are examples; lm-eval calls it by name from the definitions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

EARLIER = "Question: {}\nAnswer: {}\n"
"""A turn of a conversation that has been answered."""


def english(data: Any) -> Any:
    """The rows of TyDi QA in English."""
    return data.filter(lambda row: row["id"].startswith("english-"))


def answerable(data: Any) -> Any:
    """The rows of SQuAD 2.0 whose passage has an answer."""
    return data.filter(lambda row: len(row["answers"]["text"]) > 0)


def with_numbers(data: Any) -> Any:
    """The rows of MAWPS with their numbers where the question has N_00, N_01 and so on."""
    return data.map(_with_numbers)


def turns(data: Any) -> Any:
    """A row for each turn of CoQA's conversations, with the turns before it."""
    return data.map(_turns, batched=True, remove_columns=data.column_names)


def first_turns(data: Any) -> Any:
    """The first turn of each of CoQA's conversations: a shot that leaves room for the question."""
    return data.map(lambda rows: _turns(rows, most=1), batched=True, remove_columns=data.column_names)


def _with_numbers(row: Mapping[str, Any]) -> dict[str, str]:
    numbers = [_number(each) for each in str(row["Numbers"]).split()]
    return {
        "Question": re.sub(r"\bN_(\d+)\b", lambda found: numbers[int(found[1])], row["Question"]),
        "Answer": _number(row["Answer"]),
    }


def _number(value: object) -> str:
    """8 for 8.0, 28.3 for 28.3."""
    return str(value).removesuffix(".0")


def _turns(rows: Mapping[str, Sequence[Any]], most: int | None = None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"story": [], "earlier": [], "question": [], "answer": []}
    for story, questions, answers in zip(rows["story"], rows["questions"], rows["answers"], strict=True):
        pairs = list(zip(questions["input_text"], answers["input_text"], strict=True))
        for place, (question, answer) in enumerate(pairs[:most]):
            earlier = "".join(EARLIER.format(*pair) for pair in pairs[:place])
            for name, value in zip(found, (story, earlier, question, answer), strict=True):
                found[name].append(value)
    return found
