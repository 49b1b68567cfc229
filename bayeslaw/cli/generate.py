"""``bayeslaw generate``: text from a trained model."""

from __future__ import annotations

import sys
from pathlib import Path

from cyclopts import App

from bayeslaw.cli import flags
from bayeslaw.cli.lists import Integer, OptionalInteger
from bayeslaw.cli.output import own, print_json
from bayeslaw.errors import EXIT_OK

app = App(name="generate", help="Let a trained model go on with a text.")


@app.default
def generate(
    run: Path,
    /,
    *,
    prompt: str = "",
    tokens: Integer = 200,
    temperature: float = 1.0,
    top_k: OptionalInteger = None,
    seed: Integer = 0,
    recurrences: OptionalInteger = None,
    decoding: str = "cached",
    tokenizer: str | None = None,
    as_json: flags.Json = False,
) -> int:
    """Print what a trained model says after a prompt; the same seed says the same.

    Parameters
    ----------
    run
        A run directory (its newest checkpoint) or a checkpoint.
    prompt
        How the document begins; empty for a new document.
    tokens
        How many tokens; a token is a byte, or one of the tokenizer that the corpus was packed with.
    temperature
        0 takes the likeliest token, below 1 prefers likely ones.
    top_k
        Choose among so many likeliest tokens; all by default.
    seed
        Seed of the draws.
    recurrences
        How often the shared block runs; as in training by default.
    decoding
        cached, or plain: without a key-value cache. The text is the same.
    tokenizer
        bytes, a tokenizer.json or a NAME[@REVISION] of the hub; by default the one beside the packed corpus.
    as_json
        Print one JSON object, token ids included.
    """
    module = own("trainer.generate")
    reader = own("trainer.trained").trained(run).tokenizer(tokenizer)
    stream = module.generate(
        module.load_model(run),
        prompt,
        tokenizer=reader,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        recurrences=recurrences,
        decoding=decoding,
    )
    if as_json:
        ids = list(stream)
        print_json({"prompt": prompt, "text": "".join(reader.texts(ids)), "tokens": ids})
        return EXIT_OK
    for text in reader.texts(stream):
        sys.stdout.write(shown(text))
        sys.stdout.flush()
    print()
    return EXIT_OK


def shown(text: str) -> str:
    """The text with control characters other than line ends and tabs shown instead of sent."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
