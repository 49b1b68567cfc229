"""What a fit takes from a run table: arrays, with the injection counted by a convention and the groups numbered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.errors import FitError
from bayeslaw.law import effective_parameters
from bayeslaw.schema import BASELINE
from bayeslaw.splits import regression_split, split_parameters

Array = NDArray[np.float64]
Index = NDArray[np.int64]

FACTORS = ("recipe", "source", "architecture")
"""What a law parameter may differ by; an architecture is a recipe with one r."""

NEAR = 1.1
"""Ratio of tokens, or of FLOPs, up to which rows are taken for one aim, where no budget says."""


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Runs numbered by a name they share.

    Parameters
    ----------
    levels : tuple of str
    index : ndarray of int, shape (run,)
        Index into ``levels``.
    """

    levels: tuple[str, ...]
    index: Index

    def subset(self, rows: NDArray[np.bool_] | Index) -> Grouping:
        """Those of some runs, numbered anew."""
        kept, index = np.unique(self.index[rows], return_inverse=True)
        return Grouping(levels=tuple(self.levels[i] for i in kept), index=index)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the law is fitted to, one entry a row of the run table.

    Parameters
    ----------
    n_once, n_rec : ndarray, shape (run,)
        Parameters run once and r times, the injection counted by the fit's convention.
    recurrences, tokens, loss : ndarray, shape (run,)
        r, D in tokens, validation loss in nats per token.
    loss_se : ndarray, shape (run,)
        Known standard error of the loss, nats per token; 0 where the table has none.
    flops : ndarray, shape (run,)
        Training FLOPs as recorded, 6 N D where they are not.
    factors : dict of str to Grouping
        By `FACTORS`. Rows at r = 1 whose recipe has no looped run belong to the first recipe.
    run : Grouping
        Rows of one training run (checkpoints), or of one configuration (seeds), together.
    cell : Grouping or None
        Cells (recipe, budget, r); None where a budget is not known.
    """

    n_once: Array
    n_rec: Array
    recurrences: Array
    tokens: Array
    loss: Array
    loss_se: Array
    flops: Array
    factors: dict[str, Grouping]
    run: Grouping
    cell: Grouping | None

    @property
    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes."""
        return self.factors["recipe"].levels

    @property
    def recipe(self) -> Index:
        """Recipe of each run, an index into ``recipes``."""
        return self.factors["recipe"].index

    @cached_property
    def log_loss(self) -> Array:
        """Logarithm of the losses."""
        logs: Array = np.log(self.loss)
        return logs

    @cached_property
    def centre(self) -> tuple[float, float]:
        """(N0, D0): geometric means of N_eff for g = sqrt(r) and of D; they depend on the design only."""
        n_eff = effective_parameters(self.n_once, self.n_rec, np.sqrt(self.recurrences))
        return float(np.exp(np.log(n_eff).mean())), float(np.exp(np.log(self.tokens).mean()))

    def subset(self, rows: NDArray[np.bool_] | Index) -> Inputs:
        """Some of the runs, with the recipes, sources and architectures, and the centre, of all."""
        arrays = {
            name: getattr(self, name)[rows]
            for name in ("n_once", "n_rec", "recurrences", "tokens", "loss", "loss_se", "flops")
        }
        factors = {name: replace(factor, index=factor.index[rows]) for name, factor in self.factors.items()}
        out = Inputs(
            **arrays, factors=factors, run=self.run.subset(rows), cell=self.cell and self.cell.subset(rows)
        )  # fmt: skip
        out.__dict__["centre"] = self.centre
        return out

    @property
    def looped(self) -> tuple[float, ...]:
        """The r > 1 of the runs, ascending."""
        return tuple(float(r) for r in np.unique(self.recurrences) if r > 1)


