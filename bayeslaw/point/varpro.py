"""Least losses of a law by variable projection: a grid of exponents with the linear part solved, then Newton steps.

For given exponents the law is linear in E, A and B (the coupled law in A and B, once E and k are given too), so a
coarse grid of exponents with a small non-negative least squares problem at each point finds every basin. The best
distinct points are then polished in log parameters by damped Newton steps with the exact Hessian, which end at a
gradient of rounding size where quasi-Newton stop tests end early.

References
----------
Golub, Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose variables separate",
SIAM J. Numer. Anal. 10 (1973).
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bayeslaw.point.kernels import damped_step, solve_nonnegative
from bayeslaw.point.objective import Problem

Array = NDArray[np.float64]

SMALL_GRADIENT = 1e-6
"""Scaled gradient (see `Optimum.gradient`) up to which a point counts as stationary."""

SMALL_TERM = 0.05
"""Share of every run's loss below which a term may be on its way to 0."""

_EXPONENTS = np.geomspace(0.03, 2.0, 14)
_COUPLINGS = (0.3, 0.5, 1.0, 2.0)
_FLOORS = (0.02, 0.3, 0.5, 0.65, 0.8, 0.92)
_REAL = np.array([-0.6, -0.2, 0.15, 0.4, 0.65, 0.9, 1.3])
_POSITIVE = np.geomspace(0.03, 30.0, 7)
_SHORTLIST = 48


class Optimum(NamedTuple):
    """Where a polish ended.

    Parameters
    ----------
    theta : ndarray, shape (parameter,)
        See `Problem`.
    objective : float
    gradient : float
        Largest over the parameters, of the gradient against the sum of its runs' absolute contributions: 0 at a
        stationary point, 1 where every run pulls the same way. Parameters that press against a bound are left out.
    """

    theta: Array
    objective: float
    gradient: float


def polish(problem: Problem, theta: Array, *, iterations: int = 200, enough: float = 0.0) -> Optimum:
    """From a start to the nearest optimum, in damped steps: reweighted Gauss-Newton while that gains, then Newton.

    Parameters
    ----------
    problem : Problem
    theta : ndarray, shape (parameter,)
    iterations : int
        At most so many steps.
    enough : float
        Ends when a step gains less than this, relative to the objective.
    """
    low, high = problem.bounds
    theta = problem.refitted(problem.refitted(np.clip(theta, low, high)))
    damping, newton = 1e-3, False
    value, grad, hess, major, size = problem.expansion(theta)
    for _ in range(iterations):
        free = _free(theta, grad, low, high)
        if _scaled(grad, size, free) < 1e-13:
            break
        step, gain = np.empty_like(theta), -1.0
        while damping < 1e12:
            exact = newton and damped_step(hess, major, grad, free, damping, step)
            if not exact:
                damped_step(major, major, grad, free, damping, step)
            trial = np.clip(theta + step * min(1.0, 3.0 / max(np.abs(step).max(), 1e-300)), low, high)
            if exact and -(grad @ step) < 1e-12 * value:
                return _last_step(problem, Optimum(theta, value, _scaled(grad, size, free)), trial)
            reached = problem.objective(trial)
            if not exact:  # far off the valley is curved: its linear coefficients follow the exponents
                projected = problem.refitted(trial)
                again = problem.objective(projected)
                if again < reached:
                    reached, trial = again, projected
            if reached < value:
                gain = (value - reached) / value
                break
            damping = max(10 * damping, 1e-6)
        if gain < 0 and newton:
            break
        newton = newton or gain < 0.03
        damping = max(damping / 10, 1e-14) if gain > 0 else 1e-3
        if gain > 0:
            theta = trial
            value, grad, hess, major, size = problem.expansion(theta)
        if 0 < gain < max(enough, 1e-15):
            break
    return Optimum(theta, value, _scaled(grad, size, _free(theta, grad, low, high)))


def _last_step(problem: Problem, at: Optimum, trial: Array) -> Optimum:
    """Newton's last step gains less than rounding lets the objective show: the gradient decides on it."""
    end = measured(problem, trial)
    return end if end.gradient < at.gradient and end.objective <= at.objective * (1 + 1e-12) else at


