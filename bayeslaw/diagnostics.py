"""Whether the sampler worked, and which parameters the data spoke about."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.deviation import PREFIX
from bayeslaw.posterior import Fit
from bayeslaw.spec import ALIASES, MAX_R_HAT, MIN_ESS
from bayeslaw.worth import worth

NOT_IDENTIFIED = math.sqrt(0.5)
"""Ratio of posterior to prior sd from which on the prior carries more of the information than the data."""

LEAST_LOADING = 0.1
"""Share of a direction from which on a parameter is named as part of it."""

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Convergence and identifiability of a fit.

    Parameters
    ----------
    parameters : pandas.DataFrame
        One row a parameter (``phi[recipe]`` for each phi): mean, sd, q05, q50, q95, ess_bulk, ess_tail, r_hat, and
        sd_ratio, posterior sd over prior sd (of the logarithm for positive parameters).
    divergences : int
    passed : bool
    not_identified : tuple of str
        Law parameters that the prior says more about than the data.
    confounded : tuple of str
        Groups of law parameters, such as "alpha, beta, size, data", whose combination the prior says more about than
        the data although each by itself is narrower than its prior: a collinear design.
    messages : tuple of str
        What failed and what to do, and what is not identified.
    """

    parameters: pd.DataFrame
    divergences: int
    passed: bool
    not_identified: tuple[str, ...]
    confounded: tuple[str, ...]
    messages: tuple[str, ...]

    @property
    def max_r_hat(self) -> float:
        """Largest R-hat."""
        return float(self.parameters["r_hat"].max())

    @property
    def min_ess_bulk(self) -> float:
        """Smallest bulk effective sample size."""
        return float(self.parameters["ess_bulk"].min())

    def as_dict(self) -> dict[str, Any]:
        """The ``diagnostics`` object of ``fit --json``."""
        return {
            "divergences": self.divergences,
            "max_r_hat": self.max_r_hat,
            "min_ess_bulk": self.min_ess_bulk,
            "passed": self.passed,
            "not_identified": list(self.not_identified),
            "confounded": list(self.confounded),
            "messages": list(self.messages),
        }


def check(fit: Fit) -> CheckResult:
    """Summarise every parameter, test convergence, and hold posterior widths against prior widths."""
    table = summarise(fit)
    divergences = int(fit.data["sample_stats"]["diverging"].sum())
    messages = []
    if divergences:
        messages.append(f"{divergences} divergences: sample again with --target-accept nearer to 1, or add runs")
    if not float(table["r_hat"].max()) < MAX_R_HAT:
        messages.append(f"R-hat {table['r_hat'].max():.4f} (below {MAX_R_HAT} is needed): sample longer with --draws")
    least = min(float(table["ess_bulk"].min()), float(table["ess_tail"].min()))
    if not least >= MIN_ESS:
        messages.append(f"effective sample size {least:.0f} (at least {MIN_ESS:.0f} is needed): more --draws")
    passed = not messages
    messages = [f"do not rely on this fit yet, its diagnostics failed: {message}" for message in messages]
    # Deviations of single r are borne by their common spread: that each is free to be near 0 is what they are for.
    unknown = table.index[table["sd_ratio"] > NOT_IDENTIFIED]
    not_identified = tuple(name for name in unknown if not name.startswith(PREFIX))
    if not_identified:
        messages.append(f"not identified by the data: {', '.join(not_identified)}; the prior carries the answer there")
    together = confounded(fit, not_identified)
    messages += [
        f"the data do not tell apart {group}: the prior carries the answer there; vary N and D independently"
        for group in together
    ]
    return CheckResult(
        parameters=table,
        divergences=divergences,
        passed=passed,
        not_identified=not_identified,
        confounded=together,
        messages=tuple(messages),
    )


