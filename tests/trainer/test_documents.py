"""Documents of every kind of source, and what is no document."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayeslaw.errors import BayeslawError, DataError, UsageError
from trainer.data.documents import BLOCK, Documents, hub_name, pinned

TEXTS = ["one", "", "zwei\nZeilen", "trois €", " "]


def texts(source, **settings):
    return list(Documents(str(source), **settings))


def lines(values, field="text"):
    return "".join(json.dumps({"id": number, field: value}) + "\n" for number, value in enumerate(values))


def test_a_text_file_is_a_document_or_many(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("first\r\n\n€\nthird".encode())
    assert texts(path) == ["first\r\n\n€\nthird"]
    assert texts(path, separator="\n") == ["first\r", "", "€", "third"]
    assert texts(path, separator="\r\n\n€") == ["first", "\nthird"]
    with pytest.raises(UsageError, match="an empty separator"):
        Documents(str(path), separator="")


def test_a_separator_across_blocks(tmp_path):
    path = tmp_path / "a.txt"
    for before in range(BLOCK - 6, BLOCK + 2):
        path.write_bytes(b"x" * before + b"<end>" + b"y" * BLOCK + b"<end>")
        assert [len(text) for text in texts(path, separator="<end>")] == [before, BLOCK, 0]


def test_json_lines_and_parquet(tmp_path):
    (tmp_path / "a.jsonl").write_text("\ufeff" + lines(TEXTS) + "\n  \n" + lines(["last"]).rstrip("\n"))
    assert texts(tmp_path / "a.jsonl") == [*TEXTS, "last"]
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(lines(TEXTS, field="body"))
    assert texts(tmp_path / "b.jsonl.gz", text_field="body") == TEXTS
    (tmp_path / "c.jsonl.zst").write_bytes(pa.compress(lines(TEXTS).encode(), codec="zstd", asbytes=True))
    assert texts(tmp_path / "c.jsonl.zst") == TEXTS
    for number, kind in enumerate((pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"text": pa.array([*TEXTS, None]).cast(kind), "x": range(6)}), path, row_group_size=2)
        assert texts(path) == [*TEXTS, ""]


def test_a_folder_in_the_order_of_its_paths(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.jsonl").write_text(lines(["1", "2"]))
    (tmp_path / "a.txt").write_text("0")
    (tmp_path / "c.md").write_text("3")
    (tmp_path / ".hidden").write_text("no")
    assert texts(tmp_path) == ["0", "1", "2", "3"]
    assert Documents(str(tmp_path)).name == tmp_path.name
    assert Documents("stdlib").name == "stdlib"
    assert any("class ArgumentParser" in text for text in Documents("stdlib"))


def test_what_is_no_document(tmp_path):
    def file(name, content):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    table = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"texts": TEXTS * 1000, "number": range(5000)}), table)
    cases = [
        (file("a.txt", "naïve".encode("latin-1")), {}, r"a\.txt is not UTF-8: byte 2"),
        (file("a2.txt", b"ok|" + b"\xff"), {"separator": "|"}, r"a2\.txt is not UTF-8: byte 3"),
        (file("b.txt", b"a\0b"), {}, r"b\.txt is a binary file"),
        (file("c.jsonl", b'{"text": "a"}\n\n{"text": \n'), {}, r"c\.jsonl:3 is no JSON"),
        (file("d.jsonl", b'{"text": "a"}\n{"text": 3}\n'), {}, r"d\.jsonl:2: text is 3\n  allowed: a text"),
        (file("e.jsonl", b'{"texts": "a"}\n'), {}, r"(?s)e\.jsonl:1 has no text.*next: the nearest is texts"),
        (file("f.jsonl", b"[1]\n"), {}, r"f\.jsonl:1 holds \[1\]"),
        (file("g.jsonl", b'{"text": "\xff"}\n'), {}, r"g\.jsonl:1 is not UTF-8"),
        (file("h.jsonl", b'{"text": "\\ud800"}\n'), {}, r"h\.jsonl:1: text holds half of a surrogate pair"),
        (file("n.jsonl", b"[" * 100_000), {}, r"n\.jsonl:1 is"),
        (table, {}, r"(?s)whole\.parquet has no text.*next: the nearest is texts"),
        (table, {"text_field": "number"}, r"whole\.parquet: the column number is int64"),
        (file("i.parquet", table.read_bytes()[:-20]), {"text_field": "texts"}, r"i\.parquet is no whole Parquet file"),
        (file("j.parquet", b""), {}, r"j\.parquet is no whole Parquet file"),
        (file("k.jsonl.gz", b"no gzip"), {}, r"k\.jsonl\.gz is damaged"),
        (file("l.jsonl.gz", gzip.compress(lines(TEXTS * 999).encode())[:-30]), {}, r"l\.jsonl\.gz is damaged"),
    ]
    for path, settings, named in cases:
        with pytest.raises(BayeslawError, match=named):
            texts(path, **settings)
    damaged = bytearray(table.read_bytes())
    damaged[40:4000] = bytes(3960)
    with pytest.raises(DataError, match="no whole Parquet file"):
        texts(file("m.parquet", bytes(damaged)), text_field="texts")
    (tmp_path / "empty").mkdir()
    for source, named in [("stdlb", "the nearest is stdlib"), (tmp_path / "empty", "holds no file"), ("", "source ''")]:
        with pytest.raises(UsageError, match=named):
            texts(source)


def test_names_of_the_hub():
    assert hub_name("hf:a/b") == ("a/b", None, None)
    assert hub_name("hf:a/b/c@v1") == ("a/b", "c", "v1")
    assert hub_name("hf:a/b@refs/pr/1") == ("a/b", None, "refs/pr/1")
    assert hub_name("hf:b") == ("b", None, None)
    assert pinned("stdlib") == "stdlib"
    for name in ("hf:", "hf:a/b/c/d", "hf:/a"):
        with pytest.raises(UsageError, match="allowed: hf:OWNER/NAME"):
            hub_name(name)


def test_a_data_set_of_the_hub_is_streamed(tmp_path, monkeypatch):
    """A local data set takes the code path of one of the hub."""
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text(lines(["a", "b", None]))
    source = f"hf:{folder}"
    assert texts(source) == ["a", "b", ""]
    assert pinned(source) == source
    with pytest.raises(UsageError, match="the nearest is text"):
        texts(source, text_field="txt")
    with pytest.raises(DataError, match=r"row 0: id is 0"):
        texts(source, text_field="id")
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot be read"):
        texts(f"hf:{other}")


def test_the_commit_of_a_data_set_is_kept(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    class Info:
        sha = "0123abcd"

    monkeypatch.setattr(hub.HfApi, "dataset_info", lambda self, name, revision=None: Info)
    assert pinned("hf:a/b/c@main") == "hf:a/b/c@0123abcd"
    assert pinned("hf:a/b") == "hf:a/b@0123abcd"


def test_offline_it_says_what_to_do(tmp_path):
    pytest.importorskip("datasets")
    for arguments, named in (
        (["hf:nobody/none", "--tokenizer", "bytes"], "hf download nobody/none --repo-type dataset"),
        (["stdlib", "--tokenizer", "nobody/none"], "hf download nobody/none tokenizer.json"),
    ):
        command = [
            sys.executable,
            "-m",
            "bayeslaw",
            "data",
            "pack",
            *arguments,
            "--seq-len",
            "8",
            "--out",
            tmp_path / "o",
        ]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode in (1, 2), done.stderr
        assert named in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "o").exists()
