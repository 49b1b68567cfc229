"""What public tasks there are: the definitions here, in lm-eval's format, and lm-eval's own registry."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from bayeslaw.errors import UsageError
from trainer.checks import nearest
from trainer.evaluation.sources import Splits, folder_split, hub_split

DEFINITIONS = Path(__file__).parent / "definitions"
"""Definitions in lm-eval's format: the one place for the axis, shots and examples of a task."""

PREFIX = "bayeslaw_"
"""Of their names within lm-eval, whose registry has tasks of the same names."""

SCORED = ("loglikelihood", "multiple_choice", "generate_until")
"""Output types of lm-eval whose tasks have an answer that can be scored."""

ACCURACY = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
"""In place of a task's own metrics, some of which load code or add requests; the scores here are not lm-eval's."""


@dataclass(frozen=True)
class PublicTask:
    """What is known of a public task before its data are read.

    Parameters
    ----------
    axis : str
        One of `bayeslaw.evaluations.AXES`.
    shots : int
    examples : int
        Examples that are scored at most; where the data have more, a subset drawn by the seed.
    meaning : str
        What it asks.
    version : int
        Of the definition.
    """

    axis: str
    shots: int
    examples: int
    meaning: str
    version: int


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads a definition without the functions that it names."""


_Loader.add_constructor("!function", lambda loader, node: node.value)


def _public(path: Path) -> PublicTask:
    definition = _Loader(path.read_bytes()).get_single_data()
    return PublicTask(shots=definition["num_fewshot"], **definition["metadata"])


PUBLIC = {path.stem: _public(path) for path in sorted(DEFINITIONS.glob("*.yaml"))}
"""The public tasks of arXiv 2604.21106, with its shots and numbers of examples."""


def folder_name(name: str) -> str:
    """A task's name as that of a folder and of result files."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


@dataclass(frozen=True)
class Definition:
    """A task of lm-eval.

    Parameters
    ----------
    name : str
        Here.
    inner : str
        In the registry.
    registry : TaskManager
    config : dict
        Its definition, functions by name.
    """

    name: str
    inner: str
    registry: Any
    config: Mapping[str, Any]

    @property
    def hub(self) -> str:
        """The data set on the hub."""
        return "/".join(filter(None, (self.config["dataset_path"], self.config.get("dataset_name"))))

    def splits(self, data: Path | None, *, offline: bool) -> Splits:
        """Its data, read when they are asked for."""
        folder = folder_name(self.name)
        if data is not None:
            return Splits(lambda split: folder_split(data, folder, split), source=f"{data.resolve().name}/{folder}")
        return Splits(lambda split: hub_split(self.config, folder, split, offline=offline), source=f"hf:{self.hub}")

    def built(self, splits: Splits) -> Any:
        """lm-eval's own object, which reads the splits that it needs."""
        overrides = {
            "task": self.inner,
            "custom_dataset": lambda **_: splits,
            "dataset_kwargs": None,
            "metric_list": ACCURACY,
            "filter_list": None,
        }
        # A group is how lm-eval takes a task of its registry with changes.
        built = self.registry.load({"group": "bayeslaw", "task": [overrides]})
        return built["tasks"][self.inner]


def definition_of(name: str, known: Iterable[str]) -> Definition:
    """A task by its name, refused if it cannot be scored."""
    if name in PUBLIC:
        inner, registry = PREFIX + name, _definitions()
    else:
        inner, registry = name, _registry()
    entry = registry.task_index.get(inner)
    if entry is None:
        ours = [*known, *PUBLIC]
        raise UsageError(
            f"task {name!r}",
            allowed=", ".join(ours) + ", or a task of lm-eval (lm-eval ls tasks)",
            do=nearest(name, ours) or nearest(name, registry.all_tasks),
        )
    config = entry.cfg or {}
    if entry.kind.name in ("GROUP", "TAG"):
        raise UsageError(f"{name} names several tasks of lm-eval", allowed="one task", do=_members(entry))
    reason = _unscorable(config)
    if reason:
        raise UsageError(
            f"the task {name} {reason}", allowed=f"tasks of lm-eval of the types {', '.join(SCORED)}, defined in YAML"
        )
    return Definition(name, inner, registry, config)


def _members(entry: Any) -> str:
    members = sorted(entry.tags) if entry.kind.name == "TAG" else (entry.cfg or {}).get("task", [])
    names = [each if isinstance(each, str) else str(each.get("task") or each.get("group")) for each in members]
    return "name one of them, such as " + ", ".join(names[:3])


def _unscorable(config: Mapping[str, Any]) -> str | None:
    """Why a definition cannot be scored here."""
    if "class" in config:
        return "is a Python class of its own"
    if config.get("custom_dataset"):
        return "makes its data with a Python function of its own"
    if not config.get("dataset_path"):
        return "names no data set"
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        return "is not of text alone"
    kind = config.get("output_type", "generate_until")
    return None if kind in SCORED else f"is of the type {kind}: it has no answer to score"


@functools.cache
def _definitions() -> Any:
    """lm-eval's registry of the definitions here."""
    return _manager(include_defaults=False, include_path=str(DEFINITIONS))


@functools.cache
def _registry() -> Any:
    """lm-eval's registry of its own tasks, which takes seconds."""
    print("reading lm-eval's registry of tasks", file=sys.stderr, flush=True)
    return _manager()


def _manager(**given: Any) -> Any:
    try:
        from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(
            "public tasks need lm-eval, which is not installed",
            do="pip install 'bayeslaw[eval]', in a checkout '.[eval]'",
        ) from error
    return TaskManager(**given)
