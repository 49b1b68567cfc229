"""The loss law of looped language models: equations only.

Plain operators throughout, so that floats, numpy arrays, xarray objects and pytensor variables all pass through the
same lines. N counts parameters, D counts training tokens, losses are nats per token, r is the number of recurrences.

References
----------
.. [1] Schwethelm, Rueckert, Kaissis, "How Much Is One Recurrence Worth? Iso-Depth Scaling Laws for Looped Language
   Models", arXiv 2604.21106: L = E + A (N_once + r^phi N_rec)^-alpha + B D^-beta.
"""

from __future__ import annotations

from typing import Any

PARAMETERS = ("E", "A", "B", "alpha", "beta", "phi")


def effective_parameters(n_once: Any, n_rec: Any, recurrences: Any, phi: Any) -> Any:
    """Size of the non-looped model that reaches the same loss at the same tokens, N_once + r^phi N_rec.

    Parameters
    ----------
    n_once : parameters run once per token (prelude and coda)
    n_rec : parameters of the recurrent part, run r times per token
    recurrences : r, real, at least 1
    phi : recurrence-equivalence exponent; 1 makes a recurrence worth a unique block, 0 makes it worth nothing

    Returns
    -------
    N_eff, parameters, broadcast over the inputs.
    """
    return n_once + recurrences**phi * n_rec


def size_term(n_eff: Any, *, A: Any, alpha: Any) -> Any:
    """Loss owed to the finite size of the model, A N_eff^-alpha, nats per token."""
    return A * n_eff ** (-alpha)


def data_term(tokens: Any, *, B: Any, beta: Any) -> Any:
    """Loss owed to the finite data, B D^-beta, nats per token."""
    return B * tokens ** (-beta)


def loss(
    n_once: Any, n_rec: Any, recurrences: Any, tokens: Any, *, E: Any, A: Any, B: Any, alpha: Any, beta: Any, phi: Any
) -> Any:
    """Validation loss of the additive law [1]_, nats per token.

    Parameters
    ----------
    n_once, n_rec : parameters run once, and r times, per token
    recurrences : r, real, at least 1
    tokens : D, training tokens
    E, A, B, alpha, beta, phi : the law's parameters; E in nats per token

    Returns
    -------
    Loss in nats per token, broadcast over all inputs.
    """
    n_eff = effective_parameters(n_once, n_rec, recurrences, phi)
    return E + size_term(n_eff, A=A, alpha=alpha) + data_term(tokens, B=B, beta=beta)
