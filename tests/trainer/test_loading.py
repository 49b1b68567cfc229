"""Packed rows on their way to the trainer: order, shares, memory, prefetching, and whole runs on them."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from bayeslaw.cli import run
from bayeslaw.errors import DataError, UsageError
from bayeslaw.journal import read_journal
from tests.trainer.ranks import Ranks, together
from trainer import checkpoint, learner
from trainer.config import TrainConfig
from trainer.data import Batches, corpora, load_corpus, validation_sequences
from trainer.data.ahead import DEPTH, Ahead
from trainer.data.documents import Documents
from trainer.data.rows import Rows
from trainer.data.tokenizer import ByteTokenizer, load_tokenizer
from trainer.data.writer import ShardWriter
from trainer.data.writing import pack
from trainer.distributed import World, join
from trainer.execution import Execution
from trainer.loop import train, with_digest
from trainer.planning import plan_grid
from trainer.rundir import run_directory
from trainer.sweep import run_plan

T = 16
ROWS = 100
STEPS = 25  # of eight rows: two epochs, with a batch that is in both


def folder_of(path, rows, *, val=20, rows_per_shard=30, seq_len=T, vocab_size=300, bos=256):
    """A packed folder of so many rows, all different."""
    path.mkdir()
    draw = np.random.default_rng(rows)
    for split, count in (("train", rows), ("val", val)):
        writer = ShardWriter(path, split, seq_len + 1, np.dtype("<u2"), rows_per_shard)
        for ids in draw.integers(0, 256, (count, seq_len + 1)).astype("<u2"):
            ids[0] = bos
            writer.add(ids)
        writer.close()
        meta = {"row_capacity": seq_len + 1, "seq_len": seq_len, "vocab_size": vocab_size, "bos_token_id": bos}
        (path / f"meta_{split}.json").write_text(json.dumps(meta | {"total_rows": count, "split": split}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("packed") / "rows", ROWS)


@pytest.fixture(scope="module")
def tiny(folder) -> dict:
    return {
        "d_model": 16,
        "head_size": 8,
        "recurrences": 2,
        "prelude_layers": 1,
        "shared_layers": 1,
        "coda_layers": 0,
        "batch_tokens": 8 * T,
        "steps": STEPS,
        "corpus": str(folder),
        "validation_tokens": 10 * T,
        "log_every": 1,
    }


def names(rows):
    """A row by its ids."""
    return [row.tobytes() for row in np.asarray(rows, dtype=np.int64)]


# ------------------------------------------------------------------------------------------------------------ the order


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_share_out_each_epoch(folder, size):
    rows = load_corpus(str(folder)).train
    everything = names(rows.take(np.arange(ROWS)))
    assert len(set(everything)) == ROWS
    batches = Batches(rows, T, 8, seed=3)
    shown = [row for step in range(STEPS) for rank in range(size) for row in names(batches.at(step, rank, size))]
    assert set(shown[:ROWS]) == set(shown[ROWS:]) == set(everything)
    assert shown[:ROWS] != shown[ROWS:]
    assert shown == [row for step in range(STEPS) for row in names(batches.at(step))]
    assert names(Batches(rows, T, 8, seed=4).at(0)) != shown[:8]


def test_the_order_knows_nothing_of_shards(folder, tmp_path):
    other = load_corpus(str(folder_of(tmp_path / "one", ROWS, rows_per_shard=1000)))
    assert (len(other.train.maps), len(load_corpus(str(folder)).train.maps)) == (1, 4)
    for step in range(0, STEPS, 6):
        assert (
            Batches(other.train, T, 8, 0).at(step) == Batches(load_corpus(str(folder)).train, T, 8, 0).at(step)
        ).all()


def test_batches_of_too_few_rows(folder):
    rows = load_corpus(str(folder)).train
    Batches(rows, T, ROWS, 0)
    with pytest.raises(
        UsageError, match=f"allowed: at most {ROWS} sequences of this length, --batch-tokens {ROWS * T}"
    ):
        Batches(rows, T, ROWS + 1, 0)
    assert Batches(rows, T, 8, 0).epoch_tokens == ROWS * T


def test_held_out_rows_are_never_repeated(folder):
    corpus = load_corpus(str(folder))
    for wanted in (7, 20):
        shown = names(validation_sequences(corpus, T, wanted * T))
        assert len(set(shown)) == wanted
        assert set(shown) <= set(names(corpus.validation.take(np.arange(20))))
    with pytest.raises(UsageError, match=f"allowed: at most {20 * T}"):
        validation_sequences(corpus, T, 21 * T)


# ----------------------------------------------------------------------------------------------------------- the config


def test_context_and_vocabulary_follow_the_data(tiny, folder, tmp_path):
    config = TrainConfig.of(**tiny)
    assert (config.model.seq_len, config.model.vocab_size) == (T, 300)
    assert TrainConfig.of(**tiny | {"vocab_size": 512}).model.vocab_size == 512, "what is given wins"
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert with_digest(config).data.corpus_digest == load_corpus(str(folder)).digest
    small = folder_of(tmp_path / "small", 10, vocab_size=257)
    assert TrainConfig.of(**tiny | {"corpus": str(small)}).model.vocab_size == 257
    planned = plan_grid(
        study="x", budgets=[3e8], widths=[16], recurrences=[1], head_size=8, corpus=str(folder), batch_tokens=8 * T,
        validation_tokens=T, min_steps=1, unrolled_layers=1,
    )  # fmt: skip
    assert planned.runs[0].row["vocab_size"] == 300
    assert planned.runs[0].config["data"]["corpus_digest"] == load_corpus(str(folder)).digest


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"vocab_size": 256},
            r"whose vocabulary is 300\n  allowed: 300 or more\n  next: set --vocab-size 300, or leave",
        ),
        ({"seq_len": 8}, r"whose rows are packed for 16\n  allowed: 16\n  next: set --seq-len 16 or leave it out"),
        ({"corpus_digest": "0" * 16}, "has the digest"),
        ({"validation_tokens": 21 * T}, f"at most {20 * T}"),
        ({"batch_tokens": (ROWS + 1) * T}, "too short for one batch"),
    ],
)
def test_a_network_that_does_not_fit_the_data(tiny, tmp_path, changes, named):
    """It is refused when it is planned, and leaves nothing behind when it is trained."""
    config = TrainConfig.of(**tiny | changes)
    with pytest.raises(UsageError, match=named):
        with_digest(config)
    with pytest.raises(UsageError, match=named):
        train(config, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_splits_that_disagree_are_told_before_the_config(tiny, tmp_path):
    made = folder_of(tmp_path / "rows", 10)
    path = made / "meta_train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seq_len": T - 1, "row_capacity": T}))
    with pytest.raises(DataError, match=f"seq_len is {T - 1} in meta_train.json and {T} in meta_val.json"):
        TrainConfig.of(**tiny | {"corpus": str(made)})


def test_text_has_a_vocabulary_of_bytes(tiny, tmp_path):
    (tmp_path / "a.txt").write_text("words " * 400)
    config = TrainConfig.of(**tiny | {"corpus": str(tmp_path / "a.txt"), "seq_len": T})
    assert config.model.vocab_size == 256


# --------------------------------------------------------------------------------------------------------- whole runs


def noting(fields, out, log, fatal=None):
    """Train, noting what rows each step reads; be killed in step ``fatal``."""
    step = learner.Learner.step

    def stepping(self, number, own, **flags):
        with Path(f"{log}-{os.environ['RANK']}").open("a") as file:
            file.write(json.dumps([number, [row.numpy().tobytes().hex() for row in own]]) + "\n")
        if number == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, number, own, **flags)

    learner.Learner.step = stepping
    result = train(TrainConfig.of(**fields), out, quiet=True, execution=Execution(checkpoint_every=3))
    return result.row


def read_rows(attempts):
    """The rows of each step, those of a later attempt in the place of an earlier one's."""
    steps = {}
    for log, size in attempts:
        own = {}
        for rank in range(size):
            for line in Path(f"{log}-{rank}").read_text().splitlines():
                number, rows = json.loads(line)
                own.setdefault(number, {})[rank] = rows
        steps |= {number: [row for rank in range(size) for row in ranks.get(rank, [])] for number, ranks in own.items()}
    return [bytes.fromhex(row) for number in sorted(steps) for row in steps[number]]


