"""A tiny corpus and config, an MLflow database made once, and one finished run that several tests look at."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

WORDS = ("loop", "the", "block", "again", "until", "state", "has", "seen", "enough", "of", "it", "to", "say", "next")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    """A file of 60 kB whose words come in random order: soon learnt, never by heart."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("corpus") / "words.txt"
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(13_000)))
    return str(path)


@pytest.fixture(scope="session")
def fields(corpus) -> dict:
    """Config of a run of 48 steps, well below a second."""
    return {
        "d_model": 16,
        "head_size": 8,
        "recurrences": 2,
        "prelude_layers": 1,
        "shared_layers": 1,
        "coda_layers": 0,
        "seq_len": 16,
        "batch_tokens": 128,
        "tokens": 48 * 128,
        "corpus": corpus,
        "validation_tokens": 640,
        "log_every": 12,
        "validate_every": 24,
    }


@pytest.fixture(scope="session")
def grid(fields) -> dict:
    """Arguments of a grid of four such runs."""
    same = ("head_size", "prelude_layers", "coda_layers", "seq_len", "batch_tokens", "corpus", "validation_tokens")
    return {name: fields[name] for name in same} | {
        "study": "grid",
        "budgets": (1e9, 2e9),
        "widths": (16, 24),
        "recurrences": (2,),
        "unrolled_layers": 2,
        "min_steps": 2,
    }


@pytest.fixture(scope="session")
def _finished(fields, tmp_path_factory) -> Path:
    from trainer.config import TrainConfig
    from trainer.loop import train

    out = tmp_path_factory.mktemp("finished")
    train(TrainConfig.of(**fields), out, study="tiny", quiet=True)
    return out


@pytest.fixture
def finished(_finished, tmp_path) -> Path:
    """Output folder with one finished run that MLflow has not heard of."""
    return Path(shutil.copytree(_finished, tmp_path / "out"))
