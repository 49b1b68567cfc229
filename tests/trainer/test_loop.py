"""One run: that it learns, that it is repeatable, and what its journal says however it ends."""

from __future__ import annotations

import fcntl
import math
import os
import signal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bayeslaw.errors import BayeslawError, JournalError, UsageError
from bayeslaw.journal import JournalWriter, find_journals, read_journal
from bayeslaw.plan import config_hash
from bayeslaw.schema import COLUMNS, METRIC_TRAIN_LOSS, METRIC_VAL_LOSS
from models.looped import LoopedTransformer
from trainer import loop
from trainer.config import TrainConfig
from trainer.data import load_corpus
from trainer.optim import make_optimizer, schedule
from trainer.rundir import BusyError, run_directory


def only_journal(out):
    (path,) = find_journals(out)
    return read_journal(path)


def curve(journal, name):
    return [record["values"][name] for record in journal.metrics if name in record["values"]]


def at_step(monkeypatch, number, action):
    """Do ``action`` in place of a step's own work."""
    step = loop._Run.step

    def replaced(self, tokens):
        return action() if self.steps_done == number else step(self, tokens)

    monkeypatch.setattr(loop._Run, "step", replaced)


def raiser(error):
    def act():
        raise error

    return act


def test_the_loss_falls(fields, tmp_path):
    """Far below what the frequencies of the bytes alone give."""
    config = TrainConfig(**{**fields, "tokens": 250 * 128, "d_model": 32})
    result = loop.train(config, tmp_path, quiet=True)
    frequency = np.bincount(load_corpus(config.corpus).train, minlength=256) / len(load_corpus(config.corpus).train)
    unigram = -(frequency[frequency > 0] * np.log(frequency[frequency > 0])).sum()
    assert result.row["loss"] < 0.75 * unigram
    losses = curve(only_journal(tmp_path), METRIC_TRAIN_LOSS)
    assert losses[0] == pytest.approx(math.log(256), abs=0.01)
    assert losses[-1] < losses[0] / 2


def test_the_same_seed_gives_the_same_losses(fields, finished, tmp_path):
    expected = only_journal(finished)
    again = loop.train(TrainConfig(**fields), tmp_path / "again", quiet=True)
    assert again.row["loss"] == expected.row["loss"]
    assert curve(only_journal(tmp_path / "again"), METRIC_TRAIN_LOSS) == curve(expected, METRIC_TRAIN_LOSS)
    other = loop.train(TrainConfig(**{**fields, "seed": 1}), tmp_path / "other", quiet=True)
    assert other.row["loss"] != expected.row["loss"]


def test_what_the_journal_holds(fields, finished):
    journal = only_journal(finished)
    config = TrainConfig.from_dict(journal.start["config"])
    assert config.corpus_digest == load_corpus(fields["corpus"]).digest
    assert journal.start["config_hash"] == config_hash(config.to_dict())
    assert journal.start["study"] == "tiny"
    assert set(journal.start["versions"]) == {"bayeslaw", "torch", "python"}
    assert journal.path.parent == finished / "runs" / config.run_id.replace("/", "-")
    row = journal.row
    assert set(row) == set(COLUMNS) - {"source", "loss_unit", "training_run"}
    assert row["state"] == "finished"
    assert row["tokens"] == 48 * 128
    assert row["epochs"] == row["tokens"] / len(load_corpus(fields["corpus"]).train)
    assert row["flops"] == row["budget"] == float(row["tokens"]) * row["flops_per_token"]
    assert 1e7 < row["peak_memory"] < 1e11
    assert row["tokens_per_second"] > 0
    assert [record["step"] for record in journal.metrics] == [1, 12, 24, 24, 36, 48, 48]
    assert curve(journal, METRIC_VAL_LOSS)[-1] == row["loss"]
    rates = curve(journal, "train/learning_rate")
    assert rates[0] == config.matrix_rate
    assert rates[-1] == pytest.approx(0.1 * config.matrix_rate)


