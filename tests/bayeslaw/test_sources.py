import json
import math
import socket
import time

import pandas as pd
import pytest

from bayeslaw import mlflow_rows, store
from bayeslaw.datasets import load_dataset
from bayeslaw.errors import NoRunsError, RunTableError, TrackingError, UsageError
from bayeslaw.inputs import inputs_of
from bayeslaw.journal import JournalWriter
from bayeslaw.runs import load_runs
from bayeslaw.schema import COLUMNS

PLAIN = "n,tokens,loss\n10000000,1e9,3.4\n20000000,1e9,3.2\n"


def published(index=0):
    """A run of the shipped table: what is known before the run, and after it."""
    row = load_dataset("isodepth").iloc[index].to_dict()
    row = {name: row[name] for name in COLUMNS if name in row and name not in ("source", "state")}
    results = {name: float(row.pop(name)) for name in [*row] if COLUMNS[name].result}
    return row, results


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# What a source may be


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"'isodeph', did you mean isodepth\?") as error:
        load_runs("isodeph")
    assert error.value.exit_code == 2
    for allowed in ("isodepth-recipes", ".csv or .parquet", "mlflow:EXPERIMENT", "folder of run journals"):
        assert allowed in error.value.allowed
    with pytest.raises(UsageError, match="mlflow: names no experiment"):
        load_runs("mlflow:")
    with pytest.raises(UsageError, match="unknown source ''"):
        load_runs("")


def test_files_that_are_not_there_or_are_something_else(tmp_path):
    with pytest.raises(UsageError, match=r"no file .*runs\.csv"):
        load_runs(tmp_path / "runs.csv")
    with pytest.raises(UsageError, match="neither CSV nor Parquet"):
        load_runs(write(tmp_path / "runs.xlsx", PLAIN))


# Files


def test_csv_and_parquet_hold_the_same_runs(tmp_path):
    expected = load_runs("isodepth")
    expected.runs.to_csv(tmp_path / "runs.csv", index=False)
    expected.runs.to_parquet(tmp_path / "RUNS.PARQUET", index=False)
    for name in ("runs.csv", "RUNS.PARQUET"):
        table = load_runs(str(tmp_path / name))
        assert table.data_hash == expected.data_hash
        pd.testing.assert_frame_equal(table.runs, expected.runs)
        assert table.source == str(tmp_path / name)


def test_a_csv_of_a_spreadsheet(tmp_path):
    content = '\ufeffn , tokens, loss ,note\r\n\r\n10000000, 1e9,3.4,"two\r\nlines"\r\n20000000,1e9,3.2,\r\n'
    table = load_runs(write(tmp_path / "t.csv", content))
    assert list(table.runs["n_unique"]) == [10_000_000, 20_000_000]
    assert table.runs["note"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("n,tokens,loss\n", "has no rows"),
        (b"PK\x03\x04\0\0\xff", "is a binary file, not CSV"),
        (b"PAR1\0\0", "is a Parquet file, not CSV"),
        (PLAIN.encode("utf-16"), "line 1: byte 0xff is not UTF-8"),
        (b"n,tokens,loss,note\n1e7,1e9,3.4,a\n1e7,1e9,3.3,caf\xe9\n", "line 3: byte 0xe9 is not UTF-8"),
        ("n,tokens,loss\n1e7,1e9\n", "line 2: 2 values under 3 columns"),
        ("n,tokens,loss\n1e7,1e9,3,4\n", "line 2: 4 values under 3 columns"),
        ('n,tokens,loss\n1e7,1e9,"3.4\n', "not CSV"),
        ("n;tokens;loss\n1e7;1e9;3,4\n", "put commas between values"),
        ("n,loss,tokens,loss\n1e7,3,1e9,3\n", "more than one column loss"),
        ("n,tokens,loss\n1e7,1e9,3.4\n\n2e7,1e9,-3.2\n", "line 4: loss is -3.2"),
        ("n,tokens,loss\n1e7,1e9,3.4\n2e7,1e9,x\n3e7,1e9,y\n", "lines 3, 4: loss is 'x', not a number"),
        ("n,tokens,loss\n1e7,1e9,\n", "line 2: loss is missing"),
        ("n,tokens,loss\n1e7,1e9,3.4\n1e7,1e9,3.4\n", "lines 2, 3: the same run"),
        ("n,tokens,loss\n35.4,1e9,3.4\n", "line 2: n is 35.4, no whole number: are these millions?"),
    ],
)
def test_broken_csv_files(tmp_path, content, named):
    with pytest.raises(RunTableError) as error:
        load_runs(write(tmp_path / "t.csv", content))
    assert named in str(error.value)
    assert "t.csv" in str(error.value)


