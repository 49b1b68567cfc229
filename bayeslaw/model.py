"""The PyMC models of log loss: as it is stated, and as it is sampled.

`stated` has every parameter under its name, effects of cells and training runs explicit, and derives everything by PyMC
itself. `build` is the same posterior for the sampler: one vector in whitened local coordinates, the effects integrated
out, runs and priors as data, so that a compiled model is used again for other runs. Tests hold the two together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from bayeslaw import law
from bayeslaw.inputs import Inputs
from bayeslaw.laplace import Whitening
from bayeslaw.ops import LogDensity, Natural
from bayeslaw.priors import HalfNormal, Priors
from bayeslaw.schema import STUDENT_NU
from bayeslaw.structure import Block, Structure

Array = NDArray[np.float64]


def pack(structure: Structure, inputs: Inputs, priors: Priors, whitening: Whitening) -> Array:
    """Everything that may change without compiling again, in one vector: a compiled model's only data.

    (One, because every further shared variable costs the sampler's compiler most of a second.)
    """
    mu, sd = structure.prior(priors)
    return np.concatenate([whitening.mean, whitening.chol.ravel(), mu, sd, structure.table(inputs).ravel()])


def build(structure: Structure, packed: Array) -> pm.Model:
    """The model as it is sampled.

    Parameters
    ----------
    structure : Structure
    packed : ndarray
        As `pack` gives it.

    Returns
    -------
    pymc.Model
        Free variable ``z``, whitened local coordinates of the vector (`bayeslaw.coordinates.natural_draws` goes back).
        Data ``packed``.
    """
    with pm.Model() as model:
        data = pm.Data("packed", packed)
        z = pm.Flat("z", shape=structure.size)
        theta, log_volume = Natural()(z, data, structure.layout.cores, structure.layout.reference)
        log_density, *_ = LogDensity(structure.errors)(
            theta, structure.log_worth(theta, xp=pt), data, structure.kinds, structure.cores, structure.scale_positions
        )
        pm.Potential("log_density", log_density + log_volume)
    return model


def stated(
    structure: Structure, inputs: Inputs, priors: Priors, *, direct: bool = False, integrated: bool = False
) -> pm.Model:
    """The model as it is stated: every parameter a variable of its own, group effects explicit.

    Parameters
    ----------
    structure, inputs, priors
    direct : bool
        Sample A, B, alpha and beta themselves, as the law is written, in place of the terms at the centre and the
        exponents of single terms; the priors stay the same.
    integrated : bool
        Leave out the effects of a single level of groups and integrate over them (normal errors).

    Returns
    -------
    pymc.Model
        Free variables E, size and data (A and B when ``direct``), alpha and beta (for the coupled law k times the law's
        own), k, the map's parameters, NAME_mean and NAME_spread of pooled ones (the mean of the logarithm of a positive
        one), sigma, sigma_slope, tau_run, tau_cell, run_effect and cell_effect (in units of their tau).
    """
    n0, d0 = inputs.centre
    levels = {block.factor: block.levels for block in structure.blocks if block.factor}
    effects = {effect: getattr(inputs, effect) for effect in structure.effects}
    coords = {**levels, **{name: grouping.levels for name, grouping in effects.items()}}
    with pm.Model(coords=coords) as model:
        value = {block.name: _variable(block, priors, model, flat=direct) for block in structure.blocks}
        k = value.get("k", 1.0)
        if direct:
            for name, exponent, unit in (("size", "alpha", n0), ("data", "beta", d0)):
                own, slope = value[name], value[exponent]
                log_term, value[exponent] = k * (pt.log(own) - slope * np.log(unit)), k * slope
                value[name] = pt.exp(log_term)
                # The priors' densities, moved to A and alpha: d log term / d log A is k.
                for moved, log_value in ((name, log_term), (exponent, pt.log(value[exponent]))):
                    prior = priors.of(moved)
                    pm.Potential(f"prior_{moved}", pm.logp(pm.Normal.dist(prior.mu, prior.sd), log_value).sum())
                pm.Potential(f"volume_{name}", (pt.log(k) - pt.log(own) - pt.log(slope)).sum())
        of_run = {
            block.name: value[block.name][inputs.factors[block.factor].index] if block.factor else value[block.name]
            for block in structure.blocks
        }
        k = of_run.get("k", 1.0)
        r = inputs.recurrences
        own = [of_run[name] for name in structure.law.map.parameters]
        worth = pt.exp(structure.law.map.log_worth(r, own, xp=pt if own else np))
        n_eff = law.effective_parameters(structure.law.map.once(inputs.n_once, r), inputs.n_rec, worth)
        mean = pt.log(
            law.loss(
                n_eff / n0, inputs.tokens / d0, E=of_run["E"], A=of_run["size"] ** (1 / k), B=of_run["data"] ** (1 / k),
                alpha=of_run["alpha"] / k, beta=of_run["beta"] / k, k=k,
            )
        )  # fmt: skip
        tau = {name: pm.HalfNormal(f"tau_{name}", priors.tau.scale) for name in effects}
        if not integrated:
            for name, grouping in effects.items():
                mean += tau[name] * pm.Normal(f"{name}_effect", dims=name)[grouping.index]
        sigma: Any = pm.HalfNormal("sigma", priors.sigma.scale)
        table = structure.columns(inputs)
        if "sigma_slope" in structure.scales:
            slope = pm.Normal("sigma_slope", priors.sigma_slope.mu, priors.sigma_slope.sd)
            sigma = sigma * pt.exp(slope * table["log_flops"])
        scale = pt.sqrt(sigma**2 + table["known"])
        if integrated:
            ((name, grouping),) = effects.items()
            members = np.eye(len(grouping.levels))[grouping.index]
            z = inputs.log_loss - mean
            weight, pull = members.T @ (1 / scale**2), members.T @ (z / scale**2)
            grown = 1 + tau[name] ** 2 * weight
            density = pm.logp(pm.Normal.dist(mean, scale), inputs.log_loss).sum()
            pm.Potential("log_loss", density + 0.5 * (tau[name] ** 2 * pull**2 / grown - pt.log(grown)).sum())
        elif structure.outliers == "student":
            pm.StudentT("log_loss", nu=STUDENT_NU, mu=mean, sigma=scale, observed=inputs.log_loss)
        else:
            pm.Normal("log_loss", mean, scale, observed=inputs.log_loss)
    return model


def _variable(block: Block, priors: Priors, model: pm.Model, *, flat: bool) -> Any:
    """The variable of one parameter; ``flat`` leaves A, B, alpha and beta to priors that are stated apart."""
    name = {"size": "A", "data": "B"}.get(block.name, block.name) if flat else block.name
    if flat and name in ("A", "B", "alpha", "beta"):
        return pm.HalfFlat(name, dims=block.factor)
    kind = pm.LogNormal if block.prior.log else pm.Normal
    mu: Any = block.prior.mu
    sd: Any = block.prior.sd
    if block.spread and not block.mean:
        known = model.named_vars.get(block.spread)
        mu, sd = 0.0, pm.LogNormal(block.spread, mu, sd) if known is None else known
        kind = pm.Normal
    elif block.spread:
        mu = pm.Normal(f"{name}_mean", mu, sd)
        sd = (
            pm.HalfNormal(f"{name}_spread", priors.spread.scale)
            if isinstance(priors.spread, HalfNormal)
            else pm.LogNormal(f"{name}_spread", priors.spread.mu, priors.spread.sd)
        )
    return kind(name, mu, sd, dims=block.factor)
