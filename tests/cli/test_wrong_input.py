"""Every class of wrong input, as a person at the terminal meets it: the message and the exit code."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from bayeslaw.cli import run

HEADER = "recurrences,n_once,n_shared,n_injection,tokens,loss"
ROWS = [f"1,{40_000_000 + i},{160_000_000 + i},0,{(i + 1) * 10**9},{3 - 0.01 * i}" for i in range(9)]


def with_row(row: str) -> str:
    return "\n".join([HEADER, *ROWS, row]) + "\n"


TABLES = {
    "missing column": ("recurrences,n_once,n_shared,token,loss\n1,4e7,1e8,1e9,3\n", ("tokens", "token")),
    "text where a number belongs": (with_row("1,40000000,160000000,0,many,2.9"), ("tokens", "many", "11")),
    "loss of zero": (with_row("1,40000000,160000000,0,1000000000,0"), ("loss", "11")),
    "negative loss": (with_row("1,40000000,160000000,0,1000000000,-2"), ("loss", "-2")),
    "NaN": (with_row("1,40000000,160000000,0,1000000000,nan"), ("loss", "11")),
    "infinity": (with_row("1,40000000,160000000,0,1000000000,inf"), ("loss", "11")),
    "the infinity of MLflow": (with_row("1,40000000,160000000,0,1000000000,1.797e308"), ("loss", "11")),
    "N in millions": (with_row("1,40,160,0,1000000000,2.9"), ("n_once", "million")),
    "r of zero": (with_row("0,40000000,160000000,0,1000000000,2.9"), ("recurrences", "0")),
    "duplicate": (with_row(ROWS[0]), ("2", "11")),
    "empty file": ("", ("empty",)),
    "header only": (HEADER + "\n", ("no rows",)),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name, tmp_path, capsys):
    content, words = TABLES[name]
    path = tmp_path / "runs.csv"
    path.write_text(content)
    code = run(["fit", str(path)])
    errors = capsys.readouterr().err
    assert code == 1, errors
    assert errors.startswith("error: ")
    for word in words:
        assert word in errors
    assert "Traceback" not in errors


def test_binary_file(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_bytes(bytes(range(256)) * 8)
    assert run(["fit", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["allocate", "report", "predict"])
def test_no_fit_file(verb, tmp_path, capsys):
    more = {
        "allocate": ["--flops", "1e19"],
        "report": ["--out", "r.html"],
        "predict": ["--tokens", "1e9", "--width-scale", "8"],
    }
    assert run([verb, str(tmp_path / "fit.nc"), *more[verb]]) == 1
    assert "bayeslaw fit SOURCE --out fit.nc" in capsys.readouterr().err


def test_nothing_finished(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER + ",state", *(row + ",running" for row in ROWS)]) + "\n")
    assert run(["fit", str(path)]) == 4
    assert "finished" in capsys.readouterr().err


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "no answer"])
def test_unreachable_tracking_server(silent, capsys):
    """A closed port and a server that accepts and never answers are both told of within 20 seconds."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if silent:
            server.listen()
        port = server.getsockname()[1]
        started = time.monotonic()
        code = run(["runs", "mlflow:study", "--tracking-uri", f"http://person:secret@127.0.0.1:{port}"])
        assert time.monotonic() - started < 20
    errors = capsys.readouterr().err
    assert code == 1
    assert f"127.0.0.1:{port}" in errors
    assert "secret" not in errors


def test_unknown_source(capsys):
    assert run(["fit", "isodepht"]) in (1, 2)
    errors = capsys.readouterr().err
    assert "isodepht" in errors
    assert "isodepth" in errors


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fit"], "SOURCE"),
        (["fit", "isodepth", "--laws", "additive"], "--laws"),
        (["fit", "isodepth", "--outliers", "cauchy"], "student"),
        (["fit", "isodepth", "--draws", "many"], "many"),
        (["fits"], "fits"),
    ],
)
def test_usage(arguments, word, capsys):
    assert run(arguments) == 2
    caught = capsys.readouterr()
    assert word in caught.err
    assert caught.out == ""


