"""The run table: runs loaded from any source, checked, completed and ready for a fit."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from bayeslaw.errors import NoRunsError, UsageError
from bayeslaw.files import written_whole
from bayeslaw.found import RawRuns
from bayeslaw.schema import BASELINE
from bayeslaw.sources import FILE_KINDS, read_source
from bayeslaw.texts import printable
from bayeslaw.validation import checked
from bayeslaw.where import columns_of, filter_runs

_HASHED = ("recurrences", "n_once", "n_shared", "n_injection", "tokens", "loss", "recipe")
_HASHED_IF_GIVEN = ("loss_se", "training_run")
"""What a fit depends on too, where a table has it."""


@dataclass(frozen=True, eq=False, repr=False)
class RunTable:
    """Validated runs; prints as a table of at most 80 columns.

    Parameters
    ----------
    runs : DataFrame
        One row a run, index 0..n-1: the columns of `bayeslaw.schema.COLUMNS` that are known, then the source's others.
        Whole-number columns are int64, or float64 where a value is missing; losses are nats per token.
    source : str
        The source as the user named it.
    excluded : DataFrame
        ``run_id, reason`` of the runs left out; the place in the source stands for a run_id that is not given.
    notes : tuple of str
        What a person should know before trusting a fit: repeated data, replicates, converted units, ...
    where : str, optional
        The filter that the runs were selected by.
    """

    runs: pd.DataFrame
    source: str
    excluded: pd.DataFrame
    notes: tuple[str, ...]
    where: str | None = None

    @property
    def data_hash(self) -> str:
        """Sixteen hex digits of the SHA-256 of what a fit depends on.

        Values and run_ids are sorted apart, so that neither the order of the rows nor run_ids numbered by it matter.
        """
        given = [name for name in _HASHED_IF_GIVEN if name in self.runs and self.runs[name].notna().any()]
        table = self.runs[[*_HASHED, *given]].astype(object)
        values = sorted(json.dumps(row, default=str) for row in table.to_numpy().tolist())
        content = json.dumps([values, sorted(map(str, self.runs["run_id"]))])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write the runs to a .csv or .parquet file, whole or not at all.

        Raises
        ------
        UsageError
            The name ends in neither.
        BayeslawError
            The file cannot be written.
        """
        save_table(self.runs, path)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the printed table: run_id, r, d (N where a width is unknown), tokens, FLOPs, loss."""
        runs = self.runs
        wide = "d_model" in runs and bool(runs["d_model"].notna().all())
        size = runs["d_model"] if wide else runs["n_unique"]
        flops = runs["flops"] if "flops" in runs else pd.Series(np.nan, index=runs.index)
        columns = zip(runs["run_id"], runs["recurrences"], size, runs["tokens"], flops, runs["loss"], strict=True)
        return ["run_id", "r", "d" if wide else "N", "tokens", "flops", "loss"], [
            [_shortened(name), f"{r:g}", f"{n:.4g}", f"{d:.4g}", "-" if math.isnan(c) else f"{c:.4g}", f"{loss:.4f}"]
            for name, r, n, d, c, loss in columns
        ]

    def __str__(self) -> str:
        header, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [f"{printable(self.source)}: {len(rows)} runs, data {self.data_hash}"]
        for cells in (header, *rows):
            numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
            lines.append("  ".join([cells[0].ljust(widths[0]), *numbers]))
        return "\n".join(lines)

    __repr__ = __str__


def save_table(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table to a .csv or .parquet file, whole or not at all; errors as for `RunTable.save`."""
    kind = Path(path).suffix.lower()
    if kind not in FILE_KINDS:
        raise UsageError(f"a table named {path}", allowed="a name that ends in .csv or .parquet")
    with written_whole(path) as partial:
        if kind == ".csv":
            table.to_csv(partial, index=False)
        else:
            table.to_parquet(partial, index=False)


def load_runs(
    source: str | Path | pd.DataFrame,
    *,
    where: str | None = None,
    recipe: str | None = None,
    tracking_uri: str | None = None,
    cache: bool = True,
) -> RunTable:
    """Load, check and select runs.

    Parameters
    ----------
    source : str, Path or DataFrame
        A shipped data set's name (`bayeslaw.datasets.NAMES`), a .csv or .parquet file, ``mlflow:EXPERIMENT``, the
        folder of an imported study, one that holds run journals at any depth, or the table itself.
    where : str, optional
        Keeps the runs that match, see `bayeslaw.where`. Only finished runs are there to match.
    recipe : str, optional
        Keeps the runs of one recipe. Where it has no r = 1 run of its own, the r = 1 runs of the baseline (of the other
        recipes, if that has none) stay as the anchor: without a loop there is nothing that recipes do differently.
    tracking_uri : str, optional
        The MLflow store, see `bayeslaw.store.resolve_uri`.
    cache : bool
        Fetch from MLflow only what has changed since the last query, see `bayeslaw.cache`.

    Returns
    -------
    RunTable

    Raises
    ------
    UsageError
        The source, filter or recipe is unknown.
    NoRunsError
        Nothing finished, or nothing matches.
    RunTableError
        The table cannot be used as it stands.
    TrackingError
        The MLflow store cannot be reached.

    Examples
    --------
    >>> load_runs("isodepth", where="recurrences in (1, 4) and budget >= 1e19").runs.shape[0]
    18
    """
    if isinstance(source, pd.DataFrame):
        return table_of(RawRuns(source), "DataFrame", where=where, recipe=recipe)
    raw = read_source(source, tracking_uri=tracking_uri, cache=cache)
    return table_of(raw, str(source), where=where, recipe=recipe)


