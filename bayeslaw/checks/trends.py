"""Checks of what should not change over budgets or over r: the exponent of a recurrence, and residuals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bayeslaw.checks.cards import CheckCard, NotApplicableError, judged
from bayeslaw.checks.residuals import Residuals, advice

Array = NDArray[np.float64]

THRESHOLD = 3.0
"""Standard errors from which on a trend, or a mean residual, is a warning."""

LEAST_LEVELS = 3
"""Budgets that a trend needs."""


def exponent_drift(left: Residuals, title: str) -> CheckCard:
    """log g(r) / log r that the runs of each budget would have for themselves, the rest of the law unchanged."""
    cells, inputs = left.cells, left.inputs
    looped = cells.recurrences > 1
    if left.structure.law.terms == "chinchilla" or not looped.any():
        raise NotApplicableError("the law has no exponent of recurrence to look for")
    if len(np.unique(cells.level[looped])) < LEAST_LEVELS:
        raise NotApplicableError(f"{len(np.unique(cells.level[looped]))} budgets show no trend")
    implied = np.zeros((len(cells.flops), len(inputs.loss)))
    base = np.full(len(cells.flops), np.nan)
    for cell in np.flatnonzero(looped):
        rows = cells.members[cell]
        effect = left.by_worth[rows]
        implied[cell, rows] = effect / (effect @ effect) / np.log(cells.recurrences[cell])
        base[cell] = left.exponents[rows].mean()
    exponents = base + implied @ left.values
    combinations, slopes, errors, labels, rows_of = [], [], [], [], []
    for recipe, r in np.unique(np.column_stack([cells.recipe, cells.recurrences])[looped], axis=0):
        here = np.flatnonzero((cells.recipe == recipe) & (cells.recurrences == r))
        if len(here) < LEAST_LEVELS:
            continue
        x = cells.steps[here] - cells.steps[here].mean()
        combination = x @ implied[here] / (x @ x)
        slope = float(x @ exponents[here] / (x @ x))
        about = exponents[here] - exponents[here].mean() - slope * x
        scattered = np.sqrt((about @ about) / (len(here) - 2) / (x @ x))
        combinations.append(combination)
        slopes.append(slope)
        errors.append(max(left.error(combination), float(scattered)))
        labels.append((f"{inputs.recipes[int(recipe)]}, " if len(inputs.recipes) > 1 else "") + f"r = {r:g}")
        rows_of.append(here)
    if not slopes:
        raise NotApplicableError("no r was trained at three budgets")
    if len(slopes) > 1:
        weight = 1 / np.square(errors) / np.sum(1 / np.square(errors))
        together = float(weight @ slopes)
        spread = float(np.sqrt(weight @ np.square(np.array(slopes) - together) / (len(slopes) - 1)))
        slopes.append(together)
        errors.append(max(left.error(weight @ combinations), spread))
        labels.append("together")
    t = np.array(slopes) / np.array(errors)
    worst = int(np.abs(t).argmax())
    lowest_first = rows_of[worst] if worst < len(rows_of) else rows_of[int(np.abs(t[: len(rows_of)]).argmax())]
    shown = labels[worst] if worst < len(rows_of) else labels[int(np.abs(t[: len(rows_of)]).argmax())]
    path = " ".join(f"{value:.2f}" for value in exponents[lowest_first])
    return CheckCard(
        name="exponent-drift",
        title=title,
        verdict=judged(abs(t[worst]) > THRESHOLD),
        value=float(t[worst]),
        threshold=THRESHOLD,
        weight=float(abs(t[worst]) / THRESHOLD),
        reading=f"the exponent that each budget has for itself changes by {slopes[worst]:+.3f} ± {errors[worst]:.3f} a "
        f"step ({labels[worst]}; t = {t[worst]:.1f}, tolerated up to {THRESHOLD:.0f}); {shown} has {path} from the "
        f"lowest budget on{cells.assumed}",
        advice=advice(left.structure, "what a recurrence is worth may change with scale: do not carry it far"),
        header=("r", "change a step", "±", "t", "by budget"),
        rows=tuple(
            (label, f"{slope:+.4f}", f"{error:.4f}", f"{score:+.1f}",
             " ".join(f"{v:.2f}" for v in exponents[rows_of[i]]) if i < len(rows_of) else "")
            for i, (label, slope, error, score) in enumerate(zip(labels, slopes, errors, t, strict=True))
        ),
        arrays={
            "flops": cells.flops[looped],
            "recurrences": cells.recurrences[looped],
            "recipe": cells.recipe[looped],
            "exponent": exponents[looped],
            "error": np.array([left.error(row) for row in implied[looped]]),
        },
    )  # fmt: skip


def residuals_over_r(left: Residuals, title: str) -> CheckCard:
    """Mean residual of each recipe and r."""
    inputs = left.inputs
    groups = np.column_stack([inputs.recipe, inputs.recurrences])
    several = len(inputs.recipes) > 1
    unique, index = np.unique(groups, axis=0, return_inverse=True)
    names = [(f"{inputs.recipes[int(recipe)]}, " if several else "") + f"r = {r:g}" for recipe, r in unique]
    return _means(left, index.ravel(), names, "residuals-r", title, "what a recurrence is worth", unique[:, 1])


def residuals_over_budget(left: Residuals, title: str) -> CheckCard:
    """Mean residual of each budget."""
    level = left.cells.level[left.cells.index]
    flops = np.array([np.exp(np.log(left.cells.compute[level == each]).mean()) for each in np.unique(level)])
    index = np.unique(level, return_inverse=True)[1]
    names = [f"{value:.3g} FLOPs" for value in flops]
    card = _means(left, index, names, "residuals-budget", title, "loss over budgets", flops)
    return replace(card, reading=card.reading + left.cells.assumed)


def _means(
    left: Residuals, index: NDArray[np.int64], names: list[str], name: str, title: str, subject: str, place: Array
) -> CheckCard:
    """Mean residuals of groups of runs with their t."""
    if len(names) < 2:
        raise NotApplicableError(f"one group of runs ({names[0]}): nothing to hold against each other")
    values = left.values
    means, errors = np.empty(len(names)), np.empty(len(names))
    for group in range(len(names)):
        member = index == group
        count = int(member.sum())
        # A law that fits badly scatters its own residuals: the mean must stand out of those too.
        own = float(values[member].std(ddof=1) / np.sqrt(count)) if count > 2 else 0.0
        means[group] = values[member].mean()
        errors[group] = max(left.error(member / count), own)
    t = means / errors
    worst = int(np.abs(t).argmax())
    return CheckCard(
        name=name,
        title=title,
        verdict=judged(abs(t[worst]) > THRESHOLD),
        value=float(t[worst]),
        threshold=THRESHOLD,
        weight=float(abs(t[worst]) / THRESHOLD),
        reading=f"runs at {names[worst]} lie {means[worst]:+.4f} ± {errors[worst]:.4f} off the law on log loss (t = "
        f"{t[worst]:.1f}, tolerated up to {THRESHOLD:.0f}), the farthest of {len(names)} groups",
        advice=advice(left.structure, f"the law misses {subject}: read what it says there with care"),
        header=("runs", "mean residual", "±", "t"),
        rows=tuple(
            (each, f"{mean:+.4f}", f"{error:.4f}", f"{score:+.1f}")
            for each, mean, error, score in zip(names, means, errors, t, strict=True)
        ),
        arrays={"names": names, "place": place, "mean": means, "error": errors, "index": index, "residual": values,
                "flops": left.inputs.flops, "recurrences": left.inputs.recurrences},
    )  # fmt: skip
