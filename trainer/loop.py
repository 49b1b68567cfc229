"""Train one run: config -> data -> steps -> validation loss -> end record in the journal."""

from __future__ import annotations

import contextlib
import math
import platform
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayeslaw import schema
from bayeslaw.errors import UsageError
from bayeslaw.journal import JournalWriter
from bayeslaw.plan import config_hash, require_study
from bayeslaw.version import __version__
from models.looped import LoopedTransformer
from trainer import rundir
from trainer.config import TrainConfig
from trainer.data import Batches, load_corpus, validation_sequences
from trainer.memory import peak_memory, restart_peak_memory, shortage_told
from trainer.optim import make_optimizer, schedule, set_rates
from trainer.progress import Progress
from trainer.tracking import Tracking

EVALUATION_TOKENS = 16_384
"""Tokens of one validation pass: bounds its memory."""

ALL_THREADS = torch.get_num_threads()
THREAD_WORK = 2**17
"""Activations (batch tokens x MLP width) from which more than one thread pays; below, they only wait for each other."""

EXIT_SIGTERM = 128 + signal.SIGTERM


@dataclass(frozen=True)
class RunResult:
    """What became of a run.

    Parameters
    ----------
    row : dict
        Run-table row, see `bayeslaw.schema.COLUMNS`, state included.
    run_dir : Path
        Where its journal is.
    trained : bool
        False when an earlier run of the same config was found there and nothing was to be done.
    """

    row: dict[str, Any]
    run_dir: Path
    trained: bool = True

    @property
    def state(self) -> str:
        """``finished`` or ``diverged``."""
        return str(self.row["state"])


def with_digest(config: TrainConfig) -> TrainConfig:
    """The config with the digest of its corpus.

    Raises
    ------
    UsageError
        The config names another digest than the corpus has now.
    """
    corpus = load_corpus(config.corpus)
    if config.corpus_digest is None:
        return replace(config, corpus_digest=corpus.digest)
    if config.corpus_digest != corpus.digest:
        raise UsageError(
            f"the corpus {config.corpus!r} has the digest {corpus.digest}",
            allowed=f"{config.corpus_digest}, as when the run was planned",
            do="restore the corpus, or plan again with `bayeslaw sweep plan`",
        )
    return config


def train(
    config: TrainConfig,
    out: Path,
    *,
    study: str = "bayeslaw",
    tracking: Tracking | None = None,
    quiet: bool = False,
) -> RunResult:
    """Train one run into ``out/runs/<run_id>/``, or return the result of an earlier run of the same config there.

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

    Raises
    ------
    UsageError
        The config does not fit the corpus, or the study has no name.
    JournalError
        The output folder cannot be written.
    BusyError
        Another process is training the run.
    BayeslawError
        The memory does not suffice.
    KeyboardInterrupt, SystemExit
        Ctrl-C, or SIGTERM; the journal then ends with the state ``killed``.
    """
    require_study(study)
    config = with_digest(config)
    batches, held_out = _data(config)  # a config that does not fit its corpus leaves nothing behind
    digest = config_hash(config.to_dict())
    run_dir = rundir.run_directory(out, config.run_id)
    with rundir.claimed(run_dir):
        if there := rundir.settled(run_dir, digest):
            return RunResult(there.row, run_dir, trained=False)
        with shortage_told(config):
            run = _Run(config, batches, held_out)  # a config that cannot run leaves no journal
        rundir.set_aside(run_dir)
        journal = JournalWriter(run_dir)
        follower = tracking.follow(journal.path) if tracking else None
        row = config.row | {"device": _device_name(), "device_count": 1}
        versions = {"bayeslaw": __version__, "torch": torch.__version__, "python": platform.python_version()}
        with contextlib.closing(journal), Progress(config.run_id, config.steps, quiet=quiet) as progress:
            journal.start(study=study, config=config.to_dict(), config_hash=digest, versions=versions, row=row)

            def record(step: int, values: dict[str, float]) -> None:
                journal.metrics(step, values)
                if follower:
                    follower.recorded(len(values))
                if schema.METRIC_TRAIN_LOSS in values:
                    progress.show(step, values[schema.METRIC_TRAIN_LOSS], values[schema.METRIC_TOKENS_PER_SECOND])

            state, error = "failed", None
            try:
                with _sigterm_raises(), shortage_told(config):
                    state = run.train(record)
            except (KeyboardInterrupt, SystemExit) as stop:
                state, error = "killed", f"stopped by {type(stop).__name__}"
                raise
            except BaseException as fault:
                error = rundir.reason(fault)
                raise
            finally:
                journal.end(state=state, row=run.row, error=error)
                if follower:
                    follower.close()
    return RunResult(row | run.row | {"state": state}, run_dir)


