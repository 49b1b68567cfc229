"""Runs that are killed at any moment, alone or in two processes, and gone on with: nothing tells them from others."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import random
import signal
import string
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from bayeslaw.errors import JournalError
from bayeslaw.journal import FILE_NAME, read_journal
from bayeslaw.schema import METRIC_SKIPPED, METRIC_TOKENS_PER_SECOND, METRIC_TRAIN_LOSS, METRIC_VAL_LOSS
from tests.trainer.ranks import Ranks
from trainer import checkpoint, learner
from trainer.config import TrainConfig
from trainer.data import Batches, load_corpus
from trainer.execution import Execution
from trainer.loop import train
from trainer.rundir import run_directory

STEPS = 40
OF_THE_MOMENT = {"tokens_per_second", "peak_memory", "device_count"}
"""Columns of a row that depend on how fast, where and by how many the run was done."""

CARRIED_OUT = {"checkpoint_every": 3, "keep": 2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict:
    """Config of a run of 1.6 epochs through a text none of whose windows comes twice."""
    path = tmp_path_factory.mktemp("corpus") / "letters.txt"
    path.write_text("".join(random.Random(0).choices(string.ascii_letters, k=3_500)))
    return {
        "d_model": 16,
        "head_size": 8,
        "recurrences": 2,
        "prelude_layers": 1,
        "shared_layers": 1,
        "coda_layers": 0,
        "seq_len": 16,
        "batch_tokens": 128,
        "steps": STEPS,
        "corpus": str(path),
        "validation_tokens": 112,
        "log_every": 1,
        "validate_every": 7,
    }


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The run uninterrupted, in so many processes; done once."""

    @functools.cache
    def finished(size, log_every=1, double=False) -> Story:
        story = Story(tiny | {"log_every": log_every}, tmp_path_factory.mktemp("whole"), double).finish(size)
        assert_whole(story)
        assert_every_row_once(story)
        return story

    return finished


# ---------------------------------------------------------------------------------------------- in the process killed


def attempt(fields, out, log, double=False, fatal=None, fatal_step=None, spoilt_steps=()):
    """Train, and note each row that is read.

    Be killed at call ``fatal`` of those by which checkpoints are saved, or in step ``fatal_step``; gradients of
    ``spoilt_steps`` are infinite.
    """
    if double:
        torch.set_default_dtype(torch.float64)
    _note(log, fatal, fatal_step, spoilt_steps)
    train(TrainConfig.of(**fields), out, quiet=True, execution=Execution(**CARRIED_OUT))


