"""Grids and plans: what is planned, what is trained, what is left alone."""

from __future__ import annotations

import re
import shutil

import pytest
import torch

from bayeslaw.errors import JournalError, TrackingError, UsageError
from bayeslaw.journal import find_journals, read_journal
from bayeslaw.plan import Plan, read_plan, write_plan
from trainer.attempts import recorded
from trainer.config import TrainConfig
from trainer.data import FINEWEB_EDU, load_corpus
from trainer.execution import Execution
from trainer.launch import Order, local
from trainer.learner import Learner
from trainer.loop import with_digest
from trainer.memory import least_bytes
from trainer.planning import demo_plan, plan_cells, plan_grid, plan_preset
from trainer.rundir import claimed, run_directory
from trainer.sweep import run_plan, unread


@pytest.fixture(scope="module")
def plan(grid):
    return plan_grid(**grid)


def states(out):
    return {journal.run_id: journal.state for journal in map(read_journal, find_journals(out))}


def interrupt_in_run(monkeypatch, number, error):
    """Raise in the third step of the n-th run trained."""
    step, runs = Learner.step, [0]

    def raising(self, at, batch, **flags):
        runs[0] += at == 0
        if (runs[0], at) == (number, 2):
            raise error
        return step(self, at, batch, **flags)

    monkeypatch.setattr(Learner, "step", raising)


def test_a_grid_is_every_cell_with_its_cost(grid):
    plan = plan_grid(**{**grid, "recurrences": (1, 2), "seeds": (0, 7)})
    cells = {(r.row["budget"], r.row["d_model"], r.row["recurrences"], r.row["seed"]) for r in plan.runs}
    assert len(plan.runs) == len(cells) == 16
    assert len({run.config_hash for run in plan.runs}) == 16
    for run in plan.runs:
        row = run.row
        assert row["recurrences"] * row["shared_layers"] == 2
        assert row["n_unique"] == row["n_once"] + row["n_shared"] + row["n_injection"]
        assert row["flops"] == float(row["tokens"]) * row["flops_per_token"]
        assert row["flops"] == pytest.approx(row["budget"], rel=0.1)
        assert row["tokens"] % grid["batch_tokens"] == 0
        assert run.config["data"]["corpus_digest"]
        config = TrainConfig.from_dict(run.config)
        assert with_digest(config).to_dict() == config.to_dict() == run.config  # what `train` hashes
    assert plan.flops == pytest.approx(16 * 1.5e9, rel=0.05)
    budgets = [run.row["budget"] for run in plan.runs]
    assert budgets == sorted(budgets)


def test_what_a_run_takes(grid):
    """Memory grows with the width, hours with the speed told; neither is a column of the runs."""
    plan = plan_grid(**grid)
    least = {run.row["d_model"]: least_bytes(TrainConfig.from_dict(run.config)) for run in plan.runs}
    assert all(run.row["memory"] > least[run.row["d_model"]] for run in plan.runs)
    assert len({run.row["memory"] for run in plan.runs}) == 2
    assert plan.hours is None
    timed = plan.timed(lambda flops: flops / 1e9 + 1e-6)
    assert timed.hours == pytest.approx(sum((r.row["flops"] / 1e9 + r.row["tokens"] * 1e-6) / 3600 for r in plan.runs))
    assert [run.config_hash for run in timed.runs] == [run.config_hash for run in plan.runs]
    assert timed.sweep != plan.sweep
    assert not {"memory", "hours", "tokens", "flops"} & set(timed.runs[0].known)
    assert set(timed.runs[0].known) == set(TrainConfig.from_dict(plan.runs[0].config).row)


def test_recipes_share_their_plain_runs(grid):
    """For r = 1 all recipes are one network: planned once, for the first of them."""
    recipes = ("truncated_bptt", "hyperconnections", "a-label")
    plan = plan_grid(**{**grid, "budgets": (1e9,), "widths": (16,), "recurrences": (1, 2), "recipes": recipes})
    assert [(run.row["recipe"], run.row["recurrences"]) for run in plan.runs] == [
        ("truncated_bptt", 1), ("truncated_bptt", 2), ("hyperconnections", 2), ("a-label", 2)
    ]  # fmt: skip
    assert [run.row["injection"] for run in plan.runs] == ["none", "linear", "hyperconnections", "linear"]
    assert [run.row["backprop_recurrences"] for run in plan.runs] == [1, 1, 2, 2]


