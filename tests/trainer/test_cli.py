"""`bayeslaw train` and `bayeslaw sweep` as a user types them."""

from __future__ import annotations

import json

import pytest

from bayeslaw.cli import run
from bayeslaw.journal import find_journals, read_journal
from bayeslaw.runs import load_runs
from trainer import loop


@pytest.fixture(autouse=True)
def _no_store_in_the_environment(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def train(corpus, tmp_path):
    """Command of a run of 24 steps."""
    return [
        "train", "--width-scale", "0.25", "--recurrences", "2", "--shared-layers", "1", "--coda-layers", "0",
        "--head-size", "8", "--seq-len", "16", "--batch-tokens", "128", "--tokens", "3072", "--corpus", corpus,
        "--validation-tokens", "640", "--out", str(tmp_path / "out"), "--study", "typed",
    ]  # fmt: skip


@pytest.fixture
def plan(corpus, tmp_path):
    """Command of a plan of two runs."""
    return [
        "sweep", "plan", "--budgets", "3e7", "6e7", "--widths", "8", "--recurrences", "2", "--unrolled-layers", "2",
        "--coda-layers", "0", "--head-size", "8", "--seq-len", "16", "--batch-tokens", "128", "--min-steps", "2",
        "--corpus", corpus, "--validation-tokens", "640", "--study", "typed", "--out", str(tmp_path / "plan.json"),
    ]  # fmt: skip


def test_train_tracked(train, store_uri, capsys, tmp_path):
    assert run([*train, "--tracking-uri", store_uri, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema_version"] == 1
    (path,) = find_journals(tmp_path / "out")
    assert str(path.parent) == answer["run_dir"]
    assert answer["run"] == read_journal(path).row
    assert answer["run"]["d_model"] == 16
    tracked = load_runs("mlflow:typed", tracking_uri=store_uri)
    assert list(tracked.runs["loss"]) == [answer["run"]["loss"]]


def test_train_without_a_store_then_again(train, capsys):
    assert run(train) == 0
    printed = capsys.readouterr()
    assert "nats/token" in printed.out
    assert "bayeslaw runs sync" in printed.err
    assert run(train) == 0
    again = capsys.readouterr()
    assert again.out == printed.out
    assert "trained before" in again.err


def test_a_run_that_diverges_exits_1(train, monkeypatch, capsys):
    monkeypatch.setattr("trainer.config.MATRIX_RATE", 1e38)
    assert run(train) == 1
    printed = capsys.readouterr()
    assert "diverged" in printed.out
    assert "no number any more" in printed.err


@pytest.mark.parametrize(
    ("flags", "code", "named"),
    [
        (["--d-model", "16"], 2, "--d-model 16 and --width-scale 0.25"),
        (["--width-scale", "0.3"], 2, "the nearest is --d-model 19"),
        (["--head-size", "6"], 2, "the nearest is 18"),
        (["--corpus", "stdlb"], 2, "the nearest is stdlib"),
        (["--seq-len", "1024", "--batch-tokens", "1024", "--validation-tokens", "10240"], 2, "held-out tokens"),
        (["--budget", "1e9"], 2, "one of the two"),
        (["--recurences", "2"], 2, "--recurrences"),
        (["--tokens", "many"], 2, "many"),
    ],
)
def test_flags_that_cannot_be_meant(train, capsys, flags, code, named):
    assert run([*train, *flags]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert named in printed.err


def test_a_folder_that_cannot_be_written(train, plan, tmp_path, capsys):
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "out")
    assert run([*train, "--out", below]) == 1
    assert "cannot write the run directory" in capsys.readouterr().err
    assert run([*plan, "--out", f"{below}/plan.json"]) == 1
    assert "cannot write the plan" in capsys.readouterr().err
    assert run(plan) == 0
    assert run(["sweep", "run", str(tmp_path / "plan.json"), "--out", below]) == 1
    assert "choose another output folder with --out" in capsys.readouterr().err


def test_sweep(plan, tmp_path, capsys):
    file, out = str(tmp_path / "plan.json"), str(tmp_path / "out")
    assert run([*plan, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["study"] == "typed"
    assert planned["flops"] == pytest.approx(sum(entry["flops"] for entry in planned["runs"]))
    assert {"n_unique", "tokens", "flops_per_token", "flops", "config"} <= set(planned["runs"][0])
    assert run(plan) == 0
    assert "2 runs, 9.0" in capsys.readouterr().out

    assert run(["sweep", "run", file, "--out", out, "--limit", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["planned"], len(answer["runs"])) == (2, 1)
    assert run(["sweep", "run", file, "--out", out]) == 0
    printed = capsys.readouterr()
    assert "2 of 2 runs are finished, 1 since before; 0 went wrong" in printed.out
    assert f"bayeslaw runs sync {out}" in printed.err


def test_ctrl_c_in_a_sweep(plan, tmp_path, monkeypatch, capsys):
    assert run(plan) == 0
    step = loop._Run.step

    def interrupted(self, tokens):
        if self.config.budget == 6e7 and self.steps_done == 2:
            raise KeyboardInterrupt
        return step(self, tokens)

    monkeypatch.setattr(loop._Run, "step", interrupted)
    assert run(["sweep", "run", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]) == 130
    assert "what was finished is kept" in capsys.readouterr().err
    assert [read_journal(path).state for path in find_journals(tmp_path / "out")] == ["finished", "killed"]


def test_a_run_that_fails_exits_1(plan, tmp_path, monkeypatch, capsys):
    assert run(plan) == 0

    def fail(self, tokens):
        raise MemoryError("no room")

    monkeypatch.setattr(loop._Run, "step", fail)
    assert run(["sweep", "run", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert "MemoryError: no room" in printed.err
    assert "0 of 2 runs are finished, 0 since before; 2 went wrong" in printed.out
