"""The run table: runs loaded from any source, checked, completed and ready for a fit."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT, Architecture
from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.schema import COLUMNS, LOSS_UNIT, MLFLOW_INFINITY, PLAIN, REQUIRED, STATES, run_name
from bayeslaw.sources import MLFLOW_PREFIX, RawRuns, read_source
from bayeslaw.where import filter_runs

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

BASELINE = "baseline"
TOO_FEW = 5000
"""Fewer parameters or tokens than this are a number in millions or billions by mistake."""

_HASHED = ("recurrences", "n_once", "n_shared", "n_injection", "tokens", "loss", "recipe")
_COUNTS = ("n_once", "n_shared", "n_injection", "n_unique")
_PARTITION = ("prelude_layers", "shared_layers", "coda_layers", "injection")
_LOOPED = {"recurrences", *_COUNTS, *_PARTITION}  # a table without any of these is a plain one
_BITS = "bits/token"
_NO_NUMBER = ("", "nan", "na", "n/a", "null", "none")
_LARGEST_INT = 2.0**53


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
        ``run_id, reason`` of the runs left out.
    notes : tuple of str
        What a person should know before trusting a fit: repeated data, replicates, converted units, ...
    """

    runs: pd.DataFrame
    source: str
    excluded: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def data_hash(self) -> str:
        """Sixteen hex digits of the SHA-256 of what a fit depends on.

        Values and run_ids are sorted apart, so that neither the order of the rows nor run_ids numbered by it matter.
        """
        values = sorted(json.dumps(row) for row in self.runs[list(_HASHED)].astype(object).to_numpy().tolist())
        content = json.dumps([values, sorted(map(str, self.runs["run_id"]))])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

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
        lines = [f"{self.source}: {len(rows)} runs, data {self.data_hash}"]
        for cells in (header, *rows):
            numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
            lines.append("  ".join([cells[0].ljust(widths[0]), *numbers]))
        return "\n".join(lines)

    __repr__ = __str__


