"""Journals into MLflow: all of it, once, whatever happens on the way."""

from __future__ import annotations

import json
import math
import shutil
import socket
import time
from pathlib import Path

import pytest

from bayeslaw import schema, store
from bayeslaw.errors import NoRunsError, TrackingError
from bayeslaw.journal import FILE_NAME, JournalWriter, find_journals, read_journal
from bayeslaw.runs import load_runs
from trainer import delivery, loop, rundir, tracking
from trainer.config import TrainConfig
from trainer.delivery import Delivery
from trainer.execution import Execution
from trainer.tracking import sync


def journal_of(out):
    (path,) = find_journals(out)
    return read_journal(path)


def runs_in(uri, study="tiny"):
    client = store.connect(uri)
    experiment = client.get_experiment_by_name(study)
    return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))


def histories(uri, run):
    """Every metric's points, as (step, time, text of the value)."""
    client = store.connect(uri)
    return {
        name: sorted((p.step, p.timestamp, repr(p.value)) for p in client.get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
    }


def mark(journal):
    """What MLflow's tag says when all of a journal is there."""
    return f"{len(journal.records)} {json.loads(journal.path.read_text().splitlines()[-1])['crc']}"


def expected_histories(journal):
    points = {}
    for record in journal.metrics:
        for name, value in record["values"].items():
            points.setdefault(name, []).append((record["step"], int(record["time"] * 1000), repr(value)))
    for name, value in journal.end["row"].items():
        points[name] = [(48, int(journal.end["time"] * 1000), repr(float(value)))]
    return {name: sorted(values) for name, values in points.items()}


def ended(run_dir, state, *, error=None, **row):
    """A journal of a run that ended in ``state``."""
    writer = JournalWriter(run_dir)
    start = {"run_id": f"of/{state}", "seed": 0, "recurrences": 2.0, "budget": 1e9, "width_scale": 0.25}
    writer.start(study="tiny", config={"seed": 0}, config_hash=f"hash of {state}", versions={}, row=start)
    writer.metrics(1, {"train/loss": 5.0})
    writer.metrics(2, {"train/loss": math.nan, "train/learning_rate": math.inf})
    writer.end(state=state, row=row, error=error)
    writer.close()


class Breaking:
    """A client whose connection breaks at the n-th call that writes, before or after the store has it."""

    def __init__(self, client, number, before):
        self.client, self.left, self.before = client, number, before

    def __getattr__(self, name):
        method = getattr(self.client, name)
        if not name.startswith(("log_", "set_", "create_", "update_", "delete_")):
            return method

        def call(*arguments, **options):
            self.left -= 1
            if self.left == 0 and self.before:
                raise ConnectionError("cut")
            answer = method(*arguments, **options)
            if self.left == 0:
                raise ConnectionError("cut")
            return answer

        return call


def test_delivered_whole_and_once(finished, store_uri):
    journal = journal_of(finished)
    (result,) = sync(finished, tracking_uri=store_uri)
    assert (result.run_id, result.state, result.error) == (journal.run_id, "finished", None)
    assert result.records == result.delivered == len(journal.records)
    (run,) = runs_in(store_uri)
    assert run.info.run_id == result.mlflow_run_id
    assert run.info.run_name == journal.run_id
    assert run.info.status == "FINISHED"
    assert run.info.start_time == int(journal.start["time"] * 1000)
    assert run.info.end_time == int(journal.end["time"] * 1000)
    assert histories(store_uri, run) == expected_histories(journal)
    design = {name: value for name, value in journal.start["row"].items() if not schema.COLUMNS[name].result}
    assert set(run.data.params) == set(design)
    assert run.data.params["n_once"] == str(design["n_once"])
    assert float(run.data.params["flops_per_token"]) == design["flops_per_token"]
    tags = {name: text for name, text in run.data.tags.items() if name.startswith(schema.TAG_PREFIX)}
    assert tags == {
        schema.TAG_RUN_ID: journal.run_id,
        schema.TAG_CONFIG_HASH: journal.start["config_hash"],
        schema.TAG_CODE_VERSION: journal.start["versions"]["bayeslaw"],
        schema.TAG_STATE: "finished",
        schema.TAG_DELIVERED: mark(journal),
        schema.TAG_RECIPE: "baseline",
        schema.TAG_BUDGET: run.data.params["budget"],
        schema.TAG_HOST: socket.gethostname(),
        schema.TAG_HEARTBEAT: str(int(journal.end["time"] * 1000)),
        schema.TAG_UPDATED: run.data.tags[schema.TAG_UPDATED],
    }
    folder = Path(run.info.artifact_uri.removeprefix("file://"))
    assert folder.is_relative_to(Path(store_uri.removeprefix("sqlite:///")).parent)
    assert json.loads((folder / "config.json").read_text()) == journal.start["config"]
    lines = (folder / "curve.csv").read_text().splitlines()
    assert lines[0] == "time,step,metric,value"
    assert len(lines) == 1 + sum(len(record["values"]) for record in journal.metrics)

    again = sync(finished, tracking_uri=store_uri)
    assert [entry.delivered for entry in again] == [0]
    (same,) = runs_in(store_uri)
    assert histories(store_uri, same) == expected_histories(journal)
    assert same.info.end_time == run.info.end_time


def test_read_back_as_the_journals_say(finished, store_uri):
    sync(finished, tracking_uri=store_uri)
    tracked = load_runs("mlflow:tiny", tracking_uri=store_uri)
    assert tracked.data_hash == load_runs(finished).data_hash


@pytest.mark.parametrize("before", [True, False])
def test_cut_anywhere_and_taken_up_again(finished, store_uri, monkeypatch, before):
    """Each attempt breaks one call later than the last; in the end every point is there once."""
    monkeypatch.setattr(delivery, "BATCH_POINTS", 4)
    journal = journal_of(finished)
    client = tracking.connect(store_uri)
    breaks = 0
    for number in range(1, 30):
        try:
            Delivery(Breaking(client, number, before), journal.path, store_uri).push()
        except ConnectionError:
            breaks += 1
        else:
            break
    assert breaks >= 4
    (run,) = runs_in(store_uri)
    assert histories(store_uri, run) == expected_histories(journal)
    assert run.info.status == "FINISHED"
    assert run.data.tags[schema.TAG_DELIVERED] == mark(journal)


def test_how_runs_end(store_uri, tmp_path):
    ended(tmp_path / "a", "diverged", tokens=256)
    ended(tmp_path / "b", "failed", error="MemoryError: no room")
    ended(tmp_path / "c", "killed")
    sync(tmp_path, tracking_uri=store_uri)
    runs = {run.data.tags[schema.TAG_STATE]: run for run in runs_in(store_uri)}
    assert {state: run.info.status for state, run in runs.items()} == {
        "diverged": "FAILED",
        "failed": "FAILED",
        "killed": "KILLED",
    }
    assert runs["failed"].data.tags["bayeslaw.error"] == "MemoryError: no room"
    assert runs["diverged"].data.metrics["tokens"] == 256
    assert math.isnan(runs["diverged"].data.metrics["train/loss"])
    assert runs["diverged"].data.params["recurrences"] == "2"
    assert runs["diverged"].data.params["budget"] == "1000000000"
    assert runs["diverged"].data.params["width_scale"] == "0.25"
    assert [entry.delivered for entry in sync(tmp_path, tracking_uri=store_uri)] == [0, 0, 0]


def resumed(run_dir):
    """Writes, part by part, the journal of a run of 40 steps that was stopped twice; the second time outright."""
    writer = JournalWriter(run_dir)
    start = {"run_id": "of/resumes", "seed": 0, "recurrences": 2.0, "budget": 1e9, "device": "x"}
    writer.start(study="tiny", config={"seed": 0}, config_hash="hash", versions={}, row=start)
    for step, loss in ((10, 5.0), (20, 4.0), (30, math.nan), (40, 3.0)):
        writer.metrics(step, {"train/loss": loss, "train/learning_rate": 0.1})
    writer.end(state="killed", row={"tokens": 40}, error="stopped by SystemExit")
    yield
    writer.resume(step=20, versions={}, row={"device": "x"})
    writer.metrics(30, {"train/loss": math.nan, "train/learning_rate": 0.1})
    writer.metrics(40, {"train/loss": 3.5, "train/learning_rate": 0.1})
    yield
    writer.resume(step=10, versions={}, row={"device": "x"})
    writer.metrics(20, {"train/loss": 4.0, "train/learning_rate": 0.1})
    writer.metrics(30, {"train/loss": 2.5, "train/learning_rate": 0.1})
    writer.end(state="finished", row={"tokens": 30, "loss": 2.5})
    writer.close()
    yield


def resumed_histories(journal):
    """What MLflow must have of it: every point once, and again where it came out differently."""
    at = [int(record["time"] * 1000) for record in journal.records]
    rates = [(step, at[position], "0.1") for step, position in ((10, 1), (20, 2), (30, 3), (40, 4))]
    losses = [(10, at[1], "5.0"), (20, at[2], "4.0"), (30, at[3], "nan"), (40, at[4], "3.0"), (40, at[8], "3.5")]
    return {
        "train/learning_rate": rates,
        "train/loss": sorted([*losses, (30, at[11], "2.5")]),
        "tokens": sorted([(40, at[5], "40.0"), (40, at[12], "30.0")]),
        "loss": [(40, at[12], "2.5")],
    }


def curve_of(run):
    return (Path(run.info.artifact_uri.removeprefix("file://")) / "curve.csv").read_text().splitlines()


@pytest.mark.parametrize("by", ["anyone", "its follower", "sync at the end"])
def test_a_resumed_run_goes_on_as_the_same_run(store_uri, tmp_path, by):
    client = tracking.connect(store_uri)
    path = tmp_path / "run" / FILE_NAME
    follower = None
    seen = []
    for _ in resumed(tmp_path / "run"):
        if by != "sync at the end":
            if follower is None or by == "anyone":
                follower = Delivery(client, path, store_uri)
            follower.push()
            (run,) = runs_in(store_uri)
            tags = run.data.tags
            seen.append(
                (run.info.status, tags[schema.TAG_STATE], tags.get(schema.TAG_RESUMES), "bayeslaw.error" in tags)
            )
    if by != "sync at the end":
        assert seen == [
            ("KILLED", "killed", None, True),
            ("RUNNING", "running", "1", False),
            ("FINISHED", "finished", "2", False),
        ]
    (result,) = sync(tmp_path / "run", tracking_uri=store_uri)
    journal = read_journal(path)
    assert result.delivered == (len(journal.records) if by == "sync at the end" else 0)
    (run,) = runs_in(store_uri)
    assert run.info.status == "FINISHED"
    assert run.info.end_time == int(journal.end["time"] * 1000)
    assert run.data.tags[schema.TAG_RESUMES] == "2"
    assert histories(store_uri, run) == resumed_histories(journal)
    assert run.data.metrics["tokens"] == 30  # the later end, though it came at an earlier step
    losses = [line.split(",")[1::2] for line in curve_of(run) if "train/loss" in line]
    assert losses == [["10", "5.0"], ["20", "4.0"], ["30", "2.5"]]


@pytest.mark.parametrize("before", [True, False])
def test_a_resumed_run_cut_anywhere_and_taken_up_again(store_uri, tmp_path, monkeypatch, before):
    monkeypatch.setattr(delivery, "BATCH_POINTS", 3)
    client = tracking.connect(store_uri)
    path = tmp_path / "run" / FILE_NAME
    breaks = 0
    for _ in resumed(tmp_path / "run"):
        for number in range(1, 40):
            try:
                Delivery(Breaking(client, number, before), path, store_uri).push()
            except ConnectionError:
                breaks += 1
            else:
                break
    assert breaks >= 9
    (run,) = runs_in(store_uri)
    journal = read_journal(path)
    assert histories(store_uri, run) == resumed_histories(journal)
    assert (run.info.status, run.data.tags[schema.TAG_STATE]) == ("FINISHED", "finished")
    assert run.data.tags[schema.TAG_DELIVERED] == mark(journal)
    assert "bayeslaw.error" not in run.data.tags


def test_a_copy_left_behind_sets_nothing_back(store_uri, tmp_path):
    parts = resumed(tmp_path / "run")
    next(parts)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    list(parts)
    sync(tmp_path / "run", tracking_uri=store_uri)
    (result,) = sync(tmp_path / "copy", tracking_uri=store_uri)
    assert result.delivered == 0
    (run,) = runs_in(store_uri)
    assert (run.info.status, run.data.tags[schema.TAG_DELIVERED]) == ("FINISHED", mark(read_journal(tmp_path / "run")))


def test_a_second_attempt_is_a_second_run(finished, store_uri):
    """The first, of which MLflow knew only the beginning, is closed as killed and keeps its points."""
    whole = journal_of(finished)
    lines = whole.path.read_text().splitlines(keepends=True)
    whole.path.write_text("".join(lines[:3]))
    with rundir.claimed(whole.path.parent):
        sync(finished, tracking_uri=store_uri)
    assert [run.info.status for run in runs_in(store_uri)] == ["RUNNING"]
    rundir.set_aside(whole.path.parent, whole.path.name)
    time.sleep(0.01)
    writer = JournalWriter(whole.path.parent)
    known = ("study", "config", "config_hash", "versions", "row")
    writer.start(**{name: whole.start[name] for name in known})
    for record in whole.metrics:
        writer.metrics(record["step"], record["values"])
    writer.end(state="finished", row=whole.end["row"])
    writer.close()
    whole = journal_of(finished)
    sync(finished, tracking_uri=store_uri)
    runs = {run.info.status: run for run in runs_in(store_uri)}
    assert set(runs) == {"KILLED", "FINISHED"}
    assert runs["KILLED"].data.tags[schema.TAG_STATE] == "killed"
    assert histories(store_uri, runs["FINISHED"]) == expected_histories(whole)


def test_a_damaged_journal_does_not_hold_up_the_others(finished, store_uri, tmp_path):
    (finished / "broken").mkdir()
    (finished / "broken" / FILE_NAME).write_text("{}\n")
    told = []
    results = sync(finished, tracking_uri=store_uri, progress=told.append)
    assert told == results
    assert [result.error is None for result in results] == [False, True]
    assert "no start record" in results[0].error
    assert len(runs_in(store_uri)) == 1


def test_sync_without_anything_to_sync(finished, store_uri, tmp_path):
    with pytest.raises(NoRunsError, match="no run journal at or below"):
        sync(tmp_path / "nowhere", tracking_uri=store_uri)
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError, match="cannot make the MLflow database"):
        sync(finished, tracking_uri=f"sqlite:///{tmp_path}/file/mlflow.db")


