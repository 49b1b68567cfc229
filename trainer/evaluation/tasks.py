"""A task: examples, each a context and the answers that a network is asked for the likelihood of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

DIGEST_CHARACTERS = 16


@dataclass(frozen=True)
class Example:
    """One question.

    Parameters
    ----------
    context : tuple of str
        What the network reads, in parts that join without anything between them: shots, the oldest first, then the
        question. Where all of it exceeds the network's context, whole parts are left out from the front, and at last
        the front of the question.
    choices : tuple of str
        What may follow: the answer alone, or several of which one is right.
    gold : int
        Place of the right one.
    """

    context: tuple[str, ...]
    choices: tuple[str, ...]
    gold: int = 0

    @property
    def answer(self) -> str:
        """What should follow."""
        return self.choices[self.gold]


@dataclass(frozen=True)
class Task:
    """A named list of examples.

    Parameters
    ----------
    name : str
        Letters, digits, ``_`` and ``-``.
    axis : str
        One of `bayeslaw.evaluations.AXES`.
    shots : int
        Examples shown before each question.
    examples : tuple of Example
    source : str
        Where the examples come from: ``made here``, or the data set, folder or file.
    settings : dict
        What else they were made with (seed, difficulty, version of the definition), JSON.
    """

    name: str
    axis: str
    shots: int
    examples: tuple[Example, ...]
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of the examples: equal examples, equal scores."""
        text = json.dumps([(each.context, each.choices, each.gold) for each in self.examples], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def record(self) -> dict[str, Any]:
        """What an evaluation says of it."""
        return {
            "name": self.name,
            "axis": self.axis,
            "shots": self.shots,
            "digest": self.digest,
            "source": self.source,
            "settings": dict(self.settings),
        }
