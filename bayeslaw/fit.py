"""`fit` samples the posterior of the law from a run table; `Fit` holds all of it and lives in one NetCDF file."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.coordinates import N_SHARED, from_local
from bayeslaw.errors import FitError, UsageError
from bayeslaw.files import written_whole
from bayeslaw.inputs import Inputs, inputs_of
from bayeslaw.law import PARAMETERS
from bayeslaw.likelihood import log_likelihood, natural_parameters, predictive
from bayeslaw.point import penalised
from bayeslaw.priors import DEFAULT, Priors, sample_prior
from bayeslaw.runs import RunTable, load_runs
from bayeslaw.schema import BASELINE, SCHEMA_VERSION

Array = NDArray[np.float64]

LAWS = ("additive",)
NOISES = ("iid",)
OUTLIERS = ("gaussian", "student")
PRIOR_DRAWS = 2000

GROUPS = (
    "posterior", "prior", "sample_stats", "log_likelihood", "posterior_predictive", "prior_predictive", "observed_data",
    "constant_data",
)  # fmt: skip
"""Groups of a fit's DataTree."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """All that decides a fit besides the runs.

    Parameters
    ----------
    law, noise, outliers, injection_in : str
        One of `LAWS`, `NOISES`, `OUTLIERS` and `bayeslaw.schema.INJECTION_IN`.
    recipe : str or None
        The one recipe that was asked for.
    draws, tune, chains, seed : int
        Kept and warm-up draws per chain, number of chains, random seed.
    target_accept : float
        Acceptance rate that the step size aims at. Below .95 tables of few noisy runs, whose posterior is far from
        normal in any coordinates, give divergences; tables of a hundred runs lose a third of their speed by it.
    """

    law: str = "additive"
    noise: str = "iid"
    outliers: str = "gaussian"
    injection_in: str = "once"
    recipe: str | None = None
    draws: int = 1000
    tune: int = 1000
    chains: int = 4
    target_accept: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("law", LAWS), ("noise", NOISES), ("outliers", OUTLIERS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} = {getattr(self, name)!r}", allowed=", ".join(allowed))
        for name, least in (("draws", 100), ("tune", 100), ("chains", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} = {getattr(self, name)}", allowed=f"{least} or more")
        if not 0.5 <= self.target_accept < 1:
            raise UsageError(f"target_accept = {self.target_accept}", allowed="from 0.5 to below 1")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A posterior with everything it rests on.

    Parameters
    ----------
    data : xarray.DataTree
        Groups ``posterior`` (E, A, B, alpha, beta, size, data, sigma over chain, draw; phi over chain, draw, recipe),
        ``prior``, ``sample_stats``, ``log_likelihood``, ``prior_predictive``, ``posterior_predictive``,
        ``observed_data`` and ``constant_data``.
    runs : pandas.DataFrame
        The run table that was fitted, one row a run.
    spec : Spec
    """

    data: xr.DataTree
    runs: pd.DataFrame
    spec: Spec

    @property
    def recipes(self) -> tuple[str, ...]:
        """Recipes with a phi of their own."""
        return tuple(str(name) for name in self.posterior["recipe"].to_numpy())

    @property
    def posterior(self) -> xr.Dataset:
        """The posterior group."""
        return self.data["posterior"].to_dataset()

    @property
    def attrs(self) -> dict[str, Any]:
        """Record of the fit: source, data_hash, centre, priors, versions, seconds, excluded, notes."""
        record: dict[str, Any] = json.loads(self.data.attrs["record"])
        return record

    def draws(self, recipe: str | None = None) -> dict[str, Array]:
        """Posterior draws of the law's parameters and of sigma, chains joined, each of shape (sample,).

        Parameters
        ----------
        recipe : str, optional
            Whose phi; may be left out when the fit has only one.
        """
        recipe = self.choose_recipe(recipe)
        chosen = self.posterior.sel(recipe=recipe)
        return {name: chosen[name].values.reshape(-1) for name in (*PARAMETERS, "sigma")}

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