def _note(log, fatal, fatal_step, spoilt_steps):
    file = os.open(f"{log}-{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    saving, left, at = [False], [fatal], [-1]
    step, forward, save, fsync = learner.Learner.step, learner._Loss.forward, checkpoint.save, os.fsync

    def tell(**note):
        os.write(file, json.dumps(note).encode() + b"\n")

    def event(name, *arguments):
        if saving[0] and left[0] is not None and name in ("open", "fsync", "os.rename", "os.mkdir", "os.rmdir"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def stepping(self, number, *arguments, **flags):
        at[0] = number
        return step(self, number, *arguments, **flags)

    def reading(self, rows):
        if at[0] >= 0:
            tell(step=at[0], rows=[hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in rows])
        if at[0] == fatal_step:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = forward(self, rows)
        if at[0] in spoilt_steps:
            loss.register_hook(lambda gradient: gradient * math.inf)
        return loss

    def saved(*arguments, **more):
        tell(saving=True)
        saving[0] = True
        path = save(*arguments, **more)
        saving[0] = False
        tell(saving=False)
        return path

    def synced(descriptor):
        event("fsync")
        fsync(descriptor)

    learner.Learner.step, learner._Loss.forward, checkpoint.save, os.fsync = stepping, reading, saved, synced
    sys.addaudithook(event)


# ------------------------------------------------------------------------------------------------- what became of it


@dataclass
class Story:
    """A run in as many attempts as it took."""

    fields: dict
    folder: Path
    double: bool = False
    attempts: list[tuple[Path, int]] = field(default_factory=list)  # log and processes
    seconds: float = 0.0  # that the last attempt took

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def run_dir(self) -> Path:
        return run_directory(self.out, TrainConfig.of(**self.fields).run_id)

    def begin(self, size: int, **more) -> Ranks:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"log-{len(self.attempts)}"
        self.attempts.append((log, size))
        work = functools.partial(attempt, double=self.double, **more)
        return Ranks(work, self.fields, self.out, log, size=size, folder=self.folder)

    def finish(self, size: int) -> Story:
        begun = time.monotonic()
        assert self.begin(size).ended() == [0] * size
        self.seconds = time.monotonic() - begun
        return self

    def notes(self, number: int) -> list[list[dict]]:
        """What each process of an attempt noted."""
        log, size = self.attempts[number]
        paths = [Path(f"{log}-{rank}") for rank in range(size)]
        return [[json.loads(line) for line in path.open()] if path.exists() else [] for path in paths]

    @property
    def ended_inside_a_checkpoint(self) -> bool:
        """Whether the last attempt was killed while it saved."""
        notes = self.notes(-1)[0]
        return bool(notes) and notes[-1].get("saving", False)

    def rows(self) -> list[list[str]]:
        """Rows read in each step of the path that leads to the end, those of all processes in their order."""
        path: list[list[list[str]]] = []  # of a step, of a process
        for number in range(len(self.attempts)):
            notes = self.notes(number)
            begun = min((note["step"] for of_rank in notes for note in of_rank if "step" in note), default=len(path))
            assert begun <= len(path), f"attempt {number} began at step {begun}, and {len(path)} were done"
            del path[begun:]
            for rank, of_rank in enumerate(notes):
                at = begun - 1
                for note in of_rank:
                    if "step" not in note:
                        continue
                    assert note["step"] in (at, at + 1), "a step left out"
                    at = note["step"]
                    if at == len(path):
                        path.append([[] for _ in notes])
                    path[at][rank] += note["rows"]
        return [[row for of_rank in step for row in of_rank] for step in path]

    def metrics(self) -> list[tuple[int, dict[str, float]]]:
        """Points of the curve, without what depends on the clock."""
        return [
            (record["step"], {k: v for k, v in record["values"].items() if k != METRIC_TOKENS_PER_SECOND})
            for record in read_journal(self.run_dir).metrics
        ]

    def curve(self, name: str) -> list[float]:
        return [values[name] for _, values in self.metrics() if name in values]

    def row(self) -> dict:
        return {name: value for name, value in read_journal(self.run_dir).row.items() if name not in OF_THE_MOMENT}

    def tensors(self) -> dict[str, torch.Tensor]:
        point = checkpoint.read(self.run_dir)
        assert point.step == self.fields["steps"]
        return {f"{part}/{name}": tensor for part in point.parts for name, tensor in point.tensors(part).items()}


def assert_whole(story):
    """One journal that says all, checkpoints that are due, nothing half done."""
    lines = (story.run_dir / FILE_NAME).read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "start"
    assert events[-1] == "end"
    assert events.count("start") == 1
    journal = read_journal(story.run_dir)
    assert journal.state == "finished"
    assert [step for step, values in story.metrics() if METRIC_VAL_LOSS in values] == [*range(7, STEPS, 7), STEPS]
    every = story.fields["log_every"]
    due = sorted({1, *range(every, STEPS, every), STEPS})
    assert [step for step, values in story.metrics() if METRIC_TRAIN_LOSS in values] == due
    there = sorted(path.name for path in (story.run_dir / checkpoint.FOLDER).iterdir())
    rated = {path: checkpoint.read(story.run_dir / checkpoint.FOLDER / path).facts.get("val_loss") for path in there}
    assert {"step-000000039", "step-000000040"} <= set(there)
    assert all(rated[path] is not None for path in there if path != "step-000000039")
    assert len(there) <= 3


def assert_every_row_once(story):
    """The batches of the config, step after step, each row in one process."""
    config = TrainConfig.of(**story.fields)
    batches = Batches(load_corpus(config.data.corpus).train, 16, 8, config.seed)
    rows = story.rows()
    assert rows == [[hashlib.sha256(row.tobytes()).hexdigest() for row in batches.at(step)] for step in range(STEPS)]
    flat = [row for step in rows for row in step]
    assert batches.windows < len(flat) < 2 * batches.windows  # a second epoch was begun
    for epoch in (flat[: batches.windows], flat[batches.windows :]):
        assert len(set(epoch)) == len(epoch)


def assert_same(story, expected):
    """Bit for bit."""
    assert_whole(story)
    assert_every_row_once(story)
    assert story.metrics() == expected.metrics()
    assert story.row() == expected.row()
    tensors, others = story.tensors(), expected.tensors()
    assert tensors.keys() == others.keys()
    assert any(name.startswith("optimizer/") for name in tensors)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name


# --------------------------------------------------------------------------------------------------------- the killing


def killed(story, size, draw, span) -> tuple[bool, bool]:
    """One attempt, to be killed at a moment drawn; whether it was, and within a checkpoint."""
    if draw.random() < 0.5:
        codes = story.begin(size, fatal=draw.randint(1, 100)).ended()
    else:
        ranks = story.begin(size)
        time.sleep(draw.uniform(0, span))
        ranks.signal(signal.SIGKILL, draw.choice([[0]] if size == 1 else [[0], [1], [0, 1]]))
        codes = ranks.ended()  # those that live on notice it
    if 0 in codes:
        assert read_journal(story.run_dir).state == "finished", "a process took the run for finished"
        return False, False
    assert -signal.SIGKILL in codes
    return True, story.ended_inside_a_checkpoint


def kills(whole, folder, *, size, wanted, seed) -> tuple[int, int, int]:
    """Runs killed again and again until as many kills as wanted; kills, those inside checkpoints, and runs."""
    draw, total, inside, number = random.Random(seed), 0, 0, 0
    span = 0.6 * whole(size).seconds
    while total < wanted:
        expected = whole(size, log_every=5 if number % 3 == 2 else 1)
        story = Story(expected.fields, folder / f"killed-{number}")
        going = True
        while going and total < wanted:
            going, within = killed(story, size, draw, span)
            total += going
            inside += within
        if going:
            story.finish(size)
        assert_same(story, expected)
        number += 1
    return total, inside, number


def test_a_run_killed_and_gone_on_with_is_the_run(whole, tmp_path):
    total, _, _ = kills(whole, tmp_path, size=1, wanted=4, seed=1)
    assert total == 4


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_thirty_kills(whole, tmp_path, size):
    total, inside, runs = kills(whole, tmp_path, size=size, wanted=15, seed=size)
    print(f"{size} processes: {total} kills in {runs} runs, {inside} of them inside a checkpoint")
    assert total == 15
    assert inside >= 3


def test_what_a_kill_after_the_last_step_left_is_removed(tiny, tmp_path):
    story = Story(tiny, tmp_path).finish(1)
    journal = story.run_dir / FILE_NAME
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    left = story.run_dir / checkpoint.FOLDER / ".step-000000036.partial"
    left.mkdir()
    story.finish(1)
    assert not left.exists()
    assert_whole(story)


def test_what_happened_since_the_last_point_is_not_lost(tiny, tmp_path):
    """Losses that a point will be the mean of, and skipped steps: how many, and how many in a row."""
    fields = tiny | {"log_every": 5}
    spoilt = (4, 5, 6, 7, *range(20, STEPS))
    stories = [Story(fields, tmp_path / name) for name in ("whole", "killed")]
    for step in (8, 23, 24):  # checkpoints are after 6 and 21 steps
        assert stories[1].begin(1, fatal_step=step, spoilt_steps=spoilt).ended() == [-signal.SIGKILL]
    for story in stories:
        assert story.begin(1, spoilt_steps=spoilt).ended() == [0]
        assert [step for step, _ in story.metrics()] == [1, 5, 7, 10, 14, 15, 20, 21, 25]
        assert story.row()["state"] == "diverged"
    assert repr(stories[1].metrics()) == repr(stories[0].metrics())
    assert stories[1].row() == stories[0].row()
    assert [values[METRIC_SKIPPED] for _, values in stories[1].metrics() if METRIC_SKIPPED in values][-1] == 9


@pytest.mark.slow
def test_four_processes_go_on_bit_for_bit(tiny, whole, tmp_path):
    """Sums of more than two terms depend on their order, which DDP changes after its first backward pass."""
    story = Story(tiny, tmp_path)
    assert -signal.SIGKILL in story.begin(4, fatal=60).ended()
    assert_same(story.finish(4), whole(4))


@pytest.mark.parametrize(
    "sizes", [(2, 1), pytest.param((1, 2), marks=pytest.mark.slow), pytest.param((2, 4, 1, 2), marks=pytest.mark.slow)]
)
def test_another_number_of_processes_goes_on(tiny, whole, tmp_path, sizes):
    """In float64, where rounding does not hide a fault."""
    expected = whole(1, double=True)
    story = Story(tiny, tmp_path, double=True)
    for size in sizes[:-1]:
        assert -signal.SIGKILL in story.begin(size, fatal=90).ended()
    story.finish(sizes[-1])
    assert [bool(any(notes)) for notes in map(story.notes, range(len(sizes)))] == [True] * len(sizes)
    assert_whole(story)
    assert_every_row_once(story)
    for (step, values), (at, others) in zip(story.metrics(), expected.metrics(), strict=True):
        assert step == at
        assert values == pytest.approx(others, rel=1e-6), step
    tensors, others = story.tensors(), expected.tensors()
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(
            tensor, others[name], rtol=1e-6, atol=1e-8, check_dtype=False, msg=lambda text, name=name: name + text
        )


@pytest.mark.parametrize(
    "targets",
    [pytest.param([0], marks=pytest.mark.slow), pytest.param([1], marks=pytest.mark.slow), [1, 0, 0, 1]],
    ids=["first", "second", "both twice"],
)
@pytest.mark.slow
def test_sigterm_stops_both_processes_at_one_step(tiny, whole, tmp_path, targets):
    """Whoever gets it, and though torchrun passes on what a process was sent itself."""
    story = Story(tiny, tmp_path)
    ranks = story.begin(2)
    while len(story.notes(0)[1]) < 5 and ranks.alive:
        time.sleep(0.01)
    for target in targets:
        ranks.signal(signal.SIGTERM, [target])
        time.sleep(0.005)
    assert ranks.ended() == [128 + signal.SIGTERM] * 2
    journal = read_journal(story.run_dir)
    assert journal.state == "killed"
    first, second = ([note["step"] for note in notes if "step" in note] for notes in story.notes(0))
    assert first == second
    assert first[-1] + 1 == checkpoint.read(story.run_dir).step < STEPS
    assert_same(story.finish(2), whole(2))


# ------------------------------------------------------------------------------------------------------ under torchrun


def torchrun(story) -> subprocess.Popen:
    """The run by the command line, in two processes of torchrun."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (story.fields | CARRIED_OUT).items()]
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "bayeslaw", "train", *flags]
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{story.folder}/none.db", "OMP_NUM_THREADS": "1"}
    with open(story.folder / "said", "a") as said:
        return subprocess.Popen(
            [sys.executable, "-m", *command, f"--out={story.out}"],
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def awaited(story, process, step) -> list[int]:
    """The processes of torchrun once the journal has come to a step."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(JournalError):
            if any(record["step"] >= step for record in read_journal(story.run_dir).metrics):
                return [*map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())]
        time.sleep(0.02)
    raise AssertionError((story.folder / "said").read_text())


@pytest.mark.slow
def test_torchrun_stopped_and_killed(tiny, whole, tmp_path):
    """SIGTERM to all processes, as a scheduler sends it; then one process is killed; then it comes to its end."""
    fields = tiny | {"steps": 200}
    expected = Story(fields, tmp_path / "whole").finish(2)
    story = Story(fields, tmp_path / "stopped")
    story.folder.mkdir()
    process = torchrun(story)
    workers = awaited(story, process, 20)
    assert len(workers) == 2
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(60) != 0
    stopped = checkpoint.read(story.run_dir).step
    assert 20 <= stopped < 200
    assert read_journal(story.run_dir).state == "killed"
    process = torchrun(story)
    os.kill(awaited(story, process, stopped + 20)[1], signal.SIGKILL)
    assert process.wait(60) != 0
    assert torchrun(story).wait(100) == 0, (story.folder / "said").read_text()
    assert story.metrics() == expected.metrics()
    tensors, others = story.tensors(), expected.tensors()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