def test_broken_parquet_files(tmp_path):
    with pytest.raises(RunTableError, match="no readable Parquet file"):
        load_runs(write(tmp_path / "t.parquet", PLAIN))
    with pytest.raises(RunTableError, match="is empty"):
        load_runs(write(tmp_path / "t.parquet", ""))
    frame = pd.DataFrame({"n": [1e7, 2e7], "tokens": [1e9, 1e9], "loss": [3.4, None]})
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(RunTableError, match="row 2: loss is missing"):
        load_runs(tmp_path / "t.parquet")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "t.csv", PLAIN)
    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(RunTableError, match=r"cannot read .*t\.csv: Permission denied"):
        load_runs(path)


# Journals


def journal(folder, index=0, *, state="finished", run_id=None, config_hash=None, **changes):
    row, results = published(index)
    row["run_id"] = run_id or row["run_id"]
    writer = JournalWriter(folder)
    writer.start(study="s", config={}, config_hash=config_hash or row["run_id"], versions={}, row=row)
    writer.metrics(1, {"train/loss": 10.0})
    if state != "running":
        writer.end(state=state, row={**results, **changes})
    writer.close()


def test_journals_at_any_depth(tmp_path):
    for index in range(4):
        journal(tmp_path / f"{index}" / "run", index)
    table = load_runs(tmp_path)
    assert table.data_hash == load_runs("isodepth", where="budget < 5e17 and recurrences == 1").data_hash
    assert table.excluded.empty


def test_journals_that_did_not_end_well(tmp_path):
    journal(tmp_path / "a", 0)
    journal(tmp_path / "b", 1, state="running")
    journal(tmp_path / "c", 2, loss=math.nan)
    journal(tmp_path / "d", 3, loss=1.797e308)
    journal(tmp_path / "e", 4, state="failed")
    journal(tmp_path / "f", 5, loss=None)
    write(tmp_path / "journal.jsonl", "")
    (tmp_path / "g").mkdir()
    write(tmp_path / "g" / "journal.jsonl", json.dumps({"event": "start", "time": 0, "row": {}}) + "\n")
    table = load_runs(str(tmp_path))
    assert len(table.runs) == 1
    reasons = dict(zip(table.excluded["run_id"], table.excluded["reason"], strict=True))
    assert len(reasons) == 7
    assert reasons["baseline/1/8/4.64e+17"] == "state running"
    assert reasons["baseline/1/10/4.64e+17"] == "state diverged, loss nan"
    assert reasons["baseline/1/12/4.64e+17"] == "state diverged, loss 1.797e+308"
    assert reasons["baseline/2/6/4.64e+17"].startswith("state failed")
    assert reasons["baseline/2/8/4.64e+17"] == "finished without loss"
    assert reasons["journal.jsonl"] == "journal.jsonl has no start record"
    assert "damaged journal" in reasons["g/journal.jsonl"]


