"""Packed shards: those made by hand as the hub has them, and every way in which they can be foreign or damaged."""

from __future__ import annotations

import json
import os
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayeslaw.errors import BayeslawError, DataError, UsageError
from trainer.data import corpora
from trainer.data.checking import check
from trainer.data.documents import Documents
from trainer.data.format import read_metas
from trainer.data.rows import mapped
from trainer.data.tokenizer import ByteTokenizer
from trainer.data.writing import pack

T = 8


@pytest.fixture(autouse=True)
def _forget():
    """A corpus is read once a process; here the same name is another corpus soon."""
    yield
    corpora._load.cache_clear()


def rows_of(count, seed):
    ids = np.random.default_rng(seed).integers(2, 500, (count, T + 1))
    ids[:, 0] = 1
    return ids


def write(path, rows, kind=None, column="tokens"):
    kind = pa.list_(pa.uint16()) if kind is None else kind
    pq.write_table(pa.table({column: pa.array([list(map(int, row)) for row in rows], kind)}), path)


def by_hand(folder, train=(5, 5, 3), val=(4,), kind=None):
    """A folder of the hub's format: nothing in the meta files but what the hub's have."""
    folder.mkdir()
    for split, counts in (("train", train), ("val", val)):
        for number, count in enumerate(counts):
            write(folder / f"{split}-{number:05d}.parquet", rows_of(count, number), kind)
        meta = {
            "row_capacity": T + 1,
            "seq_len": T,
            "vocab_size": 500,
            "bos_token_id": 1,
            "total_rows": sum(counts),
            "split": split,
        }
        (folder / f"meta_{split}.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.parametrize("kind", [None, pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.uint16(), T + 1)])
def test_shards_made_by_hand_are_read(tmp_path, kind):
    folder = by_hand(tmp_path / "hub", kind=kind)
    corpus = corpora.load_corpus(str(folder))
    expected = np.concatenate([rows_of(count, number) for number, count in enumerate((5, 5, 3))])
    assert len(corpus.train) == 13
    assert (corpus.train.take(np.arange(13)) == expected).all()
    order = np.array([12, 0, 5, 4, 5, 9, 10])
    assert (corpus.train.take(order) == expected[order]).all()
    assert corpus.train.maps[0].dtype == np.uint16
    assert (corpus.vocab_size, corpus.seq_len, corpus.train.bos, corpus.files) == (500, T, 1, 4)
    train, validation = check(folder)
    assert (train.rows, train.shards, validation.rows) == (13, 3, 4)
    assert not train.verified
    assert train.utilisation == pytest.approx(T / (T + 1))
    assert train.pieces_per_row == 1
    assert train.digest == corpus.train.digest


def test_the_digest_knows_rows_and_not_how_they_are_stored(tmp_path):
    digests = [
        corpora.load_corpus(str(by_hand(tmp_path / name, train, kind=kind))).digest
        for name, train, kind in (
            ("a", (5, 5, 3), None),
            ("b", (5, 5, 3), pa.list_(pa.int32())),
            ("c", (5, 5, 4), None),
        )
    ]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def changed_meta(folder, of="train", **changes):
    path = folder / f"meta_{of}.json"
    meta = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in meta.items() if value is not None}))


def with_row(place, row, number=1):
    """Give a shard another row."""

    def change(folder):
        rows = [list(each) for each in rows_of(5, number)]
        rows[place] = row
        write(folder / f"train-{number:05d}.parquet", rows)

    return change


