"""The verb ``data``: what it prints in both forms, and how it goes wrong."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from bayeslaw.cli import run
from trainer.data import corpora

FLAGS = ["--tokenizer", "bytes", "--seq-len", "32"]


@pytest.fixture
def source(tmp_path):
    draw = random.Random(0)
    path = tmp_path / "source.txt"
    path.write_text("\n%\n".join("".join(draw.choices("abcdef ", k=draw.randrange(20, 200))) for _ in range(400)))
    return str(path)


@pytest.mark.slow
def test_pack_check_and_train(source, tmp_path, capsys):
    out = str(tmp_path / "packed")
    assert run(["data", "pack", source, *FLAGS, "--out", out, "--separator", r"\n%\n"]) == 0
    caught = capsys.readouterr()
    table = {line.rsplit(None, 2)[0]: line.rsplit(None, 2)[1:] for line in caught.out.splitlines()}
    assert table["what"] == ["train", "val"]
    assert sum(int(number) for number in table["documents"]) == 400
    assert f"bayeslaw train --corpus {out}" in caught.err
    assert run(["data", "check", out]) == 0
    caught = capsys.readouterr()
    assert caught.err == ""
    assert [line.split()[-2:] for line in caught.out.splitlines() if line.startswith("rows")] == [table["rows"]]
    assert run(["data", "check", out, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["splits"]["train"]["verified"] is True
    assert answer["splits"]["val"]["seq_len"] == 32
    assert 0.7 < answer["splits"]["train"]["utilisation"] < 1
    arguments = ["--d-model", "16", "--steps", "3", "--batch-tokens", "64", "--validation-tokens", "64"]
    store = f"sqlite:///{tmp_path / 'm.db'}"
    command = ["train", "--corpus", out, *arguments, "--out", str(tmp_path / "runs"), "--tracking-uri", store, "--json"]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["run"]["vocab_size"] == 257


def test_pack_json_is_the_same_each_time(source, tmp_path, capsys):
    answers = []
    for name in ("a", "b"):
        command = ["data", "pack", source, *FLAGS, "--out", str(tmp_path / name), "--separator", r"\n%\n", "--json"]
        assert run(command) == 0
        answers.append(json.loads(capsys.readouterr().out)["splits"])
    assert answers[0] == answers[1]
    keys = {"rows", "shards", "documents", "empty_documents", "tokens", "tokens_left_out", "digest"}
    assert set(answers[0]) == {"train", "val"}
    assert keys < set(answers[0]["train"])


def test_train_a_tokenizer(source, tmp_path, capsys):
    pytest.importorskip("tokenizers")
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    command = ["data", "tokenizer", source, "--separator", r"\n%\n", "--vocab-size"]
    assert run([*command, "300", "--out", str(first)]) == 0
    assert capsys.readouterr().out == f"300 tokens written to {first}\n"
    assert run([*command, "300", "--out", str(second), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vocab_size"] == 300
    assert first.read_bytes() == second.read_bytes()
    assert run([*command, "3e5", "--out", str(second)]) == 0
    assert "tokens are all that these documents give" in capsys.readouterr().err
    assert run([*command, "300", "--out", str(second), "--validation-share", "0.5"]) == 0
    assert first.read_bytes() != second.read_bytes(), "held-out documents are no part of it"


def test_what_goes_wrong(source, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").touch()
    out = ["--out", str(tmp_path / "new")]
    for arguments, code, named in (
        (["pack", source, "--seq-len", "32", *out], 2, "--tokenizer"),
        (["pack", source, "--tokenizer", "byte", "--seq-len", "32", *out], 2, "the nearest is bytes"),
        (["pack", source, *FLAGS, "--out", str(tmp_path / "there")], 2, "is there already"),
        (["pack", source, *FLAGS, *out], 2, "a text file is one document unless --separator"),
        (["pack", str(tmp_path / "no"), *FLAGS, *out], 2, "check the path"),
        (["pack", source, *FLAGS, *out, "--validation-share", "2"], 2, "validation_share = 2.0"),
        (["pack", source, *FLAGS[:2], "--seq-len", "1.5", *out], 2, "--seq-len '1.5'"),
        (["tokenizer", source, "--out", source], 2, "is the file that is read"),
        (["tokenizer", source, "--out", str(tmp_path / "t.json"), "--vocab-size", "100"], 2, "257 or more"),
        (["check", str(tmp_path / "there")], 2, "is no packed data set"),
        (["chek", str(tmp_path)], 2, "check"),
    ):
        assert run(["data", *arguments]) == code, arguments
        assert named in (told := capsys.readouterr()).err + told.out, arguments
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "t.json").exists()


def test_damage_is_a_failure(source, tmp_path, capsys):
    out = tmp_path / "packed"
    assert run(["data", "pack", source, *FLAGS, "--out", str(out), "--separator", r"\n%\n"]) == 0
    (out / "train-00000.parquet").write_bytes(b"PAR1")
    capsys.readouterr()
    assert run(["data", "check", str(out)]) == 1
    told = capsys.readouterr()
    assert "train-00000.parquet is no whole Parquet file" in told.err
    assert "next: get the folder again" in told.err
    assert told.out == ""
    corpora._load.cache_clear()


def test_alone_it_explains(capsys):
    assert run(["data"]) == 0
    told = capsys.readouterr().out
    for named in (
        "bayeslaw data tokenizer SOURCE",
        "bayeslaw data pack SOURCE",
        "bayeslaw train --corpus DIR",
        "hf:NAME",
    ):
        assert named in told


def test_the_help_loses_no_name(capsys):
    """Some tokens in angle brackets are markup to what prints the help."""
    assert run(["data", "pack", "--help"]) == 0
    told = capsys.readouterr().out
    described = " ".join(told.replace("\u2502", " ").split())
    assert "such as <|bos|> or <|endoftext|>" in described
    assert "such as '<|endoftext|>'" in described
    assert run(["train", "--help"]) == 0
    described = "".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert corpora.FINEWEB_EDU in described
    assert "onaGPU,andlongrunsonaCPU" in described


def test_packing_needs_no_torch(source, tmp_path):
    code = (
        "import sys\nabsent = ('torch', 'pymc', 'mlflow', 'pandas', 'tokenizers', 'datasets')\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from bayeslaw.cli import run\nsys.exit(run(sys.argv[1:]))"
    )
    command = ["data", "pack", source, *FLAGS, "--out", str(tmp_path / "packed"), "--separator", r"\n%\n"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