def descend(problem: Problem, theta: Array, *, wide: bool = True, iterations: int = 200) -> Optimum:
    """`polish`, with bounds looked at.

    Parameters
    ----------
    problem, theta, iterations : as for `polish`
    wide : bool
        Begin with a few steps on a wider Huber loss: it has no kinks to slow a start from far away, but may lead out
        of a basin that only the narrow loss has.
    """
    theta = problem.refitted(np.clip(theta, *problem.bounds))
    off = 3 * float(np.median(np.abs(problem.inputs.log_loss - problem.predicted(theta))))
    if wide and off > problem.delta:
        theta = polish(problem.changed(delta=off), theta, iterations=min(8, iterations), enough=1e-3).theta
    end = polish(problem, theta, iterations=iterations)
    # On its way to 0 a term becomes flat in its logarithm and slow: what its bound gives is worth a look.
    for j in np.flatnonzero(problem.share(end.theta) < SMALL_TERM):
        bound = end.theta.copy()
        bound[j] = problem.bounds[0][j]
        end = min(end, polish(problem, bound, iterations=iterations), key=lambda one: one.objective)
    return end


def measured(problem: Problem, theta: Array) -> Optimum:
    """A point as it is, with its objective and scaled gradient."""
    value, grad, _, _, size = problem.expansion(theta)
    return Optimum(theta, value, _scaled(grad, size, _free(theta, grad, *problem.bounds)))


def search(problem: Problem, count: int, rng: np.random.Generator) -> list[Optimum]:
    """Where descents end from the grid's best points, from one drawn near the best, and from other map values.

    Few noisy runs can have two basins along a map parameter that the coarse grid does not tell apart.
    """
    points = starts(problem, count)
    points.append(points[0] + rng.normal(0, 0.5, problem.size))
    ends = [descend(problem, point, wide=i % 2 == 0) for i, point in enumerate(points)]
    for _ in range(3):
        best = min(ends, key=lambda end: end.objective)
        ends += [descend(problem, point, wide=False) for point in _elsewhere(problem, best.theta)]
        if min(end.objective for end in ends) > best.objective * (1 - 1e-6):
            break
    return ends


def _elsewhere(problem: Problem, theta: Array) -> list[Array]:
    """For each recipe, the best point with map values at least two grid steps away and the other exponents as here."""
    axes, m, out = _map_axes(problem), problem.n_map, []
    for i in range(len(problem.inputs.recipes) if m else 0):
        part = slice(problem.n_core + i * m, problem.n_core + (i + 1) * m)
        here = [int(np.abs(axis - value).argmin()) for axis, value in zip(axes, theta[part], strict=True)]
        best: tuple[float, Array] = (math.inf, theta)
        for cell in _map_cells(axes):
            if max(abs(p - q) for p, q in zip(cell, here, strict=True)) > 1:
                trial = theta.copy()
                trial[part] = [axis[j] for axis, j in zip(axes, cell, strict=True)]
                trial = problem.refitted(trial)
                best = min(best, (problem.objective(trial), trial), key=lambda entry: entry[0])
        out.append(best[1])
    return out


def _free(theta: Array, grad: Array, low: Array, high: Array) -> NDArray[np.bool_]:
    """Parameters that do not press against a bound."""
    free: NDArray[np.bool_] = ~(((theta <= low) & (grad > 0)) | ((theta >= high) & (grad < 0)))
    free[:3] &= theta[:3] > low[:3]  # a term at 0 has nothing left to pull by
    return free


def _scaled(grad: Array, size: Array, free: NDArray[np.bool_]) -> float:
    # A parameter that hardly moves any run, E on its way to 0 say, is measured by the others' contributions.
    least = max(1e-6 * float(size.max()), 1e-300)
    return float((np.abs(grad[free]) / np.maximum(size[free], least)).max(initial=0.0))


