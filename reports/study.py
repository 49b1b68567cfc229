"""What the cards of one report share: the fit, its thinned draws, its check, its budgets and its recommendations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.allocate import allocate
from bayeslaw.diagnostics import CheckResult, check
from bayeslaw.errors import UsageError
from bayeslaw.family import FAMILIES
from bayeslaw.inputs import Inputs, inputs_of
from bayeslaw.laws import CORE
from bayeslaw.location import Location, location_of
from bayeslaw.options import FLOPS_RULES
from bayeslaw.posterior import Fit
from bayeslaw.recommendation import Allocation
from bayeslaw.schema import BASELINE
from reports.recurrences import Worth, factors_of, worths

Array = NDArray[np.float64]

BAND_DRAWS = 400
"""Draws behind a band: its 5 % edge then rests on twenty of them, and the whole report takes seconds."""

MOST_LEVELS = 10
"""More distinct budgets than this are no iso-FLOP grid, and too many colours."""

SPREAD_LEVELS = 6


@dataclass(frozen=True, kw_only=True)
class Study:
    """A fit and what decisions on it may assume.

    Parameters
    ----------
    fit : Fit
    family, flops_rule : str, optional
        As `bayeslaw.allocate.allocate` takes them, one at most.

    Raises
    ------
    UsageError
        Both are given, or one that there is not.
    """

    fit: Fit
    family: str | None = None
    flops_rule: str | None = None

    def __post_init__(self) -> None:
        if self.family is not None and self.flops_rule is not None:
            raise UsageError(
                f"--family {self.family} with --flops-rule {self.flops_rule}", allowed="one of the two",
                do="leave --flops-rule out: a family counts its own FLOPs",
            )  # fmt: skip
        for name, value, allowed in (
            ("--family", self.family, tuple(FAMILIES)),
            ("--flops-rule", self.flops_rule, FLOPS_RULES),
        ):
            if value is not None and value not in allowed:
                raise UsageError(f"{name} {value!r}", allowed=", ".join(allowed))

    @cached_property
    def check(self) -> CheckResult:
        """Convergence and identifiability."""
        return check(self.fit)

    @cached_property
    def thinned(self) -> Fit:
        """The fit with at most about `BAND_DRAWS` posterior draws, evenly spaced."""
        posterior = self.fit.posterior
        wanted = max(1, BAND_DRAWS // posterior.sizes["chain"])
        step = max(1, posterior.sizes["draw"] // wanted)
        kept = {name: group.to_dataset() for name, group in self.fit.data.children.items() if name == "drift"}
        kept["posterior"] = posterior
        tree = xr.DataTree.from_dict({name: group.isel(draw=slice(None, None, step)) for name, group in kept.items()})
        tree.attrs = dict(self.fit.data.attrs)
        return replace(self.fit, data=tree)

    @cached_property
    def worths(self) -> dict[str, Worth]:
        """What recurrences are worth, by the recipes that differ in it; empty where the fit does not measure it."""
        return worths(self.fit)

    @cached_property
    def inputs(self) -> Inputs:
        """What the law was fitted to, row by row as the runs."""
        return inputs_of(self.fit.runs, injection_in=self.fit.spec.counted_in)

    @property
    def looped(self) -> bool:
        """Whether any run repeats a block: only such runs speak about recurrences."""
        return bool((self.fit.runs["recurrences"] > 1).any())

    @property
    def records_flops(self) -> bool:
        """Whether the run table knows what its runs cost."""
        return "flops" in self.fit.runs and bool(self.fit.runs["flops"].notna().any())

    @cached_property
    def _recommendations(self) -> dict[str, Allocation]:
        return {}

    def recommendation(self, recipe: str) -> Allocation:
        """What `bayeslaw allocate` says at the largest trained budget, all draws used."""
        if recipe not in self._recommendations:
            levels, _, aimed = self.levels(self.fit.runs)
            flops = float(levels.max()) if aimed else float(self.spent(self.fit.runs).max())
            self._recommendations[recipe] = self.allocation(self.fit, recipe, flops)
        return self._recommendations[recipe]

    def allocation(self, fit: Fit, recipe: str, flops: float) -> Allocation:
        """Recommendation for a budget from the draws of ``fit`` (all, or thinned)."""
        # Where each architecture has a law of its own, there are no others to choose from.
        known = whole_recurrences(self.runs_of(recipe)) if "architecture" in self.core_factors else None
        return allocate(
            fit, flops=flops, recurrences=known, recipe=recipe, family=self.family, flops_rule=self.flops_rule,
            location=self.location,
        )  # fmt: skip

    @cached_property
    def location(self) -> Location:
        """How far best sizes lie off the law's."""
        return location_of(self.fit)

    @cached_property
    def core_factors(self) -> set[str]:
        """What the law's parameters other than the map's differ by."""
        return factors_of(self.fit, [*CORE, *(["k"] if self.fit.law.coupled else [])])

    def rows_of(self, recipe: str) -> NDArray[np.bool_]:
        """Which runs the law of a recipe describes: its own, and the r = 1 runs that it shares with others."""
        runs = self.fit.runs
        owner, plain = runs["recipe"].astype(str), runs["recurrences"] == 1
        own = owner == recipe
        if "recipe" in self.core_factors:
            own, plain = owner.where(owner.isin(self.fit.recipes), self.fit.recipes[0]) == recipe, plain & False
        if "source" in self.core_factors:
            plain &= runs["source"].isin(runs["source"][own])
        if "architecture" in self.core_factors:
            plain &= owner == (recipe if (own & plain).any() else BASELINE)
        rows: NDArray[np.bool_] = (own | plain).to_numpy(dtype=bool)
        return rows

    def runs_of(self, recipe: str) -> pd.DataFrame:
        """The runs of `rows_of`."""
        return self.fit.runs[self.rows_of(recipe)]

    def spent(self, runs: pd.DataFrame) -> Array:
        """FLOPs of every run: as recorded, or 6 N D where the rule says so or nothing was recorded."""
        by_rule: Array = 6.0 * runs["n_unique"].to_numpy(dtype=float) * runs["tokens"].to_numpy(dtype=float)
        if self.flops_rule is not None or not self.records_flops:
            return by_rule
        recorded = runs["flops"].to_numpy(dtype=float)
        spent: Array = np.where(np.isfinite(recorded), recorded, by_rule)
        return spent

    def levels(self, runs: pd.DataFrame) -> tuple[Array, NDArray[np.int64], bool]:
        """Budgets to draw iso-FLOP curves at.

        Returns
        -------
        levels : ndarray, shape (level,)
            FLOPs, ascending.
        level : ndarray, shape (run,)
            The level next to each run.
        grid : bool
            Whether the runs were trained at these budgets; False where the levels only spread over their range.
        """
        spent = self.spent(runs)
        if self.flops_rule is None and "budget" in runs:
            aimed = runs["budget"].to_numpy(dtype=float)
            spent = np.where(np.isfinite(aimed), aimed, spent)
        logs = np.log(spent)
        rounded = np.round(logs, 2)  # one in a hundred: whole batches miss an aimed budget by less
        distinct = np.unique(rounded)
        grid = len(distinct) <= MOST_LEVELS
        if grid:
            levels = np.array([logs[rounded == value].mean() for value in distinct])
        else:
            levels = np.linspace(logs.min(), logs.max(), SPREAD_LEVELS)
        nearest = np.abs(logs[:, None] - levels[None, :]).argmin(axis=1)
        return np.exp(levels), nearest, grid


def whole_recurrences(runs: pd.DataFrame) -> list[int]:
    """The whole r of a run table, ascending: those that a family has members for."""
    return sorted({int(r) for r in runs["recurrences"] if r == int(r)})
