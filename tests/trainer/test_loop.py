"""One run: that it learns, that it is repeatable, and what its journal says however it ends."""

from __future__ import annotations

import fcntl
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bayeslaw.errors import BayeslawError, JournalError, UsageError
from bayeslaw.journal import find_journals
from bayeslaw.plan import config_hash
from bayeslaw.schema import COLUMNS, METRIC_TRAIN_LOSS, METRIC_VAL_LOSS
from bayeslaw.version import code_version
from models.looped import LoopedTransformer
from tests.trainer.watching import ALONE, at_step, curve, only_journal, raiser
from trainer import loop
from trainer.config import TrainConfig
from trainer.data import load_corpus
from trainer.execution import Execution
from trainer.learner import Learner
from trainer.muon import MuonH
from trainer.optim import Optimizers, parameters_by_kind, schedule
from trainer.run import PATIENCE
from trainer.rundir import BusyError, run_directory
from trainer.validation import EVALUATION_TOKENS, state_sizes, validation_loss


def test_the_loss_falls(fields, tmp_path):
    """Far below what the frequencies of the bytes alone give."""
    config = TrainConfig.of(**{**fields, "tokens": 250 * 128, "d_model": 32})
    result = loop.train(config, tmp_path, quiet=True)
    frequency = np.bincount(load_corpus(config.data.corpus).train, minlength=256) / len(
        load_corpus(config.data.corpus).train
    )
    unigram = -(frequency[frequency > 0] * np.log(frequency[frequency > 0])).sum()
    assert result.row["loss"] < 0.75 * unigram
    losses = curve(only_journal(tmp_path), METRIC_TRAIN_LOSS)
    assert losses[0] == pytest.approx(math.log(256), abs=0.01)
    assert losses[-1] < losses[0] / 2


def test_the_same_seed_gives_the_same_losses(fields, finished, tmp_path):
    expected = only_journal(finished)
    again = loop.train(TrainConfig.of(**fields), tmp_path / "again", quiet=True)
    assert again.row["loss"] == expected.row["loss"]
    assert curve(only_journal(tmp_path / "again"), METRIC_TRAIN_LOSS) == curve(expected, METRIC_TRAIN_LOSS)
    other = loop.train(TrainConfig.of(**{**fields, "seed": 1}), tmp_path / "other", quiet=True)
    assert other.row["loss"] != expected.row["loss"]


def test_what_the_journal_holds(fields, finished):
    journal = only_journal(finished)
    config = TrainConfig.from_dict(journal.start["config"])
    assert config.data.corpus_digest == load_corpus(fields["corpus"]).digest
    assert journal.start["config_hash"] == config_hash(config.to_dict())
    assert journal.start["study"] == "tiny"
    assert set(journal.start["versions"]) == {"bayeslaw", "torch", "python"}
    assert journal.start["versions"]["bayeslaw"] == code_version()
    assert journal.path.parent == finished / "runs" / config.run_id.replace("/", "-")
    row = journal.row
    assert set(row) == set(COLUMNS) - {"source", "loss_unit", "training_run", "loss_se"}
    assert row["state"] == "finished"
    assert row["tokens"] == 48 * 128
    assert row["epochs"] == row["tokens"] / len(load_corpus(fields["corpus"]).train)
    assert row["flops"] == row["budget"] == float(row["tokens"]) * row["flops_per_token"]
    assert 1e7 < row["peak_memory"] < 1e11
    assert row["tokens_per_second"] > 0
    assert [record["step"] for record in journal.metrics] == [1, 12, 24, 24, 36, 48, 48]
    assert curve(journal, METRIC_VAL_LOSS)[-1] == row["loss"]
    rates = curve(journal, "train/learning_rate/matrix")
    assert rates[0] == config.rates["matrix"]
    assert rates[-1] == pytest.approx(0.1 * config.rates["matrix"])
    assert curve(journal, "train/flops")[-1] == row["flops"]
    assert curve(journal, "train/skipped_steps") == [0.0] * 5
    assert all(size > 0 for t in (1, 2) for size in curve(journal, f"train/state_rms/{t}"))
    assert not curve(journal, "train/state_rms/3")


def test_validation_loss_and_its_error(fields):
    model = LoopedTransformer(TrainConfig.of(**fields).architecture, head_size=8)
    with torch.no_grad():
        model.head.normal_(generator=torch.Generator().manual_seed(0))
    sequences = torch.randint(0, 256, (2500, 17), generator=torch.Generator().manual_seed(0))
    mean, error = validation_loss(model, sequences, world=ALONE)
    with torch.no_grad():
        token_losses = F.cross_entropy(model(sequences[:, :-1]).transpose(1, 2), sequences[:, 1:], reduction="none")
    assert len(sequences) * 17 > EVALUATION_TOKENS  # more than one pass
    assert mean == pytest.approx(token_losses.mean().item(), rel=1e-5)
    assert error == pytest.approx(token_losses.mean(dim=1).std().item() / math.sqrt(2500), rel=1e-4)
    assert math.isnan(validation_loss(model, sequences[:1], world=ALONE)[1])
    with torch.no_grad():
        model.injection.weight += 0.1  # at the start one recurrence is as good as another
    by_depth = {r: validation_loss(model, sequences[:9], world=ALONE, recurrences=r)[0] for r in (1, 2, 3)}
    assert len(set(by_depth.values())) == 3
    assert by_depth[2] == validation_loss(model, sequences[:9], world=ALONE)[0]


