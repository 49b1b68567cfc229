"""How far the law may be off beyond the largest trained budget, learnt by forecasting inside the grid.

A posterior says how sure the parameters are if the law is true. Where a budget lies beyond every trained one the law
itself is a guess, so forecasts let log loss drift away from it: by ``(s + s_r) steps``, where a step is a factor
10^(1/3) of training FLOPs beyond the edge (the spacing of published grids), s is shared by all r and s_r is each r's
own. s and s_r are normal around 0; their standard deviations come from rolling origins: the same model is fitted to
the lowest budgets alone, once for each number of them, its forecasts of the higher ones are held against what was
measured, and what its own uncertainty does not explain is the drift. A table with too few budgets leaves the prior.

The drift never touches the fit: it widens what is said of budgets that nobody trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw import laplace, model, sampling
from bayeslaw.coordinates import natural_draws
from bayeslaw.inputs import NEAR, Inputs
from bayeslaw.likelihood import named, predicted_log_loss
from bayeslaw.priors import Prior, Priors
from bayeslaw.schema import STEP, STUDENT_NU
from bayeslaw.structure import Structure

Array = NDArray[np.float64]
Index = NDArray[np.int64]

MOST_LEVELS = 12
"""More distinct budgets than this are no grid: then a level is a step wide."""

LEAST_TRAINED = 2
"""Levels that an origin needs below it: fewer say nothing about how loss falls with compute."""

DRAWS = 400
GRID = 41
"""Draws behind an origin's forecast; points of the grid of scales on each axis."""


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


def budget_levels(flops: Array) -> Index:
    """Level of compute of every run, from 0: its place among the distinct budgets, or a bin a step wide.

    Parameters
    ----------
    flops : ndarray, shape (run,)
    """
    logs = np.log(flops)
    order = np.argsort(logs)
    starts = np.concatenate([[False], np.diff(logs[order]) > np.log(NEAR)])
    level = np.empty(len(logs), dtype=np.int64)
    level[order] = np.cumsum(starts)
    widths = [np.ptp(logs[level == each]) for each in range(level.max() + 1)]
    if level.max() >= MOST_LEVELS or max(widths) > np.log(STEP) / 2:
        below = np.floor((logs.max() - logs) / np.log(STEP) + 1e-9)
        level = np.unique(-below, return_inverse=True)[1].astype(np.int64)
    return level


def origins(structure: Structure, inputs: Inputs, priors: Priors, *, seed: int = 0) -> list[Origin]:
    """Forecasts from every origin inside the runs, each fitted at its mode with the curvature there.

    Parameters
    ----------
    structure : Structure
        Of a model that this process has compiled.
    inputs, priors
        What was fitted.
    seed : int
    """
    level = budget_levels(inputs.flops)
    rng = np.random.default_rng(seed)
    return [
        _origin(structure, inputs, priors, level <= edge, rng) for edge in range(LEAST_TRAINED - 1, int(level.max()))
    ]


def _origin(structure: Structure, inputs: Inputs, priors: Priors, below: Any, rng: np.random.Generator) -> Origin:
    lower, higher = inputs.subset(below), inputs.subset(~below)
    first = laplace.start(structure, lower, priors)
    packed = model.pack(structure, lower, priors, first)
    whitening = laplace.refine(first, sampling.compiled(structure, packed).log_density(packed))
    packed = model.pack(structure, lower, priors, whitening)
    layout = structure.layout
    z = rng.standard_normal((DRAWS, structure.size))
    theta = natural_draws(z, packed, layout.cores, layout.reference)
    parameters = named(theta[None], structure, lower)
    forecast = predicted_log_loss(parameters, structure, higher).values[0]
    heavy = STUDENT_NU / (STUDENT_NU - 2) if structure.outliers == "student" else 1.0
    noise = heavy * float(np.median(parameters["sigma"])) ** 2 + structure.known_variance(higher)

    trained_to = float(lower.flops.max())
    steps = np.log(higher.flops / trained_to) / np.log(STEP)
    level = budget_levels(higher.flops)
    cells = np.unique(np.column_stack([level, higher.recurrences]), axis=0)
    members = [np.flatnonzero((level == b) & (higher.recurrences == r)) for b, r in cells]
    # A cell's median has about pi / 2 times the variance of its mean.
    own = np.array([np.pi / 2 * noise[rows].mean() / len(rows) for rows in members])
    own += sum(float(np.median(parameters[f"tau_{effect}"])) ** 2 for effect in structure.effects)
    by_cell = np.stack([forecast[:, rows].mean(axis=1) for rows in members])
    centre = np.median(forecast, axis=0)
    return Origin(
        trained_to=trained_to,
        steps=np.array([steps[rows].mean() for rows in members]),
        recurrences=cells[:, 1],
        error=np.array([np.median(higher.log_loss[rows] - centre[rows]) for rows in members]),
        covariance=np.atleast_2d(np.cov(by_cell)) + np.diag(own),
    )


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


def learn(
    structure: Structure, inputs: Inputs, priors: Priors, *, chains: int, draws: int, seed: int,
    progress: Callable[[str], None] = lambda message: None,
) -> tuple[xr.Dataset, dict[str, Any]]:  # fmt: skip
    """What a fit keeps of the drift.

    Returns
    -------
    xarray.Dataset over chain and draw: ``scale`` and ``scale_each``, the standard deviations; ``shared``, s; ``each``,
    s_r over ``recurrences``, the trained r.
    dict, for the record: the edge in FLOPs and the origins.
    """
    progress("learning the drift beyond the edge from rolling origins")
    rng = np.random.default_rng(seed)
    found = origins(structure, inputs, priors, seed=seed)
    scale, scale_each = scales(found, priors, chains * draws, rng)
    trained = np.unique(inputs.recurrences)
    dims, shape = ("chain", "draw"), (chains, draws)
    dataset = xr.Dataset(
        {
            "scale": (dims, scale.reshape(shape)),
            "scale_each": (dims, scale_each.reshape(shape)),
            "shared": (dims, (scale * rng.standard_normal(scale.shape)).reshape(shape)),
            "each": (
                (*dims, "recurrences"),
                (scale_each[:, None] * rng.standard_normal((len(scale), len(trained)))).reshape(*shape, -1),
            ),
        },
        coords={"recurrences": trained},
    )
    return dataset, {"edge": float(inputs.flops.max()), "origins": [origin.as_dict() for origin in found]}


def _grid(prior: Prior) -> Array:
    return np.exp(prior.mu + prior.sd * np.linspace(-3, 3, GRID))


def _standard(values: Array, prior: Prior) -> Array:
    standard: Array = (np.log(values) - prior.mu) / prior.sd
    return standard
