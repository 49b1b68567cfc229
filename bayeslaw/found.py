"""Runs as a source holds them, and one row for each: of several with one run_id or config the newest finished one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bayeslaw.schema import MLFLOW_INFINITY


@dataclass(frozen=True)
class RawRuns:
    """Runs as a source holds them.

    Parameters
    ----------
    frame : DataFrame
        One row a run, columns as named in the source. The index labels the rows in messages and its name is what a
        label is called: line (of a file), row, or run.
    excluded : tuple of (run_id, reason)
        Runs already left out.
    notes : tuple of str
        What a person should know of the source.
    """

    frame: pd.DataFrame
    excluded: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One run found in a store or in journals.

    Parameters
    ----------
    row : dict
        Its run-table row, ``run_id`` and ``state`` in it. ``training_run`` names the run whose checkpoint it goes on
        from, or any name that rows of one training run share.
    place : str
        Where it is in the source.
    age : float
        When it ended, or was last heard of; later is larger.
    config_hash : str, optional
        What tells its config from others.
    """

    row: dict[str, Any]
    place: str
    age: float
    config_hash: str | None = None


def settled(entries: Iterable[Entry], excluded: Iterable[tuple[str, str]] = (), notes: Iterable[str] = ()) -> RawRuns:
    """One row a run_id and config; finished runs without a usable loss become diverged or are left out.

    Parameters
    ----------
    entries : iterable of Entry
        In any order.
    excluded, notes
        What the result's begin with.
    """
    left_out = list(excluded)
    usable = []
    for entry in _with_training_runs(list(entries)):
        row = entry.row
        if row["state"] == "finished" and not _finite(row.get("loss", 0.0)):
            entry = replace(entry, row={**row, "state": "diverged"})
        missing = [name for name in ("tokens", "loss") if row.get(name) is None]
        if entry.row["state"] == "finished" and missing:
            left_out.append((str(row["run_id"]), f"finished without {' and '.join(missing)}"))
        else:
            usable.append(entry)
    kept: list[Entry] = []
    by_name: dict[tuple[str, str], Entry] = {}
    for entry in sorted(usable, key=lambda entry: (entry.row["state"] == "finished", entry.age), reverse=True):
        name = ("run_id", str(entry.row["run_id"]))
        config = ("config", entry.config_hash or f"unknown at {entry.place}")
        other = by_name.get(name) or by_name.get(config)
        if other is None:
            kept.append(entry)
            by_name |= {name: entry, config: entry}
        else:
            left_out.append((name[1], f"{entry.row['state']} run at {entry.place}: {_same(entry, other)}"))
    kept.sort(key=lambda entry: entry.age)
    index = pd.Index([entry.place for entry in kept], name="run", dtype=object)
    frame = pd.DataFrame([entry.row for entry in kept], index=index, dtype=object)
    return RawRuns(frame, tuple(left_out), tuple(notes))


def _same(entry: Entry, other: Entry) -> str:
    """What makes a run the same as one that is taken."""
    if entry.row["run_id"] != other.row["run_id"]:
        return f"{other.place} has its config hash {entry.config_hash} and the run_id {other.row['run_id']}"
    if entry.config_hash and other.config_hash and entry.config_hash != other.config_hash:
        return f"{other.place} has its run_id, with another config hash ({other.config_hash}, not {entry.config_hash})"
    return f"{other.place} has its run_id"


def _with_training_runs(entries: Sequence[Entry]) -> Iterable[Entry]:
    """Runs that go on from a checkpoint of another, and that other one, with the name of the first of them."""
    origin = {
        str(entry.row["run_id"]): str(entry.row["training_run"])
        for entry in entries
        if entry.row.get("training_run") is not None
    }
    continued = {*origin, *origin.values()}

    def first(name: str) -> str:
        seen = {name}
        while name in origin and origin[name] not in seen:
            name = origin[name]
            seen.add(name)
        return name

    for entry in entries:
        run_id = str(entry.row["run_id"])
        yield entry if run_id not in continued else replace(entry, row={**entry.row, "training_run": first(run_id)})


def _finite(value: Any) -> bool:
    return value is None or not isinstance(value, float) or (math.isfinite(value) and abs(value) < MLFLOW_INFINITY)
