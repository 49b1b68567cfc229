"""What an answer leans on: its priors, the likelihood as a whole, and single runs.

References
----------
Kallioinen, Paananen, Bürkner, Vehtari, "Detecting and diagnosing prior and likelihood sensitivity with power-scaling",
Stat. Comput. 34 (2024). Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto smoothed importance sampling", JMLR 25 (2024).
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw import densities, kernels
from bayeslaw.checks.cards import CheckCard, NotApplicableError, judged
from bayeslaw.densities import HALF_NORMAL, POOLED
from bayeslaw.inputs import Inputs
from bayeslaw.posterior import Fit
from bayeslaw.priors import Priors
from bayeslaw.ranking import HIGH_PARETO_K
from bayeslaw.schema import STUDENT_NU
from bayeslaw.structure import Structure
from bayeslaw.worth import worth

Array = NDArray[np.float64]

SENSITIVE = 0.05
"""Power-scaling sensitivity from which on an answer leans on a part of the model: ArviZ's."""

MOVED = 0.5
"""Posterior standard deviations that one run may move an answer by."""

MOST_NAMED = 5
"""Runs that the table of influence holds, the most influential first."""

POWER, INFLUENCE = "power-scaling", "influence"
TITLES = {POWER: "Sensitivity to priors and to the likelihood", INFLUENCE: "Influence of single runs"}


def answers(fit: Fit) -> dict[str, Array]:
    """What a fit is asked for, as far as it has it: draws, shape (sample,), of phi (or log g), g(4), E and k."""
    several = len(fit.recipes) > 1
    out: dict[str, Array] = {}
    for recipe in fit.recipes:
        suffix = f"[{recipe}]" if several else ""
        of_r = worth(fit, recipe=recipe)
        if "phi" in fit.law.parameters:
            out[f"phi{suffix}"] = fit.draws(recipe, names=["phi"])["phi"]
        elif of_r and fit.law.map.parameters:
            out[f"log g({max(of_r):g}){suffix}"] = np.log(of_r[max(of_r)])
        if 4.0 in of_r and fit.law.map.parameters:
            out[f"g(4){suffix}"] = of_r[4.0]
    if "architecture" not in fit.posterior.dims:
        shared = [name for name in ("E", "k") if name in fit.posterior and fit.posterior[name].ndim == 2]
        out |= {name: fit.posterior[name].values.ravel() for name in shared}
    return out


def vector(parameters: xr.Dataset, structure: Structure) -> Array:
    """Draws of the vector of unknowns from parameters by name, the way back of `bayeslaw.likelihood.named`.

    Returns
    -------
    ndarray, shape (sample, p)
    """
    count = parameters.sizes["chain"] * parameters.sizes["draw"]
    theta = np.zeros((count, structure.size))
    k = parameters.get("k", 1.0)
    for block in structure.blocks:
        own = parameters[block.name] * (k if block.name in ("alpha", "beta") else 1.0)
        values = own.transpose("chain", "draw", ...).values.reshape(count, -1)
        theta[:, block.slice] = np.log(values) if block.log else values
    logged = {block.mean for block in structure.blocks if block.log}
    for name, at in (structure.hyper | structure.scales).items():
        draws = parameters[name].values.ravel()
        positive = name in logged or name.endswith("_spread") or (name in structure.scales and name != "sigma_slope")
        theta[:, at] = np.log(draws) if positive else draws
    return theta


def log_prior(theta: Array, structure: Structure, priors: Priors) -> Array:
    """Log density, up to a constant, of the priors that somebody chose, shape (sample,).

    Those of pooled parameters around their common mean, and of deviations, belong to the model: they are left out.
    """
    mu, sd = structure.prior(priors)
    kind = structure.kinds[:, 0]
    standard = np.where(kind == HALF_NORMAL, np.exp(np.where(kind == HALF_NORMAL, theta, 0.0)) / sd, (theta - mu) / sd)
    out: Array = -0.5 * (standard[:, kind != POOLED] ** 2).sum(axis=1)
    return out


def joint_log_likelihood(theta: Array, structure: Structure, inputs: Inputs) -> Array:
    """Log density of all log losses together, group effects integrated out, shape (sample,)."""
    runs = structure.table(inputs)
    out = np.empty(len(theta))
    gz, gv, gtau = np.empty(len(runs)), np.empty(len(runs)), np.zeros(len(structure.effects))
    for i, each in enumerate(theta):
        z, _, v, _, groups, sizes, tau = kernels.residuals(
            each, structure.log_worth(each), runs, structure.cores, structure.scale_positions
        )
        if structure.errors == "student_grouped":
            out[i] = densities.student_grouped(z, v, float(STUDENT_NU), groups[0], tau[0], gz, gv, gtau)
        elif structure.errors == "student":
            out[i] = densities.student(z, v, float(STUDENT_NU), gz, gv)
        else:
            out[i] = densities.gaussian(z, v, groups, sizes, tau, gz, gv, gtau)
    return out


