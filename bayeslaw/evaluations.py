"""What an evaluation leaves behind: a file for each task, recurrences and checkpoint of a run, and the table they make.

``RUN_DIR/evaluations/step-000000480/<task>-r<r>-<key>.json`` is one JSON object: ``format, key, time, row, checkpoint,
task, recurrences, tokenizer, precision, versions, results, per_example``, see `Evaluation`. It is written whole or not
at all and never changed; ``key`` is of all that decides its numbers, so a file that is there need not be made again.
Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bayeslaw.errors import DataError
from bayeslaw.files import written_whole
from bayeslaw.schema import COLUMNS, Column

FOLDER = "evaluations"
"""Folder of a run directory that holds its evaluations."""

FORMAT = 1

METRIC = "eval/"
"""What the names of all metrics of evaluations in MLflow begin with."""

AXES = {
    "knowledge": "parametric knowledge",
    "reading": "reading comprehension",
    "math": "math word problems",
    "primitives": "reasoning primitives",
    "compositional": "compositional symbolic",
    "validation": "validation loss",
    "other": "other tasks",
}
"""Axes of evaluation and what they measure: the five of arXiv 2604.21106, held-out text, and all else."""

VALIDATION = "validation"
"""Axis of held-out text."""

MOST_NATS = 100.0
"""No loss per token is above: a network that gives the right token e^-100 does not come out of a training."""

AXIS_MEAN = "mean"
"""Stands in the column ``task`` for the plain mean over the tasks of an axis, where a table has that alone."""

RUN_COLUMNS = (
    "run_id", "training_run", "source", "recipe", "recurrences", "width_scale", "d_model", "seed", "budget", "flops",
    "n_unique", "tokens", "loss", "loss_se",
)  # fmt: skip
"""Columns of the run table that an evaluation table repeats in each row; ``loss`` is the validation loss of the
checkpoint that was evaluated, and ``recurrences`` its trained r."""

EVALUATION_COLUMNS: dict[str, Column] = {
    **{name: COLUMNS[name] for name in RUN_COLUMNS},
    "step": Column("int", "", "optimiser steps of the checkpoint"),
    "axis": Column("text", "", "axis of the task, one of " + ", ".join(AXES)),
    "task": Column("text", "", f"name of the task; {AXIS_MEAN} for the mean of an axis"),
    "test_recurrences": Column("int", "", "r at test time", positive=True),
    "shots": Column("int", "", "examples shown before the question"),
    "examples": Column("int", "", "examples scored", positive=True),
    "shortened": Column("int", "", "examples whose context was cut to fit the network's: they have fewer shots"),
    "answer_tokens": Column("int", "tokens", "tokens of all answers", positive=True),
    "task_loss": Column("float", "nats/token", "nats of all answers over their tokens"),
    "task_loss_se": Column("float", "nats/token", "its standard error, over examples"),
    "accuracy": Column("float", "", "share of examples answered rightly"),
    "accuracy_se": Column("float", "", "its standard error, over examples"),
    "data_digest": Column("text", "", "digest of the task's examples"),
}
"""Columns of an evaluation table: one row a checkpoint, r at test time and task."""


@dataclass(frozen=True)
class Results:
    """Scores of one task.

    Parameters
    ----------
    loss : float
        Nats of all gold answers over their tokens.
    loss_se : float
        Standard error of that ratio with the example as the unit; NaN for one example.
    accuracy : float
        Share of examples whose answer is the likeliest: every token of it, or, of several choices, the one with the
        lowest mean loss per token.
    accuracy_se : float
    examples : int
        Examples scored.
    answer_tokens : int
    left_out : dict
        Reason -> examples that could not be scored for it.
    shortened : int
        Examples whose context was cut to fit the network's.
    """

    loss: float
    loss_se: float
    accuracy: float
    accuracy_se: float
    examples: int
    answer_tokens: int
    left_out: Mapping[str, int]
    shortened: int


@dataclass(frozen=True)
class Evaluation:
    """One task scored at one checkpoint with r recurrences.

    Parameters
    ----------
    key : str
        Sixteen hexadecimal digits of what decides the numbers, see `key_of`.
    time : float
        When it was made, seconds since 1970.
    row : dict
        What the run table says of the run: those of `RUN_COLUMNS` that are known.
    checkpoint : dict
        ``step`` and ``digest`` of the weights.
    task : dict
        ``name``, ``axis``, ``shots``, ``digest`` of its examples, ``source`` they came from, ``settings``.
    recurrences : int
        At test time.
    tokenizer : dict
        ``name`` and ``digest``.
    precision : str
    versions : dict
        Package -> version.
    results : Results
    per_example : dict
        ``nats``, ``tokens`` and ``correct`` of each example scored, in the task's order.
    """

    key: str
    time: float
    row: Mapping[str, Any]
    checkpoint: Mapping[str, Any]
    task: Mapping[str, Any]
    recurrences: int
    tokenizer: Mapping[str, Any]
    precision: str
    versions: Mapping[str, str]
    results: Results
    per_example: Mapping[str, Sequence[float]]

    @property
    def metric(self) -> str:
        """What the names of its metrics in MLflow begin with: ``eval/<axis>/<task>``, then ``/r<r>`` for another r."""
        other = "" if self.recurrences == self.row["recurrences"] else f"/r{self.recurrences}"
        return f"{METRIC}{self.task['axis']}/{self.task['name']}{other}"

    @property
    def file_name(self) -> str:
        """Name of its file."""
        return f"{self.task['name']}-r{self.recurrences}-{self.key}.json"

    def as_dict(self) -> dict[str, Any]:
        """What its file holds."""
        return {"format": FORMAT} | asdict(self)

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics in MLflow: numbers of its results that are no NaN, and its shots."""
        results = self.results
        values = {
            "loss": results.loss,
            "loss_se": results.loss_se,
            "accuracy": results.accuracy,
            "accuracy_se": results.accuracy_se,
            "examples": results.examples,
            "shortened": results.shortened,
            "answer_tokens": results.answer_tokens,
            "shots": self.task["shots"],
        }
        return {f"{self.metric}/{name}": float(value) for name, value in values.items() if math.isfinite(value)}

    @property
    def table_row(self) -> dict[str, Any]:
        """Its row in an evaluation table."""
        results = self.results
        return {name: self.row[name] for name in RUN_COLUMNS if name in self.row} | {
            "step": self.checkpoint["step"],
            "axis": self.task["axis"],
            "task": self.task["name"],
            "test_recurrences": self.recurrences,
            "shots": self.task["shots"],
            "examples": results.examples,
            "shortened": results.shortened,
            "answer_tokens": results.answer_tokens,
            "task_loss": results.loss,
            "task_loss_se": results.loss_se,
            "accuracy": results.accuracy,
            "accuracy_se": results.accuracy_se,
            "data_digest": self.task["digest"],
        }


