"""Packing: full rows, nothing lost, the same bytes each time, whole or not at all."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.errors import BayeslawError, UsageError
from trainer.data.documents import Documents
from trainer.data.format import storage
from trainer.data.packing import Packer
from trainer.data.tokenizer import ByteTokenizer, load_tokenizer, trained
from trainer.data.writing import is_held_out, pack


def packed(lengths, capacity, waiting):
    """Rows and packer of documents of so many tokens, all tokens distinct."""
    ends = np.cumsum([0, *lengths])
    packer = Packer(capacity, BOS_ID, storage(BOS_ID + 1), waiting=waiting)
    rows = []
    for begin, end in itertools.pairwise(ends):
        rows += packer.add(np.arange(begin, end, dtype="<u4"))
    return [*rows, *packer.rest()], packer, int(ends[-1])


BOS_ID = 2**20
"""Above all tokens of the documents here, so that these are stored in four bytes."""


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 90), max_size=60), st.integers(2, 20), st.integers(0, 30))
def test_rows_are_full_and_no_token_is_lost(lengths, capacity, waiting):
    rows, packer, total = packed(lengths, capacity, waiting)
    assert all(row.shape == (capacity,) and row.dtype == np.uint32 and row[0] == BOS_ID for row in rows)
    ids = np.concatenate([*rows, np.empty(0, np.uint32)])
    tokens = ids[ids != BOS_ID]
    assert len(set(tokens.tolist())) == len(tokens), "a token twice"
    assert len(tokens) + packer.waiting_tokens == total
    assert packer.waiting_tokens < capacity - 1 or not lengths
    assert set(tokens.tolist()) <= set(range(total))
    again, _, _ = packed(lengths, capacity, waiting)
    assert all((row == other).all() for row, other in zip(rows, again, strict=True))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(2, 40))
def test_a_piece_is_a_stretch_of_one_document(lengths, capacity):
    """Between two BOS is a stretch of one document, in its order; no row cuts more than one for want of room."""
    rows, _, _ = packed(lengths, capacity, waiting=1000)
    ends = np.cumsum(lengths)
    pieces = Counter()
    for row in rows:
        for piece in np.split(row, np.flatnonzero(row == BOS_ID))[1:]:
            tokens = piece[1:]
            assert (np.diff(tokens.astype(np.int64)) == 1).all()
            if len(tokens):
                (document,) = set(np.searchsorted(ends, tokens, side="right").tolist())
                pieces[document] += 1
    cut = sum(count - 1 for count in pieces.values())
    assert cut <= len(rows) + sum((length - 1) // (capacity - 1) for length in lengths)


def test_a_long_document_is_cut_into_whole_rows_and_a_rest():
    rows, packer, _ = packed([25, 4], 10, waiting=0)
    assert rows[0].tolist() == [BOS_ID, *range(9)]
    assert rows[1].tolist() == [BOS_ID, *range(9, 18)]
    # the rest of seven tokens and its BOS leave two places: BOS and a token of the next document
    assert rows[2].tolist() == [BOS_ID, *range(18, 25), BOS_ID, 25]
    assert packer.waiting_tokens == 3


def test_best_fit_and_the_longest_cut():
    """Lengths with BOS 7, 4, 3 fill a row of 10 by 7 + 3; then 4 waits and 9 comes: 9 in 10 leaves one place, a BOS."""
    rows, packer, _ = packed([6, 3, 2, 8], 10, waiting=4)
    assert [row.tolist().count(BOS_ID) for row in rows] == [2, 2]
    assert rows[0].tolist() == [BOS_ID, *range(11, 19), BOS_ID]
    assert rows[1].tolist() == [BOS_ID, *range(6), BOS_ID, 9, 10]
    assert packer.waiting_tokens == 3


def test_documents_that_fit_are_hardly_cut():
    draw = random.Random(0)
    lengths = [min(200, 1 + int(draw.expovariate(1 / 40))) for _ in range(5000)]
    rows, packer, total = packed(lengths, 257, waiting=4096)
    begins = sum(int((row == BOS_ID).sum()) for row in rows)
    assert begins < 1.05 * len(lengths), "five in a hundred cut"
    assert packer.waiting_tokens < 256
    assert len(rows) * 257 == begins + total - packer.waiting_tokens


def test_what_waits_takes_memory_and_not_what_could():
    """A packer for long rows holds no queue for every length that a piece may have."""
    tracemalloc.start()
    try:
        packer = Packer(2**16, BOS_ID, storage(BOS_ID + 1))
        assert list(packer.add(np.arange(5, dtype="<u4"))) == []
        assert packer.waiting_tokens == 5
        assert tracemalloc.get_traced_memory()[1] < 2**16 * 8, "less than a reference a length"
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------------------------- folders


@pytest.fixture
def source(tmp_path):
    """Documents of one to 400 bytes, empty ones, and one of 9,000."""
    draw = random.Random(1)
    texts = ["".join(draw.choice("abcdefg ") for _ in range(draw.randrange(400))) for _ in range(600)]
    texts += ["", "", "é", "z" * 9000, texts[0]]
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path, texts


def made(path, out, **changes):
    return pack(Documents(str(path)), ByteTokenizer(), out, **{"seq_len": 64, "rows_per_shard": 500} | changes)


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def ids_of(folder, split):
    tables = [pq.read_table(path) for path in sorted(folder.glob(f"{split}-*.parquet"))]
    return np.concatenate([np.stack(table["tokens"].to_numpy()) for table in tables])


def test_the_same_bytes_twice(source, tmp_path):
    path, _ = source
    made(path, tmp_path / "a")
    (tmp_path / "b").mkdir()  # an empty folder is no obstacle
    moved = path.with_name("elsewhere")
    moved.mkdir()
    (moved / path.name).write_bytes(path.read_bytes())
    made(moved / path.name, tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    made(path, tmp_path / "c", seed=1)
    first, other = content(tmp_path / "a"), content(tmp_path / "c")
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)
    assert (
        np.sort(ids_of(tmp_path / "a", "val").ravel())[:99] == np.sort(ids_of(tmp_path / "c", "val").ravel())[:99]
    ).all()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_the_same_bytes_twice_with_a_trained_tokenizer(source, tmp_path):
    """Whatever threads the library tokenises with."""
    pytest.importorskip("tokenizers")
    path, texts = source
    (tmp_path / "t.json").write_bytes(trained(texts, 300))
    for name in ("a", "b"):
        pack(Documents(str(path)), load_tokenizer(str(tmp_path / "t.json")), tmp_path / name, seq_len=32)
    there = content(tmp_path / "a")
    assert there == content(tmp_path / "b")
    assert there["tokenizer.json"] == load_tokenizer(str(tmp_path / "t.json")).content


def test_the_folder_is_as_described_and_no_token_is_lost(source, tmp_path):
    path, texts = source
    splits = made(path, tmp_path / "a")
    held = Counter(is_held_out(text, 0.05) for text in texts if text)
    everything = Counter()
    for split, which in zip(splits, (False, True), strict=True):
        meta = json.loads((tmp_path / "a" / f"meta_{split.split}.json").read_text())
        expected = {"row_capacity": 65, "seq_len": 64, "vocab_size": 257, "bos_token_id": 256, "split": split.split}
        assert expected.items() <= meta.items()
        ids = ids_of(tmp_path / "a", split.split)
        assert ids.dtype == np.uint16
        assert ids.shape == (split.rows, 65) == (meta["total_rows"], 65)
        assert (ids[:, 0] == 256).all()
        assert meta["documents"] == split.documents == held[which]
        said = b"".join(text.encode() for text in texts if text and is_held_out(text, 0.05) == which)
        tokens = ids[ids != 256]
        assert len(tokens) == split.tokens == len(said) - split.tokens_left_out
        assert 0 <= split.tokens_left_out < 64
        missing = Counter(said)
        missing.subtract(tokens.tolist())
        assert min(missing.values()) >= 0
        assert sum(missing.values()) == split.tokens_left_out
        everything.update(said)
    assert sum(split.empty_documents for split in splits) == texts.count("")
    shards = sorted(file.name for file in (tmp_path / "a").glob("train-*"))
    assert shards == [f"train-{number:05d}.parquet" for number in range(-(-splits[0].rows // 500))]
    assert len(shards) > 2
    assert {pq.ParquetFile(tmp_path / "a" / name).metadata.num_rows for name in shards[:-1]} == {500}
    kind = pq.ParquetFile(tmp_path / "a" / shards[0]).schema_arrow
    assert kind.names == ["tokens"]
    assert str(kind.field("tokens").type) in ("list<element: uint16>", "list<item: uint16>")


def test_a_document_and_its_copies_are_on_one_side(source, tmp_path):
    _, texts = source
    assert 10 < sum(is_held_out(text, 0.05) for text in texts) < 60
    assert [is_held_out(text, 0.05) for text in texts] <= [is_held_out(text, 0.5) for text in texts]
    assert is_held_out("a", 0.999999)


def test_a_vocabulary_beyond_two_bytes(tmp_path):
    class Wide(ByteTokenizer):
        """Bytes from 70,000 up."""

        def __init__(self):
            super().__init__()
            self.name, self.content, self.bos, self.vocab_size = "wide", b"wide", 0, 70_256

        def encode(self, texts):
            return [ids.astype("<u4") + 70_000 for ids in super().encode(texts)]

    path = tmp_path / "a.txt"
    path.write_text("|".join(f"document {number} " * 5 for number in range(300)))
    pack(Documents(str(path), separator="|"), Wide(), tmp_path / "out", seq_len=16)
    ids = ids_of(tmp_path / "out", "train")
    assert ids.dtype == np.uint32
    assert set(np.unique(ids).tolist()) - {0} <= set(range(70_000, 70_256))
    assert storage(2**16) == np.uint16
    assert storage(2**16 + 1) == np.uint32


def test_what_cannot_be_packed(source, tmp_path):
    path, _ = source
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "short.txt").write_text("a few words")
    cases = [
        ({"out": tmp_path / "full"}, "is there already"),
        ({"out": path}, "is there already"),
        ({"seq_len": 0}, "seq_len = 0"),
        ({"seq_len": 2**20 + 1}, "seq_len = 1048577\n  allowed: a whole number, 1 to 1048576"),
        ({"rows_per_shard": 0}, "rows_per_shard = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"validation_share": 0.0}, r"validation_share = 0\.0"),
        ({"validation_share": 1.0}, r"validation_share = 1\.0"),
        ({"seq_len": 200_000}, "training part is .* no whole row of 200000 tokens"),
        ({"seq_len": 8000}, r"(?s)the held-out part is .*larger --validation-share.*--separator"),
        ({"path": tmp_path / "short.txt"}, "the training part is|the held-out part is"),
    ]
    for changes, named in cases:
        with pytest.raises(UsageError, match=named):
            made(**{"path": path, "out": tmp_path / "new"} | changes)
    (tmp_path / "file").touch()
    with pytest.raises(BayeslawError, match="cannot write"):
        made(path, tmp_path / "file" / "new")
    path.write_text(path.read_text() + "{")
    with pytest.raises(BayeslawError, match="is no JSON"):
        made(path, tmp_path / "new")
    assert not any("new" in each.name for each in tmp_path.iterdir()), "a failed packing leaves nothing"


CODE = """
import sys
from pathlib import Path
from trainer.data import writing
from trainer.data.documents import Documents
from trainer.data.tokenizer import ByteTokenizer
write = writing.ShardWriter._end
def slow(self):
    write(self)
    print("shard", flush=True)
    sys.stdin.readline()
