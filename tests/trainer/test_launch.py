"""Workers that share a plan: each run once, whatever dies, and nobody left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bayeslaw.errors import UsageError
from bayeslaw.journal import read_journal
from bayeslaw.plan import write_plan
from tests.trainer import standin
from tests.trainer.standin import plan_of
from trainer.attempts import CANCELLED, recorded
from trainer.execution import Execution
from trainer.launch import Order
from trainer.launch.local import launch
from trainer.rundir import run_directory
from trainer.standing import standings

PATIENCE = 30.0

LAUNCH = """
import json, sys
from pathlib import Path
from trainer.execution import Execution
from trainer.launch import Order
from trainer.launch.local import launch
told = json.loads(sys.argv[1])
plan, out, cpu = Path(told["plan"]), Path(told["out"]), Execution(device="cpu")
order = Order(plan=plan, out=out, execution=cpu, module="tests.trainer.standin")
launch(order, jobs=told["jobs"], tell=lambda text: print(text, file=sys.stderr, flush=True))
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Makes a plan of so many runs and the order to have stand-ins work through it."""

    def made(runs, *, retries=2, **standing_in):
        plan = plan_of(runs)
        write_plan(plan, tmp_path / "plan.json")
        monkeypatch.setenv("BAYESLAW_STANDIN", json.dumps(standing_in))
        return plan, Order(
            plan=tmp_path / "plan.json",
            out=tmp_path / "out",
            retries=retries,
            execution=Execution(device="cpu"),
            module=standin.__name__,
        )

    return made


@pytest.fixture
def launcher(sweep):
    """Starts launchers as processes of their own, and ends what is left of them."""
    started = []

    def start(order, jobs):
        told = json.dumps({"plan": str(order.plan), "out": str(order.out), "jobs": jobs})
        started.append(subprocess.Popen([sys.executable, "-c", LAUNCH, told], stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def events(order, run):
    return recorded(run_directory(order.out, run.run_id))


def pids(order, plan):
    return {event["pid"] for run in plan.runs for event in events(order, run) if event["event"] == "begin"}


def until(true, what):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.05)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as stat:  # one that nobody has waited for yet
        return stat.read().rpartition(")")[2].split()[0] == "Z"


def assert_each_once(order, plan):
    """Every run finished, in one attempt from its start to its end."""
    for run in plan.runs:
        assert [event["event"] for event in events(order, run)] == ["begin", "end"], run.run_id
        journal = read_journal(run_directory(order.out, run.run_id))
        assert [record["event"] for record in journal.records] == ["start", *["metrics"] * standin.STEPS, "end"]
        assert journal.state == "finished"


def test_workers_share_a_plan(sweep, capfd):
    plan, order = sweep(6, seconds=0.01)
    outcomes = launch(order, jobs=3, tell=print)
    assert [outcome.run_id for outcome in outcomes] == [run.run_id for run in plan.runs]
    assert {(outcome.state, outcome.trained) for outcome in outcomes} == {("finished", True)}
    assert_each_once(order, plan)
    lines = [line for line in capfd.readouterr().err.splitlines() if "finished" in line]
    assert len(lines) == 6
    assert all(line.startswith("[worker ") for line in lines)
    assert {(outcome.state, outcome.trained) for outcome in launch(order, jobs=2, tell=print)} == {("finished", False)}


def test_two_launchers_never_train_a_run_twice(sweep, launcher):
    plan, order = sweep(12, seconds=0.01)
    for process in [launcher(order, 2), launcher(order, 2)]:
        _, told = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, told
    assert_each_once(order, plan)
    assert len(pids(order, plan)) > 1


def test_a_worker_that_dies_is_replaced_and_its_run_gone_on_with(sweep):
    plan, order = sweep(3, faults={"a/1": {"die": 1}})
    told = []
    outcomes = launch(order, jobs=1, tell=told.append)
    assert {outcome.state for outcome in outcomes} == {"finished"}
    assert ["was ended by signal 9; another takes its place" in text for text in told] == [True]
    assert [event["event"] for event in events(order, plan.runs[1])] == ["begin", "begin", "end"]
    journal = read_journal(run_directory(order.out, "a/1"))
    assert [record["step"] for record in journal.records if record["event"] == "resume"] == [4]
    assert [record["step"] for record in journal.metrics] == list(range(1, standin.STEPS + 1))


@pytest.mark.parametrize("kind", ["die", "fail"])
def test_a_run_is_given_up_after_so_many_failures(sweep, kind, capfd):
    plan, order = sweep(3, retries=1, faults={"a/0": {kind: 99}})
    outcomes = launch(order, jobs=1, tell=print)
    assert [outcome.state for outcome in outcomes] == ["given up", "finished", "finished"]
    assert [event["event"] for event in events(order, plan.runs[0])].count("begin") == 2
    assert ("no luck" if kind == "fail" else "died") in outcomes[0].error
    order = [event["run"] for event in sorted(
        ({"run": run.run_id, **event} for run in plan.runs for event in events(order, run)), key=lambda e: e["time"]
    ) if event["event"] == "begin"]  # fmt: skip
    if kind == "fail":
        assert order == ["a/0", "a/1", "a/2", "a/0"]  # the others first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_lives_on_when_the_launcher_ends(sweep, launcher, number):
    plan, order = sweep(4, seconds=0.3)
    process = launcher(order, 2)
    until(lambda: len(pids(order, plan)) == 2, "two at work")
    workers = pids(order, plan)
    process.send_signal(number)
    process.wait(PATIENCE)
    until(lambda: all(map(gone, workers)), "gone")
    assert process.returncode == {signal.SIGINT: -signal.SIGINT, signal.SIGTERM: 143}.get(number, -number)
    ended = [event for run in plan.runs for event in events(order, run) if event["event"] == "end"]
    assert [event["state"] for event in ended] == ["killed", "killed"]
    stands = standings(plan, order.out)
    assert sorted(each.state for each in stands) == ["stale", "stale", "waiting", "waiting"]
    assert {each.failures for each in stands} == {0}  # to be stopped is no failure


@pytest.mark.slow
def test_a_second_signal_stops_at_once(sweep, launcher):
    plan, order = sweep(2, seconds=60)
    process = launcher(order, 2)
    until(lambda: len(pids(order, plan)) == 2, "two at work")
    for worker in pids(order, plan):
        os.kill(worker, signal.SIGSTOP)  # as one that hangs in a step
    process.send_signal(signal.SIGTERM)
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)
    assert all(map(gone, pids(order, plan)))


@pytest.mark.slow
def test_a_cancelled_run_stops_and_its_worker_goes_on(sweep):
    plan, order = sweep(2, seconds=0.2)
    first = run_directory(order.out, "a/0")

    def cancel():
        until(lambda: len(events(order, plan.runs[0])) == 1, "begun")
        (first / CANCELLED).touch()

    thread = threading.Thread(target=cancel)
    thread.start()
    outcomes = launch(order, jobs=1, tell=print)
    thread.join()
    assert [outcome.state for outcome in outcomes] == ["cancelled", "finished"]
    assert read_journal(first).state == "killed"
    assert len(pids(order, plan)) == 1
    assert events(order, plan.runs[0])[-1]["state"] == "cancelled"


def test_a_worker_that_dies_before_any_run_is_not_replaced_for_ever(sweep):
    _, order = sweep(1, stillborn=True)
    told = []
    outcomes = launch(order, jobs=2, tell=told.append)
    assert [outcome.state for outcome in outcomes] == ["waiting"]
    assert ["before it began a run, and is not replaced" in text for text in told] == [True, True]


def test_no_uri_in_the_command_of_a_worker(sweep, monkeypatch):
    _, order = sweep(1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host")
    assert "secret" not in " ".join(order.command("worker 1"))


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"retries": -1}, "retries = -1"),
        ({"processes": 0}, "processes = 0"),
        ({"processes": 3, "nodes": 2}, "3 processes"),
    ],
)
def test_orders_that_cannot_be_meant(tmp_path, told, match):
    with pytest.raises(UsageError, match=match):
        Order(plan=tmp_path / "plan.json", out=tmp_path, **told)


@pytest.mark.parametrize(
    ("jobs", "processes", "shared"), [(3, 1, ["3", "5", "3"]), (2, 2, ["3,5", "3,5"]), (1, 1, ["3"])]
)
def test_gpus_are_shared_in_turn(sweep, monkeypatch, jobs, processes, shared):
    _, order = sweep(1)
    order = dataclasses.replace(order, processes=processes, execution=Execution())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12))
    given = []
    popen = subprocess.Popen

    def started(command, *, env, **others):
        given.append(env)
        return popen(["true"], **others)

    monkeypatch.setattr(subprocess, "Popen", started)
    launch(order, jobs=jobs, tell=print)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in given] == shared
    assert [env["OMP_NUM_THREADS"] for env in given] == [str(12 // (jobs * processes))] * jobs


def test_more_gpus_than_there_are(sweep, monkeypatch):
    _, order = sweep(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(UsageError, match="3 GPUs of this machine for a run, and it shows 2"):
        launch(dataclasses.replace(order, processes=3, execution=Execution()), jobs=1, tell=print)


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_processes_that_train_a_run_together(grid, tmp_path, monkeypatch, number):
    """One run by two processes: to its end, or saved by all when the worker is told to stop, or dies."""
    from trainer.planning import plan_grid

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    budgets = (2e9,) if number is None else (60e9,)
    plan = plan_grid(**{**grid, "widths": (16,), "budgets": budgets})
    write_plan(plan, tmp_path / "plan.json")
    execution = Execution(device="cpu", compile="off")
    order = Order(plan=tmp_path / "plan.json", out=tmp_path / "out", processes=2, execution=execution)
    with subprocess.Popen(order.command("alone"), stdin=subprocess.PIPE) as worker:
        if number is not None:
            until(lambda: standings(plan, order.out)[0].step > 10, "at work")
            ranks = _processes(f"{tmp_path}/out --name alone")
            ranks.remove(worker.pid)
            worker.send_signal(number)
        worker.wait(PATIENCE)
    (stands,) = standings(plan, order.out)
    if number is None:
        assert stands.state == "finished"
        assert stands.row["device_count"] == 2
        return
    assert len(ranks) == 3  # torchrun, and two that it started
    until(lambda: all(map(gone, ranks)), "gone")
    journal = read_journal(run_directory(order.out, plan.runs[0].run_id))
    assert journal.state == "killed"
    (point,) = stands.run_dir.glob("checkpoints/step-*")
    assert int(point.name[5:]) == journal.row["tokens"] // 128
    assert not (stands.run_dir / "stop").exists()


def _processes(words):
    """Processes whose command has these words in a row."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words in path.read_bytes().replace(b"\0", b" ").decode():
                found.append(int(path.parent.name))
    return found
