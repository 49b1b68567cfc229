"""Grids and plans: what is planned, what is trained, what is left alone."""

from __future__ import annotations

import pytest

from bayeslaw.errors import JournalError, TrackingError, UsageError
from bayeslaw.journal import find_journals, read_journal
from bayeslaw.plan import read_plan, write_plan
from trainer import loop
from trainer.rundir import claimed, run_directory
from trainer.sweep import demo_plan, plan_grid, run_plan


@pytest.fixture(scope="module")
def plan(grid):
    return plan_grid(**grid)


def states(out):
    return {journal.run_id: journal.state for journal in map(read_journal, find_journals(out))}


def interrupt_in_run(monkeypatch, number, error):
    """Raise in the third step of the n-th run trained."""
    train, step = loop._Run.train, loop._Run.step
    count = [0]

    def counted(self, record):
        count[0] += 1
        return train(self, record)

    def raising(self, tokens):
        if count[0] == number and self.steps_done == 3:
            raise error
        return step(self, tokens)

    monkeypatch.setattr(loop._Run, "train", counted)
    monkeypatch.setattr(loop._Run, "step", raising)


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
        assert run.config["corpus_digest"]
    assert plan.flops == pytest.approx(16 * 1.5e9, rel=0.05)
    budgets = [run.row["budget"] for run in plan.runs]
    assert budgets == sorted(budgets)


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
    assert told == [f"left out: baseline/2/0.375/1e+09/0 would have {steps[0]} steps, fewer than {steps[1]}"]
    with pytest.raises(UsageError, match="no cell of the grid has 10000 optimiser steps"):
        plan_grid(**{**grid, "min_steps": 10_000}, left_out=told.append)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"recurrences": (3,)}, "recurrences = 3 with 2 unrolled layers\n  allowed: 1, 2 .*\n  next: the nearest is 2"),
        ({"recurrences": (0,)}, "recurrences = 0"),
        ({"widths": ()}, r"widths = \[\]"),
        ({"widths": (16, 16)}, "each once"),
        ({"widths": (16, 12)}, "d_model = 12 with head_size = 8"),
        ({"budgets": (-1.0,)}, "budget = -1"),
        ({"corpus": "stdlb"}, "corpus 'stdlb'"),
        ({"tokens": 256}, "budgets only"),
        ({"study": ""}, "study = ''"),
        ({"budgets": (1e30,)}, "optimiser steps"),
        ({"head_sise": 8}, "'head_sise'"),
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


def test_a_run_that_fails_does_not_stop_the_others(plan, tmp_path, monkeypatch, capsys):
    interrupt_in_run(monkeypatch, 2, OSError("no disk"))
    outcomes = run_plan(plan, tmp_path)
    assert [outcome.state for outcome in outcomes] == ["finished", "failed", "finished", "finished"]
    assert outcomes[1].error == "OSError: no disk"
    assert "tokens" not in outcomes[1].row
    assert "failed, " in capsys.readouterr().err


def test_our_own_errors_are_told_without_their_class(plan, tmp_path, monkeypatch, capsys):
    interrupt_in_run(monkeypatch, 1, TrackingError("what came", do="what to do"))
    (outcome,) = run_plan(plan, tmp_path, limit=1)
    assert outcome.error == "what came\n  next: what to do"
    assert "TrackingError" not in capsys.readouterr().err


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
    plan = plan_grid(**{**grid, "widths": (16,), "budgets": (1e9,)}, matrix_rate=1e38)
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
