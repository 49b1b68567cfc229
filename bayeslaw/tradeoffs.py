"""What a training budget buys besides the least loss, and how its optimum grows with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.allocate import NONE
from bayeslaw.constraints import Constraints
from bayeslaw.options import Trainable, choices, trainable
from bayeslaw.posterior import Fit
from bayeslaw.predict import interval
from bayeslaw.recommendation import Allocation

Array = NDArray[np.float64]

SIZES = 40
"""Sizes looked at for each recipe and r, evenly on a log scale."""

BELOW = 30.0
"""Models so many times smaller in width than the best one are not looked at."""


def pareto(
    fit: Fit,
    *,
    flops: float,
    recurrences: Sequence[int] | None = None,
    recipe: str | Sequence[str] | None = None,
    family: str | None = None,
    flops_rule: str | None = None,
    constraints: Constraints = NONE,
) -> tuple[Trainable, ...]:
    """Trainable configurations of one training budget, none of which another beats in loss, parameters and inference.

    Parameters
    ----------
    fit, flops, recurrences, recipe, family, flops_rule, constraints
        As for `bayeslaw.allocate.allocate`.

    Returns
    -------
    tuple of Trainable
        By unique parameters, ascending; expected loss falls along it wherever inference does not.
    """
    found, _ = choices(
        fit, flops=flops, recurrences=recurrences, recipe=recipe, family=family, flops_rule=flops_rule,
        constraints=constraints,
    )  # fmt: skip
    runs: list[Trainable] = []
    for choice in found:
        best = max(run.size for run in choice.trainable)
        runs += trainable(fit, choice, np.geomspace(max(choice.line.smallest, best / BELOW), best, SIZES))
    costs = np.array([(run.n_unique, run.inference_flops, run.loss.mean()) for run in runs])
    beaten = [bool(((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any()) for row in costs]
    kept = [run for run, is_beaten in zip(runs, beaten, strict=True) if not is_beaten]
    return tuple(sorted(kept, key=lambda run: (run.n_unique, run.inference_flops)))


def growth(allocations: Sequence[Allocation]) -> list[dict[str, Any]]:
    """Exponents of N*(C) and D*(C): slopes of log N* and log D* over log C, by draw, for each recipe and r.

    Parameters
    ----------
    allocations : sequence of Allocation
        For two budgets or more; options that some of them lack are left out.
    """
    logs = np.log([made.flops for made in allocations])
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    out = []
    by_name = [{(option.recipe, option.recurrences): option for option in made.options} for made in allocations]
    for name in by_name[0]:
        if not all(name in options for options in by_name):
            continue
        row: dict[str, Any] = {"recipe": name[0], "recurrences": name[1]}
        for key in ("n_unique", "tokens"):
            curves = np.log([getattr(options[name].optimum, key) for options in by_name])
            row[key] = interval(weights @ curves)
        out.append(row)
    return out
