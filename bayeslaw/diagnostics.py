"""Whether the sampler worked, and which parameters the data spoke about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.fit import Fit
from bayeslaw.law import PARAMETERS
from bayeslaw.sampling import MAX_R_HAT, MIN_ESS

NOT_IDENTIFIED = math.sqrt(0.5)
"""Ratio of posterior to prior sd from which on the prior carries more of the information than the data."""

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
    messages : tuple of str
        What failed and what to do, and what is not identified.
    """

    parameters: pd.DataFrame
    divergences: int
    passed: bool
    not_identified: tuple[str, ...]
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
        messages.append(f"R-hat {table['r_hat'].max():.3f} (below {MAX_R_HAT} is needed): sample longer with --draws")
    least = min(float(table["ess_bulk"].min()), float(table["ess_tail"].min()))
    if not least >= MIN_ESS:
        messages.append(f"effective sample size {least:.0f} (at least {MIN_ESS:.0f} is needed): more --draws")
    passed = not messages
    messages = [f"do not rely on this fit yet, its diagnostics failed: {message}" for message in messages]
    law_rows = table[table["sd_ratio"] > NOT_IDENTIFIED]
    not_identified = tuple(law_rows.index)
    if not_identified:
        messages.append(f"not identified by the data: {', '.join(not_identified)}; the prior carries the answer there")
    return CheckResult(
        parameters=table,
        divergences=divergences,
        passed=passed,
        not_identified=not_identified,
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
    rows = {}
    for name in (*PARAMETERS, "sigma", "size", "data", "phi_mean", "phi_spread"):
        if name not in posterior:
            continue
        for label, chosen in _labels(name, posterior):
            draws = posterior[name].sel(chosen)
            row = {"mean": float(draws.mean()), "sd": float(draws.std(ddof=1))}
            row |= {key: float(draws.quantile(q)) for key, q in QUANTILES.items()}
            row |= {key: float(values[name].sel(chosen)) for key, values in diagnostics.items()}
            row["sd_ratio"] = (
                _spread(name, draws) / _spread(name, prior[name].sel(chosen)) if name in PARAMETERS else np.nan
            )
            rows[label] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def phi_differences(fit: Fit) -> dict[str, dict[str, float]]:
    """Posterior of each recipe's phi minus the baseline's: mean, sd, quantiles and P(> 0)."""
    phi = fit.posterior["phi"]
    anchor = fit.choose_recipe(None)
    out = {}
    for recipe in fit.recipes:
        if recipe != anchor:
            difference = (phi.sel(recipe=recipe, drop=True) - phi.sel(recipe=anchor, drop=True)).values
            row = {"mean": float(difference.mean()), "sd": float(difference.std(ddof=1))}
            row |= {key: float(np.quantile(difference, q)) for key, q in QUANTILES.items()}
            out[recipe] = {**row, "p_gt_0": float((difference > 0).mean())}
    return out


def _labels(name: str, posterior: xr.Dataset) -> list[tuple[str, dict[str, str]]]:
    """Row labels of a parameter and what to select for each."""
    if "recipe" not in posterior[name].dims:
        return [(name, {})]
    return [(f"{name}[{recipe}]", {"recipe": recipe}) for recipe in posterior["recipe"].to_numpy()]


def _spread(name: str, draws: xr.DataArray) -> float:
    """Standard deviation on the scale that the prior is normal on."""
    return float((draws if name == "phi" else np.log(draws)).std(ddof=1))
