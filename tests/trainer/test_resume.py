"""A run that was stopped, killed, done before, or is to go further: what it goes on from, and what is kept."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from bayeslaw.errors import CheckpointError, UsageError
from bayeslaw.journal import JournalWriter
from bayeslaw.schema import METRIC_TRAIN_LOSS
from tests.trainer.watching import ALONE, at_step, curve, only_journal, raiser
from trainer import checkpoint, loop
from trainer.config import TrainConfig
from trainer.data import load_corpus
from trainer.execution import Execution
from trainer.learner import Learner
from trainer.rundir import run_directory


def test_ctrl_c(fields, tmp_path, monkeypatch):
    at_step(monkeypatch, 3, raiser(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    assert only_journal(tmp_path).state == "killed"


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_lets_the_step_end_and_saves(fields, tmp_path, finished, monkeypatch, number, ends):
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: os.kill(os.getpid(), number))
        with pytest.raises(ends) as stop:
            loop.train(TrainConfig.of(**fields), tmp_path / "here", quiet=True)
    assert number == signal.SIGINT or stop.value.code == 128 + number
    journal = only_journal(tmp_path / "here")
    assert journal.state == "killed"
    assert journal.row["tokens"] == 4 * 128
    assert signal.getsignal(number) == before
    result = loop.train(TrainConfig.of(**fields), tmp_path / "here", quiet=True)
    expected = only_journal(finished)
    assert result.row["loss"] == expected.row["loss"]
    journal = only_journal(tmp_path / "here")
    assert [record["event"] for record in journal.records][-1] == "end"
    assert curve(journal, METRIC_TRAIN_LOSS) == curve(expected, METRIC_TRAIN_LOSS)
    assert all(map(torch.equal, weights_of(result.run_dir), weights_of(expected.path.parent)))


def test_a_second_signal_does_not_wait(fields, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("went on")

    at_step(monkeypatch, 3, twice)
    with pytest.raises(SystemExit):
        loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    assert only_journal(tmp_path).state == "killed"


def weights_of(run_dir):
    return checkpoint.read(run_dir).tensors("model").values()


def test_a_finished_run_is_not_trained_again(fields, finished):
    before = only_journal(finished)
    content = before.path.read_bytes()
    result = loop.train(TrainConfig.of(**fields), finished, quiet=True)
    assert not result.trained
    assert result.row == before.row
    assert before.path.read_bytes() == content


@pytest.mark.parametrize("cut", [0, 40])
def test_an_attempt_without_a_checkpoint_is_kept_aside(fields, finished, cut):
    """Whether its journal ends with a whole line or was cut off within one."""
    expected = only_journal(finished)
    lines = expected.path.read_bytes().splitlines(keepends=True)
    partial = b"".join(lines[:3]) + lines[3][:cut]
    expected.path.write_bytes(partial)
    shutil.rmtree(expected.path.parent / "checkpoints")
    (expected.path.parent / "journal.jsonl.1").write_text("still earlier")
    result = loop.train(TrainConfig.of(**fields), finished, quiet=True)
    assert result.trained
    assert result.row["loss"] == expected.row["loss"]
    assert only_journal(finished).state == "finished"
    assert (expected.path.parent / "journal.jsonl.2").read_bytes() == partial
    assert (expected.path.parent / "journal.jsonl.1").read_text() == "still earlier"


def test_a_run_killed_after_its_last_checkpoint_needs_no_step(fields, finished, monkeypatch):
    expected = only_journal(finished)
    expected.path.write_bytes(b"".join(expected.path.read_bytes().splitlines(keepends=True)[:-1]))
    monkeypatch.setattr(Learner, "step", raiser(AssertionError("a step")))
    result = loop.train(TrainConfig.of(**fields), finished, quiet=True)
    assert result.row["loss"] == expected.row["loss"]
    assert only_journal(finished).state == "finished"


def test_configs_that_differ_in_anything_do_not_meet(fields, finished):
    before = only_journal(finished)
    result = loop.train(TrainConfig.of(**{**fields, "matrix_rate": 0.001}), finished, quiet=True)
    assert result.trained
    assert result.run_dir != before.path.parent
    assert before.path.is_file()
    assert not loop.train(TrainConfig.of(**fields), finished, quiet=True).trained


def test_the_run_of_another_text_is_kept_aside(fields, finished, tmp_path, capsys):
    """The corpus changed under its name: the digest says that it is another run."""
    corpus = Path(fields["corpus"])
    changed = Path(shutil.copy(corpus, tmp_path / "words.txt"))
    there = {**fields, "corpus": str(changed)}
    first = loop.train(TrainConfig.of(**there), finished, quiet=True)
    changed.write_text(corpus.read_text() + " more")
    load_corpus.__globals__["_load"].cache_clear()
    result = loop.train(TrainConfig.of(**there), finished)
    assert result.trained
    assert result.run_dir == first.run_dir
    assert (result.run_dir / "journal.jsonl.1").is_file()
    assert (result.run_dir / "checkpoints.1").is_dir()
    told = capsys.readouterr().err
    digest = load_corpus(str(changed)).digest
    assert f"another state of the corpus (digest {load_corpus(str(corpus)).digest}, now {digest})" in told
    assert "and is kept as journal.jsonl.1, checkpoints.1" in told
    assert "nothing there" not in told


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff"])
def test_a_lost_journal_costs_no_checkpoint(fields, tmp_path, monkeypatch, capsys, content):
    with monkeypatch.context() as patch:
        at_step(patch, 30, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            loop.train(TrainConfig.of(**fields), tmp_path)
    assert "stopped after step 31 of 48; the same command goes on" in capsys.readouterr().err
    path = only_journal(tmp_path).path
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    steps = []
    with monkeypatch.context() as patch:
        at_step(patch, 31, lambda: steps.append(31))
        at_step(patch, 30, raiser(AssertionError("done again")))
        assert loop.train(TrainConfig.of(**fields), tmp_path).state == "finished"
    told = capsys.readouterr().err
    assert "journal is lost or damaged" in told
    assert "goes on after step 31 of 48" in told
    assert steps == [31]
    assert [record["event"] for record in only_journal(tmp_path).records][:2] == ["start", "resume"]


def test_another_study_is_told_where_the_run_is(fields, finished, capsys):
    loop.train(TrainConfig.of(**fields), finished, study="other")
    assert "it belongs to the study 'tiny' and stays there, not in 'other'" in capsys.readouterr().err


def test_a_run_goes_on_to_a_further_target(fields, finished, tmp_path):
    """With the rates of the new horizon, from the very weights; the journal names where it came from."""
    first = only_journal(finished)
    further = TrainConfig.of(**{**fields, "tokens": 96 * 128})
    result = loop.train(further, tmp_path / "on", quiet=True, continue_from=first.path.parent)
    journal = only_journal(tmp_path / "on")
    assert result.row["tokens"] == 96 * 128
    assert result.row["loss"] < first.row["loss"]
    assert journal.start["config"]["continues"].startswith(f"{first.run_id}@48:")
    assert next(record["step"] for record in journal.metrics) == 60
    rates = curve(journal, "train/learning_rate/matrix")
    peak = further.rates["matrix"]
    assert peak == pytest.approx(2**-0.32 * TrainConfig.of(**fields).rates["matrix"])
    assert rates[0] == pytest.approx(peak * (1 - 0.9 * 59 / 95))
    again = loop.train(further, tmp_path / "on", quiet=True, continue_from=first.path.parent)
    assert not again.trained


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokens": 40 * 128}, "a target of 40 steps from a checkpoint after 48"),
        ({"tokens": 96 * 128, "seed": 1}, "differs from that of .* in seed"),
        ({"tokens": 96 * 128, "d_model": 32}, "differs from that of .* in model"),
    ],
)
def test_what_cannot_go_on(fields, finished, tmp_path, changes, named):
    with pytest.raises(UsageError, match=named):
        loop.train(
            TrainConfig.of(**fields | changes),
            tmp_path / "on",
            quiet=True,
            continue_from=only_journal(finished).path.parent,
        )
    assert not (tmp_path / "on").exists()


def test_a_run_that_goes_on_needs_its_origin(fields, tmp_path):
    with pytest.raises(UsageError, match="without that checkpoint") as error:
        loop.train(TrainConfig.of(**fields, continues="baseline/2@48:0"), tmp_path, quiet=True)
    assert "--continue-from" in error.value.do


def test_a_checkpoint_of_another_architecture(fields, finished):
    config = TrainConfig.of(**{**fields, "d_model": 32})
    learner = Learner(config, Execution(), ALONE)
    point = checkpoint.read(only_journal(finished).path.parent)
    with pytest.raises(CheckpointError, match="another architecture; other shapes: embedding") as error:
        learner.load({part: point.tensors(part) for part in point.parts})
    assert "config" in error.value.do


def test_no_room_for_a_checkpoint(fields, tmp_path, monkeypatch, capsys):
    """One on the way is a warning; the last one ends the run, and what was saved before stays."""
    save, room = checkpoint.save, [True, False, True, False]

    def full(folder, step, *arguments, **more):
        if not room.pop(0):
            raise CheckpointError(f"step {step} does not fit", do="make room")
        return save(folder, step, *arguments, **more)

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(CheckpointError, match="step 48"):
        loop.train(TrainConfig.of(**fields), tmp_path, quiet=True, execution=Execution(checkpoint_every=12))
    assert "step 24 does not fit" in capsys.readouterr().err
    journal = only_journal(tmp_path)
    assert journal.state == "failed"
    assert checkpoint.read(journal.path.parent).step == 36
    room[:] = [True]
    assert loop.train(TrainConfig.of(**fields), tmp_path, quiet=True).state == "finished"


def test_a_journal_of_another_kind_is_set_aside(fields, tmp_path):
    run_dir = run_directory(tmp_path, TrainConfig.of(**fields).run_id)
    JournalWriter(run_dir).close()  # empty: a process that died at once
    assert loop.train(TrainConfig.of(**fields), tmp_path, quiet=True).trained


def test_a_journal_with_a_line_that_is_no_record_is_set_aside(fields, finished):
    path = only_journal(finished).path
    path.write_text(path.read_text() + "[1,2]\n")
    result = loop.train(TrainConfig.of(**fields), finished, quiet=True)
    assert result.trained
    assert only_journal(finished).state == "finished"
    assert (path.parent / "journal.jsonl.1").read_text().endswith("[1,2]\n")


def test_a_run_killed_before_its_last_save_removed_the_older_ones_removes_them(fields, tmp_path, monkeypatch):
    config, execution = TrainConfig.of(**fields | {"validate_every": 0}), Execution(checkpoint_every=16)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.checkpoint._retire", lambda folder, step, keep: None)
        loop.train(config, tmp_path, quiet=True, execution=execution)
    journal = only_journal(tmp_path)
    folder = journal.path.parent / checkpoint.FOLDER
    assert len(list(folder.iterdir())) == 3
    journal.path.write_bytes(b"".join(journal.path.read_bytes().splitlines(keepends=True)[:-1]))  # without its end
    loop.train(config, tmp_path, quiet=True, execution=execution)
    assert [path.name for path in folder.iterdir()] == ["step-000000048"]
