"""Tasks by name: probes, public tasks, and groups of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayeslaw.errors import UsageError
from trainer.evaluation.catalogue import PUBLIC
from trainer.evaluation.probes import EXAMPLES, PROBES, probe
from trainer.evaluation.public import public_task
from trainer.evaluation.tasks import Task

GROUPS = {"probes": tuple(PROBES), "public": tuple(PUBLIC)}
"""Names that stand for several tasks."""


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
        Probes, public tasks, others of lm-eval's registry, and `GROUPS`.
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
    single = list(dict.fromkeys(each for name in names for each in GROUPS.get(name, (name,))))
    others = [name for name in single if name not in PROBES]
    if difficulty is not None and others:
        raise UsageError(
            f"--difficulty with {others[0]}", allowed="probes: " + ", ".join(PROBES), do="evaluate the two apart"
        )
    return [_task(name, examples, shots, difficulty, seed, data, offline) for name in single]


def _task(name: str, examples: int | None, shots: int | None, difficulty: int | None, seed: int, *source: Any) -> Task:
    if name in PROBES:
        return probe(name, examples=examples or EXAMPLES, shots=shots, difficulty=difficulty, seed=seed)
    data, offline = source
    return public_task(
        name, shots=shots, examples=examples, seed=seed, data=data, offline=offline, known=[*PROBES, *GROUPS]
    )