def fit(
    source: RunTable | pd.DataFrame | str | Path,
    *,
    law: str = "additive",
    noise: str = "iid",
    outliers: str = "gaussian",
    injection_in: str = "once",
    recipe: str | None = None,
    priors: Priors = DEFAULT,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.95,
    seed: int = 0,
    allow_prior_dominated: bool = False,
    progress: Callable[[str], None] = lambda message: None,
) -> Fit:
    """Sample the posterior of the law.

    Parameters
    ----------
    source : RunTable, DataFrame, str or Path
        A run table, or what `bayeslaw.load_runs` reads one from.
    law, noise, outliers, injection_in, recipe, draws, tune, chains, target_accept, seed
        See `Spec`.
    priors : Priors
    allow_prior_dominated : bool
        Go on with fewer runs than free parameters; the prior then carries the answer.
    progress : callable
        Told in a few words what is being done.

    Returns
    -------
    Fit

    Raises
    ------
    FitError
        Fewer runs than free parameters.
    """
    spec = Spec(
        law=law, noise=noise, outliers=outliers, injection_in=injection_in, recipe=recipe,
        draws=draws, tune=tune, chains=chains, target_accept=target_accept, seed=seed,
    )  # fmt: skip
    table = source if isinstance(source, RunTable) else load_runs(source, recipe=recipe)
    inputs = inputs_of(table.runs, injection_in=injection_in)
    free = N_SHARED + len(inputs.recipes) + 1
    if len(inputs.loss) < free and not allow_prior_dominated:
        raise FitError(
            f"{len(inputs.loss)} runs for {free} free parameters",
            allowed=f"{free} runs or more",
            do="add runs, or pass --allow-prior-dominated to see what the prior makes of them",
        )

    seconds: dict[str, float] = {}
    last = time.perf_counter()

    def timed(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[stage] = now - last
        last = now

    progress("loading PyMC")
    from bayeslaw import model, sampling

    timed("import")
    whitening = penalised(inputs, priors)
    sampled = sampling.sample(
        model.build(inputs, priors, outliers=outliers, whitening=whitening),
        start={"theta": from_local(whitening.mean, xp=np), "sigma": whitening.sigma},
        draws=draws, tune=tune, chains=chains, target_accept=target_accept, seed=seed, progress=progress, timed=timed,
    )  # fmt: skip

    rng = np.random.default_rng(seed)
    posterior = natural_parameters(sampled["posterior"].to_dataset(), inputs)
    prior = natural_parameters(_prior_dataset(priors, inputs, rng), inputs)
    groups = {
        "posterior": posterior,
        "prior": prior,
        "sample_stats": sampled["sample_stats"].to_dataset()[["diverging", "depth", "n_steps", "energy", "step_size"]],
        "log_likelihood": log_likelihood(posterior, inputs, outliers),
        "posterior_predictive": predictive(posterior, inputs, outliers, rng),
        "prior_predictive": predictive(prior, inputs, outliers, rng),
        "observed_data": xr.Dataset({"log_loss": ("run", np.log(inputs.loss))}),
        "constant_data": xr.Dataset(
            {name: ("run", getattr(inputs, name)) for name in ("n_once", "n_rec", "recurrences", "tokens", "recipe")}
        ).rename(recipe="recipe_index"),
    }
    ids = table.runs["run_id"].astype(str).to_numpy(dtype=object)
    groups = {name: group.assign_coords(run=ids) if "run" in group.dims else group for name, group in groups.items()}
    record = {
        "schema_version": SCHEMA_VERSION,
        "source": table.source,
        "where": table.where,
        "data_hash": table.data_hash,
        "spec": asdict(spec),
        "priors": priors.as_dict(),
        "centre": dict(zip(("n_eff", "tokens"), inputs.centre, strict=True)),
        "versions": versions(),
        "seconds": seconds,
        "excluded": table.excluded.to_dict("records"),
        "notes": list(table.notes),
    }
    tree = xr.DataTree.from_dict(groups)
    tree.attrs["record"] = json.dumps(record)
    return Fit(data=tree, runs=table.runs, spec=spec)


def versions() -> dict[str, str]:
    """Versions of what computed a fit."""
    packages = ("bayeslaw", "numpy", "pandas", "xarray", "pymc", "pytensor", "nutpie", "numba", "arviz")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _prior_dataset(priors: Priors, inputs: Inputs, rng: np.random.Generator) -> xr.Dataset:
    drawn = sample_prior(priors, PRIOR_DRAWS, len(inputs.recipes), rng)
    dims = ("chain", "draw", "theta_dim")
    return xr.Dataset({name: (dims[: value.ndim + 1], value[None]) for name, value in drawn.items()})


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
