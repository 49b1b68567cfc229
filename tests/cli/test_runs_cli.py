import json
import subprocess
import sys

import pandas as pd
import pytest

from bayeslaw import store
from bayeslaw.cli import run
from bayeslaw.runs import load_runs


@pytest.fixture
def bayeslaw(capsys):
    """Runs the command; gives exit code, stdout and stderr."""

    def call(*arguments):
        code = run(list(map(str, arguments)))
        return code, *capsys.readouterr()

    return call


def test_the_table_is_narrow_and_notes_go_to_stderr(bayeslaw):
    code, out, err = bayeslaw("runs", "isodepth-recipes", "--recipe", "truncated_bptt")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["run_id", "r", "d", "tokens", "flops", "loss"]
    assert len(lines) == 91
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["baseline/1/6/4.64e+17", "1", "384", "9.767e+08", "4.64e+17", "2.8837"]
    assert "90 runs of isodepth-recipes, data " in err
    assert "note: 29 r = 1 runs of baseline serve as the anchor" in err


def test_exclusions_and_control_characters(bayeslaw, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("run_id,n,tokens,loss,state\na\x1b[31m,1e7,1e9,3.4,\nb,1e7,1e9,,running\n")
    code, out, err = bayeslaw("runs", path)
    assert code == 0
    assert "\x1b" not in out
    assert "a\\x1b[31m" in out
    assert out.split()[:3] == ["run_id", "r", "N"]
    assert "excluded: b: state running" in err


def test_json(bayeslaw):
    code, out, _ = bayeslaw("runs", "isodepth", "--where", "budget > 1e19 and recurrences == 8", "--json")
    assert code == 0
    answer = json.loads(out)
    assert list(answer) == ["schema_version", "source", "n_runs", "data_hash", "runs", "excluded", "notes"]
    assert answer["source"] == "isodepth"
    assert answer["n_runs"] == len(answer["runs"]) == 4
    first = answer["runs"][0]
    assert (first["run_id"], first["n_once"], first["tokens"]) == ("baseline/8/18/2.15e+19", 63713664, 7606370304)
    assert answer["data_hash"] == load_runs("isodepth", where="budget > 1e19 and recurrences == 8").data_hash


def test_json_writes_missing_values_as_null(bayeslaw, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("n,tokens,loss,seed,device,state\n1e7,1e9,3.4,1,,\n2e7,1e9,3.2,,cpu,\n2e7,1e9,nan,,,diverged\n")
    code, out, _ = bayeslaw("runs", path, "--json")
    assert code == 0
    answer = json.loads(out, parse_constant=pytest.fail)
    assert [row["seed"] for row in answer["runs"]] == [1, None]
    assert [row["device"] for row in answer["runs"]] == [None, "cpu"]
    assert answer["excluded"] == [{"run_id": "line 4", "reason": "state diverged, loss nan"}]


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_out_is_read_back_as_the_same_data(bayeslaw, tmp_path, name):
    path = tmp_path / "new" / name
    code, _, err = bayeslaw("runs", "isodepth", "--out", path, "--json")
    assert code == 0
    assert f"wrote 116 runs to {path}" in err
    assert load_runs(path).data_hash == load_runs("isodepth").data_hash
    assert [entry.name for entry in path.parent.iterdir()] == [name]


def test_out_that_cannot_be_written_leaves_nothing(bayeslaw, tmp_path, monkeypatch):
    path = tmp_path / "runs.csv"
    path.write_text("before")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pandas.DataFrame.to_csv", full)
    code, out, err = bayeslaw("runs", "isodepth", "--out", path)
    assert code == 1
    assert out == ""
    assert "No space left on device" in err
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs.csv"]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ([], 2, "SOURCE"),
        (["isodpeth"], 2, "did you mean isodepth?"),
        (["isodepth", "--where", "budgt > 1"], 2, "did you mean budget?"),
        (["isodepth", "--where", "recurrences == 3"], 4, "matches --where"),
        (["isodepth", "--recipe", "hyper"], 2, "allowed: baseline"),
        (["isodepth", "--out", "runs.xlsx"], 2, "ends in .csv or .parquet"),
        (["mlflow:x", "--tracking-uri", "sqlite:////nowhere/x.db"], 1, "no MLflow database"),
        (["mlflow:x", "--tracking-uri", "http://127.0.0.1:9"], 1, "does not answer"),
        (["sync", "/nowhere"], 2, "there is no folder /nowhere"),
        (["export", "isodepth", "--out", "a.zip"], 2, "ends in .tar.xz"),
        (["import", "/nowhere/a.tar.xz", "--out", "b"], 2, "no file /nowhere/a.tar.xz"),
        (["import", "/nowhere/a.tar.xz", "--out", "b", "--column", "a=b"], 2, "with the archive of a study"),
        (["import", "/nowhere/a.csv", "--out", "b.csv"], 2, "no file /nowhere/a.csv"),
        (["curves", "isodepth", "--metric", "val/loss", "--out", "c.csv"], 2, "holds no curves"),
    ],
)
def test_errors(bayeslaw, arguments, code, named):
    got, out, err = bayeslaw("runs", *arguments)
    assert got == code
    assert named in err
    assert out == ""