def test_sizes_of_the_state(fields):
    model = LoopedTransformer(TrainConfig.of(**fields).architecture, head_size=8)
    outputs = []
    model.shared[-1].register_forward_hook(lambda block, inputs, output: outputs.append(output))
    sizes = state_sizes(model, torch.zeros(1, 16, dtype=torch.int64))
    assert sizes == pytest.approx([output.square().mean().sqrt().item() for output in outputs])
    assert len(sizes) == 2


def test_every_parameter_has_its_rate(fields):
    config = TrainConfig.of(**{**fields, "coda_layers": 1, "injection": "hyperconnections"})
    model = LoopedTransformer(config.architecture, head_size=8)
    optimizers = Optimizers(model, config.rates, ALONE)
    optimizers.step(0.5)
    groups = [(type(part), group) for part in optimizers._parts for group in part.param_groups]
    found = {id(p): (kind, group["lr"]) for kind, group in groups for p in group["params"]}
    assert len(found) == sum(len(group["params"]) for _, group in groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        kind, rate = found[id(parameter)]
        if name in ("embedding", "head"):
            assert (kind, rate) == (torch.optim.AdamW, 0.5 * config.rates[name])
        elif name.startswith("injection."):
            assert (kind, rate) == (torch.optim.AdamW, 0.5 * config.rates["lane"])
        elif parameter.ndim == 2:
            assert (kind, rate) == (MuonH, 0.5 * config.rates["matrix"])
        else:
            assert (kind, rate) == (torch.optim.AdamW, 0.5 * config.rates["gain"])
    linear = LoopedTransformer(TrainConfig.of(**fields).architecture, head_size=8)
    assert "injection.weight" in parameters_by_kind(linear)["matrix"]
    assert [schedule(step, 3) for step in range(3)] == pytest.approx([1, 0.55, 0.1])
    assert schedule(0, 1) == 1


def test_passes_of_a_batch_are_one_step(fields, tmp_path):
    """Small passes: the same loss but for rounding; passes that do not divide the batch are refused."""
    whole = loop.train(TrainConfig.of(**fields), tmp_path / "whole", quiet=True)
    parts = loop.train(TrainConfig.of(**fields), tmp_path / "parts", quiet=True, execution=Execution(micro_batch=2))
    assert parts.row["loss"] == pytest.approx(whole.row["loss"], abs=2e-3)
    saved = loop.train(
        TrainConfig.of(**fields), tmp_path / "saved", quiet=True, execution=Execution(activation_checkpointing=True)
    )
    assert saved.row["loss"] == pytest.approx(whole.row["loss"], abs=2e-3)
    with pytest.raises(UsageError, match="micro_batch = 3 with 8 sequences") as error:
        loop.train(TrainConfig.of(**fields), tmp_path / "odd", quiet=True, execution=Execution(micro_batch=3))
    assert error.value.allowed == "1, 2, 4, 8"


def test_a_loss_that_is_no_number_ends_the_run(fields, tmp_path):
    result = loop.train(TrainConfig.of(**{**fields, "gain_rate": 1e38}), tmp_path, quiet=True)
    journal = only_journal(tmp_path)
    assert result.state == journal.state == "diverged"
    assert "loss" not in journal.row
    assert journal.row["tokens"] < 48 * 128
    assert math.isnan(curve(journal, METRIC_TRAIN_LOSS)[-1])
    assert curve(journal, "train/skipped_steps")[-1] == PATIENCE


def test_one_bad_batch_is_skipped(fields, tmp_path, monkeypatch):
    """Nothing moves in that step, it is counted, and training goes on."""
    weights = []

    def poison(number, learner):
        weights.append([p.detach().clone() for p in learner.model.parameters()])
        if number == 5:
            loss = learner._loss
            monkeypatch.setattr(learner, "_loss", lambda part: loss(part) * math.nan)
        elif number == 6:
            monkeypatch.undo()

    step = Learner.step
    monkeypatch.setattr(Learner, "step", lambda self, at, batch, **f: poison(at, self) or step(self, at, batch, **f))
    result = loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    assert result.state == "finished"
    assert all(map(torch.equal, weights[5], weights[6]))
    assert not any(map(torch.equal, weights[4], weights[5]))
    assert curve(only_journal(tmp_path), "train/skipped_steps") == [0, 1, 1, 1, 1]


def test_a_fault_is_told_and_passed_on(fields, tmp_path, monkeypatch):
    at_step(monkeypatch, 3, raiser(RuntimeError("no such kernel")))
    with pytest.raises(RuntimeError, match="no such kernel"):
        loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    journal = only_journal(tmp_path)
    assert journal.state == "failed"
    assert journal.end["error"] == "RuntimeError: no such kernel"
    assert journal.row["tokens"] == 3 * 128


SHORTAGES = [
    MemoryError("no room"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB"),
]


def assert_tells_what_is_needed(error, config):
    model = LoopedTransformer(config.architecture, head_size=config.model.head_size)
    count = sum(parameter.numel() for parameter in model.parameters())
    state = sum(tensor.numel() for tensor in trained_state(model, config))
    assert f"{count:,} parameters" in error.what
    told = int(re.search("take ([0-9,]+) bytes in float32", error.what)[1].replace(",", ""))
    assert told == pytest.approx(4 * (2 * count + state), rel=0.02)
    assert "activations of 8 sequences" in error.what
    assert "--micro-batch 4" in error.do
    assert "--activation-checkpointing" in error.do


def trained_state(model, config):
    optimizers = Optimizers(model, config.rates, ALONE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    return optimizers.tensors().values()


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_no_memory_in_a_step(fields, tmp_path, monkeypatch, shortage):
    at_step(monkeypatch, 3, raiser(shortage))
    with pytest.raises(BayeslawError, match="not enough memory") as error:
        loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    assert_tells_what_is_needed(error.value, TrainConfig.of(**fields))
    journal = only_journal(tmp_path)
    assert journal.state == "failed"
    assert journal.end["error"] == str(error.value)  # without the name of the class


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_no_memory_for_the_model(fields, tmp_path, monkeypatch, shortage):
    def build(*arguments, **more):
        raise shortage

    with monkeypatch.context() as patch:
        patch.setattr("trainer.learner.LoopedTransformer", build)
        with pytest.raises(BayeslawError, match="not enough memory") as error:
            loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    assert_tells_what_is_needed(error.value, TrainConfig.of(**fields))
    assert not find_journals(tmp_path)


def test_a_model_larger_than_the_machine_is_not_even_begun(fields, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.learner.LoopedTransformer", raiser(AssertionError("building")))
    with pytest.raises(BayeslawError, match="not enough memory"):
        loop.train(TrainConfig.of(**{**fields, "d_model": 8 * 10**6}), tmp_path, quiet=True)


def test_a_pass_larger_than_the_machine_is_not_even_begun(fields, tmp_path, monkeypatch):
    """Unless less is kept at once."""
    big = {**fields, "recurrences": 2000, "tokens": 128}
    monkeypatch.setattr("trainer.memory._machine_bytes", lambda: 2.0**24)
    at_step(monkeypatch, 0, raiser(AssertionError("a step")))
    with pytest.raises(BayeslawError, match="not enough memory"):
        loop.train(TrainConfig.of(**big), tmp_path, quiet=True)
    for less in ({"backprop_recurrences": 2}, {}):
        execution = Execution(activation_checkpointing=not less)
        with pytest.raises(AssertionError, match="a step"):
            loop.train(TrainConfig.of(**big | less), tmp_path, quiet=True, execution=execution)


@pytest.mark.parametrize("study", ["", "  "])
def test_a_study_without_a_name_is_refused_before_anything_is_trained(fields, tmp_path, study):
    with pytest.raises(UsageError, match="study = "):
        loop.train(TrainConfig.of(**fields), tmp_path, study=study, quiet=True)
    assert not list(tmp_path.iterdir())


def test_two_processes_do_not_train_one_run(fields, tmp_path):
    run_dir = run_directory(tmp_path, TrainConfig.of(**fields).run_id)
    run_dir.mkdir(parents=True)
    with open(run_dir / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another process is training in"):
            loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    assert not find_journals(tmp_path)


def test_a_folder_that_cannot_be_written(fields, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot write the run directory") as error:
        loop.train(TrainConfig.of(**fields), tmp_path / "file" / "out", quiet=True)
    assert "--out" in error.value.do


def test_a_config_that_does_not_fit_its_corpus_leaves_nothing(fields, tmp_path):
    for changes, named in (
        ({"seq_len": 128, "validation_tokens": 12800}, "held-out tokens"),
        ({"seq_len": 2**16, "batch_tokens": 2**16, "tokens": 2**16, "validation_tokens": 2**16}, "training corpus of"),
        ({"corpus_digest": "0" * 16}, "restore the corpus"),
    ):
        with pytest.raises(UsageError, match=named):
            loop.train(TrainConfig.of(**{**fields, **changes}), tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_plain_progress(fields, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trainer.progress.LINE_SECONDS", 0.0)
    loop.train(TrainConfig.of(**fields), tmp_path)
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 5
    assert "step 48/48" in lines[-1]
    assert "tokens/s" in lines[-1]
    monkeypatch.setattr("trainer.progress.LINE_SECONDS", 3600.0)
    loop.train(TrainConfig.of(**fields), tmp_path / "rarely")
    assert capsys.readouterr().err == ""
