"""Runs drawn from a law and a design, for tests of recovery and calibration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from bayeslaw.laws import Law, make_law
from bayeslaw.schema import STUDENT_NU
from bayeslaw.splits import split_parameters


def simulate(
    design: pd.DataFrame,
    *,
    parameters: Mapping[str, float],
    sigma: float,
    seed: int,
    law: Law | None = None,
    by_recipe: Mapping[str, Mapping[str, float]] | None = None,
    tau: Mapping[str, float] | None = None,
    outliers: str = "gaussian",
    injection_in: str = "once",
) -> pd.DataFrame:
    """Copy a run table with losses drawn from a known law.

    Parameters
    ----------
    design : pandas.DataFrame
        A run table; its losses are replaced.
    parameters : mapping
        Those of the law: E, A, B, alpha, beta, k when coupled, the map's own.
    sigma : float
        Scale of the errors on log loss.
    seed : int
    law : Law, optional
        Default the additive law with the power map.
    by_recipe : mapping, optional
        Parameters of single recipes, in place of those in ``parameters``.
    tau : mapping of str to float, optional
        Standard deviation of effects shared by the rows that agree in the columns of the key, joined by "+" (such as
        ``"recipe+budget+recurrences"``).
    outliers : "gaussian" or "student"
    injection_in : str
        Convention for the injection's parameters.
    """
    law = law or make_law("additive")
    counts = [design[name].to_numpy(dtype=float) for name in ("n_once", "n_shared", "n_injection")]
    n_once, n_rec = split_parameters(*counts, injection_in=injection_in)
    own: Mapping[str, Mapping[str, float]] = by_recipe or {}
    values = {
        name: np.array([own.get(recipe, {}).get(name, parameters[name]) for recipe in design["recipe"]])
        for name in law.parameters
    }
    recurrences, tokens = (design[name].to_numpy(dtype=float) for name in ("recurrences", "tokens"))
    log_loss = np.log(law.loss(n_once, n_rec, recurrences, tokens, values))
    rng = np.random.default_rng(seed)
    standard = rng.standard_t(STUDENT_NU, len(design)) if outliers == "student" else rng.standard_normal(len(design))
    log_loss += sigma * standard
    for key, scale in (tau or {}).items():
        group = design.groupby(key.split("+"), dropna=False).ngroup().to_numpy()
        log_loss += scale * rng.standard_normal(len(design))[group]
    return design.assign(loss=np.exp(log_loss))
