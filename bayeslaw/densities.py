"""Log densities of errors, group effects and priors with their gradients, by hand, in numba.

Effects of cells and training runs are integrated out: in closed form for normal errors, by one-dimensional quadrature
for Student ones. Tests hold them to scipy, to brute-force integration and to explicit latent effects.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

LOG_2PI = math.log(2 * math.pi)
NORMAL, HALF_NORMAL, POOLED = 0, 1, 2
"""Kinds of prior."""

HALF_WIDTH, MOST = 18, 400
"""Quadrature nodes on each side of the centre: ordinarily, and at most, where a group has outliers or clusters."""


@njit(cache=True, error_model="numpy")
def gaussian(z: Any, v: Any, groups: Any, sizes: Any, tau: Any, gz: Any, gv: Any, gtau: Any) -> Any:
    """Log density of normal residuals with nested group effects integrated out, and its gradient.

    At each level the members of a group have one mean; what the data say of it (a value and a precision) goes up as if
    it were one observation, with the level's variance added to its own.

    Parameters
    ----------
    z, v : ndarray, shape (run,)
        Residuals and error variances.
    groups : ndarray of int, shape (level, run)
        Group of every member of the level below, the lowest level's members being the runs.
    sizes : ndarray of int, shape (level,)
        Number of groups.
    tau : ndarray, shape (level,)
        Standard deviation of each level's effects.
    gz, gv, gtau : ndarray
        Gradients, written.

    Returns
    -------
    float
    """
    n, depth = len(z), len(sizes)
    values = np.zeros((depth + 1, n))
    precisions = np.ones((depth + 1, n))
    sums = np.zeros((depth + 1, n))
    members = np.empty(depth + 1, np.int64)
    members[0] = n
    for level in range(depth):
        members[level + 1] = sizes[level]
    total = -0.5 * n * LOG_2PI
    for i in range(n):
        values[0, i] = z[i]
        precisions[0, i] = 1 / v[i]
    for level in range(depth):
        m, p = values[level], precisions[level]
        mean, weight = values[level + 1], sums[level + 1]
        mean[: sizes[level]] = 0.0
        for i in range(members[level]):
            g = groups[level, i]
            weight[g] += p[i]
            mean[g] += p[i] * m[i]
            total += 0.5 * math.log(p[i])
        for g in range(sizes[level]):
            mean[g] /= weight[g]
            total -= 0.5 * math.log(weight[g])
            precisions[level + 1, g] = 1 / (1 / weight[g] + tau[level] ** 2)
        for i in range(members[level]):
            total -= 0.5 * p[i] * (m[i] - mean[groups[level, i]]) ** 2
    gm = np.zeros(n)
    gp = np.zeros(n)
    for i in range(members[depth]):
        m_i, p_i = values[depth, i], precisions[depth, i]
        total += 0.5 * math.log(p_i) - 0.5 * p_i * m_i**2
        gm[i] = -p_i * m_i
        gp[i] = 0.5 / p_i - 0.5 * m_i**2
    for level in range(depth - 1, -1, -1):
        m, p, mean, weight = values[level], precisions[level], values[level + 1], sums[level + 1]
        gtau[level] = 0.0
        gweight = np.empty(sizes[level])
        for g in range(sizes[level]):
            p_up = precisions[level + 1, g]
            gtau[level] -= 2 * tau[level] * gp[g] * p_up**2
            gweight[g] = gp[g] * p_up**2 / weight[g] ** 2 - 0.5 / weight[g]
        gmean = gm
        gm = np.empty(n)
        gp = np.empty(n)
        for i in range(members[level]):
            g = groups[level, i]
            off = m[i] - mean[g]
            gm[i] = gmean[g] * p[i] / weight[g] - p[i] * off
            gp[i] = gweight[g] + gmean[g] * off / weight[g] + 0.5 / p[i] - 0.5 * off**2
    for i in range(n):
        gz[i] = gm[i]
        gv[i] = -gp[i] / v[i] ** 2
    return total


@njit(cache=True, error_model="numpy")
def student(z: Any, v: Any, nu: Any, gz: Any, gv: Any) -> Any:
    """Log density of Student residuals of scale sqrt(v), and its gradient; arguments as in `gaussian`."""
    constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
    total = 0.0
    for i in range(len(z)):
        q = z[i] ** 2 / (nu * v[i])
        total += constant - 0.5 * math.log(v[i]) - 0.5 * (nu + 1) * math.log1p(q)
        pull = (nu + 1) / (1 + q)
        gz[i] = -pull * z[i] / (nu * v[i])
        gv[i] = (0.5 * pull * q - 0.5) / v[i]
    return total


@njit(cache=True, error_model="numpy")
def student_grouped(z: Any, v: Any, nu: Any, group: Any, tau: Any, gz: Any, gv: Any, gtau: Any) -> Any:
    """Log density of Student residuals with normal effects of one level of groups, integrated by quadrature; gradient.

    The integrand over a group's effect is sampled at u = centre + scale sinh(x) for evenly spaced x (a trapezoid sum,
    of exponential accuracy for analytic integrands): fine near the mode, far out where tails and outliers are.

    Parameters
    ----------
    z, v, nu : as in `student`
    group : ndarray of int, shape (run,)
        Group of every run; the runs of a group stand together.
    tau : float
        Standard deviation of the effects.
    gz, gv, gtau : ndarray
        Gradients, written; gtau of shape (1,).

    Returns
    -------
    float
    """
    constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
    most = 2 * MOST + 1
    log_f = np.empty(most)
    u = np.empty(most)
    stretch = np.empty(most)
    total = 0.0
    gtau[0] = 0.0
    end = 0
    while end < len(z):
        first = end
        while end < len(z) and group[end] == group[first]:
            end += 1
        members = range(first, end)
        centre = 0.0
        precision = 1 / tau**2
        for _ in range(8):  # the mode, by reweighting
            top = 0.0
            precision = 1 / tau**2
            for i in members:
                weight = (nu + 1) / (nu + (z[i] - centre) ** 2 / v[i]) / v[i]
                top += weight * z[i]
                precision += weight
            centre = top / precision
        scale = 1 / math.sqrt(precision)
        far = 6 * scale + 7 * tau + abs(centre)
        for i in members:
            far = max(far, min(abs(z[i] - centre) + 4 * math.sqrt(v[i]), 9 * tau + abs(centre)))
        reach = math.asinh(far / scale)
        step = reach / HALF_WIDTH
        for i in members:  # finer where an outlier, or a second cluster, makes a narrow peak away from the centre
            if abs(z[i]) < 10 * tau + 4 * scale:
                near = 0
                for j in members:
                    near += (z[j] - z[i]) ** 2 < 9 * v[i]
                sharp = math.sqrt(nu * v[i] / (1 + (nu + 1) * near))
                step = min(step, 1.2 * sharp / math.sqrt(scale**2 + (z[i] - centre) ** 2))
        half = min(MOST, max(HALF_WIDTH, math.ceil(reach / step)))
        step = reach / half
        nodes = 2 * half + 1
        best = -math.inf
        growth = math.exp(step)
        power = math.exp(-half * step)
        for q in range(nodes):
            u[q] = centre + 0.5 * scale * (power - 1 / power)
            stretch[q] = 0.5 * (power + 1 / power)
            power *= growth
            value = -0.5 * (u[q] / tau) ** 2
            product = 1.0  # one logarithm for many factors
            for i in members:
                product *= 1 + (z[i] - u[q]) ** 2 / (nu * v[i])
                if product > 1e200:
                    value -= 0.5 * (nu + 1) * math.log(product)
                    product = 1.0
            value -= 0.5 * (nu + 1) * math.log(product)
            log_f[q] = value
            best = max(best, value)
        mass = 0.0
        for q in range(nodes):
            log_f[q] = math.exp(log_f[q] - best) * stretch[q]
            mass += log_f[q]
        total += best + math.log(mass * step * scale) - math.log(tau) - 0.5 * LOG_2PI
        spread = 0.0
        for q in range(nodes):
            spread += log_f[q] * u[q] ** 2
        gtau[0] += (spread / mass / tau**2 - 1) / tau
        for i in members:
            total += constant - 0.5 * math.log(v[i])
            wide, pulled, spent = nu * v[i], 0.0, 0.0
            for q in range(nodes):
                off = z[i] - u[q]
                pull = log_f[q] / (wide + off * off)
                pulled += pull * off
                spent += pull * off * off
            gz[i] = -(nu + 1) * pulled / mass
            gv[i] = (0.5 * (nu + 1) * spent / mass - 0.5) / v[i]
    return total


@njit(cache=True, error_model="numpy")
def student_given_others(z: Any, v: Any, nu: Any, tau: Any) -> Any:
    """Log density of each member of one group given the others, for many draws.

    Parameters
    ----------
    z, v : ndarray, shape (sample, member)
    nu : float
    tau : ndarray, shape (sample,)

    Returns
    -------
    ndarray, shape (sample, member)
    """
    samples, n = z.shape
    out = np.empty((samples, n))
    together = np.zeros(n, np.int64)
    gz, gv, gtau = np.empty(n), np.empty(n), np.empty(1)
    left_z, left_v = np.empty(n - 1), np.empty(n - 1)
    for s in range(samples):
        whole = student_grouped(z[s], v[s], nu, together, tau[s], gz, gv, gtau)
        for i in range(n):
            for j in range(n - 1):
                left_z[j], left_v[j] = z[s, j + (j >= i)], v[s, j + (j >= i)]
            out[s, i] = whole - student_grouped(left_z, left_v, nu, together, tau[s], gz, gv, gtau)
    return out


@njit(cache=True, error_model="numpy")
def log_prior(theta: Any, mu: Any, sd: Any, kinds: Any, gtheta: Any) -> Any:
    """Log prior density of the vector, and its gradient.

    Parameters
    ----------
    theta : ndarray, shape (p,)
    mu, sd : ndarray, shape (p,)
        Centre and spread of a normal prior; the scale of a half-normal one is in ``sd``.
    kinds : ndarray of int, shape (p, 3)
        First column `NORMAL`, `HALF_NORMAL` (theta is the logarithm of what has that prior) or `POOLED`: normal around
        the entry of theta in the second column (-1: around 0), with the one in the third as the logarithm of its
        spread.
    gtheta : ndarray, shape (p,)
        Gradient, written.
    """
    total = 0.0
    for j in range(len(theta)):
        gtheta[j] = 0.0
    for j in range(len(theta)):
        if kinds[j, 0] == HALF_NORMAL:
            q = math.exp(theta[j]) / sd[j]
            total += theta[j] - math.log(sd[j]) + math.log(2.0) - 0.5 * LOG_2PI - 0.5 * q * q
            gtheta[j] += 1 - q * q
        elif kinds[j, 0] == POOLED:
            spread = math.exp(theta[kinds[j, 2]])
            mean = theta[kinds[j, 1]] if kinds[j, 1] >= 0 else 0.0
            q = (theta[j] - mean) / spread
            total -= theta[kinds[j, 2]] + 0.5 * LOG_2PI + 0.5 * q * q
            gtheta[j] -= q / spread
            if kinds[j, 1] >= 0:
                gtheta[kinds[j, 1]] += q / spread
            gtheta[kinds[j, 2]] += q * q - 1
        else:
            q = (theta[j] - mu[j]) / sd[j]
            total -= math.log(sd[j]) + 0.5 * LOG_2PI + 0.5 * q * q
            gtheta[j] -= q / sd[j]
    return total
