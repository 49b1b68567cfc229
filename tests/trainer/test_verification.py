"""What `runs verify` finds where MLflow has something else than the journal."""

from __future__ import annotations

import math
import sqlite3

import pytest

from bayeslaw.cli import run
from bayeslaw.errors import NoRunsError
from bayeslaw.journal import JournalWriter
from trainer.tracking import sync
from trainer.verification import verify


@pytest.fixture
def delivered(store_uri, tmp_path):
    """A journal with odd values that was delivered, and the database."""
    out = tmp_path / "out"
    writer = JournalWriter(out / "runs" / "a")
    row = {"run_id": "a", "recurrences": 2.0, "recipe": "<b>'x'</b>"}
    writer.start(study="tiny", config={"seed": 0}, config_hash="abc", versions={}, row=row)
    for step, value in enumerate((0.1, math.nan, math.inf, -math.inf, 5e-324, -0.0, 1 / 3)):
        writer.metrics(step, {"train/loss": value, "x": float(step)})
    writer.end(state="finished", row={"loss": 0.1 + 0.2, "tokens": 2**53 - 1})
    sync(out, tracking_uri=store_uri)
    return out, store_uri


def change(uri, statement):
    connection = sqlite3.connect(uri.removeprefix("sqlite:///"))
    with connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


def test_agreement_bit_for_bit(delivered):
    out, uri = delivered
    (result,) = verify(out, tracking_uri=uri)
    assert (result.run_id, result.points, result.differences) == ("a", 16, ())


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM metrics WHERE key = 'x' AND step = 3", "1 points missing, such as x = 3.0 at step 3"),
        ("UPDATE metrics SET value = 0.30000000000000004 + 1e-16 WHERE key = 'loss'", "1 points too many"),
        ("UPDATE metrics SET timestamp = timestamp + 1 WHERE key = 'x' AND step = 3", "x = 3.0 at step 3"),
        ("UPDATE runs SET status = 'RUNNING'", "state 'finished' with status RUNNING, not finished"),
        ("UPDATE tags SET value = 'killed' WHERE key = 'bayeslaw.state'", "state 'killed'"),
        ("UPDATE params SET value = '3' WHERE key = 'recurrences'", "param recurrences is '3', not '2'"),
        ("DELETE FROM tags WHERE key = 'bayeslaw.run_id'", "0 runs in MLflow, not one"),
    ],
)
def test_every_difference_is_named(delivered, capsys, statement, found):
    out, uri = delivered
    change(uri, statement)
    (result,) = verify(out, tracking_uri=uri)
    assert any(found in difference for difference in result.differences), result.differences
    assert run(["runs", "verify", str(out), "--tracking-uri", uri]) == 1
    printed = capsys.readouterr()
    assert found in printed.err
    assert "bayeslaw runs sync" in printed.err


def test_lost_artifacts_are_named(delivered):
    out, uri = delivered
    for path in out.parent.rglob("curve.csv"):
        path.write_text("time,step,metric,value\n")
    for path in out.parent.rglob("config.json"):
        path.unlink()
    (result,) = verify(out, tracking_uri=uri)
    assert result.differences == ("config.json is missing or another", "curve.csv is missing or another")


def test_nothing_to_verify(store_uri, tmp_path, capsys):
    with pytest.raises(NoRunsError, match="no run journal"):
        verify(tmp_path / "nowhere", tracking_uri=store_uri)
    assert run(["runs", "verify", str(tmp_path / "nowhere"), "--tracking-uri", store_uri]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_verbs_answer_in_json(delivered, capsys):
    out, uri = delivered
    assert run(["runs", "verify", str(out), "--tracking-uri", uri, "--json"]) == 0
    assert '"points": 16' in capsys.readouterr().out
    assert run(["runs", "close", "mlflow:tiny", "--tracking-uri", uri, "--json"]) == 0
    assert '"closed": []' in capsys.readouterr().out
