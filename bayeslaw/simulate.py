"""Runs drawn from a law and a design, for tests of recovery and calibration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from bayeslaw import law
from bayeslaw.architecture import split_parameters


def simulate(
    design: pd.DataFrame,
    *,
    parameters: Mapping[str, float],
    sigma: float,
    seed: int,
    phi: Mapping[str, float] | None = None,
    injection_in: str = "once",
) -> pd.DataFrame:
    """Copy a run table with losses drawn from a known law.

    Parameters
    ----------
    design : pandas.DataFrame
        A run table; its losses are replaced.
    parameters : mapping
        E, A, B, alpha, beta, phi of the law.
    sigma : float
        Standard deviation of the normal errors on log loss.
    seed : int
    phi : mapping, optional
        phi of single recipes, in place of the one in ``parameters``.
    injection_in : str
        Convention for the injection's parameters.
    """
    counts = [design[name].to_numpy(dtype=float) for name in ("n_once", "n_shared", "n_injection")]
    n_once, n_rec = split_parameters(*counts, injection_in=injection_in)
    own = dict(phi or {})
    phis = np.array([own.get(recipe, parameters["phi"]) for recipe in design["recipe"]])
    recurrences, tokens = (design[name].to_numpy(dtype=float) for name in ("recurrences", "tokens"))
    curve = law.loss(n_once, n_rec, recurrences, tokens, **{**parameters, "phi": phis})
    error = np.random.default_rng(seed).normal(0.0, sigma, len(design)) if sigma > 0 else 0.0
    return design.assign(loss=curve * np.exp(error))
