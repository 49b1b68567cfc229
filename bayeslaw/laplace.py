"""Centre and scale of a posterior in local coordinates, for the sampler: nothing depends on them but speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize

from bayeslaw.densities import HALF_NORMAL
from bayeslaw.inputs import Inputs
from bayeslaw.kernels import N_PARTIAL, law_mean
from bayeslaw.priors import Priors
from bayeslaw.structure import Structure

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Centre and scale in local coordinates, xi = mean + chol z.

    Parameters
    ----------
    mean : ndarray, shape (p,)
    chol : ndarray, shape (p, p)
        A square root of the approximate posterior covariance.
    """

    mean: Array
    chol: Array


def start(
    structure: Structure, inputs: Inputs, priors: Priors, *, sweeps: int = 4, seen: Array | None = None
) -> Whitening:
    """Penalised Gauss-Newton fit with independent errors.

    The penalty is the prior itself; the error scale is estimated between sweeps.

    Parameters
    ----------
    structure, inputs, priors
    sweeps : int
    seen : ndarray, shape (combination, run), optional
        Fit these combinations of the runs' log losses instead of each: a projection, or rows of unit length. The
        structure has no group effects then.
    """
    mu, sd = structure.prior(priors)
    half_normal = structure.kinds[:, 0] == HALF_NORMAL
    mu[half_normal], sd[half_normal] = np.log(sd[half_normal]), 1.0
    scales = [at for name, at in structure.scales.items() if name != "sigma_slope"]
    layout, table = structure.layout, structure.table(inputs)
    core_of, g_of = (np.ascontiguousarray(table[:, j], dtype=np.int64) for j in (0, 1))
    log_loss = table[:, 5]
    mean, partial = np.empty(len(log_loss)), np.empty((len(log_loss), N_PARTIAL))
    n, known = (len(log_loss),) * 2 if seen is None else (len(seen), float((seen**2).sum()))

    def residuals(xi: Array, sigma: float) -> Array:
        theta = layout.from_local(xi)
        cores = np.where(structure.cores >= 0, theta[structure.cores], 0.0)
        law_mean(cores, core_of, structure.log_worth(theta), g_of, table[:, 2], table[:, 3], table[:, 4], mean, partial)
        misfit = log_loss - mean if seen is None else seen @ (log_loss - mean)
        out: Array = np.concatenate([misfit / sigma, (theta - mu) / sd])
        return np.nan_to_num(np.clip(out, -1e8, 1e8), nan=1e8)

    xi = layout.to_local(mu)
    for core in layout.cores:
        xi[core[0]] = log_loss.mean()
    sigma = priors.sigma.scale
    for _ in range(sweeps):
        solution = least_squares(residuals, xi, args=(sigma,), x_scale="jac", max_nfev=50)
        xi = solution.x
        misfit = sigma * solution.fun[:n]
        # The prior's own scale counts as one run: few runs, or a perfect fit, then leave a usable error scale.
        sigma = float(np.sqrt((misfit @ misfit + priors.sigma.scale**2 / 100) / known))
    jacobian = solution.jac
    xi = xi.copy()
    xi[scales] = np.log(sigma)
    jacobian[n + np.array(scales), scales] = 2.0
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    return Whitening(mean=xi, chol=np.linalg.cholesky((covariance + covariance.T) / 2))


def refine(whitening: Whitening, density: Callable[[Array], tuple[float, Array]], *, tried: int = 200) -> Whitening:
    """Move to the mode of the posterior and take its curvature there.

    Parameters
    ----------
    whitening : Whitening
        Where ``density`` has z = 0, and its scale.
    density : callable
        Log posterior of z and its gradient.
    """
    p = len(whitening.mean)

    def objective(z: Array) -> tuple[float, Array]:
        value, gradient = density(z)
        return (-value, -gradient) if np.isfinite(value) else (1e30, np.zeros(p))

    z = minimize(objective, np.zeros(p), jac=True, method="L-BFGS-B", options={"maxiter": tried}).x
    step = 1e-3
    hessian = np.array([(density(z - step * unit)[1] - density(z + step * unit)[1]) / (2 * step) for unit in np.eye(p)])
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    # No direction becomes much wider than the first fit had it: the mode's curvature may be flat, or unbounded.
    root = vectors / np.sqrt(np.clip(values, 0.05, None))
    return Whitening(mean=whitening.mean + whitening.chol @ z, chol=whitening.chol @ root)