def test_notes_and_exclusions_are_shown_not_sent(bayeslaw, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("run_id,n,tokens,loss,state,vocab_size\na\x1b[31m,1e7,1e9,13.4,,1000\nb\x1b[2J,1e7,1e9,,running,\n")
    code, out, err = bayeslaw("runs", path)
    assert code == 0
    assert "\x1b" not in out + err
    assert "excluded: b\\x1b[2J: state running" in err
    assert "a\\x1b[31m: 13.4" in err


def test_a_study_goes_and_comes_back(bayeslaw, tmp_path):
    assert bayeslaw("runs", "unpack", "desk-rates", "--out", tmp_path / "desk")[0] == 0
    code, out, err = bayeslaw("runs", "export", tmp_path / "desk", "--out", tmp_path / "s.tar.xz")
    assert code == 0
    assert out.startswith("42 runs of ")
    code, out, err = bayeslaw("runs", "import", tmp_path / "s.tar.xz", "--out", tmp_path / "there", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["n_runs"] == 42
    assert answer["data_hash"] == load_runs(tmp_path / "desk").data_hash
    code, out, err = bayeslaw("runs", "import", tmp_path / "s.tar.xz", "--out", tmp_path / "there")
    assert code == 2
    assert "does not exist yet" in err
    where = ("--where", "recurrences == 4")
    curves = ("--metric", "val/loss", "--out", tmp_path / "c.csv")
    code, out, err = bayeslaw("runs", "curves", tmp_path / "there", *where, *curves)
    assert code == 0
    table = pd.read_csv(tmp_path / "c.csv")
    assert list(table) == ["run_id", "step", "time", "value"]
    runs = load_runs(tmp_path / "desk", where=where[1]).runs.set_index("run_id")
    assert set(table["run_id"]) == set(runs.index)
    last = table.groupby("run_id")["value"].last()
    assert (last == runs["loss"][last.index]).all()


def test_a_foreign_table_is_imported_whole(bayeslaw, tmp_path):
    path = tmp_path / "wandb.csv"
    path.write_text("Name,State,n,step,val/loss\na,finished,10000000,2000,3.4\nb\x1b[2J,crashed,20000000,10,5\n")
    given = ("--column", "loss=val/loss", "--column", "tokens=step * 524288", "--column", "recipe='mine'")
    code, out, err = bayeslaw("runs", "import", path, "--out", tmp_path / "t.parquet", *given)
    assert code == 0
    assert out.startswith("1 runs, data ")
    assert "excluded: b\\x1b[2J: state killed, loss 5" in err
    table = load_runs(tmp_path / "t.parquet")
    assert list(table.runs["tokens"]) == [2000 * 524288]
    assert list(table.runs["recipe"]) == ["mine"]
    code, out, err = bayeslaw("runs", "import", path, "--out", path, *given)
    assert code == 2
    assert "is the file that is read" in err
    code, out, err = bayeslaw("runs", "import", path, "--out", tmp_path / "u.csv")
    assert code == 1
    assert '--column loss="val/loss"' in err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["t.parquet", "wandb.csv"]


def test_the_cache_can_be_left_out(bayeslaw, store_uri, tmp_path, monkeypatch):
    from mlflow.entities import Metric, Param

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    client = store.connect(store_uri)
    run_id = client.create_run(client.create_experiment("s", artifact_location=str(tmp_path))).info.run_id
    metrics = [Metric("tokens", 1e9, 0, 0), Metric("loss", 3.0, 0, 0)]
    client.log_batch(run_id, metrics=metrics, params=[Param("n", "10000000")])
    client.set_terminated(run_id)
    given = ("runs", "mlflow:s", "--tracking-uri", store_uri)
    code, plain, _ = bayeslaw(*given, "--no-cache")
    assert code == 0
    assert not (tmp_path / "cache").exists()
    code, out, _ = bayeslaw(*given)
    assert out == plain
    assert len(list((tmp_path / "cache").rglob("*.parquet"))) == 1


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from bayeslaw.cli import run; assert run(['runs', '--help']) == 0;"
        "assert all(run(['runs', verb, '--help']) == 0 for verb in ('sync', 'import', 'export', 'curves'));"
        "print(sorted({'pandas', 'numpy', 'mlflow', 'pyarrow', 'torch'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    for text in (
        "SOURCE",
        "--where",
        "--recipe",
        "--tracking-uri",
        "--out",
        "--json",
        "sync",
        "DIR",
        "--no-cache",
        "--column",
    ):
        assert text in out