def test_the_newest_finished_of_one_run_id_is_taken(tmp_path):
    journal(tmp_path / "old", 0, run_id="x", loss=2.9)
    journal(tmp_path / "new", 0, run_id="x", loss=2.8)
    journal(tmp_path / "newest", 0, run_id="x", state="failed", loss=2.7)
    table = load_runs(tmp_path)
    assert list(table.runs["loss"]) == [2.8]
    assert list(table.excluded["run_id"]) == ["x", "x"]
    assert list(table.excluded["reason"]) == [
        "finished run at old: new has its run_id",
        "failed run at newest: new has its run_id",
    ]


def test_folders_without_usable_journals(tmp_path):
    with pytest.raises(NoRunsError, match=r"no journal\.jsonl") as error:
        load_runs(tmp_path)
    assert error.value.exit_code == 4
    write(tmp_path / "journal.jsonl", "{}\n")
    with pytest.raises(NoRunsError, match="no start record"):
        load_runs(tmp_path)
    journal(tmp_path / "a", 0, loss=None)
    with pytest.raises(NoRunsError, match="finished without loss"):
        load_runs(tmp_path)


# MLflow


@pytest.fixture
def mlflow_store(store_uri, tmp_path):
    return Store(store_uri, tmp_path)


class Store:
    """Writes runs as the trainer does."""

    def __init__(self, uri, folder):
        self.uri = uri
        self.client = store.connect(uri)
        self.client.create_experiment("other study", artifact_location=str(folder))
        self.study = self.client.create_experiment("study", artifact_location=str(folder))

    def log(self, index=0, *, status="FINISHED", tags=(), params=None, **changes):
        from mlflow.entities import Metric, Param

        row, results = published(index)
        results |= changes
        tags = dict(tags)
        tags.setdefault("bayeslaw.run_id", row["run_id"])
        run = self.client.create_run(self.study, tags={name: text for name, text in tags.items() if text is not None})
        params = row if params is None else params
        self.client.log_batch(
            run.info.run_id,
            params=[Param(name, str(value)) for name, value in params.items()],
            metrics=[Metric(name, value, 0, 0) for name, value in results.items() if value is not None],
        )
        self.client.set_terminated(run.info.run_id, status)
        return run.info.run_id

    def load(self, **options):
        return load_runs("mlflow:study", tracking_uri=self.uri, **options)


def test_mlflow_gives_back_what_was_logged(mlflow_store, monkeypatch):
    for index in range(4):
        mlflow_store.log(index, **{"train/loss": 9.0})
    expected = load_runs("isodepth", where="budget < 5e17 and recurrences == 1")
    table = mlflow_store.load()
    assert table.data_hash == expected.data_hash
    pd.testing.assert_frame_equal(
        table.runs.drop(columns="source"), expected.runs.drop(columns=["source", "read_from"]), check_like=True
    )
    assert set(table.runs["source"]) == {"mlflow:study"}
    monkeypatch.setitem(mlflow_rows.rows_of.__kwdefaults__, "size", 3)
    assert mlflow_store.load(where="width_scale > 6").data_hash != expected.data_hash
    assert len(mlflow_store.load().runs) == 4
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store.uri)
    assert load_runs("mlflow:study").data_hash == expected.data_hash


def test_mlflow_states(mlflow_store):
    mlflow_store.log(0)
    mlflow_store.log(1, status="FAILED")
    mlflow_store.log(2, status="RUNNING")
    mlflow_store.log(3, status="KILLED")
    mlflow_store.log(4, loss=math.nan)
    mlflow_store.log(5, loss=math.inf)
    mlflow_store.log(6, tags={"bayeslaw.state": "diverged"})
    mlflow_store.log(7, loss=None)
    parent = mlflow_store.log(8)
    child = mlflow_store.log(9, tags={"mlflow.parentRunId": parent, "bayeslaw.run_id": None}, params=published(9)[0])
    table = mlflow_store.load()
    assert list(table.runs["run_id"]) == ["baseline/1/6/4.64e+17", child]
    reasons = dict(zip(table.excluded["run_id"], table.excluded["reason"], strict=True))
    names = load_dataset("isodepth")["run_id"]
    assert set(reasons) == set(names[1:8])
    assert reasons[names[1]].startswith("state failed")
    assert reasons[names[2]].startswith("state running")
    assert reasons[names[3]].startswith("state killed")
    assert reasons[names[4]] == "state diverged, loss nan"
    assert reasons[names[5]].startswith("state diverged, loss 1.797")
    assert reasons[names[6]].startswith("state diverged")
    assert reasons[names[7]] == "finished without loss"


