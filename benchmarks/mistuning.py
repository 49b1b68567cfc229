"""What half or twice the matrices' rate does to the losses of each arm of `desk`, and through them to phi.

Part of `python benchmarks/desk.py`. An arm is a recipe with one r; r = 1 serves all recipes. Differences of log loss
are paired by seed. The pairs of an arm scatter by a covariance that is pooled over the arms (three seeds an arm, so 14
degrees of freedom with seven arms), and means are drawn from the multivariate t that follows.

A shift is measured at one size and budget and taken to hold at all of them, which one cell cannot show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.fit import fit
from bayeslaw.point.fit import point_fit
from bayeslaw.posterior import Fit
from bayeslaw.runs import RunTable

Array = NDArray[np.float64]
Arm = tuple[str, int]

FACTORS = (0.5, 2.0)
DRAWS = 4000
REFITS = 100
"""Draws of the shifts through which each scenario's point fit goes."""


@dataclass(frozen=True, kw_only=True)
class Shifts:
    """Change of log loss with half and with twice the rate.

    Parameters
    ----------
    arms : tuple of (recipe, r)
    mean : ndarray, shape (arm, factor)
    se : ndarray, shape (factor,)
        Of every arm's mean.
    free : int
        Degrees of freedom of the pooled covariance.
    draws : ndarray, shape (sample, arm, factor)
        Of the means.
    loss : ndarray, shape (arm,)
        Mean loss at the study's own rate, nats per token.
    """

    arms: tuple[Arm, ...]
    mean: Array
    se: Array
    free: int
    draws: Array
    loss: Array


def shifts_of(study: pd.DataFrame, rates: pd.DataFrame, seed: int = 0) -> Shifts:
    """From the runs of both data sets at the cell whose rates were swept."""
    keys = ["recipe", "recurrences", "d_model", "budget", "seed"]
    pairs = rates.merge(study, on=keys, suffixes=("", "_own"), validate="many_to_one")
    pairs["shift"] = np.log(pairs["loss"] / pairs["loss_own"])
    wide = pairs.pivot_table(index=["recipe", "recurrences", "seed"], columns="rate_factor", values="shift")
    wide = wide[list(FACTORS)].dropna()
    groups = wide.groupby(level=["recipe", "recurrences"])
    mean, counts = groups.mean(), groups.size()
    off = (wide - groups.transform("mean")).to_numpy()
    free = len(wide) - len(mean)
    covariance = off.T @ off / free
    rng = np.random.default_rng(seed)
    heavy = np.sqrt(free / rng.chisquare(free, DRAWS))[:, None, None]
    noise = rng.multivariate_normal(np.zeros(len(FACTORS)), covariance, (DRAWS, len(mean)))
    spread = 1 / np.sqrt(counts.to_numpy(dtype=float))
    own = pairs.drop_duplicates(["recipe", "recurrences", "seed"]).groupby(["recipe", "recurrences"])["loss_own"]
    return Shifts(
        arms=tuple((str(recipe), int(r)) for recipe, r in mean.index),
        mean=mean.to_numpy(),
        se=np.sqrt(np.diag(covariance)) * float(spread.mean()),
        free=free,
        draws=mean.to_numpy() + heavy * spread[:, None] * noise,
        loss=own.mean().loc[mean.index].to_numpy(),
    )


def parabola(shifts: Array) -> tuple[Array, Array]:
    """Best log2 of the rate's factor and what the study's own rate loses there on log loss; shifts (..., factor).

    The best rate is held within those tried: where the parabola has no minimum in them, the better end.
    """
    half, twice = shifts[..., 0], shifts[..., 1]
    curvature, slope = (half + twice) / 2, (twice - half) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(curvature > 0, -slope / (2 * curvature), -np.sign(slope) * np.inf)
    best = np.clip(inner, -1, 1)
    loses: Array = -(curvature * best**2 + slope * best)
    return best, loses


