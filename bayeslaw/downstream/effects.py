"""Effects of an architecture on an axis: at matched validation loss, and at matched compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.downstream.axis import REFERENCE, AxisData
from bayeslaw.downstream.model import Posterior
from bayeslaw.downstream.verdicts import Estimate, estimate

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ComputeEffect:
    """What an architecture differs by in task loss for the same training FLOPs, at its best.

    Parameters
    ----------
    axis, architecture : str
    budget : float, optional
        Training FLOPs; None is the mean over the budgets that have both architectures.
    effect : Estimate
        Mean task loss of the architecture's checkpoint with the lowest validation loss less that of r = 1, nats per
        token.
    """

    axis: str
    architecture: str
    budget: float | None
    effect: Estimate


def matched_loss(data: AxisData, posterior: Posterior) -> dict[str, tuple[bool, Array]]:
    """Draws of the effects at matched validation loss: those pooled over a recipe's looped architectures, then each.

    Returns
    -------
    dict of architecture to (whether it is pooled, draws of shape (sample,)).
    """
    effect = dict(zip(data.architectures, posterior.effects.T, strict=True))
    pooled = {
        label: (True, np.mean([effect[name] for name in members], axis=0))
        for label, members in pools(data.checkpoints).items()
        if len(members) > 1
    }
    return pooled | {name: (False, draws) for name, draws in effect.items()}


def pools(checkpoints: pd.DataFrame) -> dict[str, list[str]]:
    """The looped architectures of each recipe, by what they are called together."""
    looped = checkpoints[checkpoints["architecture"] != REFERENCE].sort_values("recurrences")
    recipes = dict.fromkeys(looped["recipe"])
    return {
        "looped" if len(recipes) == 1 else f"{recipe}, looped": list(
            dict.fromkeys(looped.loc[looped["recipe"] == recipe, "architecture"])
        )
        for recipe in recipes
    }


def matched_compute(data: AxisData, posterior: Posterior) -> tuple[ComputeEffect, ...]:
    """Effects at matched compute: at every budget and, first, their mean over the budgets.

    The validation losses are taken as measured; what a single checkpoint is off on the axis is no part of it.
    """
    found = []
    for name, by_budget in compute_draws(data, posterior).items():
        whole = np.mean(list(by_budget.values()), axis=0)
        found.append(ComputeEffect(axis=data.axis, architecture=name, budget=None, effect=estimate(whole)))
        found += [
            ComputeEffect(axis=data.axis, architecture=name, budget=budget, effect=estimate(draws))
            for budget, draws in by_budget.items()
        ]
    return tuple(found)


def compute_draws(data: AxisData, posterior: Posterior) -> dict[str, dict[float, Array]]:
    """Draws of the effect at matched compute by architecture and budget; see `matched_compute`."""
    best = data.checkpoints.sort_values("loss").drop_duplicates(["architecture", "budget"])
    loss: Mapping[str, pd.Series[float]] = {
        str(name): rows.set_index("budget")["loss"].sort_index() for name, rows in best.groupby("architecture")
    }
    found: dict[str, dict[float, Array]] = {}
    for name, effect in zip(data.architectures, posterior.effects.T, strict=True):
        for budget in loss[name].index.intersection(loss[REFERENCE].index):
            two = np.array([loss[name][budget], loss[REFERENCE][budget]]) - data.centre
            rise = posterior.rise(two)
            found.setdefault(name, {})[float(budget)] = rise[:, 0] - rise[:, 1] + effect
    return found
