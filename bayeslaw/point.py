"""Point fits of the law: the penalised fit that centres and scales the sampler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from bayeslaw import law
from bayeslaw.coordinates import N_SHARED, from_local, to_local
from bayeslaw.inputs import Inputs
from bayeslaw.priors import Priors

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Centre and scale of a posterior in local coordinates, xi = mean + chol z.

    Parameters
    ----------
    mean : ndarray, shape (p,)
    chol : ndarray, shape (p, p)
        Lower Cholesky factor of the approximate posterior covariance.
    sigma : float
        Error scale on log loss at the point fit.
    """

    mean: Array
    chol: Array
    sigma: float


def predicted_log_loss(theta: Array, inputs: Inputs) -> Array:
    """Log loss at every run by the law, for one vector of natural coordinates; shape (run,)."""
    n0, d0 = inputs.centre
    E, size, data, alpha, beta = np.exp(theta[:N_SHARED])
    phi = theta[N_SHARED:][inputs.recipe]
    predicted: Array = np.log(
        law.loss(
            inputs.n_once / n0, inputs.n_rec / n0, inputs.recurrences, inputs.tokens / d0,
            E=E, A=size, B=data, alpha=alpha, beta=beta, phi=phi,
        )
    )  # fmt: skip
    return predicted


def penalised(inputs: Inputs, priors: Priors, *, sweeps: int = 6) -> Whitening:
    """Penalised Gauss-Newton fit in local coordinates, its curvature as the sampler's scale.

    The penalty is the prior itself; the error scale is re-estimated between sweeps.
    """
    n_phi = len(inputs.recipes)
    mu = np.array([*(prior.mu for prior in priors.law), *[priors.phi.mu] * n_phi])
    sd = np.array([*(prior.sd for prior in priors.law), *[priors.phi.sd] * n_phi])
    observed = np.log(inputs.loss)

    def residuals(xi: Array, sigma: float) -> Array:
        theta = from_local(xi, xp=np)
        return np.concatenate([(observed - predicted_log_loss(theta, inputs)) / sigma, (theta - mu) / sd])

    xi = np.asarray(to_local(mu, xp=np))
    xi[0] = observed.mean()
    sigma = priors.sigma
    for _ in range(sweeps):
        solution = least_squares(residuals, xi, args=(sigma,), x_scale="jac")
        xi = solution.x
        misfit = sigma * solution.fun[: len(observed)]
        # The prior's own scale counts as one run: few runs, or a perfect fit, then leave a usable error scale.
        sigma = float(np.sqrt((misfit @ misfit + priors.sigma**2 / 100) / len(observed)))
    covariance = np.linalg.inv(solution.jac.T @ solution.jac)
    return Whitening(mean=xi, chol=np.linalg.cholesky((covariance + covariance.T) / 2), sigma=sigma)
