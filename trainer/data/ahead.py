"""Batches made ahead of the steps that want them, by a thread."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch
from torch import Tensor

from trainer.data.batches import Batches
from trainer.data.rows import Rows
from trainer.distributed import World

DEPTH = 4
"""Batches that are ready or being made."""


class Ahead:
    """A process's share of one batch after another, from a first step on.

    For a GPU, and for packed rows, which may have to come from the disk, a thread makes them ahead of the steps, for a
    GPU in pinned memory. A text in memory is cut faster than a thread is asked. An error of the thread is raised by
    `take`.

    Parameters
    ----------
    batches : Batches
    world : World
    first, last : int
        Steps: from ``first`` up to but not ``last``.
    """

    def __init__(self, batches: Batches, world: World, first: int, last: int) -> None:
        self._batches, self._world = batches, world
        self._next, self._last = first, last
        self._on_gpu = world.device.type == "cuda"
        self._ready: deque[Future[Tensor]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        if self._on_gpu or isinstance(batches.tokens, Rows):
            # The current device is each thread's own: without it, pinning would open the first GPU in every process.
            prepare = (torch.cuda.set_device, (world.device,)) if self._on_gpu else (None, ())
            self._thread = ThreadPoolExecutor(1, "batches", *prepare)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def take(self) -> Tensor:
        """Tokens [B / processes, T + 1] of the next step, int64."""
        if self._thread is None:
            self._next += 1
            return self._made(self._next - 1)
        while len(self._ready) < DEPTH and self._next < self._last:
            self._ready.append(self._thread.submit(self._made, self._next))
            self._next += 1
        return self._ready.popleft().result()

    def _made(self, step: int) -> Tensor:
        batch = torch.from_numpy(self._batches.at(step, self._world.rank, self._world.size))
        return batch.pin_memory() if self._on_gpu else batch
