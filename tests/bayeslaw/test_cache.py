"""What is kept of MLflow between queries: every query gives what one without it gives, and fetches what has changed."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from bayeslaw import cache, mlflow_rows, store
from bayeslaw.errors import TrackingError
from bayeslaw.runs import load_runs

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
THEN = int(time.time() * 1000) - 10 * DAY


@pytest.fixture
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "bayeslaw" / "runs"


@pytest.fixture
def study(store_uri, tmp_path, caches, monkeypatch):
    monkeypatch.setattr(cache, "_SMALL_PAGE", 2)
    return Study(store_uri, tmp_path)


class Study:
    """Writes plain runs as deliveries of ours do, or as other programs do; asks and counts what was fetched."""

    def __init__(self, uri, folder):
        self.uri = uri
        self.client = store.connect(uri)
        self.id = self.client.create_experiment("study", artifact_location=str(folder))
        self.count = 0

    def add(self, *, updated=None, loss=3.0, status="FINISHED", start=THEN, end=THEN, name=None):
        from mlflow.entities import Metric, Param, RunTag

        self.count += 1
        run_id = self.client.create_run(self.id, start_time=start).info.run_id
        tags = {"bayeslaw.updated": str(updated), "bayeslaw.run_id": name or f"run-{self.count}"} if updated else {}
        self.client.log_batch(
            run_id,
            params=[Param("n", str(10_000_000 + self.count))],
            metrics=[Metric("tokens", 1e9, 0, 0), Metric("loss", loss, 0, 0)],
            tags=[RunTag(key, text) for key, text in tags.items()],
        )
        if status != "RUNNING":
            self.client.set_terminated(run_id, status, end)
        return run_id

    def change(self, run_id, loss, *, updated=None):
        self.client.log_metric(run_id, "loss", loss, step=1)
        if updated is not None:
            self.client.set_tag(run_id, "bayeslaw.updated", str(updated))

    def losses(self):
        """The losses as a query with the cache gives them, which must be those of one without."""
        table, plain = (load_runs("mlflow:study", tracking_uri=self.uri, cache=cached) for cached in (True, False))
        first, second = (sorted(zip(found.runs["run_id"], found.runs["loss"], strict=True)) for found in (table, plain))
        assert first == second
        assert table.data_hash == plain.data_hash
        assert table.notes == plain.notes
        return sorted(table.runs["loss"])


@pytest.fixture
def fetched(monkeypatch):
    """Ids of the runs that come from the store."""
    ids = []
    row_of = mlflow_rows.row_of

    def counting(run):
        ids.append(run.info.run_id)
        return row_of(run)

    monkeypatch.setattr(mlflow_rows, "row_of", counting)
    return ids


def ask(study):
    return load_runs("mlflow:study", tracking_uri=study.uri)


def test_what_has_not_changed_is_not_fetched_again(study, fetched):
    for day in range(9):
        study.add(updated=THEN + day * DAY, start=THEN + day * DAY, end=THEN + day * DAY, loss=3.0 + day / 100)
    assert len(ask(study).runs) == 9
    assert len(fetched) == 9
    fetched.clear()
    assert len(ask(study).runs) == 9
    assert len(set(fetched)) == 2  # one page


def test_what_a_delivery_changed_is_fetched_however_old_the_run(study, fetched):
    old = study.add(updated=THEN)
    for day in range(1, 4):
        study.add(updated=THEN + day * DAY, end=THEN + day * DAY)
    assert study.losses() == [3.0, 3.0, 3.0, 3.0]
    study.change(old, 2.5, updated=THEN + 9 * DAY)
    assert study.losses() == [2.5, 3.0, 3.0, 3.0]
    late = study.add(updated=THEN + 9 * DAY - 5 * MINUTE, loss=2.4)  # by a clock that is behind
    assert study.losses()[0] == 2.4
    study.change(late, 2.3, updated=THEN + 9 * DAY - 4 * MINUTE)
    assert study.losses()[0] == 2.3


def test_many_that_changed_are_all_fetched(study):
    runs = [study.add(updated=THEN + day * DAY) for day in range(7)]
    study.losses()
    for number, run_id in enumerate(runs[:5]):
        study.change(run_id, 2.0 + number / 10, updated=THEN + 9 * DAY + number * 60 * MINUTE)
    assert study.losses() == [2.0, 2.1, 2.2, 2.3, 2.4, 3.0, 3.0]
    for number, run_id in enumerate(runs[:3]):  # by a clock that is hours behind: what is found leads on to the next
        study.change(run_id, 1.0 + number / 10, updated=THEN + 9 * DAY + (210 - number * 60) * MINUTE)
    assert study.losses()[:3] == [1.0, 1.1, 1.2]


@pytest.mark.parametrize("ahead", [False, True])
def test_clocks_behind_and_ahead_hide_nothing(study, ahead):
    times = {"start": THEN - 2 * DAY, "end": THEN - 2 * DAY}
    old = study.add(updated=THEN - DAY, **times)
    if ahead:
        study.add(updated=THEN + 1000 * DAY, **times)
    for minute in range(5):
        study.add(updated=THEN - minute * MINUTE, **times)
    study.losses()
    study.change(old, 2.5, updated=THEN - 9 * MINUTE)
    assert study.losses()[0] == 2.5


def test_runs_of_other_programs(study):
    now = int(time.time() * 1000)
    for day in range(4):
        study.add(start=THEN + day * DAY, end=THEN + day * DAY)
    running = study.add(start=THEN, status="RUNNING", loss=2.9)
    assert study.losses() == [3.0] * 4
    study.client.set_terminated(running, "FINISHED", now)
    assert study.losses() == [2.9, *[3.0] * 4]
    study.add(start=now, end=now, loss=2.8)
    assert study.losses()[0] == 2.8
    study.add(start=THEN, end=THEN, loss=2.7)  # brought in from elsewhere, with its times
    assert study.losses()[0] == 2.7


def test_a_run_that_ended_in_the_past_while_it_was_known_as_running(study):
    for day in range(4):
        study.add(start=THEN + day * DAY, end=THEN + day * DAY)
    running = study.add(start=THEN, status="RUNNING", loss=2.9)
    study.losses()
    study.client.set_terminated(running, "FINISHED", THEN + MINUTE)
    assert study.losses()[0] == 2.9


@pytest.mark.parametrize("tag", ["", "soon", "-5", "9" * 5000, "\u00b2", "1e12"])
def test_a_tag_that_is_no_time_is_none(study, tag):
    run_id = study.add(updated=THEN)
    study.add(updated=THEN + DAY)
    for name in ("bayeslaw.updated", "bayeslaw.heartbeat"):
        study.client.set_tag(run_id, name, tag)
    study.client.set_tag(run_id, "bayeslaw.state", "running")
    assert study.losses() == [3.0]
    study.change(run_id, 2.0)
    study.client.set_tag(run_id, "bayeslaw.state", "finished")
    study.client.set_tag(run_id, "bayeslaw.updated", str(THEN + 2 * DAY))
    assert study.losses() == [2.0, 3.0]


def test_the_collector_is_left_as_it_was(study):
    import gc

    study.add(updated=THEN)
    for enabled in (False, True):
        (gc.enable if enabled else gc.disable)()
        try:
            ask(study)
            assert gc.isenabled() == enabled
        finally:
            gc.enable()


def test_deleted_and_restored_runs(study):
    runs = [study.add(updated=THEN + day * DAY, loss=2.0 + day / 10) for day in range(5)]
    assert len(study.losses()) == 5
    study.client.delete_run(runs[1])
    assert study.losses() == [2.0, 2.2, 2.3, 2.4]
    study.client.delete_run(runs[0])
    study.add(updated=THEN + 8 * DAY, loss=3.0)
    assert study.losses() == [2.2, 2.3, 2.4, 3.0]
    study.client.restore_run(runs[1])
    assert study.losses() == [2.1, 2.2, 2.3, 2.4, 3.0]
    study.client.restore_run(runs[0])
    study.client.delete_run(runs[2])
    assert study.losses() == [2.0, 2.1, 2.3, 2.4, 3.0]


@pytest.mark.parametrize("seed", [0, 1])
def test_whatever_happens_a_query_gives_what_a_full_read_gives(study, seed):
    draw = random.Random(seed)
    now, ours, others, running, deleted = THEN, [], [], [], []
    ours += [study.add(updated=THEN), study.add(updated=THEN + MINUTE)]
    for _ in range(12):
        for _ in range(draw.randrange(1, 4)):
            now += draw.randrange(1, 60) * MINUTE
            stamp = now + draw.randrange(-4, 5) * MINUTE  # clocks differ
            match draw.choice(["ours", "change", "change", "other", "begin", "end", "delete", "restore"]):
                case "ours":
                    ours.append(study.add(updated=stamp, start=stamp, end=stamp, loss=draw.uniform(2, 3)))
                case "change" if ours:
                    study.change(draw.choice(ours), draw.uniform(2, 3), updated=stamp)
                case "other":
                    others.append(study.add(start=stamp, end=stamp, loss=draw.uniform(2, 3)))
                case "begin":
                    running.append(study.add(start=stamp, status="RUNNING", loss=draw.uniform(2, 3)))
                case "end" if running:
                    study.client.set_terminated(running.pop(), "FINISHED", stamp)
                case "delete" if len(ours) + len(others) > 2:
                    where = draw.choice([runs for runs in (ours, others) if runs])
                    deleted.append(where.pop(draw.randrange(len(where))))
                    study.client.delete_run(deleted[-1])
                case "restore" if deleted:
                    ours.append(deleted.pop())
                    study.client.restore_run(ours[-1])
        assert study.losses()


def test_an_experiment_made_anew_is_another_one(study, caches, monkeypatch):
    study.add(loss=2.0)
    assert study.losses() == [2.0]
    (before,) = caches.iterdir()
    experiment = study.client.get_experiment(study.id)
    file = cache.CacheFile(study.uri, experiment.experiment_id, experiment.creation_time)
    assert file.path == before
    assert cache.CacheFile(study.uri, experiment.experiment_id, experiment.creation_time + 1).path != before
    monkeypatch.chdir("/")
    assert cache.CacheFile("sqlite:///a.db", "1", 1).path != cache.CacheFile("sqlite:////tmp/a.db", "1", 1).path


def test_the_password_of_a_store_is_nowhere(caches):
    file = cache.CacheFile("postgresql+psycopg://me:secret@host/db", "1", 1)
    file.save({})
    assert b"secret" not in file.path.read_bytes()
    assert file.path == cache.CacheFile("postgresql+psycopg://me:other@host/db", "1", 1).path
    assert file.path != cache.CacheFile("postgresql+psycopg://you:other@host/db", "1", 1).path
    assert file.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"PAR1 something", "foreign", "rows", "types"])
def test_a_damaged_or_foreign_file_is_made_anew_and_told(study, caches, content):
    study.add(updated=THEN)
    before = ask(study)
    (path,) = caches.iterdir()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        label = pyarrow.parquet.read_schema(path).metadata if content != "foreign" else {b"other": b"1"}
        rows = {"foreign": ["[]"], "rows": ['["a", "FINISHED"]'], "types": ['["a", "FINISHED", "x", 1, {}, {}, {}]']}
        table = pa.table({"row": rows[content]}).replace_schema_metadata(label)
        pyarrow.parquet.write_table(table, path)
    table = ask(study)
    assert table.data_hash == before.data_hash
    assert table.notes == (f"the cache of these runs was damaged and is made anew: {path}",)
    assert ask(study).notes == ()
    assert [entry.name for entry in caches.iterdir()] == [path.name]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(study, caches):
    study.add(updated=THEN)
    caches.parent.mkdir(parents=True)
    caches.write_text("a file")
    table = ask(study)
    assert len(table.runs) == 1
    assert "not cached" in table.notes[0]
    assert caches.read_text() == "a file"


def test_two_readers_at_once(study, caches):
    for day in range(5):
        study.add(updated=THEN + day * DAY)
    found = []
    readers = [threading.Thread(target=lambda: found.append(ask(study).data_hash)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(list(caches.iterdir())) == 1


def test_the_cache_lies_where_the_system_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = cache.CacheFile("http://localhost:5000", "1", 1)
    for home in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert file.path.parent == tmp_path / ".cache" / "bayeslaw" / "runs"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert file.path.parent == tmp_path / "other" / "bayeslaw" / "runs"


def test_filters_hold_nothing_that_a_user_wrote(study, monkeypatch):
    filters = []
    search = type(study.client).search_runs

    def heard(client, *arguments, **options):
        filters.append((*arguments[1:2], options.get("filter_string", ""), *options.get("order_by", ())))
        return search(client, *arguments, **options)

    monkeypatch.setattr("mlflow.MlflowClient.search_runs", heard)
    study.add(updated=THEN, name="x' OR 1=1 --", status="RUNNING")
    study.add(updated=THEN)
    ask(study)
    ask(study)
    assert len(filters) > 5
    assert not [text for texts in filters for text in texts if "OR" in text.split()]


def test_a_store_that_refuses_is_an_error_though_runs_are_cached(study, monkeypatch):
    from mlflow.exceptions import MlflowException

    study.add(updated=THEN)
    ask(study)

    def refuse(*_, **__):
        raise MlflowException("gone")

    monkeypatch.setattr("mlflow.MlflowClient.search_runs", refuse)
    with pytest.raises(TrackingError, match="gone"):
        ask(study)


def test_sqlite_learns_how_many_tags_there_are(study):
    import sqlite3

    for day in range(5):
        study.add(updated=THEN + day * DAY)
    ask(study)
    ask(study)
    path = Path(study.uri.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_stat1 WHERE tbl = 'tags'").fetchone()[0] > 0
    os.chmod(path, 0o400)
    assert len(ask(study).runs) == 5
