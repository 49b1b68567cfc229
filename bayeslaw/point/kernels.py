"""What the point fits evaluate, in numba: sums of Huber losses with exact derivatives, linear refits, damped steps.

Throughout, ``core`` is the row of six natural coordinates of `bayeslaw.kernels`, ``slot`` the entry of ``log_g`` of
each run, and sizes and tokens are in units of the centre. ``delta`` is where Huber's loss turns linear; inf is least
squares.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from bayeslaw.kernels import N_CORE, N_PARTIAL, law_mean


@njit(cache=True, error_model="numpy")
def law_runs(core: Any, log_g: Any, slot: Any, once: Any, rec: Any, log_d: Any, mean: Any, partial: Any) -> None:
    """`law_mean` with one core for all runs."""
    cores = core.reshape(1, N_CORE)
    law_mean(cores, np.zeros(len(slot), np.int64), log_g, slot, once, rec, log_d, mean, partial)


@njit(cache=True, error_model="numpy")
def huber_sum(
    core: Any, log_g: Any, slot: Any, once: Any, rec: Any, log_d: Any, log_loss: Any, weight: Any, delta: Any
) -> Any:
    """Sum of weighted Huber losses of the differences of log losses."""
    n = len(slot)
    mean, partial = np.empty(n), np.empty((n, N_PARTIAL))
    law_runs(core, log_g, slot, once, rec, log_d, mean, partial)
    total = 0.0
    for i in range(n):
        off = abs(log_loss[i] - mean[i])
        total += weight[i] * (0.5 * off * off if off <= delta else delta * (off - 0.5 * delta))
    return total


@njit(cache=True, error_model="numpy")
def huber_slope(
    core: Any, log_g: Any, slot: Any, once: Any, rec: Any, log_d: Any, log_loss: Any, weight: Any, delta: Any, grad: Any
) -> Any:
    """As `huber_sum`, with the gradient by the core and each log g written, shape (6 + slot,)."""
    n = len(slot)
    mean, partial = np.empty(n), np.empty((n, N_PARTIAL))
    law_runs(core, log_g, slot, once, rec, log_d, mean, partial)
    total = 0.0
    for i in range(n):
        off = log_loss[i] - mean[i]
        size = abs(off)
        total += weight[i] * (0.5 * off * off if size <= delta else delta * (size - 0.5 * delta))
        pull = weight[i] * min(max(off, -delta), delta)
        for j in range(N_CORE):
            grad[j] -= pull * partial[i, j]
        grad[N_CORE + slot[i]] -= pull * partial[i, N_CORE]
    return total


@njit(cache=True, error_model="numpy")
def huber_expansion(
    core: Any, log_g: Any, slot: Any, once: Any, rec: Any, log_d: Any, log_loss: Any, weight: Any, delta: Any,
    grad: Any, size: Any, hess: Any, major: Any,
) -> Any:  # fmt: skip
    """As `huber_slope`, with more written: the gradient's absolute contributions, the Hessian and a majoriser of it.

    With p the share of the excess in the loss, x its logarithm and e_0 the axis of log E, the Hessian of a run's log
    loss is p (1 - p) (e_0 - dx) (e_0 - dx)' + p d2x, where x = k log(exp(t / k) + exp(u / k)) of the terms' logarithms
    t and u. The majoriser is that of reweighted least squares: J' diag(weight min(1, delta / |off|)) J.
    """
    n = len(slot)
    mean, partial = np.empty(n), np.empty((n, N_PARTIAL))
    law_runs(core, log_g, slot, once, rec, log_d, mean, partial)
    a, b, k = math.exp(core[3]), math.exp(core[4]), math.exp(core[5])
    where = np.arange(N_PARTIAL)
    second = np.empty((N_PARTIAL, N_PARTIAL))
    dx, apart, cross = np.zeros(N_PARTIAL), np.zeros(N_PARTIAL), np.zeros(N_PARTIAL)
    total = 0.0
    for i in range(n):
        off = log_loss[i] - mean[i]
        far = abs(off)
        total += weight[i] * (0.5 * off * off if far <= delta else delta * (far - 0.5 * delta))
        pull = weight[i] * min(max(off, -delta), delta)
        bend = weight[i] if far <= delta else 0.0
        soft = weight[i] if far <= delta else weight[i] * delta / far
        repeated = math.exp(log_g[slot[i]]) * rec[i]
        n_eff = once[i] + repeated
        s, log_n = repeated / n_eff, math.log(n_eff)
        t, u = core[1] - a * log_n, core[2] - b * log_d[i]
        w = 1 / (1 + math.exp(-(t - u) / k))
        v = 1 - w
        p = 1 - partial[i, 0]
        h = max(t, u) + k * math.log1p(math.exp(-abs(t - u) / k)) - w * t - v * u
        dx[1], dx[2], dx[3], dx[4], dx[5], dx[6] = w, v, -w * a * log_n, -v * b * log_d[i], h, -w * a * s
        # The direction along which the balance of the two terms moves.
        cross[1], cross[2], cross[3], cross[4], cross[5], cross[6] = 1, -1, -a * log_n, b * log_d[i], u - t, -a * s
        for j in range(N_PARTIAL):
            apart[j] = -dx[j]
        apart[0] = 1.0
        for j in range(N_PARTIAL):
            for m in range(N_PARTIAL):
                second[j, m] = p * (1 - p) * apart[j] * apart[m] + p * w * v / k * cross[j] * cross[m]
        second[5, 5] += p * h
        second[3, 3] -= p * w * a * log_n
        second[4, 4] -= p * v * b * log_d[i]
        second[3, 6] -= p * w * a * s
        second[6, 3] -= p * w * a * s
        second[6, 6] -= p * w * a * s * (1 - s)
        where[N_CORE] = N_CORE + slot[i]
        for j in range(N_PARTIAL):
            grad[where[j]] -= pull * partial[i, j]
            # A perfect fit has only rounding left, which should not read as a pull of all runs.
            size[where[j]] += (abs(pull) + 1e-9 * weight[i]) * abs(partial[i, j])
            for m in range(N_PARTIAL):
                outer = partial[i, j] * partial[i, m]
                hess[where[j], where[m]] += bend * outer - pull * second[j, m]
                major[where[j], where[m]] += soft * outer
    return total


@njit(cache=True, error_model="numpy")
def solve_nonnegative(gram: Any, right: Any, with_first: Any, answer: Any) -> Any:
    """Non-negative least squares in three variables: the best feasible one of the seven sets that may be above 0.

    Parameters
    ----------
    gram, right : ndarray, shape (3, 3) and (3,)
        Products of the columns with each other and with the target.
    with_first : bool
        False holds the first variable at 0.
    answer : ndarray, shape (3,)
        Written.

    Returns
    -------
    float
        Residual sum of squares less that of all zeros.
    """
    work, values, members = np.empty((3, 4)), np.empty(3), np.empty(3, np.int64)
    best = 0.0
    answer[:] = 0.0
    for chosen in range(1, 8):
        if not with_first and chosen & 1:
            continue
        count = 0
        for axis in range(3):
            if chosen >> axis & 1:
                members[count] = axis
                count += 1
        for p in range(count):
            for q in range(count):
                work[p, q] = gram[members[p], members[q]]
            work[p, 3] = right[members[p]]
        regular = True
        for p in range(count):
            if not work[p, p] > 1e-12 * gram[members[p], members[p]]:
                regular = False
                break
            for row in range(count):
                if row != p:
                    factor = work[row, p] / work[p, p]
                    for q in range(p, count):
                        work[row, q] -= factor * work[p, q]
                    work[row, 3] -= factor * work[p, 3]
        if not regular:
            continue
        gain = 0.0
        feasible = True
        for p in range(count):
            values[p] = work[p, 3] / work[p, p]
            feasible = feasible and values[p] >= 0
            gain -= values[p] * right[members[p]]
        if feasible and gain < best:
            best = gain
            answer[:] = 0.0
            for p in range(count):
                answer[members[p]] = values[p]
    return best


@njit(cache=True, error_model="numpy")
def refit(
    core: Any, log_g: Any, slot: Any, once: Any, rec: Any, log_d: Any, log_loss: Any, weight: Any, delta: Any
) -> None:
    """Replace E, size and data in the core by one reweighted Gauss-Newton step at the given exponents.

    A coefficient that would be 0 shrinks by a thousand instead, so that it can come back.
    """
    n = len(slot)
    mean, partial = np.empty(n), np.empty((n, N_PARTIAL))
    law_runs(core, log_g, slot, once, rec, log_d, mean, partial)
    k = math.exp(core[5])
    now = np.array([math.exp(core[0]), math.exp(core[1] / k), math.exp(core[2] / k)])
    gram, right, column, answer = np.zeros((3, 3)), np.zeros(3), np.empty(3), np.empty(3)
    for i in range(n):
        off = log_loss[i] - mean[i]
        soft = weight[i] if abs(off) <= delta else weight[i] * delta / abs(off)
        column[0] = partial[i, 0] / now[0]
        column[1] = k * partial[i, 1] / now[1]
        column[2] = k * partial[i, 2] / now[2]
        target = off + column[0] * now[0] + column[1] * now[1] + column[2] * now[2]
        for p in range(3):
            right[p] += soft * column[p] * target
            for q in range(3):
                gram[p, q] += soft * column[p] * column[q]
    solve_nonnegative(gram, right, True, answer)
    for p in range(3):
        value = math.log(max(answer[p], 1e-3 * now[p]))
        core[p] = value if p == 0 else k * value


@njit(cache=True, error_model="numpy")
def damped_step(matrix: Any, major: Any, grad: Any, free: Any, damping: Any, step: Any) -> Any:
    """Write the step -(matrix + damping diag(major))^-1 grad in the free parameters, by Cholesky factors.

    Returns
    -------
    bool
        False where the damped matrix is not positive, with nothing written.
    """
    members = np.flatnonzero(free)
    n = len(members)
    lower, y = np.zeros((n, n)), np.empty(n)
    mean = 0.0
    for i in members:
        mean += major[i, i] / n
    for p in range(n):
        i = members[p]
        for q in range(p + 1):
            total = matrix[i, members[q]]
            if p == q:
                # A parameter that no run tells of has a diagonal of 0: it stays where it is.
                total += damping * major[i, i] + 1e-12 * damping * mean + 1e-300
            for m in range(q):
                total -= lower[p, m] * lower[q, m]
            if p == q:
                if not total > 0:
                    return False
                lower[p, p] = math.sqrt(total)
            else:
                lower[p, q] = total / lower[q, q]
    for p in range(n):
        y[p] = -grad[members[p]]
        for m in range(p):
            y[p] -= lower[p, m] * y[m]
        y[p] /= lower[p, p]
    step[:] = 0.0
    for p in range(n - 1, -1, -1):
        value = y[p]
        for m in range(p + 1, n):
            value -= lower[m, p] * step[members[m]]
        step[members[p]] = value / lower[p, p]
    return True
