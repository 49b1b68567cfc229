"""The model in numpy: parameters by name, prior draws, pointwise log likelihood, draws of new runs.

Says the same as `bayeslaw.model`, without a compiler; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.densities import HALF_NORMAL, NORMAL, POOLED, student_given_others
from bayeslaw.inputs import Inputs
from bayeslaw.priors import Priors
from bayeslaw.schema import STUDENT_NU
from bayeslaw.structure import Structure

Array = NDArray[np.float64]


def sample_prior(structure: Structure, priors: Priors, draws: int, rng: np.random.Generator) -> Array:
    """Prior draws of the vector, shape (draws, p)."""
    mu, sd = structure.prior(priors)
    theta = np.zeros((draws, structure.size))
    kinds = structure.kinds
    for j in np.argsort(kinds[:, 0] == POOLED, kind="stable"):  # means and spreads before what they pool
        kind, mean, spread = kinds[j]
        if kind == NORMAL:
            theta[:, j] = rng.normal(mu[j], sd[j], draws)
        elif kind == HALF_NORMAL:
            theta[:, j] = np.log(np.abs(rng.normal(0.0, sd[j], draws)))
        else:
            theta[:, j] = rng.normal(theta[:, mean] if mean >= 0 else 0.0, np.exp(theta[:, spread]))
    return theta


def named(theta: Array, structure: Structure, inputs: Inputs) -> xr.Dataset:
    """Parameters of the law and of the errors by name, from draws of the vector.

    Parameters
    ----------
    theta : ndarray, shape (chain, draw, p)

    Returns
    -------
    xarray.Dataset over chain, draw and, where a parameter differs, recipe, source or architecture: E, A, B, alpha,
    beta, k when coupled, the map's own; size and data, the loss that either term alone would owe at the centre; the
    pooled ones' NAME_mean and NAME_spread; sigma, sigma_slope, tau_run, tau_cell.
    """
    dims = ("chain", "draw")
    out = xr.Dataset()
    for block in structure.blocks:
        values = theta[..., block.slice]
        values = np.exp(values) if block.log else values
        if block.factor is None:
            out[block.name] = (dims, values[..., 0])
        else:
            out = out.assign_coords({block.factor: np.array(block.levels, dtype=object)})
            out[block.name] = ((*dims, block.factor), values)
    k = out.get("k", 1.0)
    n0, d0 = inputs.centre
    out["alpha"], out["beta"] = out["alpha"] / k, out["beta"] / k
    with np.errstate(over="ignore"):
        out["A"] = out["size"] ** (1 / k) * n0 ** out["alpha"]
        out["B"] = out["data"] ** (1 / k) * d0 ** out["beta"]
    positive_means = {block.mean for block in structure.blocks if block.log}
    for name, at in structure.hyper.items():
        log = name in positive_means or name.endswith("_spread")
        out[name] = (dims, np.exp(theta[..., at]) if log else theta[..., at])
    for name, at in structure.scales.items():
        out[name] = (dims, theta[..., at] if name == "sigma_slope" else np.exp(theta[..., at]))
    return out


def of_runs(parameters: xr.Dataset, structure: Structure, inputs: Inputs) -> dict[str, Any]:
    """The law's parameters for every run, each over chain, draw and, where it differs, run."""
    out: dict[str, Any] = {}
    for name in structure.law.parameters:
        value = parameters[name]
        for factor in (name for name in inputs.factors if name in value.dims):
            index = xr.DataArray(inputs.factors[factor].index, dims="run")
            value = value.isel({factor: index}).drop_vars(factor)
        out[name] = value
    return out


def predicted_log_loss(parameters: xr.Dataset, structure: Structure, inputs: Inputs) -> xr.DataArray:
    """Log of the law at every run for every draw, dims (chain, draw, run)."""
    n_once, n_rec, r, tokens = (
        xr.DataArray(getattr(inputs, name), dims="run") for name in ("n_once", "n_rec", "recurrences", "tokens")
    )
    loss = structure.law.loss(n_once, n_rec, r, tokens, of_runs(parameters, structure, inputs))
    predicted: xr.DataArray = np.log(loss).transpose("chain", "draw", "run")
    return predicted


def error_variance(parameters: xr.Dataset, structure: Structure, inputs: Inputs) -> Array:
    """Error variance of log loss (Student: squared scale) of every run, known measurement error included.

    Returns
    -------
    ndarray, shape (chain, draw, run)
    """
    log_sigma = np.log(parameters["sigma"].values)[..., None]
    if "sigma_slope" in parameters:
        log_flops = np.log(inputs.flops)
        log_sigma = log_sigma + parameters["sigma_slope"].values[..., None] * (log_flops - log_flops.mean())
    variance: Array = np.exp(2 * log_sigma) + structure.known_variance(inputs)
    return variance


