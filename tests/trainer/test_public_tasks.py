"""Public tasks as lm-eval words them, with data from the hub, from a folder, and from nowhere."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from bayeslaw.cli import run
from bayeslaw.errors import DataError, UsageError
from tests.trainer.public_rows import LAST, ROW, ROWS, arc, on_hub, span, trivia, write_public, write_rows
from trainer.evaluation import catalogue
from trainer.evaluation.catalogue import DEFINITIONS, PUBLIC
from trainer.evaluation.choice import tasks_named
from trainer.evaluation.public import fetch, public_task


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A folder with a few rows for each public task."""
    return write_public(tmp_path_factory.mktemp("public"))


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Makes definitions, each a YAML text, stand for lm-eval's own registry."""

    def made(**definitions: str):
        from lm_eval.tasks import TaskManager

        folder = tmp_path / "registry"
        folder.mkdir()
        for name, text in definitions.items():
            (folder / f"{name}.yaml").write_text(f"task: {name}\n{text}")
        manager = TaskManager(include_defaults=False, include_path=str(folder))
        monkeypatch.setattr(catalogue, "_registry", lambda: manager)
        return manager

    return made


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def no_network(monkeypatch) -> list[str]:
    """Every attempt at the network fails and is noted."""
    tried: list[str] = []

    def refuse(*given, **_):
        tried.append(str(given))
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


def test_the_papers_tasks():
    assert sorted(PUBLIC) == sorted(ROW)
    total = sum(each.examples for each in PUBLIC.values())
    assert (total, {each.axis for each in PUBLIC.values()}) == (
        10_000 + 3610 + 2032 + 5153 + 440 + 5928 + 9535 + 7983 + 300 + 2305 + 1772 + 1000 + 10_000 + 2376 + 1320,
        {"knowledge", "reading", "math", "compositional"},
    )
    assert [PUBLIC[name].shots for name in ("triviaqa", "lambada", "drop", "coqa", "mawps", "arc_easy")] == [
        5, 0, 3, 1, 5, 10,
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(ROW))
def test_worded(name, data, no_network):
    task = public_task(name, data=data)
    question, answer = LAST[name]
    first = task.examples[0]
    assert (first.context[-1], first.answer) == (question, answer)
    assert len(first.context) == task.shots + 1 == PUBLIC[name].shots + 1
    for shot in first.context[:-1]:
        assert shot.endswith("\n\n")
    assert task.axis == PUBLIC[name].axis
    assert not no_network


def test_turns_of_a_conversation(data):
    task = public_task("coqa", data=data)
    assert len(task.examples) == 2 * ROWS
    second = task.examples[1]
    assert second.context[-1] == "Passage: Ann has 0 cats.\nQuestion: Who?\nAnswer: Ann\nQuestion: How many?\nAnswer:"
    assert second.answer == " 0"
    assert second.context[0].count("Question:") == 1


def test_rows_that_are_no_examples_are_left_out(tmp_path):
    for split in ("train", "validation"):
        unanswerable = span("", 1) | {"title": "", "answers": {"text": [], "answer_start": []}}
        write_rows(tmp_path / "squadv2" / f"{split}.jsonl", [unanswerable, *(ROW["squadv2"](i) for i in range(5))])
        write_rows(
            tmp_path / "tydiqa" / f"{split}.jsonl", [span("", 1) | {"id": "x-1"}, *(span("", i) for i in range(5))]
        )
    assert len(public_task("squadv2", data=tmp_path).examples) == 5
    assert len(public_task("tydiqa", data=tmp_path).examples) == 5


@pytest.mark.parametrize("name", ["lambada", "triviaqa", "arc_easy"])
def test_as_lm_eval_itself_builds_them(name, data, registry):
    manager = registry(plain=f"include: {DEFINITIONS / name}.yaml\n" + on_hub(data, name))
    inner = manager.load("plain")["tasks"]["plain"]
    task = public_task(name, data=data, seed=3)
    for place, example in enumerate(task.examples):
        inner.set_fewshot_seed(3 * 2**32 + place)
        inner.build_all_requests(samples=[place])
        assert [request.args for request in inner.instances] == [
            ("".join(example.context), choice) for choice in example.choices
        ]


