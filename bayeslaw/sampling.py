"""Runs the sampler on the model, and once more with more patience where the first sample is not good enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    import pymc as pm

MAX_R_HAT = 1.01
MIN_ESS = 400.0
"""Bulk and tail: 100 a chain at the usual four, the least that R-hat and quantiles can be trusted at."""

PATIENT_ACCEPT = 0.99
PATIENT_THIN = 5
"""The second try takes smaller steps and so many times the draws, of which it keeps every fifth."""


def sample(
    model: pm.Model,
    *,
    start: Mapping[str, Any],
    draws: int,
    tune: int,
    chains: int,
    target_accept: float,
    seed: int,
    progress: Callable[[str], None],
    timed: Callable[[str], None],
) -> xr.DataTree:
    """Sample the posterior with nutpie.

    Tables of few noisy runs have posteriors far from normal in any coordinates: a sample with divergences, or whose
    chains do not agree, is drawn again once, with smaller steps and thinned from more draws.

    Parameters
    ----------
    model : pymc.Model
    start : mapping
        Initial value of each free variable.
    draws, tune, chains, target_accept, seed
        As in `bayeslaw.fit.Spec`.
    progress : callable
        Told in a few words what is being done.
    timed : callable
        Told ``"compile"`` and ``"sample"`` when each has ended.

    Returns
    -------
    xarray.DataTree with ``posterior`` and ``sample_stats``, both over chain, draw.
    """
    import nutpie

    progress("compiling the model")
    compiled = nutpie.compile_pymc_model(model, initial_points=dict(start))
    timed("compile")

    def run(accept: float, thin: int) -> xr.DataTree:
        # In the background, so that Ctrl-C ends it at once instead of passing for a finished sample.
        sampler = nutpie.sample(
            compiled, draws=thin * draws, tune=tune, chains=chains, cores=min(chains, os.cpu_count() or 1),
            target_accept=accept, seed=seed, adaptation="low_rank",
            save_warmup=False, progress_bar=False, blocking=False,
        )  # fmt: skip
        try:
            tree: xr.DataTree = sampler.wait()
        except BaseException:
            sampler.cancel()
            raise
        return xr.DataTree.from_dict(
            {
                name: tree[name].to_dataset().isel(draw=slice(thin - 1, None, thin)).assign_coords(draw=range(draws))
                for name in ("posterior", "sample_stats")
            }
        )

    progress(f"sampling {chains} chains of {draws} draws")
    sampled = run(target_accept, 1)
    if trouble := _trouble(sampled):
        progress(f"{trouble}: sampling again, longer and with smaller steps")
        sampled = run(max(target_accept, PATIENT_ACCEPT), PATIENT_THIN)
    timed("sample")
    return sampled


def _trouble(sampled: xr.DataTree) -> str:
    """What is wrong with a sample, empty where nothing is."""
    import arviz_stats as azs

    if divergences := int(sampled["sample_stats"]["diverging"].sum()):
        return f"divergences ({divergences})"
    posterior = sampled["posterior"].to_dataset()
    least = min(float(azs.ess(posterior, method=method).to_array().min()) for method in ("bulk", "tail"))
    if least < MIN_ESS:
        return f"effective sample size {least:.0f}"
    r_hat = float(azs.rhat(posterior).to_array().max())
    return f"R-hat {r_hat:.3f}" if r_hat >= MAX_R_HAT else ""
