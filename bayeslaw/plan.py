"""The sweep plan: which runs to train, with their cost, and the hash that says two configs are the same run.

A plan file is JSON: ``{"schema_version", "study", "runs": [{"config_hash", "config", <run-table columns>...}],
"plan_hash"}``. The plan hash covers all the rest: a plan is made by planning, never by hand.
Standard library only: read on a training node that has neither pandas nor mlflow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayeslaw.errors import JournalError, UsageError
from bayeslaw.files import written_whole
from bayeslaw.schema import COLUMNS, SCHEMA_VERSION


@dataclass(frozen=True)
class PlannedRun:
    """One run to train.

    Parameters
    ----------
    config : dict
        All that decides the run's result, as the trainer takes it; no host, path or time.
    row : dict
        Run-table columns known beforehand, ``tokens`` and ``flops`` as planned; and two that are no columns:
        ``memory``, bytes that the run takes on one device, and ``hours``, of one device, where its speed is known.
    """

    config: dict[str, Any]
    row: dict[str, Any]

    @property
    def config_hash(self) -> str:
        """Identity of the run."""
        return config_hash(self.config)

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return str(self.row["run_id"])

    @property
    def known(self) -> dict[str, Any]:
        """The run-table columns known before the run; what it is to reach is no result."""
        return {name: value for name, value in self.row.items() if name in COLUMNS and not COLUMNS[name].result}


@dataclass(frozen=True)
class Plan:
    """A named list of runs to train.

    Parameters
    ----------
    study : str
        Name of the MLflow experiment that the runs belong to.
    runs : tuple of PlannedRun

    Raises
    ------
    UsageError
        The study has no name, there is no run, or a config comes twice.
    """

    study: str
    runs: tuple[PlannedRun, ...]

    def __post_init__(self) -> None:
        require_study(self.study)
        different = len({run.config_hash for run in self.runs})
        if not self.runs or different < len(self.runs):
            raise UsageError(
                f"a plan of {len(self.runs)} runs, {different} of them different", allowed="one or more, each once"
            )

    @property
    def flops(self) -> float:
        """Planned training FLOPs of all runs."""
        return float(sum(run.row["flops"] for run in self.runs))

    @property
    def hours(self) -> float | None:
        """Expected device hours of all runs, None where the speed of one is not known."""
        known = [run.row["hours"] for run in self.runs if run.row.get("hours") is not None]
        return float(sum(known)) if len(known) == len(self.runs) else None

    @property
    def sweep(self) -> str:
        """Identity of the sweep: the first sixteen digits of the plan's hash."""
        return str(self.as_dict()["plan_hash"])[:16]

    def timed(self, seconds: Callable[[float], float]) -> Plan:
        """The plan with the expected hours of its runs.

        Parameters
        ----------
        seconds : callable
            Device seconds of a token, of its FLOPs.
        """
        return Plan(
            self.study,
            tuple(
                PlannedRun(
                    run.config,
                    run.row | {"hours": run.row["tokens"] * seconds(run.row["flops_per_token"]) / 3600},
                )
                for run in self.runs
            ),
        )

    @property
    def longest_first(self) -> Plan:
        """The same runs with the longest first, by expected hours where all are known, else by FLOPs.

        Many workers are then done sooner: in the plan's own order the longest runs are alone at the end.
        """
        length = "flops" if self.hours is None else "hours"
        return replace(self, runs=tuple(sorted(self.runs, key=lambda run: run.row[length], reverse=True)))

    def as_dict(self) -> dict[str, Any]:
        """The plan as its file holds it."""
        runs = [{"config_hash": run.config_hash, **run.row, "config": run.config} for run in self.runs]
        content = {"schema_version": SCHEMA_VERSION, "study": self.study, "runs": runs}
        return {**content, "plan_hash": _sha256(content)}


def config_hash(config: Mapping[str, Any]) -> str:
    """Sixteen hex digits of the SHA-256 of the config's canonical JSON (sorted keys, no white space)."""
    return _sha256(config)[:16]


def require_study(study: object) -> None:
    """Refuse what cannot name an MLflow experiment, before anything is trained for it.

    Raises
    ------
    UsageError
        No text, or an empty or blank one.
    """
    if not isinstance(study, str) or not study.strip():
        raise UsageError(f"study = {study!r}", allowed="a name that is not blank", do="name it with --study NAME")


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan file, whole or not at all.

    Raises
    ------
    JournalError
        The file cannot be written.
    """
    with written_whole(path, error=JournalError) as partial:
        partial.write_text(json.dumps(plan.as_dict(), indent=1) + "\n", encoding="utf-8")


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    UsageError
        The file cannot be read.
    JournalError
        It is no plan, is of another version, or was changed after planning.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}", allowed="a file that holds a sweep plan", do=_MAKE) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", do=_MAKE) from error
    except UnicodeDecodeError as error:
        raise _no_plan(path, "it is no text") from error
    content = _content(path, text)
    version, found = content["schema_version"], content.pop("plan_hash", None)
    if version != SCHEMA_VERSION:
        raise JournalError(
            f"{path} has schema_version {version!r}", allowed=str(SCHEMA_VERSION), do=f"{_AGAIN} of this version"
        )
    try:
        hashed = _sha256(content)
    except ValueError as error:
        raise _no_plan(path, "a number in it is not finite") from error
    if found != hashed:
        raise JournalError(f"{path} was changed after planning: its plan_hash does not match", do=_AGAIN)
    runs = content.get("runs")
    if not isinstance(runs, list):
        raise _no_plan(path, "it has no list of runs")
    for number, run in enumerate(runs, start=1):
        if not isinstance(run, dict) or not isinstance(run.get("config"), dict) or "run_id" not in run:
            raise _no_plan(path, f"entry {number} of its runs has no run_id and config")
    try:
        return Plan(content.get("study", ""), tuple(map(_planned, runs)))
    except UsageError as error:
        raise JournalError(f"{path}: {error.what}", allowed=error.allowed, do=_AGAIN) from error


def _content(path: Path, text: str) -> dict[str, Any]:
    """The JSON object of a plan file, ``schema_version`` in it."""
    if not text.strip():
        raise _no_plan(path, "it is empty")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise _no_plan(path, f"it is no JSON from line {error.lineno}, column {error.colno} on") from error
    except (ValueError, RecursionError) as error:  # thousands of digits or brackets
        raise _no_plan(path, "it is no JSON") from error
    if not isinstance(content, dict):
        raise _no_plan(path, "it holds no JSON object")
    if "schema_version" not in content:
        raise _no_plan(path, "it has no schema_version")
    return content


def _no_plan(path: Path, wrong: str) -> JournalError:
    return JournalError(f"{path} is not a sweep plan: {wrong}", do=_MAKE)


_MAKE = "make one with `bayeslaw sweep plan --out FILE`"
_AGAIN = "plan again with `bayeslaw sweep plan`"


def _planned(entry: Mapping[str, Any]) -> PlannedRun:
    return PlannedRun(
        entry["config"], {key: value for key, value in entry.items() if key not in ("config", "config_hash")}
    )


def _sha256(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
