"""The law's log loss and its gradient, by hand, in numba: what the sampler and the point fits evaluate.

Says the same as `bayeslaw.law`; tests hold it to the plain equations and to automatic differentiation.
`bayeslaw.densities` has the densities of errors around it.

The core of the law is a row of six natural coordinates, ``(log E, log size, log data, log a, log b, log k)``: ``size``
and ``data`` are the loss that each term alone would owe at the centre (N0, D0), a and b its exponents there, so that
L = E + (size^(1/k) (N_eff/N0)^(-a/k) + data^(1/k) (D/D0)^(-b/k))^k. k = 1 gives the additive law.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

N_CORE = 6
N_PARTIAL = N_CORE + 1
"""Partial derivatives of a run's log loss: by the six of the core, and by log g."""


@njit(cache=True, error_model="numpy")
def law_mean(
    core: Any, core_of: Any, log_g: Any, g_of: Any, n_once: Any, n_rec: Any, log_d: Any, mean: Any, partial: Any
) -> None:
    """Log loss of every run, and its partial derivatives.

    Parameters
    ----------
    core : ndarray, shape (profile, 6)
    core_of : ndarray of int, shape (run,)
    log_g : ndarray, shape (worth,)
    g_of : ndarray of int, shape (run,)
    n_once, n_rec : ndarray, shape (run,)
        In units of N0.
    log_d : ndarray, shape (run,)
        log(D / D0).
    mean, partial : ndarray, shape (run,) and (run, 7)
        Written.
    """
    for i in range(len(mean)):
        log_E, log_size, log_data, log_a, log_b, log_k = core[core_of[i]]
        a, b, k = math.exp(log_a), math.exp(log_b), math.exp(log_k)
        repeated = math.exp(log_g[g_of[i]]) * n_rec[i]
        n_eff = n_once[i] + repeated
        log_n = math.log(n_eff)
        t = log_size - a * log_n
        u = log_data - b * log_d[i]
        gap = (t - u) / k
        if gap > 0:
            tail = math.exp(-gap)
            excess = t + k * math.log1p(tail)
            w = 1 / (1 + tail)
            v = tail / (1 + tail)
        else:
            tail = math.exp(gap)
            excess = u + k * math.log1p(tail)
            w = tail / (1 + tail)
            v = 1 / (1 + tail)
        top = max(log_E, excess)
        mean[i] = top + math.log(math.exp(log_E - top) + math.exp(excess - top))
        q = math.exp(excess - mean[i])
        partial[i, 0] = 1 - q
        partial[i, 1] = q * w
        partial[i, 2] = q * v
        partial[i, 3] = -q * w * a * log_n
        partial[i, 4] = -q * v * b * log_d[i]
        partial[i, 5] = q * (excess - w * t - v * u)
        partial[i, 6] = -q * w * a * repeated / n_eff


COLUMNS = (
    "core", "worth", "n_once", "n_rec", "log_d", "log_loss", "known", "log_flops", "group_0", "group_1",
)  # fmt: skip
"""Columns of the table of runs that the likelihood takes: index of the core and of log g; parameters in units of N0;
log(D / D0); log loss and its known variance; log(C / C0); groups of the lower and the upper level. Rows are sorted by
group_0."""


@njit(cache=True, error_model="numpy")
def residuals(theta: Any, log_g: Any, runs: Any, cores: Any, scales: Any) -> Any:
    """What the error densities take.

    Parameters
    ----------
    theta : ndarray, shape (p,)
    log_g : ndarray, shape (worth,)
    runs : ndarray, shape (run, 10)
        See `COLUMNS`.
    cores : ndarray of int, shape (core, 6)
        Positions in theta; -1 for a k fixed at 1.
    scales : ndarray of int, shape (2 + level,)
        Positions in theta of log sigma, of its slope over log compute (-1: none) and of log tau of every level of
        groups.

    Returns
    -------
    z, own, v : ndarray, shape (run,)
        Residuals of log loss, error variance without and with what is known of it.
    partial : ndarray, shape (run, 7)
        As `law_mean` gives them.
    groups, sizes, tau : ndarray
        As `bayeslaw.densities.gaussian` takes them.
    """
    n, depth = len(runs), len(scales) - 2
    core = np.zeros((len(cores), N_CORE))
    for c in range(len(cores)):
        for j in range(N_CORE):
            if cores[c, j] >= 0:
                core[c, j] = theta[cores[c, j]]
    core_of, g_of = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        core_of[i] = int(runs[i, 0])
        g_of[i] = int(runs[i, 1])
    mean = np.empty(n)
    partial = np.empty((n, N_PARTIAL))
    law_mean(core, core_of, log_g, g_of, runs[:, 2], runs[:, 3], runs[:, 4], mean, partial)
    log_sigma = theta[scales[0]]
    slope = theta[scales[1]] if scales[1] >= 0 else 0.0
    z = np.empty(n)
    own = np.empty(n)
    v = np.empty(n)
    for i in range(n):
        z[i] = runs[i, 5] - mean[i]
        own[i] = math.exp(2 * (log_sigma + slope * runs[i, 7]))
        v[i] = own[i] + runs[i, 6]
    tau = np.empty(depth)
    groups = np.zeros((depth, n), np.int64)
    sizes = np.zeros(depth, np.int64)
    for level in range(depth):
        tau[level] = math.exp(theta[scales[2 + level]])
        for i in range(n):
            below = i if level == 0 else groups[0, i]
            groups[level, below] = int(runs[i, 8 + level])
            sizes[level] = max(sizes[level], int(runs[i, 8 + level]) + 1)
    return z, own, v, partial, groups, sizes, tau


@njit(cache=True, error_model="numpy")
def collect(
    gz: Any, gv: Any, gtau: Any, own: Any, partial: Any, tau: Any, runs: Any, cores: Any, scales: Any, gtheta: Any,
    glog_g: Any,
) -> None:  # fmt: skip
    """Add to the gradients by theta and log g what those by residuals, variances and tau mean."""
    for i in range(len(runs)):
        at = int(runs[i, 0])
        for j in range(N_CORE):
            if cores[at, j] >= 0:
                gtheta[cores[at, j]] -= gz[i] * partial[i, j]
        glog_g[int(runs[i, 1])] -= gz[i] * partial[i, 6]
        gtheta[scales[0]] += 2 * own[i] * gv[i]
        if scales[1] >= 0:
            gtheta[scales[1]] += 2 * own[i] * gv[i] * runs[i, 7]
    for level in range(len(tau)):
        gtheta[scales[2 + level]] += gtau[level] * tau[level]