def power_scaling(fit: Fit, structure: Structure, inputs: Inputs, priors: Priors, title: str) -> CheckCard:
    """How far the answers move when priors, or the likelihood, are raised to a power a little off 1."""
    import arviz_stats as azs

    asked = answers(fit)
    if not asked:
        raise NotApplicableError("this fit has a law for each architecture, and no answer they share")
    shape = (fit.posterior.sizes["chain"], fit.posterior.sizes["draw"])
    theta = vector(fit.posterior, structure)
    dims = ("chain", "draw")
    parts = {
        # Numbered: a tree takes no names with a slash, and recipes may have one.
        "posterior": {f"answer_{i}": (dims, draws.reshape(shape)) for i, draws in enumerate(asked.values())},
        "log_prior": {"prior": (dims, log_prior(theta, structure, priors).reshape(shape))},
        "log_likelihood": {"runs": (dims, joint_log_likelihood(theta, structure, inputs).reshape(shape))},
    }
    coords = {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    tree = xr.DataTree.from_dict({name: xr.Dataset(group, coords=coords) for name, group in parts.items()})
    found = {group: azs.psense(tree, group=group) for group in ("prior", "likelihood")}
    rows, worst, most = [], "", 0.0
    for i, name in enumerate(asked):
        prior, likelihood = (float(found[group][f"answer_{i}"]) for group in ("prior", "likelihood"))
        rows.append((name, f"{prior:.3f}", f"{likelihood:.3f}", _diagnosis(prior, likelihood)))
        if prior >= most:
            worst, most = name, prior
    leaning = [row for row in rows if row[3] != "ok"]
    told = ", ".join(f"{name} ({prior} prior, {likelihood} likelihood)" for name, prior, likelihood, _ in leaning)
    reading = (
        f"{told} lean{'s' if len(leaning) == 1 else ''} on the prior; up to {SENSITIVE:g} is tolerated"
        if leaning
        else f"no answer leans on the prior: the largest sensitivity is {most:.3f} ({worst}), "
        f"tolerated up to {SENSITIVE:g}"
    )
    return CheckCard(
        name=POWER,
        title=title,
        verdict=judged(bool(leaning)),
        value=most,
        threshold=SENSITIVE,
        weight=min(1.5, most / SENSITIVE),
        reading=reading,
        advice="look at those priors (`bayeslaw report` lists them): more runs, or better reasons, would settle it"
        if leaning
        else "",
        header=("answer", "prior", "likelihood", "diagnosis"),
        rows=tuple(rows),
        arrays={
            "names": [row[0] for row in rows],
            "prior": np.array([float(row[1]) for row in rows]),
            "likelihood": np.array([float(row[2]) for row in rows]),
        },
    )


def _diagnosis(prior: float, likelihood: float) -> str:
    """In ArviZ's terms."""
    if prior < SENSITIVE:
        return "ok"
    return "prior and data may conflict" if likelihood >= SENSITIVE else "strong prior or weak data"


def influence(fit: Fit, title: str) -> CheckCard:
    """How far each answer on recurrence moves when one run is left out, by importance sampling."""
    from arviz_stats.base import array_stats

    asked = {name: draws for name, draws in answers(fit).items() if name.startswith(("phi", "log g"))}
    if not asked:
        asked = {name: draws for name, draws in answers(fit).items() if name == "E"}
    if not asked:
        raise NotApplicableError("this fit has a law for each architecture, and no answer they share")
    likelihood = fit.data["log_likelihood"]["log_loss"].transpose("run", "chain", "draw").values
    likelihood = likelihood.reshape(len(likelihood), -1)
    log_weights, pareto_k = array_stats.psislw(likelihood, r_eff=1.0, axis=-1)
    weights = np.exp(log_weights)
    weights /= weights.sum(axis=1, keepdims=True)
    moved = {name: (weights @ draws - draws.mean()) / draws.std(ddof=1) for name, draws in asked.items()}
    name = max(moved, key=lambda each: float(np.abs(moved[each]).max()))
    order = np.argsort(-np.abs(moved[name]))
    ids = fit.runs["run_id"].astype(str).tolist()
    top = int(order[0])
    largest = float(moved[name][top])
    high = np.flatnonzero(pareto_k > HIGH_PARETO_K)
    after = float(weights[top] @ asked[name])
    unsure = (
        f"; importance sampling is not to be trusted for {', '.join(ids[i] for i in high[:MOST_NAMED])} (Pareto k over "
        f"{HIGH_PARETO_K:g})"
        if len(high)
        else ""
    )
    return CheckCard(
        name=INFLUENCE,
        title=title,
        verdict=judged(abs(largest) > MOVED),
        value=abs(largest),
        threshold=MOVED,
        weight=min(2.0, abs(largest) / MOVED),
        reading=f"without {ids[top]} {name} would be {after:.3f} instead of {asked[name].mean():.3f}, "
        f"{abs(largest):.2f} posterior sd away, the most that one run moves it{unsure}",
        advice=f"look at {ids[top]}: was it trained as the others? --outliers student lets a single run matter less"
        if abs(largest) > MOVED
        else "",
        header=("run", f"moves {name} by, sd", "Pareto k"),
        rows=tuple((ids[i], f"{moved[name][i]:+.2f}", f"{pareto_k[i]:.2f}") for i in order[:MOST_NAMED]),
        arrays={"moved": moved[name], "pareto_k": np.asarray(pareto_k), "labels": ids, "name": name},
    )
