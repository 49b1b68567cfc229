"""A PostgreSQL of the tests' own: a data folder and a Unix socket in a temporary place, no network.

PostgreSQL refuses to run as root; root runs it as the user ``postgres`` that its package makes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USER, PASSWORD, DATABASE = "bayeslaw", "correct-horse-battery", "runs"


def programs() -> Path | None:
    """Where the newest installed PostgreSQL keeps initdb and pg_ctl; None without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Postgres:
    """One cluster with a database, which can be stopped, killed and started again; its data stay.

    Parameters
    ----------
    settings : dict, optional
        Of postgresql.conf.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        found = programs()
        if found is None:
            raise FileNotFoundError("PostgreSQL is not installed (apt-get install postgresql)")
        self._programs = found
        self._as = []
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a socket's path has 107 characters at most
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._do("initdb", "-D", self._data, "-U", USER, "--pwfile", secret, "-A", "scram-sha-256", "--no-sync")
        secret.unlink()
        lines = {"listen_addresses": "''", "unix_socket_directories": f"'{self.folder}'"} | (settings or {})
        with open(self._data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in lines.items())
        self.start()
        self._do("createdb", "-h", self.folder, "-U", USER, DATABASE)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def uri(self) -> str:
        """The address of its database, as SQLAlchemy takes it, the password in it."""
        return f"postgresql+psycopg://{USER}:{PASSWORD}@/{DATABASE}?host={self.folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._do("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "start")

    def stop(self) -> None:
        """Stop it: transactions in hand are rolled back, clients are sent away."""
        self._do("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")

    def kill(self) -> None:
        """End it as a crash does: no transaction is ended, nothing is written, the next start recovers."""
        self._do("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def query(self, sql: str) -> list[tuple]:
        """The rows that a statement gives."""
        import psycopg

        with psycopg.connect(self.uri.replace("+psycopg", "")) as connection:
            return connection.execute(sql).fetchall()

    def remove(self) -> None:
        """End it, whatever it is doing, and remove its data."""
        running = subprocess.run(
            [*self._as, self._programs / "pg_ctl", "-D", self._data, "status"], capture_output=True
        )
        if running.returncode == 0:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _do(self, program: str, *arguments: str | Path) -> None:
        # The log, not a pipe: the server would keep a pipe open, and who reads it would wait for ever.
        with open(self.folder / "commands", "a", encoding="utf-8") as log:
            subprocess.run(
                [*self._as, self._programs / program, *arguments],
                check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env=os.environ | {"PGPASSWORD": PASSWORD},
            )  # fmt: skip


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL; skips where none is installed."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    cluster = Postgres()
    yield cluster
    cluster.remove()