def test_templates_are_compiled_once(data, monkeypatch):
    from lm_eval import utils

    public_task("triviaqa", data=data, examples=1)
    compiled: list[str] = []
    compile_ = utils.env.compile

    def noted(source, *given, **named):
        compiled.append(source)
        return compile_(source, *given, **named)

    monkeypatch.setattr(utils.env, "compile", noted)
    before = utils.env.from_string
    public_task("triviaqa", data=data)
    assert len(compiled) == len(set(compiled)) == 2
    assert utils.env.from_string == before


def test_drawn_by_seed(data):
    task = public_task("triviaqa", data=data)
    assert task.digest == public_task("triviaqa", data=data).digest
    assert task.digest != public_task("triviaqa", data=data, seed=1).digest
    few, more = (public_task("triviaqa", data=data, examples=n).examples for n in (3, 7))
    assert len(few) == 3
    assert set(few) < set(more) < set(task.examples)
    assert [each for each in task.examples if each in few] == list(few)
    assert len(public_task("triviaqa", data=data, shots=2).examples[0].context) == 3
    assert public_task("asdiv", data=data, shots=ROWS - 1).shots == ROWS - 1
    with pytest.raises(UsageError, match=f"at most {ROWS - 1}"):
        public_task("asdiv", data=data, shots=ROWS)


def test_the_verb_that_fetches(registry, tmp_path, capsys):
    hub = tmp_path / "hub"
    for split in ("train", "validation"):
        write_rows(hub / "triviaqa" / f"{split}.jsonl", [trivia(i) for i in range(8)])
    registry(standin=f"include: {DEFINITIONS / 'triviaqa'}.yaml\ntest_split: validation\n" + on_hub(hub, "triviaqa"))
    out = tmp_path / "out"
    assert run(["data", "tasks", "standin", "--out", str(out)]) == 0
    caught = capsys.readouterr()
    assert caught.out.splitlines() == [str(out / "standin" / f"{split}.jsonl") for split in ("train", "validation")]
    assert f"--tasks standin --data {out}" in caught.err
    assert len(tasks_named(["standin", "induction", "standin"], data=out, examples=5)) == 2
    assert run(["data", "tasks", "--out", str(out)]) == 2
    assert "no task named" in capsys.readouterr().err


def test_fetched_data_give_the_same_task(data, registry, tmp_path):
    other = tmp_path / "hub"
    for split in ("train", "validation"):
        write_rows(other / "triviaqa" / f"{split}.jsonl", [trivia(i) for i in range(20)])
    registry(standin=f"include: {DEFINITIONS / 'triviaqa'}.yaml\ntest_split: validation\n" + on_hub(other, "triviaqa"))
    from_hub = public_task("standin")
    written = fetch(["standin"], tmp_path / "out")
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in written) == [
        "standin/train.jsonl",
        "standin/validation.jsonl",
    ]
    again = public_task("standin", data=tmp_path / "out")
    assert (from_hub.axis, len(from_hub.examples)) == ("other", 20)
    assert from_hub.digest == again.digest
    assert (from_hub.source, again.source) == ("hf:json", "out/standin")
    import pyarrow.json
    import pyarrow.parquet

    for path in written:
        pyarrow.parquet.write_table(pyarrow.json.read_json(path), path.with_suffix(".parquet"))
        path.unlink()
    assert public_task("standin", data=tmp_path / "out").digest == from_hub.digest


def test_other_tasks_of_lm_eval(data, registry, tmp_path):
    rows = "doc_to_text: 'Q: {{question}}'\nvalidation_split: validation\n"
    file = on_hub(data, "triviaqa")
    registry(
        generated=file
        + rows
        + "output_type: generate_until\ndoc_to_target: '{{answer.value}}'\ndescription: \"Say:\\n\"",
        prefixed=file + rows + "output_type: generate_until\ndoc_to_target: '{{answer.value}}'\ngen_prefix: 'It is'",
        several=file + rows + "output_type: generate_until\ndoc_to_target: '{{answer.aliases}}'",
        rolling=file + rows + "output_type: loglikelihood_rolling\ndoc_to_target: question",
        own="class: !function task.Own",
        made=file + rows + "custom_dataset: !function made.rows",
    )
    first = public_task("generated", shots=2).examples[0]
    assert first.context[0] == "Say:\n"
    assert first.context[1].startswith("Q: Which town")
    assert first.context[3] == "Q: Which town is number 0?"
    assert first.choices == (" Town 0",)
    prefixed = public_task("prefixed", shots=1).examples[0]
    assert prefixed.context[-1] == "Q: Which town is number 0? It is"
    assert prefixed.choices == (" Town 0",)
    assert "? It is Town" in prefixed.context[0]
    reasons = {
        "several": "several right answers",
        "rolling": "no answer to score",
        "own": "Python class",
        "made": "Python function",
    }
    for name, reason in reasons.items():
        with pytest.raises(UsageError, match=reason):
            public_task(name)


