"""Tables of other programs: a Weights & Biases export, or any CSV or Parquet file, by a map of its columns.

A map says for a column of the run table what gives it: a column of the file (``val/loss``), a column times a number
(``step * 524288``), a number (``2``) or a text in quotes (``'baseline'``). It is taken apart, never evaluated. Columns
of the file that have a name of the run table already need no map, and neither do ``Name`` and ``State`` of Weights &
Biases.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bayeslaw.errors import RunTableError, UsageError
from bayeslaw.found import RawRuns
from bayeslaw.rows import as_text
from bayeslaw.runs import RunTable, table_of
from bayeslaw.schema import COLUMNS
from bayeslaw.sources import FILE_KINDS, read_csv, read_parquet
from bayeslaw.validation import missing_columns

WANDB = {"run_id": "Name", "state": "State"}
"""What columns of a Weights & Biases export are in the run table."""

WANDB_STATES = {
    "finished": "finished",
    "crashed": "killed",  # nothing more was heard of it
    "killed": "killed",
    "preempted": "killed",
    "failed": "failed",
    "running": "running",
    "preempting": "running",
    "pending": "running",
}

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PRODUCT = re.compile(r"(.*?)\s*\*\s*([^\s*]+)", re.DOTALL)
_OWN = ("n", *COLUMNS)


@dataclass(frozen=True)
class Origin:
    """What gives a column of the run table.

    Parameters
    ----------
    column : str or None
        A column of the file; None for a constant.
    factor : float or None
        What its values are multiplied by.
    constant : float, str or None
    """

    column: str | None = None
    factor: float | None = None
    constant: float | str | None = None


def import_table(path: Path, *, columns: Mapping[str, str | float] | None = None) -> tuple[pd.DataFrame, RunTable]:
    """Read the table of another program as runs.

    Parameters
    ----------
    path : Path
        A .csv or .parquet file.
    columns : mapping, optional
        For columns of the run table what gives them, as in the module's text.

    Returns
    -------
    DataFrame, RunTable
        All rows with the columns of the run table, to be written; and the finished runs, checked, with what is left
        out and why. A finished run whose loss is not finite has the state diverged; one without a loss, failed.

    Raises
    ------
    UsageError
        There is no such file, or the map names what is not there.
    RunTableError
        The file cannot be read, a column that the law needs is missing, or a value is wrong.
    NoRunsError
        No run is finished.
    """
    if path.suffix.lower() not in FILE_KINDS:
        raise UsageError(f"{path} is neither CSV nor Parquet by its name", allowed=", ".join(FILE_KINDS))
    if not path.is_file():
        raise UsageError(f"there is no file {path}", do="check the path")
    frame = read_csv(path) if path.suffix.lower() == ".csv" else read_parquet(path)
    given = [str(name) for name in frame.columns]
    if twice := sorted({name for name in given if given.count(name) > 1}):
        raise RunTableError(f"{path} has more than one column {', '.join(twice)}", do="rename or drop one of each")
    origins = {name: Origin(column=name) for name in _OWN if name in given}
    wandb = set(WANDB.values()) <= set(given)
    if wandb:
        origins |= {name: Origin(column=column) for name, column in WANDB.items() if name not in given}
    origins |= {name: _origin(name, text, given) for name, text in (columns or {}).items()}
    if missing := missing_columns(origins):
        raise _unmapped(path, missing, given, origins)
    runs = pd.DataFrame({name: _values(path, frame, name, origin) for name, origin in origins.items()})
    runs.index = frame.index
    if wandb and "state" in origins:
        runs["state"] = [_wandb_state(path, runs.index.name, label, text) for label, text in runs["state"].items()]
    runs["state"] = _states(runs)
    return runs, table_of(RawRuns(runs), str(path))


def column_map(flags: Iterable[str], file: Path | None = None) -> dict[str, str | float]:
    """The map of ``NAME=ORIGIN`` flags and of a TOML file with one ``NAME = ORIGIN`` a line; flags go first.

    Raises
    ------
    UsageError
        A flag or file that is none.
    """
    columns: dict[str, str | float] = {}
    if file is not None:
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"--columns {file}: {error}", allowed="a TOML file, " + _EXAMPLE) from error
        for name, origin in content.items():
            if isinstance(origin, bool) or not isinstance(origin, (str, int, float)):
                raise UsageError(f"--columns {file}: {name} is {origin!r}", allowed="a text or a number, " + _EXAMPLE)
            columns[name] = origin
    for flag in flags:
        name, sign, origin = flag.partition("=")
        if not sign or not origin.strip():
            raise UsageError(f"--column {flag}", allowed="NAME=ORIGIN, " + _EXAMPLE)
        columns[name.strip()] = origin.strip()
    return columns


_EXAMPLE = 'such as loss="val/loss", tokens="step * 524288" or recipe="\'baseline\'"'


def _origin(name: str, text: str | float, given: list[str]) -> Origin:
    """What a text of the map means; a column of that very name goes before everything else."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"the column name {name!r}", allowed="letters, digits and _")
    if not isinstance(text, str):
        return Origin(constant=float(text))
    if text in given:
        return Origin(column=text)
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return Origin(constant=text[1:-1])
    number = _number(text)
    if number is not None:
        return Origin(constant=number)
    column, factor = text, None
    if product := _PRODUCT.fullmatch(text):
        factor = _number(product[2])
        if factor is not None:
            column = product[1]
    if column not in given:
        near = _nearest(column, given)
        raise UsageError(
            f"{name}={text}: the file has no column {column!r}" + (f", did you mean {near[0]!r}?" if near else ""),
            allowed=f"a column, a column * number, a number, or a text in quotes; the columns are {', '.join(given)}",
        )
    return Origin(column=column, factor=factor)


