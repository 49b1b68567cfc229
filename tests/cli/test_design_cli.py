"""`bayeslaw design`: what it prints, what it plans, and what it refuses."""

from __future__ import annotations

import json
import random

import numpy as np
import pandas as pd
import pytest

from bayeslaw import cli
from bayeslaw.plan import read_plan

LAW = {"E": 1.0, "A": 60.0, "B": 40.0, "alpha": 0.4, "beta": 0.35, "phi": 0.5}
FAMILY = {"head_size": 8, "prelude_layers": 1, "coda_layers": 0, "seq_len": 16, "batch_tokens": 128}
FLAGS = [word for name, value in FAMILY.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    path.write_text(" ".join(draw.choice(("loop", "the", "block", "again")) for _ in range(13_000)))
    return str(path)


@pytest.fixture(scope="module")
def tiny_file(corpus, tmp_path_factory):
    """A fit of simulated runs of a tiny family."""
    pytest.importorskip("torch")
    from bayeslaw.fit import fit
    from bayeslaw.simulate import simulate
    from trainer.planning import plan_grid

    plan = plan_grid(
        study="tiny", budgets=(2e9, 4e9, 8e9), widths=(16, 24, 32), recurrences=(1, 2), unrolled_layers=2, min_steps=2,
        corpus=corpus, validation_tokens=640, **FAMILY,
    )  # fmt: skip
    table = pd.DataFrame([run.row for run in plan.runs]).assign(loss=np.nan, state="finished")
    runs = simulate(table, parameters=LAW, sigma=0.004, seed=3)
    path = tmp_path_factory.mktemp("tiny")
    runs.to_csv(path / "runs.csv", index=False)
    fit(path / "runs.csv", law="additive").save(path / "fit.nc")
    return str(path / "fit.nc")


def design(*arguments):
    return cli.run(["design", *map(str, arguments)])


def test_json(isodepth_file, capsys):
    assert design(isodepth_file, "--purse", 1e19, "--about", "phi", "g(4)", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["quantity"] for each in answer["about"]] == ["phi", "g(4)"]
    assert all(each["after"] < each["now"] for each in answer["about"])
    assert sum(run["flops"] for run in answer["runs"]) == pytest.approx(answer["flops"])
    assert answer["flops"] <= answer["purse"] == 1e19
    assert 0 <= answer["stop_after"] <= len(answer["runs"])
    assert answer["detection"] is None


def test_table_and_sentences(isodepth_file, capsys):
    assert design(isodepth_file, "--purse", 1e19, "--about", "delta_phi:hyperconections", "--most", 8) == 0
    caught = capsys.readouterr()
    assert "only a label" in caught.err  # the name is mistyped
    lines = caught.out.splitlines()
    assert lines[0].split()[:5] == ["run", "recipe", "r", "width", "tokens"]
    assert lines[1].split()[1] == "hyperconections"
    assert "is declared" in caught.out


def test_a_known_recipe_has_its_own_network(isodepth_file, capsys):
    tokens = {}
    for recipe in ("truncated_bptt", "label"):
        about = ("--about", f"delta_phi:{recipe}", "--recurrences", 8, "--widths", 640, "--budgets", 1e18)
        assert design(isodepth_file, "--purse", 1e19, *about, "--json") == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        tokens[recipe] = run["tokens"]
    # Half of its recurrences cost no backward pass, so the budget buys more tokens.
    assert tokens["truncated_bptt"] > 1.2 * tokens["label"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--purse", 1e19, "--about", "psi"), 2, "regret(FLOPS)"),
        (("--purse", 1e15, "--about", "phi"), 1, "cost more than the purse"),
        (("--purse", 0, "--about", "phi"), 2, "--purse 0"),
        (("--purse", 1e19, "--about", "phi", "--widths", "100"), 2, "multiples of 128"),
        (("--purse", 1e19, "--about", "phi", "--out", "plan.json"), 2, "how the runs are trained"),
        (("--purse", 1e19, "--about", "phi", "--out", "plan.json", "--preset", "dessk"), 2, "desk"),
        (("--purse", 1e19, "--about", "phi", "--out", "plan.json", "--preset", "desk"), 2, "divisors of the unrolled"),
    ],
)
def test_refused(isodepth_file, tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    if "--out" in arguments:
        pytest.importorskip("torch")
    assert design(isodepth_file, *arguments) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "plan.json").exists()


def test_the_fit_is_not_overwritten(isodepth_file, capsys):
    assert design(isodepth_file, "--purse", 1e19, "--about", "phi", "--preset", "paper", "--out", isodepth_file) == 2
    assert "is the file that is read" in capsys.readouterr().err


def test_without_torch_there_are_proposals_but_no_plan(isodepth_file, tmp_path, monkeypatch, capsys):
    from bayeslaw.cli import design as verb
    from bayeslaw.errors import BayeslawError

    def missing(package):
        raise BayeslawError("torch is not installed", do="pip install 'bayeslaw[train]'")

    monkeypatch.setattr(verb, "own", missing)
    assert design(isodepth_file, "--purse", 1e19, "--about", "delta_phi:new") == 0
    assert "baseline's network" in capsys.readouterr().err
    out = tmp_path / "plan.json"
    assert design(isodepth_file, "--purse", 1e19, "--about", "phi", "--preset", "paper", "--out", out) == 1
    assert "torch is not installed" in capsys.readouterr().err


def test_the_published_family_is_planned(isodepth_file, tmp_path, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "plan.json"
    arguments = ("--about", "g(4)", "--purse", 1e19, "--preset", "paper", "--out", out, "--json")
    assert design(isodepth_file, *arguments) == 0
    caught = capsys.readouterr()
    runs = json.loads(caught.out)["runs"]
    plan = read_plan(out)
    assert plan.study == "paper"
    assert "is not on this machine" in caught.err
    names = ("recurrences", "d_model", "tokens", "flops", "budget", "seed")
    assert [[run.row[name] for name in names] for run in plan.runs] == [[run[name] for name in names] for run in runs]


@pytest.mark.slow
def test_a_proposal_is_trained(tiny_file, corpus, tmp_path, capsys):
    """Design, plan, and the first run of the plan."""
    out = tmp_path / "plan.json"
    how = [*FLAGS, "--unrolled-layers", 2, "--corpus", corpus, "--validation-tokens", 640]
    assert design(tiny_file, "--purse", 4e10, "--about", "phi", "--out", out, "--study", "next", *how) == 0
    plan = read_plan(out)
    assert plan.flops <= 4e10
    assert plan.study == "next"
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    run = ["sweep", "run", str(out), "--out", str(tmp_path / "trained"), "--limit", "1", "--tracking-uri", store]
    assert cli.run([*run, "--json"]) == 0
    capsys.readouterr()
    assert len(list((tmp_path / "trained" / "runs").iterdir())) == 1

    wrong = list(how)
    wrong[how.index("--seq-len") + 1] = 32
    assert design(tiny_file, "--purse", 4e10, "--about", "phi", "--out", tmp_path / "other.json", *wrong) == 2
    assert "seq_len 32 and not 16" in capsys.readouterr().err