def table_of(raw: RawRuns, name: str, *, where: str | None = None, recipe: str | None = None) -> RunTable:
    """Check and select runs as they were found; parameters and errors as for `load_runs`."""
    runs, excluded, notes = checked(raw, name)
    recipes = sorted(set(runs["recipe"]))
    if recipe is not None and recipe not in recipes:
        near = difflib.get_close_matches(recipe, recipes, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UsageError(f"{name} has no recipe {recipe!r}{hint}", allowed=", ".join(recipes))
    if where is not None:
        runs = runs[filter_runs(runs, where)]
        if runs.empty:
            raise _no_match(name, where, excluded)
    if recipe is not None:
        runs, anchor = _of_recipe(runs, recipe)
        notes += anchor
        if runs.empty:
            raise NoRunsError(f"no run of {name} matches --recipe {recipe} and --where {where!r}")
    runs = runs.reset_index(drop=True)
    return RunTable(runs, name, excluded, (*notes, *_remarks(runs)), where)


def validate(frame: pd.DataFrame, *, source: str) -> RunTable:
    """Check a frame of runs, complete what can be computed, leave out what did not finish.

    Parameters
    ----------
    frame : DataFrame
        One row a run, columns as in `bayeslaw.schema.COLUMNS`; or ``n, tokens, loss`` for plain transformers.
    source : str
        What to call the table in messages.

    Raises
    ------
    RunTableError
        Names the column, the rows, the value, what is allowed and what to do.
    NoRunsError
        No run is finished.
    """
    runs, excluded, notes = checked(RawRuns(frame), source)
    return RunTable(runs, source, excluded, (*notes, *_remarks(runs)))


def _no_match(name: str, where: str, excluded: pd.DataFrame) -> NoRunsError:
    lists = f"`bayeslaw runs {name}` lists them"
    if not excluded.empty and "state" in columns_of(where):
        return NoRunsError(
            f"no run of {name} matches --where {where!r}: it sees the finished runs, and {len(excluded)} others are "
            "excluded whatever a filter says of their state",
            do=f"{lists}, and the excluded ones with their states",
        )
    return NoRunsError(f"no run of {name} matches --where {where!r}", do=lists)


def _of_recipe(runs: pd.DataFrame, recipe: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The runs of a recipe, with an anchor at r = 1 from another one where it has none."""
    own = runs["recipe"] == recipe
    plain = runs["recurrences"] == 1
    if not own.any() or (own & plain).any():
        return runs[own], ()
    anchor = plain & (runs["recipe"] == BASELINE)
    anchor = anchor if anchor.any() else plain
    if not anchor.any():
        return runs[own], (f"{recipe} has no r = 1 runs, and no other recipe has any to serve as its anchor",)
    note = (
        f"{anchor.sum()} r = 1 runs of {', '.join(sorted(set(runs['recipe'][anchor])))} serve as the anchor of {recipe}"
    )
    if "budget" in runs:
        apart = anchor & ~runs["budget"].isin(runs["budget"][own])
        note += f", {apart.sum()} of them at budgets that it did not run" if apart.any() else ""
    return runs[own | anchor], (note,)


def _remarks(runs: pd.DataFrame) -> tuple[str, ...]:
    """Losses worse than guessing, repeated data, replicates."""
    notes = []
    if "vocab_size" in runs:
        worse = runs["loss"] > np.log(runs["vocab_size"].astype(float))
        if worse.any():
            row = runs[worse].iloc[0]
            notes.append(
                f"{int(worse.sum())} runs have a loss above log(vocab_size), worse than guessing (such as "
                f"{row['run_id']}: {row['loss']:.4g}): leave them out with --where, or check their unit"
            )
    if "epochs" in runs and (runs["epochs"] > 1).any():
        repeated = runs["epochs"][runs["epochs"] > 1]
        notes.append(
            f"{len(repeated)} runs saw their data more than once (up to {repeated.max():g} epochs): "
            "the law takes every token as new"
        )
    sizes = runs.groupby(["recipe", "recurrences", "n_once", "n_shared", "n_injection", "tokens"]).size()
    if "training_run" in runs:
        rows = runs["training_run"].dropna().value_counts()
        if (rows > 1).any():
            notes.append(
                f"{rows[rows > 1].sum()} runs are checkpoints of {(rows > 1).sum()} training runs (column training_run)"
            )
    if (sizes > 1).any():
        notes.append(
            f"{(sizes > 1).sum()} designs were trained more than once ({sizes[sizes > 1].sum()} runs, replicates)"
        )
    return tuple(notes)


def _shortened(name: str, width: int = 30) -> str:
    """The name with its middle left out where it is long: its end often tells runs apart."""
    name = printable(name)
    return name if len(name) <= width else f"{name[: width // 2 - 2]}..{name[-(width // 2) :]}"
