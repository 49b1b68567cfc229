"""The recommendation: width, tokens, recurrences and recipe for a training budget, with its expected regret."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bayeslaw.constraints import MOST_FLOPS, Constraints
from bayeslaw.errors import UsageError
from bayeslaw.location import Location, location_of
from bayeslaw.options import Choice, choices
from bayeslaw.outside import distances, sentences
from bayeslaw.posterior import Fit
from bayeslaw.recommendation import Allocation, Option

Array = NDArray[np.float64]

OBJECTIVES = ("mean", "quantile", "regret")
"""What a recommendation has least of: expected loss, an upper quantile of the loss, the largest regret of any draw."""

NEARLY = 0.9
"""Share of a limit that a run which it holds back takes: widths come in steps."""

OFTEN = 0.05
"""Share of draws with an optimum at an edge from which on it is said."""


NONE = Constraints()


def allocate(
    fit: Fit,
    *,
    flops: float | None = None,
    recurrences: Sequence[int] | None = None,
    recipe: str | Sequence[str] | None = None,
    family: str | None = None,
    flops_rule: str | None = None,
    constraints: Constraints = NONE,
    objective: str = "mean",
    quantile: float = 0.95,
    location: Location | None = None,
) -> Allocation:
    """Recommend an allocation of a training budget.

    Parameters
    ----------
    fit : Fit
    flops : float, optional
        Training budget C, FLOPs; may be left out where the constraints give device hours.
    recurrences : sequence of int, optional
        The r to choose from; default those that were trained.
    recipe : str or sequence of str, optional
        The recipes to choose from; default all of the fit.
    family : str, optional
        A named family; default the one that the runs span.
    flops_rule : "6nd", optional
        Count C = 6 N D (r = 1 only).
    constraints : Constraints
    objective : str
        One of `OBJECTIVES`.
    quantile : float
        The upper quantile that "quantile" has least of.
    location : Location, optional
        What `location_of` says of the fit, where it is known already.

    Raises
    ------
    UsageError
        What is asked for cannot be meant.
    DecisionError
        Nothing can be trained within the constraints (says which leaves nothing, and by how much), or the runs have
        no architecture.
    """
    _require(flops, family, flops_rule, constraints, objective, quantile)
    found, notes = choices(
        fit, flops=flops, recurrences=recurrences, recipe=recipe, family=family, flops_rule=flops_rule,
        constraints=constraints,
    )  # fmt: skip
    # Who knew the truth could train no other configurations either.
    each = np.stack([np.min([run.loss for run in choice.trainable], axis=0) for choice in found])
    best = np.asarray(each.min(axis=0), dtype=np.float64)
    share = np.bincount(each.argmin(axis=0), minlength=len(found)) / len(best)
    location = location or location_of(fit)
    options = tuple(
        Option(
            recipe=choice.recipe,
            recurrences=choice.recurrences,
            optimum=choice.optimum,
            located=choice.located(location, fit.spec.seed),
            trainable=min(choice.trainable, key=lambda run: _badness(run.loss, best, objective, quantile)),
            probability_best=float(probability),
        )
        for choice, probability in zip(found, share, strict=True)
    )
    recommended = min(options, key=lambda option: _badness(option.trainable.loss, best, objective, quantile))
    notes += _notes(fit, flops, found, recommended, constraints)
    notes += [] if location.cells else [str(location)]
    return Allocation(
        flops=recommended.trainable.flops if flops is None else flops,
        in_flops=flops is not None,
        constraints=constraints,
        objective=objective,
        quantile=quantile,
        options=options,
        candidates=tuple(run for choice in found for run in choice.trainable),
        recommended=recommended,
        objective_value=_badness(recommended.trainable.loss, best, objective, quantile),
        expected_regret=float((recommended.trainable.loss - best).mean()),
        location=location,
        notes=tuple(dict.fromkeys(notes)),
    )


def _require(
    flops: float | None, family: str | None, flops_rule: str | None, constraints: Constraints, objective: str,
    quantile: float,
) -> None:  # fmt: skip
    if flops is None and constraints.gpu_hours is None:
        raise UsageError("no budget", allowed="--flops, --gpu-hours or both")
    if flops is None and constraints.lifetime_tokens:
        raise UsageError("--lifetime-tokens without --flops", allowed="a budget in FLOPs, which they are priced into")
    if flops is not None and not 0 < flops <= MOST_FLOPS:
        raise UsageError(f"--flops {flops}", allowed=f"above 0 and at most {MOST_FLOPS:g}, such as 2.15e19")
    if family is not None and flops_rule is not None:
        raise UsageError(f"--family {family} with --flops-rule {flops_rule}", allowed="one of the two")
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective!r}", allowed=", ".join(OBJECTIVES))
    if not 0.5 <= quantile < 1:
        raise UsageError(f"--quantile {quantile:g}", allowed="an upper quantile, from 0.5 to below 1")


def _badness(loss: Array, best: Array, objective: str, quantile: float) -> float:
    if objective == "quantile":
        return float(np.quantile(loss, quantile))
    return float((loss - best).max() if objective == "regret" else loss.mean())


def _notes(
    fit: Fit, flops: float | None, found: Sequence[Choice], recommended: Option, constraints: Constraints
) -> list[str]:
    run, notes = recommended.trainable, list[str]()
    outside = distances(
        fit, recurrences=run.recurrences, n_unique=run.n_unique, tokens=run.tokens, flops=run.flops
    )  # fmt: skip
    notes += sentences(fit, outside, run.recipe)
    if constraints.d_model is None:
        notes += [*_edge(found, "smallest"), *_edge(found, "largest")]
    if constraints.data_tokens is not None and (epochs := run.tokens / constraints.data_tokens) > 1:
        notes.append(f"the data are passed over {epochs:.2f} times, and the law takes repeated tokens for new ones")
    line = next(
        choice.line
        for choice in found
        if (choice.recipe, choice.recurrences) == (recommended.recipe, recommended.recurrences)
    )
    for limit in line.limits:
        used = limit.taken(run.size, run.tokens) / limit.amount
        if limit.name != "budget" and used > NEARLY:
            left = "" if flops is None else f"; {run.flops / flops:.0%} of the budget is spent on training"
            notes.append(
                f"{limit.name} holds the run back: it takes {used:.0%} of the {limit.amount:.3g} {limit.unit}{left}"
            )
    return notes


def _edge(found: Sequence[Choice], end: str) -> list[str]:
    """A sentence on the options whose optimum is often the smallest, or the largest, size that is possible."""
    there = [choice for choice in found if getattr(choice.optimum, f"at_{end}") > OFTEN]
    if not there:
        return []
    each = ", ".join(
        f"{choice.name} at {choice.sizes.called(round(getattr(choice.line, end)))} "
        f"({getattr(choice.optimum, f'at_{end}'):.0%} of the draws)"
        for choice in there
    )
    held = {choice.line.held_by for choice in there} - {""} if end == "largest" else set()
    by = f", by {' and '.join(sorted(held))}" if held else ""
    return [f"the optimum lies at the edge of the possible sizes, the {end}{by}: {each}"]
