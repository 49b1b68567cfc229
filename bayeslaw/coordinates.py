"""Local coordinates of the law: what the data see at the centre of the design.

The natural coordinates are ``theta``, with the core ``(log E, log size, log data, log a, log b, log k)`` of
`bayeslaw.kernels`. The local ones, ``xi``, replace it by

====  =============================================
xi_0  log L0, L0 = E + (size^(1/k) + data^(1/k))^k the loss at the centre
xi_1  log(-dL/dlog N_eff)
xi_2  log(-dL/dlog D)
xi_3  logit of E / L0
xi_4  logit of w = size^(1/k) / (size^(1/k) + data^(1/k)), the share of size
xi_5  log k
====  =============================================

The map is one-to-one from R^6 to R^6 with Jacobian |d theta / d xi| = k, so densities move between the two by adding
log k (nothing for the additive law, k = 1). Posteriors that are curved and nearly degenerate in theta are close to
normal in xi.

Where the core differs between groups of runs altogether, each group has its own local coordinates; where single
parameters differ, the first group has them and the others are offsets from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Where the core stands in the vector.

    Parameters
    ----------
    cores : ndarray of int, shape (core, 6)
        Positions of (log E, log size, log data, log a, log b, log k); -1 for a k fixed at 1.
    reference : ndarray of int, shape (p,)
        The position that an entry is an offset from; -1 for none.
    """

    cores: Index
    reference: Index

    def to_local(self, theta: Array) -> Array:
        """Local coordinates of natural ones, shape (p,) both."""
        xi = np.where(self.reference < 0, theta, theta - theta[self.reference])
        for core in self.cores:
            log_E, log_size, log_data, log_a, log_b = theta[core[:5]]
            log_k = theta[core[5]] if core[5] >= 0 else 0.0
            gap = (log_size - log_data) * math.exp(-log_k)
            log_excess = math.exp(log_k) * np.logaddexp(log_size / math.exp(log_k), log_data / math.exp(log_k))
            xi[core[:5]] = (
                np.logaddexp(log_E, log_excess),
                log_a + log_excess - np.logaddexp(0.0, -gap),
                log_b + log_excess - np.logaddexp(0.0, gap),
                log_E - log_excess,
                gap,
            )
        return xi

    def from_local(self, xi: Array) -> Array:
        """Natural coordinates of local ones, shape (p,) both."""
        theta = np.empty_like(xi)
        natural(np.ascontiguousarray(xi), self.cores, self.reference, theta)
        return theta


@njit(cache=True, error_model="numpy")
def natural(xi: Any, cores: Any, reference: Any, theta: Any) -> Any:
    """Write the natural coordinates of ``xi`` to ``theta`` and return log |d theta / d xi|."""
    for j in range(len(xi)):
        theta[j] = xi[j]
    volume = 0.0
    for c in range(len(cores)):
        at = cores[c]
        log_k = xi[at[5]] if at[5] >= 0 else 0.0
        k = math.exp(log_k)
        log_w, log_v = -_softplus(-xi[at[4]]), -_softplus(xi[at[4]])
        log_excess = xi[at[0]] - _softplus(xi[at[3]])
        theta[at[0]] = xi[at[0]] - _softplus(-xi[at[3]])
        theta[at[1]] = log_excess + k * log_w
        theta[at[2]] = log_excess + k * log_v
        theta[at[3]] = xi[at[1]] - log_excess - log_w
        theta[at[4]] = xi[at[2]] - log_excess - log_v
        volume += log_k
    for j in range(len(xi)):
        if reference[j] >= 0:
            theta[j] = xi[j] + theta[reference[j]]
    return volume


@njit(cache=True, error_model="numpy")
def natural_pullback(xi: Any, cores: Any, reference: Any, gradient: Any, gvolume: Any) -> Any:
    """Gradient by ``xi`` of what has the gradient ``gradient`` by theta and ``gvolume`` by the log volume."""
    gradient = gradient.copy()
    for j in range(len(xi)):
        if reference[j] >= 0:
            gradient[reference[j]] += gradient[j]
    out = gradient.copy()
    for c in range(len(cores)):
        at = cores[c]
        k = math.exp(xi[at[5]]) if at[5] >= 0 else 1.0
        log_w, log_v = -_softplus(-xi[at[4]]), -_softplus(xi[at[4]])
        w, v = math.exp(log_w), math.exp(log_v)
        share = math.exp(-_softplus(-xi[at[3]]))
        gE, gs, gd, ga, gb = gradient[at[0]], gradient[at[1]], gradient[at[2]], gradient[at[3]], gradient[at[4]]
        gexcess = gs + gd - ga - gb
        out[at[0]] = gE + gexcess
        out[at[1]] = ga
        out[at[2]] = gb
        out[at[3]] = gE * (1 - share) - gexcess * share
        out[at[4]] = k * (gs * v - gd * w) - ga * v + gb * w
        if at[5] >= 0:
            out[at[5]] = gradient[at[5]] + k * (gs * log_w + gd * log_v) + gvolume
    return out


@njit(cache=True, error_model="numpy")
def unwhitened(z: Any, whitening: Any) -> Any:
    """xi = mean + chol z; ``whitening`` begins with the mean and the rows of chol, one after the other."""
    p = len(z)
    xi = np.empty(p)
    for i in range(p):
        xi[i] = whitening[i]
        for j in range(p):
            xi[i] += whitening[p + i * p + j] * z[j]
    return xi


@njit(cache=True, error_model="numpy")
def unwhitened_pullback(gradient: Any, whitening: Any) -> Any:
    """Gradient by z of what has the gradient ``gradient`` by xi."""
    p = len(gradient)
    out = np.zeros(p)
    for i in range(p):
        for j in range(p):
            out[j] += whitening[p + i * p + j] * gradient[i]
    return out


@njit(cache=True, error_model="numpy")
def natural_draws(draws: Any, whitening: Any, cores: Any, reference: Any) -> Any:
    """Natural coordinates of whitened local ones, shape (sample, p) both; ``whitening`` as in `unwhitened`."""
    theta = np.empty_like(draws)
    for s in range(len(draws)):
        natural(unwhitened(draws[s], whitening), cores, reference, theta[s])
    return theta


@njit(cache=True, error_model="numpy")
def _softplus(x: Any) -> Any:
    """log(1 + exp(x)) without overflow."""
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)
