"""The database behind a tracking server: found usable before the server starts, its password told to nobody."""

from __future__ import annotations

import contextlib
import sqlite3
import urllib.parse
from pathlib import Path

from bayeslaw.errors import TrackingError, UsageError

CONNECT_SECONDS = 5


def with_driver(uri: str) -> str:
    """The address with PostgreSQL's driver named: psycopg, where SQLAlchemy would look for an older one."""
    scheme, mark, rest = uri.partition("://")
    return f"postgresql+psycopg{mark}{rest}" if scheme in ("postgres", "postgresql") else uri


def sqlite_path(uri: str) -> Path | None:
    """The file of a sqlite address; None for other databases."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def secrets_of(uri: str) -> list[str]:
    """The passwords in an address, as written and as meant."""
    parts = urllib.parse.urlsplit(uri)
    user_info = parts.netloc.rpartition("@")[0].partition(":")[2]
    asked = [value for name, value in urllib.parse.parse_qsl(parts.query) if name == "password"]
    written = [user_info, urllib.parse.unquote(user_info), *asked, *map(urllib.parse.quote_plus, asked)]
    return sorted(filter(None, set(written)), key=len, reverse=True)


def without(text: str, secrets: list[str]) -> str:
    """The text with every secret blanked."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def require_usable(uri: str) -> None:
    """Connect once; a sqlite file is made, and set so that readers and one writer do not block each other.

    Raises
    ------
    TrackingError
        The driver is missing, the database does not answer, or refuses the user.
    UsageError
        No address of a database.
    """
    path = sqlite_path(uri)
    if path is not None:
        _require_sqlite(path)
        return
    shown = without(uri, secrets_of(uri))
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    try:
        wait = {"connect_timeout": CONNECT_SECONDS} if uri.startswith("postgresql+psycopg") else {}
        with create_engine(uri, connect_args=wait).connect():
            return
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise UsageError(
            f"--store {shown}",
            allowed="sqlite:///FILE, postgresql://USER@HOST/DATABASE or another address that SQLAlchemy takes",
        ) from None
    except ModuleNotFoundError as error:
        raise TrackingError(
            f"the driver of {shown} is not installed: {error.name}",
            do="pip install 'bayeslaw[server]', in a checkout '.[server]'",
        ) from None
    except SQLAlchemyError as error:  # its text may quote what it was given
        raise _refused(shown, without(str(getattr(error, "orig", error)), secrets_of(uri))) from None


def _refused(shown: str, text: str) -> TrackingError:
    """What to do by PostgreSQL's own words."""
    reason = " ".join(text.split()).removeprefix("connection failed: ")
    if "password" in reason or "authentication" in reason:
        do = "correct the user or password in MLFLOW_BACKEND_STORE_URI; the server has not been started"
    elif "does not exist" in reason:
        do = "make it (createdb, createuser), or name another with --store"
    else:
        do = "start it (pg_ctl -D FOLDER -w start), or name another with --store"
    return TrackingError(f"the database {shown} cannot be used: {reason}", do=do)


def _require_sqlite(path: Path) -> None:
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            f"cannot use {path} as the database: {error}", do="name another file with --store sqlite:///FILE"
        ) from error
