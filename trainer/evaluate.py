"""Scores of a checkpoint on tasks and on held-out text, each kept in a file of its own as soon as it is there.

What decides the numbers decides the file's name, so an evaluation that was stopped goes on where it was, and the same
one again only reads.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayeslaw.architecture import Architecture
from bayeslaw.errors import DataError, UsageError
from bayeslaw.evaluations import (
    FOLDER,
    RUN_COLUMNS,
    Evaluation,
    Results,
    key_of,
    read_evaluation,
    results_of,
    write_evaluation,
)
from bayeslaw.version import versions
from models.looped import LoopedTransformer
from trainer import checkpoint
from trainer.checks import require_count
from trainer.data.format import Ids
from trainer.data.tokenizer import digest as tokenizer_digest
from trainer.distributed import join
from trainer.evaluation.heldout import HeldOut
from trainer.evaluation.scoring import PASS_TOKENS, Scorer
from trainer.evaluation.tasks import Task
from trainer.execution import Execution
from trainer.sections import MOST_LAYERS
from trainer.trained import Trained, trained


@dataclass(frozen=True)
class Outcome:
    """What became of one task at one r.

    Parameters
    ----------
    run_dir : Path
    task : str
    recurrences : int
    evaluation : Evaluation, optional
        None where there is none.
    made : bool
        Now, not before.
    problem : str, optional
        Why there is none.
    """

    run_dir: Path
    task: str
    recurrences: int
    evaluation: Evaluation | None
    made: bool = False
    problem: str | None = None


def runs_below(paths: Sequence[Path]) -> list[Path]:
    """The run directories and checkpoints that paths mean: each itself, or all run directories below it.

    Raises
    ------
    UsageError
        A path holds no checkpoint.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if (path / checkpoint.FILE_NAME).is_file() or (path / checkpoint.FOLDER).is_dir():
            found[path] = None
            continue
        below = sorted(
            {each.parent.parent.parent for each in path.glob(f"**/{checkpoint.FOLDER}/*/{checkpoint.FILE_NAME}")}
        )
        if not below:
            raise UsageError(
                f"no checkpoint in or below {path}",
                allowed="a run directory, a checkpoint, or a folder of runs",
                do="check the path, or train a run: `bayeslaw train --help`",
            )
        found |= dict.fromkeys(below)
    return list(found)


