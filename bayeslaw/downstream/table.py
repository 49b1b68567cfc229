"""Evaluation tables: read from where evaluations are, checked, and ready for the model."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw import datasets
from bayeslaw.downstream.axis import REFERENCE
from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.evaluations import (
    AXES,
    AXIS_MEAN,
    EVALUATION_COLUMNS,
    FOLDER,
    METRIC,
    MOST_NATS,
    evaluations_of,
    table_rows,
)
from bayeslaw.mlflow_rows import PAGE
from bayeslaw.mlflow_runs import MLFLOW_PREFIX, read_rows, runs_of
from bayeslaw.rows import Mask, Rows
from bayeslaw.runs import table_of
from bayeslaw.schema import BASELINE
from bayeslaw.sources import FILE_KINDS, read_csv, read_parquet
from bayeslaw.texts import printable
from bayeslaw.where import filter_runs

REQUIRED = ("run_id", "recurrences", "loss", "axis", "task", "task_loss")
"""What every row has to have."""

_METRICS = {
    "loss": "task_loss", "loss_se": "task_loss_se", "accuracy": "accuracy", "accuracy_se": "accuracy_se",
    "examples": "examples", "shortened": "shortened", "answer_tokens": "answer_tokens", "shots": "shots",
}  # fmt: skip
_SOURCES = (
    "a .csv or .parquet file of an evaluation table, a run directory or a folder of them, or mlflow:EXPERIMENT, each "
    "after `bayeslaw eval`"
)
_HASHED = ("run_id", "recipe", "recurrences", "test_recurrences", "loss", "task", "task_loss", "task_loss_se")


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationTable:
    """Checked evaluations.

    Parameters
    ----------
    rows : DataFrame
        One row a checkpoint and task, at the r it was trained with: those of
        `bayeslaw.evaluations.EVALUATION_COLUMNS` that are known, ``checkpoint`` (what tells checkpoints apart) and
        ``architecture`` ("r = 1", "r = 4", or with several looped recipes "truncated_bptt, r = 4").
    others : DataFrame
        The same at another r than the trained one.
    source : str
        The source as the user named it.
    notes : tuple of str
        What a person should know of it.
    """

    rows: pd.DataFrame
    others: pd.DataFrame
    source: str
    notes: tuple[str, ...] = field(default=())

    @property
    def data_hash(self) -> str:
        """Sixteen hexadecimal digits of what the analysis depends on, whatever the order of the rows."""
        both = pd.concat([self.rows, self.others])[list(_HASHED)]
        lines = sorted("\t".join(map(str, row)) for row in both.itertuples(index=False))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        rows = self.rows
        tasks = rows.loc[rows["task"] != AXIS_MEAN, "task"].nunique()
        return (
            f"{printable(self.source)}: {rows['checkpoint'].nunique()} checkpoints of "
            f"{rows['architecture'].nunique()} architectures, {tasks} tasks, data {self.data_hash}"
        )


def load_evaluations(
    source: str | Path, *, where: str | None = None, tracking_uri: str | None = None
) -> EvaluationTable:
    """Read and check an evaluation table.

    Parameters
    ----------
    source : str or Path
        A shipped table's name (`bayeslaw.datasets.EVALUATIONS`), a .csv or .parquet file, a run directory or a folder
        of them, or ``mlflow:EXPERIMENT``.
    where : str, optional
        Use only the rows for which this holds, see `bayeslaw.where`.
    tracking_uri : str, optional
        The MLflow store, see `bayeslaw.store.resolve_uri`.

    Raises
    ------
    UsageError
        There is no such source, or the filter cannot be read.
    RunTableError
        The table cannot be used; names column, rows and value.
    NoRunsError
        It holds no evaluation, or none that the filter keeps.
    """
    found = _found(source, tracking_uri)
    if found.empty:
        raise NoRunsError(f"{source} holds no evaluation", do="make some with `bayeslaw eval`")
    table = _checked(found, str(source))
    if where is not None:
        table = table[filter_runs(table, where)].reset_index(drop=True)
        if table.empty:
            raise NoRunsError(f"no evaluation of {source} matches --where {where!r}", do="leave --where out to see all")
    table = _named(table)
    trained = (table["test_recurrences"] == table["recurrences"]).to_numpy()
    _check_digests(table[trained], str(source))
    rows, others = (table[mask].reset_index(drop=True) for mask in (trained, ~trained))
    told = f"{len(others)} rows are at another r than the trained one: they show test-time r, and enter nothing else"
    notes = [told] if len(others) else []
    if "shortened" in rows and (cut := sorted(set(rows.loc[rows["shortened"] > 0, "task"]))):
        notes.append(f"contexts were cut to fit the networks', so there were fewer shots than stated: {', '.join(cut)}")
    return EvaluationTable(rows, others, str(source), tuple(notes))


def _found(source: str | Path, tracking_uri: str | None) -> pd.DataFrame:
    """Rows as the source has them."""
    if isinstance(source, str) and source in datasets.EVALUATIONS:
        return datasets.load_evaluation_set(source)
    if isinstance(source, str) and source.startswith(MLFLOW_PREFIX):
        experiment = source.removeprefix(MLFLOW_PREFIX)
        if not experiment:
            raise UsageError(f"{source} names no experiment", allowed=f"{MLFLOW_PREFIX}EXPERIMENT")
        return pd.DataFrame(list(_of_mlflow(experiment, source, tracking_uri)))
    path = Path(source).expanduser()
    kind = path.suffix.lower()
    if str(source).strip() and path.is_dir():
        folders = sorted({each.parent for each in path.rglob(FOLDER) if each.is_dir()})
        return pd.DataFrame(table_rows(one for folder in folders for one in evaluations_of(folder)))
    if path.is_file() and kind in FILE_KINDS:
        return read_csv(path) if kind == ".csv" else read_parquet(path)
    if kind in FILE_KINDS:
        raise UsageError(f"there is no file {source}", do="check the path")
    near = difflib.get_close_matches(str(source), datasets.EVALUATIONS, n=1, cutoff=0.5)
    raise UsageError(
        f"unknown source {str(source)!r}" + (f", did you mean {near[0]}?" if near else ""),
        allowed=f"{', '.join(datasets.EVALUATIONS)}, or {_SOURCES}",
    )


def _of_mlflow(experiment: str, source: str, tracking_uri: str | None) -> Iterator[dict[str, Any]]:
    """Rows from the metrics ``eval/AXIS/TASK[/rR]/NAME`` of an experiment's runs."""
    found = read_rows(experiment, tracking_uri=tracking_uri)
    raw = runs_of(found)
    run_of = dict(zip(raw.frame["run_id"], raw.frame.index, strict=True))
    runs = table_of(raw, source).runs
    metrics: dict[str, dict[str, float]] = {}
    token = None
    with found.refusals():
        while True:
            page = found.client.search_runs([found.experiment_id], max_results=PAGE, page_token=token)
            for run in page:
                metrics[run.info.run_id] = {
                    name: value for name, value in run.data.metrics.items() if name.startswith(METRIC)
                }
            if not (token := page.token):
                break
    columns = [name for name in EVALUATION_COLUMNS if name in runs]
    for _, run_row in runs.iterrows():
        tasks: dict[tuple[str, str, float], dict[str, float]] = {}
        for name, value in metrics.get(run_of[run_row["run_id"]], {}).items():
            _, axis, task, *at, last = name.split("/")
            if last in _METRICS:
                r = float(at[0].removeprefix("r")) if at else float(run_row["recurrences"])
                tasks.setdefault((axis, task, r), {})[_METRICS[last]] = value
        for (axis, task, r), scores in tasks.items():
            known = {str(name): value for name, value in run_row[columns].items()}
            yield {**known, "axis": axis, "task": task, "test_recurrences": r, **scores}


