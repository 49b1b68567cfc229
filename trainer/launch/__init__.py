"""Launching: what starts the workers of a sweep, on this machine or on a cluster, and what each of them is told."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bayeslaw.errors import UsageError
from trainer.attempts import RETRIES
from trainer.checks import require_count
from trainer.execution import Execution


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the workers of a launch are told.

    Parameters
    ----------
    plan : Path
        The plan file.
    out : Path
        Output folder.
    retries : int
        A run that failed so often in a row is tried once more, and then given up.
    processes : int
        Processes that train one run together, one a GPU; above 1 torchrun starts them.
    nodes : int
        Machines of a cluster that they are spread over.
    tracked : bool
        Whether a worker delivers its journals itself, to the store that MLFLOW_TRACKING_URI names.
    execution : Execution
    module : str
        What a worker runs: `trainer.worker`, or what stands in for it.

    Raises
    ------
    UsageError
        A number below 1, or processes that the nodes do not divide.
    """

    plan: Path
    out: Path
    retries: int = RETRIES
    processes: int = 1
    nodes: int = 1
    tracked: bool = False
    execution: Execution = field(default_factory=Execution)
    module: str = "trainer.worker"

    def __post_init__(self) -> None:
        for name, least in (("retries", 0), ("processes", 1), ("nodes", 1)):
            require_count(name, getattr(self, name), least)
        if self.processes % self.nodes:
            raise UsageError(
                f"{self.processes} processes of a run on {self.nodes} nodes", allowed="a multiple of the nodes"
            )

    def command(self, name: str) -> list[str]:
        """The command of the worker of this name.

        No URI is in it: whoever may list processes would read its password.
        """
        return [sys.executable, "-P", "-m", self.module, *self.arguments(name)]

    def arguments(self, name: str) -> list[str]:
        """What the module is told."""
        return [
            *(str(self.plan.absolute()), "--out", str(self.out.absolute()), "--name", name),
            *("--retries", str(self.retries), "--processes", str(self.processes), "--nodes", str(self.nodes)),
            *(["--tracked"] if self.tracked else []),
            *("--execution", json.dumps(dataclasses.asdict(self.execution))),
        ]
