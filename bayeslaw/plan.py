"""The sweep plan: which runs to train, with their cost, and the hash that says two configs are the same run.

A plan file is JSON: ``{"schema_version", "study", "runs": [{"config_hash", "config", <run-table columns>...}]}``.
Standard library only: read on a training node that has neither pandas nor mlflow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayeslaw.errors import JournalError
from bayeslaw.files import written_whole
from bayeslaw.schema import SCHEMA_VERSION


@dataclass(frozen=True)
class PlannedRun:
    """One run to train.

    Parameters
    ----------
    config : dict
        All that decides the run's result, as the trainer takes it; no host, path or time.
    row : dict
        Run-table columns known beforehand, ``tokens`` and ``flops`` as planned.
    """

    config: dict[str, Any]
    row: dict[str, Any]

    @property
    def config_hash(self) -> str:
        """Identity of the run."""
        return config_hash(self.config)


@dataclass(frozen=True)
class Plan:
    """A named list of runs to train.

    Parameters
    ----------
    study : str
        Name of the MLflow experiment that the runs belong to.
    runs : tuple of PlannedRun
    """

    study: str
    runs: tuple[PlannedRun, ...]

    @property
    def flops(self) -> float:
        """Planned training FLOPs of all runs."""
        return float(sum(run.row["flops"] for run in self.runs))

    def as_dict(self) -> dict[str, Any]:
        """The plan as its file holds it."""
        runs = [{"config_hash": run.config_hash, **run.row, "config": run.config} for run in self.runs]
        return {"schema_version": SCHEMA_VERSION, "study": self.study, "runs": runs}


def config_hash(config: Mapping[str, Any]) -> str:
    """Sixteen hex digits of the SHA-256 of the config's canonical JSON (sorted keys, no white space)."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


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
    JournalError
        The file is missing, is no plan, or a run's config does not match its hash.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        runs = []
        for entry in content["runs"]:
            row = {key: value for key, value in entry.items() if key not in ("config", "config_hash")}
            runs.append(PlannedRun(entry["config"], row))
            if runs[-1].config_hash != entry["config_hash"]:
                raise JournalError(
                    f"{path}: the config of {row.get('run_id')} was changed after planning",
                    do="plan again with `bayeslaw sweep plan`",
                )
        return Plan(content["study"], tuple(runs))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalError(
            f"{path} is not a sweep plan ({type(error).__name__}: {error})",
            do="make one with `bayeslaw sweep plan --out FILE`",
        ) from error