def test_mlflow_duplicates(mlflow_store):
    first = mlflow_store.log(0, loss=2.9)
    second = mlflow_store.log(0, loss=2.8)
    mlflow_store.client.set_terminated(second, "FINISHED", end_time=2**42)
    mlflow_store.log(0, status="FAILED")
    table = mlflow_store.load()
    assert list(table.runs["loss"]) == [2.8]
    assert list(table.excluded["reason"]) == [
        f"finished run at {first}: {second} has its run_id",
        table.excluded["reason"][1],
    ]
    assert table.excluded["reason"][1].startswith("failed run at ")


def test_one_config_counts_once_whatever_its_runs_are_called(mlflow_store, tmp_path):
    old = mlflow_store.log(0, tags={"bayeslaw.run_id": "first", "bayeslaw.config_hash": "c"}, loss=2.9)
    new = mlflow_store.log(0, tags={"bayeslaw.run_id": "second", "bayeslaw.config_hash": "c"}, loss=2.8)
    mlflow_store.client.set_terminated(new, "FINISHED", end_time=2**42)
    other = mlflow_store.log(0, tags={"bayeslaw.run_id": "second", "bayeslaw.config_hash": "d"}, loss=2.7)
    mlflow_store.log(1, tags={"bayeslaw.config_hash": "e"})
    table = mlflow_store.load()
    assert list(table.runs["loss"][table.runs["run_id"] == "second"]) == [2.8]
    assert len(table.runs) == 2
    assert sorted(table.excluded.itertuples(index=False, name=None)) == [
        ("first", f"finished run at {old}: {new} has its config hash c and the run_id second"),
        ("second", f"finished run at {other}: {new} has its run_id, with another config hash (c, not d)"),
    ]
    journal(tmp_path / "s" / "a", 0, run_id="first", config_hash="c", loss=2.9)
    journal(tmp_path / "s" / "b", 0, run_id="second", config_hash="c", loss=2.8)
    table = load_runs(tmp_path / "s")
    assert list(table.runs["loss"]) == [2.8]
    assert list(table.excluded["reason"]) == ["finished run at a: b has its config hash c and the run_id second"]


def test_the_parent_of_a_sweep_is_no_run(mlflow_store):
    mlflow_store.log(0, tags={"bayeslaw.sweep": "p", "bayeslaw.run_id": None})
    mlflow_store.log(1, tags={"bayeslaw.sweep": "p"})
    table = mlflow_store.load()
    assert list(table.runs["run_id"]) == [published(1)[0]["run_id"]]
    assert table.excluded.empty


def test_runs_that_fell_silent_are_named(mlflow_store):
    mlflow_store.log(0)
    beat = int(time.time() * 1000)
    for index, silent in enumerate((0, 50, 70, 80, 90, 100), start=1):
        tags = {"bayeslaw.state": "running", "bayeslaw.heartbeat": str(beat - silent * 60_000)}
        mlflow_store.log(index, status="RUNNING", tags=tags)
    tags = {"bayeslaw.state": "finished", "bayeslaw.heartbeat": "1"}
    mlflow_store.log(7, tags=tags)
    (note,) = mlflow_store.load().notes
    assert note.startswith("4 runs say that they are running and were not heard of for 1 hour or more")
    assert f"{published(3)[0]['run_id']}, " in note
    assert published(2)[0]["run_id"] not in note
    assert " and 1 more)" in note
    assert "`bayeslaw runs close mlflow:study`" in note


