"""Models of the same runs by how well they predict each run from the others: PSIS-LOO, differences, weights, a choice.

References
----------
Vehtari, Gelman, Gabry, "Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC", Stat.
Comput. 27 (2017). Yao, Vehtari, Simpson, Gelman, "Using stacking to average Bayesian predictive distributions",
Bayesian Anal. 13 (2018). Sivula, Magnusson, Matamoros, Vehtari, "Uncertainty in Bayesian leave-one-out
cross-validation based model comparison", arXiv 2008.10296: small differences.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

DISTINGUISHED, LEAST_DIFFERENCE = 2.0, 4.0
"""Standard errors, and difference of elpd over all runs, beyond which one model is called better than another: models
that say nearly the same have a small standard error too, and below 4 it is not to be relied on."""

HIGH_PARETO_K = 0.7
"""Pareto k of a run from which on importance sampling does not stand for fitting without it."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Models in the order of their expected log predictive density.

    Parameters
    ----------
    table : pandas.DataFrame
        One row a model, best first: elpd, elpd_diff (from the best, 0 or below), se_diff, weight (stacking),
        complexity, high_pareto_k (how many runs), distinguished (worse than the best by over `DISTINGUISHED` se and
        over `LEAST_DIFFERENCE`).
    preferred : str
        The simplest of those that are not distinguished from the best; of equally simple ones the better.
    """

    table: pd.DataFrame
    preferred: str

    @property
    def tied(self) -> tuple[str, ...]:
        """The models that the runs do not tell from the best, the best first."""
        return tuple(self.table.index[~self.table["distinguished"]])


def loo(log_likelihood: xr.Dataset) -> Any:
    """PSIS-LOO with its pointwise parts.

    Parameters
    ----------
    log_likelihood : xarray.Dataset
        ``log_loss`` over chain, draw and run.

    Returns
    -------
    arviz_stats.ELPDData
    """
    import arviz_stats as azs

    tree = xr.DataTree.from_dict({"log_likelihood": log_likelihood, "posterior": log_likelihood.isel(run=0)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a high Pareto k is counted and told by `rank`
        return azs.loo(tree, pointwise=True, reff=1.0)


def rank(models: Mapping[str, Any], complexity: Mapping[str, int]) -> Ranking:
    """Rank models of the same runs.

    Parameters
    ----------
    models : mapping of str to arviz_stats.ELPDData
        As `loo` gives them.
    complexity : mapping of str to int
        Number of parameters of each, for ties.
    """
    import arviz_stats as azs

    names = list(models)
    if len(names) > 1:
        found = azs.compare(dict(models), method="stacking", round_to="none")
        weights = {name: float(found.loc[name, "weight"]) for name in names}
    else:
        weights = {names[0]: 1.0}
    pointwise = {name: np.asarray(models[name].elpd_i, dtype=float).ravel() for name in names}
    best = max(names, key=lambda name: pointwise[name].sum())
    rows = {}
    for name in sorted(names, key=lambda name: -pointwise[name].sum()):
        difference = pointwise[name] - pointwise[best]
        se = float(np.sqrt(len(difference)) * difference.std(ddof=1)) if name != best else 0.0
        rows[name] = {
            "elpd": float(pointwise[name].sum()),
            "elpd_diff": float(difference.sum()),
            "se_diff": se,
            "weight": weights[name],
            "complexity": complexity[name],
            "high_pareto_k": int((np.asarray(models[name].pareto_k) > HIGH_PARETO_K).sum()),
            "distinguished": bool(-difference.sum() > max(DISTINGUISHED * se, LEAST_DIFFERENCE)),
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    tied = table[~table["distinguished"]]
    return Ranking(
        table=table, preferred=str(tied.sort_values(["complexity", "elpd"], ascending=[True, False]).index[0])
    )