def inputs_of(runs: pd.DataFrame, *, injection_in: str) -> Inputs:
    """Arrays of a run table, with the injection counted by the convention.

    The r = 1 rows serve every recipe: their loss does not depend on what a recurrence is worth, so a recipe needs rows
    with r > 1 to have a phi.
    """
    column = {
        name: runs[name].to_numpy(dtype=float)
        for name in ("n_once", "n_shared", "n_injection", "n_unique", "recurrences", "tokens", "loss")
    }
    if injection_in == "regression":
        if "d_model" not in runs or runs["d_model"].isna().any():
            raise FitError(
                "--injection-in regression splits n_unique by width, and these runs have no d_model",
                allowed="once, rec, nowhere",
                do="add the column d_model, or choose another convention",
            )
        n_once, n_rec = regression_split(column["n_unique"], column["recurrences"], runs["d_model"].to_numpy())
    else:
        n_once, n_rec = split_parameters(
            column["n_once"], column["n_shared"], column["n_injection"], injection_in=injection_in
        )
    n_unique = column["n_unique"]
    flops = optional(runs, "flops", np.nan)
    recipe = _recipes(runs, column["recurrences"])
    return Inputs(
        n_once=n_once,
        n_rec=n_rec,
        recurrences=column["recurrences"],
        tokens=column["tokens"],
        loss=column["loss"],
        loss_se=optional(runs, "loss_se", 0.0),
        flops=np.where(np.isfinite(flops), flops, 6 * n_unique * column["tokens"]),
        factors={
            "recipe": recipe,
            "source": _grouping(runs["source"].astype(str)),
            "architecture": _grouping(runs["recipe"].astype(str) + "/r=" + runs["recurrences"].map("{:g}".format)),
        },
        run=_training_runs(runs),
        cell=_cells(runs),
    )


def optional(runs: pd.DataFrame, name: str, missing: float) -> Array:
    """A column that a table may lack, with ``missing`` where there is no value."""
    if name not in runs:
        return np.full(len(runs), missing)
    values: Array = runs[name].fillna(missing).to_numpy(dtype=float)
    return values


def _recipes(runs: pd.DataFrame, recurrences: Array) -> Grouping:
    looped = runs.loc[recurrences > 1, "recipe"]
    names = sorted(set(looped if len(looped) else runs["recipe"]), key=lambda name: (name != BASELINE, name))
    index = np.array([names.index(name) if name in names else 0 for name in runs["recipe"]])
    return Grouping(levels=tuple(str(name) for name in names), index=index)


def _grouping(labels: pd.Series[str]) -> Grouping:
    levels = tuple(sorted(set(labels)))
    return Grouping(levels=levels, index=np.array([levels.index(label) for label in labels]))


def _training_runs(runs: pd.DataFrame) -> Grouping:
    """Rows with the same ``training_run``; without one, of the same configuration and budget.

    Where the budget is not known, rows of one configuration whose tokens are within `NEAR` of a longest one are taken
    for checkpoints or seeds of one aim.
    """
    label = runs["source"].astype(str)
    for name in ("recipe", "recurrences", "n_once", "n_shared", "n_injection"):
        label = label + "/" + runs[name].astype(str)
    aim = runs["tokens"].astype(float).groupby(label).transform(_aims).map("D{:.6g}".format)
    if "budget" in runs:
        aim = runs["budget"].map(repr).where(runs["budget"].notna(), aim)
    label = label + "/" + aim
    if "training_run" in runs:
        label = runs["training_run"].where(runs["training_run"].notna(), label)
    codes, levels = pd.factorize(label.astype(str))
    return Grouping(levels=tuple(levels), index=codes.astype(np.int64))


def _aims(tokens: pd.Series[float]) -> pd.Series[float]:
    """For each run of one configuration the tokens of the longest one within `NEAR` of it."""
    ordered = tokens.sort_values(ascending=False)
    aims = ordered.copy()
    for earlier, run in zip(ordered.index, ordered.index[1:], strict=False):
        aims[run] = aims[earlier] if aims[earlier] <= NEAR * ordered[run] else ordered[run]
    return aims.reindex(tokens.index)


def _cells(runs: pd.DataFrame) -> Grouping | None:
    if "budget" not in runs or runs["budget"].isna().any():
        return None
    return _grouping(
        runs["recipe"].astype(str)
        + "/"
        + runs["budget"].map("{:.4g}".format)
        + "/r="
        + runs["recurrences"].map("{:g}".format)
    )