def _data(config: TrainConfig) -> tuple[Batches, Tensor]:
    """The training batches and the held-out sequences [n, T + 1]."""
    corpus = load_corpus(config.corpus)
    batches = Batches(corpus.train, config.seq_len, config.batch_tokens // config.seq_len, config.seed)
    return batches, torch.from_numpy(validation_sequences(corpus, config.seq_len, config.validation_tokens))


class _Run:
    """The state of one run in training."""

    def __init__(self, config: TrainConfig, batches: Batches, held_out: Tensor) -> None:
        self.config = config
        self.batches = batches
        self.held_out = held_out
        work = config.batch_tokens * 4 * config.d_model
        torch.set_num_threads(ALL_THREADS if work >= THREAD_WORK else 1)
        self.model = LoopedTransformer(config.architecture, head_size=config.head_size, seed=config.seed)
        self.optimizer = make_optimizer(self.model, config)
        self.steps_done = 0
        self.seconds = 0.0
        self.loss: tuple[float, float] | None = None
        self.peak_memory: float | None = None

    @property
    def row(self) -> dict[str, Any]:
        """Run-table columns known at the end, as far as the run came."""
        tokens = self.steps_done * self.config.batch_tokens
        row: dict[str, Any] = {}
        if tokens:
            row |= {"tokens": tokens, "epochs": tokens / len(self.batches.tokens)}
            row |= {"flops": float(tokens) * float(self.config.architecture.flops_per_token)}
            row |= {"tokens_per_second": tokens / self.seconds}
        if self.loss is not None:
            row["loss"] = self.loss[0]
            if math.isfinite(self.loss[1]):
                row["loss_se"] = self.loss[1]
        if self.peak_memory is not None:
            row["peak_memory"] = self.peak_memory
        return row

    def train(self, record: Callable[[int, dict[str, float]], None]) -> str:
        """Run all steps and the validation; the state is ``finished`` or ``diverged``."""
        config = self.config
        restart_peak_memory()
        losses: list[float] = []  # since the last point of the curve
        seconds_shown = 0.0
        for step in range(config.steps):
            begun = time.perf_counter()
            share = schedule(step, config.steps)
            set_rates(self.optimizer, share)
            loss = self.step(torch.from_numpy(self.batches.at(step)))
            self.seconds += time.perf_counter() - begun
            self.steps_done = step + 1
            losses.append(loss)
            last = self.steps_done == config.steps
            if step == 0 or last or self.steps_done % config.log_every == 0 or not math.isfinite(loss):
                tokens = len(losses) * config.batch_tokens
                values = {
                    schema.METRIC_TRAIN_LOSS: sum(losses) / len(losses),
                    schema.METRIC_LEARNING_RATE: share * self.optimizer.param_groups[0]["peak"],
                    schema.METRIC_TOKENS_PER_SECOND: tokens / (self.seconds - seconds_shown),
                }
                record(self.steps_done, values)
                losses, seconds_shown = [], self.seconds
            if not math.isfinite(loss):
                return "diverged"
            if last or (config.validate_every and self.steps_done % config.validate_every == 0):
                mean, error = validation_loss(self.model, self.held_out)
                record(self.steps_done, {schema.METRIC_VAL_LOSS: mean})
                if not math.isfinite(mean):
                    return "diverged"
                if last:
                    self.loss = (mean, error)
        self.peak_memory = peak_memory()
        return "finished"

    def step(self, tokens: Tensor) -> float:
        """One optimiser step on tokens [B, T + 1]; the loss before it, nats per token."""
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        value = loss.item()
        if math.isfinite(value):  # else the weights stay as they were when it happened
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self.optimizer.step()
        return value


@torch.no_grad()
def validation_loss(model: LoopedTransformer, sequences: Tensor) -> tuple[float, float]:
    """Mean loss over held-out sequences and its standard error, nats per token.

    Parameters
    ----------
    model : LoopedTransformer
    sequences : tensor of int64, [n, T + 1]

    Returns
    -------
    The mean over all tokens, and the standard error of the mean with the sequence as the unit: tokens of one
    sequence are not independent.
    """
    at_once = max(1, EVALUATION_TOKENS // sequences.shape[1])
    per_sequence = np.concatenate(
        [
            F.cross_entropy(model(part[:, :-1]).transpose(1, 2), part[:, 1:], reduction="none")
            .mean(dim=1, dtype=torch.float64)
            .numpy()
            for part in torch.split(sequences, at_once)
        ]
    )
    error = per_sequence.std(ddof=1) / math.sqrt(len(per_sequence)) if len(per_sequence) > 1 else math.nan
    return float(per_sequence.mean()), float(error)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises SystemExit while a run goes on (main thread only: elsewhere Python takes no signals)."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(EXIT_SIGTERM)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _device_name() -> str:
    return f"cpu {platform.machine()}"
