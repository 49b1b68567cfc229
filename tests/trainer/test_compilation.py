"""When a network is compiled, and what happens where it cannot be."""

from __future__ import annotations

import os

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from tests.trainer.watching import ALONE, only_journal
from trainer import checkpoint, compilation, loop
from trainer.config import TrainConfig
from trainer.execution import Execution
from trainer.learner import Learner


@pytest.mark.parametrize(
    ("compile_", "flops", "on_gpu", "compiler", "expected"),
    [
        ("on", 1e9, False, None, True),
        ("off", 1e14, True, "/usr/bin/g++", False),
        ("auto", 1e9, True, None, True),
        ("auto", 1e9, False, "/usr/bin/g++", False),
        ("auto", 1e14, False, "/usr/bin/g++", True),
        ("auto", 1e14, False, None, False),
    ],
)
def test_what_is_compiled(fields, monkeypatch, compile_, flops, on_gpu, compiler, expected):
    monkeypatch.setattr("shutil.which", lambda name: compiler)
    config = TrainConfig.of(**fields | {"tokens": None, "budget": flops})
    assert compilation.wanted(config, Execution(compile=compile_), on_gpu=on_gpu) is expected


def test_results_are_kept_where_the_person_says(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compilation.keep_results()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "bayeslaw" / "inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    compilation.keep_results()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A machine whose compiler does not work, and a cache that holds nothing."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "PAYS_FROM", 0.0)
    with torch._inductor.config.patch({"cpp.cxx": (None, "false")}):
        yield


@pytest.mark.slow
def test_without_a_working_compiler_a_run_goes_on(fields, broken, capsys):
    config = TrainConfig.of(**fields)
    batch = torch.arange(8 * 17).view(8, 17) % 256
    plain = Learner(config, Execution(compile="off"), ALONE)
    expected = [plain.step(number, batch).loss for number in range(3)]
    learner = Learner(config, Execution(), ALONE)
    assert [learner.step(number, batch).loss for number in range(3)] == expected
    assert capsys.readouterr().err.count("the network is not compiled") == 1


@pytest.mark.slow
def test_a_person_who_insists_hears_why(fields, broken):
    learner = Learner(TrainConfig.of(**fields), Execution(compile="on"), ALONE)
    with pytest.raises(BackendCompilerFailed):
        learner.step(0, torch.zeros(8, 17, dtype=torch.int64))


@pytest.mark.slow
def test_a_compiled_run_goes_on_bit_for_bit(fields, tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "PAYS_FROM", 0.0)
    execution = Execution(checkpoint_every=20)
    config = TrainConfig.of(**fields)
    whole = loop.train(config, tmp_path / "whole", quiet=True, execution=execution)
    step = Learner.step

    def stopping(self, number, *arguments, **asked):
        if number == 30:
            raise KeyboardInterrupt
        return step(self, number, *arguments, **asked)

    monkeypatch.setattr(Learner, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        loop.train(config, tmp_path / "parts", quiet=True, execution=execution)
    monkeypatch.setattr(Learner, "step", step)
    again = loop.train(config, tmp_path / "parts", quiet=True, execution=execution)
    assert again.row["loss"] == whole.row["loss"]
    assert only_journal(tmp_path / "parts").state == "finished"
    weights = [checkpoint.read(result.run_dir).tensors("model") for result in (whole, again)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    eager = loop.train(config, tmp_path / "eager", quiet=True, execution=Execution(compile="off"))
    assert eager.row["loss"] == pytest.approx(whole.row["loss"], abs=1e-3)
