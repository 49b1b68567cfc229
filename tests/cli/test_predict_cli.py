"""`bayeslaw predict` at several r and `bayeslaw equivalent`: what they print, in both forms."""

from __future__ import annotations

import json

import pytest

from bayeslaw.cli import run

FAR = ["--width-scale", "34", "--tokens", "47e9"]


def test_one_r(capsys, isodepth_file):
    assert run(["predict", str(isodepth_file), *FAR, "--recurrences", "4", "--json"]) == 0
    caught = capsys.readouterr()
    answer = json.loads(caught.out)
    assert set(answer) == {"schema_version", "predictions"}
    (made,) = answer["predictions"]
    assert set(made) >= {"loss", "loss_mean", "notes", "parts", "outside", "flops", "n_unique"}
    assert set(made["parts"]) == {"parameter", "deviation", "drift", "run", "total", "law"}
    assert set(made["parts"]["law"]) == {"low", "high", "forecasts", "left_out"}
    for one in made["outside"].values():
        assert set(one) == {"value", "low", "high", "factor", "steps"}
    assert made["notes"]
    assert all(f"note: {text}" in caught.err for text in made["notes"])


def test_several_r(capsys, isodepth_file):
    assert run(["predict", str(isodepth_file), *FAR, "--recurrences", "1,4,8", "--json"]) == 0
    caught = capsys.readouterr()
    answer = json.loads(caught.out)
    assert [made["recurrences"] for made in answer["predictions"]] == [1, 4, 8]
    assert "note: r = 8: " in caught.err
    first, four, _ = answer["predictions"]
    difference = answer["differences"][0]
    assert [(one["recurrences"], one["against"]) for one in answer["differences"]] == [(4, 1), (8, 1)]
    for name in ("loss", "loss_mean"):
        assert difference[name]["mean"] == pytest.approx(four[name]["mean"] - first[name]["mean"])
        assert difference[name]["q05"] < difference[name]["mean"] < difference[name]["q95"]
    assert 0 <= difference["p_lower"] <= difference["p_lower_run"] <= 1


def test_the_text_says_interval_parts_and_distance(capsys, isodepth_file):
    assert run(["predict", str(isodepth_file), *FAR, "--recurrences", "1", "4"]) == 0
    out = capsys.readouterr().out
    for text in (
        "r = 1, width 2176, ", "r = 4, width 2176, ", "a new run's loss: 2.1", "its expectation: 2.1", "parameter 0.0",
        "drift 0.0", "other laws' point fits, no part of the interval", "compute x 18.7 (3.8 steps)",
        "r = 4 less r = 1, a new run's loss: +0.0", "P(lower) 0.0",
    ):  # fmt: skip
        assert text in out


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--recurrences", "1;4"], "--recurrences '1;4'"),
        (["--recurrences", "4,4"], "different r"),
        (["--recurrences", "1,3"], "divisors of 16"),
        (["--recurrences", "nan"], "divisors of 16"),
    ],
)
def test_recurrences_that_cannot_be(capsys, isodepth_file, flags, text):
    assert run(["predict", str(isodepth_file), *FAR, *flags]) == 2
    assert text in capsys.readouterr().err


def test_equivalent_json(capsys, isodepth_file):
    assert run(["equivalent", str(isodepth_file), "--recurrences", "4", "--width-scale", "32", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["unique_ratio"] == pytest.approx(0.408, abs=5e-4)
    assert answer["closed_form"]["effective_ratio"] == pytest.approx(0.578, abs=5e-4)
    assert answer["training_cost_ratio"]["same_width"] == pytest.approx(1.027, abs=5e-4)
    for name in ("training_cost_ratio", "inference_cost_ratio"):
        assert set(answer[name]["equal_loss"]) == {"mean", "q05", "q95"}
    assert answer["effective_ratio"]["q05"] < answer["effective_ratio"]["q95"]
    assert answer["notes"] == []


def test_equivalent_text(capsys, isodepth_file):
    assert run(["equivalent", str(isodepth_file), "--recurrences", "16", "--width-scale", "32"]) == 0
    caught = capsys.readouterr()
    assert "unique parameters do as well as a non-looped model of" in caught.out
    assert "the published closed form, injection left out, says" in caught.out
    assert "note: r = 16 was never trained" in caught.err


def test_equivalent_of_what_is_not_in_the_family(capsys, isodepth_file):
    assert run(["equivalent", str(isodepth_file), "--recurrences", "3", "--width-scale", "32"]) == 2
    assert "divisors of 16" in capsys.readouterr().err