def test_a_part_of_a_preset(corpus):
    part = {"budgets": (4.64e17, 1e18), "recurrences": (2, 8), "recipes": ("truncated_bptt",), "widths": (1024, 640)}
    plan = plan_preset("paper", study="x", seeds=(0, 1), **part)
    cells = [(run.row["budget"], run.row["recurrences"], run.row["d_model"], run.row["seed"]) for run in plan.runs]
    assert cells == [
        (4.64e17, 2, 640, 0), (4.64e17, 2, 640, 1), (4.64e17, 8, 640, 0), (4.64e17, 8, 640, 1),
        (1e18, 2, 640, 0), (1e18, 2, 640, 1), (1e18, 8, 640, 0), (1e18, 8, 640, 1),
        (1e18, 8, 1024, 0), (1e18, 8, 1024, 1),
    ]  # fmt: skip
    changes = {"corpus": corpus, "validation_tokens": 640, "gain_rate": 0.01}
    changed = plan_preset("desk", study="x", widths=(32,), recurrences=(4,), recipes=("baseline",), **changes)
    assert {run.config["data"]["corpus"] for run in changed.runs} == {corpus}
    assert all(run.config["data"]["corpus_digest"] for run in changed.runs)
    assert {run.config["optimizer"]["gain_rate"] for run in changed.runs} == {0.01}


@pytest.mark.parametrize(
    ("name", "part", "named"),
    [
        ("papr", {}, "the nearest is paper"),
        ("paper", {"recurrences": (3,)}, "recurrences: 3 in the preset paper\n  allowed: 1, 2, 4, 8"),
        (
            "paper",
            {"recipes": ("truncated",)},
            "recipes: truncated in the preset paper\n  allowed: baseline, truncated_bptt",
        ),
        ("paper", {"budgets": ()}, r"budgets = \[\]"),
        ("paper", {"recipes": ("truncated_bptt",), "recurrences": (1,)}, "no run of the preset paper is in all"),
        ("paper-47b", {"budgets": (1e18,)}, "allowed: no budgets"),
        ("desk", {"steps": 5}, "steps in a grid"),
        ("desk", {"head_sise": 5}, "the nearest is head_size"),
        ("desk", {"study": " "}, "study = ' '"),
    ],
)
def test_presets_that_cannot_be_planned(name, part, named):
    with pytest.raises(UsageError, match=named):
        plan_preset(name, **{"study": "x"} | part)


