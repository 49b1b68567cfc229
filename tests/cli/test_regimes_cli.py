"""`bayeslaw regimes`: what it prints and refuses."""

from __future__ import annotations

import json

import pytest

from bayeslaw.cli import run

QUICK = ["--axes", "reading", "--draws", "400"]


def test_json(capsys):
    assert run(["regimes", "isodepth-downstream", *QUICK, "--json", "--effect", "0.1"]) == 0
    caught = capsys.readouterr()
    answer = json.loads(caught.out)
    assert answer["schema_version"] == 1
    (axis,) = answer["axes"]
    assert axis["axis"] == "reading"
    assert axis["more_seeds"]["effect"] == 0.1
    assert axis["diagnostics"]["passed"]
    assert {"mean", "sd", "q05", "q25", "q75", "q95"} == set(axis["matched_loss"][0]["effect"])
    assert "note: no standard errors" in caught.err


def test_sentences_and_tables_fit_a_terminal(capsys):
    assert run(["regimes", "isodepth-downstream", *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Reading comprehension: ")
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("reading") and "looped" in line for line in lines)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["isodepth-downstrea"], "did you mean isodepth-downstream"),
        (["isodepth-downstream", "--delta", "0"], "--delta 0"),
        (["isodepth-downstream", "--effect", "-1"], "--effect -1"),
        (["isodepth-downstream", "--draws", "10"], "--draws 10"),
        (["isodepth-downstream", "--axes", "maths"], "'maths' is no axis"),
        (["isodepth-downstream", "--where", "budget >"], "--where"),
        (["isodepth-downstream", "--where", "recurrences > 1"], "no checkpoint of r = 1"),
        (["isodepth-downstream", "--out", "page.csv"], "the result is a page"),
    ],
)
def test_wrong_input(flags, message, capsys):
    assert run(["regimes", *flags]) == 2
    assert message in capsys.readouterr().err
