"""Tasks by name: probes, public tasks, and groups of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bayeslaw.errors import UsageError
from trainer.evaluation.probes import EXAMPLES, PROBES, probe
from trainer.evaluation.tasks import Task

ALL_PROBES, ALL_PUBLIC = "probes", "public"
"""Names that stand for several tasks."""

KNOWN = (ALL_PROBES, ALL_PUBLIC, *PROBES)
"""Names that are known without lm-eval."""


def singly(names: Iterable[str]) -> list[str]:
    """The names of single tasks that are meant, each once."""
    found: list[str] = []
    for name in names:
        if name == ALL_PROBES:
            found += PROBES
        elif name == ALL_PUBLIC:
            from trainer.evaluation.catalogue import PUBLIC  # reads YAML, which a node may lack that has all for probes

            found += PUBLIC
        else:
            found.append(name)
    return list(dict.fromkeys(found))


def tasks_named(
    names: Sequence[str],
    *,
    examples: int | None = None,
    shots: int | None = None,
    difficulty: int | None = None,
    seed: int = 0,
    data: Path | None = None,
    offline: bool = False,
) -> list[Task]:
    """The tasks of these names, each once, with their examples.

    Parameters
    ----------
    names : sequence of str
        Probes, public tasks, others of lm-eval's registry, ``probes`` and ``public``.
    examples, shots : int, optional
        Of each task; its own by default.
    difficulty : int, optional
        Of probes.
    seed : int
    data, offline
        See `trainer.evaluation.public.public_task`.

    Raises
    ------
    UsageError
        An unknown name, a number out of range, or a difficulty of a task that is no probe.
    DataError
        The data of a task are not there.
    """
    single = singly(names)
    others = [name for name in single if name not in PROBES]
    if difficulty is not None and others:
        raise UsageError(
            f"--difficulty with {others[0]}", allowed="probes: " + ", ".join(PROBES), do="evaluate the two apart"
        )
    return [_task(name, examples, shots, difficulty, seed, data, offline) for name in single]


def _task(name: str, examples: int | None, shots: int | None, difficulty: int | None, seed: int, *source: Any) -> Task:
    if name in PROBES:
        return probe(
            name, examples=EXAMPLES if examples is None else examples, shots=shots, difficulty=difficulty, seed=seed
        )
    from trainer.evaluation.public import public_task

    data, offline = source
    return public_task(name, shots=shots, examples=examples, seed=seed, data=data, offline=offline, known=KNOWN)