def test_unwritable_output(isodepth_file, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert run(["report", str(isodepth_file), "--out", str(tmp_path / "file" / "report.html")]) == 1
    errors = capsys.readouterr().err
    assert "report.html" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_output_is_tried_before_sampling(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert run(["fit", "isodepth", "--out", str(tmp_path / "file" / "fit.nc")]) == 1
    errors = capsys.readouterr().err
    assert "cannot write" in errors
    assert "sampling" not in errors


def test_a_store_of_no_known_kind_keeps_its_password(capsys):
    assert run(["runs", "mlflow:study", "--tracking-uri", "foo://person:secret@host/place"]) == 1
    errors = capsys.readouterr().err
    assert "foo://person:***@host/place" in errors
    assert "secret" not in errors
    assert "sqlite:///FILE" in errors


def test_a_store_that_is_no_database(tmp_path, capsys):
    (tmp_path / "mlflow.db").write_text("root:x:0:0")
    assert run(["runs", "mlflow:study", "--tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]) == 1
    assert "is no sqlite database" in capsys.readouterr().err


def piped(rest: str) -> subprocess.CompletedProcess[str]:
    """A shell line that begins with a verb whose output is larger than a pipe holds."""
    line = f"set -o pipefail; {sys.executable} -m bayeslaw runs isodepth-recipes --json {rest}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True)


@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_has_had_enough(reader):
    done = piped(f"| {reader}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_full_disk_behind_stdout():
    done = piped(">/dev/full")
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_output_takes_the_place_of_its_input(isodepth_file, tmp_path, capsys):
    table, fit = tmp_path / "runs.csv", tmp_path / "fit.nc"
    table.write_text("\n".join([HEADER, *ROWS]) + "\n")
    fit.write_bytes(isodepth_file.read_bytes())
    for arguments, path in (
        (["fit", str(table)], table),
        (["runs", str(table), "--where", "tokens > 5e9"], table),
        (["report", str(fit)], fit),
        (["sweep", "plan", "--budgets", "1e10", "--widths", "16", "--recurrences", "1", "--corpus", str(table)], table),
    ):
        before = path.read_bytes()
        assert run([*arguments, "--out", str(path)]) == 2
        assert "is the file that is read" in capsys.readouterr().err
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--pool", "phi"], ("NAME=MODE",)),
        (["--pool", "gain=shared"], ("no such parameter", "phi")),
        (["--pool", "phi=shared", "--pool", "phi=separate"], ("twice",)),
        (["--pool-sensitivity"], ("several recipes",)),
        (["--point", "huber", "--noise", "cells"], ("--noise", "leave --point out")),
        (["--point", "ls", "--draws", "200"], ("--draws",)),
        (["--point", "ls", "--pool-sensitivity"], ("--pool-sensitivity",)),
        (["--law", "chinchilla", "--map", "power"], ("leave --map out",)),
        (["--out", "fit.csv"], ("NetCDF",)),
    ],
)
def test_settings_of_a_fit(flags, words, capsys):
    """Refused before anything is sampled or written."""
    assert run(["fit", "isodepth", *flags]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert "sampling" not in caught.err
    for word in words:
        assert word in caught.err


def test_a_fit_takes_the_place_of_no_other_file(tmp_path, capsys):
    table = tmp_path / "notes.txt"
    table.write_text("mine")
    assert run(["fit", "isodepth", "--out", str(table)]) == 2
    assert "is no fit" in capsys.readouterr().err
    assert table.read_text() == "mine"


def test_point_fit_answers(capsys):
    """The same keys as the posterior's answer, with plain numbers."""
    import json

    flags = ["--law", "additive", "--map", "power", "--injection-in", "regression", "--json"]
    assert run(["fit", "isodepth", "--point", "huber", *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"]["phi"] == pytest.approx(0.459, abs=5e-4)
    assert set(answer["worth"]) == {"2", "4", "8"}
    assert answer["fit"]["status"] == "converged"
    assert answer["fit"]["n_agree"] == answer["fit"]["n_starts"]
    assert {"law", "map", "injection_in", "parameters", "worth", "data_hash", "schema_version"} <= set(answer)
