"""One run in training: its steps, the points of its curve, its checkpoints, and all that a checkpoint must hold."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from bayeslaw import schema
from bayeslaw.errors import CheckpointError
from trainer import checkpoint
from trainer.config import TrainConfig
from trainer.data import Batches
from trainer.data.ahead import Ahead
from trainer.distributed import World
from trainer.execution import Execution
from trainer.hardware import peak_flops, peak_memory, restart_peak_memory
from trainer.learner import Learner, Step
from trainer.optim import schedule
from trainer.signals import Signals
from trainer.validation import state_sizes, validation_loss

PATIENCE = 5
"""Steps skipped in a row after which a run has diverged: its weights are what makes the loss no number."""

STOPPED = "killed"

SIGNAL_GRACE = 2.0
"""Seconds in which a process of several may hear of one signal twice: from its sender, and passed on by torchrun."""


class Run:
    """A run in training, in one of the processes that train it.

    Parameters
    ----------
    config : TrainConfig
    execution : Execution
    world : World
    learner : Learner
    batches : Batches
    held_out : tensor of any integer type, [n, T + 1]
    folder : Path
        Where checkpoints go.
    facts : dict
        What every checkpoint states besides the progress.
    """

    def __init__(
        self,
        config: TrainConfig,
        execution: Execution,
        world: World,
        learner: Learner,
        batches: Batches,
        held_out: Tensor,
        folder: Path,
        facts: dict[str, Any],
    ) -> None:
        self.config = config
        self.execution = execution
        self.world = world
        self.learner = learner
        self.batches = batches
        self.held_out = held_out
        self.folder = folder
        self.facts = facts
        self.steps_done = 0
        self.seconds = 0.0
        self.skipped = 0
        self._streak = 0
        self._losses: list[float] = []  # since the last point of the curve
        self._seconds_shown = 0.0
        self._validation: dict[str, float] = {}
        self._last_saved = time.monotonic()
        self.signal: int | None = None  # that stopped the run
        self.peak_memory: float | None = None

    def restore(self, point: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint.

        Raises
        ------
        CheckpointError
            It is damaged, or of another architecture.
        """
        self.learner.load({part: point.tensors(part) for part in point.parts})
        progress = point.facts["progress"]
        self.steps_done = point.step
        self.seconds, self._seconds_shown = progress["seconds"], progress["seconds_shown"]
        self.skipped, self._streak, self._losses = progress["skipped"], progress["streak"], list(progress["losses"])
        if point.step == self.config.steps:
            self._validation = {name: point.facts[name] for name in ("val_loss", "val_loss_se")}
            if self.world.first:  # no further save will remove what the last one was killed before it could
                checkpoint.retire(self.folder, point.step, self.execution.keep)

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.steps_done * self.config.optimizer.batch_tokens

    @property
    def row(self) -> dict[str, Any]:
        """Run-table columns known at the end, as far as the run came."""
        row: dict[str, Any] = {}
        if self.tokens:
            row |= {"tokens": self.tokens, "epochs": self.tokens / self.batches.epoch_tokens, "flops": self._flops}
            row |= {"tokens_per_second": self.tokens / self.seconds}
        loss = self._validation.get("val_loss", math.nan)
        if self.steps_done == self.config.steps and math.isfinite(loss):
            # Its standard error is that of the choice of held-out text, which all runs on a corpus share: no error of
            # this run's own, so it stays in the curve.
            row["loss"] = loss
        if self.peak_memory is not None:
            row["peak_memory"] = self.peak_memory
        return row

    @property
    def _flops(self) -> float:
        return float(self.tokens) * float(self.config.architecture.flops_per_token)

    def train(self, record: Callable[[int, dict[str, float]], None], synced: Callable[[], None]) -> str:
        """Do the steps that are left, the validation and the checkpoints.

        Parameters
        ----------
        record : callable
            Takes a point of the curve: step and metrics.
        synced : callable
            Brings what was recorded to the disk; called before each checkpoint.

        Returns
        -------
        ``finished`` or ``diverged``; ``killed`` when a signal asked to stop and the state is saved.
        """
        restart_peak_memory(self.world.device)
        try:
            with (
                Signals(grace=SIGNAL_GRACE if self.world.size > 1 else 0.0) as signals,
                Ahead(self.batches, self.world, self.steps_done, self.config.steps) as ahead,
            ):
                return self._steps(record, synced, signals, ahead)
        finally:
            self.peak_memory = peak_memory(self.world.device)

    def _steps(
        self,
        record: Callable[[int, dict[str, float]], None],
        synced: Callable[[], None],
        signals: Signals,
        ahead: Ahead,
    ) -> str:
        config = self.config
        unread: list[Step] = []
        while self.steps_done < config.steps:
            begun = time.perf_counter()
            batch = ahead.take()
            minutes = (time.monotonic() - self._last_saved) / 60
            save = self.world.first and minutes >= self.execution.checkpoint_minutes
            step = self.learner.step(self.steps_done, batch, stop=signals.requested is not None, save=save)
            unread.append(step)
            self.steps_done += 1
            self._validation = {}
            last = self.steps_done == config.steps
            alone = self.world.size == 1  # what it asks for, it knows
            stop, save = (signals.requested is not None, save) if alone else (step.stop, step.save)
            logged = self.steps_done == 1 or last or self.steps_done % config.log_every == 0
            validated = last or (config.validate_every and self.steps_done % config.validate_every == 0)
            every = self.execution.checkpoint_every
            saved = last or stop or save or (every and self.steps_done % every == 0)
            diverged = False
            if self.learner.waits or logged or validated or saved:
                diverged = self._read(unread)
            self.seconds += time.perf_counter() - begun
            if logged or diverged:
                record(self.steps_done, self._point(step.gradient_norm, batch))
            if diverged or (validated and not self._validate(record)):
                return "diverged"
            if saved:
                self.world.agreed(synced)
                self._save(needed=last or stop)
            if stop and not last:
                self.signal = signals.requested
                return STOPPED
        return "finished"

    def _read(self, unread: list[Step]) -> bool:
        """Take in what became of the steps, which are then read; whether the run has diverged in one of them."""
        Step.settle(unread)
        diverged = False
        for step in unread:
            self._losses.append(step.loss)
            self._streak = self._streak + 1 if step.skipped else 0
            self.skipped += step.skipped
            diverged = diverged or self._streak >= PATIENCE
        unread.clear()
        return diverged

    def _point(self, gradient_norm: float, batch_BS: Tensor) -> dict[str, float]:
        """Metrics of a point of the curve: means since the last one, and what holds at this step."""
        share = schedule(self.steps_done - 1, self.config.steps)
        tokens = len(self._losses) * self.config.optimizer.batch_tokens
        speed = tokens / (self.seconds - self._seconds_shown)
        values = {
            schema.METRIC_TRAIN_LOSS: sum(self._losses) / len(self._losses),
            schema.METRIC_GRADIENT_NORM: gradient_norm,
            **{
                schema.METRIC_LEARNING_RATE + kind: share * rate for kind, rate in self.learner.optimizers.rates.items()
            },
            schema.METRIC_FLOPS: self._flops,
            schema.METRIC_SKIPPED: float(self.skipped),
            schema.METRIC_TOKENS_PER_SECOND: speed,
        }
        best = peak_flops(self.world.device)
        if best is not None:
            values[schema.METRIC_MFU] = speed * self.config.architecture.flops_per_token / (best * self.world.size)
        if self.world.first:
            with self.learner.autocast():
                sizes = state_sizes(self.learner.model, batch_BS[:1, :-1].to(self.world.device))
            values |= {f"{schema.METRIC_STATE_SIZE}{t}": size for t, size in enumerate(sizes, start=1)}
        self._losses, self._seconds_shown = [], self.seconds
        return values

    def _validate(self, record: Callable[[int, dict[str, float]], None]) -> bool:
        """Measure and record the validation loss; whether it is a number."""
        with self.learner.autocast():
            mean, error = validation_loss(self.learner.model, self.held_out, world=self.world)
        record(self.steps_done, {schema.METRIC_VAL_LOSS: mean, schema.METRIC_VAL_LOSS_SE: error})
        self._validation = {"val_loss": mean, "val_loss_se": error}
        return math.isfinite(mean)

    def _save(self, *, needed: bool) -> None:
        """Save a checkpoint; one that cannot be written ends the run only where it is needed."""
        self._last_saved = time.monotonic()
        parts = self.learner.parts()
        progress = {
            "seconds": self.seconds,
            "seconds_shown": self._seconds_shown,
            "skipped": self.skipped,
            "streak": self._streak,
            "losses": self._losses,
        }
        facts = {**self.facts, **self._validation, "tokens": self.tokens, "progress": progress}
        try:
            self.world.agreed(
                lambda: checkpoint.save(self.folder, self.steps_done, parts, facts, keep=self.execution.keep)
            )
        except CheckpointError as error:
            if needed:
                raise
            if self.world.first:
                print(f"warning: {error}\n  training goes on; the next checkpoint will be tried", file=sys.stderr)
