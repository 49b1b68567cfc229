"""The published procedure: the best of 500 random quasi-Newton starts, and a block bootstrap over (budget, r) cells.

`random_starts` draws its starts evenly in the published box of a, b, e (the logarithms of A, B and E), alpha, beta and
phi. Each is minimised with a and b replaced by the terms at the centre of the runs, which takes a tenth of the steps.
`bayeslaw.point.fit` reaches the same optimum faster; its fits are what the bootstrap repeats.

References
----------
arXiv 2604.21106, fit procedure: sum over the runs of Huber's loss with delta = 1e-3 of the difference of log losses.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from bayeslaw.errors import FitError, UsageError
from bayeslaw.point.ending import parameters_of
from bayeslaw.point.fit import DELTA, PointFit, fit_of, problems_of
from bayeslaw.point.objective import Problem
from bayeslaw.point.varpro import Optimum, descend, measured, search, starts
from bayeslaw.runs import RunTable

Array = NDArray[np.float64]

STARTS = 500
BOX = {"a": (-5.0, 35.0), "b": (-5.0, 35.0), "exponent": (0.0, 2.5), "e": (-3.0, 2.0), "real": (-3.0, 3.0)}
"""Where starts are drawn: log A, log B, alpha and beta, log E, and phi (or any real map parameter)."""
LEAST, MOST = 1e-6, 100.0
"""Bounds of the exponents."""
EXTRA = {"k": (0.2, 3.0), "positive": (-3.0, 3.0)}
"""The same for what the published law lacks: k, and logarithms of map parameters above 0."""


def random_starts(
    source: RunTable | pd.DataFrame | str | Path,
    *,
    law: str = "additive",
    map: str | None = None,
    loss: str = "huber",
    injection_in: str = "once",
    recipe: str | None = None,
    delta: float = DELTA,
    n_starts: int = STARTS,
    seed: int = 0,
) -> PointFit:
    """Fit a law by L-BFGS-B from random starts, with exact gradients and a stop test that does not end early.

    Parameters
    ----------
    source, law, map, loss, injection_in, recipe, delta
        As `bayeslaw.point.fit.point_fit` takes them.
    n_starts : int
    seed : int
        Of the starts.

    Returns
    -------
    PointFit
        ``n_agree`` and ``n_near`` say how many starts ended within 1e-6 and within 1 % of the best.

    Raises
    ------
    UsageError, FitError
        As `bayeslaw.point.fit.point_fit`.
    """
    began = time.perf_counter()
    if n_starts < 1:
        raise UsageError(f"n_starts = {n_starts}", allowed="1 or more")
    table, problems = problems_of(
        source, law=law, map=map, loss=loss, injection_in=injection_in, recipe=recipe, delta=delta
    )
    rng = np.random.default_rng(seed)
    ends = {name: _search(problem, n_starts, rng) for name, problem in problems.items()}
    return fit_of(table, problems, ends, loss=loss, injection_in=injection_in, began=began)


def _search(problem: Problem, n_starts: int, rng: np.random.Generator) -> list[Optimum]:
    """Where L-BFGS-B ends from each start."""
    low, high = _box(problem)
    # Sums of Huber's loss are near 1e-4: unscaled, the tests for a small gradient and a small gain pass at once.
    unit = min(problem.delta, 1e-2) ** 2
    tight = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-9, "gtol": 1e-8, "maxcor": 10}
    limits: list[tuple[float | None, float | None]] = [(None, None)] * len(low)
    limits[3:5] = [(LEAST, MOST)] * 2
    if problem.law.coupled:
        limits[5] = (1e-2, 1e3)

    def scaled(point: Array) -> tuple[float, Array]:
        theta = _natural(problem, point)
        value, grad = problem.gradient(theta)
        if not math.isfinite(value):
            return 1e30, np.zeros_like(point)
        grad[3:] = grad[3:] / np.where(is_log, point[3:], 1.0)
        return value / unit, grad / unit

    is_log = np.arange(3, problem.size) < problem.n_core
    ends = []
    for start in rng.uniform(low, high, (n_starts, len(low))):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # steps far out of the box, taken back
            found = minimize(
                scaled, _centred(problem, start), jac=True, method="L-BFGS-B", bounds=limits, options=tight
            )
            end = measured(problem, _natural(problem, found.x))
        ends.append(end if math.isfinite(end.objective) else Optimum(end.theta, math.inf, math.inf))
    return ends


def _box(problem: Problem) -> tuple[Array, Array]:
    """Corners of the box that starts are drawn in, in the order a, b, alpha, beta, e, [k], map."""
    coupling = [EXTRA["k"]] if problem.law.coupled else []
    core = [BOX["a"], BOX["b"], BOX["exponent"], BOX["exponent"], BOX["e"], *coupling]
    maps = [EXTRA["positive"] if logged else BOX["real"] for logged in problem.logged] * len(problem.inputs.recipes)
    low, high = np.array([*core, *maps]).T
    return low, high


def _centred(problem: Problem, point: Array) -> Array:
    """(a, b, alpha, beta, e, [k], map) as (e, log size, log data, k alpha, k beta, [k], map): terms at the centre."""
    log_n0, log_d0 = np.log(problem.inputs.centre)
    a, b, alpha, beta, e = point[:5]
    k = point[5] if problem.law.coupled else 1.0
    out = point.copy()
    out[:5] = e, k * (a - alpha * log_n0), k * (b - beta * log_d0), max(k * alpha, LEAST), max(k * beta, LEAST)
    return out


def _natural(problem: Problem, point: Array) -> Array:
    """The vector of `Problem` from `_centred`: exponents and k become logarithms."""
    theta = point.copy()
    theta[3 : problem.n_core] = np.log(np.maximum(point[3 : problem.n_core], LEAST))
    return theta


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Point fits of resampled tables; prints the percentiles.

    Parameters
    ----------
    samples : DataFrame, shape (resample, parameter)
        Parameters in natural units; those of a recipe as ``phi[recipe]``.
    n_cells, seed : int
    seconds : float
    """

    samples: pd.DataFrame
    n_cells: int
    seed: int
    seconds: float

    @property
    def percentiles(self) -> pd.DataFrame:
        """2.5, 50 and 97.5 % of every parameter, one row a parameter."""
        return self.samples.quantile([0.025, 0.5, 0.975]).T

    def interval(self, name: str, mass: float = 0.95) -> tuple[float, float]:
        """Percentile interval of a parameter."""
        low, high = self.samples[name].quantile([(1 - mass) / 2, (1 + mass) / 2])
        return float(low), float(high)

    def as_dict(self) -> dict[str, Any]:
        """Percentiles of every parameter, ready for JSON."""
        rows = self.percentiles
        return {
            "resamples": len(self.samples), "cells": self.n_cells, "seed": self.seed, "seconds": self.seconds,
            "percentiles": {
                str(name): {
                    key: float(value) if math.isfinite(value) else None
                    for key, value in zip(("2.5", "50", "97.5"), row, strict=True)
                }
                for name, row in zip(rows.index, rows.to_numpy(), strict=True)
            },
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"block bootstrap: {len(self.samples)} resamples of {self.n_cells} cells", f"{'':24s}" + "".join(
            f"{name:>12s}" for name in ("2.5 %", "50 %", "97.5 %"))]  # fmt: skip
        rows = self.percentiles
        for name, row in zip(rows.index, rows.to_numpy(), strict=True):
            lines.append(f"{name:24s}" + "".join(f"{value:12.5g}" for value in row))
        return "\n".join(lines)