@pytest.mark.parametrize(("study", "named"), [("paper", "--preset paper"), ("x", "--preset NAME")])
def test_a_packed_corpus_is_planned_but_not_trained(tmp_path, plan, study, named):
    """Refused before anything is trained, whatever else the plan holds."""
    packed = plan_preset("paper", study=study, widths=(384,), recurrences=(1,), budgets=(4.64e17,))
    assert unread(plan) == []
    assert unread(packed) == [FINEWEB_EDU]
    with pytest.raises(UsageError, match=f"(?s){FINEWEB_EDU}.*plan again with .*{named} --corpus PATH"):
        run_plan(Plan(study, plan.runs + packed.runs), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_the_execution_reaches_every_run(plan, tmp_path):
    outcomes = run_plan(
        plan, tmp_path, quiet=True, limit=2, execution=Execution(device="cpu", keep=2, checkpoint_every=5)
    )
    for outcome in outcomes:
        assert len(list(outcome.run_dir.glob("checkpoints/step-*"))) >= 2


def test_cells_below_one_step_are_left_out_and_told(grid):
    told = []
    plan = plan_grid(**{**grid, "budgets": (1e3, 1e9)}, left_out=told.append)
    assert len(plan.runs) == len(told) == 2
    assert told[0].startswith("left out: budget = 1000 with d_model = 16")


def test_cells_of_too_few_steps_are_left_out_and_told(grid):
    steps = sorted(run.row["tokens"] // grid["batch_tokens"] for run in plan_grid(**grid).runs)
    told = []
    plan = plan_grid(**{**grid, "min_steps": steps[1]}, left_out=told.append)
    assert len(plan.runs) == 3
    (line,) = told
    assert re.fullmatch(
        rf"left out: baseline/2/0\.375/1e\+09/0\S* would have {steps[0]} steps, fewer than {steps[1]}", line
    )
    with pytest.raises(UsageError, match="no cell of the grid has 10000 optimiser steps"):
        plan_grid(**{**grid, "min_steps": 10_000}, left_out=told.append)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recurrences": (3,)}, "recurrences = 3 with 2 unrolled layers\n  allowed: 1, 2 .*\n  next: the nearest is 2"),
        ({"recurrences": (0,)}, "recurrences = 0"),
        ({"unrolled_layers": 0}, "unrolled_layers = 0\n  allowed: a whole number, 1 or more"),
        ({"min_steps": -5}, "min_steps = -5\n  allowed: a whole number, 1 or more"),
        ({"min_steps": 0}, "min_steps = 0"),
        ({"widths": ()}, r"widths = \[\]"),
        ({"widths": (16, 16)}, "each once"),
        ({"widths": (16, 12)}, "d_model = 12 with head_size = 8"),
        ({"budgets": (-1.0,)}, "budget = -1"),
        ({"corpus": "stdlb"}, "corpus 'stdlb'"),
        ({"tokens": 256}, "tokens in a grid"),
        ({"seed": 1}, "budgets and seeds"),
        ({"recipes": ()}, r"recipes = \[\]"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"study": ""}, "study = ''"),
        ({"budgets": (1e30,)}, "optimiser steps"),
        ({"head_sise": 8}, "'head_sise'"),
        ({"validation_tokens": 10_000}, "10000 validation tokens in sequences of 16"),
    ],
)
def test_grids_that_cannot_be_planned(grid, changes, named):
    with pytest.raises(UsageError, match=named):
        plan_grid(**{**grid, **changes})