def _values(path: Path, frame: pd.DataFrame, name: str, origin: Origin) -> list[Any]:
    if origin.column is None:
        return [_whole(origin.constant)] * len(frame)
    values = frame[origin.column].tolist()
    if origin.factor is None:
        return values
    out: list[Any] = []
    for label, value in zip(frame.index, values, strict=True):
        text = as_text(value)
        number = math.nan if not text else _number(text)
        if number is None:
            raise RunTableError(
                f"{path}, {frame.index.name} {label}: {origin.column} is {text!r}, not a number",
                do=f"correct it, or take {name} from another column",
            )
        out.append(_whole(number * origin.factor))
    return out


def _wandb_state(path: Path, unit: Any, label: Any, value: Any) -> str | None:
    text = as_text(value)
    if text and text.lower() not in WANDB_STATES:
        raise RunTableError(
            f"{path}, {unit} {label}: the state is {text}", allowed=", ".join(WANDB_STATES), do="correct it"
        )
    return WANDB_STATES[text.lower()] if text else None


def _states(runs: pd.DataFrame) -> list[Any]:
    """The states, of runs that finished without a usable loss another one."""
    given = runs["state"] if "state" in runs else pd.Series("finished", index=runs.index)
    states = []
    for state, loss in zip(given, runs["loss"], strict=True):
        text = as_text(loss)
        number = None if not text else _number(text)
        if (as_text(state) or "finished") != "finished":
            states.append(state)
        elif not text:
            states.append("failed")
        elif number is not None and not math.isfinite(number):
            states.append("diverged")
        else:
            states.append("finished")
    return states


def _unmapped(path: Path, missing: list[str], given: list[str], origins: Mapping[str, Origin]) -> RunTableError:
    taken = {origin.column for origin in origins.values()}
    free = [name for name in given if name not in taken]
    near = {name: _nearest(name, free) for name in missing}
    likely = "; ".join(f"{name}: {', '.join(map(repr, found))}" for name, found in near.items() if found)
    flags = " ".join(f'--column {name}="{(near[name] or ["COLUMN"])[0]}"' for name in missing)
    return RunTableError(
        f"nothing in {path} gives {', '.join(missing)}" + (f"; the nearest of its columns: {likely}" if likely else ""),
        allowed=f"a map of its columns: {', '.join(free) or 'none is left'}",
        do=f"say which column it is, such as {flags}",
    )


def _nearest(name: str, given: list[str]) -> list[str]:
    """Columns of a file that may be meant by a name: those that hold it as a word, then those spelled alike."""
    words = [column for column in given if name.lower() in re.split(r"[^a-z0-9]+", column.lower())]
    alike = difflib.get_close_matches(name, given, n=3, cutoff=0.55)
    return list(dict.fromkeys([*words, *alike]))[:3]


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
