"""`bayeslaw server` as a person starts it, and what tests look at it with."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@dataclass
class Served:
    """A server that serves; what it printed and how it ended once it has."""

    process: subprocess.Popen
    line: str
    uri: str
    group: int
    output: str = ""

    @property
    def commands(self) -> list[str]:
        """Command lines of its processes."""
        return living(self.group)


@contextlib.contextmanager
def served(folder: Path, *flags: str, store: str | None = None, end: int = signal.SIGTERM) -> Iterator[Served]:
    """The command in a folder, ended by a signal; it must have served, and ended as asked within half a minute."""
    port = free_port()
    environment = os.environ | ({"MLFLOW_BACKEND_STORE_URI": store} if store else {})
    process = subprocess.Popen(
        [sys.executable, "-m", "bayeslaw", "server", "--port", str(port), *flags],
        cwd=folder, env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1])
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found = Served(process, line, f"http://127.0.0.1:{port}", int(child))
        yield found
    finally:
        process.send_signal(end)
        out, error = process.communicate(timeout=30)
    found.output = line + out + error
    if end == signal.SIGKILL:  # nobody is left to wait for its processes
        deadline = time.monotonic() + 20
        while living(found.group) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert process.returncode == (-end if end == signal.SIGKILL else 128 + end), error
    assert living(found.group) == []


def answer(uri: str, headers: dict[str, str], data: bytes | None = None) -> int:
    """Status of a request for the experiments."""
    request = urllib.request.Request(f"{uri}/api/2.0/mlflow/experiments/search?max_results=1", data, headers)
    try:
        with urllib.request.urlopen(request) as found:
            return found.status
    except urllib.error.HTTPError as error:
        return error.code


def living(group: int) -> list[str]:
    """Command lines of the processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group = path.joinpath("stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(path.joinpath("cmdline").read_text().replace("\0", " "))
    return found
