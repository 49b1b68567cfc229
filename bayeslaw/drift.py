"""How far the law may be off beyond the largest trained budget, learnt by forecasting inside the grid.

A posterior says how sure the parameters are if the law is true. Where a budget lies beyond every trained one the law
itself is a guess, so forecasts let log loss drift away from it: by ``(s + s_r) steps``, where a step is a factor
10^(1/3) of training FLOPs beyond the edge (the spacing of published grids), s is shared by all r and s_r is each r's
own. s and s_r are normal around 0; their standard deviations come from rolling origins: the same model is fitted to
the lowest budgets alone, once for each number of them, its forecasts of the higher ones are held against what was
measured, and what its own uncertainty does not explain is the drift. A table with too few budgets leaves the prior.

The same holds of other ways out of the trained runs: to budgets below the smallest, and to more or fewer tokens per
parameter than were tried. Nothing in a grid says how fast the law goes wrong there, so each of these directions has
slopes of its own, of the same standard deviations.

The drift never touches the fit: it widens what is said of what nobody trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.priors import Prior, Priors
from bayeslaw.schema import STEP

Array = NDArray[np.float64]

ABOVE = "compute above"
BELOW = "compute below"
DIRECTIONS = (ABOVE, BELOW, "tokens per parameter above", "tokens per parameter below")
"""Ways out of the trained runs. The slope of the first is learnt, the others are of its size."""

GRID = 41
"""Points of the grid of standard deviations on each axis."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Forecasts from the budgets up to one level, by cell (budget, r) beyond it.

    Parameters
    ----------
    trained_to : float
        Largest FLOPs that were fitted.
    steps, recurrences : ndarray, shape (cell,)
        Steps of compute beyond it, and r.
    error : ndarray, shape (cell,)
        Median over the cell's runs of measured less forecast log loss.
    covariance : ndarray, shape (cell, cell)
        Of the error, by the fit's own account: parameters and noise.
    """

    trained_to: float
    steps: Array
    recurrences: Array
    error: Array
    covariance: Array

    def as_dict(self) -> dict[str, Any]:
        """For a fit's record."""
        return {
            "trained_to": self.trained_to,
            "cells": [
                {"steps": float(s), "recurrences": float(r), "error": float(e), "sd": float(np.sqrt(v))}
                for s, r, e, v in zip(self.steps, self.recurrences, self.error, np.diag(self.covariance), strict=True)
            ],
        }


def scales(found: list[Origin], priors: Priors, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draws of the two standard deviations, of s and of s_r, each of shape (count,).

    The posterior on a grid: every origin's errors are normal with its own covariance plus that of a drift from there.
    Origins forecast the same runs from much the same data, so together they count as one, each by its share.
    """
    shared, each = (_grid(prior) for prior in (priors.drift, priors.drift_each))
    density = -0.5 * (_standard(shared, priors.drift)[:, None] ** 2 + _standard(each, priors.drift_each)[None, :] ** 2)
    for origin in found:
        together = np.outer(origin.steps, origin.steps)
        apart = together * (origin.recurrences[:, None] == origin.recurrences[None, :])
        for i, one in enumerate(shared):
            covariance = origin.covariance + one**2 * together + each[:, None, None] ** 2 * apart
            chol = np.linalg.cholesky(covariance)
            white = np.linalg.solve(chol, np.broadcast_to(origin.error, covariance.shape[:2])[..., None])[..., 0]
            surprise = 0.5 * (white**2).sum(axis=1) + np.log(np.diagonal(chol, axis1=1, axis2=2)).sum(axis=1)
            density[i] -= surprise / len(found)
    weight = np.exp(density - density.max()).ravel()
    chosen = rng.choice(weight.size, size=count, p=weight / weight.sum())
    return shared[chosen // len(each)], each[chosen % len(each)]


def draw_drift(
    found: list[Origin], priors: Priors, trained: Sequence[float] | Array, *, chains: int, draws: int, seed: int
) -> xr.Dataset:
    """Draws of the drift.

    Parameters
    ----------
    found : list of Origin
    priors : Priors
    trained : sequence of float
        The trained r.
    chains, draws, seed : int

    Returns
    -------
    xarray.Dataset over chain and draw: ``scale`` and ``scale_each``, the standard deviations; ``shared``, s; ``each``,
    s_r over ``recurrences``.
    """
    rng = np.random.default_rng(seed)
    scale, scale_each = scales(found, priors, chains * draws, rng)
    dims, shape = ("chain", "draw"), (chains, draws)
    each = scale_each[:, None] * rng.standard_normal((len(scale), len(trained)))
    return xr.Dataset(
        {
            "scale": (dims, scale.reshape(shape)),
            "scale_each": (dims, scale_each.reshape(shape)),
            "shared": (dims, (scale * rng.standard_normal(scale.shape)).reshape(shape)),
            "each": ((*dims, "recurrences"), each.reshape(*shape, -1)),
        },
        coords={"recurrences": np.asarray(trained, dtype=float)},
    )


def drifted(drift: xr.Dataset, edge: float, recurrences: float, flops: float | Array) -> Array:
    """How far log loss may be off the law beyond the largest trained budget, for every draw, shape (sample,).

    0 up to the edge. An r that was not trained has a slope of its own, drawn anew but always the same.

    Parameters
    ----------
    drift : xarray.Dataset
        As `draw_drift` gives it.
    edge : float
        Largest trained budget, FLOPs.
    recurrences : float
    flops : float or ndarray, shape (sample,)
        Training FLOPs.
    """
    _, above = steps_beyond(flops, 0.0, edge)
    shift: Array = above * slope_of(drift, ABOVE, recurrences)
    return shift


def slope_of(drift: xr.Dataset, direction: str, recurrences: float) -> Array:
    """How far log loss goes off the law for each step in a direction, for every draw, shape (sample,).

    Parameters
    ----------
    drift : xarray.Dataset
        As `draw_drift` gives it.
    direction : str
        One of `DIRECTIONS`.
    recurrences : float
    """
    scale, scale_each = (drift[name].values.ravel() for name in ("scale", "scale_each"))
    if direction == ABOVE:
        shared = drift["shared"].values.ravel()
        if recurrences in drift["recurrences"]:
            own = drift["each"].sel(recurrences=recurrences).values.ravel()
        else:
            own = scale_each * np.random.default_rng(int(1e6 * recurrences)).standard_normal(shared.shape)
    else:
        name = list(direction.encode())
        shared = scale * np.random.default_rng(name).standard_normal(scale.shape)
        own = scale_each * np.random.default_rng([*name, round(1e6 * recurrences)]).standard_normal(scale.shape)
    slope: Array = shared + own
    return slope


def steps_beyond(value: float | Array, low: float, high: float) -> tuple[Array, Array]:
    """Steps of `bayeslaw.schema.STEP` that a value lies below ``low``, and above ``high``; 0 for neither."""
    with np.errstate(divide="ignore"):
        below, above = np.log(low / np.asarray(value)), np.log(np.asarray(value) / high)
    return np.maximum(below / np.log(STEP), 0.0), np.maximum(above / np.log(STEP), 0.0)


def _grid(prior: Prior) -> Array:
    return np.exp(prior.mu + prior.sd * np.linspace(-3, 3, GRID))


def _standard(values: Array, prior: Prior) -> Array:
    standard: Array = (np.log(values) - prior.mu) / prior.sd
    return standard