def results_of(
    nats: Sequence[float],
    tokens: Sequence[int],
    correct: Sequence[float],
    *,
    left_out: Mapping[str, int],
    shortened: int,
) -> Results:
    """Scores of a task from those of its examples.

    Parameters
    ----------
    nats : sequence of float
        Of each gold answer; at least one example.
    tokens : sequence of int
        Of each gold answer, 1 or more.
    correct : sequence of float
        1 for a right answer and 0 for a wrong one, or the share of its tokens that are the likeliest.
    left_out, shortened
        See `Results`.

    Notes
    -----
    The loss is a ratio of sums; its standard error is that of its linearisation,
    sqrt(n / (n - 1) sum_i (nats_i - loss tokens_i)^2) / sum_i tokens_i (Cochran, Sampling Techniques, 1977, section
    6.4).
    """
    count, total = len(nats), sum(tokens)
    loss = math.fsum(nats) / total
    accuracy = math.fsum(correct) / count
    loss_se = accuracy_se = math.nan
    if count > 1:
        squares = math.fsum((n - loss * t) ** 2 for n, t in zip(nats, tokens, strict=True))
        loss_se = math.sqrt(squares * count / (count - 1)) / total
        accuracy_se = statistics.stdev(correct) / math.sqrt(count)
    return Results(loss, loss_se, accuracy, accuracy_se, count, total, dict(left_out), shortened)


def key_of(*parts: object) -> str:
    """Sixteen hexadecimal digits of anything JSON can hold."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_evaluation(run_dir: Path, evaluation: Evaluation) -> Path:
    """Write an evaluation into the directory of its run, whole or not at all.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    path = run_dir / FOLDER / f"step-{evaluation.checkpoint['step']:09d}" / evaluation.file_name
    with written_whole(path, error=DataError) as partial:
        partial.write_text(json.dumps(evaluation.as_dict(), separators=(",", ":")) + "\n")
    return path


def read_evaluation(path: Path) -> Evaluation:
    """Read an evaluation.

    Raises
    ------
    DataError
        The file cannot be read, is damaged, or of another format.
    """
    again = "remove it and evaluate again"
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise DataError(f"{path} has format {content['format']}", allowed=f"format {FORMAT}", do=again)
        values = {each.name: content[each.name] for each in fields(Evaluation)}
        return Evaluation(**values | {"results": Results(**values["results"])})
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no evaluation or is damaged: {error!r}", do=again) from error


def evaluations_of(run_dir: Path) -> list[Evaluation]:
    """All evaluations of a run, by step, task and recurrences; of what was made several times the newest.

    Raises
    ------
    DataError
        One of them is damaged.
    """
    found = sorted(
        map(read_evaluation, (run_dir / FOLDER).glob("step-*/*.json")),
        key=lambda each: (each.checkpoint["step"], each.task["name"], each.recurrences, each.time),
    )
    return list({(each.checkpoint["step"], each.metric): each for each in found}.values())


def table_rows(evaluations: Iterable[Evaluation]) -> list[dict[str, Any]]:
    """Rows of the table that evaluations make."""
    return [each.table_row for each in evaluations]
