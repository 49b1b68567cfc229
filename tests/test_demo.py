"""The main job as a user starts it: `bayeslaw demo`, twice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Folder, answer and progress of one whole demo."""
    out = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "bayeslaw", "demo", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout), done.stderr


def test_everything_is_there(demo):
    out, answer, progress = demo
    for name in ("report.html", "fit.nc", "runs.csv", "allocation.json", "mlflow.db"):
        assert (out / name).stat().st_size > 0, name
    allocation = json.loads((out / "allocation.json").read_text())
    assert allocation["recommended"] == answer["recommended"]
    assert answer["recommended"]["recurrences"] in (1, 2, 4)
    assert "What this tells about phi" in answer["phi"]["sentence"]
    assert "5/5" in progress


def test_the_runs_are_real(demo):
    """Eighteen finished runs with params, a loss that fell and a validation loss, each in MLflow and in its journal."""
    from bayeslaw.journal import find_journals, read_journal
    from bayeslaw.runs import load_runs
    from bayeslaw.schema import METRIC_TRAIN_LOSS, METRIC_VAL_LOSS, TAG_RUN_ID
    from bayeslaw.store import connect

    out, answer, _ = demo
    store = f"sqlite:///{out / 'mlflow.db'}"
    journals = {journal.run_id: journal for journal in map(read_journal, find_journals(out))}
    study = next(iter(journals.values())).start["study"]
    runs = load_runs(f"mlflow:{study}", tracking_uri=store).runs
    assert len(runs) == answer["n_runs"] == 18
    assert set(runs["recurrences"]) == {1, 2, 4}
    assert runs["budget"].nunique() == 2
    assert runs["d_model"].nunique() == 3
    client = connect(store)
    experiment = client.get_experiment_by_name(study)
    found = client.search_runs([experiment.experiment_id], max_results=100)
    tracked = [run for run in found if TAG_RUN_ID in run.data.tags]
    (sweep,) = (run for run in found if TAG_RUN_ID not in run.data.tags)
    assert sweep.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in tracked} == {sweep.info.run_id}
    assert len(tracked) == 18
    for run in tracked:
        assert run.info.status == "FINISHED"
        curve = [point.value for point in client.get_metric_history(run.info.run_id, METRIC_TRAIN_LOSS)]
        assert len(curve) > 3
        assert curve[-1] < curve[0] - 0.5
        journal = journals[run.data.tags[TAG_RUN_ID]]
        assert run.data.metrics["loss"] == journal.row["loss"]
        assert run.data.metrics[METRIC_VAL_LOSS] == journal.row["loss"]
        assert int(run.data.params["n_once"]) == journal.row["n_once"]


def test_a_second_call_trains_nothing(demo):
    out, _, _ = demo
    before = {path: path.stat().st_mtime_ns for path in out.rglob("journal.jsonl")}
    command = [sys.executable, "-m", "bayeslaw", "demo", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shows that the chain works" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in out.rglob("journal.jsonl")} == before