def test_validation_loss_and_its_error(fields):
    model = LoopedTransformer(TrainConfig(**fields).architecture, head_size=8)
    with torch.no_grad():
        model.head.normal_(generator=torch.Generator().manual_seed(0))
    sequences = torch.randint(0, 256, (2500, 17), generator=torch.Generator().manual_seed(0))
    mean, error = loop.validation_loss(model, sequences)
    with torch.no_grad():
        token_losses = F.cross_entropy(model(sequences[:, :-1]).transpose(1, 2), sequences[:, 1:], reduction="none")
    assert len(sequences) * 17 > loop.EVALUATION_TOKENS  # more than one pass
    assert mean == pytest.approx(token_losses.mean().item(), rel=1e-5)
    assert error == pytest.approx(token_losses.mean(dim=1).std().item() / math.sqrt(2500), rel=1e-4)
    assert math.isnan(loop.validation_loss(model, sequences[:1])[1])


def test_every_parameter_has_its_rate(fields):
    config = TrainConfig(**{**fields, "coda_layers": 1})
    model = LoopedTransformer(config.architecture, head_size=8)
    rate = {id(p): group["peak"] for group in make_optimizer(model, config).param_groups for p in group["params"]}
    assert len(rate) == len(list(model.parameters()))
    assert rate[id(model.embedding)] == config.embedding_rate
    assert rate[id(model.head)] == config.head_rate
    assert rate[id(model.injection.weight)] == rate[id(model.coda[0].mlp.up.weight)] == config.matrix_rate
    assert rate[id(model.final_norm.gain)] == config.gain_rate
    assert [schedule(step, 3) for step in range(3)] == pytest.approx([1, 0.55, 0.1])
    assert schedule(0, 1) == 1


def test_a_loss_that_is_no_number_ends_the_run(fields, tmp_path):
    result = loop.train(TrainConfig(**{**fields, "matrix_rate": 1e38}), tmp_path, quiet=True)
    journal = only_journal(tmp_path)
    assert result.state == journal.state == "diverged"
    assert "loss" not in journal.row
    assert journal.row["tokens"] < 48 * 128
    assert math.isnan(curve(journal, METRIC_TRAIN_LOSS)[-1])


def test_a_fault_is_told_and_passed_on(fields, tmp_path, monkeypatch):
    at_step(monkeypatch, 3, raiser(RuntimeError("no such kernel")))
    with pytest.raises(RuntimeError, match="no such kernel"):
        loop.train(TrainConfig(**fields), tmp_path, quiet=True)
    journal = only_journal(tmp_path)
    assert journal.state == "failed"
    assert journal.end["error"] == "RuntimeError: no such kernel"
    assert journal.row["tokens"] == 3 * 128


