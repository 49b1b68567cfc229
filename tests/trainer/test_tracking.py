"""Journals followed while runs go on: nothing lost, nobody waits, and every state is true."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from bayeslaw import schema, store
from bayeslaw.errors import NoRunsError, UsageError
from bayeslaw.journal import FILE_NAME, JournalWriter, find_journals, read_journal
from trainer import courier, loop, rundir, tracking
from trainer.config import TrainConfig
from trainer.courier import Courier
from trainer.learner import Learner
from trainer.tracking import Tracking, close_silent, sync
from trainer.verification import verify

KILLED = """
import sys, time
from pathlib import Path
from bayeslaw.journal import JournalWriter
from trainer import rundir
from trainer.tracking import Tracking
run_dir, uri = Path(sys.argv[1]), sys.argv[2]
tracking = Tracking(uri)
with rundir.claimed(run_dir):
    writer = JournalWriter(run_dir)
    tracking.follow(writer.path)
    row, sweep = {"run_id": "k", "budget": 1e9}, {"plan": "5", "runs": 1}
    writer.start(study="tiny", config={}, config_hash="abc", versions={}, row=row, sweep=sweep)
    writer.metrics(1, {"train/loss": 5.0})
    print("ready", flush=True)
    time.sleep(600)
"""


def begun(run_dir, *, sweep=None, planned=1, run_id="a", points=0):
    writer = JournalWriter(run_dir)
    row = {"run_id": run_id, "recurrences": 2.0, "budget": 1e9}
    writer.start(
        study="tiny",
        config={"seed": 0},
        config_hash=f"hash {run_id}",
        versions={},
        row=row,
        sweep={"plan": sweep, "runs": planned} if sweep else None,
    )
    for step in range(1, points + 1):
        writer.metrics(step, {"train/loss": 1.0 / step})
    return writer


def runs_in(uri):
    client = store.connect(uri)
    found = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    return {run.info.run_name: run for run in found}


def states(uri):
    return {name.split()[0]: (run.info.status, run.data.tags[schema.TAG_STATE]) for name, run in runs_in(uri).items()}


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)
    return answer


def agrees(out, uri):
    return [result.differences for result in verify(out, tracking_uri=uri)] == [()] * len(find_journals(out))


def test_followed_while_it_goes_on(fields, store_uri, tmp_path, monkeypatch):
    step = Learner.step
    seen = []

    def look(self, number, batch, **flags):
        if number == 25:
            following.flush()
            client = store.connect(store_uri)
            wait_until(lambda: client.get_experiment_by_name("tiny"))
            run = wait_until(lambda: next((run for run in runs_in(store_uri).values() if run.data.metrics), None))
            seen.append((run.info.status, run.data.tags[schema.TAG_STATE]))
            seen.append([p.step for p in client.get_metric_history(run.info.run_id, schema.METRIC_TRAIN_LOSS)])
        return step(self, number, batch, **flags)

    monkeypatch.setattr(Learner, "step", look)
    with Tracking(store_uri) as following:
        loop.train(TrainConfig.of(**fields), tmp_path, study="tiny", tracking=following, quiet=True)
    assert seen == [("RUNNING", "running"), [1, 12, 24]]
    (run,) = runs_in(store_uri).values()
    assert run.info.status == "FINISHED"
    assert agrees(tmp_path, store_uri)


@pytest.mark.slow
def test_a_dead_store_ends_no_run(fields, tmp_path, capfd, store_uri):
    with socket.socket() as probe:  # a port that nobody listens on
        probe.bind(("127.0.0.1", 0))
        uri = f"http://user:secret@127.0.0.1:{probe.getsockname()[1]}"
    with Tracking(uri) as following:
        result = loop.train(TrainConfig.of(**fields), tmp_path, study="tiny", tracking=following, quiet=True)
    assert result.state == "finished"
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("warning: not delivered") == 1
    assert "does not answer" in printed.err
    assert "bayeslaw runs sync DIR" in printed.err
    assert "secret" not in printed.err
    sync(tmp_path, tracking_uri=store_uri)
    assert agrees(tmp_path, store_uri)


@pytest.mark.slow
def test_a_run_killed_outright_is_told_as_killed_and_goes_on_as_the_same(store_uri, tmp_path):
    run_dir = tmp_path / "runs" / "k"
    process = subprocess.Popen([sys.executable, "-c", KILLED, run_dir, store_uri], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait()
    process.stdout.close()
    client = store.connect(store_uri)
    wait_until(lambda: client.get_experiment_by_name("tiny"))
    wait_until(lambda: states(store_uri) == {"k": ("KILLED", "killed"), "sweep": ("KILLED", "killed")})
    with Tracking(store_uri) as following, rundir.claimed(run_dir):
        writer = JournalWriter(run_dir)
        writer.resume(step=0, versions={}, row={})
        following.follow(writer.path)
        wait_until(lambda: states(store_uri) == {"k": ("RUNNING", "running"), "sweep": ("RUNNING", "running")})
        writer.metrics(1, {"train/loss": 4.0})
        writer.end(state="finished", row={"loss": 4.0})
        writer.close()
    assert states(store_uri) == {"k": ("FINISHED", "finished"), "sweep": ("FINISHED", "finished")}
    assert agrees(tmp_path, store_uri)


@pytest.mark.slow
def test_nobody_waits_for_a_courier_that_hangs(store_uri, tmp_path):
    writer = begun(tmp_path / "runs" / "a")
    with Tracking(store_uri) as following:
        following.follow(writer.path)
        os.kill(following._courier.pid, signal.SIGSTOP)
        for _ in range(70_000):  # a pipe holds 65,536 bytes: a write more would wait for ever
            following.flush()
        os.kill(following._courier.pid, signal.SIGCONT)
        writer.end(state="finished", row={})
    assert states(store_uri) == {"a": ("FINISHED", "finished")}


@pytest.mark.slow
def test_a_courier_that_was_killed_is_replaced(store_uri, tmp_path):
    writer = begun(tmp_path / "runs" / "a", points=3)
    with Tracking(store_uri) as following:
        following.follow(writer.path)
        following._courier.kill()
        following._courier.wait()
        writer.end(state="finished", row={})
        following.flush()
    assert agrees(tmp_path, store_uri)


def test_a_courier_killed_at_the_end_is_told(store_uri, tmp_path, capsys):
    writer = begun(tmp_path / "runs" / "a")
    following = Tracking(store_uri)
    following.follow(writer.path)
    following._courier.kill()
    following.close()
    assert "was killed by signal 9" in capsys.readouterr().err


@pytest.fixture
def told(store_uri):
    """A courier in this process, and what it told."""
    lines = []
    carrier = Courier(store_uri, lines.append)
    return carrier, lines


def delivered(uri):
    return {name: int(run.data.tags[schema.TAG_DELIVERED].split()[0]) for name, run in runs_in(uri).items()}


def test_points_wait_until_there_are_many_or_it_was_long_ago(told, store_uri, tmp_path, monkeypatch):
    carrier, lines = told
    carrier.follow(tmp_path / "runs" / "a" / FILE_NAME)
    assert not carrier.round()  # it does not exist yet
    writer = begun(tmp_path / "runs" / "a")
    carrier.round()
    assert delivered(store_uri) == {"a": 1}
    for step in range(499):
        writer.metrics(step, {"x": 1.0})
    carrier.round()
    assert delivered(store_uri) == {"a": 1}
    writer.metrics(499, {"x": 1.0})
    carrier.round()
    assert delivered(store_uri) == {"a": 501}
    writer.metrics(500, {"x": 1.0})
    carrier.round()
    assert delivered(store_uri) == {"a": 501}
    monkeypatch.setattr(courier, "FLUSH_SECONDS", 0.0)
    carrier.round()
    assert delivered(store_uri) == {"a": 502}
    assert lines == []


def test_an_outage_is_told_once_and_made_up_for(told, store_uri, tmp_path, monkeypatch):
    carrier, lines = told
    monkeypatch.setattr(courier, "MOST_PAUSE_SECONDS", 0.0)
    writer = begun(tmp_path / "runs" / "a", points=2)
    carrier.follow(writer.path)
    away = store_uri + ".away"
    shutil.move(store_uri.removeprefix("sqlite:///"), away.removeprefix("sqlite:///"))
    monkeypatch.setattr(courier, "connect", lambda uri: store.connect(uri))  # does not make a new one
    for _ in range(3):
        assert carrier.round(now=True)
    assert len(lines) == 1
    assert "no MLflow database" in lines[0]
    shutil.move(away.removeprefix("sqlite:///"), store_uri.removeprefix("sqlite:///"))
    writer.end(state="finished", row={"loss": 2.0})
    assert carrier.finish()
    assert lines[1:] == ["MLflow takes what it is sent again"]
    assert agrees(tmp_path, store_uri)


def test_one_bad_journal_holds_up_no_other(told, store_uri, tmp_path, monkeypatch):
    carrier, lines = told
    monkeypatch.setattr(courier, "PATIENCE_SECONDS", 0.1)
    bad = begun(tmp_path / "runs" / "a", points=3)
    bad.end(state="finished", row={})
    text = bad.path.read_text()
    bad.path.write_text(text.replace('"train/loss": 0.5', '"train/loss": 0.6'))
    good = begun(tmp_path / "runs" / "b", run_id="b", points=3)
    good.end(state="finished", row={})
    carrier.follow(bad.path)
    carrier.follow(good.path)
    assert not carrier.finish()
    assert len(lines) == 1
    assert f"{bad.path}, line 3: damaged journal" in lines[0]
    assert states(store_uri)["b"] == ("FINISHED", "finished")
    bad.path.write_text(text)
    assert Courier(store_uri, lines.append).finish()


def test_a_silent_run_shows_that_it_lives(told, store_uri, tmp_path, monkeypatch):
    carrier, _ = told
    monkeypatch.setattr(courier, "BEAT_SECONDS", 0.0)
    with rundir.claimed(tmp_path / "runs" / "a"):
        writer = begun(tmp_path / "runs" / "a")
        carrier.follow(writer.path)
        carrier.round()
        before = runs_in(store_uri)["a"].data.tags
        time.sleep(0.05)
        carrier.round()
        after = runs_in(store_uri)["a"].data.tags
    assert int(after[schema.TAG_HEARTBEAT]) > int(before[schema.TAG_HEARTBEAT])
    assert int(after[schema.TAG_UPDATED]) > int(before[schema.TAG_UPDATED])
    carrier.round()
    carrier.round()
    assert states(store_uri) == {"a": ("KILLED", "killed")}


def test_a_run_begun_anew_is_followed_as_a_second_one(told, store_uri, tmp_path):
    carrier, _ = told
    run_dir = tmp_path / "runs" / "a"
    first = begun(run_dir, points=5)
    carrier.follow(first.path)
    carrier.round(now=True)
    first.close()
    rundir.set_aside(run_dir, FILE_NAME)
    second = begun(run_dir, points=1)
    second.end(state="finished", row={})
    assert carrier.finish()
    client = store.connect(store_uri)
    found = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert sorted((run.info.status, run.data.tags[schema.TAG_DELIVERED][0]) for run in found) == [
        ("FINISHED", "3"),
        ("KILLED", "6"),
    ]


def test_sync_tells_the_dead_from_the_living(store_uri, tmp_path, monkeypatch):
    run_dir = tmp_path / "runs" / "a"
    with rundir.claimed(run_dir):
        begun(run_dir, points=1).close()
        (result,) = sync(tmp_path, tracking_uri=store_uri)
        assert result.state == "running"
        shutil.copytree(tmp_path / "runs", tmp_path / "copy")  # on another machine, say, whose locks show nothing
        (result,) = sync(tmp_path / "copy", tracking_uri=store_uri)
        assert (result.state, states(store_uri)["a"]) == ("running", ("RUNNING", "running"))
    (result,) = sync(tmp_path / "runs", tracking_uri=store_uri)
    assert result.state == "running"  # it may live elsewhere: it was heard of just now
    monkeypatch.setattr(tracking, "STALE_SECONDS", 0.0)
    (result,) = sync(tmp_path / "runs", tracking_uri=store_uri)
    assert (result.state, states(store_uri)["a"]) == ("killed", ("KILLED", "killed"))
    assert read_journal(run_dir).state == "running"  # journals are only ever written by their runs
    assert agrees(tmp_path / "runs", store_uri)


def test_silent_runs_are_closed_on_demand(store_uri, tmp_path):
    writer = begun(tmp_path / "runs" / "a", sweep="beef", points=1)
    with rundir.claimed(tmp_path / "runs" / "a"):
        sync(tmp_path, tracking_uri=store_uri)
        assert close_silent("tiny", minutes=60, tracking_uri=store_uri) == []
        time.sleep(0.3)
        ((run_id, silent),) = close_silent("tiny", minutes=0.001, tracking_uri=store_uri)
        assert (run_id, states(store_uri)) == ("a", {"a": ("KILLED", "killed"), "sweep": ("KILLED", "killed")})
        assert 0.001 < silent < 10
        writer.end(state="finished", row={})
        sync(tmp_path, tracking_uri=store_uri)
    assert states(store_uri)["a"] == ("FINISHED", "finished")
    with pytest.raises(NoRunsError, match="no experiment 'none'"):
        close_silent("none", minutes=60, tracking_uri=store_uri)
    with pytest.raises(UsageError, match="minutes = 0"):
        close_silent("tiny", minutes=0, tracking_uri=store_uri)


def test_a_sweep_runs_while_any_of_its_runs_does(told, store_uri, tmp_path):
    carrier, _ = told
    writers = [begun(tmp_path / "runs" / name, sweep="beef", planned=2, run_id=name) for name in "ab"]
    for writer in writers:
        carrier.follow(writer.path)
    carrier.round(now=True)
    parents = {run.data.tags.get("mlflow.parentRunId") for name, run in runs_in(store_uri).items() if len(name) == 1}
    assert parents == {runs_in(store_uri)["sweep beef"].info.run_id}
    assert states(store_uri)["sweep"] == ("RUNNING", "running")
    writers[0].end(state="failed", row={}, error="no room")
    carrier.round(now=True)
    assert states(store_uri)["sweep"] == ("RUNNING", "running")
    writers[1].end(state="finished", row={})
    carrier.round(now=True)
    assert states(store_uri)["sweep"] == ("KILLED", "killed")  # one of two has come to its end
    writers[0].resume(step=0, versions={}, row={})
    writers[0].end(state="diverged", row={})
    carrier.round(now=True)
    assert states(store_uri)["sweep"] == ("FINISHED", "finished")


def test_a_record_that_was_delivered_and_then_lost_changes_no_other(told, store_uri, tmp_path):
    """A disk that lies about what it has: the next record must not pass for the one that is gone."""
    carrier, _ = told
    run_dir = tmp_path / "runs" / "a"
    writer = begun(run_dir, points=3)
    carrier.follow(writer.path)
    carrier.round(now=True)
    writer.close()
    with open(writer.path, "r+b") as file:
        file.truncate(writer.path.stat().st_size - 10)
    writer = JournalWriter(run_dir)
    writer.resume(step=2, versions={}, row={})
    writer.metrics(3, {"train/loss": 1 / 3})
    writer.end(state="finished", row={"loss": 1.0})
    assert carrier.finish()
    run = runs_in(store_uri)["a"]
    assert (run.info.status, run.data.tags[schema.TAG_RESUMES]) == ("FINISHED", "1")
    history = store.connect(store_uri).get_metric_history(run.info.run_id, "train/loss")
    assert {(point.step, point.value) for point in history} == {(1, 1.0), (2, 0.5), (3, 1 / 3)}
