"""A tracking server as processes: started, waited for until it answers, ended with all it has started."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import IO

from bayeslaw.errors import TrackingError
from bayeslaw.server import accounts, database
from bayeslaw.server.settings import CONNECTIONS, STORE_VARIABLE, Settings

START_SECONDS = 90.0
"""A fresh PostgreSQL gets its tables first."""
STOP_SECONDS = 10.0

_WEB_SERVER = "--log-level warning --no-access-log --timeout-keep-alive 75 --timeout-worker-healthcheck 60"
"""Of uvicorn: its own 5 s close a connection just as a trainer's next batch comes, and end a process that is busy."""

_OURS = ("MLFLOW_SERVER_", "MLFLOW_AUTH_", "MLFLOW_TRACKING_", "MLFLOW_GUNICORN_", "MLFLOW_UVICORN_")
"""Variables that would undo the settings below."""


class Server:
    """One `mlflow server` in a process group of its own, which ends as a whole.

    Parameters
    ----------
    settings : Settings
    tell : callable, optional
        Told what the server prints once it serves (warnings and errors), its secrets blanked.

    Examples
    --------
    >>> with Server(Settings(port=5001)) as server:
    ...     print(server.uri)
    """

    def __init__(self, settings: Settings, *, tell: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.uri = settings.uri
        self.accounts: accounts.Accounts | None = None
        self._tell = tell
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._last: deque[str] = deque(maxlen=30)
        self._serves = False

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Number of its first process and of its process group."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its first process goes on."""
        return self._process is not None and self._process.poll() is None

    def start(self, stopping: threading.Event | None = None) -> None:
        """Start it and return when it answers, or soon after ``stopping`` is set.

        The thread that calls this is to live as long as the server: with it the kernel ends the server.

        Raises
        ------
        UsageError
            The store is no address of a database, or the password set is no good one.
        TrackingError
            The port is taken, the database cannot be used, or the server ends or does not answer within 90 s.
        """
        settings = self.settings
        self._require_port()
        database.require_usable(settings.address)
        self.accounts = accounts.prepare(settings.home) if settings.auth else None
        self._serves = False
        self._last.clear()
        stopping = stopping or threading.Event()
        try:
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
            assert self._process.stdout is not None
            self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
            self._reader.start()
            end = time.monotonic() + START_SECONDS
            while not stopping.is_set() and not self._answers("/health"):
                if not self.alive or time.monotonic() > end:
                    raise self._not_started()
                stopping.wait(0.1)
            if self.accounts and not stopping.is_set():
                self._require_password(self.accounts)
        except BaseException:
            self.stop()
            raise
        self._serves = True

    def stop(self) -> None:
        """Let requests in hand end, then end every process of the group."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the group at once, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process = self._process
        if process is None:
            return
        _signal_group(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)  # it waits for its workers
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        if self._reader:
            self._reader.join(STOP_SECONDS)
        self._process = None

    def _command(self) -> list[str]:
        settings = self.settings
        settings.artifact_folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "mlflow", "server", "--host", settings.host, "--port", str(settings.port)]
        command += ["--workers", str(settings.workers), "--artifacts-destination", settings.artifact_folder.as_uri()]
        command += ["--allowed-hosts", settings.hosts, "--uvicorn-opts", _WEB_SERVER]
        command += ["--cors-allowed-origins", settings.origins] if settings.origins else []
        return [*command, "--app-name", "basic-auth"] if settings.auth else command

    def _environment(self) -> dict[str, str]:
        """No secret stands on the command line, which every user of the machine can read."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        tuned = {
            "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": str(CONNECTIONS),
            "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": str(CONNECTIONS),
        }
        return {
            **tuned,
            **own,
            STORE_VARIABLE: self.settings.address,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_LOGGING_LEVEL": "WARNING",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "PYTHONUNBUFFERED": "1",
            **(self.accounts.environment if self.accounts else {}),
        }

    def _secrets(self) -> list[str]:
        kept = [self.accounts.password, self.accounts.key] if self.accounts else []
        return [*database.secrets_of(self.settings.address), *kept]

    def _read(self, lines: IO[str]) -> None:
        hidden = self._secrets()
        with lines:
            for line in lines:
                text = database.without(line.rstrip(), hidden)
                self._last.append(text)
                if self._serves and self._tell:
                    self._tell(text)

    def _require_port(self) -> None:
        settings = self.settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            socket.create_server((settings.host, settings.port), family=family).close()
        except OSError as error:
            do = "name another address with --host"
            if error.errno == errno.EADDRINUSE:
                do = f"choose another with --port {settings.port % 65535 + 1}, or end the process that has it"
            elif error.errno == errno.EACCES:
                do = "choose a port above 1023"
            raise TrackingError(
                f"cannot listen at {settings.host} port {settings.port}: {os.strerror(error.errno or 0)}", do=do
            ) from error

    def _answers(self, path: str, headers: dict[str, str] | None = None) -> bool:
        try:
            request = urllib.request.Request(self.settings.local_uri + path, headers=headers or {})
            with _DIRECT.open(request, timeout=5):
                return True
        except OSError:
            return False

    def _require_password(self, kept: accounts.Accounts) -> None:
        """Accounts that were made with another password keep that one, and clients would be refused."""
        token = base64.b64encode(f"{accounts.ADMIN}:{kept.password}".encode()).decode()
        if not self._answers("/api/2.0/mlflow/experiments/search?max_results=1", {"Authorization": f"Basic {token}"}):
            raise TrackingError(
                f"the accounts in {kept.folder} were made with another password than this one",
                do=f"start with the earlier password in {accounts.PASSWORD_VARIABLE}, or remove {kept.folder}"
                " (accounts only: no run is lost)",
            )

    def _not_started(self) -> TrackingError:
        ended = not self.alive
        if ended and self._reader:
            self._reader.join(STOP_SECONDS)
        said = next((line for line in reversed(self._last) if line.strip()), "nothing")
        what = "ended at once" if ended else f"did not answer within {START_SECONDS:.0f} s"
        return TrackingError(
            f"the tracking server {what}; its last words: {said}", do="correct that and start it again; no run is lost"
        )


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy of the environment knows nothing of a server on this machine."""


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _end_with_parent() -> None:
    """Where the kernel can, have it end the server when who started it was killed outright."""
    set_parent_death_signal = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