def load_runs(
    source: str | Path | pd.DataFrame,
    *,
    where: str | None = None,
    recipe: str | None = None,
    tracking_uri: str | None = None,
) -> RunTable:
    """Load, check and select runs.

    Parameters
    ----------
    source : str, Path or DataFrame
        A shipped data set's name (`bayeslaw.datasets.NAMES`), a .csv or .parquet file, ``mlflow:EXPERIMENT``, a folder
        that holds run journals at any depth, or the table itself.
    where : str, optional
        Keeps the runs that match, see `bayeslaw.where`.
    recipe : str, optional
        Keeps the runs of one recipe. Where it has no r = 1 run of its own, the r = 1 runs of the baseline (of the other
        recipes, if that has none) stay as the anchor: without a loop there is nothing that recipes do differently.
    tracking_uri : str, optional
        The MLflow store, see `bayeslaw.store.resolve_uri`.

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
        name, raw = "DataFrame", RawRuns(source)
    else:
        name, raw = str(source), read_source(source, tracking_uri=tracking_uri)
    runs, excluded, notes = _validate(raw, name)
    recipes = sorted(set(runs["recipe"]))
    if recipe is not None and recipe not in recipes:
        near = difflib.get_close_matches(recipe, recipes, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UsageError(f"{name} has no recipe {recipe!r}{hint}", allowed=", ".join(recipes))
    if where is not None:
        runs = runs[filter_runs(runs, where)]
        if runs.empty:
            raise NoRunsError(f"no run of {name} matches --where {where!r}", do=f"`bayeslaw runs {name}` lists them")
    if recipe is not None:
        runs, anchor = _of_recipe(runs, recipe)
        notes += anchor
        if runs.empty:
            raise NoRunsError(f"no run of {name} matches --recipe {recipe} and --where {where!r}")
    runs = runs.reset_index(drop=True)
    return RunTable(runs, name, excluded, (*notes, *_remarks(runs)))


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
    runs, excluded, notes = _validate(RawRuns(frame), source)
    return RunTable(runs, source, excluded, (*notes, *_remarks(runs)))


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
    """Repeated data and replicates."""
    notes = []
    if "epochs" in runs and (runs["epochs"] > 1).any():
        repeated = runs["epochs"][runs["epochs"] > 1]
        notes.append(
            f"{len(repeated)} runs saw their data more than once (up to {repeated.max():g} epochs): "
            "the law takes every token as new"
        )
    sizes = runs.groupby(["recipe", "recurrences", "n_once", "n_shared", "n_injection", "tokens"]).size()
    if (sizes > 1).any():
        notes.append(
            f"{(sizes > 1).sum()} designs were trained more than once ({sizes[sizes > 1].sum()} runs, replicates)"
        )
    return tuple(notes)


def _shortened(name: str, width: int = 30) -> str:
    """The name with its middle left out where it is long: its end often tells runs apart."""
    return name if len(name) <= width else f"{name[: width // 2 - 2]}..{name[-(width // 2) :]}"


class _Rows:
    """The rows under check, with what each is called in messages."""

    def __init__(self, frame: pd.DataFrame, labels: list[Any], unit: str, source: str, plain: bool) -> None:
        self.frame = frame
        self.labels = labels
        self.unit = unit
        self.source = source
        self.plain = plain

    def pick(self, mask: Mask) -> _Rows:
        """Some of the rows."""
        labels = [label for label, kept in zip(self.labels, mask, strict=True) if kept]
        return _Rows(self.frame[mask].reset_index(drop=True), labels, self.unit, self.source, self.plain)

    def at(self, mask: Mask) -> str:
        """Where the rows are, such as ``lines 3, 5, 8 and 12 more``."""
        labels = [str(label) for label, bad in zip(self.labels, mask, strict=True) if bad]
        more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
        return f"{self.unit}{'s' if len(labels) > 1 else ''} {', '.join(labels[:5])}{more}"

    def refuse(
        self, column: str, bad: Mask, problem: str, *, allowed: str | None = None, do: str | None = None
    ) -> None:
        """Raise if any row is bad; ``{}`` in the problem stands for the first bad value."""
        if not bad.any():
            return
        if self.plain and column == "n_once":
            column = "n"
        value = self.frame[column].to_numpy(dtype=object)[int(bad.argmax())] if column in self.frame else "missing"
        allowed = allowed or (f"{COLUMNS[column].meaning}, {_kind(column)}" if column in COLUMNS else None)
        text = problem.format(value if _text(value) else "missing")
        raise RunTableError(f"{self.source}, {self.at(bad)}: {column} {text}", allowed=allowed, do=do)


def _validate(raw: RawRuns, source: str) -> tuple[pd.DataFrame, pd.DataFrame, tuple[str, ...]]:
    rows, excluded = _finished(_named(raw, source), list(raw.excluded))
    runs = _typed(rows)
    runs, notes = _in_nats(rows, runs)
    _check_values(rows, runs)
    _check_columns(rows, runs)
    runs, flops_notes = _derived(rows, runs)
    for column in REQUIRED:
        rows.refuse(column, runs[column].isna().to_numpy(), "is {}", do="fill it in, or give the run the state failed")
    _check_duplicates(rows, runs)
    frame = pd.DataFrame(excluded, columns=["run_id", "reason"], dtype="str")
    return _finish(runs), frame, notes + flops_notes


def _named(raw: RawRuns, source: str) -> _Rows:
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
    rows = _Rows(frame.reset_index(drop=True), list(frame.index), unit, source, plain)
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


def _finished(rows: _Rows, excluded: list[tuple[str, str]]) -> tuple[_Rows, list[tuple[str, str]]]:
    """Only finished runs; the others join the excluded with their state as the reason."""
    finished = (rows.frame["state"] == "finished").to_numpy()
    for index in np.flatnonzero(~finished):
        row = rows.frame.iloc[index]
        loss = "" if pd.isna(row.get("loss")) and row["state"] != "diverged" else f", loss {row.get('loss')}"
        name = row.get("run_id")
        excluded.append((f"row-{index + 1}" if pd.isna(name) else str(name), f"state {row['state']}{loss}"))
    if not finished.any():
        raise _nothing_left(rows.source, excluded)
    return rows.pick(finished), excluded


def _nothing_left(source: str, excluded: list[tuple[str, str]]) -> NoRunsError:
    listed = "; ".join(f"{run_id}: {reason}" for run_id, reason in excluded[:5])
    more = f"; and {len(excluded) - 5} more" if len(excluded) > 5 else ""
    return NoRunsError(f"{source} has no finished run ({listed}{more})", do="let a run finish first")


def _typed(rows: _Rows) -> pd.DataFrame:
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
    numbers = [_number(value) for value in values]
    bad = np.array([number is None for number in numbers], dtype=bool)
    return np.array([np.nan if number is None else number for number in numbers], dtype=np.float64), bad


def _number(value: Any) -> float | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    if _text(value) is None or (isinstance(value, str) and value.strip().lower() in _NO_NUMBER):
        return math.nan
    try:
        return None if "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _text(value: Any) -> str | None:
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else str(value).strip()


def _whole(numbers: Floats) -> NDArray[Any]:
    """As int64 where no number is lost by it."""
    whole = np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all() and (abs(numbers) < _LARGEST_INT).all()
    return numbers.astype(np.int64) if whole else numbers


def _is_number(column: str) -> bool:
    return column in COLUMNS and COLUMNS[column].kind != "text"


def _kind(column: str) -> str:
    kind, positive = COLUMNS[column].kind, COLUMNS[column].positive
    return {"int": "a whole number", "float": "a number", "text": "a text"}[kind] + (" above 0" if positive else "")


def _in_nats(rows: _Rows, runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
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


def _check_values(rows: _Rows, runs: pd.DataFrame) -> None:
    """Every number within what its column allows; missing ones pass."""
    for name in filter(_is_number, map(str, runs.columns)):
        values = runs[name].to_numpy()
        rows.refuse(name, abs(values) >= MLFLOW_INFINITY, "is {}, not finite", do="remove the run: it diverged")
        if name == "loss":
            rows.refuse(name, values <= 0, "is {}", do="remove the run, or give it the state failed")
        elif name == "recurrences":
            allowed = "1 (a plain transformer) or more"
            rows.refuse(name, values < 1, "is {}: the shared block runs at least once", allowed=allowed)
        elif COLUMNS[name].positive:
            rows.refuse(name, values <= 0, "is {}")
        if COLUMNS[name].kind == "int":
            in_full = {"tokens": "are these billions?", **dict.fromkeys(_COUNTS, "are these millions?")}.get(name, "")
            part = (values != np.rint(values)) & ~np.isnan(values)
            rows.refuse(name, part, f"is {{}}, no whole number: {in_full}".rstrip(": "), do=_in_full(name))
            rows.refuse(name, (values < 0) & (name != "seed"), "is {}", allowed="0 or more")
            rows.refuse(name, abs(values) >= _LARGEST_INT, "is {}", allowed="whole numbers below 2^53")
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
    if column in ("tokens", *_COUNTS):
        return "write the number in full, 35405952 and not 35.4"
    return None


def _check_columns(rows: _Rows, runs: pd.DataFrame) -> None:
    """All columns present that the law needs and that cannot be computed."""
    present = set(runs.columns)
    needed = REQUIRED if _LOOPED & present else PLAIN
    computable = {*_PARTITION} <= present and bool({"d_model", "width_scale"} & present)
    missing = [name for name in needed if name not in present and not (computable and name in _COUNTS)]
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
        allowed=f"{', '.join(REQUIRED)}, where {', '.join(_PARTITION)} and d_model or width_scale can replace "
        f"n_once and n_shared; or {', '.join(PLAIN)} for plain transformers",
        do=", ".join(renames) or f"add the {kind} {', '.join(missing)}",
    )


def _derived(rows: _Rows, runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """What can be computed, computed; what is both given and computed, compared."""
    runs = _with_width(rows, runs.copy())
    designs = [_architecture(rows, index, row) for index, row in enumerate(runs.to_dict("records"))]
    for name in _COUNTS:
        computed = np.array([np.nan if design is None else getattr(design, name) for design in designs])
        given = runs[name].to_numpy() if name in runs else np.full(len(runs), np.nan)
        wrong = ~np.isnan(given) & ~np.isnan(computed) & (given != computed)
        if wrong.any():
            first = int(wrong.argmax())
            reason = _convention(name, given[first], designs[first])
            rows.refuse(
                name,
                wrong,
                f"is {{}}, but its architecture has {computed[first]:.0f} ({reason})",
                allowed="embedding and head left out, norm gains included, the shared block once, the injection apart",
                do=f"correct {name}, or leave it out: it is computed; if the network is built otherwise, leave out "
                f"{', '.join(_PARTITION)}",
            )
        runs[name] = np.where(np.isnan(given), computed, given)
    runs["n_injection"] = runs["n_injection"].fillna(0.0)
    total = (runs["n_once"] + runs["n_shared"] + runs["n_injection"]).to_numpy()
    unique = runs["n_unique"].to_numpy()
    wrong = ~np.isnan(unique) & ~np.isnan(total) & (unique != total)
    problem = "is {}, not the sum of n_once, n_shared and n_injection"
    rows.refuse("n_unique", wrong, problem, do="correct one of them; an injection's parameters are n_injection")
    runs["n_unique"] = np.where(np.isnan(unique), total, unique)
    runs["run_id"] = _run_ids(runs)
    return _with_flops(rows, runs, designs)


def _with_width(rows: _Rows, runs: pd.DataFrame) -> pd.DataFrame:
    """d_model and width_scale from each other."""
    if not {"d_model", "width_scale"} & set(runs):
        return runs
    width = runs.get("d_model", pd.Series(np.nan, index=runs.index))
    scale = runs.get("width_scale", pd.Series(np.nan, index=runs.index))
    wrong = width.notna() & scale.notna() & ~np.isclose(width, WIDTH_UNIT * scale, rtol=1e-3)
    rows.refuse("width_scale", wrong.to_numpy(), "is {}, which is not d_model / 64", do="leave one of the two out")
    width = width.fillna(WIDTH_UNIT * scale)
    rows.refuse("width_scale", (width % 1 > 0).to_numpy(), "is {}: 64 times it is no whole width")
    return runs.assign(d_model=width, width_scale=scale.fillna(width / WIDTH_UNIT))


def _architecture(rows: _Rows, index: int, row: Mapping[Any, Any]) -> Architecture | None:
    """The architecture of a row, None where it is not known. Unknown context and vocabulary become 1 each."""
    r = row.get("recurrences", math.nan)
    names = ("d_model", "prelude_layers", "shared_layers", "coda_layers")
    if any(pd.isna(row.get(name, math.nan)) for name in names) or pd.isna(r) or r != int(r):
        return None
    injection = row.get("injection", math.nan)
    if pd.isna(injection):
        if r > 1:
            return None
        injection = "none"
    kept = row.get("backprop_recurrences", math.nan)
    d, *layers = (int(row[name]) for name in names)
    seq_len, vocab_size = (row.get(name, math.nan) for name in ("seq_len", "vocab_size"))
    lanes = 2
    if injection == "hyperconnections" and r > 1:
        # K lanes add r (K^2 + 2 K) = r ((K + 1)^2 - 1) parameters to the shared block: any whole K is a network.
        extra = (row.get("n_shared", math.nan) - layers[1] * (12 * d**2 + 2 * d)) / r
        if extra >= 3 and math.sqrt(extra + 1) % 1 == 0:
            lanes = int(math.sqrt(extra + 1)) - 1
    try:
        return Architecture(
            d_model=d,
            prelude_layers=layers[0],
            shared_layers=layers[1],
            coda_layers=layers[2],
            recurrences=int(r),
            seq_len=1 if math.isnan(seq_len) else int(seq_len),
            vocab_size=1 if math.isnan(vocab_size) else int(vocab_size),
            injection=str(injection),
            backprop_recurrences=None if math.isnan(kept) else int(kept),
            lanes=lanes,
        )
    except UsageError as error:
        bad = np.arange(len(rows.labels)) == index
        raise RunTableError(f"{rows.source}, {rows.at(bad)}: {error.what}", allowed=error.allowed) from error


def _convention(name: str, given: float, design: Architecture | None) -> str:
    """The counting convention that would explain a count."""
    assert design is not None
    d, r = design.d_model, design.recurrences
    layers = {
        "n_once": design.prelude_layers + design.coda_layers,
        "n_shared": design.shared_layers,
        "n_injection": 0,
        "n_unique": design.prelude_layers + design.shared_layers + design.coda_layers,
    }[name]
    model_norms = 3 * d if name in ("n_once", "n_unique") else 0
    counted = getattr(design, name)
    embedding = d * design.vocab_size
    changes = {
        "embedding included": embedding,
        "embedding and head included": 2 * embedding,
        "injection included": design.n_injection if name in ("n_once", "n_shared") else 0,
        "injection left out": -design.n_injection if name in ("n_injection", "n_unique") else 0,
        "the shared block counted once for each recurrence": (r - 1) * design.n_shared,
    }
    norms = {"": 0, "norms left out": -(layers * 2 * d + model_norms), "model norms left out": -model_norms}
    for norm, less in norms.items():
        for change, more in {"": 0, **changes}.items():
            if counted + less + more == given:
                return f"{' and '.join(filter(None, (change, norm)))}?"
    if counted and abs(given / counted - 1) < 0.005:
        return "rounded?"
    return "no counting convention known here explains the difference"


def _run_ids(runs: pd.DataFrame) -> list[str]:
    """The given run_ids; the others named by their design, or row-1, row-2, ... where designs coincide."""
    given = runs["run_id"] if "run_id" in runs else pd.Series([None] * len(runs))
    if given.notna().all():
        return list(given)
    names = [f"row-{number}" for number in range(1, len(runs) + 1)]
    design = ["recipe", "recurrences", "width_scale", "budget"]
    if set(design) <= set(runs) and runs[design].notna().all(axis=None):
        seeds = runs["seed"] if "seed" in runs else pd.Series([math.nan] * len(runs))
        columns = zip(*(runs[name] for name in design), seeds, strict=True)
        by_design = [run_name(a, r, s, c, None if pd.isna(seed) else int(seed)) for a, r, s, c, seed in columns]
        names = by_design if len(set(by_design)) == len(by_design) else names
    return [name if pd.isna(run_id) else run_id for run_id, name in zip(given, names, strict=True)]


def _with_flops(
    rows: _Rows, runs: pd.DataFrame, designs: list[Architecture | None]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """flops_per_token and flops completed; notes where what is given differs from what is computed."""
    unknown = pd.Series(np.nan, index=runs.index)
    own = pd.Series([math.nan if design is None else design.flops_per_token for design in designs], index=runs.index)
    own = own.where(runs.get("seq_len", unknown).notna() & runs.get("vocab_size", unknown).notna())
    tokens, rate, flops = runs["tokens"], runs.get("flops_per_token", unknown), runs.get("flops", unknown)
    notes = _difference(rows, rate, own, "flops_per_token differs from that of the architecture")
    # In float64: the product passes the largest int64 at 9.2e18 FLOPs.
    rate = rate.fillna(own).fillna(flops / tokens)
    notes += _difference(rows, flops, tokens * rate, "flops differs from tokens x flops_per_token")
    completed = {"flops_per_token": rate, "flops": flops.fillna(tokens * rate)}
    return runs.assign(**{name: values for name, values in completed.items() if values.notna().any()}), notes


def _difference(rows: _Rows, given: pd.Series[float], computed: pd.Series[float], problem: str) -> tuple[str, ...]:
    off = (given / computed - 1).abs()
    wrong = (off > 1e-3).to_numpy()
    return (f"{problem} by up to {off.max():.1%} ({rows.at(wrong)})",) if wrong.any() else ()


def _check_duplicates(rows: _Rows, runs: pd.DataFrame) -> None:
    """No run twice."""
    same = _first_repeated(runs["run_id"])
    rows.refuse("run_id", same, "is {} in each", allowed="one row a run", do="drop or rename the copies")
    same = _first_repeated(runs.drop(columns=["run_id", "source"]).astype("str").fillna("").agg("\n".join, axis=1))
    if same.any():
        raise RunTableError(
            f"{rows.source}, {rows.at(same)}: the same run (all columns agree but run_id)",
            allowed="one row a run; replicates differ in the column seed",
            do="drop the copies, or add the column seed",
        )


def _first_repeated(values: pd.Series[str]) -> Mask:
    """The rows that share the first value that comes more than once."""
    repeated = values.duplicated(keep=False).to_numpy()
    return repeated & (values == values.iloc[int(repeated.argmax())]).to_numpy()


def _finish(runs: pd.DataFrame) -> pd.DataFrame:
    """Columns in the order of the vocabulary, whole numbers as int64."""
    order = [column for column in COLUMNS if column in runs] + [column for column in runs if column not in COLUMNS]
    whole = {name: _whole(runs[name].to_numpy()) for name in order if name in COLUMNS and COLUMNS[name].kind == "int"}
    return runs[order].assign(**whole)
