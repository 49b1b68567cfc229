"""What of a network is N_once and what N_rec: the conventions for the injection's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayeslaw.errors import UsageError
from bayeslaw.schema import INJECTION_IN


def split_parameters(n_once: Any, n_shared: Any, n_injection: Any, *, injection_in: str) -> tuple[Any, Any]:
    """Apply the convention that says which part of the law the injection's parameters belong to.

    Parameters
    ----------
    n_once, n_shared, n_injection : parameters, broadcast together
    injection_in : str
        ``"once"`` (nearest to the published split), ``"rec"`` (what the paper's text says) or ``"nowhere"``; for
        ``"regression"`` see `regression_split`.

    Returns
    -------
    (N_once, N_rec) of the law, parameters.
    """
    allowed = tuple(name for name in INJECTION_IN if name != "regression")
    if injection_in not in allowed:
        raise UsageError(f"injection_in = {injection_in!r}", allowed=", ".join(allowed))
    if injection_in == "once":
        return n_once + n_injection, n_shared
    if injection_in == "rec":
        return n_once, n_shared + n_injection
    return n_once, n_shared


def regression_split(n_unique: Any, recurrences: Any, width: Any) -> tuple[Any, Any]:
    """The published split of N: for each width, the line of n_unique over 1 / r.

    Parameters
    ----------
    n_unique, recurrences, width : array-like, shape (run,)
        Parameters in all, r, and the width whose runs share a line. Each distinct (r, n_unique) of a width counts once,
        however many runs it has.

    Returns
    -------
    (N_once, N_rec), ndarrays of shape (run,), parameters: the line's intercept, and its slope over r. A width with one
    r has no line: all of its N runs once there if r = 1.

    Raises
    ------
    UsageError
        A width has looped runs of one r only.

    References
    ----------
    arXiv 2604.21106, whose own fits use this split (a line over 16 / r, the shared layers, is the same line).
    """
    n, r, d = (np.asarray(values, dtype=float) for values in (n_unique, recurrences, width))
    n_once, n_rec = n.copy(), np.zeros_like(n)
    for one in np.unique(d):
        rows = d == one
        points = np.unique(np.stack([1 / r[rows], n[rows]]), axis=1)
        if np.ptp(points[0]) > 0:
            share, size = points - points.mean(axis=1, keepdims=True)
            slope = (share @ size) / (share @ share)
            intercept = points[1].mean() - slope * points[0].mean()
            n_once[rows], n_rec[rows] = intercept, slope / r[rows]
        elif (r[rows] > 1).any():
            raise UsageError(
                f"--injection-in regression draws a line of n_unique over 1 / r for each width, and all "
                f"{rows.sum()} runs of width {one:g} have r = {r[rows][0]:g}",
                allowed="two or more r for each width with looped runs, or once, rec, nowhere",
                do="choose another convention, or leave that width out with --where",
            )
    return n_once, n_rec
