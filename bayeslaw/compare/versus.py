"""Architectures against each other at one training budget: P(A beats B), by the posterior of one fit to both.

Every contender is a recipe with one r, at the width that is best for it by each posterior draw. Curves are compared,
and single new runs of either, each with an error of its own: the first says which is better, the second which would
look better if each were trained once. At the same cost of inference, a contender is held against the plain model
(r = 1) of the width that costs as many FLOPs per generated token and is trained with the same budget, whose tokens
follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.errors import UsageError
from bayeslaw.family import Family
from bayeslaw.frontier import drifted, optimum
from bayeslaw.likelihood import new_run_errors
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of, interval, law_loss
from bayeslaw.sizes import Sizes, size_at, sizes_of

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A recipe with one r at its best for a budget.

    Parameters
    ----------
    recipe : str
    recurrences : float
    flops : float
        Training budget C, FLOPs.
    width_scale, tokens : float
        Medians of the optimum over draws: s = d_model / 64, and D.
    inference_flops : float
        FLOPs per generated token at that width, at the end of a full context.
    loss : ndarray, shape (sample,)
        The law's least loss for every draw, drift included, nats per token.
    run : ndarray, shape (sample,)
        That of a single new run.
    at_edge : float
        Share of draws whose optimum is the smallest or largest width possible.
    """

    recipe: str
    recurrences: float
    flops: float
    width_scale: float
    tokens: float
    inference_flops: float
    loss: Array
    run: Array
    at_edge: float

    def against(self, other: Contender) -> dict[str, Any]:
        """Difference in loss from the other (below 0: this one is better) and the probabilities of being better."""
        return _difference(self.loss, other.loss, self.run, other.run)


def contender(fit: Fit, recipe: str, recurrences: float, flops: float) -> Contender:
    """A recipe with one r at its best for a budget.

    Raises
    ------
    DecisionError
        The runs of the recipe have no architecture, or are of several depths.
    UsageError
        The recipe is not in the fit, or its family has no such r.
    """
    family = family_of(fit, recipe=recipe)
    sizes = sizes_of(family, recurrences, **fit.convention)
    draws = fit.draws(recipe, recurrences=recurrences)
    best = drifted(
        fit, optimum(fit.law_at(recurrences), draws, sizes, flops=flops, recurrences=recurrences), recurrences
    )
    assert best.width_scale is not None
    width_scale = float(np.median(best.width_scale))
    loss = best.loss
    return Contender(
        recipe=recipe,
        recurrences=recurrences,
        flops=flops,
        width_scale=width_scale,
        tokens=float(np.median(best.tokens)),
        inference_flops=family.architecture(WIDTH_UNIT * width_scale, recurrences).inference_flops_per_token,
        loss=loss,
        run=loss * np.exp(_error(fit, recipe, recurrences, flops)),
        at_edge=best.at_edge,
    )