def most_recurrences(architecture: Architecture) -> int:
    """The most recurrences that a network can be run with.

    One trained with r = 1 has no injection for more, hyperconnections have parameters for each trained recurrence.
    """
    trained_r = int(architecture.recurrences)
    if trained_r == 1 or architecture.injection == "hyperconnections":
        return trained_r
    once = architecture.prelude_layers + architecture.coda_layers
    return max(trained_r, int((MOST_LAYERS - once) // architecture.shared_layers))


class Evaluator:
    """Evaluates one checkpoint.

    Parameters
    ----------
    path : Path
        A run directory (its newest checkpoint) or a checkpoint.
    tokenizer : str, optional
        See `trainer.trained.Trained.tokenizer`.
    device : str
        As in `trainer.execution.Execution`.
    precision : str
        As in `trainer.execution.Execution`.
    pass_tokens : int, optional
        Tokens of one forward pass, see `trainer.evaluation.scoring.Scorer`.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or it is damaged.
    UsageError
        There is no such device, or nothing says which tokenizer it is.
    """

    def __init__(
        self,
        path: Path,
        *,
        tokenizer: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        pass_tokens: int | None = None,
    ) -> None:
        Execution(device=device, precision=precision)  # which says what is wrong with them
        if pass_tokens is not None:
            require_count("pass_tokens", pass_tokens)
        self._trained = trained(path)
        self.run_dir = _run_directory(self._trained.point.path)
        self.row = _row(self._trained)
        self.architecture = self._trained.config.architecture
        self._tokenizer = self._trained.tokenizer(tokenizer)
        self._device = join(device).device
        self._precision = precision if precision != "auto" else "bfloat16" if self._device.type == "cuda" else "float32"
        self._pass_tokens = pass_tokens
        self._model: LoopedTransformer | None = None

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return str(self.row["run_id"])

    @property
    def step(self) -> int:
        """Optimiser steps of the checkpoint."""
        return self._trained.point.step

    def scorer(self, recurrences: int | None = None) -> Scorer:
        """Scores examples under the network."""
        return Scorer(
            self.model(),
            self._tokenizer,
            recurrences=recurrences,
            precision=self._precision,
            pass_tokens=self._pass_tokens,
        )

    def model(self) -> LoopedTransformer:
        """The network, loaded when it is first needed."""
        if self._model is None:
            self._model = self._trained.network().to(self._device)
        return self._model

    def evaluate(
        self,
        tasks: Sequence[Task],
        *,
        recurrences: Sequence[int] | None = None,
        held_out: bool = True,
        again: bool = False,
        told: Callable[[str, int, int], None] | None = None,
    ) -> Iterator[Outcome]:
        """Score held-out text and tasks, or read what was scored before, one by one.

        Parameters
        ----------
        tasks : sequence of Task
        recurrences : sequence of int, optional
            How often the shared block runs, the trained r by default. What the network cannot be run with is a problem
            of each task, see `most_recurrences`.
        held_out : bool
            Score the corpus's held-out text, too, as the training did.
        again : bool
            Score once more what was scored before.
        told : callable, optional
            Told of a task's name, choices scored and choices in all.

        Raises
        ------
        DataError
            A result cannot be written.
        """
        before = {} if again else self._before()
        asked: list[Task | HeldOut] = [*([HeldOut(self._trained.config)] if held_out else []), *tasks]
        for r in recurrences or [int(self.row["recurrences"])]:
            for task in asked:
                try:
                    yield self._outcome(task, r, before, told)
                except UsageError as error:
                    yield Outcome(self.run_dir, task.name, r, None, problem=str(error))

    def _before(self) -> dict[str, Evaluation]:
        """What was scored before, by key; a damaged file does not count, and is made again."""
        found = {}
        for path in (self.run_dir / FOLDER).glob("step-*/*.json"):
            with contextlib.suppress(DataError):
                evaluation = read_evaluation(path)
                found[evaluation.key] = evaluation
        return found

    def _outcome(
        self,
        task: Task | HeldOut,
        r: int,
        before: Mapping[str, Evaluation],
        told: Callable[[str, int, int], None] | None,
    ) -> Outcome:
        record = task.record
        tokenizer = tokenizer_digest(self._tokenizer)
        decided = [record[name] for name in ("name", "axis", "shots", "digest")]
        key = key_of(self._trained.weights_digest, decided, r, tokenizer, self._precision)
        if key in before:
            return Outcome(self.run_dir, task.name, r, before[key])
        if isinstance(task, Task):
            results, per_example = self._task_results(task, r, told)
        else:
            results, per_example = self._held_out_results(task.sequences, r)
        evaluation = Evaluation(
            key=key,
            time=time.time(),
            row=self.row,
            checkpoint={"step": self.step, "digest": self._trained.weights_digest},
            task=record,
            recurrences=r,
            tokenizer={"name": self._tokenizer.name, "digest": tokenizer[:16]},
            precision=self._precision,
            versions=versions("torch"),
            results=results,
            per_example=per_example,
        )
        write_evaluation(self.run_dir, evaluation)
        return Outcome(self.run_dir, task.name, r, evaluation, made=True)

    def _task_results(
        self, task: Task, r: int, told: Callable[[str, int, int], None] | None
    ) -> tuple[Results, dict[str, list[float]]]:
        done, choices = 0, sum(len(example.choices) for example in task.examples)

        def count(more: int) -> None:
            nonlocal done
            done += more
            if told:
                told(task.name, done, choices)

        scores = self.scorer(r).score(task.examples, told=count)
        kept = [place for place in range(len(task.examples)) if place not in scores.left_out]
        if not kept:
            raise UsageError(
                f"none of the {len(task.examples)} examples of {task.name} can be scored: "
                + "; ".join(sorted(set(scores.left_out.values()))),
                allowed=f"answers of 1 to {self.architecture.seq_len} tokens",
                do="leave the task out, or evaluate a network with a longer context",
            )
        gold = {place: task.examples[place].gold for place in kept}
        return _results(
            [scores.nats[place][gold[place]] for place in kept],
            [scores.tokens[place][gold[place]] for place in kept],
            [float(scores.correct(place, gold[place])) for place in kept],
            left_out=dict(Counter(scores.left_out.values())),
            shortened=len(scores.shortened),
        )

    def _held_out_results(self, sequences_NS: Ids, r: int) -> tuple[Results, dict[str, list[float]]]:
        """Scores of held-out sequences [n, T + 1], every token of them an answer."""
        length = sequences_NS.shape[1] - 1
        at_once = max(1, (self._pass_tokens or PASS_TOKENS[self._device.type]) // length)
        nats: list[float] = []
        correct: list[float] = []
        for place in range(0, len(sequences_NS), at_once):
            tokens_BS = torch.from_numpy(sequences_NS[place : place + at_once].astype(np.int64)).to(self._device)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
                losses_N, likeliest_N = self.model().token_scores(
                    tokens_BS[:, :-1],
                    torch.arange(tokens_BS[:, 1:].numel(), device=self._device),
                    tokens_BS[:, 1:].flatten(),
                    recurrences=r,
                )
            nats += losses_N.double().view(-1, length).sum(dim=1).tolist()
            correct += likeliest_N.double().view(-1, length).mean(dim=1).tolist()
        return _results(nats, [length] * len(nats), correct, left_out={}, shortened=0)


def _results(
    nats: list[float], tokens: list[int], correct: list[float], *, left_out: dict[str, int], shortened: int
) -> tuple[Results, dict[str, list[float]]]:
    per_example = {"nats": nats, "tokens": [*map(float, tokens)], "correct": correct}
    return results_of(nats, tokens, correct, left_out=left_out, shortened=shortened), per_example


def _run_directory(point: Path) -> Path:
    """The directory of the run that a checkpoint belongs to; of one that was copied out, the folder beside it."""
    return point.parent.parent if point.parent.name == checkpoint.FOLDER else point.parent


def _row(trained: Trained) -> dict[str, Any]:
    """Columns of the run table at the checkpoint."""
    config, facts = trained.config, trained.point.facts
    tokens = int(facts["tokens"])
    row = config.row | {"tokens": tokens, "flops": float(tokens) * float(config.architecture.flops_per_token)}
    if "val_loss" in facts:  # it was validated right then
        row["loss"] = facts["val_loss"]
    return {name: row[name] for name in RUN_COLUMNS if name in row}
