"""What is listened for beside the training: that the process is to stop, and that the run in hand is.

Either becomes the signal that the training already takes as the request to save and stop. A request to stop is also
remembered, because one that comes while a run is stopping would be taken for the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from trainer.signals import TAKEN, stopped

LOOK_SECONDS = 1.0
"""Between two looks at whether the run in hand is to stop."""


class Watch:
    """Listens in a thread of its own; only in the main thread, elsewhere Python takes no signals and nothing is heard.

    Parameters
    ----------
    launcher : int, optional
        Descriptor of a pipe whose other end the launcher holds: closed when this process is to stop, or that died.
    """

    def __init__(self, *, launcher: int | None = None) -> None:
        self.stop: int | None = None
        """The signal that asked this process to stop."""
        self.ended = False
        """Whether the run in hand, or the last one, was stopped by what `over` looks at."""
        self._launcher = launcher
        self._until: Callable[[], bool] | None = None
        self._own = 0  # signals sent to this process by itself, and not yet heard
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Watch:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._heard, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in TAKEN:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._take)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        signal.set_wakeup_fd(self._wakeup)
        self._wake.send(b"\0")
        self._thread.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._heard.close()
        self._wake.close()

    @contextlib.contextmanager
    def over(self, until: Callable[[], bool]) -> Iterator[None]:
        """Let the run in the block go on until ``until()``, which is called every second."""
        self.ended, self._until = False, until
        try:
            yield
        finally:
            self._until = None

    def heed(self) -> None:
        """Stop now if that was asked for.

        Raises
        ------
        KeyboardInterrupt, SystemExit
            As the signal asks.
        """
        if self.stop is not None:
            raise stopped(self.stop)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._until is None and self.ended:
            return  # our own, after the run it was for; another signal is remembered, and heeded before the next run
        raise stopped(number)

    def _listen(self) -> None:
        sources: list[Any] = [self._heard, *([] if self._launcher is None else [self._launcher])]
        while True:
            ready, _, _ = select.select(sources, [], [], LOOK_SECONDS)
            if self._heard in ready:
                for number in self._heard.recv(64):
                    if number == 0:
                        return
                    if number == signal.SIGTERM and self._own:
                        self._own -= 1
                    elif number in TAKEN:
                        self.stop = self.stop or number
            if self._launcher in ready and not os.read(sources[-1], 1):
                sources.remove(self._launcher)
                if self.stop is None:
                    self.stop = signal.SIGTERM
                    if not self.ended or self._until is None:
                        self._ask()
            until = self._until
            if until and self.stop is None and not self.ended and until():
                self.ended = True
                self._ask()

    def _ask(self) -> None:
        self._own += 1
        os.kill(os.getpid(), signal.SIGTERM)