def test_run_skip_and_track(plan, tmp_path, store_uri, capsys):
    write_plan(plan, tmp_path / "plan.json")
    plan = read_plan(tmp_path / "plan.json")
    out = tmp_path / "out"
    first = run_plan(plan, out, limit=1)
    assert [outcome.trained for outcome in first] == [True]
    content = {path: path.read_bytes() for path in find_journals(out)}
    capsys.readouterr()

    outcomes = run_plan(plan, out, tracking_uri=store_uri)
    assert [outcome.trained for outcome in outcomes] == [False, True, True, True]
    assert {outcome.state for outcome in outcomes} == {"finished"}
    assert content.items() <= {path: path.read_bytes() for path in find_journals(out)}.items()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"[1/4] {plan.runs[0].row['run_id']}: finished before, skipped" in printed.err
    assert "[4/4]" in printed.err

    from bayeslaw.runs import load_runs

    tracked = load_runs("mlflow:grid", tracking_uri=store_uri)
    assert len(tracked.runs) == 4  # the one trained without tracking was delivered afterwards
    assert tracked.data_hash == load_runs(out).data_hash
    assert [outcome.row["loss"] for outcome in outcomes] == list(tracked.runs["loss"])
    assert not any(outcome.trained for outcome in run_plan(plan, out, quiet=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished(plan, tmp_path, monkeypatch, error):
    interrupt_in_run(monkeypatch, 2, error)
    with pytest.raises(type(error)):
        run_plan(plan, tmp_path, quiet=True)
    assert list(states(tmp_path).values()) == ["finished", "killed"]
    monkeypatch.undo()
    outcomes = run_plan(plan, tmp_path, quiet=True)
    assert [outcome.trained for outcome in outcomes] == [False, True, True, True]
    assert set(states(tmp_path).values()) == {"finished"}
    aside = run_directory(tmp_path, plan.runs[1].row["run_id"]) / "journal.jsonl.1"
    assert read_journal(aside).state == "killed"


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(plan, tmp_path, monkeypatch, capsys):
    interrupt_in_run(monkeypatch, 2, OSError("no disk"))
    outcomes = run_plan(plan, tmp_path, retries=0)
    assert [outcome.state for outcome in outcomes] == ["finished", "failed", "finished", "finished"]
    assert outcomes[1].error == "OSError: no disk"
    assert "tokens" not in outcomes[1].row
    assert "failed, " in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_fails_is_tried_again_after_the_others(plan, tmp_path, monkeypatch, capsys):
    interrupt_in_run(monkeypatch, 2, OSError("no disk"))
    outcomes = run_plan(plan, tmp_path)
    assert {outcome.state for outcome in outcomes} == {"finished"}
    lines = [line[:5] for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert lines == ["[1/4]", "[2/4]", "[3/4]", "[4/4]", "[2/4]"]
    tried = recorded(run_directory(tmp_path, plan.runs[1].run_id))
    assert [(event["event"], event.get("state")) for event in tried] == [
        ("begin", None), ("end", "failed"), ("begin", None), ("end", "finished"),
    ]  # fmt: skip
    assert tried[1]["error"] == "OSError: no disk"
    swept = [journal.start["sweep"] for journal in map(read_journal, find_journals(tmp_path))]
    assert swept == [{"plan": plan.sweep, "runs": 4}] * 4


def test_a_run_that_cannot_begin_is_given_up(grid, tmp_path, corpus, capsys):
    gone = tmp_path / "gone.txt"
    shutil.copy(corpus, gone)
    plan = plan_grid(**{**grid, "widths": (16,), "budgets": (1e9,), "corpus": str(gone)})
    gone.unlink()
    load_corpus.__globals__["_load"].cache_clear()
    (outcome,) = run_plan(plan, tmp_path / "out", retries=1)
    assert (outcome.state, outcome.trained) == ("failed", True)
    assert str(gone) in outcome.error
    assert not find_journals(tmp_path / "out")
    (again,) = run_plan(plan, tmp_path / "out", retries=1)
    assert (again.state, again.trained) == ("given up", False)
    assert "`bayeslaw sweep retry`" in capsys.readouterr().err
    assert len(recorded(outcome.run_dir)) == 4


def test_our_own_errors_are_told_without_their_class(plan, tmp_path, monkeypatch, capsys):
    interrupt_in_run(monkeypatch, 1, TrackingError("what came", do="what to do"))
    (outcome,) = run_plan(plan, tmp_path, limit=1)
    assert outcome.error == "what came\n  next: what to do"
    assert "TrackingError" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_another_process_is_left_to_it(plan, tmp_path, store_uri, capsys):
    run_dir = run_directory(tmp_path, plan.runs[0].row["run_id"])
    with claimed(run_dir):
        outcomes = run_plan(plan, tmp_path, limit=1, tracking_uri=store_uri)
    assert [(outcome.state, outcome.trained) for outcome in outcomes] == [("busy", False), ("finished", True)]
    printed = capsys.readouterr().err
    assert f"{plan.runs[0].row['run_id']}: being trained by another process" in printed
    assert "Error" not in printed
    assert "warning" not in printed  # its journal is not looked for either


def test_runs_that_diverge_are_not_repeated(grid, tmp_path):
    plan = plan_grid(**{**grid, "widths": (16,), "budgets": (1e9,)}, gain_rate=1e38)
    assert run_plan(plan, tmp_path, quiet=True)[0].state == "diverged"
    again = run_plan(plan, tmp_path, quiet=True)
    assert [(outcome.state, outcome.trained) for outcome in again] == [("diverged", False)]


def test_a_folder_that_cannot_be_written_stops_the_sweep(plan, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot write the run directory"):
        run_plan(plan, tmp_path / "file" / "out", quiet=True)
    with pytest.raises(UsageError, match="limit = 0"):
        run_plan(plan, tmp_path, limit=0)


def test_the_demo_is_an_iso_flop_grid():
    plan = demo_plan(seed=3)
    rows = [run.row for run in plan.runs]
    assert len(rows) == len({(row["recurrences"], row["budget"], row["d_model"]) for row in rows}) == 18
    assert {row["recurrences"] for row in rows} == {1, 2, 4}
    budgets = sorted({row["budget"] for row in rows})
    assert len(budgets) == 2
    assert budgets[1] >= 4 * budgets[0]
    assert len({row["d_model"] for row in rows}) == 3
    assert len({row["recurrences"] * row["shared_layers"] for row in rows}) == 1
    assert {run.config["seed"] for run in plan.runs} == {3}
    assert {run.config["optimizer"]["rate_rule"] for run in plan.runs} == {"desk"}


def cell(**changes):
    return {"recipe": "baseline", "recurrences": 2, "d_model": 16, "tokens": 20 * 128, **changes}


@pytest.fixture(scope="module")
def shared_fields(grid):
    return {
        name: value for name, value in grid.items() if name not in ("budgets", "widths", "recurrences", "min_steps")
    }


def test_cells_are_planned_as_they_are_named(shared_fields, tmp_path):
    cells = [cell(d_model=24, seed=3), cell(recurrences=1), cell(recipe="hyperconnections")]
    plan = plan_cells(cells, **shared_fields)
    assert [(r.row["d_model"], r.row["recurrences"], r.row["recipe"], r.row["seed"]) for r in plan.runs] == [
        (24, 2, "baseline", 3), (16, 1, "baseline", 0), (16, 2, "hyperconnections", 0)
    ]  # fmt: skip
    assert [run.row["injection"] for run in plan.runs] == ["linear", "none", "hyperconnections"]
    assert {run.row["tokens"] for run in plan.runs} == {20 * 128}
    assert {run.row["recurrences"] * run.row["shared_layers"] for run in plan.runs} == {2}
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


def test_a_cell_at_a_budget_is_the_run_of_a_grid(grid, shared_fields):
    """The same config and hash, so that a sweep that has trained it skips it."""
    of_grid = plan_grid(**grid).runs[0]
    named = {name: of_grid.row[name] for name in ("recipe", "recurrences", "d_model", "tokens", "budget")}
    assert plan_cells([named], **shared_fields).runs[0] == of_grid
    # Where the budget buys other tokens, tokens are what counts.
    other = plan_cells([{**named, "tokens": named["tokens"] + 128}], **shared_fields).runs[0]
    assert other.row["tokens"] == named["tokens"] + 128
    assert other.row["budget"] == other.row["flops"]


def test_cells_of_a_preset():
    plan = plan_cells(
        [cell(d_model=640, recurrences=8, recipe="truncated_bptt", tokens=2**18 * 100)], study="x", preset_name="paper"
    )
    row = plan.runs[0].row
    assert (row["shared_layers"], row["backprop_recurrences"], row["seq_len"]) == (2, 4, 2048)


@pytest.mark.parametrize(
    ("cells", "changes", "match"),
    [
        ([], {}, "0 runs"),
        ([cell(), cell()], {}, "1 of them different"),
        ([cell(tokens=1000)], {}, "tokens = 1000"),
        ([cell(recurrences=3)], {}, "divisors of the unrolled layers"),
        ([cell(steps=3)], {}, "cell 1 has"),
        ([{"recipe": "baseline"}], {}, "cell 1 has"),
        ([cell()], {"seed": 1}, "seed for all cells"),
        ([cell()], {"budget": 1e9}, "budget for all cells"),
        ([cell()], {"preset_name": "desk"}, "the preset's own depth"),
        ([cell()], {"study": " "}, "study"),
    ],
)
def test_cells_that_cannot_be_planned(shared_fields, cells, changes, match):
    with pytest.raises(UsageError, match=match):
        plan_cells(cells, **{**shared_fields, **changes})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_tried(plan, tmp_path, jobs):
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    order = Order(plan=path, out=tmp_path / "out", execution=Execution(device="cuda"))

    def train():
        if jobs == 1:
            return run_plan(plan, order.out, execution=order.execution, quiet=True)
        return local.launch(order, jobs=jobs, tell=print)

    with pytest.raises(UsageError, match="this machine shows no GPU") as refused:
        train()
    assert "nothing was tried" in refused.value.do
    assert not (tmp_path / "out").exists()
