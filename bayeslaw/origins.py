"""Rolling origins: forecasts of higher budgets by the same model fitted to lower ones, for `bayeslaw.drift`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayeslaw import laplace, model, sampling
from bayeslaw.coordinates import natural_draws
from bayeslaw.drift import Origin
from bayeslaw.inputs import NEAR, Inputs
from bayeslaw.likelihood import named, predicted_log_loss
from bayeslaw.priors import Priors
from bayeslaw.schema import STEP, STUDENT_NU
from bayeslaw.structure import Structure, free_parameters

Array = NDArray[np.float64]
Index = NDArray[np.int64]

MOST_LEVELS = 12
"""More distinct budgets than this are no grid: then a level is a step wide."""

LEAST_TRAINED = 2
"""Levels that an origin needs below it: fewer say nothing about how loss falls with compute."""

DRAWS = 400
"""Draws behind an origin's forecast."""


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

    Origins below which there are too few runs to forecast from are left out.

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
    found = []
    for edge in range(LEAST_TRAINED - 1, int(level.max())):
        below = level <= edge
        # Fewer runs than parameters forecast their prior.
        if below.sum() >= free_parameters(structure.blocks):
            origin = _origin(structure, inputs, priors, below, rng)
            found += [origin] if np.isfinite(origin.covariance).all() and np.isfinite(origin.error).all() else []
    return found


def _origin(
    structure: Structure, inputs: Inputs, priors: Priors, below: NDArray[np.bool_], rng: np.random.Generator
) -> Origin:
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
