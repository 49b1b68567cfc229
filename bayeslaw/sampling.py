"""Runs the sampler on the model, and once more with more patience where the first sample is not good enough."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw import laplace, model
from bayeslaw.coordinates import natural_draws
from bayeslaw.inputs import Inputs
from bayeslaw.priors import Priors
from bayeslaw.spec import MAX_R_HAT, MIN_ESS, Spec
from bayeslaw.structure import Structure

Array = NDArray[np.float64]

PATIENT_ACCEPT = 0.99
PATIENT_THIN = 5
"""The second try takes smaller steps and so many times the draws, of which it keeps every fifth."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a sample has to be, not to be drawn again.

    Parameters
    ----------
    ess : float
        Least effective sample size, bulk and tail.
    r_hat : float
        R-hat stays below it.
    thin : int
        The second try's draws for each that is kept.
    divergences : int
        Most that are put up with.
    """

    ess: float = MIN_ESS
    r_hat: float = MAX_R_HAT
    thin: int = PATIENT_THIN
    divergences: int = 0


@dataclass(frozen=True, eq=False)
class Compiled:
    """A model of one structure, compiled once and fitted to any number of run tables.

    Parameters
    ----------
    structure : Structure
    program : nutpie compiled model
    """

    structure: Structure
    program: Any

    @cached_property
    def _function(self) -> Callable[..., int]:
        function: Callable[..., int] = self.program.compiled_logp_func.ctypes
        return function

    def log_density(self, packed: Array) -> Callable[[Array], tuple[float, Array]]:
        """Log posterior of z and its gradient for packed data, without the interpreter of the graph."""
        program = self.program.with_data(packed=packed)
        pointer = ctypes.POINTER(ctypes.c_double)

        def density(z: Array) -> tuple[float, Array]:
            z = np.ascontiguousarray(z, dtype=float)
            gradient, value = np.empty_like(z), np.empty(1)
            failed = self._function(
                len(z), z.ctypes.data_as(pointer), gradient.ctypes.data_as(pointer), value.ctypes.data_as(pointer),
                program.user_data.ctypes.data,
            )  # fmt: skip
            return (-np.inf if failed else float(value[0])), gradient

        return density


_compiled: dict[Any, Compiled] = {}


def compiled(structure: Structure, packed: Array) -> Compiled:
    """The compiled model of a structure; compiled only when this process has not had one like it."""
    if structure.signature not in _compiled:
        with _without_collection():
            import nutpie

            # Every chain starts at z = 0, the mode, with the sampler's jitter.
            start = {"z": np.zeros(structure.size)}
            program = nutpie.compile_pymc_model(model.build(structure, packed), initial_points=start)
        _compiled[structure.signature] = Compiled(structure, program)
    return _compiled[structure.signature]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Compiling makes millions of objects that live: looking for garbage among them takes a fifth of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def sample(
    structure: Structure,
    inputs: Inputs,
    priors: Priors,
    spec: Spec,
    *,
    progress: Callable[[str], None],
    timed: Callable[[str], None],
    demand: Demand = Demand(),
) -> xr.DataTree:
    """Sample the posterior with nutpie.

    Tables of few noisy runs have posteriors far from normal in any coordinates: a sample with divergences, or whose
    chains do not agree, is drawn again once, with smaller steps and thinned from more draws.

    Parameters
    ----------
    structure, inputs, priors, spec
        What is fitted, to what.
    progress : callable
        Told in a few words what is being done.
    timed : callable
        Told ``"compile"`` and ``"sample"`` when each has ended.
    demand : Demand
        When to draw again; the default is what a fit that people read has to be.

    Returns
    -------
    xarray.DataTree with ``posterior`` (theta over chain, draw, unknown) and ``sample_stats``.
    """
    first = laplace.start(structure, inputs, priors)
    packed = model.pack(structure, inputs, priors, first)
    progress("compiling the model")
    ready = compiled(structure, packed)
    timed("compile")
    whitening = laplace.refine(first, ready.log_density(packed))
    packed = model.pack(structure, inputs, priors, whitening)

    progress(f"sampling {spec.chains} chains of {spec.draws} draws")
    sampled = _run(ready, packed, spec, spec.target_accept, 1)
    if trouble := _trouble(sampled, demand):
        progress(f"{trouble}: sampling again, longer and with smaller steps")
        sampled = _run(ready, packed, spec, max(spec.target_accept, PATIENT_ACCEPT), demand.thin)
    timed("sample")
    return sampled


def _run(ready: Compiled, packed: Array, spec: Spec, accept: float, thin: int) -> xr.DataTree:
    import nutpie

    program = ready.program.with_data(packed=packed)

    # In the background, so that Ctrl-C ends it at once instead of passing for a finished sample.
    sampler = nutpie.sample(
        program, draws=thin * spec.draws, tune=spec.tune, chains=spec.chains,
        cores=min(spec.chains, os.cpu_count() or 1), target_accept=accept, seed=spec.seed, adaptation="low_rank",
        save_warmup=False, progress_bar=False, blocking=False,
    )  # fmt: skip
    try:
        tree: xr.DataTree = sampler.wait()
    except BaseException:
        sampler.cancel()
        raise
    kept = slice(thin - 1, None, thin)
    z = np.ascontiguousarray(tree["posterior"].to_dataset()["z"].values[:, kept])
    layout = ready.structure.layout
    theta = natural_draws(z.reshape(-1, z.shape[-1]), packed, layout.cores, layout.reference).reshape(z.shape)
    stats = tree["sample_stats"].to_dataset().isel(draw=kept)
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"theta": (("chain", "draw", "unknown"), theta)}),
            "sample_stats": stats.assign_coords(draw=range(stats.sizes["draw"])),
        }
    )


def _trouble(sampled: xr.DataTree, demand: Demand = Demand()) -> str:
    """What is wrong with a sample, empty where nothing is."""
    import arviz_stats as azs

    if (divergences := int(sampled["sample_stats"]["diverging"].sum())) > demand.divergences:
        return f"divergences ({divergences})"
    posterior = sampled["posterior"].to_dataset()
    least = min(float(azs.ess(posterior, method=method).to_array().min()) for method in ("bulk", "tail"))
    if least < demand.ess:
        return f"effective sample size {least:.0f}"
    r_hat = float(azs.rhat(posterior).to_array().max())
    return f"R-hat {r_hat:.3f}" if r_hat >= demand.r_hat else ""