def test_a_deleted_experiment_is_named(finished, store_uri):
    client = store.connect(store_uri)
    client.delete_experiment(client.create_experiment("tiny", artifact_location="file:///nowhere"))
    (result,) = sync(finished, tracking_uri=store_uri)
    assert "experiment 'tiny' is deleted" in result.error


def test_a_copy_of_the_folder_is_the_same_run(finished, store_uri, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    sync(finished, tracking_uri=store_uri)
    (result,) = sync(tmp_path / "copy", tracking_uri=store_uri)
    assert result.delivered == 0
    assert len(runs_in(store_uri)) == 1


def test_a_damaged_journal_goes_on_after_its_last_whole_line(fields, store_uri, tmp_path, capsys):
    """As the same run of MLflow, with the curve up to the damage."""
    execution = Execution(checkpoint_every=12)
    config = TrainConfig.of(**fields)
    loop.train(config, tmp_path, study="tiny", quiet=True, execution=execution)
    sync(tmp_path, tracking_uri=store_uri)
    path = journal_of(tmp_path).path
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3].replace("train/loss", "train/lost") + "".join(lines[4:]))
    loop.train(config, tmp_path, study="tiny", execution=execution)
    told = capsys.readouterr().err
    assert "kept as journal.jsonl.1; a new one goes on after its last whole line" in told
    journal = journal_of(tmp_path)
    assert [record["event"] for record in journal.records[:4]] == ["start", "metrics", "metrics", "resume"]
    assert journal.state == "finished"
    sync(path.parent, tracking_uri=store_uri)
    (run,) = runs_in(store_uri)
    assert (run.info.status, run.data.tags[schema.TAG_DELIVERED]) == ("FINISHED", mark(journal))
    path.write_text("rubbish\n")
    loop.train(config, tmp_path, study="tiny", execution=execution)
    assert "the curve up to now is not in it" in capsys.readouterr().err
    assert journal_of(tmp_path).state == "finished"
