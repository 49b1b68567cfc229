"""``bayeslaw generate``: text from a trained model."""

from __future__ import annotations

import codecs
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
        How many tokens; a token is a byte.
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
    as_json
        Print one JSON object, token ids included.
    """
    module = own("trainer.generate")
    stream = module.generate(
        module.load_model(run),
        prompt,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        recurrences=recurrences,
        decoding=decoding,
    )
    if as_json:
        ids = list(stream)
        print_json({"prompt": prompt, "text": bytes(ids).decode("utf-8", "replace"), "tokens": ids})
        return EXIT_OK
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in stream:
        sys.stdout.write(shown(decoder.decode(bytes([token]))))
        sys.stdout.flush()
    print(shown(decoder.decode(b"", final=True)))
    return EXIT_OK


def shown(text: str) -> str:
    """The text with control characters other than line ends and tabs shown instead of sent."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
