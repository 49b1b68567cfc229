"""Tokenizers: bytes, trained here, read from a file; BOS; what is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("tokenizers")

from bayeslaw.errors import BayeslawError, UsageError
from trainer.data.format import read_meta
from trainer.data.tokenizer import (
    ByteTokenizer,
    LibraryTokenizer,
    digest,
    load_tokenizer,
    size_of,
    tokenizer_of,
    trained,
)

TEXTS = [f"the loop runs {number} times, the block {number % 7} times more" for number in range(200)]
HARD = ["", "a", "é€ 𝄞", "the <|bos|> of <s>", "\0\r\n\t", "x" * 3000]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    path.write_bytes(trained(TEXTS, 300))
    return path


def words(path, names, **more):
    """A tokenizer.json of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=names[0]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens([name for name in names if name.startswith("<")])
    for name, value in more.items():
        getattr(inner, name)(**value)
    inner.save(str(path))
    return str(path)


def said(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    return "".join(tokenizer.texts(ids.tolist()))


def test_bytes_and_back():
    tokenizer = load_tokenizer("bytes")
    assert (tokenizer.bos, tokenizer.vocab_size) == (256, 257)
    for text in HARD:
        (ids,) = tokenizer.encode([text])
        assert ids.tobytes() == text.encode().decode("latin-1").encode("utf-16-le")
        assert said(tokenizer, text) == text
    assert "".join(tokenizer.texts([104, 256, 105])) == "hi"
    assert list(tokenizer.texts([0xE2, 0x82, 0xAC, 0xE2])) == ["", "", "€", "", "\ufffd"]


def test_a_trained_tokenizer(bpe):
    tokenizer = load_tokenizer(str(bpe))
    assert tokenizer.vocab_size == 300 == size_of(bpe.read_bytes())
    assert tokenizer.bos == 0
    assert load_tokenizer(str(bpe.parent)).content == tokenizer.content
    for text in HARD:
        (ids,) = tokenizer.encode([text])
        assert tokenizer.bos not in ids, "a text that looks like BOS is a text"
        assert said(tokenizer, text) == text
    (ids,) = tokenizer.encode([TEXTS[0]])
    assert len(ids) < len(TEXTS[0]) / 3


def test_half_a_character_at_the_end(bpe):
    tokenizer = load_tokenizer(str(bpe))
    (ids,) = tokenizer.encode(["a€"])
    assert "".join(tokenizer.texts(ids.tolist()[:-1])) == "a\ufffd"
    assert "".join(tokenizer.texts([])) == ""


def test_training_twice_gives_the_same_bytes(bpe):
    """In another process too, whose hashes differ."""
    code = (
        "import sys, json; from trainer.data.tokenizer import trained; "
        "sys.stdout.buffer.write(trained(json.load(sys.stdin), 300))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(TEXTS).encode(), capture_output=True, check=True
    )
    assert done.stdout == bpe.read_bytes()
    assert trained(TEXTS[:100], 300) != bpe.read_bytes()


def test_a_vocabulary_that_texts_cannot_fill():
    assert size_of(trained(["ab"], 1000)) == 257
    assert size_of(trained([], 257)) == 257
    with pytest.raises(UsageError, match="vocab_size = 256\n  allowed: 257 or more"):
        trained(TEXTS, 256)


def test_what_a_models_own_file_asks_for_is_not_done(tmp_path):
    """Truncation and padding are for a model's inputs: a packer that did them would lose or invent tokens."""
    path = words(
        tmp_path / "t.json",
        ["<unk>", "<s>", "a", "b"],
        enable_truncation={"max_length": 3},
        enable_padding={"length": 8},
    )
    tokenizer = load_tokenizer(path)
    assert [ids.tolist() for ids in tokenizer.encode(["a b a b a", "b"])] == [[2, 3, 2, 3, 2], [3]]


def test_which_token_leads(tmp_path):
    both = words(tmp_path / "both.json", ["<unk>", "<|endoftext|>", "a", "<s>"])
    assert load_tokenizer(both).bos == 3
    assert load_tokenizer(both, "<|endoftext|>").bos == 1
    assert load_tokenizer(words(tmp_path / "end.json", ["<unk>", "<|endoftext|>", "a"])).bos == 1
    with pytest.raises(UsageError, match=r"has no <S>\n.*<s>\n  next: the nearest is <s>"):
        load_tokenizer(both, "<S>")
    with pytest.raises(UsageError, match=r"(?s)no token that is known to begin.*--bos-token.*<unk>, <x>"):
        load_tokenizer(words(tmp_path / "none.json", ["<unk>", "a", "<x>"]))
    with pytest.raises(UsageError, match="bytes"):
        load_tokenizer("bytes", "<s>")


def test_what_is_no_tokenizer(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    for spec, named in [
        ("byte", "the nearest is bytes"),
        (str(tmp_path / "absent.json"), "check the path"),
        (str(tmp_path), "check the path"),
        (str(tmp_path / "t.json"), r"t\.json is no tokenizer"),
    ]:
        with pytest.raises(BayeslawError, match=named):
            load_tokenizer(spec)


def test_the_hub_is_asked_for_a_revision(bpe, monkeypatch):
    asked = []

    class Library:
        @staticmethod
        def from_pretrained(name, revision):
            from tokenizers import Tokenizer

            asked.append((name, revision))
            return Tokenizer.from_file(str(bpe))

    monkeypatch.setattr("trainer.data.tokenizer._library", lambda: Library)
    assert load_tokenizer("a/b@v2").name == "a/b@v2"
    load_tokenizer("a/b")
    assert asked == [("a/b", "v2"), ("a/b", "main")]


def test_without_the_library(monkeypatch, bpe):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert load_tokenizer("bytes").vocab_size == 257
    with pytest.raises(UsageError, match=r"(?s)tokenizers is not installed.*without it: bytes.*bayeslaw\[data\]"):
        load_tokenizer(str(bpe))


def meta_of(tokenizer, folder):
    rows = {"seq_len": 4, "row_capacity": 5, "total_rows": 1, "split": "train"}
    made = {"tokenizer": {"name": tokenizer.name, "sha256": digest(tokenizer)}}
    vocabulary = {"vocab_size": tokenizer.vocab_size, "bos_token_id": tokenizer.bos}
    (folder / "meta_train.json").write_text(json.dumps(rows | vocabulary | made))
    return read_meta(folder, "train")


def test_the_tokenizer_beside_the_shards(bpe, tmp_path):
    assert isinstance(tokenizer_of(meta_of(ByteTokenizer(), tmp_path)), ByteTokenizer)
    tokenizer = load_tokenizer(str(bpe), "a")
    meta = meta_of(tokenizer, tmp_path)
    with pytest.raises(BayeslawError, match=r"cannot read .*tokenizer\.json"):
        tokenizer_of(meta)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.content)
    again = tokenizer_of(meta)
    assert isinstance(again, LibraryTokenizer)
    assert (again.bos, again.vocab_size, digest(again)) == (tokenizer.bos, 300, digest(tokenizer))
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.content + b"\n")
    with pytest.raises(BayeslawError, match="is not the tokenizer that the shards were packed with"):
        tokenizer_of(meta)
