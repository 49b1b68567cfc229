"""Text from a model: both decodings alike, beyond the context too, and what is refused."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from bayeslaw.cli import run
from bayeslaw.errors import CheckpointError, UsageError
from models.looped import LoopedTransformer
from trainer import checkpoint
from trainer.config import TrainConfig
from trainer.generate import generate, load_model
from trainer.presets import RECIPES, recipe_fields

SEQ_LEN = 12


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads would only wait for each other in networks this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(recipe="baseline", recurrences=2, **changes):
    fields = {
        "d_model": 16,
        "head_size": 8,
        "shared_layers": 1,
        "seq_len": SEQ_LEN,
        "batch_tokens": SEQ_LEN,
        "steps": 1,
    }
    fields |= {"recipe": recipe, "recurrences": recurrences, **recipe_fields(recipe, recurrences)}
    return TrainConfig.of(**fields | changes)


def network(config):
    """A network whose every parameter matters and whose bytes differ in likelihood."""
    model = LoopedTransformer(config.architecture, head_size=config.model.head_size).double().eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return model


def saved(config, folder):
    """A checkpoint of a network of that config."""
    parts = {"model": dict(network(config).float().named_parameters())}
    return checkpoint.save(folder / "checkpoints", 1, parts, {"config": config.to_dict()}, keep=1)


@pytest.mark.parametrize("recipe", [*RECIPES, "plain"])
@pytest.mark.parametrize("choice", [{"temperature": 0}, {"temperature": 0.7}, {"top_k": 5, "seed": 3}])
def test_cached_decoding_is_plain_decoding(recipe, choice):
    model = network(tiny("baseline", 1) if recipe == "plain" else tiny(recipe))
    for prompt in ("", "abc", "a prompt that is longer than the context"):
        cached, plain = (
            list(generate(model, prompt, tokens=3 * SEQ_LEN, decoding=decoding, **choice))
            for decoding in ("cached", "plain")
        )
        assert cached == plain
        assert len(cached) == 3 * SEQ_LEN
        assert all(0 <= token < 256 for token in cached)


def test_other_recurrences_and_short_contexts():
    model = network(tiny())
    texts = [list(generate(model, "x", recurrences=r, temperature=0)) for r in (1, 2, 3)]
    assert texts[1] == list(generate(model, "x", temperature=0))
    assert texts[0] != texts[1] != texts[2]
    for seq_len in (1, 2, 3):
        model = network(tiny(seq_len=seq_len, batch_tokens=seq_len))
        texts = [list(generate(model, "xyz", tokens=9, decoding=decoding)) for decoding in ("cached", "plain")]
        assert texts[0] == texts[1]


def test_the_network_sees_the_younger_half_and_what_came_since(monkeypatch):
    model = network(tiny())
    seen = []
    forward = LoopedTransformer.forward

    def watched(self, tokens, **options):
        seen.append(tokens[0].tolist())
        return forward(self, tokens, **options)

    monkeypatch.setattr(LoopedTransformer, "forward", watched)
    told = list(generate(model, "0123456789", tokens=3, decoding="plain"))
    assert seen[0] == [0, *b"0123456789"]
    assert seen[1] == [0, *b"0123456789", told[0]]
    assert seen[2] == [*b"56789", told[0], told[1]]
    seen.clear()
    assert list(generate(model, "0123456789", tokens=3)) == told
    assert seen == [[0, *b"0123456789"], [told[0]], [*b"56789", told[0], told[1]]]


def test_draws():
    model = network(tiny())
    told = list(generate(model, "x", seed=1))
    assert told == list(generate(model, "x", seed=1))
    assert told != list(generate(model, "x", seed=2))
    greedy = list(generate(model, "x", temperature=0))
    assert greedy == list(generate(model, "x", top_k=1))
    assert greedy == list(generate(model, "x", temperature=1e-300))
    assert told == list(generate(model, "x", seed=1, top_k=1000))


def test_ids_that_are_no_bytes_are_never_drawn():
    assert max(generate(network(tiny(vocab_size=1024)), "x", temperature=50.0)) < 256


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompt": b"x"}, "prompt = b'x'\n  allowed: a text"),
        ({"tokens": 0}, "tokens = 0"),
        ({"temperature": -1.0}, "temperature = -1.0\n  allowed: a finite number"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": 0}, "top_k = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"decoding": "cache"}, "decoding 'cache'\n  allowed: cached, plain\n  next: the nearest is cached"),
        ({"recurrences": 3}, "recurrences = 3 in a network trained with 2"),
        ({"recurrences": 0}, "recurrences = 0"),
        ({"recurrences": 1.5}, "recurrences = 1.5\n  allowed: a whole number"),
        ({"recurrences": 10**9}, "(?s)1,000,000,002 layers.*allowed: at most 10,000 layers.*--recurrences 9998"),
        ({"seed": 2**63}, "seed = 9223372036854775808\n  allowed: a whole number below 2"),
    ],
)
def test_what_cannot_be_meant(changes, named):
    arguments = {"prompt": "x"} | changes
    with pytest.raises(UsageError, match=named):
        generate(network(tiny("hyperconnections")), arguments.pop("prompt"), **arguments)


def test_checkpoints_that_cannot_be_used(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_model(tmp_path)
    path = saved(tiny(), tmp_path / "whole")
    weights = (path / "model.safetensors").read_bytes()
    damaged = shutil.copytree(tmp_path / "whole", tmp_path / "damaged") / "checkpoints" / path.name
    (damaged / "model.safetensors").write_bytes(weights[:-8] + bytes(8))
    with pytest.raises(CheckpointError, match="damaged"):
        load_model(damaged)
    parts = {"model": checkpoint.read(path).tensors("model")}
    other = checkpoint.save(tmp_path / "other", 1, parts, {"config": tiny(d_model=32).to_dict()}, keep=1)
    with pytest.raises(CheckpointError, match="another architecture"):
        load_model(other)


def test_the_command(tmp_path, capsys):
    path = saved(tiny(), tmp_path)
    words = ["generate", str(tmp_path), "--prompt", "def ", "--tokens", "40", "--seed", "1"]
    assert run([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = list(generate(load_model(path), "def ", tokens=40, seed=1))
    assert answer["tokens"] == expected
    assert answer["text"] == bytes(expected).decode("utf-8", "replace")
    assert answer["prompt"] == "def "
    for decoding in ("cached", "plain"):
        assert run([*words, "--decoding", decoding]) == 0
        printed = capsys.readouterr().out
        text = answer["text"]
        assert printed == "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text) + "\n"
    assert run(["generate", str(path), "--temperature", "-1"]) == 2
    assert "temperature = -1" in capsys.readouterr().err
    assert run(["generate", str(tmp_path / "absent")]) == 1
    assert "no checkpoint" in capsys.readouterr().err


def test_an_output_folder_names_its_runs(tmp_path, capsys):
    for number in range(5):
        saved(tiny(), tmp_path / "runs" / f"run-{number}")
    for place in (tmp_path, tmp_path / "runs"):
        assert run(["generate", str(place)]) == 1
        told = capsys.readouterr().err
        assert f"{place} is no checkpoint" in told
        assert f"next: name a run: {tmp_path / 'runs' / 'run-0'}, " in told
        assert told.rstrip().endswith("run-2 and 2 more")
    assert run(["generate", str(tmp_path / "runs" / "run-0"), "--tokens", "1"]) == 0


def test_a_prompt_that_is_no_text(tmp_path, capsys):
    """The network reads its bytes; JSON holds no lone surrogates."""
    path = saved(tiny(), tmp_path)
    prompt = os.fsdecode(b"\xff\xfea")
    assert run(["generate", str(tmp_path), "--prompt", prompt, "--tokens", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["prompt"] == "\ufffd\ufffda"
    assert answer["tokens"] == list(generate(load_model(path), prompt, tokens=3))


def test_bytes_that_are_no_text(monkeypatch, tmp_path, capsys):
    """A character of several bytes is shown once it is whole, what is no character as U+FFFD, escapes never sent."""
    saved(tiny(), tmp_path)
    content = "é€".encode() + b"\x1b[0m\xff\n\0\xe2"
    monkeypatch.setattr("trainer.generate.generate", lambda *given, **options: iter(content))
    assert run(["generate", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "é€\\x1b[0m\ufffd\n\\x00\ufffd\n"
