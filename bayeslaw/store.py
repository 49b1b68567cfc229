"""The MLflow store that runs live in: where it is, and a client that fails soon and clearly.

mlflow is imported only when a client is asked for, with its telemetry off.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bayeslaw.errors import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

URI_VARIABLE = "MLFLOW_TRACKING_URI"
DEFAULT_URI = "sqlite:///mlflow.db"
CONNECT_SECONDS = 5.0

_SQLITE = "sqlite:///"

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def resolve_uri(uri: str | None = None) -> str:
    """The tracking URI: the option, else the environment, else ``sqlite:///mlflow.db`` in the working directory."""
    return uri or os.environ.get(URI_VARIABLE) or DEFAULT_URI


def public_uri(uri: str) -> str:
    """The URI with its password blanked, for messages and records."""
    return scrubbed(uri)


def scrubbed(text: str) -> str:
    """The text with the passwords of all URIs in it blanked: errors of databases repeat what they were given."""
    text = re.sub(r"(\w://[^:/@\s]*):[^/\s]*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&;](?:password|passwd|token|secret)=)[^&;\s]+", r"\1***", text)


def connect(uri: str | None = None, *, create: bool = False) -> MlflowClient:
    """A client for the store.

    Parameters
    ----------
    uri : str, optional
        Tracking URI, see `resolve_uri`.
    create : bool
        Make a missing sqlite database (its tables take some seconds, once) instead of refusing it.

    Raises
    ------
    TrackingError
        The server does not answer within seconds, or the database is missing and not to be made.
    """
    uri = resolve_uri(uri)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if uri.startswith(("http://", "https://")):
        _require_answer(uri)
    elif uri.startswith(_SQLITE):
        _prepare_sqlite(Path(uri.removeprefix(_SQLITE)), create=create)
    import logging

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with _one_at_a_time(uri):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
    except (MlflowException, OSError, SQLAlchemyError, ImportError) as error:
        reason = scrubbed(next(iter(str(error).strip().splitlines()), type(error).__name__))
        raise TrackingError(
            f"the MLflow store {public_uri(uri)} cannot be used: {reason}",
            allowed="sqlite:///FILE, or the http(s) address of an MLflow server",
            do="export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, and try again"
            if "401" in reason or "403" in reason
            else f"name another with --tracking-uri or {URI_VARIABLE}",
        ) from error
    return client


@contextlib.contextmanager
def _one_at_a_time(uri: str) -> Iterator[None]:
    """Hold a lock beside a sqlite database: several processes that make the tables of one break each other."""
    with contextlib.ExitStack() as held:
        if uri.startswith(_SQLITE):
            with contextlib.suppress(OSError):  # a folder that cannot be written: nothing is made there either
                lock = held.enter_context(open(uri.removeprefix(_SQLITE) + ".lock", "a"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _require_answer(uri: str) -> None:
    parts = urllib.parse.urlsplit(uri)
    health = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/") + "/health").geturl()
    try:
        with urllib.request.urlopen(health, timeout=CONNECT_SECONDS):
            return
    except urllib.error.HTTPError:
        return  # something answers; mlflow itself will say what is wrong
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise TrackingError(
            f"the tracking server {public_uri(uri)} does not answer: {reason}",
            do=f"start it, or name another with --tracking-uri or {URI_VARIABLE}",
        ) from error


def _require_sqlite(path: Path) -> None:
    """Make sure that the file is a sqlite database, by sqlite alone.

    To open and close the file would drop the locks that sqlite holds on it for the connections of this process: another
    process would then take away the log that they read, and they would go on reading the past.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        raise TrackingError(f"cannot read {path}: {error}", do="name another store") from error
    except sqlite3.DatabaseError as error:
        raise TrackingError(
            f"{path} is no sqlite database", do="name the file that an earlier run made, or a new one"
        ) from error


def _prepare_sqlite(path: Path, *, create: bool) -> None:
    if path.exists() and path.stat().st_size > 0:
        _require_sqlite(path)
        return
    if not create:
        raise TrackingError(
            f"no MLflow database at {path}",
            do=f"name the store with --tracking-uri or {URI_VARIABLE}, for example sqlite:////data/mlflow.db",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path)
        try:
            # Readers and one writer at a time then do not block each other; the setting stays in the file.
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"cannot make the MLflow database {path}: {error}", do="choose another place") from error
