"""The tracking server on a real PostgreSQL: shipped journals through it and back, and its doors."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pandas as pd
import pytest

from bayeslaw.cli import run
from bayeslaw.datasets.journals import unpack_journals
from bayeslaw.errors import TrackingError
from bayeslaw.runs import load_runs
from bayeslaw.server import Server, Settings
from tests.services.postgres import DATABASE, PASSWORD, USER, Postgres, programs
from tests.services.serving import answer, free_port, served
from trainer.tracking import sync
from trainer.verification import verify

pytestmark = [pytest.mark.service, pytest.mark.slow]
RUNS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Six runs of a shipped study, with their whole curves."""
    out = tmp_path_factory.mktemp("journals")
    unpack_journals("desk-rates", out / "all")
    for number, path in enumerate(sorted((out / "all").rglob("journal.jsonl"))):
        if number < RUNS:
            shutil.copytree(path.parent, out / "some" / path.parent.name)
    return out / "some"


def test_journals_through_a_server_and_back(postgres, folder, tmp_path):
    flags = ("--artifacts", str(tmp_path / "mlartifacts"), "--allowed-hosts", "runs.example.org")
    with served(tmp_path, *flags, store=postgres.uri) as server:
        uri = server.uri
        assert f"export MLFLOW_TRACKING_URI={uri}" in server.line
        assert all(PASSWORD not in command for command in server.commands)

        results = sync(folder, tracking_uri=uri)
        assert [(result.error, result.state) for result in results] == [(None, "finished")] * RUNS
        assert all(result.delivered == result.records for result in results)
        assert [result.delivered for result in sync(folder, tracking_uri=uri)] == [0] * RUNS
        checked = verify(folder, tracking_uri=uri)
        assert [one.differences for one in checked] == [()] * RUNS
        assert all(one.points > 100 for one in checked)

        back = load_runs("mlflow:desk-rates", tracking_uri=uri).runs.set_index("run_id").sort_index()
        there = load_runs(folder).runs.set_index("run_id").sort_index()
        assert len(back) == RUNS
        columns = [name for name in there if name != "source"]
        pd.testing.assert_frame_equal(back[columns], there[columns], check_dtype=False)

        # Pages and names that are not the server's own are sent away, its own are not.
        json = {"Content-Type": "application/json"}
        own = {"Host": f"runs.example.org:{uri.rpartition(':')[2]}"} | json
        for headers, status in [
            ({"Host": "evil.example"}, 403),
            ({"Host": "runs.example.org.evil.example"}, 403),
            (own, 200),
            (own | {"Origin": "http://evil.example"}, 403),
            (own | {"Origin": "http://runs.example.org.evil.example"}, 403),
            (own | {"Origin": f"http://{own['Host']}"}, 200),
        ]:
            assert answer(uri, headers, b'{"max_results": 1}' if "Origin" in headers else None) == status, headers
    assert PASSWORD not in server.output
    stored = postgres.query(
        "SELECT count(*) FROM runs JOIN experiments USING (experiment_id)"
        " WHERE experiments.name = 'desk-rates' AND status = 'FINISHED'"
    )
    assert stored == [(RUNS,)]
    assert len(list((tmp_path / "mlartifacts").rglob("curve.csv"))) == RUNS


def test_passwords(postgres, tmp_path, monkeypatch):
    """Without one nothing, with the drawn one everything; two servers share PostgreSQL."""
    with served(tmp_path, "--auth", store=postgres.uri, end=signal.SIGINT) as server:
        password = Path(re.search(r"\$\(cat (.*)\)", server.line)[1]).read_text()
        assert answer(server.uri, {}) == 401
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        for wrong in ("password1234", password[::-1]):
            monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", wrong)
            assert run(["runs", "mlflow:desk-rates", "--tracking-uri", server.uri]) != 0
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
        from bayeslaw import store

        assert store.connect(server.uri).search_experiments()
        assert all(secret not in text for text in server.commands for secret in (password, PASSWORD))
    for secret in (password, PASSWORD, (tmp_path / "mlflow-auth" / "secret_key").read_text()):
        assert secret not in server.output


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        (f"postgresql://{USER}:not-the-password@/{DATABASE}?host={{folder}}", "correct the user or password"),
        (f"postgresql://{USER}:{PASSWORD}@/elsewhere?host={{folder}}", "make it (createdb, createuser)"),
    ],
)
def test_a_database_that_refuses(uri, told, postgres, tmp_path):
    with pytest.raises(TrackingError) as error:
        Server(Settings(store=uri.format(folder=postgres.folder), port=free_port())).start()
    assert told in str(error.value)
    assert "not-the-password" not in str(error.value)
    assert PASSWORD not in str(error.value)