def summarise(fit: Fit) -> pd.DataFrame:
    """Posterior summary of every parameter, the table of `CheckResult`."""
    import arviz_stats as azs

    posterior = fit.posterior
    diagnostics = {
        "ess_bulk": azs.ess(posterior, method="bulk"),
        "ess_tail": azs.ess(posterior, method="tail"),
        "r_hat": azs.rhat(posterior),
    }
    prior = fit.data["prior"].to_dataset()
    law, positive = fit.law.parameters, fit.law.positive
    order = [*law[5:], *law[:5], *(str(name) for name in posterior.data_vars)]
    rows: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(order):
        for label, chosen in _labels(name, posterior):
            draws = posterior[name].sel(chosen)
            row = {"mean": float(draws.mean()), "sd": float(draws.std(ddof=1))}
            row |= {key: float(draws.quantile(q)) for key, q in QUANTILES.items()}
            row |= {key: float(values[name].sel(chosen)) for key, values in diagnostics.items()}
            log = name in positive
            ratio = _spread(draws, log) / _spread(prior[name].sel(chosen), log) if name in law else np.nan
            rows[label] = {**row, "sd_ratio": ratio}
    return pd.DataFrame.from_dict(rows, orient="index")


def confounded(fit: Fit, known: Collection[str] = ()) -> tuple[str, ...]:
    """Groups of law parameters that only the prior tells apart.

    Directions in which the posterior is nearly as wide as the prior, by the generalised eigenvectors of the two
    covariances (of logarithms, where positive); those of a single parameter in ``known`` say nothing new.
    """
    columns, names = [], []
    for group in ("posterior", "prior"):
        data = fit.data[group].to_dataset()
        labels, values = [], []
        for name in (name for name in fit.law.parameters if not name.startswith(PREFIX)):
            # A and B by their terms at the centre: far from it they say what alpha and beta say already.
            sampled = ALIASES.get(name, name)
            for label, chosen in _labels(sampled, data):
                draws = data[sampled].sel(chosen).values.ravel()
                labels.append(label.replace(sampled, name, 1))
                values.append(np.log(draws) if name in fit.law.positive else draws)
        columns.append(np.array(values))
        names = labels
    posterior, prior = (np.cov(values / columns[1].std(axis=1, keepdims=True)) for values in columns)
    from scipy.linalg import eigh

    floor = 1e-6 * np.eye(len(names))  # keeps apart what the prior itself joins
    ratios, directions = eigh(np.atleast_2d(posterior) + floor, np.atleast_2d(prior) + floor)
    groups = []
    for ratio, direction in zip(ratios, directions.T, strict=True):
        loading = direction**2 / (direction**2).sum()
        members = [name for name, share in zip(names, loading, strict=True) if share > LEAST_LOADING]
        if ratio > NOT_IDENTIFIED**2 and not set(members) & set(known):
            groups.append(", ".join(members))
    return tuple(dict.fromkeys(groups))


def phi_differences(fit: Fit, parameter: str = "phi") -> dict[str, dict[str, float]]:
    """Posterior of each recipe's phi, or another parameter, minus the baseline's: mean, sd, quantiles and P(> 0)."""
    if parameter not in fit.posterior or "recipe" not in fit.posterior[parameter].dims:
        return {}
    values = fit.posterior[parameter]
    anchor = fit.choose_recipe(None)
    return {
        recipe: _difference(values.sel(recipe=recipe).values - values.sel(recipe=anchor).values)
        for recipe in fit.recipes
        if recipe != anchor
    }


def worth_differences(fit: Fit) -> dict[str, dict[str, dict[str, float]]]:
    """Posterior of each recipe's log g(r) minus the baseline's, by recipe and r: mean, sd, quantiles and P(> 0)."""
    anchor = fit.choose_recipe(None)
    base = worth(fit, recipe=anchor)
    return {
        recipe: {
            f"{r:g}": _difference(np.log(values) - np.log(base[r])) for r, values in worth(fit, recipe=recipe).items()
        }
        for recipe in fit.recipes
        if recipe != anchor
    }


def _difference(values: np.ndarray) -> dict[str, float]:
    row = {"mean": float(values.mean()), "sd": float(values.std(ddof=1))}
    row |= {key: float(np.quantile(values, q)) for key, q in QUANTILES.items()}
    return {**row, "p_gt_0": float((values > 0).mean())}


def _labels(name: str, posterior: xr.Dataset) -> list[tuple[str, dict[str, str]]]:
    """Row labels of a parameter and what to select for each."""
    factors = [str(dim) for dim in posterior[name].dims if dim not in ("chain", "draw")]
    if not factors:
        return [(name, {})]
    return [(f"{name}[{level}]", {factors[0]: level}) for level in posterior[factors[0]].to_numpy()]


def _spread(draws: xr.DataArray, log: bool) -> float:
    """Standard deviation on the scale that the prior is normal on."""
    return float(np.std(np.log(draws.values) if log else draws.values, ddof=1))