def scenarios(shifts: Shifts) -> dict[str, Callable[[Array], Array]]:
    """For each scenario, the change of each arm's log loss as a function of shifts (..., arm, factor)."""
    plain = np.array([r == 1 for _, r in shifts.arms])
    out: dict[str, Callable[[Array], Array]] = {}
    for column, factor in enumerate(FACTORS):
        for name, which in (("all arms", plain | True), ("loops only", ~plain), ("r = 1 only", plain)):
            out[f"{name}, rate x {factor:g}"] = lambda draws, column=column, which=which: draws[..., column] * which
    out["each arm at its own best rate"] = lambda draws: -parabola(draws)[1]
    return out


def shifted(table: RunTable, arms: tuple[Arm, ...], change: Array) -> RunTable:
    """The runs with the log loss of each arm changed."""
    by_arm = dict(zip(arms, change, strict=True))
    runs = table.runs
    # The loops of all recipes share the baseline's r = 1.
    keys = zip(runs["recipe"], runs["recurrences"].astype(int), strict=True)
    factor = np.exp([by_arm[key] for key in keys])
    return replace(table, runs=runs.assign(loss=runs["loss"] * factor))


def phi_shifts(table: RunTable, posterior: Fit, shifts: Shifts, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """For each scenario and recipe: the default model's phi less its own, and point fits' with the shifts' error.

    The posterior is fitted with the mean shifts; how unsure the shifts are goes through point fits of the coupled law
    (least squares), one for each of some draws of the shifts.
    """
    rows: list[dict[str, Any]] = []
    own = {recipe: posterior.draws(recipe, names=["phi"])["phi"] for recipe in posterior.recipes}
    point = _point(table)
    for name, change in scenarios(shifts).items():
        say(f"mis-tuned: {name}")
        sampled = fit(shifted(table, shifts.arms, change(shifts.mean)), drift=False)
        draws = [_point(shifted(table, shifts.arms, each)) for each in change(shifts.draws[:REFITS])]
        for recipe in posterior.recipes:
            phi = sampled.draws(recipe, names=["phi"])["phi"]
            moved = np.array([each[recipe] for each in draws]) - point[recipe]
            rows.append(
                {
                    "scenario": name,
                    "recipe": recipe,
                    "phi": float(phi.mean()),
                    "q05": float(np.quantile(phi, 0.05)),
                    "q95": float(np.quantile(phi, 0.95)),
                    "shift": float(phi.mean() - own[recipe].mean()),
                    "point_shift": float(moved.mean()),
                    "point_se": float(moved.std(ddof=1)),
                    "point_q05": float(np.quantile(moved, 0.05)),
                    "point_q95": float(np.quantile(moved, 0.95)),
                }
            )
    return rows


def _point(table: RunTable) -> dict[str, float]:
    found: dict[str, float] = point_fit(table, law="coupled", loss="ls").parameters["phi"]
    return found


def rate_rows(shifts: Shifts) -> list[dict[str, Any]]:
    """For each arm: loss at the study's rate, its change with either other one, the best rate, what is lost there."""
    rows = []
    best, loses = parabola(shifts.draws)
    at_mean = parabola(shifts.mean)
    for arm, (recipe, r) in enumerate(shifts.arms):
        row: dict[str, Any] = {"recipe": recipe, "recurrences": r, "loss": float(shifts.loss[arm])}
        for column, factor in enumerate(FACTORS):
            row[f"change_x{factor:g}"] = float(shifts.mean[arm, column] * shifts.loss[arm])
            row[f"se_x{factor:g}"] = float(shifts.se[column] * shifts.loss[arm])
        edges = float((np.abs(best[:, arm]) == 1).mean())
        row |= {
            "best_factor": float(2 ** at_mean[0][arm]),
            "best_q05": float(2 ** np.quantile(best[:, arm], 0.05)),
            "best_q95": float(2 ** np.quantile(best[:, arm], 0.95)),
            "p_at_an_end": edges,
            "lost": float(at_mean[1][arm] * shifts.loss[arm]),
            "lost_q05": float(np.quantile(loses[:, arm], 0.05) * shifts.loss[arm]),
            "lost_q95": float(np.quantile(loses[:, arm], 0.95) * shifts.loss[arm]),
        }
        rows.append(row)
    return rows
