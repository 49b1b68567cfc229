"""Checks of a raw table: every class of wrong input has its message; what passes comes out typed and completed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.completion import completed
from bayeslaw.errors import NoRunsError, RunTableError
from bayeslaw.found import RawRuns
from bayeslaw.mlflow_runs import MLFLOW_PREFIX
from bayeslaw.rows import Mask, Rows, as_text
from bayeslaw.schema import (
    BASELINE,
    COLUMNS,
    COUNTS,
    LOSS_UNIT,
    MLFLOW_INFINITY,
    PARTITION,
    PLAIN,
    REQUIRED,
    STATES,
)  # fmt: skip

Floats = NDArray[np.float64]

TOO_FEW = 5000
"""Fewer parameters or tokens than this are a number in millions or billions by mistake."""

_LOOPED = {"recurrences", *COUNTS, *PARTITION}  # a table without any of these is a plain one
_BITS = "bits/token"
_NO_NUMBER = ("", "nan", "na", "n/a", "null", "none")
_LARGEST_INT = 2.0**53


def checked(raw: RawRuns, source: str) -> tuple[pd.DataFrame, pd.DataFrame, tuple[str, ...]]:
    """The finished runs, typed and completed; the excluded ones (run_id, reason); notes.

    Raises
    ------
    RunTableError
        Names the column, the rows, the value, what is allowed and what to do.
    NoRunsError
        No run is finished.
    """
    rows, excluded = _finished(_named(raw, source), list(raw.excluded))
    runs = _typed(rows)
    runs, notes = _in_nats(rows, runs)
    _check_values(rows, runs)
    _check_columns(rows, runs)
    runs, flops_notes = completed(rows, runs)
    for column in REQUIRED:
        rows.refuse(column, runs[column].isna().to_numpy(), "is {}", do="fill it in, or give the run the state failed")
    _check_duplicates(rows, runs)
    _check_training_runs(rows, runs)
    frame = pd.DataFrame(excluded, columns=["run_id", "reason"], dtype="str")
    return _finish(runs), frame, raw.notes + notes + flops_notes


def _named(raw: RawRuns, source: str) -> Rows:
    """Column names settled: unique, plain tables completed, recipe, state and source present."""
    frame = raw.frame.copy()
    frame.columns = pd.Index([str(column) for column in frame.columns])
    unit = str(frame.index.name) if frame.index.name in ("line", "row", "run") else "row"
    twice = sorted(set(frame.columns[frame.columns.duplicated()]))
    if twice:
        raise RunTableError(f"{source} has more than one column {', '.join(twice)}", do="rename or drop one of each")
    if frame.empty and raw.excluded:
        raise _nothing_left(source, list(raw.excluded))
    if frame.empty:
        raise RunTableError(f"{source} has no rows", do="write one row a run below the header")
    plain = set(PLAIN) <= set(frame.columns) and not _LOOPED & set(frame.columns)
    rows = Rows(frame.reset_index(drop=True), list(frame.index), unit, source, plain)
    defaults: dict[str, Any] = {"recipe": BASELINE, "state": "finished", "source": source}
    if plain:
        defaults |= {"recurrences": 1, "n_shared": 0, "n_injection": 0, "n_once": rows.frame["n"]}
    for column, value in defaults.items():
        if column not in rows.frame:
            rows.frame[column] = value
        elif isinstance(value, str):
            given = rows.frame[column].astype(object)
            rows.frame[column] = given.where(given.notna(), value)
    rows.frame["state"] = [str(state).strip().lower() for state in rows.frame["state"]]
    unknown = ~rows.frame["state"].isin(STATES).to_numpy()
    rows.refuse("state", unknown, "is {}", allowed=", ".join(STATES))
    return rows


def _finished(rows: Rows, excluded: list[tuple[str, str]]) -> tuple[Rows, list[tuple[str, str]]]:
    """Only finished runs; the others join the excluded with their state as the reason."""
    finished = (rows.frame["state"] == "finished").to_numpy()
    if not finished.all():
        left = np.flatnonzero(~finished)
        nothing = pd.Series(np.nan, index=rows.frame.index)
        columns = (rows.frame.get(name, nothing).iloc[left] for name in ("run_id", "state", "loss"))
        for index, name, state, loss in zip(left, *columns, strict=True):
            found = "" if pd.isna(loss) and state != "diverged" else f", loss {loss}"
            place = f"{rows.unit} {rows.labels[index]}"  # not row-N, which numbers the runs that stay
            excluded.append((place if pd.isna(name) else str(name), f"state {state}{found}"))
    if not finished.any():
        raise _nothing_left(rows.source, excluded)
    return rows.pick(finished), excluded


def _nothing_left(source: str, excluded: list[tuple[str, str]]) -> NoRunsError:
    listed = "; ".join(f"{run_id}: {reason}" for run_id, reason in excluded[:5])
    more = f"; and {len(excluded) - 5} more" if len(excluded) > 5 else ""
    return NoRunsError(
        f"{source} has no finished run ({listed}{more})",
        do="let a run finish first (the command that began it goes on with it), or correct the column state",
    )


def _typed(rows: Rows) -> pd.DataFrame:
    """Numbers as float64 with NaN where missing, names as texts, unknown columns as numbers where all of them are."""
    typed: dict[str, Any] = {}
    for column in rows.frame:
        name, values = str(column), rows.frame[column]
        if name in COLUMNS and COLUMNS[name].kind == "text":
            typed[name] = pd.array([*map(_text, values)], dtype="str")
            continue
        if name not in COLUMNS and isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
            typed[name] = values
            continue
        numbers, bad = _numbers(values)
        if name in COLUMNS:
            rows.refuse(name, bad, "is {!r}, not a number", do="write plain numbers, without units or separators")
        typed[name] = _whole(numbers) if not bad.any() else pd.array([*map(_text, values)], dtype="str")
    return pd.DataFrame(typed, index=rows.frame.index).astype({name: np.float64 for name in typed if _is_number(name)})


def _numbers(values: pd.Series[Any]) -> tuple[Floats, Mask]:
    """The values as floats, and which cells hold something else."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return values.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(values), dtype=bool)
    cells = values.tolist()
    kinds = set(map(type, cells))
    if kinds == {float}:
        return np.array(cells, dtype=np.float64), np.zeros(len(cells), dtype=bool)
    if kinds == {str}:  # each text once, however often it comes
        known = {text: _number(text) for text in set(cells)}
        numbers = [known[text] for text in cells]
    else:
        numbers = list(map(_number, cells))
    bad = np.array([number is None for number in numbers], dtype=bool)
    return np.array(numbers, dtype=np.float64), bad  # None becomes NaN


