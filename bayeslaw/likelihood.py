"""The model's likelihood in numpy: parameters by name, pointwise log likelihood, draws of new runs.

Says the same as `bayeslaw.model`, without a compiler; a test holds the two together.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw import law
from bayeslaw.coordinates import N_SHARED, SHARED
from bayeslaw.inputs import Inputs
from bayeslaw.priors import STUDENT_NU


def natural_parameters(sampled: xr.Dataset, inputs: Inputs) -> xr.Dataset:
    """Named parameters of the law from draws of ``theta``; A and B for N and D counted one by one."""
    n0, d0 = inputs.centre
    theta = sampled["theta"].values
    dims = sampled["theta"].dims[:-1]
    shared = {name: (dims, np.exp(theta[..., i])) for i, name in enumerate(SHARED)}
    out = xr.Dataset(shared, coords={"recipe": np.array(inputs.recipes, dtype=object)})
    out["phi"] = ((*dims, "recipe"), theta[..., N_SHARED:])
    out["A"] = out["size"] * n0 ** out["alpha"]
    out["B"] = out["data"] * d0 ** out["beta"]
    others = [name for name in ("sigma", "phi_mean", "phi_spread") if name in sampled]
    return out.assign({name: (dims, sampled[name].values) for name in others})


def predicted_log_loss(parameters: xr.Dataset, inputs: Inputs) -> xr.DataArray:
    """Log of the law at every run for every draw, dims (chain, draw, run)."""
    run = {
        name: xr.DataArray(getattr(inputs, name), dims="run") for name in ("n_once", "n_rec", "recurrences", "tokens")
    }
    phi = parameters["phi"].isel(recipe=xr.DataArray(inputs.recipe, dims="run")).drop_vars("recipe")
    shared = {name: parameters[name] for name in ("E", "A", "B", "alpha", "beta")}
    predicted: xr.DataArray = np.log(law.loss(**run, phi=phi, **shared)).transpose("chain", "draw", "run")
    return predicted


def log_likelihood(posterior: xr.Dataset, inputs: Inputs, outliers: str) -> xr.Dataset:
    """Pointwise log likelihood of the log losses, the PyMC model's own, dims (chain, draw, run)."""
    from scipy import stats

    observed = xr.DataArray(np.log(inputs.loss), dims="run")
    error = ((observed - predicted_log_loss(posterior, inputs)) / posterior["sigma"]).transpose("chain", "draw", "run")
    density = stats.t(STUDENT_NU) if outliers == "student" else stats.norm()
    return xr.Dataset({"log_loss": error.copy(data=density.logpdf(error.values)) - np.log(posterior["sigma"])})


def predictive(parameters: xr.Dataset, inputs: Inputs, outliers: str, rng: np.random.Generator) -> xr.Dataset:
    """Log loss of a new run at every design, for every draw, dims (chain, draw, run)."""
    mean = predicted_log_loss(parameters, inputs)
    return xr.Dataset({"log_loss": mean + parameters["sigma"] * mean.copy(data=errors(outliers, mean.shape, rng))})


def errors(outliers: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Draws of the standard error of log loss, to be scaled by sigma."""
    return rng.standard_t(STUDENT_NU, shape) if outliers == "student" else rng.standard_normal(shape)