def _checked(found: pd.DataFrame, source: str) -> pd.DataFrame:
    """The columns of an evaluation table, typed, with every class of wrong input refused."""
    if missing := [name for name in REQUIRED if name not in found]:
        raise RunTableError(
            f"{source} has no column {', '.join(missing)}; it has {', '.join(map(str, found.columns))}",
            allowed="; ".join(f"{name}: {EVALUATION_COLUMNS[name].meaning}" for name in missing),
            do="add them, one row a checkpoint and task",
        )
    unit = str(found.index.name or "row")
    first = 0 if found.index.name else 1
    rows = Rows(found.reset_index(drop=True), [label + first for label in found.index], unit, source, False)
    table = rows.frame.copy()
    for name, column in EVALUATION_COLUMNS.items():
        if name not in table or column.kind == "text":
            continue
        numbers = pd.to_numeric(table[name], errors="coerce").astype(np.float64)
        bad = (numbers.isna() & table[name].notna()).to_numpy()
        rows.refuse(name, bad, "is {!r}, not a number", allowed=column.meaning, do="write plain numbers")
        table[name] = numbers
    for name in REQUIRED:
        rows.refuse(name, table[name].isna().to_numpy(), "is missing", do="fill it in, or drop the row")
    _check_values(rows, table)
    table["recipe"] = table["recipe"].fillna(BASELINE) if "recipe" in table else BASELINE
    given = table["test_recurrences"] if "test_recurrences" in table else pd.Series(np.nan, index=table.index)
    table["test_recurrences"] = given.fillna(table["recurrences"])
    for name in ("task_loss_se", "accuracy", "accuracy_se", "flops", "budget", "step"):
        if name not in table:
            table[name] = np.nan
    table["budget"] = table["budget"].fillna(table["flops"])
    step = ["" if np.isnan(at) else f"@{at:.0f}" for at in table["step"]]
    table["checkpoint"] = [f"{run_id}{at}" for run_id, at in zip(table["run_id"], step, strict=True)]
    _check_rows(rows, table)
    return table