def beats(fit: Fit, *, a: tuple[str, float], b: tuple[str, float], flops: float) -> dict[str, Any]:
    """Whether one architecture beats another, each at its own best for the same training budget.

    Parameters
    ----------
    fit : Fit
        To the runs of both recipes.
    a, b : (recipe, r)
    flops : float
        Training budget C, FLOPs.

    Returns
    -------
    dict
        ``flops``; ``difference``, loss of a less that of b in nats per token (mean, q05, q95); ``p_curve``, P(a's
        expected loss is the lower); ``p_run``, P(a single new run of a has a lower loss than one of b).

    Raises
    ------
    UsageError
        a and b are the same, or not in the fit.
    DecisionError
        The runs have no architecture.
    """
    if a == b:
        raise UsageError(f"{a[0]} at r = {a[1]:g} against itself", allowed="two recipes, or one at two r")
    one, other = (contender(fit, recipe, r, flops) for recipe, r in (a, b))
    return {"flops": flops, **one.against(other)}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a contender is worth beside others at the same budget.

    Parameters
    ----------
    contender : Contender
    same_recurrences : dict or None
        Against the anchor at the same r, as `beats` gives it; None for the anchor itself.
    plain : dict or None
        Against the anchor at r = 1; None for it itself.
    same_inference : dict or None
        Against the anchor's r = 1 model that costs the same inference per token, with its ``width_scale`` and
        ``tokens``: both at one width, the median optimum of this contender. None for r = 1.
    """

    contender: Contender
    same_recurrences: dict[str, Any] | None
    plain: dict[str, Any] | None
    same_inference: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        one = self.contender
        return {
            "flops": one.flops, "recipe": one.recipe, "recurrences": one.recurrences, "loss": interval(one.loss),
            "width_scale": one.width_scale, "tokens": one.tokens, "inference_flops": one.inference_flops,
            "at_edge": one.at_edge, "same_recurrences": self.same_recurrences, "plain": self.plain,
            "same_inference": self.same_inference,
        }  # fmt: skip

    def row(self) -> tuple[str, ...]:
        """Texts for a table: recipe, r, width, loss, then each difference with P(lower)."""
        one = self.contender
        texts = [one.recipe, f"{one.recurrences:g}", f"{WIDTH_UNIT * one.width_scale:.0f}", f"{one.loss.mean():.3f}"]
        for against in (self.same_recurrences, self.plain, self.same_inference):
            if against is None:
                texts += ["", ""]
            else:
                texts += [f"{against['difference']['mean']:+.3f}", f"{against['p_curve']:.2f}"]
        return tuple(texts)


def standings(fit: Fit, flops: float) -> tuple[Standing, ...]:
    """Every recipe at every looped r that it trained, and the anchor at r = 1, at one training budget.

    The anchor is the baseline, or the only recipe.

    Raises
    ------
    DecisionError
        The runs have no architecture, those of one recipe are of several depths, or the budget trains no model.
    UsageError
        The family of a recipe has not every r that was trained.
    """
    anchor = fit.choose_recipe(None)
    plain = contender(fit, anchor, 1, flops)
    plain_family = family_of(fit, recipe=anchor)
    plain_sizes = sizes_of(plain_family, 1, **fit.convention)
    found = {(one.recipe, one.recurrences): one for one in (plain, *_looped(fit, flops))}
    return tuple(
        Standing(
            contender=one,
            same_recurrences=one.against(found[anchor, r]) if recipe != anchor and (anchor, r) in found else None,
            plain=None if one is plain else one.against(plain),
            same_inference=None if one is plain else _same_inference(fit, one, plain, plain_family, plain_sizes),
        )
        for (recipe, r), one in found.items()
    )


def _looped(fit: Fit, flops: float) -> Iterator[Contender]:
    runs = fit.runs[fit.runs["recurrences"] > 1]
    for recipe in fit.recipes:
        for r in sorted(float(r) for r in runs.loc[runs["recipe"] == recipe, "recurrences"].unique()):
            yield contender(fit, recipe, r, flops)


def _same_inference(fit: Fit, one: Contender, plain: Contender, family: Family, sizes: Sizes) -> dict[str, Any]:
    """The contender at its median width against the plain model of the same inference FLOPs per token."""
    own = family_of(fit, recipe=one.recipe)
    loss = _loss_at(fit, one, own, WIDTH_UNIT * one.width_scale)
    width = float(size_at(sizes.inference_flops, one.inference_flops))
    other = _loss_at(fit, plain, family, width)
    run, other_run = loss * one.run / one.loss, other * plain.run / plain.loss
    return {
        **_difference(loss, other, run, other_run),
        "width_scale": width / WIDTH_UNIT,
        "tokens": plain.flops / family.architecture(width, 1).flops_per_token,
    }


def _loss_at(fit: Fit, one: Contender, family: Family, width: float) -> Array:
    """The law at one width of the contender's family for its budget, drift included."""
    r = one.recurrences
    n_once, n_rec = family.split(width, r, **fit.convention)
    member = family.architecture(width, r)
    tokens = one.flops / member.flops_per_token
    curve = law_loss(fit.law_at(r), fit.draws(one.recipe, recurrences=r), n_once, n_rec, r, tokens)[:, 0]
    return curve * np.exp(fit.drift(r, one.flops, tokens_per_parameter=tokens / member.n_unique))


def _error(fit: Fit, recipe: str, recurrences: float, flops: float) -> Array:
    """Error on log loss of one new run: the contender's own, and the same whenever it is asked for."""
    rng = np.random.default_rng([fit.spec.seed, fit.recipes.index(recipe), round(1000 * recurrences)])
    log_flops = float(np.log(flops / fit.attrs["centre"]["flops"]))
    return new_run_errors(fit.draws(recipe, recurrences=recurrences), fit.spec.outliers, log_flops, rng)


def _difference(loss: Array, other: Array, run: Array, other_run: Array) -> dict[str, Any]:
    return {
        "difference": interval(loss - other),
        "p_curve": float((loss < other).mean()),
        "p_run": float((run < other_run).mean()),
    }