def starts(problem: Problem, count: int) -> list[Array]:
    """The best distinct points of the grid of exponents, best first.

    Huber's loss takes a second look at the grid with the weights that the best point gives the runs: a few outliers
    else decide the first.
    """
    grid = _map_grid(problem)
    picked = _best_of_grid(problem, grid, problem.weight, count)
    if math.isfinite(problem.delta) and picked:
        off = np.abs(problem.inputs.log_loss - problem.predicted(picked[0]))
        weight = problem.weight * np.minimum(1.0, problem.delta / np.maximum(off, 1e-300))
        picked = _best_of_grid(problem, grid, weight, count) + picked[: max(2, count // 3)]
    return picked


def _map_axes(problem: Problem) -> list[Array]:
    """Values of each map parameter to look at."""
    return [np.log(_POSITIVE) if logged else _REAL for logged in problem.logged]


def _map_cells(axes: list[Array]) -> list[tuple[int, ...]]:
    """Indices into the axes: a product for up to two parameters, common values beyond."""
    ranges = [range(len(axis)) for axis in axes]
    return list(product(*ranges)) if len(axes) <= 2 else list(zip(*ranges, strict=True))


def _map_grid(problem: Problem) -> list[Array]:
    """Map parts of theta to look at, the same for all recipes."""
    axes = _map_axes(problem)
    rows = [[axis[j] for axis, j in zip(axes, cell, strict=True)] for cell in _map_cells(axes)]
    return [np.tile(row, len(problem.inputs.recipes)) for row in rows]


def _best_of_grid(problem: Problem, grid: list[Array], weight: Array, count: int) -> list[Array]:
    once, rec, log_d, _ = problem.data
    slot = problem.slots[0]
    loss, floor = problem.inputs.loss, float(problem.inputs.loss.min())
    blank = np.zeros(problem.size)
    log_n = []
    for part in grid:
        blank[problem.n_core :] = part
        log_n.append(np.log(once + np.exp(problem.log_worth(blank))[slot] * rec))
    sizes, exponents = np.array(log_n), _EXPONENTS
    shapes = [(k, E * floor) for k in _COUPLINGS for E in _FLOORS] if problem.law.coupled else [(1.0, -1.0)]
    found: list[tuple[float, tuple[int, ...], Array]] = []
    for s, (k, E) in enumerate(shapes):
        target = loss if E < 0 else (loss - E) ** (1 / k)
        root = np.sqrt(weight) * (1 / loss if E < 0 else k * target ** (k - 1) / loss)
        x = np.exp(-exponents[None, :, None] / k * sizes[:, None, :]) * root
        y = np.exp(-exponents[:, None] / k * log_d) * root
        rss, linear = _projected(x, y, root, target * root, E < 0)
        for flat in np.argsort(rss, axis=None)[:_SHORTLIST]:
            m, i, j = (int(v) for v in np.unravel_index(flat, rss.shape))
            e, a, b = linear[m, i, j]
            theta = np.empty(problem.size)
            theta[0] = math.log(max(e if E < 0 else E, 1e-3 * floor))
            theta[1] = k * math.log(max(a, 1e-3 * floor ** (1 / k)))
            theta[2] = k * math.log(max(b, 1e-3 * floor ** (1 / k)))
            theta[3:5] = np.log([exponents[i], exponents[j]])
            if problem.law.coupled:
                theta[5] = math.log(k)
            theta[problem.n_core :] = grid[m]
            found.append((problem.objective(theta), (s, m, i, j), theta))
    found.sort(key=lambda entry: entry[0])
    kept: list[tuple[float, tuple[int, ...], Array]] = []
    for entry in found:
        if all(max(abs(p - q) for p, q in zip(entry[1], other[1], strict=True)) > 1 for other in kept):
            kept.append(entry)
        if len(kept) == count:
            break
    return [theta for _, _, theta in kept]


def _projected(x: Array, y: Array, one: Array, target: Array, with_one: bool) -> tuple[Array, Array]:
    """Non-negative least squares of the target on (one,) x and y, for every pair of an x and a y.

    Parameters
    ----------
    x : ndarray, shape (map, exponent, run)
    y : ndarray, shape (exponent, run)
    one, target : ndarray, shape (run,)
    with_one : bool
        Whether the constant, E, is free.

    Returns
    -------
    (rss, coefficients) : ndarrays, shape (map, exponent, exponent) and (map, exponent, exponent, 3)
    """
    xx, x1, xt, xy = (x * x).sum(axis=-1), x @ one, x @ target, x @ y.T
    rss, linear = np.empty(xy.shape), np.zeros((*xy.shape, 3))
    yy, y1, yt = (y * y).sum(axis=-1), y @ one, y @ target
    _nonnegative(xx, x1, xt, xy, yy, y1, yt, one @ one, one @ target, target @ target, with_one, rss, linear)
    return rss, linear


@njit(cache=True, error_model="numpy")
def _nonnegative(
    xx: Any, x1: Any, xt: Any, xy: Any, yy: Any, y1: Any, yt: Any, oo: Any, ot: Any, tt: Any, with_one: Any, rss: Any,
    linear: Any,
) -> None:  # fmt: skip
    """The problem of `_projected` from its products."""
    gram, right = np.empty((3, 3)), np.empty(3)
    for m in range(xy.shape[0]):
        for i in range(xy.shape[1]):
            for j in range(xy.shape[2]):
                gram[0, 0], gram[1, 1], gram[2, 2] = oo, xx[m, i], yy[j]
                gram[0, 1], gram[0, 2], gram[1, 2] = x1[m, i], y1[j], xy[m, i, j]
                gram[1, 0], gram[2, 0], gram[2, 1] = gram[0, 1], gram[0, 2], gram[1, 2]
                right[0], right[1], right[2] = ot, xt[m, i], yt[j]
                rss[m, i, j] = tt + solve_nonnegative(gram, right, with_one, linear[m, i, j])