def test_a_run_that_goes_on_from_another_is_one_training_run_with_it(mlflow_store, tmp_path):
    row = published(0)[0]
    for number, origin in enumerate((None, "run-0", "run-1", None)):
        config = {} if origin is None else {"continues": f"{origin}@100:0123456789abcdef"}
        params = row if origin is None else {**row, "training_run": origin}
        tags = {"bayeslaw.run_id": f"run-{number}", "bayeslaw.config_hash": str(number)}
        mlflow_store.log(0, tags=tags, params=params, tokens=1e9 * (number + 1))
        writer = JournalWriter(tmp_path / "s" / str(number))
        start = {**row, "run_id": f"run-{number}"}
        writer.start(study="s", config=config, config_hash=str(number), versions={}, row=start)
        writer.end(state="finished", row={**published(0)[1], "tokens": 1e9 * (number + 1)})
        writer.close()
    for table in (mlflow_store.load(), load_runs(tmp_path / "s")):
        names = dict(zip(table.runs["run_id"], table.runs["training_run"], strict=True))
        assert pd.isna(names.pop("run-3"))
        assert names == dict.fromkeys(("run-0", "run-1", "run-2"), "run-0")
        assert "3 runs are checkpoints of 1 training runs (column training_run)" in table.notes
        groups = inputs_of(table.runs, injection_in="once").run
        assert [list(groups.index).count(level) for level in range(len(groups.levels))] == [3, 1]


def test_flops_that_were_logged_wrongly_are_told(mlflow_store):
    row = published(0)[0]
    run = mlflow_store.log(0, params={**row, "flops_per_token": str(row["flops_per_token"] * 2)})
    mlflow_store.log(1)
    first, second = mlflow_store.load().notes
    assert first == f"flops_per_token differs from that of the architecture by up to 100.0% (run {run})"
    assert second == f"flops differs from tokens x flops_per_token by up to 50.0% (run {run})"


NASTY = ["it's", 'say "x"', "<script>alert(1)</script>", "\x1b[31mred\x07", "'; DROP TABLE runs; --", "a' OR '1'='1"]


@pytest.mark.parametrize("kind", ["csv", "mlflow", "journals"])
def test_names_are_data(mlflow_store, tmp_path, kind):
    frame = pd.DataFrame({"run_id": NASTY, "n": 10_000_000, "tokens": 1e9, "loss": [3.4 + i / 10 for i in range(6)]})
    frame["recipe"] = NASTY
    source = {"source": tmp_path / "t.csv"}
    if kind == "csv":
        frame.to_csv(tmp_path / "t.csv", index=False)
    elif kind == "mlflow":
        for row in frame.to_dict("records"):
            results = {name: row.pop(name) for name in ("tokens", "loss")}
            tags = {"bayeslaw.run_id": row.pop("run_id"), "bayeslaw.config_hash": row["recipe"]}
            mlflow_store.log(0, tags=tags, params=row, budget=None, flops=None, **results)
        source = {"source": "mlflow:study", "tracking_uri": mlflow_store.uri}
    else:
        source = {"source": tmp_path / "s"}
        for number, row in enumerate(frame.to_dict("records")):
            results = {name: row.pop(name) for name in ("tokens", "loss")}
            writer = JournalWriter(tmp_path / "s" / str(number))
            writer.start(study="s", config={}, config_hash=str(number), versions={}, row=row)
            writer.end(state="finished", row=results)
            writer.close()
    for _ in range(2):
        table = load_runs(**source)
        assert sorted(table.runs["run_id"]) == sorted(NASTY)
        assert "\x1b" not in str(table)
        assert "\\x1b[31mred\\x07" in str(table)
        for name in NASTY:
            found = load_runs(**source, where=f"recipe == {name!r} and state == 'finished'")
            assert list(found.runs["run_id"]) == [name]


