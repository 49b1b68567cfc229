"""Corpora, their held-out part, and batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bayeslaw.errors import UsageError
from trainer.data import FINEWEB_EDU, Batches, Corpus, held_out, load_corpus, validation_sequences
from trainer.data.corpora import stdlib_sources


def folder(path, names):
    path.mkdir(exist_ok=True)
    for name in names:
        (path / name).parent.mkdir(exist_ok=True, parents=True)
        (path / name).write_text(f"<{name}>" * 5)
    return str(path)


NAMES = [f"sub{number % 3}/file{number}.txt" for number in range(60)]


def test_a_folder_is_split_by_file(tmp_path):
    spec = folder(tmp_path / "a", NAMES)
    corpus = load_corpus(spec)
    train, validation = corpus.train.tobytes().decode(), corpus.validation.tobytes().decode()
    for name in NAMES:
        assert (f"<{name}>" in validation) == held_out(name)
        assert (f"<{name}>" in train) == (not held_out(name))
    assert 0 < sum(map(held_out, NAMES)) < 20
    assert corpus.files == 60
    assert train.count("\0") == 60 - sum(map(held_out, NAMES))
    assert corpus.train.dtype == np.uint8


def test_the_split_knows_neither_place_nor_neighbours(tmp_path):
    first = load_corpus(folder(tmp_path / "a", NAMES))
    same = load_corpus(folder(tmp_path / "b", reversed(NAMES)))
    assert same.digest == first.digest
    more = load_corpus(folder(tmp_path / "c", [*NAMES, "sub0/new.txt", ".hidden/x.txt", "__pycache__/y.txt"]))
    assert more.digest != first.digest
    assert more.files == 61
    assert more.validation.tobytes() == first.validation.tobytes()
    assert not held_out("sub0/new.txt")


def test_a_single_file_is_cut_at_its_end(corpus):
    loaded = load_corpus(corpus)
    content = Path(corpus).read_bytes()
    assert loaded.train.tobytes() + loaded.validation.tobytes() == content
    assert len(loaded.validation) == len(content) // 20
    assert load_corpus(corpus) is loaded  # read once a process


def test_the_standard_library_without_its_tests():
    parts = {part for file in stdlib_sources() for part in file.parts}
    names = {file.name for file in stdlib_sources()}
    assert {"argparse.py", "ast.py", "decoder.py"} <= names
    assert not {"test", "tests", "idle_test", "site-packages", "__pycache__"} & parts
    assert not any(name.startswith("_sysconfigdata") for name in names)


def test_what_is_no_corpus(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\0\0")
    mixed = tmp_path / "mixed"
    folder(mixed, NAMES)
    (mixed / "data.bin").write_bytes(b"a\0b")
    (tmp_path / "nothing").mkdir()
    cases = {
        "stdlb": "the nearest is stdlib",
        str(
            tmp_path / "absent"
        ): "stdlib, or the path of a text file, of a folder of text files or of a folder of packed shards",
        str(empty): "is too short: 0 bytes",
        str(binary): "(?s)binary is a binary file.*next: name another --corpus",
        str(mixed): r"(?s)data\.bin is a binary file.*next: leave it out",
        str(tmp_path / "nothing"): "holds no text",
        folder(
            tmp_path / "few", [name for name in NAMES if not held_out(name)][:3]
        ): "3 files, of which 0 would be held",
    }
    for spec, named in cases.items():
        with pytest.raises(UsageError, match=named) as error:
            load_corpus(spec)
        assert error.value.exit_code == 2


@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson", "X.Parquet", "x.txt.gz", "x.zst"])
def test_documents_that_are_to_be_packed_first(tmp_path, name):
    path = tmp_path / name
    path.write_text("text " * 500)
    with pytest.raises(
        UsageError, match=f"no text file by its name.*\n.*\n  next: pack it with `bayeslaw data pack {path} "
    ):
        load_corpus(str(path))


def test_the_corpora_of_the_hub_are_named(tmp_path):
    with pytest.raises(UsageError, match=f"allowed: .*; or, of the hub, {FINEWEB_EDU}"):
        load_corpus(str(tmp_path / "absent"))


def test_batches_are_a_function_of_seed_and_step():
    tokens = np.arange(200, dtype=np.uint8)
    batches = Batches(tokens, seq_len=8, sequences=3, seed=1)
    for step in (0, 5, 40):
        assert (batches.at(step) == Batches(tokens, 8, 3, seed=1).at(step)).all()
        assert batches.at(step).shape == (3, 9)
        assert (np.diff(batches.at(step)) == 1).all()  # whole windows: the target is the next token
    assert (batches.at(0) != Batches(tokens, 8, 3, seed=2).at(0)).any()


def test_the_order_stays_what_it_was():
    """Runs that were begun by an earlier version go on with the same batches."""
    batches = Batches(np.arange(200, dtype=np.uint8), seq_len=8, sequences=3, seed=1)
    assert [batches.at(step)[:, 0].tolist() for step in (0, 7, 8, 30)] == FROZEN


FROZEN = [[11, 171, 59], [107, 51, 155], [164, 36, 124], [123, 171, 51]]


def test_an_epoch_shows_each_window_once():
    tokens = np.arange(200, dtype=np.uint8)
    batches = Batches(tokens, seq_len=8, sequences=3, seed=1)
    assert batches.windows == 24
    orders = []
    for epoch in range(2):
        shown = np.concatenate([batches.at(step)[:, 0] for step in range(8 * epoch, 8 * epoch + 8)])
        assert (np.diff(np.sort(shown)) == 8).all()
        orders.append(shown.argsort().tolist())
    assert orders[0] != orders[1]


def test_a_sequence_longer_than_the_corpus():
    tokens = np.zeros(100, dtype=np.uint8)
    with pytest.raises(UsageError, match="2 sequences of 64 tokens from a training corpus of 100") as error:
        Batches(tokens, seq_len=64, sequences=2, seed=0)
    assert "shorter --seq-len" in error.value.do
    assert error.value.allowed == "no sequence of this length; at most --seq-len 50"
    Batches(tokens, seq_len=50, sequences=1, seed=0)
    with pytest.raises(UsageError, match="too short for one batch") as error:
        Batches(tokens, seq_len=16, sequences=6, seed=0)
    assert error.value.allowed == "at most 5 sequences of this length, --batch-tokens 80"
    Batches(tokens, seq_len=16, sequences=5, seed=0)
    assert "(112 training tokens or more)" in error.value.do
    Batches(np.zeros(112, dtype=np.uint8), seq_len=16, sequences=6, seed=0)


def test_validation_never_repeats():
    there = (201 - 1) // 16
    corpus = Corpus("numbers", np.zeros(1, np.uint8), np.arange(201, dtype=np.uint8), "", 1)
    for wanted in (5, there):
        sequences = validation_sequences(corpus, 16, wanted * 16 + 3)
        assert sequences.shape == (wanted, 17)
        assert (np.diff(sequences) == 1).all()
        starts = sequences[:, 0]
        assert (starts % 16 == 0).all()
        assert len(set(starts)) == wanted
        assert starts.max() > 0.7 * 201  # spread over all of it
    with pytest.raises(UsageError, match=f"allowed: at most {there * 16}"):
        validation_sequences(corpus, 16, (there + 1) * 16)
    with pytest.raises(
        UsageError, match="allowed: sequences of at most 200 tokens\n  next: choose a shorter --seq-len"
    ):
        validation_sequences(corpus, 201, 201)
    assert validation_sequences(corpus, 200, 200).shape == (1, 201)
