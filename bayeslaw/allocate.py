"""The recommendation: width, tokens and recurrences for a training budget, with its expected regret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.errors import UsageError
from bayeslaw.family import Family
from bayeslaw.frontier import Optimum, optimum, plain_axis, size_axis
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of, interval, largest_budget, law_loss

Array = NDArray[np.float64]

FLOPS_RULES = ("6nd",)

MOST_FLOPS = 1e30
"""Beyond any computer: a larger budget is a slip of the pen."""

CANDIDATES = 100
"""Sizes tried for the trainable configuration, evenly on a log scale over the posterior of the optimum."""

BEYOND = 1.5
"""A recommended model so many times larger or smaller than all trained ones is called an extrapolation."""


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """A configuration that can be trained.

    Parameters
    ----------
    d_model : int or None
        None under the 6 N D rule.
    n_unique, tokens : int
    loss : ndarray, shape (sample,)
        The law at this configuration for every draw, drift included, nats per token.
    """

    d_model: int | None
    n_unique: int
    tokens: int
    loss: Array

    def as_dict(self) -> dict[str, Any]:
        """Entries of ``allocate --json`` without the loss."""
        return {
            "d_model": self.d_model,
            "width_scale": None if self.d_model is None else self.d_model / WIDTH_UNIT,
            "n_unique": self.n_unique,
            "tokens": self.tokens,
        }


@dataclass(frozen=True, kw_only=True)
class Option:
    """What the budget buys with one r: the optimum draw by draw, the best trainable configuration, P(best)."""

    recurrences: int
    optimum: Optimum
    trainable: Trainable
    probability_best: float


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A recommendation for one training budget.

    Parameters
    ----------
    flops : float
        Training budget C, FLOPs.
    recipe : str
    options : tuple of Option
        One for each r that was allowed.
    recommended : Option
        The one whose trainable configuration has the least expected loss.
    expected_regret : float
        Expected loss of the recommendation above that of the best r and width, each draw's own; nats per token.
    notes : tuple of str
        What to know before relying on it.
    """

    flops: float
    recipe: str
    options: tuple[Option, ...]
    recommended: Option
    expected_regret: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The answer of ``allocate --json``."""
        best = self.recommended
        return {
            "flops": self.flops,
            "recipe": self.recipe,
            "recurrences": {str(option.recurrences): _option_dict(option) for option in self.options},
            "recommended": {
                "recurrences": best.recurrences,
                **best.trainable.as_dict(),
                "loss": interval(best.trainable.loss),
            },
            "expected_regret": self.expected_regret,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        best = self.recommended
        loss = interval(best.trainable.loss)
        size = "" if best.trainable.d_model is None else f"width {best.trainable.d_model}, "
        return (
            f"For {self.flops:.3g} FLOPs train r = {best.recurrences}, {size}{best.trainable.n_unique:.3g} unique "
            f"parameters, on {best.trainable.tokens:.3g} tokens: expected loss {loss['mean']:.4f} nats/token "
            f"(90 % {loss['q05']:.4f} to {loss['q95']:.4f}), expected regret {self.expected_regret:.1e}, "
            f"best r with probability {best.probability_best:.2f}."
        )


def allocate(
    fit: Fit,
    *,
    flops: float,
    recurrences: Sequence[int] | None = None,
    recipe: str | None = None,
    family: str | None = None,
    flops_rule: str | None = None,
) -> Allocation:
    """Recommend an allocation of a training budget.

    Parameters
    ----------
    fit : Fit
    flops : float
        Training budget C, FLOPs.
    recurrences : sequence of int, optional
        The r to choose from; default those of the fitted runs.
    recipe : str, optional
        Whose phi, see `Fit.choose_recipe`.
    family : str, optional
        A named family; default the one that the runs span.
    flops_rule : "6nd", optional
        Count C = 6 N D, for runs without an architecture (r = 1 only).
    """
    if not 0 < flops <= MOST_FLOPS:
        raise UsageError(f"--flops {flops}", allowed=f"above 0 and at most {MOST_FLOPS:g}, such as 2.15e19")
    if family is not None and flops_rule is not None:
        raise UsageError(f"--family {family} with --flops-rule {flops_rule}", allowed="one of the two")
    recipe = fit.choose_recipe(recipe)
    trained = sorted({int(r) for r in fit.recurrences_of(recipe) if r == int(r)})
    chosen = sorted(set(recurrences)) if recurrences else trained
    notes = [f"r = {r} was never trained: an extrapolation of the recurrence map" for r in chosen if r not in trained]
    if flops_rule is not None:
        if flops_rule not in FLOPS_RULES:
            raise UsageError(f"--flops-rule {flops_rule!r}", allowed=", ".join(FLOPS_RULES))
        if chosen != [1]:
            raise UsageError(
                f"--flops-rule 6nd with r = {chosen}", allowed="r = 1", do="use --family for looped models"
            )
        found = [_plain_option(fit, fit.draws(recipe), flops)]
    else:
        members = family_of(fit, family, recipe=recipe)
        found = [_option(fit, fit.draws(recipe, recurrences=r), flops, r, members) for r in chosen]
    spent = largest_budget(fit)
    if flops > 1.05 * spent:
        notes.append(f"the budget is {flops / spent:.1f} times the largest trained one: an extrapolation")
    notes += [
        f"r = {r}: the optimum lies at the edge of the possible sizes" for r, best, _ in found if best.at_edge > 0.05
    ]

    best_loss = np.stack([best.loss for _, best, _ in found])
    share = np.bincount(best_loss.argmin(axis=0), minlength=len(found)) / best_loss.shape[1]
    options = tuple(
        Option(recurrences=r, optimum=best, trainable=trainable, probability_best=float(probability))
        for (r, best, trainable), probability in zip(found, share, strict=True)
    )
    recommended = min(options, key=lambda option: _expected_loss(option.trainable))
    sizes = fit.runs["n_unique"].astype(float)
    if not sizes.min() / BEYOND <= recommended.trainable.n_unique <= sizes.max() * BEYOND:
        notes.append(
            f"the recommended {recommended.trainable.n_unique:.3g} parameters lie outside the trained "
            f"{sizes.min():.3g} to {sizes.max():.3g}: the law alone speaks there"
        )
    return Allocation(
        flops=flops,
        recipe=recipe,
        options=options,
        recommended=recommended,
        expected_regret=float((recommended.trainable.loss - best_loss.min(axis=0)).mean()),
        notes=tuple(notes),
    )


def _option(fit: Fit, draws: dict[str, Array], flops: float, r: int, family: Family) -> tuple[int, Optimum, Trainable]:
    axis = size_axis(family, flops, r, **fit.convention)
    best = optimum(fit.law, draws, axis, flops=flops, recurrences=r)
    best = replace(best, loss=best.loss * np.exp(fit.drift(r, flops)))
    assert best.width_scale is not None
    # Of the widths that some draw in a hundred calls optimal, the one of least expected loss: the widths' mean would be
    # drawn far out by a posterior with a long tail.
    low, high = (family.nearest_width(float(q)) for q in np.quantile(best.width_scale * WIDTH_UNIT, [0.01, 0.99]))
    widths = np.unique([family.nearest_width(float(d)) for d in np.geomspace(low, high, CANDIDATES)])
    return r, best, min((_trainable(fit, draws, flops, r, family, int(d)) for d in widths), key=_expected_loss)


def _trainable(fit: Fit, draws: dict[str, Array], flops: float, r: int, family: Family, d_model: int) -> Trainable:
    member = family.architecture(d_model, r)
    tokens = member.tokens_for(flops, batch_tokens=family.batch_tokens)
    loss = law_loss(fit.law, draws, *family.split(d_model, r, **fit.convention), r, tokens)[:, 0]
    loss *= np.exp(fit.drift(r, flops))
    return Trainable(d_model=d_model, n_unique=round(member.n_unique), tokens=tokens, loss=loss)


def _plain_option(fit: Fit, draws: dict[str, Array], flops: float) -> tuple[int, Optimum, Trainable]:
    best = optimum(fit.law, draws, plain_axis(), flops=flops, recurrences=1)
    drifted = np.exp(fit.drift(1, flops))
    best = replace(best, loss=best.loss * drifted)
    trainable = []
    low, high = (float(q) for q in np.quantile(best.n_unique, [0.01, 0.99]))
    for n in np.geomspace(low, high, CANDIDATES).round():
        tokens = max(1, round(flops / (6 * n)))
        loss = law_loss(fit.law, draws, n, 0, 1, tokens)[:, 0] * drifted
        trainable.append(Trainable(d_model=None, n_unique=int(n), tokens=tokens, loss=loss))
    return 1, best, min(trainable, key=_expected_loss)


def _expected_loss(trainable: Trainable) -> float:
    return float(trainable.loss.mean())


def _option_dict(option: Option) -> dict[str, Any]:
    best = option.optimum
    return {
        "optimum": {
            "width_scale": None if best.width_scale is None else interval(best.width_scale),
            "n_unique": interval(best.n_unique),
            "tokens": interval(best.tokens),
            "loss": interval(best.loss),
        },
        "trainable": option.trainable.as_dict(),
        "probability_best": option.probability_best,
    }
