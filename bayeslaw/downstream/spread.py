"""A one-way random-effects model of a few numbers: how far groups lie apart, over what repetitions of one differ by.

    y_{b,a,seed} = mu_b + g_{b,a} + e,    g ~ N(0, tau^2),    e ~ N(0, v^2)

with mu_b flat, tau uniform and log v uniform. All but tau and v is Gaussian and integrates out in closed form, so those
two are summed over a grid: exact, and fifty such models take a second, where each would be one to sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Array = NDArray[np.float64]

DRAWS = 4000
_GRID = 120


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The numbers of one model, a cell being a group (architecture) of a block (budget).

    Parameters
    ----------
    level : ndarray of int, shape (cell,)
        The block of each cell, from 0.
    mean : ndarray, shape (cell,)
        Over its repetitions.
    scale : ndarray, shape (cell,)
        Variance of that mean in units of v^2.
    squares : float
        Sum of squares of repetitions about the means of their groups; nan where v is known, and is 1.
    freedom : int
        Its degrees of freedom.
    """

    level: NDArray[np.int64]
    mean: Array
    scale: Array
    squares: float
    freedom: int


def posterior(cells: Cells, *, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Draws of signal, noise, and the probability that two experiments order two cells of a block alike.

    The signal is the standard deviation of the g of the cells at hand, about the means of their blocks: not tau, that
    of a population which they would be drawn from. An experiment has one repetition of each cell.

    Parameters
    ----------
    cells : Cells
    rng : numpy.random.Generator

    Returns
    -------
    signal, noise, order : ndarray, shape (sample,)
    """
    member = np.eye(int(cells.level.max()) + 1)[cells.level]  # (cell, level)
    size = member.sum(axis=0)
    centred = cells.mean - member @ (cells.mean @ member / size)
    spread = math.sqrt((centred**2).sum() / (size - 1).sum())
    known = math.isnan(cells.squares)
    seen = 1.0 if known else math.sqrt(cells.squares / cells.freedom)
    reach = max(spread, math.sqrt(cells.scale.mean()) * seen)
    taus = np.geomspace(1e-3, 30, _GRID) * reach
    sds = np.ones(1) if known else np.geomspace(seen / 30, max(seen, spread) * 30, _GRID)
    tau, v = (each[..., None] for each in np.meshgrid(taus, sds, indexing="ij"))
    log_weight = _log_likelihood(cells, centred, member, tau, v) + np.log(tau[..., 0])  # uniform in tau, not in its log
    if not known:
        log_weight -= cells.freedom * np.log(v[..., 0]) + cells.squares / (2 * v[..., 0] ** 2)
    weight = np.exp(log_weight - log_weight.max()).ravel()
    place = rng.choice(weight.size, DRAWS, p=weight / weight.sum())

    def drawn(grid: Array, index: NDArray[np.int64]) -> Array:
        # Evenly within the grid's cell, on its log scale.
        step = math.log(grid[1] / grid[0]) if grid.size > 1 else 0.0
        values: Array = grid[index] * np.exp(step * rng.uniform(-0.5, 0.5, index.size))
        return values

    row, column = np.unravel_index(place, (taus.size, sds.size))
    tau, noise = drawn(taus, row)[:, None], drawn(sds, column)
    error = noise[:, None] ** 2 * cells.scale
    precision = 1 / (tau**2 + error)
    total = precision @ member
    centre = (precision * centred) @ member / total + rng.standard_normal(total.shape) / np.sqrt(total)
    kept = tau**2 * precision
    g = kept * centred + (1 - kept) * (centre @ member.T) + np.sqrt(error * kept) * rng.standard_normal(error.shape)
    if known:
        noise = np.full(DRAWS, math.sqrt(cells.scale.mean()))
    apart = g - (g @ member / size) @ member.T
    signal: Array = np.sqrt((apart**2).sum(axis=1) / (size - 1).sum())
    pairs = np.array([(a, b) for a, b in combinations(range(len(g[0])), 2) if cells.level[a] == cells.level[b]])
    right = norm.cdf(np.abs(g[:, pairs[:, 0]] - g[:, pairs[:, 1]]) / (math.sqrt(2) * noise[:, None]))
    order: Array = (right**2 + (1 - right) ** 2).mean(axis=1)
    return signal, noise, order


def _log_likelihood(cells: Cells, centred: Array, member: Array, tau: Array, v: Array) -> Array:
    """Log density of the cells' means, the budgets' means integrated out; shape of the grid."""
    precision = 1 / (tau**2 + v**2 * cells.scale)
    total = precision @ member
    middle = (precision * centred) @ member / total
    off = centred - middle @ member.T
    value: Array = 0.5 * (np.log(precision) - precision * off**2).sum(axis=-1) - 0.5 * np.log(total).sum(axis=-1)
    return value