def log_likelihood(parameters: xr.Dataset, structure: Structure, inputs: Inputs) -> xr.Dataset:
    """Pointwise log likelihood of the log losses, dims (chain, draw, run).

    Where groups share an effect it is that of each run given the others, p(y_i | y_-i, theta), which is what
    leave-one-out needs of a likelihood that does not factorise.
    """
    mean = predicted_log_loss(parameters, structure, inputs)
    z = inputs.log_loss - mean.values
    v = error_variance(parameters, structure, inputs)
    if structure.effects:
        tau = [parameters[f"tau_{effect}"].values for effect in structure.effects]
        values = _given_the_others(z, v, tau, structure, inputs)
    else:
        values = log_density(z, v, structure.outliers)
    return xr.Dataset({"log_loss": mean.copy(data=values)})


def log_density(z: Array, v: Array, outliers: str) -> Array:
    """Log density of residuals with these error variances (Student: squared scales)."""
    from scipy import stats

    density = stats.t(STUDENT_NU) if outliers == "student" else stats.norm()
    values: Array = density.logpdf(z / np.sqrt(v)) - 0.5 * np.log(v)
    return values


def _given_the_others(z: Array, v: Array, tau: list[Array], structure: Structure, inputs: Inputs) -> Array:
    """Log density of each residual given those of the others, shape (chain, draw, run); ``tau`` over chain, draw."""
    out = np.empty_like(z)
    top = getattr(inputs, structure.effects[-1]).index
    for group in range(top.max() + 1):
        members = np.flatnonzero(top == group)
        z_group, v_group = (np.ascontiguousarray(values[..., members]) for values in (z, v))
        if structure.outliers == "student":
            flat = (-1, len(members))
            given = student_given_others(z_group.reshape(flat), v_group.reshape(flat), STUDENT_NU, tau[0].ravel())
            out[..., members] = given.reshape(z_group.shape)
            continue
        covariance = v_group[..., None] * np.eye(len(members)) + tau[-1][..., None, None] ** 2
        if len(tau) > 1:
            lower = inputs.run.index[members]
            covariance += tau[0][..., None, None] ** 2 * (lower[:, None] == lower[None, :])
        precision = np.linalg.inv(covariance)
        spread = 1 / np.diagonal(precision, axis1=-2, axis2=-1)
        out[..., members] = log_density(spread * (precision @ z_group[..., None])[..., 0], spread, "gaussian")
    return out


def predictive(parameters: xr.Dataset, structure: Structure, inputs: Inputs, rng: np.random.Generator) -> xr.Dataset:
    """Log loss of new runs at every design, for every draw, dims (chain, draw, run); new effects of cells and runs."""
    mean = predicted_log_loss(parameters, structure, inputs)
    values = mean.values + new_effects(parameters, structure, inputs, rng)
    values += np.sqrt(error_variance(parameters, structure, inputs)) * errors(structure.outliers, mean.shape, rng)
    return xr.Dataset({"log_loss": mean.copy(data=values)})


def new_effects(parameters: xr.Dataset, structure: Structure, inputs: Inputs, rng: np.random.Generator) -> Array:
    """Effects of new cells and training runs on log loss, shape (chain, draw, run)."""
    sizes = parameters.sizes
    values = np.zeros((sizes["chain"], sizes["draw"], len(inputs.loss)))
    for effect in structure.effects:
        index = getattr(inputs, effect).index
        drawn = rng.standard_normal((*values.shape[:2], index.max() + 1))
        values += (parameters[f"tau_{effect}"].values[..., None] * drawn)[..., index]
    return values


def new_run_errors(draws: Mapping[str, Array], outliers: str, log_flops: float, rng: np.random.Generator) -> Array:
    """Error on log loss of one new run in a cell of its own for every draw, shape (sample,).

    Parameters
    ----------
    draws : mapping
        sigma and, where the fit has them, sigma_slope, tau_run and tau_cell, each of shape (sample,).
    outliers : str
    log_flops : float
        log of the run's FLOPs over the fit's central ones.
    """
    scale = draws["sigma"] * np.exp(draws.get("sigma_slope", np.zeros(1)) * log_flops)
    total = scale * errors(outliers, draws["sigma"].shape, rng)
    for name in ("tau_run", "tau_cell"):
        if name in draws:
            total = total + draws[name] * rng.standard_normal(total.shape)
    return total


def errors(outliers: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draws of the standard error of log loss, to be scaled by sigma."""
    return rng.standard_t(STUDENT_NU, shape) if outliers == "student" else rng.standard_normal(shape)
