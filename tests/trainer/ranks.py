"""Processes that train one run together, forked from one that has torch loaded: a start costs no import."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # by the first step
import torch.distributed as dist
import torch.distributed.optim
import torch.nn.parallel

import trainer.loop  # noqa: F401

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", __name__])
_NUMBERS = itertools.count()

PATIENCE = 60.0
"""Seconds after which processes that have not ended hang."""


class Ranks:
    """As many processes as ``size``, each of which does ``work(*arguments)`` as torchrun would have it done."""

    def __init__(self, work, *arguments, size: int, folder: Path) -> None:
        self._folder = folder / f"ranks-{next(_NUMBERS)}"
        self._folder.mkdir(parents=True)
        self.processes = [
            _FORKS.Process(target=_rank, args=(work, arguments, rank, size, str(self._folder)), daemon=True)
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def signal(self, number: int, ranks=None) -> None:
        """Send a signal to some of the processes, or to all."""
        for rank in range(len(self.processes)) if ranks is None else ranks:
            if self.processes[rank].is_alive():
                os.kill(self.processes[rank].pid, number)

    @property
    def alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def ended(self) -> list[int]:
        """Exit codes, once all have ended of themselves."""
        deadline = time.monotonic() + PATIENCE
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        hanging = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        for rank in hanging:
            self.processes[rank].kill()
            self.processes[rank].join()
        assert not hanging, f"ranks {hanging} hang"
        return [process.exitcode for process in self.processes]

    def outcomes(self) -> list:
        """What each process returned or raised, once all have ended."""
        return [pickle.loads((self._folder / str(rank)).read_bytes()) for rank, _ in enumerate(self.ended())]


def together(work, *arguments, size: int, folder: Path) -> list:
    """What ``work(*arguments)`` returns in each of ``size`` processes."""
    found = Ranks(work, *arguments, size=size, folder=folder).outcomes()
    for value in found:
        if isinstance(value, BaseException):
            raise value
    return found


def _rank(work, arguments, rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if size > 1:
        meeting, timeout = f"file://{folder}/meet", timedelta(seconds=PATIENCE / 2)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=timeout)
        dist.barrier()  # one that fails at once must not leave while another still connects to it
    try:
        outcome = work(*arguments)
    except Exception as error:
        traceback.print_exc()
        outcome = error
    Path(folder, str(rank)).write_bytes(pickle.dumps(outcome))
    if isinstance(outcome, Exception):
        sys.exit(1)
    if size > 1:
        dist.barrier()  # nobody leaves while another still reads
        dist.destroy_process_group()
