"""Names and passwords of a tracking server: MLflow's basic-auth app, its secrets in files for their owner alone."""

from __future__ import annotations

import importlib.util
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from bayeslaw.errors import TrackingError, UsageError

PASSWORD_VARIABLE = "MLFLOW_AUTH_ADMIN_PASSWORD"
ADMIN = "admin"
SHORTEST = 12
"""Characters of a password, by MLflow's own rule."""
CACHE_SECONDS = 60
"""How long a process takes a password it has checked for good: a check takes longer than the request it protects."""


@dataclass(frozen=True)
class Accounts:
    """Where a server's accounts are kept, and its administrator's password.

    Parameters
    ----------
    folder : Path
    password, key : str
        The administrator's password; what MLflow signs its forms with.
    password_file : Path, optional
        Where the password can be read; None where the environment gave it.
    """

    folder: Path
    password: str = field(repr=False)
    key: str = field(repr=False)
    password_file: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the server's processes."""
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / "basic_auth.ini"),
            "MLFLOW_AUTH_ADMIN_USERNAME": ADMIN,
            PASSWORD_VARIABLE: self.password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": self.key,
        }


def prepare(home: Path) -> Accounts:
    """The accounts kept in ``home/mlflow-auth``, made where there are none; a password is drawn unless one is set.

    Raises
    ------
    UsageError
        MLFLOW_AUTH_ADMIN_PASSWORD is too short, or the one that MLflow used to ship.
    TrackingError
        The folder cannot be written, or what MLflow's accounts need is not installed.
    """
    if importlib.util.find_spec("flask_wtf") is None:
        raise TrackingError(
            "MLflow's accounts need the package flask-wtf, which is not installed",
            do="pip install 'bayeslaw[server]', in a checkout '.[server]'",
        )
    folder = home / "mlflow-auth"
    given = os.environ.get(PASSWORD_VARIABLE)
    if given is not None and (len(given) < SHORTEST or given == "password1234"):
        raise UsageError(
            f"{PASSWORD_VARIABLE} holds a password that is known or too short",
            allowed=f"{SHORTEST} characters or more, not MLflow's old default",
            do=f"unset {PASSWORD_VARIABLE}: one is then drawn and kept in {folder / 'password'}",
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        users = str(folder / "users.db").replace("%", "%%")  # MLflow reads the file with interpolation
        _private(
            folder / "basic_auth.ini",
            f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{users}\n"
            f"auth_cache_ttl_seconds = {CACHE_SECONDS}\n",
        )
        key = _drawn(folder / "secret_key")
        file = None if given is not None else folder / "password"
        return Accounts(folder, given if file is None else _drawn(file), key, file)  # type: ignore[arg-type]
    except OSError as error:
        raise TrackingError(
            f"cannot keep accounts in {folder}: {error.strerror}", do="start the server where you may write"
        ) from error


def _drawn(path: Path) -> str:
    """The secret that a file holds, drawn when there is none."""
    if not path.exists():
        _private(path, secrets.token_urlsafe(24))
    return path.read_text(encoding="utf-8").strip()


def _private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, from its first moment on and whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)
