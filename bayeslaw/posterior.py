"""A posterior with everything it rests on: `Fit`, which lives in one NetCDF file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.deviation import PREFIX, Deviating, fresh
from bayeslaw.drift import DIRECTIONS, drifted, slope_of, steps_beyond
from bayeslaw.errors import DecisionError, FitError, UsageError
from bayeslaw.files import written_whole
from bayeslaw.laws import Law, make_law
from bayeslaw.schema import BASELINE, SCHEMA_VERSION
from bayeslaw.spec import Spec

Array = NDArray[np.float64]

ERROR_NAMES = ("sigma", "sigma_slope", "tau_run", "tau_cell")

GROUPS = (
    "posterior", "prior", "sample_stats", "log_likelihood", "posterior_predictive", "prior_predictive", "observed_data",
    "constant_data",
)  # fmt: skip
"""Groups of a fit's DataTree."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A posterior with everything it rests on.

    Parameters
    ----------
    data : xarray.DataTree
        Groups ``posterior`` (see `bayeslaw.likelihood.named`), ``prior``, ``sample_stats``, ``log_likelihood``,
        ``prior_predictive``, ``posterior_predictive``, ``observed_data`` and ``constant_data``; ``drift`` where there
        is one (see `bayeslaw.drift`).
    runs : pandas.DataFrame
        The run table that was fitted, one row a run.
    spec : Spec
    """

    data: xr.DataTree
    runs: pd.DataFrame
    spec: Spec

    @property
    def recipes(self) -> tuple[str, ...]:
        """Recipes of the runs: those with looped runs, where there are any."""
        return tuple(self.attrs["recipes"])

    @property
    def posterior(self) -> xr.Dataset:
        """The posterior group."""
        return self.data["posterior"].to_dataset()

    @property
    def attrs(self) -> dict[str, Any]:
        """Record of the fit: source, data_hash, centre, drift, priors, versions, seconds, excluded, notes."""
        record: dict[str, Any] = json.loads(self.data.attrs["record"])
        return record

    @cached_property
    def law(self) -> Law:
        """The law that was fitted."""
        return make_law(
            self.spec.law, self.spec.map, levels=tuple(self.attrs["map_levels"]), deviation=self.spec.deviation
        )

    @property
    def convention(self) -> dict[str, Any]:
        """What N_rec counts, as `bayeslaw.family.Family.split` takes it."""
        return {"injection_in": self.spec.counted_in, "trained": tuple(self.runs["recurrences"].unique())}

    def draws(
        self, recipe: str | None = None, *, recurrences: float = 1, names: Iterable[str] | None = None
    ) -> dict[str, Array]:
        """Posterior draws of the law's parameters and the error scales, chains joined, each of shape (sample,).

        Parameters
        ----------
        recipe : str, optional
            Whose parameters; may be left out when the fit has only one.
        recurrences : float
            Of which architecture, where parameters differ by it.
            An r that was not trained has a deviation of its own, ``deviation_<r>``, where r deviate from the map:
            drawn around what lies between the trained ones, as they spread, the same at every call; see `law_at`.
        names : iterable of str, optional
            Only these.

        Raises
        ------
        UsageError
            The recipe, or the architecture, is not in this fit.
        DecisionError
            The law says nothing of that r, see `law_at`.
        """
        recipe = self.choose_recipe(recipe)
        posterior = self.posterior
        law = self.law if names else self.law_at(recurrences)
        names = list(names or (*law.parameters, *(name for name in ERROR_NAMES if name in posterior)))
        out = {}
        for name in names:
            if name not in posterior and isinstance(law.map, Deviating) and name == f"{PREFIX}{recurrences:g}":
                out[name] = self._fresh_deviation(recipe, recurrences)
                continue
            chosen = posterior[name]
            if "recipe" in chosen.dims:
                chosen = chosen.sel(recipe=recipe)
            if "source" in chosen.dims:
                chosen = chosen.sel(source=self._source(recipe))
            if "architecture" in chosen.dims:
                chosen = chosen.sel(architecture=self._architecture(recipe, recurrences))
            out[name] = chosen.values.reshape(-1)
        return out

    def recipe_at(self, recipe: str, recurrences: float) -> str:
        """Whose parameters hold at an r: a recipe without runs at r = 1 shares the first recipe's there."""
        runs = self.runs[self.runs["recurrences"] == 1]
        return recipe if recurrences != 1 or (runs["recipe"] == recipe).any() else self.recipes[0]

    def law_at(self, recurrences: float) -> Law:
        """The law for an r: the fitted one, with a deviation more where no run trained that r.

        Raises
        ------
        UsageError
            r is below 1.
        DecisionError
            The free map has no exponent for that r: between the trained ones log g is linear in log r, beyond the last
            one nothing says how it goes on.
        """
        if not 1 <= recurrences < np.inf:
            raise UsageError(f"recurrences = {recurrences:g}", allowed="a finite number, 1 or more")
        own = self.law.map
        if own.name == "free" and recurrences > max((1.0, *own.levels)):
            raise DecisionError(
                f"r = {recurrences:g} was never trained, and the free map has an exponent only for each r that was",
                allowed=f"r up to {max((1.0, *own.levels)):g}",
                do="fit with another map, such as --map power, which goes on beyond the largest r",
            )
        if isinstance(own, Deviating) and not own.knows(recurrences):
            return replace(self.law, map=own.with_level(recurrences))
        return self.law

    def drift(
        self, recurrences: float, flops: float | Array, tokens_per_parameter: float | Array | None = None
    ) -> Array:
        """Draws of how far log loss may be off the law outside the trained runs, shape (sample,).

        0 inside them, and for a fit without drift; see `bayeslaw.drift`.

        Parameters
        ----------
        recurrences : float
        flops : float or ndarray, shape (sample,)
            Training FLOPs.
        tokens_per_parameter : float or ndarray, shape (sample,), optional
            D / n_unique; without it only the budget counts. The trained range is that of the runs of this r, or of all
            where there are none.
        """
        if self._drift is None:
            return np.zeros(self.posterior.sizes["chain"] * self.posterior.sizes["draw"])
        data, edge = self._drift
        total = drifted(data, edge, recurrences, flops)
        beyond = [steps_beyond(flops, self.range_of("flops")[0], np.inf)[0]]
        if tokens_per_parameter is not None:
            low, high = self.range_of("tokens_per_parameter", recurrences)
            beyond += reversed(steps_beyond(tokens_per_parameter, low, high))
        for direction, steps in zip(DIRECTIONS[1:], beyond, strict=False):
            if np.any(steps > 0):
                total = total + steps * slope_of(data, direction, recurrences)
        return total

    def range_of(self, name: str, recurrences: float | None = None) -> tuple[float, float]:
        """Least and greatest value that was trained.

        Parameters
        ----------
        name : str
            flops (6 N D where the runs do not say), tokens_per_parameter, n_unique, tokens or recurrences.
        recurrences : float, optional
            Of the runs of this r, where there are any; default all runs.
        """
        return self._ranges.get((name, recurrences), self._ranges[name, None])

    @cached_property
    def _ranges(self) -> dict[tuple[str, float | None], tuple[float, float]]:
        """What `range_of` gives, by name and r."""
        runs = self.runs[["recurrences", "n_unique", "tokens"]].astype(float)
        plain = 6 * runs["n_unique"] * runs["tokens"]
        runs["flops"] = self.runs["flops"].fillna(plain) if "flops" in self.runs else plain
        runs["tokens_per_parameter"] = runs["tokens"] / runs["n_unique"]
        each = runs["recurrences"]
        parts: dict[float | None, pd.DataFrame] = {None: runs}
        parts |= {float(r): runs[each == r] for r in each.unique()}
        return {
            (str(name), r): (float(part[name].min()), float(part[name].max()))
            for r, part in parts.items()
            for name in runs
        }

    @cached_property
    def _drift(self) -> tuple[xr.Dataset, float] | None:
        """Draws of the drift, and the largest trained budget."""
        if "drift" not in self.data.children:
            return None
        return self.data["drift"].to_dataset(), float(self.attrs["drift"]["edge"])

    def recurrences_of(self, recipe: str) -> tuple[float, ...]:
        """The r that a decision may choose from: the trained ones, of the recipe alone where architectures differ."""
        runs = self.runs
        if "architecture" in self.posterior.dims:
            runs = runs[(runs["recipe"] == recipe) | (runs["recurrences"] == 1)]
        return tuple(sorted(float(r) for r in runs["recurrences"].unique()))

    def _fresh_deviation(self, recipe: str, recurrences: float) -> Array:
        """Deviation of an r that no run trained."""
        known = self.law.map
        assert isinstance(known, Deviating)
        spread = f"{PREFIX}spread"
        found = self.draws(recipe, names=[*(f"{PREFIX}{r:g}" for r in known.levels), spread])
        scale = found.pop(spread)
        return fresh(known, recurrences, list(found.values()), scale, recipe)

    def _architecture(self, recipe: str, recurrences: float) -> str:
        """The architecture of a recipe and r; the baseline's serves every recipe at r = 1."""
        levels = [str(name) for name in self.posterior["architecture"].to_numpy()]
        names = [f"{name}/r={recurrences:g}" for name in (recipe, BASELINE) if recurrences == 1 or name == recipe]
        found = next((name for name in names if name in levels), None)
        if found is None:
            raise UsageError(
                f"r = {recurrences:g} of {recipe} has no law of its own in this fit, and architectures differ in it",
                allowed=", ".join(levels),
                do="fit with --law additive or coupled, whose recurrence map joins the architectures",
            )
        return found

    def _source(self, recipe: str) -> str:
        """The one data source of a recipe."""
        sources = sorted(set(self.runs.loc[self.runs["recipe"] == recipe, "source"].astype(str)))
        if len(sources) != 1:
            raise UsageError(
                f"parameters of this fit differ by source, and the runs of {recipe} come from {', '.join(sources)}",
                do="fit one source with --where",
            )
        return sources[0]

    def choose_recipe(self, recipe: str | None) -> str:
        """The named recipe, or the only one, or the baseline; a `UsageError` where there is no such recipe."""
        if recipe is None:
            if len(self.recipes) > 1 and BASELINE not in self.recipes:
                raise UsageError("this fit holds several recipes", allowed=", ".join(self.recipes), do="add --recipe")
            return BASELINE if BASELINE in self.recipes else self.recipes[0]
        if recipe not in self.recipes:
            raise UsageError(f"recipe {recipe!r} is not in this fit", allowed=", ".join(self.recipes))
        return recipe

    def save(self, path: str | Path) -> None:
        """Write the NetCDF file, whole or not at all.

        Raises
        ------
        FitError
            The file cannot be written.
        """
        tree = self.data.assign({"run_table": xr.DataTree(_as_dataset(self.runs))})
        with written_whole(path, error=FitError) as partial:
            tree.to_netcdf(partial, engine="h5netcdf")

    @classmethod
    def load(cls, path: str | Path) -> Fit:
        """Read a file that `save` wrote.

        Raises
        ------
        FitError
            The file is missing, or is no fit of a version that this one can read.
        """
        advice = "make one with `bayeslaw fit SOURCE --out fit.nc`"
        if not Path(path).is_file():
            raise FitError(f"no fit file at {path}", do=advice)
        try:
            with xr.open_datatree(path, engine="h5netcdf") as opened:
                tree = opened.load()
            record = json.loads(tree.attrs["record"])
            runs = _as_frame(tree["run_table"].to_dataset())
            spec = Spec(**record["spec"])
            if not {"recipes", "map_levels"} <= set(record):
                raise ValueError("written by an earlier version")
            missing = [name for name in GROUPS if name not in tree.children]
            if missing:
                raise ValueError(f"no group {', '.join(missing)}")
        except Exception as error:  # whatever the HDF5 library makes of a damaged file
            raise FitError(f"{path} is not a fit ({type(error).__name__}: {error})", do=advice) from error
        if record["schema_version"] != SCHEMA_VERSION:
            raise FitError(
                f"{path} has schema version {record['schema_version']}", allowed=str(SCHEMA_VERSION), do=advice
            )
        return cls(data=tree.drop_nodes("run_table"), runs=runs, spec=spec)


def _as_dataset(frame: pd.DataFrame) -> xr.Dataset:
    """The frame as NetCDF can hold it: numbers as they are, texts as objects, missing texts empty."""
    columns: Mapping[str, Any] = {
        str(name): column.to_numpy()
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "if"
        else column.fillna("").astype(str).to_numpy(dtype=object)
        for name, column in frame.items()
    }
    return xr.Dataset({name: ("row", values) for name, values in columns.items()})


def _as_frame(dataset: xr.Dataset) -> pd.DataFrame:
    """The frame of `_as_dataset`."""
    frame = pd.DataFrame({str(name): variable.values for name, variable in dataset.items()})
    for name in frame.select_dtypes(exclude="number"):
        frame[name] = frame[name].astype("str").mask(frame[name] == "")
    return frame
