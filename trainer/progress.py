"""Progress of a run on stderr: a bar on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_SECONDS = 10.0


class Progress:
    """Shows step, loss, tokens per second and time left of one run.

    Parameters
    ----------
    label : str
        Name of the run.
    steps : int
        Optimiser steps of the run.
    quiet : bool
        Show nothing.
    """

    def __init__(self, label: str, steps: int, *, quiet: bool = False) -> None:
        self._label = label
        self._steps = steps
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._begun = self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        self._begun = self._shown = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self._label, total=self._steps, state="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Tell that ``step`` steps are done; ``loss`` in nats per token."""
        state = f"loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
        now = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, state=state)
        elif not self._quiet and now - self._shown >= LINE_SECONDS:
            self._shown = now
            left = (now - self._begun) / step * (self._steps - step)
            print(f"{self._label}  step {step}/{self._steps}  {state}  {left:.0f} s left", file=sys.stderr, flush=True)