SHORTAGES = [
    MemoryError("no room"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
]


def assert_tells_what_is_needed(error, config):
    model = LoopedTransformer(config.architecture, head_size=config.head_size)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f"{count:,} parameters" in error.what
    assert f"{16 * count:,} bytes" in error.what
    assert "smaller d_model" in error.do


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_no_memory_in_a_step(fields, tmp_path, monkeypatch, shortage):
    at_step(monkeypatch, 3, raiser(shortage))
    with pytest.raises(BayeslawError, match="not enough memory") as error:
        loop.train(TrainConfig(**fields), tmp_path, quiet=True)
    assert_tells_what_is_needed(error.value, TrainConfig(**fields))
    journal = only_journal(tmp_path)
    assert journal.state == "failed"
    assert journal.end["error"] == str(error.value)  # without the name of the class


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_no_memory_for_the_model(fields, tmp_path, monkeypatch, shortage):
    def build(*arguments, **more):
        raise shortage

    with monkeypatch.context() as patch:
        patch.setattr(loop, "LoopedTransformer", build)
        with pytest.raises(BayeslawError, match="not enough memory") as error:
            loop.train(TrainConfig(**fields), tmp_path, quiet=True)
    assert_tells_what_is_needed(error.value, TrainConfig(**fields))
    assert not find_journals(tmp_path)


def test_a_model_larger_than_the_machine_is_not_even_begun(fields, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LoopedTransformer", raiser(AssertionError("building")))
    with pytest.raises(BayeslawError, match="not enough memory"):
        loop.train(TrainConfig(**{**fields, "d_model": 8 * 10**6}), tmp_path, quiet=True)


@pytest.mark.parametrize("study", ["", "  "])
def test_a_study_without_a_name_is_refused_before_anything_is_trained(fields, tmp_path, study):
    with pytest.raises(UsageError, match="study = "):
        loop.train(TrainConfig(**fields), tmp_path, study=study, quiet=True)
    assert not list(tmp_path.iterdir())


def test_ctrl_c(fields, tmp_path, monkeypatch):
    at_step(monkeypatch, 3, raiser(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        loop.train(TrainConfig(**fields), tmp_path, quiet=True)
    assert only_journal(tmp_path).state == "killed"


def test_sigterm(fields, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    at_step(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        loop.train(TrainConfig(**fields), tmp_path, quiet=True)
    assert stop.value.code == 143
    assert only_journal(tmp_path).state == "killed"
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_finished_run_is_not_trained_again(fields, finished):
    before = only_journal(finished)
    content = before.path.read_bytes()
    result = loop.train(TrainConfig(**fields), finished, quiet=True)
    assert not result.trained
    assert result.row == before.row
    assert before.path.read_bytes() == content


@pytest.mark.parametrize("cut", [0, 40])
def test_an_unfinished_attempt_is_kept_aside(fields, finished, cut):
    """Whether its journal ends with a whole line or was cut off within one."""
    expected = only_journal(finished)
    lines = expected.path.read_bytes().splitlines(keepends=True)
    partial = b"".join(lines[:3]) + lines[3][:cut]
    expected.path.write_bytes(partial)
    (expected.path.parent / "journal.jsonl.1").write_text("still earlier")
    result = loop.train(TrainConfig(**fields), finished, quiet=True)
    assert result.trained
    assert result.row["loss"] == expected.row["loss"]
    assert only_journal(finished).state == "finished"
    assert (expected.path.parent / "journal.jsonl.2").read_bytes() == partial
    assert (expected.path.parent / "journal.jsonl.1").read_text() == "still earlier"


def test_another_config_of_the_same_name_is_trained(fields, finished):
    """Recipe, r, width, budget and seed make the name; the hash says that it is another run."""
    result = loop.train(TrainConfig(**{**fields, "matrix_rate": 0.001}), finished, quiet=True)
    assert result.trained
    assert (result.run_dir / "journal.jsonl.1").is_file()
    assert only_journal(finished).start["config"]["matrix_rate"] == 0.001


def test_two_processes_do_not_train_one_run(fields, tmp_path):
    run_dir = run_directory(tmp_path, TrainConfig(**fields).run_id)
    run_dir.mkdir(parents=True)
    with open(run_dir / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another process is training in"):
            loop.train(TrainConfig(**fields), tmp_path, quiet=True)
    assert not find_journals(tmp_path)


def test_a_folder_that_cannot_be_written(fields, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot write the run directory") as error:
        loop.train(TrainConfig(**fields), tmp_path / "file" / "out", quiet=True)
    assert "--out" in error.value.do


def test_a_config_that_does_not_fit_its_corpus_leaves_nothing(fields, tmp_path):
    for changes, named in (
        ({"seq_len": 128, "validation_tokens": 12800}, "held-out tokens"),
        ({"seq_len": 2**16, "batch_tokens": 2**16, "tokens": 2**16, "validation_tokens": 2**16}, "training corpus of"),
        ({"corpus_digest": "0" * 16}, "restore the corpus"),
    ):
        with pytest.raises(UsageError, match=named):
            loop.train(TrainConfig(**{**fields, **changes}), tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_plain_progress(fields, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trainer.progress.LINE_SECONDS", 0.0)
    loop.train(TrainConfig(**fields), tmp_path)
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 5
    assert "step 48/48" in lines[-1]
    assert "tokens/s" in lines[-1]
    monkeypatch.setattr("trainer.progress.LINE_SECONDS", 3600.0)
    loop.train(TrainConfig(**fields), tmp_path / "rarely")
    assert capsys.readouterr().err == ""


def test_a_journal_of_another_kind_is_set_aside(fields, tmp_path):
    run_dir = run_directory(tmp_path, TrainConfig(**fields).run_id)
    JournalWriter(run_dir).close()  # empty: a process that died at once
    assert loop.train(TrainConfig(**fields), tmp_path, quiet=True).trained


def test_a_journal_with_a_line_that_is_no_record_is_set_aside(fields, finished):
    path = only_journal(finished).path
    path.write_text(path.read_text() + "[1,2]\n")
    result = loop.train(TrainConfig(**fields), finished, quiet=True)
    assert result.trained
    assert only_journal(finished).state == "finished"
    assert (path.parent / "journal.jsonl.1").read_text().endswith("[1,2]\n")