def _check_values(rows: Rows, table: pd.DataFrame) -> None:
    """Values that no evaluation has."""

    def refuse(name: str, bad: Mask, problem: str, allowed: str) -> None:
        rows.refuse(name, bad, problem, allowed=allowed, do="correct the value, or drop the row")

    unknown = ~table["axis"].isin(AXES).to_numpy()
    if unknown.any():
        near = difflib.get_close_matches(str(table["axis"][int(unknown.argmax())]), AXES, n=1)
        hint = f"is no axis, did you mean {near[0]}?" if near else "is no axis"
        refuse("axis", unknown, "{!r} " + hint, ", ".join(AXES))
    for name in ("loss", "task_loss"):
        values = table[name].to_numpy()
        low = values <= 0 if name == "loss" else values < 0
        least = "above 0" if name == "loss" else "0 or more"
        refuse(name, low | ~(values <= MOST_NATS), "is {}", f"nats per token, {least}, at most {MOST_NATS:g}")
    refuse("recurrences", table["recurrences"].to_numpy() < 1, "is {}", "1 or more")
    for name in ("task_loss_se", "accuracy_se"):
        if name in table:
            refuse(name, table[name].to_numpy() < 0, "is {}", "0 or more, or empty where it is not known")
    if "accuracy" in table:
        share = table["accuracy"].to_numpy()
        refuse("accuracy", (share < 0) | (share > 1), "is {}", "a share, 0 to 1")


def _check_rows(rows: Rows, table: pd.DataFrame) -> None:
    """Rows that contradict each other."""
    key = ["checkpoint", "axis", "task", "test_recurrences"]
    twice = table.duplicated(key).to_numpy()
    rows.refuse(
        "task", twice, "{} comes twice for the same checkpoint and r", allowed="one row a checkpoint, task and r",
        do="give repeated seeds run_ids of their own, or drop one of the rows",
    )  # fmt: skip
    for column in ("loss", "recurrences", "recipe"):
        differs = (table[column] != table.groupby("checkpoint")[column].transform("first")).to_numpy()
        rows.refuse(
            column, differs, "is {}, other rows of the checkpoint say otherwise", allowed=f"one {column} a checkpoint",
            do="correct the value, or give each checkpoint a run_id or step of its own",
        )  # fmt: skip
    axes = table[table["task"] != AXIS_MEAN].groupby("task")["axis"].transform("first")
    differs = (table["axis"] != axes.reindex(table.index).fillna(table["axis"])).to_numpy()
    rows.refuse("axis", differs, "is {} for a task that stands in another one before", allowed="one axis a task")


def _check_digests(table: pd.DataFrame, source: str) -> None:
    """Tasks whose examples or shots differ between checkpoints: their losses do not compare."""
    for column, what in (("data_digest", "examples"), ("shots", "shots")):
        if column not in table:
            continue
        for task, values in table.dropna(subset=[column]).groupby("task")[column]:
            if values.nunique() > 1:
                counts = values.value_counts()
                shown = ", ".join(f"{value} ({count} rows)" for value, count in counts.items())
                one = counts.index[0]
                raise RunTableError(
                    f"{source}: {task} was scored on different {what}: {column} {shown}",
                    allowed=f"one {column} a task, so that losses compare",
                    do=f"evaluate again, or select with --where \"{column} == {one!r} or task != '{task}'\"",
                )


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """The table with what each architecture is called."""
    several = table.loc[table["recurrences"] > 1, "recipe"].nunique() > 1
    names = [
        REFERENCE if r == 1 else f"{recipe}, r = {r:g}" if several else f"r = {r:g}"
        for recipe, r in zip(table["recipe"], table["recurrences"], strict=True)
    ]
    return table.assign(architecture=names)
