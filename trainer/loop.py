"""Train one run: config -> data -> steps -> validation loss -> checkpoint -> end record in the journal.

A run that was killed goes on from its newest checkpoint, and its journal says so. Under torchrun every process calls
`train`; rank 0 decides and writes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayeslaw import schema
from bayeslaw.errors import UsageError
from bayeslaw.plan import config_hash, require_study
from trainer import checkpoint, rundir
from trainer.config import TrainConfig
from trainer.data import (
    HUB_CORPORA,
    Batches,
    Corpus,
    load_corpus,
    require_fit,
    require_held_out,
    validation_sequences,
)
from trainer.distributed import join
from trainer.execution import Execution
from trainer.layering import recorded_config
from trainer.learner import Learner, shares
from trainer.memory import shortage_told
from trainer.progress import Progress
from trainer.record import Silent, begun, code_versions, device_row
from trainer.run import STOPPED, Run
from trainer.signals import stopped
from trainer.tracking import Tracking


@dataclass(frozen=True)
class RunResult:
    """What became of a run.

    Parameters
    ----------
    row : dict
        Run-table row, see `bayeslaw.schema.COLUMNS`, state included.
    run_dir : Path
        Where its journal and checkpoints are.
    trained : bool
        False when an earlier run of the same config was found there and nothing was to be done.
    skipped : int
        Steps that moved nothing because loss or gradients were not finite.
    """

    row: dict[str, Any]
    run_dir: Path
    trained: bool = True
    skipped: int = 0

    @property
    def state(self) -> str:
        """``finished`` or ``diverged``."""
        return str(self.row["state"])


def with_digest(config: TrainConfig) -> TrainConfig:
    """The config with the digest of its corpus; one of the hub is planned wherever its data are, and has none.

    Raises
    ------
    UsageError
        The config names another digest than the corpus has now, its network cannot read the corpus, or the corpus is
        shorter than a batch or than the validation.
    DataError
        The corpus is damaged.
    """
    if config.data.corpus in HUB_CORPORA and config.data.corpus_digest is None:
        return config
    corpus = load_corpus(config.data.corpus)
    if config.data.corpus_digest not in (None, corpus.digest):
        raise UsageError(
            f"the corpus {config.data.corpus!r} has the digest {corpus.digest}",
            allowed=f"{config.data.corpus_digest}, as when the run was planned",
            do="restore the corpus, or plan again with `bayeslaw sweep plan`",
        )
    _fitting(config, corpus)
    return replace(config, data=replace(config.data, corpus_digest=corpus.digest))


def train(
    config: TrainConfig,
    out: Path,
    *,
    study: str = "bayeslaw",
    tracking: Tracking | None = None,
    quiet: bool = False,
    execution: Execution | None = None,
    continue_from: Path | None = None,
    sweep: Mapping[str, Any] | None = None,
) -> RunResult:
    """Train one run into ``out/runs/<run_id>/``, go on with it there, or return its result if it came to its end.

    Parameters
    ----------
    config : TrainConfig
    out : Path
        Output folder.
    study : str
        MLflow experiment that the run belongs to.
    tracking : Tracking, optional
        Where the journal is delivered while the run goes on; without it the journal is all there is.
    quiet : bool
        Show no progress on stderr.
    execution : Execution, optional
        Device, precision, compilation, memory, checkpoints.
    continue_from : Path, optional
        A checkpoint, or a run directory, of a run that differs in its target alone: start from its state, with rates
        and schedule of the new target.
    sweep : mapping, optional
        The plan that the run is trained for, see `bayeslaw.journal`: in MLflow it stands below the sweep's own run.

    Raises
    ------
    UsageError
        The config does not fit the corpus, the checkpoint or the processes, or the study has no name.
    JournalError
        The output folder cannot be written.
    CheckpointError
        A checkpoint that is needed is damaged or cannot be written.
    BusyError
        Another process is training the run.
    BayeslawError
        The memory does not suffice.
    KeyboardInterrupt, SystemExit
        Ctrl-C, SIGTERM or SIGHUP; the state is saved and the journal ends with ``killed``.
    """
    require_study(study)
    execution = execution or Execution()
    world = join(execution.device)
    config = with_digest(config)
    base = None
    if continue_from is not None:
        base = checkpoint.read(continue_from)
        config = continued(config, base)
    batches, held_out = _data(config)  # a config that does not fit its corpus leaves nothing behind
    _, at_once = shares(config, execution, world)
    digest = config_hash(config.to_dict())
    run_dir = rundir.run_directory(out, config.run_id)
    with contextlib.ExitStack() as held:
        world.agreed(lambda: held.enter_context(rundir.claimed(run_dir)) and None)
        there = world.agreed(lambda: rundir.attempt(run_dir, digest))

        def tell(text: str) -> None:
            if world.first and not quiet:
                print(f"{config.run_id}: {text}", file=sys.stderr, flush=True)

        if there and there.start["study"] != study:
            tell(f"it belongs to the study {there.start['study']!r} and stays there, not in {study!r}")
        if there and there.state in rundir.SETTLED:
            return RunResult(there.row, run_dir, trained=False)
        point = world.agreed(lambda: _resumable(run_dir, digest))
        if config.continues and not (point or base):
            raise UsageError(
                f"a run that continues {config.continues} without that checkpoint",
                do="name the run or checkpoint with --continue-from",
            )
        facts = {
            "config": config.to_dict(),
            "config_hash": digest,
            "run_id": config.run_id,
            "versions": code_versions(),
        }
        with shortage_told(config, execution, at_once, world.device):
            learner = Learner(config, execution, world)  # a config that cannot run leaves no journal
            folder = run_dir / checkpoint.FOLDER
            run = Run(
                config, execution, world, learner, batches, held_out, folder, facts | {"versions": code_versions()}
            )
            if start := point or base:
                run.restore(start)
        writer = Silent()

        def begin() -> None:
            nonlocal writer
            writer = begun(run, study, sweep, tracking, there, point, tell)

        world.agreed(begin)
        with writer, Progress(config.run_id, config.steps, quiet=quiet or not world.first) as progress:

            def record(step: int, values: dict[str, float]) -> None:
                writer.record(step, values)
                if schema.METRIC_TRAIN_LOSS in values:
                    progress.show(step, values[schema.METRIC_TRAIN_LOSS], values[schema.METRIC_TOKENS_PER_SECOND])

            with shortage_told(config, execution, at_once, world.device):
                state = run.train(record, writer.sync)
            writer.state = state
            if state == STOPPED:
                tell(f"stopped after step {run.steps_done} of {config.steps}; the same command goes on from there")
                raise stopped(run.signal)
        world.agreed(lambda: None)  # no process calls the run finished before its journal does
    return RunResult(config.row | device_row(world) | run.row | {"state": state}, run_dir, skipped=run.skipped)


def continued(config: TrainConfig, base: checkpoint.Checkpoint) -> TrainConfig:
    """The config of a run that goes on from another's checkpoint to a target of its own.

    Raises
    ------
    UsageError
        The configs differ in more than the target, or the target is no further than the checkpoint.
    """
    weights = base.files["model" + checkpoint.SUFFIX]["sha256"][:16]
    origin = f"{base.facts['run_id']}@{base.step}:{weights}"
    before = recorded_config(base.facts, base.path)
    if replace(config, target=before.target, continues=before.continues) != before:
        now, then = (part.to_dict() for part in (config, before))
        differing = [name for name in now if name not in ("target", "continues") and now[name] != then[name]]
        raise UsageError(
            f"a config that differs from that of {base.path} in {', '.join(differing)}",
            allowed="another target alone",
            do="leave the other flags out, or train a run of its own",
        )
    if config.steps <= base.step:
        raise UsageError(
            f"a target of {config.steps} steps from a checkpoint after {base.step}",
            allowed=f"more than {base.step} steps ({base.facts['tokens']:,} tokens)",
            do="aim further, or continue from an earlier checkpoint",
        )
    return replace(config, continues=origin)


def _resumable(run_dir: Path, digest: str) -> checkpoint.Checkpoint | None:
    """The checkpoint that a run of this config goes on from, None if it must begin anew."""
    folder = run_dir / checkpoint.FOLDER
    checkpoint.tidy(folder)  # a run killed after its last step saves none that would do it
    point = checkpoint.latest(folder)
    return point if point and point.facts.get("config_hash") == digest else None


def _fitting(config: TrainConfig, corpus: Corpus) -> Batches:
    """The training batches of a config that fits its corpus in all that can be told without reading it."""
    seq_len = config.model.seq_len
    require_fit(corpus, seq_len=seq_len, vocab_size=config.model.vocab_size)
    batches = Batches(corpus.train, seq_len, config.optimizer.batch_tokens // seq_len, config.seed)
    require_held_out(corpus, seq_len, config.data.validation_tokens)
    return batches


def _data(config: TrainConfig) -> tuple[Batches, Tensor]:
    """The training batches and the held-out sequences [n, T + 1]."""
    corpus = load_corpus(config.data.corpus)
    batches = _fitting(config, corpus)
    held_out = validation_sequences(corpus, config.model.seq_len, config.data.validation_tokens)
    return batches, torch.from_numpy(held_out)