writing.ShardWriter._end = slow
writing.pack(Documents(sys.argv[1]), ByteTokenizer(), Path(sys.argv[2]), seq_len=64, rows_per_shard=500)
"""


def test_a_killed_packing_leaves_nothing_that_looks_whole(source, tmp_path):
    """And its command goes on, by beginning anew; while it packs, no other does."""
    from trainer.data import load_corpus

    path, _ = source
    out = tmp_path / "out"
    command = [sys.executable, "-c", CODE, str(path), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "shard\n"
        with pytest.raises(UsageError, match="another process is packing"):
            made(path, out)
        with pytest.raises(
            UsageError, match=r"not packed to its end.*\n  next: wait for the packing, or give its command"
        ):
            load_corpus(str(out))
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert (tmp_path / ".out.packing").is_dir()
    made(path, out)
    made(path, tmp_path / "whole")
    assert content(out) == content(tmp_path / "whole")
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []


def test_memory_does_not_grow_with_the_source(tmp_path):
    """Ten times the documents, about the same peak."""
    code = (
        "import resource, sys; from pathlib import Path; from trainer.data import writing;"
        "writing.SHUFFLED_CHARACTERS = 2**18; writing.AT_ONCE = 2**16;"
        "from trainer.data.documents import Documents; from trainer.data.tokenizer import ByteTokenizer;"
        "writing.pack(Documents(sys.argv[1]), ByteTokenizer(), Path(sys.argv[2]), seq_len=128);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for times in (1, 10):
        source = tmp_path / f"{times}.jsonl"
        draw = random.Random(0)
        with source.open("w") as file:
            for _ in range(2000 * times):
                file.write(json.dumps({"text": f"{draw.random()} " * 100}) + "\n")
        command = [sys.executable, "-c", code, str(source), str(tmp_path / f"out{times}")]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    written = os.path.getsize(tmp_path / "10.jsonl") / 1024
    assert peaks[1] - peaks[0] < 0.5 * written


def test_progress_is_told(source, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.data.writing.TELL_EVERY", 0.0)
    told = []
    made(source[0], tmp_path / "a", tell=told.append)
    assert "documents read" in told[-1]