def _text(value: Any) -> str | None:
    return value.strip() if type(value) is str else as_text(value)


def _number(value: Any) -> float | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    if as_text(value) is None or (isinstance(value, str) and value.strip().lower() in _NO_NUMBER):
        return math.nan
    try:
        return None if "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _whole(numbers: Floats) -> NDArray[Any]:
    """As int64 where no number is lost by it."""
    whole = np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all() and (abs(numbers) < _LARGEST_INT).all()
    return numbers.astype(np.int64) if whole else numbers


def _is_number(column: str) -> bool:
    return column in COLUMNS and COLUMNS[column].kind != "text"


def _in_nats(rows: Rows, runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Losses in nats per token, with a note where they came in bits."""
    if "loss_unit" not in runs or "loss" not in runs:
        return runs, ()
    units = runs["loss_unit"].fillna(LOSS_UNIT)
    bad = ~units.isin((LOSS_UNIT, _BITS)).to_numpy()
    rows.refuse("loss_unit", bad, "is {!r}", allowed=f"{LOSS_UNIT} or {_BITS}", do="convert the losses first")
    bits = (units == _BITS).to_numpy()
    factor = np.where(bits, math.log(2), 1.0)
    runs = runs.assign(loss_unit=LOSS_UNIT, loss=runs["loss"] * factor)
    if "loss_se" in runs:
        runs["loss_se"] *= factor
    return runs, (f"{bits.sum()} losses were converted from bits to nats per token",) if bits.any() else ()


def _check_values(rows: Rows, runs: pd.DataFrame) -> None:
    """Every number within what its column allows; missing ones pass."""
    for name in filter(_is_number, map(str, runs.columns)):
        values = runs[name].to_numpy()
        advice = "remove the run, or give it the state diverged" if name == "loss" else "write the number itself"
        rows.refuse(
            name, abs(values) >= MLFLOW_INFINITY, "is {}, not finite (MLflow keeps an infinity as 1.797e308)", do=advice
        )
        if name == "loss":
            rows.refuse(name, values <= 0, "is {}", do="remove the run, or give it the state failed")
        elif name == "recurrences":
            allowed = "1 (a plain transformer) or more"
            rows.refuse(name, values < 1, "is {}: the shared block runs at least once", allowed=allowed)
        elif COLUMNS[name].positive:
            rows.refuse(name, values <= 0, "is {}")
        elif name == "loss_se":
            rows.refuse(name, values < 0, "is {}", allowed="0 or more, in the loss's unit")
        if COLUMNS[name].kind == "int":
            in_full = {"tokens": "are these billions?", **dict.fromkeys(COUNTS, "are these millions?")}.get(name, "")
            part = (values != np.rint(values)) & ~np.isnan(values)
            rows.refuse(name, part, f"is {{}}, no whole number: {in_full}".rstrip(": "), do=_in_full(name))
            rows.refuse(name, (values < 0) & (name != "seed"), "is {}", allowed="0 or more")
            rows.refuse(name, abs(values) >= _LARGEST_INT, "is {}", allowed="whole numbers below 2^53")
    if rows.unit == "run":
        return  # MLflow and journals hold what a program counted, not what a person wrote in millions
    if "tokens" in runs:
        few = (runs["tokens"] < TOO_FEW).to_numpy()
        rows.refuse("tokens", few, "is {}: are these billions?", allowed=f"{TOO_FEW} or more", do=_in_full("tokens"))
    counts = [name for name in ("n_once", "n_shared", "n_injection") if name in runs]
    totals = {"n_unique": runs["n_unique"]} if "n_unique" in runs else {}
    if {"n_once", "n_shared"} <= set(counts):
        totals["n_once"] = runs[counts].sum(axis="columns", skipna=False)
    for name, total in totals.items():
        few = (total < TOO_FEW).to_numpy()
        allowed = f"{TOO_FEW} parameters or more in all"
        rows.refuse(name, few, "is {}: are these millions?", allowed=allowed, do=_in_full(name))


def _in_full(column: str) -> str | None:
    if column in ("tokens", *COUNTS):
        return "write the number in full, 35405952 and not 35.4"
    return None


def missing_columns(present: Iterable[str]) -> list[str]:
    """What the law needs of a table with these columns, and neither is there nor can be computed."""
    names = set(present)
    needed = REQUIRED if _LOOPED & names else PLAIN
    computable = {*PARTITION} <= names and bool({"d_model", "width_scale"} & names)
    return [name for name in needed if name not in names and not (computable and name in COUNTS)]


def _check_columns(rows: Rows, runs: pd.DataFrame) -> None:
    """All columns present that the law needs and that cannot be computed."""
    missing = missing_columns(map(str, runs.columns))
    if not missing:
        return
    kind = "param or metric" if rows.source.startswith(MLFLOW_PREFIX) else "column"
    given = [str(name) for name in rows.frame if name not in ("source", "state", "recipe")]
    by_case = {name.lower(): name for name in given if name not in COLUMNS}
    renames = []
    for name in missing:
        near = difflib.get_close_matches(name, by_case, n=1, cutoff=0.55)
        renames += [f"rename {by_case[near[0]]!r} to {name!r}"] if near else []
    raise RunTableError(
        f"{rows.source} lacks the {kind} {', '.join(missing)}; it has {', '.join(given)}",
        allowed=f"{', '.join(REQUIRED)}, where {', '.join(PARTITION)} and d_model or width_scale can replace "
        f"n_once and n_shared; or {', '.join(PLAIN)} for plain transformers",
        do=", ".join(renames) or f"add the {kind} {', '.join(missing)}",
    )


def _check_duplicates(rows: Rows, runs: pd.DataFrame) -> None:
    """No run twice."""
    same = _first_repeated(runs["run_id"])
    rows.refuse("run_id", same, "is {} in each", allowed="one row a run", do="drop or rename the copies")
    content = runs.drop(columns=["run_id", "source"])
    content = content.fillna(dict.fromkeys(content.select_dtypes("str"), ""))
    same = content.duplicated(keep=False).to_numpy()
    if same.any():
        kinds = content.groupby(list(content), dropna=False).ngroup().to_numpy()
        same = same & (kinds == kinds[int(same.argmax())])
        raise RunTableError(
            f"{rows.source}, {rows.at(same)}: the same run (all columns agree but run_id)",
            allowed="one row a run; replicates differ in the column seed",
            do="drop the copies, or add the column seed",
        )


def _check_training_runs(rows: Rows, runs: pd.DataFrame) -> None:
    """Rows of one training run are of one recipe and architecture."""
    if "training_run" not in runs:
        return
    same = ["recipe", "recurrences", "n_once", "n_shared", "n_injection"]
    kinds = runs[same].astype("str").agg("\n".join, axis=1)
    mixed = (kinds.groupby(runs["training_run"].astype("str")).transform("nunique") > 1) & runs["training_run"].notna()
    first = mixed & (runs["training_run"] == runs["training_run"][mixed].iloc[0]) if mixed.any() else mixed
    rows.refuse(
        "training_run", first.to_numpy(dtype=bool), "is {} in rows of different recipes or architectures",
        allowed="the checkpoints of one run: same recipe, recurrences and counts",
        do="give each training run its own name",
    )  # fmt: skip


def _first_repeated(values: pd.Series[str]) -> Mask:
    """The rows that share the first value that comes more than once."""
    repeated = values.duplicated(keep=False).to_numpy()
    return repeated & (values == values.iloc[int(repeated.argmax())]).to_numpy()


def _finish(runs: pd.DataFrame) -> pd.DataFrame:
    """Columns in the order of the vocabulary, whole numbers as int64."""
    order = [column for column in COLUMNS if column in runs] + [column for column in runs if column not in COLUMNS]
    whole = {name: _whole(runs[name].to_numpy()) for name in order if name in COLUMNS and COLUMNS[name].kind == "int"}
    return runs[order].assign(**whole)
