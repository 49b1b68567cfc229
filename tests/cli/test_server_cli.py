"""``bayeslaw server``: what it refuses and how, and one server on sqlite from its first line to its end."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bayeslaw import store
from bayeslaw.cli import run
from bayeslaw.errors import EXIT_FAILURE, EXIT_USAGE, TrackingError
from bayeslaw.server import Server, Settings, database
from bayeslaw.server.accounts import prepare
from tests.services.serving import answer, free_port, served

SECRET = "tr0ub4dor&3"


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_BACKEND_STORE_URI", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "bayeslaw server --host 0.0.0.0 --allowed-hosts NAME"),
        (["--host", "10.1.2.3"], "without --allowed-hosts a web page"),
        (["--allowed-hosts", "*"], "any web page"),
        (["--allowed-hosts", "*:*"], "any web page"),
        (["--port", "70000"], "allowed: 1 to 65535"),
        (["--workers", "0"], "allowed: 1 or more"),
        (["--store", f"postgresql://me:{SECRET}@db/runs"], "export MLFLOW_BACKEND_STORE_URI="),
        (["--store", f"postgresql://me@db/runs?password={SECRET}"], "export MLFLOW_BACKEND_STORE_URI="),
        (["--store", "nowhere"], "allowed: sqlite:///FILE"),
        (["--store", "oddbase://x/y"], "allowed: sqlite:///FILE"),
    ],
)
def test_refused_before_anything_is_started(arguments, told, in_folder, capsys):
    port = [] if "--port" in arguments else ["--port", str(free_port())]
    assert run(["server", *arguments, *port]) == EXIT_USAGE
    error = capsys.readouterr().err
    assert told in error
    assert SECRET not in error
    assert not list(in_folder.iterdir())


def test_port_in_use(in_folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["server", "--port", str(port)]) == EXIT_FAILURE
    error = capsys.readouterr().err
    assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in error
    assert "next: choose another with --port" in error


def test_database_that_does_not_answer(in_folder, monkeypatch, capsys):
    pytest.importorskip("psycopg")
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", f"postgresql://me:{SECRET}@/runs?host={in_folder}")
    assert run(["server", "--port", str(free_port())]) == EXIT_FAILURE
    error = capsys.readouterr().err
    assert "postgresql+psycopg://me:***@/runs" in error
    assert "next: start it (pg_ctl" in error
    assert SECRET not in error
    assert "Traceback" not in error


def test_missing_driver(in_folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", f"postgresql://me:{SECRET}@db/runs")
    assert run(["server", "--port", str(free_port())]) == EXIT_FAILURE
    error = capsys.readouterr().err
    assert "psycopg" in error
    assert "pip install 'bayeslaw[server]'" in error
    assert SECRET not in error


def test_file_that_is_no_database(in_folder, capsys):
    (in_folder / "runs.csv").write_text("n,tokens,loss\n" * 99)
    assert run(["server", "--store", "sqlite:///runs.csv", "--port", str(free_port())]) == EXIT_FAILURE
    assert "cannot use runs.csv as the database" in capsys.readouterr().err


@pytest.mark.parametrize("password", ["password1234", "short"])
def test_known_or_short_password(password, in_folder, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", password)
    assert run(["server", "--auth", "--port", str(free_port())]) == EXIT_USAGE
    assert "unset MLFLOW_AUTH_ADMIN_PASSWORD" in capsys.readouterr().err
    assert not (in_folder / "mlflow-auth").exists()


def test_accounts_are_drawn_once_and_are_their_owners_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_AUTH_ADMIN_PASSWORD", raising=False)
    first, again = prepare(tmp_path), prepare(tmp_path)
    assert first == again
    assert prepare(tmp_path / "other").password != first.password
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in first.folder.iterdir()} == {0o600}
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "a long one of mine")
    given = prepare(tmp_path / "mine")
    assert (given.password, given.password_file) == ("a long one of mine", None)
    assert all("a long one" not in path.read_text() for path in given.folder.iterdir())


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql+psycopg://me:p%40ss%2Fw0rd@host:5432/db",
        "postgresql+psycopg://me@/db?host=/tmp&password=p%40ss%2Fw0rd",
        "postgresql+psycopg://me:p%40ss%2Fw0rd@/db?host=/tmp",
    ],
)
def test_a_password_is_blanked_as_written_and_as_meant(uri):
    hidden = database.secrets_of(uri)
    text = database.without(f"cannot connect to {uri} with p@ss/w0rd", hidden)
    assert "w0rd" not in text
    assert "me" in text


def test_names_of_the_server():
    open_ = Settings(
        store="sqlite:///x.db", host="0.0.0.0", port=5001, allowed_hosts=("runs.example.org", "10.0.0.5:80")
    )
    assert open_.uri == "http://runs.example.org:5001"
    assert open_.local_uri == "http://127.0.0.1:5001"
    hosts = open_.hosts.split(",")
    assert {"runs.example.org", "runs.example.org:*", "10.0.0.5:80", "localhost:*", "127.0.0.1:*"} <= set(hosts)
    assert "10.0.0.5:80:*" not in hosts
    assert Settings(store="sqlite:///x.db", host="::1").uri == "http://[::1]:5000"
    assert Settings(store="postgres://me@db/runs").address == "postgresql+psycopg://me@db/runs"


@pytest.mark.slow
def test_a_server_on_sqlite(empty_store, in_folder, monkeypatch):
    """Own process group, host and page checks, password, write-ahead log, no secret anywhere, no process left."""
    shutil.copy(empty_store, in_folder / "mlflow.db")
    monkeypatch.setenv("MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE", "true")  # is not heard
    with served(in_folder, "--auth", "--workers", "1") as server:
        uri = server.uri
        assert server.line.startswith(f"serving runs at {uri}; for clients: export MLFLOW_TRACKING_URI={uri} ")
        told = re.search(r'MLFLOW_TRACKING_USERNAME=admin MLFLOW_TRACKING_PASSWORD="\$\(cat (.*)\)"', server.line)
        password = Path(told[1]).read_text()
        commands = server.commands
        assert len(commands) == 2
        assert all(password not in text for text in commands)
        assert answer(uri, {}) == 401
        assert answer(uri, {"Host": "evil.example"}) == 403
        assert answer(uri, {"Origin": "http://evil.example", "Content-Type": "application/json"}, b"{}") == 403
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
        assert store.connect(uri).search_experiments()[0].name == "Default"
        assert run(["server", "--port", uri.rpartition(":")[2]]) == EXIT_FAILURE  # a second one
    assert password not in server.output
    with sqlite3.connect(in_folder / "mlflow.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    # Accounts keep the password that they were made with, and the server says so instead of refusing its clients.
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "another long password")
    with (
        pytest.raises(TrackingError, match="made with another password"),
        Server(Settings(store="sqlite:///mlflow.db", port=free_port(), auth=True, workers=1)),
    ):
        pass


@pytest.mark.slow
def test_killed_outright_it_leaves_no_server(empty_store, in_folder):
    shutil.copy(empty_store, in_folder / "mlflow.db")
    with served(in_folder, "--workers", "1", end=signal.SIGKILL) as server:
        assert len(server.commands) == 2


def test_the_documented_backup_of_sqlite(empty_store, in_folder, monkeypatch):
    """Of a database that is in use: what stands in the write-ahead log is in the copy."""
    shutil.copy(empty_store, in_folder / "mlflow.db")
    text = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()
    (command,) = re.findall(r"<!-- tested: sqlite -->\n\n    (.*)\n", text)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    with sqlite3.connect(in_folder / "mlflow.db") as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("INSERT INTO experiments (name, lifecycle_stage) VALUES ('mine', 'active')")
        writer.commit()
        subprocess.run(shlex.split(command), check=True)
    (in_folder / "mlflow.db").unlink()
    with sqlite3.connect(in_folder / "copy.db") as copy:
        assert copy.execute("SELECT count(*) FROM experiments WHERE name = 'mine'").fetchone() == (1,)


def test_open_to_others_without_a_password_is_a_warning(in_folder, capsys):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["server", "--host", "0.0.0.0", "--allowed-hosts", "me", "--port", port]) == EXIT_FAILURE
    assert "--auth asks for a password" in capsys.readouterr().err


def test_no_secret_in_a_representation(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", SECRET * 2)
    assert SECRET not in repr(prepare(tmp_path))
    assert SECRET not in repr(Settings(store=f"postgresql://me:{SECRET}@db/runs"))