def block_bootstrap(
    source: RunTable | pd.DataFrame | str | Path,
    *,
    resamples: int = 200,
    seed: int = 0,
    loss: str = "huber",
    law: str = "additive",
    map: str | None = None,
    injection_in: str = "once",
    recipe: str | None = None,
    delta: float = DELTA,
) -> Bootstrap:
    """Resample the (recipe, budget, r) cells with replacement and fit each resample.

    Each fit starts at the fit of all runs and at the two best points of the grid under the resample's weights.

    Parameters
    ----------
    source, law, map, loss, injection_in, recipe, delta
        As `bayeslaw.point.fit.point_fit` takes them; law additive or coupled.
    resamples, seed : int

    Returns
    -------
    Bootstrap

    Raises
    ------
    FitError
        Runs without budgets, or fewer than two cells.
    UsageError
        An option that there is not.
    """
    began = time.perf_counter()
    if law == "chinchilla":
        raise UsageError("a block bootstrap of --law chinchilla", allowed="additive, coupled")
    if resamples < 1:
        raise UsageError(f"resamples = {resamples}", allowed="1 or more")
    _, problems = problems_of(
        source, law=law, map=map, loss=loss, injection_in=injection_in, recipe=recipe, delta=delta
    )
    problem = problems[""]
    cell = problem.inputs.cell
    if cell is None or len(cell.levels) < 2:
        raise FitError(
            "these runs have no budget" if cell is None else "these runs are one (budget, r) cell",
            allowed="a budget for every run, and two or more cells to resample",
            do="add the column budget, or sample the posterior for intervals",
        )
    rng = np.random.default_rng(seed)
    full = min(search(problem, 4, rng), key=lambda end: end.objective)
    rows = []
    for _ in range(resamples):
        drawn = np.bincount(rng.integers(len(cell.levels), size=len(cell.levels)), minlength=len(cell.levels))
        resample = problem.changed(weight=drawn[cell.index].astype(float))
        ends = [descend(resample, full.theta), *(descend(resample, point) for point in starts(resample, 2)[:2])]
        best = min(ends, key=lambda end: end.objective)
        rows.append(_flat(parameters_of(resample, best.theta)))
    seconds = time.perf_counter() - began
    return Bootstrap(samples=pd.DataFrame(rows, dtype=float), n_cells=len(cell.levels), seed=seed, seconds=seconds)


def _flat(parameters: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in parameters.items():
        out |= {f"{name}[{key}]": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return out
