"""Where runs stand, by their files alone; retry and cancel; and what the command line shows of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest

from bayeslaw.cli import run
from bayeslaw.errors import UsageError
from bayeslaw.journal import JournalWriter
from bayeslaw.plan import write_plan
from tests.trainer.standin import STEPS, plan_of, trained
from trainer import attempts
from trainer.attempts import CANCELLED, SWEEP, recorded
from trainer.marks import cancel, retry
from trainer.rundir import claimed, run_directory
from trainer.standing import STATES, named, standing, standings
from trainer.sweep import work
from trainer.watch import Watch


def begun(out, planned, *, step=3, state=None, error=None, retries=2, pid=1):
    """An attempt of a worker: its journal to a step, and its end, or none where its process died."""
    run_dir = run_directory(out, planned.run_id)
    run_dir.mkdir(parents=True, exist_ok=True)
    attempts.record(run_dir, "begin", host="elsewhere", pid=pid, job="7_1", step=0, retries=retries)
    with contextlib.closing(JournalWriter(run_dir)) as journal:
        if not (run_dir / "journal.jsonl").stat().st_size:
            journal.start(
                study="standin", config=planned.config, config_hash=planned.config_hash, versions={}, row=planned.known
            )
        journal.metrics(step, {"train/loss": 4.0})
        if state:
            journal.end(state=state, row={"tokens": step}, error=error)
    if state:
        attempts.record(run_dir, "end", state=state, step=step, seconds=2.0, error=error)
    return run_dir


@pytest.fixture
def every(tmp_path):
    """A plan with a run in every state, and the claims of those at work."""
    plan = plan_of(9)
    out = tmp_path / "out"
    trained(plan.runs[0], out)
    begun(out, plan.runs[1], state="diverged")
    begun(out, plan.runs[2], state="failed", error="OSError: no luck")
    begun(out, plan.runs[3])
    for _ in range(3):
        begun(out, plan.runs[4], state="failed", error="no luck at all")
    run_directory(out, plan.runs[5].run_id).mkdir()
    (run_directory(out, plan.runs[5].run_id) / CANCELLED).touch()
    at_work = begun(out, plan.runs[6], step=2)
    with contextlib.closing(JournalWriter(at_work)) as journal:
        journal.metrics(6, {"train/loss": 3.0})
    write_plan(plan, tmp_path / "plan.json")
    with claimed(at_work, SWEEP), claimed(run_directory(out, plan.runs[7].run_id)):
        yield plan, out


def by_number(stands):
    return {int(each.run_id.partition("/")[2]): each for each in stands}


def test_every_state(every):
    plan, out = every
    stands = by_number(standings(plan, out))
    assert [stands[number].state for number in range(9)] == [
        "finished", "diverged", "failed", "stale", "given up", "cancelled", "running", "running", "waiting",
    ]  # fmt: skip
    assert {each.state for each in stands.values()} == set(STATES)
    assert (stands[0].step, stands[0].steps, stands[0].loss) == (STEPS, STEPS, 0.5)
    assert (stands[2].attempts, stands[2].failures, stands[2].error) == (1, 1, "OSError: no luck")
    assert (stands[3].step, stands[3].loss, stands[3].failures) == (3, 4.0, 1)
    assert stands[3].error == "process 1 on elsewhere (job 7_1) died"
    assert (stands[4].attempts, stands[4].seconds) == (3, 6.0)
    assert (stands[6].holder.pid, stands[6].by_sweep, stands[7].by_sweep) == (os.getpid(), True, False)
    assert stands[6].last_sign == pytest.approx(time.time(), abs=60)
    assert stands[6].eta > 0
    assert stands[6].eta / (4 / stands[6].flops_per_second * 10) == pytest.approx(1)
    assert "loss" not in stands[6].row


def test_failures_in_a_row_are_those_without_a_step_gained(tmp_path):
    (planned,) = plan_of(1).runs

    def stands():
        return standing(planned, tmp_path)

    begun(tmp_path, planned, step=2, state="failed")
    begun(tmp_path, planned, step=4, state="failed")  # further
    assert stands().failures == 1
    begun(tmp_path, planned, step=4, state="killed")  # no failure
    assert (stands().failures, stands().state) == (1, "stale")
    begun(tmp_path, planned, step=4)  # its process died
    begun(tmp_path, planned, step=4, state="failed")
    assert (stands().failures, stands().state) == (3, "given up")
    assert standing(planned, tmp_path, retries=3).state == "failed"  # of the journal's last attempt
    retry(plan_of(1), tmp_path)
    assert (stands().failures, stands().state) == (0, "failed")
    begun(tmp_path, planned, step=4, state="failed", retries=0)  # the limit of the last attempt
    assert stands().state == "given up"


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    attempts.record(tmp_path, "begin", step=0)
    with open(tmp_path / attempts.FILE_NAME, "a") as file:
        file.write('{"event": "en')
    attempts.record(tmp_path, "retry")
    assert [event["event"] for event in recorded(tmp_path)] == ["begin", "retry"]


def test_cancelled_runs_are_not_begun_and_retried_ones_are(tmp_path):
    plan = plan_of(3)
    done = cancel(plan, tmp_path, ["a/1"])
    assert [(each.run_id, each.before, each.done) for each in done] == [("a/1", "waiting", True)]

    def worked():
        with Watch() as watch:
            found = work(plan, tmp_path, lambda r: trained(r, tmp_path), watch=watch, retries=2, tell=lambda *_: None)
        return [(outcome.state, outcome.trained) for outcome in found]

    assert worked() == [("finished", True), ("cancelled", False), ("finished", True)]
    assert [each.text for each in cancel(plan, tmp_path)] == [
        "finished before, and stays so", "cancelled before", "finished before, and stays so",
    ]  # fmt: skip
    assert [each.done for each in retry(plan, tmp_path)] == [False, True, False]
    assert worked() == [("finished", False), ("finished", True), ("finished", False)]


def test_what_is_no_worker_is_left_alone(every):
    plan, out = every
    (outside,) = cancel(plan, out, ["a/7"])
    assert not outside.done
    assert "no worker of a sweep" in outside.text
    assert not (run_directory(out, "a/7") / CANCELLED).exists()
    (inside,) = cancel(plan, out, ["a/6"])
    assert inside.done
    assert f"process {os.getpid()}" in inside.text
    assert "still stopping" in retry(plan, out, ["a/6"])[0].text
    assert "running: " in retry(plan, out, ["a/7"])[0].text


def test_a_name_that_no_run_has(tmp_path):
    with pytest.raises(UsageError, match=r"(?s)no run 'a/22' in the plan.*allowed: a/0, a/1, a/2.*nearest is a/2"):
        named(plan_of(3), ["a/22"])
    assert named(plan_of(3), []) == plan_of(3).runs
    assert [planned.run_id for planned in named(plan_of(3), ["a/2", "a/0", "a/2"])] == ["a/2", "a/0"]


def typed(verb, out, *words):
    return ["sweep", verb, str(out.parent / "plan.json"), *words, "--out", str(out)]


def test_status_as_typed(every, capsys):
    plan, out = every
    assert run(typed("status", out)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len([line for line in printed if line.startswith("a/")]) == 9 + 3  # and why three went wrong
    assert all(len(line) <= 80 for line in printed[:10])
    assert "9 runs: 2 running, 1 waiting, 1 stale, 1 failed, 1 finished, 1 diverged, 1 given up, 1 cancelled" in printed
    assert "a/4: given up, 3 tried: no luck at all" in printed
    assert run(typed("status", out, "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["sweep"] == plan.sweep
    assert sum(answer["counts"].values()) == len(answer["runs"]) == 9
    assert answer["flops_done"] == pytest.approx(10.0 * (10 + 3 + 3 + 3 + 3 + 6))
    assert answer["flops_left"] == pytest.approx(10.0 * (7 + 7 + 4 + 10 + 10))
    assert answer["runs"][6]["pid"] == os.getpid()
    assert {"host", "job", "last_sign", "error", "loss", "seconds", "eta", "run_dir"} <= set(answer["runs"][0])


def test_status_needs_no_torch(every):
    _, out = every
    code = f"import sys; from bayeslaw.cli import run; run({typed('status', out)!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_watching_ends_when_nothing_is_left(tmp_path, capsys):
    plan, out = plan_of(2), tmp_path / "out"
    write_plan(plan, tmp_path / "plan.json")
    for planned in plan.runs:
        trained(planned, out)
    assert run(typed("status", out, "--watch")) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a/0: finished, step 10/10",
        "a/1: finished, step 10/10",
        "2 runs: 2 finished",
        "200 FLOPs done, 0 left",
    ]


def test_a_live_table_fits_a_narrow_terminal(every):
    from rich.console import Console

    from bayeslaw.cli.standings import table

    plan, out = every
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(table(standings(plan, out)))
    assert "given up" in captured.get()
    assert all(len(line) <= 80 for line in captured.get().splitlines())


def test_retry_and_cancel_as_typed(every, capsys):
    _, out = every
    assert run(typed("retry", out)) == 0
    printed = capsys.readouterr()
    armed = [f"a/{number}: armed: it will be tried again" for number in (2, 4, 5)]
    assert printed.out.splitlines() == [*armed, "3 of 9 runs"]
    assert "next: `bayeslaw sweep run" in printed.err
    assert run(typed("cancel", out, "a/2", "a/0", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["run_id"], each["done"]) for each in answer["runs"]] == [("a/2", True), ("a/0", False)]
    assert run(typed("cancel", out, "a/22")) == 2
    assert "the nearest is a/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--executor", "slrum"], "the nearest is slurm"),
        (["--partition", "low"], "--partition with the executor local"),
        (["--jobs", "0"], "jobs = 0"),
        (["--jobs", "2", "--limit", "1"], "--limit 1 with several workers"),
        (["--retries", "-1"], "retries = -1"),
        (["--executor", "slurm", "--slurm", "Array=3"], "an option of sbatch"),
        (["--executor", "slurm", "--slurm", "array=3"], "use --jobs"),
        (["--executor", "slurm", "--nodes", "2"], "1 processes of a run on 2 nodes"),
        (["--jbos", "2"], "--jobs"),
    ],
)
def test_flags_that_cannot_be_meant(tmp_path, capsys, words, told):
    write_plan(plan_of(1), tmp_path / "plan.json")
    assert run(typed("run", tmp_path / "out", *words)) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_slurm_where_there_is_none(tmp_path, capsys, monkeypatch):
    write_plan(plan_of(1), tmp_path / "plan.json")
    monkeypatch.setenv("PATH", "")
    assert run(typed("run", tmp_path / "out", "--executor", "slurm")) == 1
    assert "no sbatch on this machine" in capsys.readouterr().err
