"""Compilation of a run's network: whether it pays, where its results are kept, and one graph for a run's one shape."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import TrainConfig
from trainer.execution import Execution

PAYS_FROM = 1e13
"""Training FLOPs from which what Inductor takes on a CPU is won back, up to a minute for a new shape: a run of four
minutes and more on one core (benchmarks/results/speed.json)."""


def wanted(config: TrainConfig, execution: Execution, *, on_gpu: bool) -> bool:
    """Whether the network of a run is to be compiled."""
    if execution.compile != "auto":
        return execution.compile == "on"
    flops = float(config.train_tokens) * float(config.architecture.flops_per_token)
    return on_gpu or (flops >= PAYS_FROM and shutil.which(os.environ.get("CXX", "g++")) is not None)


def keep_results() -> None:
    """Let compiled code outlive the machine's temporary folder, unless the person has named a place for it.

    A study has few shapes and many runs: the first run of a shape compiles, later ones read.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home / "bayeslaw" / "inductor"))


class Compiled(nn.Module):
    """A module as one compiled graph of one shape; a second shape would be a fault, and slow in silence.

    Parameters
    ----------
    module : nn.Module
    or_else_plain : bool
        Where nobody insists on compilation: if the machine has no working compiler, say so and go on without.
    """

    def __init__(self, module: nn.Module, *, or_else_plain: bool) -> None:
        super().__init__()
        self.module = module
        self._or_else_plain = or_else_plain
        keep_results()
        torch._dynamo.reset()  # graphs of an earlier run in this process count towards the limit of eight
        module.compile(fullgraph=True, dynamic=False)

    def forward(self, *inputs: Tensor) -> Any:
        """The module's output."""
        with torch._dynamo.config.patch(error_on_recompile=True):
            try:
                return self.module(*inputs)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                if not self._or_else_plain:
                    raise
                self._or_else_plain = False
                self.module._compiled_call_impl = None
                why = str(error.inner_exception).strip().splitlines()[0]
                print(f"note: the network is not compiled, which costs speed alone: {why}", file=sys.stderr)
                return self.module(*inputs)