def test_each_row_once_an_epoch_across_kills_and_other_numbers_of_processes(tiny, folder, tmp_path):
    attempts = [(tmp_path / f"log-{size}", size) for size in (4, 2, 1)]
    for (log, size), fatal in zip(attempts, (8, 17, None), strict=True):
        codes = Ranks(
            functools.partial(noting, fatal=fatal), tiny, tmp_path / "out", log, size=size, folder=tmp_path
        ).ended()
        assert (set(codes) == {0}) == (fatal is None)
    shown = read_rows(attempts)
    everything = set(names(load_corpus(str(folder)).train.take(np.arange(ROWS))))
    assert len(shown) == 2 * ROWS
    assert set(shown[:ROWS]) == set(shown[ROWS:]) == everything
    run_dir = run_directory(tmp_path / "out", TrainConfig.of(**tiny).run_id)
    lines = (run_dir / "journal.jsonl").read_text()
    assert lines.count('"event": "resume"') + lines.count('"event":"resume"') == 2
    row = read_journal(run_dir).row
    assert row["epochs"] == 2
    assert row["vocab_size"] == 300


def test_a_killed_run_goes_on_bit_for_bit(tiny, tmp_path):
    (expected,) = together(noting, tiny, tmp_path / "whole", tmp_path / "log", size=1, folder=tmp_path)
    killed = functools.partial(noting, fatal=14)
    assert Ranks(killed, tiny, tmp_path / "out", tmp_path / "log-1", size=1, folder=tmp_path).ended() == [
        -signal.SIGKILL
    ]
    (row,) = together(noting, tiny, tmp_path / "out", tmp_path / "log-2", size=1, folder=tmp_path)
    assert row["loss"] == expected["loss"]
    points = [checkpoint.read(run_directory(tmp_path / out, TrainConfig.of(**tiny).run_id)) for out in ("whole", "out")]
    for part in points[0].parts:
        tensors, others = (point.tensors(part) for point in points)
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)


