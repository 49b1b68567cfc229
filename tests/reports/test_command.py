"""`bayeslaw report`."""

import json

import pytest

from bayeslaw.cli import run


@pytest.fixture(scope="module")
def plain_file(plain_fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "plain.nc"
    plain_fit.save(path)
    return path


def test_the_path_is_printed_and_the_file_written(isodepth_file, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert run(["report", str(isodepth_file), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_says_which_cards_failed_and_why(plain_file, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert run(["report", str(plain_file), "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert list(answer) == ["schema_version", "report", "cards"]
    assert answer["report"] == str(out)
    states = {card["name"]: card for card in answer["cards"]}
    assert states["worth"] == {"name": "worth", "state": "ok", "reason": None}
    assert states["frontier"]["state"] == "failed"
    assert "--flops-rule 6nd" in states["frontier"]["reason"]
    assert "card frontier left out" in captured.err


def test_the_flops_rule_reaches_the_cards(plain_file, tmp_path, capsys):
    out = str(tmp_path / "report.html")
    assert run(["report", str(plain_file), "--out", out, "--flops-rule", "6nd", "--json"]) == 0
    assert {card["state"] for card in json.loads(capsys.readouterr().out)["cards"]} == {"ok"}


def test_errors_have_their_exit_codes(isodepth_file, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "report.html")
    assert run(["report", str(tmp_path / "none.nc"), "--out", out]) == 1
    assert run(["report", str(isodepth_file), "--out", str(tmp_path / "file" / "report.html")]) == 1
    assert run(["report", str(isodepth_file), "--out", out, "--family", "nanogpt"]) == 2
    assert run(["report", str(isodepth_file)]) == 2
    assert not (tmp_path / "report.html").exists()
    assert "nanogpt" in capsys.readouterr().err
