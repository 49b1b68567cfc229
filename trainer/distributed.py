"""The processes of a run: one, or those that torchrun started, each with its device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bayeslaw.errors import UsageError

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others: as long as the slowest reads its corpus, or rank 0 writes a checkpoint."""


@dataclass(frozen=True)
class World:
    """The processes that train one run together.

    Parameters
    ----------
    rank, size : int
        This process and how many there are; rank 0 writes journal and checkpoints.
    device : torch.device
        Where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same bits in each; in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gathered(self, value: Any) -> list[Any]:
        """The value of every process, by rank, in every process."""
        values = [value]
        if self.size > 1:
            values = [None] * self.size
            dist.all_gather_object(values, value)
        return values

    def agreed(self, decide: Callable[[], Any]) -> Any:
        """What rank 0 decides, in every process. An error that it raises is raised everywhere."""
        if self.size == 1:
            return decide()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = decide()
            except Exception as error:
                answer[1] = error
        dist.broadcast_object_list(answer)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]


def join(device: str = "auto") -> World:
    """The world of this process; under torchrun its process group is made once.

    Parameters
    ----------
    device : str
        As in `trainer.execution.Execution`.

    Raises
    ------
    UsageError
        There is no GPU, or there are fewer than processes on this machine.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    size, rank, local, here = (int(os.environ.get(name, default)) for name, default in _TORCHRUN.items())
    if (gpus or device == "cuda") and device != "cpu" and gpus < here:  # some on the CPU would wait for the others
        raise UsageError(
            f"device = {device!r} for {here} process{'es' if here > 1 else ''} of this machine, "
            f"which has {gpus} GPU{'' if gpus == 1 else 's'}",
            allowed="cpu, or as many processes as there are GPUs",
            do="train with --device cpu" + (", or start fewer processes" if here > 1 else ""),
        )
    on_gpu = device != "cpu" and gpus > 0
    if on_gpu:
        torch.cuda.set_device(local)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    return World(rank, size, torch.device("cuda", local) if on_gpu else torch.device("cpu"))


_TORCHRUN = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
"""What torchrun tells each process, and the values of a process that it did not start."""
