"""``bayeslaw data``: documents to packed shards, and what packed shards hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from cyclopts import App

from bayeslaw.cli import flags
from bayeslaw.cli.lists import Integer, OptionalInteger
from bayeslaw.cli.output import keep_input, note, own, print_json, print_table
from bayeslaw.errors import EXIT_OK, UsageError
from bayeslaw.files import require_writable, written_whole

app = App(
    name="data",
    help="Tokenise and pack documents, and check packed shards.",
    help_epilogue="Documents are tokenised and packed once, for any number of runs:\n\n"
    "bayeslaw data tokenizer SOURCE --out tokenizer.json\n\n"
    "bayeslaw data pack SOURCE --tokenizer tokenizer.json --seq-len 1024 --out DIR\n\n"
    "bayeslaw train --corpus DIR ...\n\n"
    "A SOURCE is a text file, JSON lines (.jsonl), a Parquet file, a folder of them, stdlib, or "
    "hf:NAME[/CONFIG][@REVISION], a data set of the Hugging Face hub. Files that end in .gz or .zst are decompressed.",
)


@app.command(name="pack")
def pack(
    source: str,
    /,
    *,
    tokenizer: str,
    seq_len: Integer,
    out: Path,
    text_field: str | None = None,
    separator: str | None = None,
    bos_token: str | None = None,
    seed: OptionalInteger = None,
    rows_per_shard: OptionalInteger = None,
    validation_share: float | None = None,
    as_json: flags.Json = False,
) -> int:
    """Tokenise documents and pack them into Parquet shards of full rows; the same command gives the same bytes.

    Parameters
    ----------
    source
        A text file, JSON lines, a Parquet file, a folder of them, stdlib, or hf:NAME[/CONFIG][@REVISION].
    tokenizer
        bytes, a tokenizer.json, or the NAME[@REVISION] of one of the hub.
    seq_len
        Context in tokens; a row has one more.
    out
        The folder to make; the corpus of later runs.
    text_field
        Field of JSON lines, or column, that holds the text; text by default.
    separator
        What stands between documents within a text file, such as '<|endoftext|>'; without it a file is a document. \\n
        is a line's end.
    bos_token
        The token that leads documents; by default the first of the usual ones that is there, such as <|bos|> or
        <|endoftext|>.
    seed
        Seed of the order of the documents, 0 by default; they are shuffled among some 16,000 at a time.
    rows_per_shard
        Rows of a Parquet file, 15,000 by default.
    validation_share
        Share of the documents that is held out, each by its text; 0.05 by default.
    as_json
        Print one JSON object.
    """
    documents, tokenizers, writing = map(own, _MODULES)
    made = writing.pack(
        documents.Documents(source, separator=_separator(separator), **flags.given(text_field=text_field)),
        tokenizers.load_tokenizer(tokenizer, bos_token),
        out,
        seq_len=seq_len,
        tell=note,
        **flags.given(seed=seed, rows_per_shard=rows_per_shard, validation_share=validation_share),
    )
    if as_json:
        print_json({"out": str(out), "splits": {split.split: dataclasses.asdict(split) for split in made}})
        return EXIT_OK
    lines = ("rows", "shards", "documents", "empty documents", "tokens", "tokens left out")
    _print_splits(made, lines)
    note(f"packed into {out}; train on it with `bayeslaw train --corpus {out}`")
    return EXIT_OK


@app.command(name="tokenizer")
def tokenizer(
    source: str,
    /,
    *,
    vocab_size: Integer = 4096,
    out: Path,
    text_field: str | None = None,
    separator: str | None = None,
    validation_share: float | None = None,
    as_json: flags.Json = False,
) -> int:
    """Train a byte-level BPE on documents that `data pack` does not hold out; the same command gives the same bytes.

    Parameters
    ----------
    source
        As for `data pack`.
    vocab_size
        Tokens in all, 257 or more: BOS, the bytes, and pairs.
    out
        The file to write.
    text_field
        Field of JSON lines, or column, that holds the text; text by default.
    separator
        What stands between documents within a text file.
    validation_share
        The share that `data pack` will hold out, 0.05 by default: those documents are left out here.
    as_json
        Print one JSON object.
    """
    keep_input(out, source)
    require_writable(out)
    documents, tokenizers, writing = map(own, _MODULES)
    given = flags.given(text_field=text_field)
    share = writing.VALIDATION_SHARE if validation_share is None else validation_share
    writing.require_share(share)
    texts = (
        text
        for text in documents.Documents(source, separator=_separator(separator), **given)
        if not writing.is_held_out(text, share)
    )
    content = tokenizers.trained(texts, vocab_size)
    with written_whole(out) as partial:
        partial.write_bytes(content)
    there = tokenizers.size_of(content)
    if there < vocab_size:
        note(f"note: {there} tokens are all that these documents give: no further pair comes twice")
    if as_json:
        print_json({"out": str(out), "vocab_size": there})
        return EXIT_OK
    print(f"{there:,} tokens written to {out}")
    return EXIT_OK


@app.command(name="check")
def check(folder: Path, /, *, as_json: flags.Json = False) -> int:
    """Read every row of packed shards: counts, ids, BOS and digests; the first fault is named by file and row.

    Parameters
    ----------
    folder
        A folder of packed shards.
    as_json
        Print one JSON object.
    """
    found = own("trainer.data.checking").check(folder)
    if as_json:
        print_json({"folder": str(folder), "splits": {split.split: dataclasses.asdict(split) for split in found}})
        return EXIT_OK
    lines = (
        "shards",
        "rows",
        "seq len",
        "vocab size",
        "bos",
        "tokens",
        "pieces per row",
        "utilisation",
        "distinct ids",
    )
    _print_splits(found, lines)
    if not all(split.verified for split in found):
        note("note: the meta files have no digests, so only the format of the rows was checked")
    return EXIT_OK


@app.command(name="tasks")
def tasks(
    *names: str,
    out: Path,
    offline: bool = False,
    as_json: flags.Json = False,
) -> int:
    """Fetch the data of public tasks from the hub, for `bayeslaw eval --data DIR` on a machine without network.

    Parameters
    ----------
    names
        Tasks, or public for all of the paper's.
    out
        The folder to write to: a folder for each task, a file of JSON lines for each split.
    offline
        Take the data from the hub's cache, and never ask the network.
    as_json
        Print one JSON object.
    """
    choice = own("trainer.evaluation.choice")
    chosen = choice.singly(names)
    if not chosen:
        raise UsageError(
            "no task named", allowed="names of tasks, or public", do=f"bayeslaw data tasks public --out {out}"
        )
    written = own("trainer.evaluation.public").fetch(chosen, out, offline=offline, known=choice.KNOWN)
    if as_json:
        print_json({"out": str(out), "files": list(map(str, written))})
        return EXIT_OK
    for path in written:
        print(path)
    note(f"use them with `bayeslaw eval RUN --tasks {','.join(names)} --data {out}`")
    return EXIT_OK


_MODULES = ("trainer.data.documents", "trainer.data.tokenizer", "trainer.data.writing")


def _separator(given: str | None) -> str | None:
    """The separator with the escapes that a shell leaves as they are."""
    if given is None:
        return None
    return given.replace("\\n", "\n").replace("\\t", "\t")


def _print_splits(splits: tuple[Any, Any], lines: tuple[str, ...]) -> None:
    """A table with a column a split."""

    def shown(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

    rows = [(line, *(shown(getattr(split, line.replace(" ", "_"))) for split in splits)) for line in lines]
    print_table(("what", *(split.split for split in splits)), rows)
