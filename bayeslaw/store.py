"""The MLflow store that runs live in: where it is, and a client that fails soon and clearly.

mlflow is imported only when a client is asked for, with its telemetry off.
"""

from __future__ import annotations

import os
import sqlite3
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from bayeslaw.errors import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

URI_VARIABLE = "MLFLOW_TRACKING_URI"
DEFAULT_URI = "sqlite:///mlflow.db"
CONNECT_SECONDS = 5.0

_SQLITE_MAGIC = b"SQLite format 3\0"

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def resolve_uri(uri: str | None = None) -> str:
    """The tracking URI: the option, else the environment, else ``sqlite:///mlflow.db`` in the working directory."""
    return uri or os.environ.get(URI_VARIABLE) or DEFAULT_URI


def public_uri(uri: str) -> str:
    """The URI with the password blanked, for messages and records."""
    parts = urllib.parse.urlsplit(uri)
    if parts.password is None:
        return uri
    return parts._replace(
        netloc=f"{parts.username}:***@{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    ).geturl()


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
    elif uri.startswith("sqlite:///"):
        _prepare_sqlite(Path(uri.removeprefix("sqlite:///")), create=create)
    import logging

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    except (MlflowException, OSError, SQLAlchemyError, ImportError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).replace(uri, public_uri(uri))
        raise TrackingError(
            f"the MLflow store {public_uri(uri)} cannot be used: {reason}",
            allowed="sqlite:///FILE, or the http(s) address of an MLflow server",
            do=f"name another with --tracking-uri or {URI_VARIABLE}",
        ) from error
    return client


def _require_answer(uri: str) -> None:
    try:
        with urllib.request.urlopen(uri.rstrip("/") + "/health", timeout=CONNECT_SECONDS):
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
    try:
        with open(path, "rb") as file:
            there = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise TrackingError(f"cannot read {path}: {error.strerror}", do="name another store") from error
    if there != _SQLITE_MAGIC:
        raise TrackingError(f"{path} is no sqlite database", do="name the file that an earlier run made, or a new one")


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
