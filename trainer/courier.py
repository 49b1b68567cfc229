"""The courier: a process that follows journals and brings them to MLflow while their runs go on.

A process of its own, so that neither an import, nor a slow store, nor one that is away takes time from the training,
and so that the death of a run is told by somebody who is alive. Its parent writes lines to its standard input: the path
of a journal to follow, or an empty line: deliver now. When the input ends, since the parent is done or dead, it
delivers what is left and ends.

Run as ``python -m trainer.courier`` with the store in ``MLFLOW_TRACKING_URI``: a password belongs on no command line.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bayeslaw import store
from bayeslaw.errors import BayeslawError
from trainer import rundir
from trainer.delivery import BATCH_POINTS, Delivery
from trainer.tracking import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient

FLUSH_SECONDS = 10.0
BEAT_SECONDS = 60.0
LOOK_SECONDS = 0.5
MOST_PAUSE_SECONDS = 30.0
MOST_LETTERS = 200
"""Of a store's own error; MLflow's repeat the whole request."""
DYING_SECONDS = 2.0
PATIENCE_SECONDS = 20.0
"""How long it goes on trying at the end while nothing gets through."""
FIRST_PATIENCE_SECONDS = 5.0
"""The same for a store that has never answered."""


class Followed:
    """One journal that is followed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = Trouble()
        self._delivery: Delivery | None = None
        self._file: tuple[int, int] | None = None  # inode and size when last looked at
        self._delivered_at = self._beaten_at = time.monotonic()
        self._dead = False

    def look(self, client: MlflowClient, uri: str, *, now: bool, orphaned: bool) -> bool:
        """Deliver if there is enough, or if it was long ago, or ``now``; whether there was anything to do.

        Parameters
        ----------
        client, uri
            As for `Delivery`.
        now : bool
            Whatever little there is.
        orphaned : bool
            The process that asked to follow it is done, or gone.
        """
        try:
            found = self.path.stat()
        except OSError:
            return False
        inode, size = self._file or (found.st_ino, 0)
        self._file = found.st_ino, found.st_size
        if self._delivery is None or found.st_ino != inode or found.st_size < size:  # the run was begun anew
            self._delivery = Delivery(client, self.path, uri)
        if waiting := self._delivery.pending():
            if now or waiting >= BATCH_POINTS or time.monotonic() - self._delivered_at >= FLUSH_SECONDS:
                self._delivery.push()
                self._delivered_at = self._beaten_at = time.monotonic()
                self._dead = False
            return True
        return self._sign_of_life(self._delivery, orphaned=orphaned)

    @property
    def running(self) -> bool:
        """Whether MLflow takes the run for one that goes on."""
        return self._delivery is not None and self._delivery.state == "running"

    def forget(self) -> None:
        """Ask MLflow next time what it has."""
        self._delivery = None

    def _sign_of_life(self, delivery: Delivery, *, orphaned: bool) -> bool:
        """Tell of a run that goes on without points, or has died; whether there was something to tell."""
        run_dir = self.path.parent
        if delivery.state != "running":
            return False
        if rundir.alive(run_dir) or not (orphaned or rundir.last_sign(run_dir)):
            self._dead = False
            if time.monotonic() - self._beaten_at >= BEAT_SECONDS:
                delivery.beat()
                self._beaten_at = time.monotonic()
            return False
        if self._dead:
            delivery.mark_killed(rundir.last_sign(run_dir) or time.time())
        self._dead = True  # it may have ended just now: its last records come first
        return True


class Trouble:
    """Failures in a row, and when to try again."""

    def __init__(self) -> None:
        self.failures = 0
        self._until = 0.0

    @property
    def pause(self) -> float:
        """Seconds until it is tried again."""
        return max(0.0, self._until - time.monotonic())

    def more(self) -> None:
        """Note one more failure."""
        self._until = time.monotonic() + min(2.0**self.failures, MOST_PAUSE_SECONDS)
        self.failures += 1

    def over(self) -> None:
        """Note a success."""
        self.failures, self._until = 0, 0.0


class Courier:
    """Delivers the journals that it is told to follow.

    Parameters
    ----------
    uri : str
        Tracking URI.
    tell : callable
        Takes what a person should know.
    """

    def __init__(self, uri: str, tell: Callable[[str], None]) -> None:
        self._uri = uri
        self._tell = tell
        self._followed: dict[Path, Followed] = {}
        self._client: MlflowClient | None = None
        self._trouble = Trouble()  # of the store

    def follow(self, path: Path) -> None:
        """Take up a journal, which need not exist yet."""
        self._followed.setdefault(path, Followed(path))

    def round(self, *, now: bool = False, orphaned: bool = False) -> bool:
        """Look at every journal once; whether anything was to be done, a store that is away included."""
        if self._trouble.pause:
            return True
        busy = False
        for followed in self._followed.values():
            if followed.trouble.pause:
                busy = True
                continue
            try:
                self._client = self._client or connect(self._uri)
                busy |= followed.look(self._client, self._uri, now=now, orphaned=orphaned)
            except Exception as error:  # whatever a store or its libraries raise: it is tried again
                busy = True
                followed.forget()
                if not self._answers():
                    self._on_failure(self._trouble, error, "")
                    return True
                self._on_failure(followed.trouble, error, f"{followed.path}: ")
            else:
                self._on_success(followed.trouble)
        self._on_success(self._trouble)
        return busy

    def finish(self) -> bool:
        """Deliver what is left; whether that succeeded before the patience was at its end."""
        begun = since = time.monotonic()
        while True:
            busy = self.round(now=True, orphaned=True)
            # A process that is being killed closes its files one after another, the claim on its run not first.
            dying = any(each.running for each in self._followed.values()) and time.monotonic() - begun < DYING_SECONDS
            if not (busy or dying):
                return True
            troubles = [self._trouble, *(followed.trouble for followed in self._followed.values())]
            if not any(trouble.failures for trouble in troubles):
                since = time.monotonic()
            elif time.monotonic() - since > (PATIENCE_SECONDS if self._client else FIRST_PATIENCE_SECONDS):
                return False
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether the store is there at all: if it is, the trouble is with one journal."""
        try:
            self._client = self._client or connect(self._uri)
            self._client.search_experiments(max_results=1)
        except Exception:
            return False
        return True

    def _on_failure(self, trouble: Trouble, error: Exception, where: str) -> None:
        if not trouble.failures:
            why = store.scrubbed(error.what if isinstance(error, BayeslawError) else rundir.reason(error))
            why = why if len(why) <= MOST_LETTERS else f"{why[:MOST_LETTERS]} ..."
            where = "" if where and where.removesuffix(": ") in why else where
            self._tell(
                f"warning: not delivered to MLflow ({store.public_uri(self._uri)}): {where}{why}\n"
                "  training goes on, its journal has everything; it is tried again, and what is still missing at the\n"
                "  end is delivered with `bayeslaw runs sync DIR`"
            )
        trouble.more()

    def _on_success(self, trouble: Trouble) -> None:
        if trouble.failures:
            self._tell("MLflow takes what it is sent again")
        trouble.over()


def main() -> None:
    """Follow the journals named on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A request that is repeated by the client itself could make a run twice.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    courier = Courier(store.resolve_uri(), _tell)
    buffer = b""
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_SECONDS)
        now = False
        if ready:
            if not (read := os.read(0, 65536)):
                break
            *lines, buffer = (buffer + read).split(b"\n")
            for line in lines:
                if line:
                    courier.follow(Path(os.fsdecode(line)))
                now |= not line
        courier.round(now=now)
    sys.exit(0 if courier.finish() else 1)


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
