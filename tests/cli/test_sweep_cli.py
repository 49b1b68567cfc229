"""`bayeslaw sweep plan` with expected hours, and `sweep run` with several workers, as typed."""

from __future__ import annotations

import json

import pytest

from bayeslaw.cli import run
from bayeslaw.runs import load_runs

PLAN = "sweep plan --widths 16 --recurrences 1,2 --unrolled-layers 2 --head-size 8 --seq-len 16 --batch-tokens 128"


@pytest.fixture
def planned(tmp_path):
    """Words that plan two runs of a text of their own."""
    (tmp_path / "words.txt").write_text("loop until the state has seen enough " * 1500)
    return [*PLAN.split(), "--validation-tokens", "640", "--budgets", "1e9", "--corpus", str(tmp_path / "words.txt")]


def test_hours_follow_from_the_speed_of_runs(planned, capsys):
    from bayeslaw.throughput import throughput_of

    assert run([*planned, "--speed", "desk", "--json"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    measured = throughput_of(load_runs("desk").runs)
    for entry in answer["runs"]:
        seconds = entry["tokens"] * (measured.overhead + measured.per_flop * entry["flops_per_token"])
        assert entry["hours"] == pytest.approx(seconds / 3600)
        assert entry["memory"] > 0
    assert answer["hours"] == pytest.approx(sum(entry["hours"] for entry in answer["runs"]))
    assert f"{measured.runs} measured runs on {measured.device}" in printed.err
    assert "their hours are extrapolated" in printed.err
    assert run([*planned, "--speed", "desk"]) == 0
    assert "device hours in all" in capsys.readouterr().out
    assert run(planned) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[-2:] == ["memory", "hours"]
    assert [line.split()[-1] for line in table[1:3]] == ["-", "-"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--device", "cpu"], "--device without --speed"),
        (["--speed", "isodepth"], "--speed isodepth: device hours need measured speed"),
        (["--speed", "desk", "--device", "abacus"], "--speed desk: --device 'abacus': no run was measured on it"),
        (["--gpus", "8"], "--gpus without --simulate"),
    ],
)
def test_speeds_that_are_not_known(planned, capsys, more, told):
    assert run([*planned, *more]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_two_workers_and_one_store(planned, tmp_path, store_uri, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store_uri)
    file, out = str(tmp_path / "plan.json"), str(tmp_path / "out")
    assert run([*planned, "--study", "typed", "--out", file]) == 0
    words = ["sweep", "run", file, "--out", out, "--jobs", "2", "--device", "cpu", "--compile", "off"]
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(row["state"], row["trained"]) for row in answer["runs"]] == [("finished", True)] * 2
    tracked = load_runs("mlflow:typed")
    assert sorted(tracked.runs["loss"]) == sorted(row["loss"] for row in answer["runs"])
    assert run(words) == 0
    assert "2 of 2 runs are finished, 2 since before; 0 went wrong" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["status", "cancel", "retry"])
def test_a_folder_that_is_none_is_refused(planned, tmp_path, capsys, verb):
    plan = tmp_path / "plan.json"
    assert run([*planned, "--out", str(plan)]) == 0
    capsys.readouterr()
    for out in (tmp_path / "mistyped", plan):
        assert run(["sweep", verb, str(plan), "--out", str(out)]) == 2
        assert f"there is no folder {out}" in capsys.readouterr().err
    assert not (tmp_path / "mistyped").exists()


def test_commands_can_be_pasted(planned, tmp_path, capsys):
    plan, out = tmp_path / "plan.json", tmp_path / "my dir; rm -rf x"
    assert run([*planned, "--out", str(plan)]) == 0
    out.mkdir()
    capsys.readouterr()
    assert run(["sweep", "cancel", str(plan), "--out", str(out)]) == 0
    assert f"`bayeslaw sweep retry {plan} --out '{out}'`" in capsys.readouterr().err
    assert run(["sweep", "status", str(plan), "--out", str(out)]) == 0
    assert f"next: `bayeslaw sweep retry {plan} --out '{out}'`" in capsys.readouterr().out
    assert run(["sweep", "cancel", str(plan), "--out", str(out)]) == 0
    assert "0 of 2 runs; cancelled before" in capsys.readouterr().out
