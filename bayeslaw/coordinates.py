"""Local coordinates of the law: what the data see at the centre of the design.

The natural coordinates are ``theta = (log E, log size, log data, log alpha, log beta, phi...)`` where ``size`` and
``data`` are the law's two terms at the centre (N0, D0). The local ones, ``xi``, are

====  =============================================
xi_0  log L0, L0 = E + size + data the loss at the centre
xi_1  log(-dL/dlog N) = log(alpha size)
xi_2  log(-dL/dlog D) = log(beta data)
xi_3  logit of E / L0
xi_4  logit of size / (size + data)
xi_5+ phi, unchanged
====  =============================================

The map is one-to-one from R^p to R^p and its Jacobian determinant is 1 in absolute value, so a density moves between
the two without correction. Posteriors that are curved and nearly degenerate in theta are close to normal in xi.

Every function takes the array module to compute with (numpy or pytensor.tensor) as ``xp``.
"""

from __future__ import annotations

from typing import Any

SHARED = ("E", "size", "data", "alpha", "beta")
"""Parameters whose logarithms are the natural coordinates before phi; all recipes share them."""

N_SHARED = len(SHARED)


def to_local(theta: Any, *, xp: Any) -> Any:
    """Local coordinates of natural ones, shape (..., 5 + number of phi) both."""
    log_E, log_size, log_data, log_alpha, log_beta = (theta[..., i] for i in range(N_SHARED))
    log_excess = xp.logaddexp(log_size, log_data)
    shared = [
        xp.logaddexp(log_E, log_excess),
        log_alpha + log_size,
        log_beta + log_data,
        log_E - log_excess,
        log_size - log_data,
    ]
    return xp.concatenate([xp.stack(shared, axis=-1), theta[..., N_SHARED:]], axis=-1)


def from_local(xi: Any, *, xp: Any) -> Any:
    """Natural coordinates of local ones, shape (..., 5 + number of phi) both."""
    log_L0, log_slope_N, log_slope_D, logit_E, logit_size = (xi[..., i] for i in range(N_SHARED))
    log_E = log_L0 - xp.logaddexp(0.0, -logit_E)
    log_excess = log_L0 - xp.logaddexp(0.0, logit_E)
    log_size = log_excess - xp.logaddexp(0.0, -logit_size)
    log_data = log_excess - xp.logaddexp(0.0, logit_size)
    shared = [log_E, log_size, log_data, log_slope_N - log_size, log_slope_D - log_data]
    return xp.concatenate([xp.stack(shared, axis=-1), xi[..., N_SHARED:]], axis=-1)
