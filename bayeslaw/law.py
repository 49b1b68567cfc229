"""The loss laws of looped language models: equations only.

Plain operators throughout, so that floats, numpy arrays, xarray objects and pytensor variables all pass through the
same lines. N counts parameters, D counts training tokens, losses are nats per token, r is the number of recurrences.
`bayeslaw.maps` has the recurrence maps, which say what r recurrences are worth.

References
----------
.. [1] Schwethelm, Rueckert, Kaissis, "How Much Is One Recurrence Worth? Iso-Depth Scaling Laws for Looped Language
   Models", arXiv 2604.21106: L = E + A (N_once + r^phi N_rec)^-alpha + B D^-beta.
.. [2] Videau et al., "Skaling": L = E + (A N^-alpha + B D^-beta)^k, here on N_eff.
"""

from __future__ import annotations

from typing import Any


def effective_parameters(n_once: Any, n_rec: Any, worth: Any) -> Any:
    """Size of the non-looped model that reaches the same loss at the same tokens, N_once + g(r) N_rec.

    Parameters
    ----------
    n_once : parameters run once per token (prelude and coda)
    n_rec : parameters of the recurrent part, run r times per token
    worth : g(r), what r recurrences are worth in unique blocks

    Returns
    -------
    N_eff, parameters, broadcast over the inputs.
    """
    return n_once + worth * n_rec


def size_term(n_eff: Any, *, A: Any, alpha: Any) -> Any:
    """Loss owed to the finite size of the model, A N_eff^-alpha, nats per token when k = 1."""
    return A * n_eff ** (-alpha)


def data_term(tokens: Any, *, B: Any, beta: Any) -> Any:
    """Loss owed to the finite data, B D^-beta, nats per token when k = 1."""
    return B * tokens ** (-beta)


def loss(n_eff: Any, tokens: Any, *, E: Any, A: Any, B: Any, alpha: Any, beta: Any, k: Any = 1) -> Any:
    """Validation loss, nats per token: additive [1]_ when k = 1, coupled [2]_ otherwise.

    Parameters
    ----------
    n_eff : effective parameters
    tokens : D, training tokens
    E, A, B, alpha, beta, k : the law's parameters; E in nats per token

    Returns
    -------
    E + (A N_eff^-alpha + B D^-beta)^k, nats per token, broadcast over all inputs.
    """
    return E + (size_term(n_eff, A=A, alpha=alpha) + data_term(tokens, B=B, beta=beta)) ** k
