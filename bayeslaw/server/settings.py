"""What a tracking server is told: where its runs are kept, who may reach it, how many processes serve."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bayeslaw.errors import UsageError
from bayeslaw.server import database
from bayeslaw.store import DEFAULT_URI

STORE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""MLflow's own: the store of a server. Other users of a machine see command lines, not this."""

WORKERS = 2
CONNECTIONS = 21
"""Database connections that one process keeps open, and as many again for a rush. It serves 40 requests at a time, and
MLflow takes a second connection for a batch while it holds the first: with 40 or fewer, all could wait for one another
until they are refused. Two processes stay below PostgreSQL's own limit of 100."""

LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to start a tracking server.

    Parameters
    ----------
    store : str, optional
        SQLAlchemy address of its database; MLFLOW_BACKEND_STORE_URI, else ``sqlite:///mlflow.db``.
    artifacts : Path, optional
        Folder of its artifacts; by default ``mlartifacts`` beside a sqlite database, else in the working directory.
    host : str
        Address of this machine to listen at.
    port : int
    allowed_hosts : tuple of str
        Names by which clients may call the server, besides those of the loopback; with or without a port, ``*`` stands
        for any characters.
    auth : bool
        Ask for a name and password.
    workers : int
        Processes that serve.

    Raises
    ------
    UsageError
        No port, no number of workers, or a server that others reach without a list of the names they may use.
    """

    store: str | None = field(default=None, repr=False)  # may hold a password
    artifacts: Path | None = None
    host: str = "127.0.0.1"
    port: int = 5000
    allowed_hosts: tuple[str, ...] = ()
    auth: bool = False
    workers: int = WORKERS

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise UsageError(f"--port {self.port}", allowed="1 to 65535")
        if self.workers < 1:
            raise UsageError(f"--workers {self.workers}", allowed="1 or more")
        for name in self.allowed_hosts:
            if not name.strip("*:. ") or any(sign in name for sign in ", /\n"):
                raise UsageError(
                    f"--allowed-hosts {name!r} would let any web page a browser here has open speak to the server",
                    allowed="names or addresses of this machine, such as runs.example.org or 10.0.0.5",
                )
        if not self.loopback and not self.allowed_hosts:
            raise UsageError(
                f"--host {self.host} lets other machines in, and without --allowed-hosts a web page could send their "
                "browsers here under a name of its own",
                allowed="--host with --allowed-hosts, or 127.0.0.1 alone",
                do=f"bayeslaw server --host {self.host} --allowed-hosts NAME  (the name that clients will use)",
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @cached_property
    def address(self) -> str:
        """SQLAlchemy address of the database, its driver named."""
        return database.with_driver(self.store or os.environ.get(STORE_VARIABLE) or DEFAULT_URI)

    @property
    def home(self) -> Path:
        """Folder of what the server keeps in files: that of a sqlite database, else of the artifacts."""
        path = database.sqlite_path(self.address)
        return path.absolute().parent if path else self.artifacts.absolute().parent if self.artifacts else Path.cwd()

    @property
    def artifact_folder(self) -> Path:
        """Where artifacts are kept."""
        return (self.artifacts or self.home / "mlartifacts").absolute()

    @property
    def hosts(self) -> str:
        """MLflow's list of ``Host`` headers: it compares the port too, and takes the place of MLflow's own."""
        named = [form for name in self.allowed_hosts for form in _any_port(name)]
        return ",".join(dict.fromkeys([*named, *(form for name in LOOPBACK for form in _any_port(name)), "[[]::1]:*"]))

    @property
    def origins(self) -> str:
        """MLflow's list of pages that may write: its own under the allowed names; those of the loopback always may."""
        return ",".join(f"http*://{form}" for name in self.allowed_hosts for form in _any_port(name))

    @property
    def local_uri(self) -> str:
        """Its address on this machine."""
        every = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return self._uri(every.get(self.host, self.host))

    @property
    def uri(self) -> str:
        """Its address for clients: MLFLOW_TRACKING_URI."""
        plain = [name for name in self.allowed_hosts if "*" not in name]
        return self.local_uri if self.loopback or not plain else self._uri(plain[0].partition(":")[0])

    def _uri(self, host: str) -> str:
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def _any_port(name: str) -> tuple[str, ...]:
    """A name as a browser sends it: without a port where that is 80 or 443, else with it."""
    return (name,) if ":" in name else (name, f"{name}:*")
