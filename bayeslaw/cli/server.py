"""``bayeslaw server``: a tracking server for many trainers, ended by Ctrl-C or SIGTERM."""

from __future__ import annotations

import shlex
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import App, Parameter

from bayeslaw.cli.lists import Integer, Texts
from bayeslaw.cli.output import note, printable
from bayeslaw.errors import TrackingError, UsageError
from bayeslaw.server import Server, Settings, accounts, database
from bayeslaw.server.settings import STORE_VARIABLE, WORKERS

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

app = App(name="server", help="Serve runs to many trainers: an MLflow server with safe settings.")


@app.default
def server(
    *,
    store: str | None = None,
    artifacts: Path | None = None,
    host: str = "127.0.0.1",
    port: Integer = 5000,
    allowed_hosts: Annotated[list[str] | None, Texts] = None,
    auth: Annotated[bool, Parameter(negative="")] = False,
    workers: Integer = WORKERS,
) -> int:
    """Serve runs to many trainers: an MLflow server with safe settings, until Ctrl-C or SIGTERM.

    Only this machine reaches it unless --host says otherwise. MLflow's telemetry and its job helpers are off.

    Parameters
    ----------
    store
        Database of the runs, by default MLFLOW_BACKEND_STORE_URI, else sqlite:///mlflow.db. A PostgreSQL address with
        a password belongs in that variable: command lines are seen by every user of a machine.
    artifacts
        Folder of artifacts, by default mlartifacts beside a sqlite database, else in the working directory.
    host
        Address to listen at; other than the loopback it needs --allowed-hosts.
    port
        Port to listen at.
    allowed_hosts
        Names by which clients on other machines call the server; requests under other names are refused.
    auth
        Ask for a name and password. The administrator's password is MLFLOW_AUTH_ADMIN_PASSWORD, or is drawn at the
        first start and kept in mlflow-auth/password, which only you can read.
    workers
        Processes that serve.
    """
    if store and database.secrets_of(store):
        raise UsageError(
            "--store holds a password, and every user of this machine can read command lines",
            allowed=f"an address without a password, or one in {STORE_VARIABLE}",
            do=f"export {STORE_VARIABLE}='postgresql://USER:PASSWORD@HOST/DATABASE', then `bayeslaw server`",
        )
    settings = Settings(
        store=store, artifacts=artifacts, host=host, port=port, allowed_hosts=tuple(allowed_hosts or ()),
        auth=auth, workers=workers,
    )  # fmt: skip
    if not settings.loopback and not auth:
        note("warning: whoever reaches this server can change and delete its runs; --auth asks for a password")
    serving = Server(settings, tell=lambda line: note(printable(line)))
    stopping = threading.Event()
    taken: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        taken.append(number)
        stopping.set()

    asked = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    before = {number: signal.signal(number, stop) for number in asked}
    try:
        serving.start(stopping)
        if not taken:
            print(_ready(serving), flush=True)
        while not stopping.wait(0.5):
            if not serving.alive:
                raise TrackingError(
                    "the tracking server has ended by itself",
                    do="start it again; trainers go on and what they could not deliver follows by itself or by "
                    "`bayeslaw runs sync DIR`",
                )
    finally:
        serving.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    note("the tracking server has ended")
    return 128 + taken[0]


def _ready(serving: Server) -> str:
    """One line: that it serves, and what clients are to export."""
    exports = f"export MLFLOW_TRACKING_URI={serving.uri}"
    if kept := serving.accounts:
        exports += f" MLFLOW_TRACKING_USERNAME={accounts.ADMIN} MLFLOW_TRACKING_PASSWORD="
        exports += f'"$(cat {shlex.quote(str(kept.password_file))})"' if kept.password_file else "..."
    return f"serving runs at {serving.uri}; for clients: {exports}"
