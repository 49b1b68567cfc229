"""`bayeslaw check`."""

import json
from dataclasses import replace

import pytest

from bayeslaw.checks import structures
from bayeslaw.cli import run


def test_the_misfit_is_told_in_words_and_in_a_table(isodepth_file, capsys):
    assert run(["check", str(isodepth_file), "--structures", "off"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The additive law does not describe these runs")
    assert max(map(len, out.splitlines())) <= 80
    lines = {line.split()[0]: line.split() for line in out.splitlines() if "warning" in line or " ok" in line}
    assert lines["curvature"][1] == "warning"
    assert "default model" in " ".join(out.split())


def test_json_holds_every_card_and_the_answers(isodepth_file, capsys, monkeypatch):
    monkeypatch.setattr(structures, "STRUCTURES", {"additive, independent": {"law": "additive"}})
    assert run(["check", str(isodepth_file), "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["schema_version"] == 1
    cards = {card["name"]: card for card in answer["cards"]}
    assert {"name", "verdict", "value", "threshold", "advice", "reading"} <= set(cards["curvature"])
    assert cards["curvature"]["verdict"] == "warning"
    assert cards["drift"] == cards["drift"] | {"verdict": "not applicable", "value": None}
    assert [row["injection_in"] for row in answer["phi"]] == ["once", "rec", "nowhere", "regression"]
    for row in answer["phi"]:
        assert row["phi"]["q05"] < row["phi"]["mean"] < row["phi"]["q95"]
        assert row["p_lt_1"] > 0.99
        assert row["converged"]
    assert "injection counted in: rec" in captured.err


def test_failed_diagnostics_have_their_exit_code(isodepth_fit, tmp_path, capsys):
    tree = isodepth_fit.data.copy()
    stats = tree["sample_stats"].to_dataset()
    tree["sample_stats"] = tree["sample_stats"].assign(diverging=stats["diverging"] | True)
    path = tmp_path / "diverged.nc"
    replace(isodepth_fit, data=tree).save(path)
    assert run(["check", str(path), "--structures", "off"]) == 3
    assert capsys.readouterr().out.startswith("Do not rely on this fit yet")


@pytest.mark.parametrize("arguments", [["--structures", "maybe"], ["--out"]])
def test_flags_that_cannot_be_meant(isodepth_file, arguments, capsys):
    assert run(["check", str(isodepth_file), *arguments]) == 2


def test_files_that_are_missing_or_would_be_lost(isodepth_file, tmp_path, capsys):
    assert run(["check", str(tmp_path / "none.nc")]) == 1
    assert run(["check", str(isodepth_file), "--out", str(isodepth_file)]) == 2
    assert "is the file that is read" in capsys.readouterr().err


def test_the_page_is_written(isodepth_file, tmp_path, capsys):
    out = tmp_path / "check.html"
    assert run(["check", str(isodepth_file), "--structures", "off", "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert f"wrote {out}" in capsys.readouterr().err


def test_a_page_takes_the_place_of_no_other_file_and_is_tried_first(isodepth_file, tmp_path, capsys, monkeypatch):
    def never(*arguments, **settings):
        raise AssertionError("work was done before the refusal")

    monkeypatch.setattr("bayeslaw.checks.criticism.criticise", never)
    notes = tmp_path / "notes.html"
    notes.write_text("my notes")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("x")
    for out, code, told in (
        (notes, 2, "is no HTML page"),
        (tmp_path / "runs.csv", 2, "a name such as page.html"),
        (tmp_path / "folder.html", 1, "it is a folder"),
        (tmp_path / "file" / "check.html", 1, "cannot write"),
    ):
        assert run(["check", str(isodepth_file), "--out", str(out)]) == code
        assert told in capsys.readouterr().err
    assert notes.read_text() == "my notes"


def test_an_older_page_is_replaced(isodepth_file, tmp_path):
    out = tmp_path / "check.html"
    out.write_text("<!doctype html>\nold")
    assert run(["check", str(isodepth_file), "--structures", "off", "--out", str(out)]) == 0
    assert "old" not in out.read_text(encoding="utf-8")[:200]
