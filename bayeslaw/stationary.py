"""The optimum along a budget line by its stationarity condition, for all posterior draws, in numba.

On a piece of a line D = (amount - fixed(x)) / cost(x), so k and E have no part in where the loss is least: with
X = A N_eff^-alpha and Y = B D^-beta it is where

    alpha X n' = beta Y q,    n' = d log N_eff / d log x,
                              q = -d log D / d log x = x fixed' / (amount - fixed) + x cost' / cost.

The difference of the logarithms of both sides falls in log x, at a nearly constant rate: Newton's method needs two or
three steps. The optimum of a line is where it passes through 0, which may be in a piece, between two or at an end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

STEPS = 40
"""Most of Newton's steps; a step out of the bracket is a bisection."""

FEW_STEPS = 6
"""Steps from a good guess."""

CLOSE = 1e-9
"""Step of log x at which the optimum is found."""


@njit(cache=True, nogil=True, error_model="numpy")
def _slope(x: Any, amount: Any, cost: Any, fixed: Any, once: Any, rec: Any, g: Any, row: Any) -> Any:
    """log(alpha X n') - log(beta Y q) at a size, its derivative by log x, and log N_eff and log D."""
    n_1 = x * (once[1] + g * rec[1])
    n_2 = x * x * (once[2] + g * rec[2])
    n = once[0] + g * rec[0] + n_1 + n_2
    share = (n_1 + 2 * n_2) / n
    share_rate = (n_1 + 4 * n_2) / n - share * share
    c_1, c_2 = x * cost[1], x * x * cost[2]
    c = cost[0] + c_1 + c_2
    f_1, f_2 = x * fixed[1], x * x * fixed[2]
    left = amount - (fixed[0] + f_1 + f_2)
    if left <= 0:
        return -np.inf, -1.0, math.log(n), -np.inf
    of_cost, of_fixed = (c_1 + 2 * c_2) / c, (f_1 + 2 * f_2) / left
    q = of_cost + of_fixed
    log_n, log_d = math.log(n), math.log(left / c)
    if q <= 0:
        return np.inf, -1.0, log_n, log_d
    q_rate = (c_1 + 4 * c_2) / c - of_cost * of_cost + (f_1 + 4 * f_2) / left + of_fixed * of_fixed
    log_A, alpha, log_B, beta = row[0], row[1], row[2], row[3]
    value = math.log(alpha * share / (beta * q)) + log_A - alpha * log_n - log_B + beta * log_d
    return value, -alpha * share + share_rate / share - beta * q - q_rate / q, log_n, log_d


@njit(cache=True, nogil=True, error_model="numpy")
def _nearby(
    low: Any, high: Any, start: Any, amount: Any, cost: Any, fixed: Any, once: Any, rec: Any, g: Any, row: Any
) -> Any:
    """Where the condition holds between two sizes, by plain steps from a good guess; 0 where these do not find it."""
    at = math.log(start)
    for _ in range(FEW_STEPS):
        value, rate, _, _ = _slope(math.exp(at), amount, cost, fixed, once, rec, g, row)
        at -= value / rate
        x = math.exp(at)
        if not low < x < high:
            return 0.0
        if abs(value) < -CLOSE * rate:
            return x
    return 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _inside(
    low: Any, high: Any, start: Any, amount: Any, cost: Any, fixed: Any, once: Any, rec: Any, g: Any, row: Any
) -> Any:
    """Where the condition holds between two sizes on either side of it."""
    low, high = math.log(low), math.log(high)
    at = math.log(start)
    if not low < at < high:
        at = 0.5 * (low + high)
    for _ in range(STEPS):
        value, rate, _, _ = _slope(math.exp(at), amount, cost, fixed, once, rec, g, row)
        if value > 0:
            low = at
        else:
            high = at
        step = -value / rate
        if not (rate < 0 and low <= at + step <= high):
            step = 0.5 * (low + high) - at
        at += step
        if abs(step) < CLOSE:
            break
    return math.exp(at)


@njit(cache=True, nogil=True, error_model="numpy")
def _along(
    begin: Any, last: Any, start: Any, low: Any, high: Any, amount: Any, cost: Any, fixed: Any, once: Any, rec: Any,
    g: Any, row: Any,
) -> Any:  # fmt: skip
    """The optimum of the line whose pieces are ``begin`` to ``last``."""
    for piece in range(begin, last + 1):
        at_low, _, _, _ = _slope(low[piece], amount[piece], cost[piece], fixed[piece], once, rec, g, row)
        if at_low <= 0:
            return low[piece]
        at_high, _, _, _ = _slope(high[piece], amount[piece], cost[piece], fixed[piece], once, rec, g, row)
        if at_high < 0:
            return _inside(low[piece], high[piece], start, amount[piece], cost[piece], fixed[piece], once, rec, g, row)
    return high[last]


@njit(cache=True, nogil=True, error_model="numpy")
def minimise(
    rows: Any, worth: Any, once: Any, rec: Any, first: Any, low: Any, high: Any, amount: Any, cost: Any, fixed: Any,
    size: Any, tokens: Any, loss: Any,
) -> None:  # fmt: skip
    """The optimum of every line for every draw.

    Parameters
    ----------
    rows : ndarray, shape (sample, 6)
        log A, alpha, log B, beta, E, k.
    worth : ndarray, shape (sample,)
        g(r).
    once, rec : ndarray, shape (3,)
        N_once, as it counts in N_eff, and N_rec: coefficients of powers of the size.
    first : ndarray of int, shape (line + 1,)
        The pieces of each line stand one after another from ``first[line]`` on.
    low, high, amount : ndarray, shape (piece,)
        Ends of every piece, and the amount of its limit.
    cost, fixed : ndarray, shape (piece, 3)
    size, tokens, loss : ndarray, shape (sample, line)
        Written.
    """
    for i in range(len(rows)):
        row, g = rows[i], worth[i]
        x = 0.0
        for line in range(len(first) - 1):
            begin, last = first[line], first[line + 1] - 1
            here = begin
            while here < last and x > high[here]:
                here += 1
            found = 0.0
            if low[here] < x < high[here]:
                # The optimum of the line before is a good guess; one inside a piece is the only one.
                found = _nearby(low[here], high[here], x, amount[here], cost[here], fixed[here], once, rec, g, row)
            if found == 0.0:
                found = _along(begin, last, x, low, high, amount, cost, fixed, once, rec, g, row)
                here = begin
                while here < last and found > high[here]:
                    here += 1
            x = found
            _, _, log_n, log_d = _slope(x, amount[here], cost[here], fixed[here], once, rec, g, row)
            size[i, line] = x
            tokens[i, line] = math.exp(log_d)
            terms = np.logaddexp(row[0] - row[1] * log_n, row[2] - row[3] * log_d)
            loss[i, line] = row[4] + math.exp(row[5] * terms)
