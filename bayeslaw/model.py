"""The PyMC model of log loss, the only one.

log L_i ~ Normal or StudentT(nu = 4) around the log of the law, independent between runs; E, the two terms and their
exponents are shared by all recipes, phi is one per recipe and partially pooled when there are several.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform

from bayeslaw import law
from bayeslaw.coordinates import N_SHARED, from_local, to_local
from bayeslaw.inputs import Inputs
from bayeslaw.point import Whitening
from bayeslaw.priors import STUDENT_NU, Priors


class WhitenedLocal(Transform):  # type: ignore[misc]  # pymc is untyped here
    """Natural coordinates to whitened local ones, z = chol^-1 (xi(theta) - mean).

    A change of coordinates for the sampler only: prior draws and posterior are those of the natural coordinates.
    """

    name = "whitened"
    ndim_supp = 1

    def __init__(self, whitening: Whitening) -> None:
        self._mean = whitening.mean
        self._chol = whitening.chol
        self._inverse = np.linalg.inv(whitening.chol)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Whitened local coordinates of ``theta``."""
        return pt.dot(self._inverse, to_local(value, xp=pt) - self._mean)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Natural coordinates ``theta`` of z."""
        return from_local(self._mean + pt.dot(self._chol, value), xp=pt)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Logarithm of |d theta / d z|: the local map keeps volume, so only the scale counts."""
        return pt.as_tensor(np.log(np.diag(self._chol)).sum())


def build(inputs: Inputs, priors: Priors, *, outliers: str, whitening: Whitening | None) -> pm.Model:
    """Build the model.

    Parameters
    ----------
    inputs : Inputs
    priors : Priors
    outliers : "gaussian" or "student"
    whitening : Whitening, optional
        Coordinates to sample in; None leaves the sampler in the natural ones.

    Returns
    -------
    pymc.Model
        Free variables ``theta`` (see `bayeslaw.coordinates`), ``sigma`` and, with several recipes, ``phi_mean`` and
        ``phi_spread``; observed ``log_loss``.
    """
    several = len(inputs.recipes) > 1
    n0, d0 = inputs.centre
    with pm.Model(coords={"recipe": inputs.recipes, "run": np.arange(len(inputs.loss))}) as model:
        phi_mu: Any = np.array([priors.phi.mu])
        phi_sd: Any = np.array([priors.phi.sd])
        if several:
            phi_mean = pm.Normal("phi_mean", priors.phi.mu, priors.phi.sd)
            phi_spread = pm.LogNormal("phi_spread", priors.phi_spread.mu, priors.phi_spread.sd)
            phi_mu, phi_sd = (pt.repeat(value, len(inputs.recipes)) for value in (phi_mean, phi_spread))
        theta = pm.Normal(
            "theta",
            pt.concatenate([np.array([prior.mu for prior in priors.law]), phi_mu]),
            pt.concatenate([np.array([prior.sd for prior in priors.law]), phi_sd]),
            shape=N_SHARED + len(inputs.recipes),
            **({"transform": WhitenedLocal(whitening)} if whitening else {}),
        )
        sigma = pm.HalfNormal("sigma", priors.sigma)
        E, size, data, alpha, beta = (pt.exp(theta[i]) for i in range(N_SHARED))
        mean = pt.log(
            law.loss(
                inputs.n_once / n0, inputs.n_rec / n0, inputs.recurrences, inputs.tokens / d0,
                E=E, A=size, B=data, alpha=alpha, beta=beta, phi=theta[N_SHARED:][inputs.recipe],
            )
        )  # fmt: skip
        observed = np.log(inputs.loss)
        if outliers == "student":
            pm.StudentT("log_loss", nu=STUDENT_NU, mu=mean, sigma=sigma, observed=observed, dims="run")
        else:
            pm.Normal("log_loss", mean, sigma, observed=observed, dims="run")
    return model
