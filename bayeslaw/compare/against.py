"""A person's own runs joined with a baseline's into one table, and the reasons to doubt that their losses compare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.inputs import NEAR, optional
from bayeslaw.laws import make_law
from bayeslaw.point.fit import point_fit
from bayeslaw.runs import RunTable
from bayeslaw.schema import BASELINE

SAME_RUN = ["recurrences", "n_once", "n_shared", "n_injection", "tokens", "loss"]
"""Rows that agree in all of these are one run, by whatever name."""

FAR = 0.01
"""Offset of log loss at r = 1 from which on two tables are not taken for the same task: single runs scatter by .003,
and recipes differ by a few hundredths."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Own runs and a baseline's.

    Parameters
    ----------
    table : RunTable
        The baseline's runs first. Own runs of a recipe "baseline" are renamed by their source.
    own : tuple of str
        Names of the own recipes.
    doubts : tuple of str
        Why their losses may not compare with the baseline's.
    """

    table: RunTable
    own: tuple[str, ...]
    doubts: tuple[str, ...]


def joined(table: RunTable, against: RunTable) -> Joined:
    """Join a table with the baseline runs of another.

    Rows of the table that are the other's own are not counted twice. Where the table has no run at r = 1, the
    baseline's serve: without a loop recipes do nothing differently.

    Parameters
    ----------
    table, against : RunTable

    Raises
    ------
    UsageError
        ``against`` has no recipe "baseline".
    NoRunsError
        No run of the table is its own, or none of them loops.
    RunTableError
        Losses of different vocabularies.
    """
    base = against.runs[against.runs["recipe"] == BASELINE]
    if base.empty:
        raise UsageError(
            f"--against {against.source}, which has no recipe {BASELINE!r}", allowed="a table with baseline runs",
            do="--against isodepth compares with the shipped ones",
        )  # fmt: skip
    known = set(map(tuple, base[SAME_RUN].astype(float).to_numpy().tolist()))
    shared = np.array([tuple(row) in known for row in table.runs[SAME_RUN].astype(float).to_numpy().tolist()])
    own = table.runs[~shared].copy()
    if own.empty or not (own["recurrences"] > 1).any():
        what = "no run besides those of" if own.empty else "no looped run besides those of"
        raise NoRunsError(
            f"{table.source} has {what} {against.source}: nothing to compare with it",
            do="name a table with looped runs of your own recipe",
        )
    _same_vocabulary(own, base, table.source, against.source)
    notes = []
    if shared.any():
        notes.append(f"{shared.sum()} runs of {table.source} are those of {against.source}, and count once")
    if (own["recipe"] == BASELINE).any():
        name = _own_name(table.source, {*own["recipe"], BASELINE})
        notes.append(f"the {BASELINE} of {table.source} is called {name!r} here: {BASELINE} is {against.source}'s")
        own["recipe"] = own["recipe"].where(own["recipe"] != BASELINE, name)
    taken = own["run_id"].isin(base["run_id"])
    own["run_id"] = own["run_id"].where(~taken, f"{Path(table.source).stem}:" + own["run_id"].astype(str))
    runs = pd.concat([base, own], ignore_index=True)
    looped = tuple(sorted(set(own.loc[own["recurrences"] > 1, "recipe"].astype(str))))
    both = replace(
        table,
        runs=runs,
        source=f"{table.source} against {against.source}",
        notes=(*table.notes, *notes),
    )
    return Joined(table=both, own=looped, doubts=tuple(_doubts(own, base, table.source, against.source)))


def _own_name(source: str, taken: set[str]) -> str:
    """What a baseline is called that is not the baseline here."""
    stem = Path(source.split(":")[-1]).stem or "own"
    return stem if stem not in taken else f"{stem} (own)"


def _same_vocabulary(own: pd.DataFrame, base: pd.DataFrame, source: str, against: str) -> None:
    theirs, ours = (_values(runs, "vocab_size") for runs in (base, own))
    if theirs and ours and not set(ours) <= set(theirs):
        raise RunTableError(
            f"{source} has a vocabulary of {', '.join(f'{v:g}' for v in ours)}, {against} one of "
            f"{', '.join(f'{v:g}' for v in theirs)}: nats per token of different tokens do not compare",
            allowed="runs with the same tokenizer",
            do="train a baseline of your own, and compare the recipes of that one table without --against",
        )


def _doubts(own: pd.DataFrame, base: pd.DataFrame, source: str, against: str) -> Iterator[str]:
    """Why the losses of two tables may not compare."""
    same_data = set(own["source"]) <= set(base["source"])
    if not same_data and not (_values(own, "vocab_size") and _values(base, "vocab_size")):
        yield (
            f"{source} does not tell its vocabulary: that its losses are of the same data and tokenizer as those of "
            f"{against} is taken on trust"
        )
    for name, what in (("seq_len", "context length"), ("_depth", "effective depth (r times the shared layers)")):
        theirs, ours = (_values(_with_depth(runs), name) for runs in (base, own))
        if theirs and ours and not set(ours) <= set(theirs):
            yield (
                f"{source} has another {what} ({', '.join(f'{v:g}' for v in ours)}) than {against} "
                f"({', '.join(f'{v:g}' for v in theirs)}): what that does to the loss counts as the recipe's"
            )
    inside, spent = (optional(runs, "flops", np.nan) for runs in (base, own))
    if np.isfinite(inside).all() and not np.isfinite(spent).all():
        yield (
            f"{source} does not record FLOPs, {against} does: its budgets are taken to be 6 N D, which is less than "
            "loops cost; look at its runs matched by tokens, not by FLOPs"
        )
    outside = int(((spent < inside.min() / NEAR) | (spent > inside.max() * NEAR)).sum())
    if outside:
        yield (
            f"{outside} of {len(own)} runs of {source} were trained with fewer or more FLOPs than any baseline run: "
            "the law alone says what the baseline would do there"
        )
    plain = own[own["recurrences"] == 1]
    if plain.empty and same_data:
        return
    if plain.empty:
        yield (
            f"{source} has no run at r = 1: those of {against} serve, and whether both were trained on the same data "
            "cannot be checked"
        )
        return
    offset = _offset(plain, base)
    if abs(offset) > FAR:
        yield (
            f"the r = 1 runs of {source}, where recipes do not differ, lie {100 * abs(offset):.1f} % "
            f"{'above' if offset > 0 else 'below'} what those of {against} would lose: other data, tokenizer or "
            "training; differences between the recipes hold that offset too"
        )


def _offset(plain: pd.DataFrame, base: pd.DataFrame) -> float:
    """Median over r = 1 runs of their log loss less that of the law of the baseline."""
    fitted = point_fit(base, law="coupled", injection_in="once")
    counts = [plain[name].to_numpy(dtype=float) for name in ("n_once", "n_shared", "n_injection", "tokens")]
    n_once, n_rec, injection, tokens = counts
    loss = make_law("coupled").loss(n_once + injection, n_rec, 1.0, tokens, fitted.parameters)
    return float(np.median(np.log(plain["loss"].to_numpy(dtype=float) / loss)))


def _with_depth(runs: pd.DataFrame) -> pd.DataFrame:
    known = "shared_layers" in runs
    return runs.assign(_depth=runs["recurrences"] * runs["shared_layers"]) if known else runs


def _values(runs: pd.DataFrame, name: str) -> list[float]:
    """The distinct values of a column, ascending; none where it is missing."""
    return sorted({float(value) for value in runs[name].dropna()}) if name in runs else []