def test_a_filter_sees_finished_runs_alone(mlflow_store):
    mlflow_store.log(0)
    mlflow_store.log(1, status="RUNNING")
    where = "recurrences in (1, 4) and budget >= 1e17 and state == 'finished'"
    assert len(mlflow_store.load(where=where).runs) == 1
    with pytest.raises(NoRunsError, match="1 others are excluded whatever a filter says") as error:
        mlflow_store.load(where="state == 'running'")
    assert error.value.exit_code == 4
    assert "and the excluded ones with their states" in error.value.do
    with pytest.raises(NoRunsError) as error:
        mlflow_store.load(where="recurrences == 3")
    assert "whatever" not in error.value.what


def test_mlflow_experiments_of_other_people(mlflow_store):
    mlflow_store.log(0, params={"lr": "1e-3", "hidden": "64"}, loss=None, tokens=None, accuracy=0.5)
    with pytest.raises(RunTableError, match="has the metric tokens or loss") as error:
        mlflow_store.load()
    assert "accuracy" in str(error.value)
    mlflow_store.log(1, params={"lr": "1e-3", "hidden": "64"})
    with pytest.raises(RunTableError, match="lacks the param or metric n; it has") as error:
        mlflow_store.load()
    assert "lr" in str(error.value)
    assert "n_shared" in error.value.allowed


def test_mlflow_params_that_are_no_numbers_name_the_run(mlflow_store):
    run = mlflow_store.log(0, params={**published(0)[0], "recurrences": "many"})
    with pytest.raises(RunTableError, match=f"run {run}: recurrences is 'many', not a number"):
        mlflow_store.load()


def test_mlflow_plain_tables(mlflow_store):
    mlflow_store.log(0, params={"n": "10000000", "optimiser": "adam", "seed": "None", "loss": "mse"})
    table = mlflow_store.load(where="optimiser == 'adam'")
    assert "seed" not in table.runs
    assert list(table.runs["n_unique"]) == [10_000_000]


def test_unknown_and_empty_experiments(mlflow_store):
    with pytest.raises(NoRunsError, match="no experiment 'studdy'") as error:
        load_runs("mlflow:studdy", tracking_uri=mlflow_store.uri)
    assert error.value.exit_code == 4
    assert error.value.allowed.startswith("study, ")
    assert "other study" in error.value.allowed
    assert "Default" in error.value.allowed
    with pytest.raises(NoRunsError, match="has no runs"):
        mlflow_store.load()
    mlflow_store.client.delete_experiment(mlflow_store.study)
    with pytest.raises(NoRunsError, match="no experiment 'study'"):
        mlflow_store.load()


def test_a_server_that_is_not_there_or_never_answers(monkeypatch):
    monkeypatch.setattr(store, "CONNECT_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        uri = f"http://user:secret@127.0.0.1:{port}"
        with pytest.raises(TrackingError, match="does not answer") as error:
            load_runs("mlflow:study", tracking_uri=uri)
        silent.listen()
        with pytest.raises(TrackingError, match="does not answer"):
            load_runs("mlflow:study", tracking_uri=f"http://127.0.0.1:{port}")
    assert "secret" not in str(error.value)
    assert error.value.exit_code == 1


def test_a_refusal_in_the_middle_is_a_tracking_error(mlflow_store, monkeypatch):
    from mlflow.exceptions import MlflowException

    def refuse(*_, **__):
        raise MlflowException("gone")

    monkeypatch.setattr("mlflow.MlflowClient.search_runs", refuse)
    with pytest.raises(TrackingError, match="refuses to list the runs of 'study': gone"):
        mlflow_store.load()


def test_a_database_that_is_not_there(tmp_path):
    with pytest.raises(TrackingError, match="no MLflow database"):
        load_runs("mlflow:study", tracking_uri=f"sqlite:///{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()