SHIM = """#!/bin/sh
# What the text has root do: lead the line with another user's name, in a folder of that user's.
if [ -f "$PLACE/password" ]; then chown postgres "$PLACE/password"; fi
mkdir -p "$PLACE/data" && chown -R postgres "$PLACE/data" "$PLACE/socket"
exec setpriv --reuid=postgres --regid=postgres --init-groups {program} "$@"
"""


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The blocks of docs/tracking.md by name, and a function that runs one; the settings hold in this process too."""
    there = programs()
    if there is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    text = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()
    blocks = {
        name: "".join(line[4:] for line in block.splitlines(keepends=True))
        for name, block in re.findall(r"<!-- tested: (\w+) -->\n\n((?:    .*\n)+)", text)
    }
    place = Path(tempfile.mkdtemp(prefix="docs-"))  # short, and open to the user postgres
    place.chmod(0o755)
    monkeypatch.setenv("PLACE", str(place))
    found = subprocess.run(["bash", "-euc", blocks["settings"] + "env -0"], capture_output=True, text=True, check=True)
    settings = dict(line.split("=", 1) for line in found.stdout.split("\0") if line.startswith(("PG", "PATH=")))
    if os.geteuid() == 0:
        shims = tmp_path / "shims"
        shims.mkdir()
        for name in ("initdb", "pg_ctl"):
            (shims / name).write_text(SHIM.format(program=there / name))
            (shims / name).chmod(0o755)
        settings["PATH"] = f"{shims}:{settings['PATH']}"
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def run_block(name: str) -> None:
        with open(tmp_path / "log", "a") as log:  # a pipe would stay open as long as PostgreSQL runs
            done = subprocess.run(["bash", "-euc", blocks[name]], stdout=log, stderr=log, cwd=place)
        assert done.returncode == 0, (name, (tmp_path / "log").read_text())

    yield blocks, run_block, place
    with contextlib.suppress(AssertionError):
        run_block("stop")
    shutil.rmtree(place)


def test_commands_of_the_documentation(documented, folder, tmp_path):
    """Every line that docs/tracking.md shows, from an empty folder to a backup that is restored."""
    import psycopg

    blocks, run_block, place = documented
    run_block("start")
    password = (place / "password").read_text().strip()
    command = shlex.split(os.path.expandvars(blocks["serve"]))
    assert command[:2] == ["bayeslaw", "server"]
    with served(tmp_path, *command[2:]) as server:
        assert all(result.error is None for result in sync(folder, tracking_uri=server.uri))
        run_block("backup")
    run_block("restore")
    with psycopg.connect("dbname=restored") as connection:
        assert connection.execute("SELECT count(*) FROM runs WHERE status = 'FINISHED'").fetchone() == (RUNS,)
    with tarfile.open(place / "mlartifacts.tar") as archive:
        assert sum(name.endswith("curve.csv") for name in archive.getnames()) == RUNS
    assert password not in server.output
    run_block("stop")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect("")


def test_an_outage_of_the_database_is_survived(tmp_path):
    """The server goes on through a restart of PostgreSQL, and through a crash of it."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    cluster = Postgres()
    try:
        with Server(Settings(store=cluster.uri, artifacts=tmp_path / "a", port=free_port(), workers=1)) as server:
            assert answer(server.uri, {}) == 200
            for end in (cluster.stop, cluster.kill):
                end()
                assert answer(server.uri, {}) >= 400
                cluster.start()
                assert answer(server.uri, {}) == 200
            assert server.alive
            port = server.settings.port
            server.kill()
            socket.create_server(("127.0.0.1", port)).close()  # nothing holds it
            server.start()
            assert answer(server.uri, {}) == 200
    finally:
        cluster.remove()
