"""`bayeslaw calibrate`: what it prints and leaves in its folder, in both forms, and wrong input."""

import json

import numpy as np
import pytest

from bayeslaw.calibration.coverage import RANKED
from bayeslaw.calibration.trials import Calibration
from bayeslaw.cli import run

DESIGN = ["calibrate", "isodepth", "--where", "budget in (4.64e17, 1e19)", "--law", "additive"]
NAMES = ("phi", "E", "g(4)", "N*(1e19)", "deviation_spread")


def simulated(self, number, *, narrow=1.0):
    """A simulation that takes no time: calibrated, or with too narrow a posterior."""
    rng = np.random.default_rng([self.spec.seed, number])
    u = np.clip(0.5 + (rng.uniform(size=len(NAMES)) - 0.5) / narrow, 0, 0.999)
    return {
        "simulation": number, "settings": self.key, "divergences": 0, "r_hat": 1.0, "ess": 300, "again": False,
        "quantities": {name: [0.5, int(u[i] * (RANKED + 1)), float(u[i])] for i, name in enumerate(NAMES)},
        "seconds": 0.1,
    }  # fmt: skip


@pytest.fixture
def instant(monkeypatch):
    monkeypatch.setattr(Calibration, "simulate", simulated)


@pytest.mark.usefixtures("isodepth_fit")  # has compiled the law
def test_json_and_the_folder(capsys, tmp_path):
    out = tmp_path / "calibration"
    sampler = ["--draws", "200", "--tune", "200"]
    code = run([*DESIGN, "--simulations", "10", *sampler, "--out", str(out), "--json"])
    caught = capsys.readouterr()
    answer = json.loads(caught.out, parse_constant=pytest.fail)
    assert code == (0 if answer["passed"] else 3)
    assert {entry.name for entry in out.iterdir()} == {
        "settings.json", "simulations.jsonl", "summary.json", "calibration.html"
    }  # fmt: skip
    assert json.loads((out / "summary.json").read_text()) == answer
    assert answer["simulations"] == 10
    assert answer["failed"] == []
    assert answer["settings"]["runs"] == 36
    assert answer["settings"]["spec"]["law"] == "additive"
    assert list(answer["quantities"])[:7] == ["phi", "a", "b", "E", "g(4)", "L*(1e20)", "N*(1e19)"]
    phi = answer["quantities"]["phi"]
    assert set(phi["coverage"]) == {"50", "80", "90"}
    assert set(phi["coverage"]["50"]) == {"share", "low", "high", "passed"}
    assert 0 <= phi["ranks"]["p"] <= 1
    assert "10 of 10 simulations" in caught.err
    assert "36 runs from isodepth" in caught.err
    page = (out / "calibration.html").read_text()
    for text in ("How often intervals hold the truth", "Ranks of the truths", "L*(1e20)", "<td>0.003 or more</td>"):
        assert text in page
    assert "could not be made" not in page


@pytest.mark.usefixtures("instant")
def test_table(capsys):
    assert run([*DESIGN, "--simulations", "400"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for text in ("truths held by", "deviation_spread", "allowed", "All 5 quantities are calibrated"):
        assert text in printed


@pytest.mark.usefixtures("instant")
def test_few_simulations_do_not_say_calibrated(capsys, tmp_path):
    assert run([*DESIGN, "--simulations", "20", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "calibration.html").read_text()
    for told in (" ".join(capsys.readouterr().out.split()), page):
        assert "None of 5 quantities was shown to be off" in told
        assert "quantities are calibrated" not in told
    assert "hold the truth as often as they say" not in page


def test_a_posterior_that_is_too_narrow_exits_3(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(Calibration, "simulate", lambda self, i: simulated(self, i, narrow=0.7))
    assert run([*DESIGN, "--simulations", "400", "--out", str(tmp_path)]) == 3
    printed = capsys.readouterr().out
    assert "off: 50 %, 80 %, 90 %, ranks" in printed
    assert "Not calibrated in 400 simulations: phi (50 %, 80 %, 90 %, ranks)" in " ".join(printed.split())
    assert "Not calibrated in 400 simulations" in (tmp_path / "calibration.html").read_text()


def test_an_interrupted_calibration_goes_on(capsys, monkeypatch, tmp_path):
    def interrupted(self, number):
        if number == 4:
            raise KeyboardInterrupt
        return simulated(self, number)

    command = [*DESIGN, "--simulations", "20", "--out", str(tmp_path)]
    monkeypatch.setattr(Calibration, "simulate", interrupted)
    assert run(command) == 130
    assert "finished runs, simulations and tasks are kept" in capsys.readouterr().err
    assert len((tmp_path / "simulations.jsonl").read_text().splitlines()) == 4
    monkeypatch.setattr(Calibration, "simulate", simulated)
    assert run(command) == 0
    caught = capsys.readouterr()
    assert "4 of 20 simulations are in" in caught.err
    assert len((tmp_path / "simulations.jsonl").read_text().splitlines()) == 20


@pytest.mark.usefixtures("instant")
def test_another_calibration_s_folder_is_refused(capsys, tmp_path):
    assert run([*DESIGN, "--simulations", "10", "--out", str(tmp_path)]) in (0, 3)
    assert run([*DESIGN, "--simulations", "10", "--out", str(tmp_path), "--seed", "7"]) == 2
    errors = capsys.readouterr().err
    assert "holds a calibration with other settings: seed 0, not 7" in errors
    assert "choose another --out" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--simulations", "9"], 2, "--simulations 9\n  allowed: 10 or more"),
        (["--simulations", "10.5"], 2, "a whole number"),
        (["--jobs", "0"], 2, "--jobs 0\n  allowed: 1 or more"),
        (["isodpeth"], 2, "did you mean isodepth?"),
        (["--where", "recurrences == 3"], 4, "matches --where"),
        (["--law", "chinchilla", "--map", "power"], 2, "--law chinchilla with --map power"),
        (["--draws", "20"], 2, "draws = 20"),
        (["--out", __file__], 2, "is a file"),
    ],
)
@pytest.mark.usefixtures("instant")
def test_wrong_input(capsys, arguments, code, named):
    assert run(["calibrate", *arguments]) == code
    caught = capsys.readouterr()
    assert named in caught.err
    assert caught.out == ""