GOOD = [1, *range(2, 2 + T)]
DAMAGES = {
    "no meta": (lambda folder: (folder / "meta_train.json").unlink(), r"holds packed shards and no meta_train\.json"),
    "no val": (lambda folder: (folder / "meta_val.json").unlink(), r"holds packed shards and no meta_val\.json"),
    "meta no JSON": (lambda folder: (folder / "meta_train.json").write_text("{"), r"meta_train\.json cannot be read"),
    "meta a list": (
        lambda folder: (folder / "meta_train.json").write_text("[]"),
        r"meta_train\.json holds no JSON object",
    ),
    "meta lacks": (lambda folder: changed_meta(folder, seq_len=None), r"meta_train\.json lacks seq_len"),
    "meta type": (lambda folder: changed_meta(folder, seq_len="8"), r"seq_len = '8'\n  allowed: a whole number"),
    "meta split": (lambda folder: changed_meta(folder, split="val"), r"split = 'val'\n  allowed: train"),
    "capacity": (lambda folder: changed_meta(folder, row_capacity=8), r"row_capacity = 8 with seq_len = 8"),
    "bos": (lambda folder: changed_meta(folder, bos_token_id=500), r"bos_token_id = 500 with vocab_size = 500"),
    "splits": (lambda folder: changed_meta(folder, vocab_size=501), r"vocab_size is 501 in meta_train.json and 500"),
    "own keys": (lambda folder: changed_meta(folder, shards=[{"rows": 3}]), r"shards or tokenizer are not as"),
    "own sum": (
        lambda folder: changed_meta(folder, shards=[{"rows": 3, "sha256": ""}]),
        r"total_rows = 13, and its sh",
    ),
    "own digest": (
        lambda folder: changed_meta(folder, shards=[{"rows": 13, "sha256": "0"}], digest="1"),
        r"meta_train\.json: digest = '1', and that of its shards is 5feceb66",
    ),
    "own shards": (
        lambda folder: changed_meta(folder, packer=1),
        r"meta_train\.json was written by `bayeslaw data pack` and lacks shards",
    ),
    "later packer": (
        lambda folder: changed_meta(folder, packer=2),
        r"packer = 2\n  allowed: 1 or less.*\n  next: read the folder with the version",
    ),
    "total": (lambda folder: changed_meta(folder, total_rows=14), r"3 train shards have 13 rows\n  allowed: 14"),
    "last lost": (
        lambda folder: (folder / "train-00002.parquet").unlink(),
        r"2 train shards have 10 rows\n  allowed: 13",
    ),
    "one more": (
        lambda folder: write(folder / "train-00003.parquet", rows_of(2, 9)),
        r"4 train shards have 15 rows\n  allowed: 13, .*: a shard may be of another data set\n  next: take out",
    ),
    "four digits": (
        lambda folder: (folder / "train-00001.parquet").rename(folder / "train-0001.parquet"),
        r"train-00001\.parquet is missing",
    ),
    "link to nothing": (
        lambda folder: [
            (folder / "train-00002.parquet").unlink(),
            (folder / "train-00002.parquet").symlink_to(folder / "gone"),
        ],
        r"train-00002\.parquet is missing",
    ),
    "held out twice": (
        lambda folder: [
            shutil.copy(folder / "train-00001.parquet", folder / "val-00000.parquet"),
            changed_meta(folder, "val", total_rows=5),
        ],
        r"train-00001\.parquet and val-00000\.parquet hold the same rows",
    ),
    "one lost": (lambda folder: (folder / "train-00001.parquet").unlink(), r"train-00001\.parquet is missing"),
    "truncated": (
        lambda folder: os.truncate(folder / "train-00001.parquet", 100),
        r"train-00001\.parquet is no whole Parquet file",
    ),
    "empty": (
        lambda folder: os.truncate(folder / "train-00001.parquet", 0),
        r"train-00001\.parquet is no whole Parquet",
    ),
    "column": (
        lambda folder: write(folder / "train-00001.parquet", rows_of(5, 1), column="token"),
        r"train-00001\.parquet has the columns token\n.*\n  next: rename the column token to tokens",
    ),
    "no lists": (
        lambda folder: pq.write_table(pa.table({"tokens": range(5)}), folder / "train-00001.parquet"),
        r"train-00001\.parquet: tokens is int64",
    ),
    "texts": (
        lambda folder: pq.write_table(pa.table({"tokens": [["a"]] * 5}), folder / "train-00001.parquet"),
        r"train-00001\.parquet: tokens is list<.*string>",
    ),
    "short row": (with_row(2, GOOD[:-1]), r"train-00001\.parquet: row 2 has 8 ids\n  allowed: 9"),
    "long row": (with_row(4, [*GOOD, 5]), r"train-00001\.parquet: row 4 has 10 ids"),
    "null row": (
        lambda folder: pq.write_table(
            pa.table({"tokens": pa.array([GOOD] * 4 + [None], pa.list_(pa.uint16()))}), folder / "train-00001.parquet"
        ),
        r"train-00001\.parquet: row 4 is null",
    ),
    "null id": (
        lambda folder: pq.write_table(
            pa.table({"tokens": pa.array([GOOD] * 3 + [[*GOOD[:-1], None]] + [GOOD], pa.list_(pa.uint16()))}),
            folder / "train-00001.parquet",
        ),
        r"train-00001\.parquet: row 3 holds a null",
    ),
    "large id": (with_row(3, [*GOOD[:-1], 500]), r"row 3 holds the id 500\n  allowed: 0 to 499: vocab_size is 500"),
    "negative id": (
        lambda folder: write(
            folder / "train-00001.parquet", [GOOD, [*GOOD[:-1], -3], GOOD, GOOD, GOOD], pa.list_(pa.int32())
        ),
        r"row 1 holds the id -3",
    ),
    "no BOS": (with_row(1, [7, *GOOD[1:]]), r"train-00001\.parquet: row 1 starts with the id 7\n  allowed: 1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_has_its_message(tmp_path, damage):
    change, named = DAMAGES[damage]
    folder = by_hand(tmp_path / "hub")
    change(folder)
    for read in (lambda: corpora.load_corpus(str(folder)), lambda: check(folder)):
        with pytest.raises(DataError, match=named) as error:
            read()
        assert error.value.exit_code == 1
        assert error.value.do
    cache = folder / ".rows"
    assert not cache.exists() or all(not path.name.startswith(".") for path in cache.iterdir()), "nothing half decoded"


def test_damage_in_the_middle_of_a_shard(tmp_path):
    folder = by_hand(tmp_path / "hub", train=(4000,))
    path = folder / "train-00000.parquet"
    content = bytearray(path.read_bytes())
    content[2000:6000] = bytes(4000)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train-00000\.parquet"):
        corpora.load_corpus(str(folder))


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "a.txt"
    source.write_text("|".join(f"this is document {number}" for number in range(800)))
    out = source.with_name("packed")
    pack(Documents(str(source), separator="|"), ByteTokenizer(), out, seq_len=T, rows_per_shard=700)
    return out


def test_other_rows_than_were_packed(packed, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy")
    train, _ = check(folder)
    assert train.verified
    table = pq.read_table(folder / "train-00001.parquet")
    rows = table["tokens"].to_pylist()
    rows[33][4] ^= 1
    write(folder / "train-00001.parquet", rows)
    for read in (lambda: check(folder), lambda: corpora.load_corpus(str(folder))):
        with pytest.raises(DataError, match=r"train-00001\.parquet holds other rows than were packed"):
            read()
    write(folder / "train-00001.parquet", rows[:-1])
    with pytest.raises(DataError, match=r"train-00001\.parquet has 699 rows\n  allowed: 700, as its meta file says"):
        check(folder)


def test_rows_that_change_after_they_were_decoded(packed, tmp_path):
    """The decoded rows stand for the shard only as long as it is the same file."""
    folder = shutil.copytree(packed, tmp_path / "copy")
    digest = corpora.load_corpus(str(folder)).digest
    corpora._load.cache_clear()
    shard = folder / "train-00001.parquet"
    rows = pq.read_table(shard)["tokens"].to_pylist()
    write(shard, [*rows[1:], rows[0]])
    with pytest.raises(DataError, match="holds other rows than were packed"):
        corpora.load_corpus(str(folder))
    shutil.copy(packed / shard.name, shard)
    assert corpora.load_corpus(str(folder)).digest == digest


def test_more_shards_than_listed(packed, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy")
    shutil.copy(folder / "train-00000.parquet", folder / "train-00007.parquet")
    with pytest.raises(DataError, match=r"train-00007\.parquet is not of the data set: meta_train\.json lists"):
        check(folder)


def test_a_tokenizer_that_does_not_belong_to_the_shards(packed, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy")
    for split in ("train", "val"):
        changed_meta(folder, split, vocab_size=300)
    with pytest.raises(DataError, match="the tokenizer beside the shards has 257 tokens, their vocab_size is 300"):
        check(folder)


def decoded(folder):
    """When each decoded file was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.ids")}


def test_shards_are_decoded_once(packed, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy")
    corpus = corpora.load_corpus(str(folder))
    first = decoded(folder / ".rows")
    assert len(first) == corpus.files
    train, _ = read_metas(folder)
    assert mapped(train).digest == corpus.train.digest
    assert decoded(folder / ".rows") == first
    # a decoded file that is short, one whose account is lost, and a shard that was written again
    short = folder / ".rows" / "train-00000.ids"
    short.unlink()  # which is still mapped
    short.write_bytes(bytes(10))
    (folder / ".rows" / "train-00001.json").write_text("{")
    os.utime(folder / "train-00002.parquet")
    again = mapped(train)
    assert (again.take(np.arange(len(again))) == corpus.train.take(np.arange(len(again)))).all()
    other = decoded(folder / ".rows")
    assert [name for name in sorted(first) if other[name] != first[name]] == [f"train-0000{n}.ids" for n in range(3)]


def test_decoded_rows_that_were_written_over(packed, tmp_path):
    """Of the same size: whoever notices that a file was written since decodes anew; `check` reads what it holds."""
    folder = shutil.copytree(packed, tmp_path / "copy", ignore=lambda *_: [".rows"])
    train, _ = read_metas(folder)
    expected = mapped(train).take(np.arange(5)).copy()
    raw = folder / ".rows" / "train-00000.ids"
    size = raw.stat().st_size
    raw.unlink()  # which is still mapped
    raw.write_bytes(bytes(size))
    assert check(folder)[0].verified, "it will be decoded anew"
    assert (mapped(train).take(np.arange(5)) == expected).all()
    times = (raw.stat().st_atime_ns, raw.stat().st_mtime_ns)
    with raw.open("r+b") as file:
        file.write(bytes(7))
    os.utime(raw, ns=times)
    with pytest.raises(
        DataError, match=r"train-00000\.ids holds other rows than .*\n  next: delete the folder .*\.rows"
    ):
        check(folder)


def test_what_a_killed_process_left_half_decoded_goes(packed, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy", ignore=lambda *_: [".rows"])
    (folder / ".rows").mkdir()
    for left in (".train-00002.ids.4194305", ".train-00002.json.4194305"):
        (folder / ".rows" / left).touch()
    mapped(read_metas(folder)[0])
    assert not list((folder / ".rows").glob(".*"))


def test_rows_that_another_decoded_are_read(packed, tmp_path, monkeypatch):
    """Where the folder may not be written, and the rows are there: nothing is decoded again."""
    folder = shutil.copytree(packed, tmp_path / "copy")
    digest = corpora.load_corpus(str(folder)).digest
    corpora._load.cache_clear()
    (folder / ".rows" / "lock").unlink()
    (folder / ".rows" / "lock").mkdir()  # as good as one that may not be opened
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert corpora.load_corpus(str(folder)).digest == digest
    assert not (tmp_path / "cache").exists()


def test_a_word_where_it_takes_long(packed, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainer.data.rows.WORTH_A_WORD", 0)
    folder = shutil.copytree(packed, tmp_path / "copy", ignore=lambda *_: [".rows"])
    mapped(read_metas(folder)[0])
    assert "shards are decoded once into" in capsys.readouterr().err
    mapped(read_metas(folder)[0])
    assert capsys.readouterr().err == ""


def test_no_room_for_the_decoded_rows(packed, tmp_path, monkeypatch):
    """A file where the folder would be: both places are closed."""
    folder = shutil.copytree(packed, tmp_path / "copy")
    (folder / ".rows").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(corpora.load_corpus(str(folder)).train) == len(corpora.load_corpus(str(packed)).train)
    assert list((tmp_path / "cache" / "bayeslaw").glob("*/train-00000.ids"))
    corpora._load.cache_clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"no place for the decoded rows of .*\n.*\n  next: set XDG_CACHE_HOME"):
        corpora.load_corpus(str(folder))


def test_what_is_not_packed(tmp_path):
    with pytest.raises(UsageError, match=r"is no packed data set\n.*\n  next: check the path, or pack"):
        check(tmp_path)


def test_the_hub_is_asked_once(tmp_path, monkeypatch):
    """What was downloaded is read without the hub; what was only half downloaded is asked for again."""
    hub = pytest.importorskip("huggingface_hub")
    folder, asked = tmp_path / "hub", []

    def snapshot_download(name, *, repo_type, local_files_only=False, allow_patterns=None):
        assert (name, repo_type) == (corpora.FINEWEB_EDU, "dataset")
        asked.append(local_files_only)
        if not folder.exists():
            if local_files_only:
                raise hub.errors.LocalEntryNotFoundError("not here")
            by_hand(folder)
        elif not local_files_only:
            shutil.rmtree(folder)
            by_hand(folder)
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert not corpora.on_this_machine(corpora.FINEWEB_EDU)
    asked.clear()
    assert len(corpora.load_corpus(corpora.FINEWEB_EDU).train) == 13
    assert asked == [True, False]
    assert corpora.on_this_machine(corpora.FINEWEB_EDU)
    corpora._load.cache_clear()
    asked.clear()
    corpora.load_corpus(corpora.FINEWEB_EDU)
    assert asked == [True]
    corpora._load.cache_clear()
    (folder / "train-00002.parquet").unlink()
    asked.clear()
    corpora.load_corpus(corpora.FINEWEB_EDU)
    assert asked == [True, False]


def test_without_a_way_to_the_hub(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def snapshot_download(name, **settings):
        raise hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    with pytest.raises(UsageError, match=r"the hub did not give it .*not on this machine\n.*\n  next: .*hf download"):
        corpora.load_corpus(corpora.FINEWEB_EDU)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BayeslawError, match=r"client is not installed \(pip install 'bayeslaw\[data\]'\)"):
        corpora.load_corpus(corpora.FINEWEB_EDU)