def test_empty_answers_stay(registry, tmp_path):
    write_rows(tmp_path / "d" / "validation.jsonl", [{"q": "a", "a": "b"}, {"q": "c", "a": ""}])
    text = on_hub(tmp_path, "d") + "validation_split: validation\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
    registry(empty=text + "output_type: loglikelihood")
    assert [each.answer for each in public_task("empty").examples] == ["b", ""]


def test_unknown_names(registry):
    registry(hellaswag="dataset_path: x\n", wiki="dataset_path: x\ntag: articles\n")
    for wrong, near in (("triviaq", "triviaqa"), ("inductoin", "induction"), ("helaswag", "hellaswag")):
        with pytest.raises(UsageError, match=f"nearest is {near}"):
            public_task(wrong, known=["induction"])
    with pytest.raises(UsageError, match="several tasks"):
        public_task("articles")


def test_data_absent_offline(no_network, tmp_path):
    with pytest.raises(DataError, match="bayeslaw data tasks drop --out DIR, then --data DIR") as caught:
        public_task("drop", offline=True)
    assert "cache" in str(caught.value)
    with pytest.raises(DataError, match="no data for the task drop") as caught:
        public_task("drop", data=tmp_path)
    assert "bayeslaw data tasks drop" in str(caught.value)
    assert not no_network
    import datasets
    from huggingface_hub import constants

    assert not datasets.config.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE


def test_hub_not_reached(monkeypatch):
    import datasets

    def unreachable(*_, **given):
        assert "trust_remote_code" not in given
        raise ConnectionError("Couldn't reach the hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r"data of drop \(ucinlp/drop, split train\) cannot be had from the hub: Conn"):
        public_task("drop")
    with pytest.raises(DataError, match="cannot be had"):
        fetch(["drop"], Path("nowhere"))
    assert not Path("nowhere").exists()


def test_lm_eval_missing(monkeypatch):
    monkeypatch.setattr(catalogue, "_definitions", catalogue._definitions.__wrapped__)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(UsageError, match=r"bayeslaw\[eval\]"):
        public_task("lambada")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "holds no row"),
        ('{"text": "a b"}\n{"text": \n', "test.jsonl:2 is no JSON"),
        ('{"text": "a b"}\n\n[1]\n', "test.jsonl:3 is no JSON object"),
        ('{"text": "a b"}\n{"txt": "a b"}\n', "test.jsonl:2 has the fields txt"),
        ('{"txt": "a b"}\n', "do not fit the task"),
        ('{"text": "a b"}\n{"text": [1]}\n', "cannot be read"),
    ],
)
def test_damaged_data(lines, said, tmp_path):
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "test.jsonl").write_text(lines)
    with pytest.raises(DataError, match=said):
        public_task("lambada", data=tmp_path)
    (tmp_path / "lambada" / "test.jsonl").unlink()
    (tmp_path / "lambada" / "test.parquet").write_text(lines + "no Parquet")
    with pytest.raises(DataError, match="cannot be read"):
        public_task("lambada", data=tmp_path)


def test_fetch_refuses_what_json_cannot_hold(monkeypatch, tmp_path):
    import datasets

    rows = datasets.Dataset.from_list([{"text": "a b", "sound": b"\0"}])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    with pytest.raises(DataError, match="row 0 holds what JSON cannot"):
        fetch(["lambada"], tmp_path)
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.slow
def test_lm_evals_whole_registry(tmp_path):
    write_rows(tmp_path / "arc_challenge" / "test.jsonl", [arc(i) for i in range(ROWS)])
    for split in ("train", "validation"):
        write_rows(tmp_path / "arc_challenge" / f"{split}.jsonl", [arc(i) for i in range(ROWS)])
    task = public_task("arc_challenge", data=tmp_path, shots=1)
    assert (task.axis, len(task.examples)) == ("other", ROWS)
    with pytest.raises(UsageError, match="nearest is hellaswag"):
        public_task("hellaswg")
    with pytest.raises(UsageError, match="Python class"):
        public_task("squad_completion")