BARE = """
import json, sys
sys.modules.update(dict.fromkeys(("pymc", "arviz", "mlflow", "pandas", "scipy", "tokenizers", "datasets")))
from pathlib import Path
from trainer.config import TrainConfig
from trainer.loop import train
print(train(TrainConfig.of(**json.loads(sys.argv[1])), Path(sys.argv[2]), quiet=True).state)
"""


@pytest.mark.slow
def test_training_on_shards_needs_nothing_more(tiny, tmp_path):
    """Neither a tokenizer nor the hub's client, nor what a training node lacks anyway."""
    made = folder_of(tmp_path / "rows", 50)  # not decoded yet
    command = [sys.executable, "-c", BARE, json.dumps(tiny | {"corpus": str(made)}), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "finished\n", done.stderr


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_documents_to_text_again(tmp_path, capsys, kind):
    """Pack, plan, train, generate, with the tokenizer beside the shards."""
    draw = random.Random(0)
    source, out = tmp_path / "source.jsonl", tmp_path / "packed"
    texts = [" ".join(draw.choices(("loop", "block", "state", "again"), k=20)) for _ in range(400)]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = kind
    if kind == "bpe":
        pytest.importorskip("tokenizers")
        tokenizer = str(tmp_path / "t.json")
        assert run(["data", "tokenizer", str(source), "--vocab-size", "270", "--out", tokenizer]) == 0
    packing = ["data", "pack", str(source), "--tokenizer", tokenizer, "--seq-len", "16", "--out", str(out)]
    assert run(packing) == 0
    plan = plan_grid(
        study="packed", budgets=[4e9], widths=[32], recurrences=[2], unrolled_layers=2, corpus=str(out),
        batch_tokens=256, validation_tokens=256, min_steps=1, matrix_rate=0.02,
    )  # fmt: skip
    (outcome,) = run_plan(plan, tmp_path / "runs", quiet=True)
    assert outcome.state == "finished", outcome.error
    unigram = np.bincount(load_corpus(str(out)).train.take(np.arange(200))[:, 1:].ravel()) / (200 * T)
    entropy = -float((unigram[unigram > 0] * np.log(unigram[unigram > 0])).sum())
    assert outcome.row["loss"] < 0.8 * entropy, "it learnt more than how often each token comes"
    capsys.readouterr()
    arguments = ["generate", str(outcome.run_dir), "--prompt", "loop block", "--tokens", "40", "--temperature", "0.5"]
    assert run([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    vocabulary = load_corpus(str(out)).vocab_size
    assert len(answer["tokens"]) == 40
    assert max(answer["tokens"]) < vocabulary
    words = answer["text"].split()[1:-1]
    assert sum(word in ("loop", "block", "state", "again") for word in words) > 0.3 * len(words)
    assert run([*arguments, "--tokenizer", tokenizer]) == 0
    assert capsys.readouterr().out == answer["text"] + "\n"
    out.rename(tmp_path / "moved")
    assert run(arguments) == 2
    assert "--tokenizer with a tokenizer.json" in capsys.readouterr().err
    assert run([*arguments, "--tokenizer", tokenizer]) == 0
    assert run([*arguments, "--tokenizer", str(tmp_path / "moved")]) == (0 if kind == "bpe" else 2)


# ---------------------------------------------------------------------------------------------------------- the memory

MEASURE = """
import sys
import numpy as np
from trainer.data.batches import Batches
from trainer.data.corpora import load_corpus
def anonymous():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024
rows = load_corpus(sys.argv[1]).train
batches = Batches(rows, rows.seq_len, 8, 0)
for step in range(len(rows) // 8):
    batches.at(step)
print(anonymous())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_anonymous_memory_is_flat_in_the_shards(tmp_path):
    """Every row is read; sixteen times the shards take hardly more memory of the process's own."""
    seq_len, per_shard, used = 511, 1000, []
    for count in (1, 16):
        made = folder_of(tmp_path / str(count), count * per_shard, rows_per_shard=per_shard, seq_len=seq_len)
        load_corpus(str(made))  # decoded here
        command = [sys.executable, "-c", MEASURE, str(made)]
        used.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert used[1] - used[0] < 0.1 * 15 * per_shard * (seq_len + 1) * 2
    assert used[1] < 1.2 * used[0]


# ------------------------------------------------------------------------------------------------------- batches ahead


class Watched(Batches):
    """Batches that note what is made and fail at a step."""

    made: list
    fails: int | None

    def at(self, step, rank=0, size=1):
        self.made.append((step, threading.current_thread().name))
        if step == self.fails:
            raise RuntimeError("the disk is gone")
        return super().at(step, rank, size)


def watched(tokens, fails=None):
    batches = Watched(tokens, T, 8, 0)
    object.__setattr__(batches, "made", [])
    object.__setattr__(batches, "fails", fails)
    return batches


@pytest.fixture
def rows(folder) -> Rows:
    return load_corpus(str(folder)).train


def making():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_batches_come_in_order_and_not_too_far_ahead(rows):
    batches, world = watched(rows), World(1, 2, torch.device("cpu"))
    with Ahead(batches, world, 3, 12) as ahead:
        for step in range(3, 12):
            assert torch.equal(ahead.take(), torch.from_numpy(Batches(rows, T, 8, 0).at(step, 1, 2)))
            assert len(batches.made) <= step - 3 + DEPTH
    assert [step for step, _ in batches.made] == list(range(3, 12)), "none beyond the last"
    assert all(name.startswith("batches") for _, name in batches.made)
    assert making() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_for_a_gpu_are_pinned(rows, corpus):
    for tokens in (rows, load_corpus(corpus).train):
        with Ahead(watched(tokens), join("cuda"), 0, 3) as ahead:
            batch = ahead.take()
            assert batch.is_pinned()
            assert torch.equal(
                batch.to("cuda", non_blocking=True).cpu(), torch.from_numpy(Batches(tokens, T, 8, 0).at(0))
            )
    assert making() == []


def test_a_text_is_cut_by_the_trainer_itself(corpus):
    batches = watched(load_corpus(corpus).train)
    with Ahead(batches, join("cpu"), 0, 3) as ahead:
        assert torch.equal(ahead.take(), torch.from_numpy(batches.at(0)))
        assert making() == []
    assert {name for _, name in batches.made} == {threading.main_thread().name}


def test_an_error_ahead_reaches_the_trainer(rows):
    batches = watched(rows, fails=2)
    with Ahead(batches, join("cpu"), 0, 9) as ahead:
        ahead.take()
        ahead.take()
        with pytest.raises(RuntimeError, match="the disk is gone"):
            ahead.take()
    assert making() == []


def test_the_thread_ends_with_the_training(tiny, rows, tmp_path, monkeypatch):
    """However that ends."""
    step = learner.Learner.step

    def ending(self, number, own, **flags):
        assert making(), "packed rows are made by a thread"
        if number == 4:
            raise KeyboardInterrupt
        return step(self, number, own, **flags)

    monkeypatch.setattr(learner.Learner, "step", ending)
    with pytest.raises(KeyboardInterrupt):
        train(TrainConfig.of(**tiny), tmp_path / "out", quiet=True)
    assert making() == []
    monkeypatch.undo()
    assert train(TrainConfig.of(**tiny), tmp_path / "out", quiet=True).state == "finished"
    assert making() == []


def test_several_processes_decode_at_once(tmp_path):
    """Each row in place in each of them, and nothing half written."""
    made = folder_of(tmp_path / "rows", 200, rows_per_shard=50)
    digests = together(_digest, str(made), size=4, folder=tmp_path)
    assert len(set(digests)) == 1
    assert sorted(path.suffix for path in (made / ".rows").iterdir()) == ["", *5 * [".ids"], *5 * [".json"]]


def _digest(name):
    corpora._load.cache_clear()
    return load_corpus(name).digest


def test_pack_and_load_agree(tmp_path):
    """What is packed is what is read."""
    source = tmp_path / "a.txt"
    source.write_text("|".join(f"document {number} of all" for number in range(400)))
    pack(Documents(str(source), separator="|"), ByteTokenizer(), tmp_path / "out", seq_len=T)
    rows = load_corpus(str(tmp_path / "out")).train
    ids = rows.take(np.arange(len(rows)))
    text = "".join(load_tokenizer("bytes").texts(ids[ids != rows.bos].tolist()))
    assert text.count("document") > 300
