"""SIGTERM, SIGHUP and Ctrl-C while a run goes on: the step in hand is finished and saved first."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

TAKEN = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Signals:
    """Takes the first of these signals as a request to stop after the step in hand; a second one stops at once.

    Only in the main thread: elsewhere Python takes no signals, and nothing changes.

    Parameters
    ----------
    grace : float
        Seconds after the first one in which another counts as the same.
    """

    def __init__(self, *, grace: float = 0.0) -> None:
        self.requested: int | None = None
        self._grace = grace
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in TAKEN:
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup
                continue
            try:
                self._before[number] = signal.signal(number, self._take)
            except ValueError:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested, self._since = number, time.monotonic()
        elif time.monotonic() - self._since >= self._grace:
            raise stopped(number)


def stopped(number: int | None) -> BaseException:
    """The exception that ends a process as the signal asks: KeyboardInterrupt, or SystemExit with 128 + its number.

    None stands for a SIGTERM that another process had.
    """
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + (number or signal.SIGTERM))
