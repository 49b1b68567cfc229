"""Evaluations of a run: kept, taken up again, read back, delivered; what is cut, left out or refused is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bayeslaw.cli import run
from bayeslaw.errors import DataError, UsageError
from bayeslaw.evaluations import AXES, EVALUATION_COLUMNS, FOLDER, evaluations_of, read_evaluation, results_of
from bayeslaw.journal import find_journals, read_journal
from trainer.evaluate import Evaluator, most_recurrences, runs_below
from trainer.evaluation import choice
from trainer.evaluation.probes import PROBES, probe
from trainer.evaluation.tasks import Example, Task

TASKS = [probe(name, examples=6) for name in ("induction", "assignment_d0_math")]


@pytest.fixture
def run_dir(finished):
    (path,) = (finished / "runs").iterdir()
    return path


def test_results_are_those_of_all_tokens_together():
    results = results_of([1.0, 4.0, 4.0], [1, 2, 3], [1, 0, 0], left_out={"why": 2}, shortened=1)
    assert results.loss == 9 / 6
    residuals = [1 - 1.5, 4 - 3, 4 - 4.5]
    assert results.loss_se == pytest.approx(math.sqrt(sum(each**2 for each in residuals) * 3 / 2) / 6)
    assert results.accuracy == pytest.approx(1 / 3)
    assert results.accuracy_se == pytest.approx(math.sqrt(1 / 3 * 2 / 3 / 2))
    assert math.isnan(results_of([1.0], [1], [1], left_out={}, shortened=0).loss_se)


def test_held_out_text_has_the_loss_that_the_training_measured(run_dir):
    (outcome,) = Evaluator(run_dir).evaluate([])
    row = read_journal(find_journals(run_dir)[0]).end["row"]
    assert outcome.evaluation.results.loss == pytest.approx(row["loss"], abs=1e-9)
    assert outcome.evaluation.row["loss"] == row["loss"]
    assert outcome.evaluation.task["axis"] == "validation"


def test_an_evaluation_is_kept_with_all_that_it_rests_on(run_dir):
    outcomes = list(Evaluator(run_dir).evaluate(TASKS, recurrences=[2, 3]))
    assert [(each.task, each.recurrences) for each in outcomes] == [
        (name, r) for r in (2, 3) for name in ("held_out", "induction", "assignment_d0_math")
    ]
    kept = evaluations_of(run_dir)
    assert sorted(each.key for each in kept) == sorted(each.evaluation.key for each in outcomes)
    for each in kept:
        assert each == next(other.evaluation for other in outcomes if other.evaluation.key == each.key)
        assert set(each.table_row) <= set(EVALUATION_COLUMNS)
        assert each.task["axis"] in AXES
        assert set(each.versions) == {"python", "bayeslaw", "torch"}
        assert len(each.per_example["nats"]) == each.results.examples
        assert math.fsum(each.per_example["nats"]) / sum(each.per_example["tokens"]) == each.results.loss
        assert each.metric.endswith("/r3") == (each.recurrences == 3)
    by_task = {(each.task["name"], each.recurrences): each for each in kept}
    assert by_task["induction", 2].task["digest"] == TASKS[0].digest
    assert by_task["induction", 2].results.loss != by_task["induction", 3].results.loss


def test_an_interrupted_evaluation_goes_on_where_it_was(run_dir):
    def stop(task, done, total):
        if task == "assignment_d0_math":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Evaluator(run_dir).evaluate(TASKS, told=stop))
    before = {each.key: each for each in evaluations_of(run_dir)}
    assert {each.task["name"] for each in before.values()} == {"held_out", "induction"}
    outcomes = list(Evaluator(run_dir).evaluate(TASKS))
    assert [each.made for each in outcomes] == [False, False, True]
    for each in outcomes[:2]:
        assert each.evaluation == before[each.evaluation.key]
    assert [each.made for each in Evaluator(run_dir).evaluate(TASKS, again=True)] == [True, True, True]


def test_what_changes_the_numbers_is_scored_anew(run_dir):
    list(Evaluator(run_dir).evaluate(TASKS))
    others = [
        probe("induction", examples=6, seed=1),
        probe("induction", examples=7),
        probe("induction", examples=6, difficulty=3),
    ]
    assert all(each.made for each in Evaluator(run_dir).evaluate(others, held_out=False))
    assert all(each.made for each in Evaluator(run_dir, precision="bfloat16").evaluate(TASKS))
    assert not any(each.made for each in Evaluator(run_dir, pass_tokens=7).evaluate(TASKS))


def test_a_damaged_file_is_named_by_readers_and_made_again(run_dir):
    list(Evaluator(run_dir).evaluate(TASKS, held_out=False))
    path = next((run_dir / FOLDER).glob("*/induction*"))
    path.write_text(path.read_text()[:100])
    with pytest.raises(DataError, match=r"is no evaluation or is damaged.*\n  next: remove it and evaluate again"):
        evaluations_of(run_dir)
    assert [each.made for each in Evaluator(run_dir).evaluate(TASKS, held_out=False)] == [True, False]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(DataError, match="has format 2\n  allowed: format 1"):
        read_evaluation(path)


def test_a_task_without_a_scorable_answer_fails_alone(run_dir):
    empty = Task("empty", "other", 0, (Example(("a",), ("",)),), "here")
    some = Task(
        "some", "other", 0, (Example(("a",), ("",)), Example(("a",), ("b",)), Example(("a" * 20,), ("b",))), "here"
    )
    bad, good = Evaluator(run_dir).evaluate([empty, some], held_out=False)
    assert bad.evaluation is None
    assert "none of the 1 examples of empty can be scored: the answer has no token of its own" in bad.problem
    assert good.evaluation.results.examples == 2
    assert good.evaluation.results.left_out == {"the answer has no token of its own": 1}
    assert good.evaluation.results.shortened == 1


def test_a_corpus_that_has_changed_is_no_held_out_text(run_dir, monkeypatch):
    from trainer.data import corpora

    corpora._load.cache_clear()
    point = next(run_dir.glob("checkpoints/*/checkpoint.json"))
    record = json.loads(point.read_text())
    record["facts"]["config"]["data"]["corpus_digest"] = "0123456789abcdef"
    monkeypatch.setattr("trainer.trained.checkpoint.read", _read_with(record["facts"]))
    (outcome,) = Evaluator(run_dir).evaluate([])
    assert "has the digest" in outcome.problem
    assert "--no-held-out" in outcome.problem


def _read_with(facts):
    from trainer import checkpoint

    read = checkpoint.read
    return lambda path: replace(read(path), facts=facts)


def test_runs_are_found_below_a_folder(finished, run_dir, tmp_path):
    (tmp_path / "empty").mkdir()
    (point,) = (run_dir / "checkpoints").glob("step-*")
    assert runs_below([finished]) == runs_below([finished / "runs"]) == [run_dir]
    assert runs_below([run_dir, point]) == [run_dir, point]
    assert Evaluator(point).run_dir == run_dir
    with pytest.raises(UsageError, match="no checkpoint in or below"):
        runs_below([tmp_path / "empty"])


def test_how_often_a_network_may_loop(run_dir):
    architecture = Evaluator(run_dir).architecture
    assert most_recurrences(architecture) > 100
    for changes, most in (({"recurrences": 1, "backprop_recurrences": 1}, 1), ({"injection": "hyperconnections"}, 2)):
        assert most_recurrences(replace(architecture, **changes)) == most


def test_tasks_by_name():
    assert [each.name for each in choice.tasks_named(["probes"], examples=2)] == list(PROBES)
    harder, same = choice.tasks_named(["induction"], difficulty=9, examples=2) + choice.tasks_named(
        ["induction"], examples=2
    )
    assert (harder.name, same.name) == ("induction-9", "induction")
    with pytest.raises(UsageError, match="--difficulty with triviaqa"):
        choice.tasks_named(["induction", "triviaqa"], difficulty=3)


def store_of(path) -> str:
    return f"sqlite:///{path / 'm.db'}"


def test_evaluations_reach_mlflow_once_and_are_verified(run_dir, empty_store, tmp_path):
    import shutil

    from mlflow import MlflowClient

    from trainer.tracking import sync
    from trainer.verification import verify

    shutil.copy(empty_store, tmp_path / "m.db")
    uri = store_of(tmp_path)
    sync(run_dir, tracking_uri=uri)
    list(Evaluator(run_dir).evaluate(TASKS, recurrences=[2, 4]))
    (before,) = verify(run_dir, tracking_uri=uri)
    assert any("points missing" in each for each in before.differences)
    for _ in range(2):
        (result,) = sync(run_dir, tracking_uri=uri)
        assert result.error is None
        (after,) = verify(run_dir, tracking_uri=uri)
        assert after.differences == ()
    client = MlflowClient(uri)
    found = client.get_run(result.mlflow_run_id)
    for each in evaluations_of(run_dir):
        assert found.data.metrics[f"{each.metric}/loss"] == each.results.loss
        assert found.data.metrics[f"{each.metric}/shots"] == each.task["shots"]
        assert len(client.get_metric_history(result.mlflow_run_id, f"{each.metric}/loss")) == 1
    evaluated = [each.dataset for each in found.inputs.dataset_inputs if each.tags[0].value == "evaluation"]
    assert {each.digest for each in evaluated} == {each.task["digest"] for each in evaluations_of(run_dir)}
    assert len(client.list_artifacts(result.mlflow_run_id, "evaluations")) == 6
    list(Evaluator(run_dir).evaluate(TASKS, again=True))
    sync(run_dir, tracking_uri=uri)
    (again,) = verify(run_dir, tracking_uri=uri)
    assert again.differences == ()


def test_the_verb(run_dir, empty_store, tmp_path, capsys):
    import shutil

    shutil.copy(empty_store, tmp_path / "m.db")
    flags = ["--tracking-uri", store_of(tmp_path), "--examples", "4"]
    assert run(["eval", str(run_dir), "--tasks", "induction,words", "--recurrences", "2,3", *flags]) == 0
    caught = capsys.readouterr()
    assert "primitives/induction" in caught.out
    assert all(len(line) <= 80 for line in caught.out.splitlines())
    assert "r = 3 is beyond its training" in caught.err
    assert "so there were fewer shots: induction (8 times), words (8 times)" in " ".join(caught.err.split())
    assert "6 scored, 0 scored before, 0 failed" in caught.err
    assert run(["eval", str(run_dir), "--tasks", "induction,words", *flags, "--json"]) == 0
    caught = capsys.readouterr()
    answer = json.loads(caught.out)
    assert [each["task"] for each in answer["evaluations"]] == ["held_out", "induction", "words"]
    assert not any(each["made"] for each in answer["evaluations"])
    assert run(["runs", "verify", str(run_dir), "--tracking-uri", store_of(tmp_path)]) == 0


def test_a_damaged_run_does_not_stop_the_others(run_dir, finished, tmp_path, capsys):
    import shutil

    broken = finished / "runs" / "a-broken-one"
    shutil.copytree(run_dir, broken)
    next(broken.glob("checkpoints/*/checkpoint.json")).write_text("{")
    flags = ["--tasks", "induction", "--examples", "3", "--tracking-uri", store_of(tmp_path), "--no-held-out"]
    assert run(["eval", str(finished), *flags, "--table", str(tmp_path / "scores.csv")]) == 1
    caught = capsys.readouterr()
    assert "1 scored, 0 scored before, 0 failed" in caught.err
    assert "1 runs have no checkpoint that can be read" in caught.err
    header, row = (tmp_path / "scores.csv").read_text().splitlines()
    values = dict(zip(header.split(","), row.split(","), strict=True))
    (kept,) = evaluations_of(run_dir)
    assert float(values["task_loss"]) == kept.results.loss
    assert (values["task"], values["examples"], values["shortened"]) == ("induction", "3", "3")
    assert run(["eval", str(broken), *flags]) == 1
    assert "checkpoint" in capsys.readouterr().err


def refused(capsys, *arguments) -> str:
    assert run(["eval", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_the_verb_refuses_what_cannot_be_meant(run_dir, tmp_path, capsys):
    assert "no run to evaluate" in refused(capsys)
    assert "no checkpoint in or below" in refused(capsys, tmp_path / "nothing")
    assert "recurrences = 0" in refused(capsys, run_dir, "--recurrences", "0", "--tasks", "words")
    assert "--out without --verdict" in refused(capsys, run_dir, "--out", tmp_path / "page.html")
    assert "examples = 0" in refused(capsys, run_dir, "--examples", "0")
    assert "shots = -1" in refused(capsys, run_dir, "--shots", "-1")
    assert "device" in refused(capsys, run_dir, "--device", "tpu")
    assert "precision" in refused(capsys, run_dir, "--precision", "float16")
    assert "pass_tokens" in refused(capsys, run_dir, "--pass-tokens", "0")
    tokenizer = tmp_path / "tokenizer.json"
    from trainer.data.tokenizer import trained

    tokenizer.write_bytes(trained(["some text"], 300))
    assert "at most 256, the vocabulary of the network" in refused(capsys, run_dir, "--tokenizer", tokenizer)
    assert not (run_dir / FOLDER).exists()
