"""The non-looped model that is as good as a looped one, and what either costs.

Both are members of one family trained on the same tokens. The losses of two models under one law are equal where their
N_eff are, whatever the tokens, so no tokens are needed; and what is said does not hang on E, A, B or the exponents of
the terms. Only where the law itself differs between the two (a law for each architecture, a pooled E) does the answer
depend on the tokens. Drift has no part in it: it says how far a law may be off, not what a recurrence is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.family import Family
from bayeslaw.laws import CORE
from bayeslaw.outside import untrained
from bayeslaw.point.fit import point_fit
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of, interval, law_loss, width_of
from bayeslaw.sizes import along, short, size_at, sizes_of

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """FLOPs per token of the looped model over those of a non-looped one.

    Parameters
    ----------
    same_width : float
        Against the one of the same width.
    equal_loss : ndarray, shape (sample,)
        Against the one of equal loss, for every draw.
    """

    same_width: float
    equal_loss: Array

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"same_width": self.same_width, "equal_loss": interval(self.equal_loss)}


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """A looped model beside the non-looped one of equal loss; prints as sentences.

    Parameters
    ----------
    recipe : str
    recurrences, width_scale : float
    tokens : float or None
        At which the losses are equal; None where that makes no difference.
    n_unique, n_plain : float
        Unique parameters of the looped model, and of the non-looped one of the same width.
    effective_ratio : ndarray, shape (sample,)
        N_eff over the N of the non-looped model of the same width, both by the fit's convention.
    equal_n, equal_width : ndarray, shape (sample,)
        Unique parameters and width scale of the non-looped model of equal loss.
    training, inference : Costs
    equal_cost_n : float
        Unique parameters of the non-looped model that costs as much to train on a token.
    published : tuple of float
        (phi, effective ratio) by the published closed form: (once + r^phi shared) / all in layers, the injection left
        out, at the phi of the published procedure applied to the shipped runs.
    own_phi : ndarray, shape (sample,), or None
        The fit's phi where its map is the power map, without deviations.
    own_ratio : ndarray, shape (sample,), or None
        The closed form at it.
    notes : tuple of str
        What to know before relying on the answer.

    References
    ----------
    arXiv 2604.21106, the example of the equivalence.
    """

    recipe: str
    recurrences: float
    width_scale: float
    tokens: float | None
    n_unique: float
    n_plain: float
    effective_ratio: Array
    equal_n: Array
    equal_width: Array
    training: Costs
    inference: Costs
    equal_cost_n: float
    published: tuple[float, float]
    own_phi: Array | None
    own_ratio: Array | None
    notes: tuple[str, ...]

    @property
    def unique_ratio(self) -> float:
        """Unique parameters over those of the non-looped model of the same width."""
        return self.n_unique / self.n_plain

    @property
    def sentence(self) -> str:
        """What the looped model is worth and what it costs."""
        n, cost = interval(self.equal_n), interval(self.training.equal_loss)
        return (
            f"at r = {self.recurrences:g}, width {WIDTH_UNIT * self.width_scale:.0f}: {short(self.n_unique)} unique "
            f"parameters do as well as a non-looped model of {short(n['mean'])} (90 % {short(n['q05'])} to "
            f"{short(n['q95'])}) and cost as much to train as one of {short(self.equal_cost_n)}: {cost['mean']:.2f} "
            f"(90 % {cost['q05']:.2f} to {cost['q95']:.2f}) times as much as the non-looped model of equal loss"
        )

    def as_dict(self) -> dict[str, Any]:
        """The answer of ``equivalent --json``."""
        phi, ratio = self.published
        own = None
        if self.own_phi is not None and self.own_ratio is not None:
            own = {"phi": interval(self.own_phi), "effective_ratio": interval(self.own_ratio)}
        return {
            "recipe": self.recipe,
            "recurrences": self.recurrences,
            "width_scale": self.width_scale,
            "tokens": self.tokens,
            "n_unique": self.n_unique,
            "unique_ratio": self.unique_ratio,
            "effective_ratio": interval(self.effective_ratio),
            "closed_form": {"phi": phi, "effective_ratio": ratio, "n_unique": ratio * self.n_plain, "own": own},
            "training_cost_ratio": self.training.as_dict(),
            "inference_cost_ratio": self.inference.as_dict(),
            "same_width": {"n_unique": self.n_plain},
            "equal_loss": {"n_unique": interval(self.equal_n), "width_scale": interval(self.equal_width)},
            "equal_cost": {"n_unique": self.equal_cost_n},
            "sentence": self.sentence,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        ratio, cost = interval(self.effective_ratio), self.inference.equal_loss
        phi, closed = self.published
        lines = [
            self.sentence,
            f"unique ratio {self.unique_ratio:.3f}, effective ratio {_spoken(ratio)} of the non-looped model of the "
            "same width",
            f"the published closed form, injection left out, says {short(closed * self.n_plain)}: {closed:.3f} at phi "
            f"{phi:.3f}",
        ]
        if self.own_ratio is not None and self.own_phi is not None:
            lines[-1] += f"; {_spoken(interval(self.own_ratio))} at the fit's phi {_spoken(interval(self.own_phi))}"
        lines.append(
            f"training costs {self.training.same_width:.3f} times, inference {self.inference.same_width:.3f} times "
            f"what they cost at the same width; inference {_spoken(interval(cost))} times what it costs at equal loss"
        )
        return "\n".join(lines)


def equivalent(
    fit: Fit,
    *,
    recurrences: float,
    width_scale: float,
    tokens: float | None = None,
    recipe: str | None = None,
    family: str | None = None,
) -> Equivalence:
    """The non-looped model that has the same loss as a looped one at the same tokens.

    Parameters
    ----------
    fit : Fit
    recurrences, width_scale : float
        r and s = d_model / 64 of the looped model.
    tokens : float, optional
        D; needed only where the laws of the two differ in more than the recurrence map.
    recipe, family : str, optional
        Whose map, and which family; see `Fit.choose_recipe` and `bayeslaw.predict.family_of`. The non-looped model is
        of the recipe that has runs at r = 1, see `Fit.recipe_at`.

    Returns
    -------
    Equivalence

    Raises
    ------
    UsageError
        A number or name that there is not; r is not in the family.
    DecisionError
        The runs have no architecture, the answer depends on tokens that are not given, the law says nothing of that
        r, or no size of a non-looped model has that loss.
    """
    if tokens is not None and not 1 <= tokens < np.inf:
        raise UsageError(f"tokens = {tokens:g}", allowed="a finite number, 1 or more")
    recipe, width = fit.choose_recipe(recipe), width_of(width_scale)
    chosen = family_of(fit, family, recipe=recipe)
    member, plain = (chosen.architecture(width, r) for r in (recurrences, 1))
    n_eff, needed = _effective(fit, chosen, recipe, width, recurrences, tokens)
    n_plain = sum(chosen.split(width, 1, **fit.convention))
    unlooped = sizes_of(chosen, 1, **fit.convention)
    equal = size_at(unlooped.n_once + unlooped.n_rec, n_eff)
    equal_cost = size_at(unlooped.flops_per_token, member.flops_per_token)
    law, own_phi, own_ratio = fit.law_at(recurrences), None, None
    if law.map.name == "power":
        own_phi = fit.draws(recipe, recurrences=recurrences, names=["phi"])["phi"]
        own_ratio = closed_form(chosen, recurrences, own_phi)
    phi = _published_phi()
    return Equivalence(
        recipe=recipe,
        recurrences=recurrences,
        width_scale=width_scale,
        tokens=tokens if needed else None,
        n_unique=member.n_unique,
        n_plain=plain.n_unique,
        effective_ratio=n_eff / n_plain,
        equal_n=along(unlooped.n_unique, equal),
        equal_width=equal / WIDTH_UNIT,
        training=Costs(
            same_width=member.flops_per_token / plain.flops_per_token,
            equal_loss=member.flops_per_token / along(unlooped.flops_per_token, equal),
        ),
        inference=Costs(
            same_width=member.inference_flops_per_token / plain.inference_flops_per_token,
            equal_loss=member.inference_flops_per_token / along(unlooped.inference_flops, equal),
        ),
        equal_cost_n=float(along(unlooped.n_unique, equal_cost)),
        published=(phi, float(closed_form(chosen, recurrences, phi))),
        own_phi=own_phi,
        own_ratio=own_ratio,
        notes=tuple(_notes(fit, recipe, recurrences, member.n_unique, tokens, needed)),
    )


def closed_form(family: Family, recurrences: float, phi: Any) -> Any:
    """Effective ratio in layers, the injection left out: (once + r^phi shared) / all."""
    once, unrolled = family.prelude_layers + family.coda_layers, family.unrolled_layers
    return (once + recurrences**phi * unrolled / recurrences) / (once + unrolled)


@cache
def _published_phi() -> float:
    """Phi of the published procedure applied to the shipped runs."""
    return float(point_fit("isodepth", law="additive", map="power", injection_in="regression").parameters["phi"])


def _effective(
    fit: Fit, family: Family, recipe: str, width: float, recurrences: float, tokens: float | None
) -> tuple[Array, bool]:
    """Size of the non-looped model of equal loss for every draw, and whether that depends on the tokens."""
    law, draws = fit.law_at(recurrences), fit.draws(recipe, recurrences=recurrences)
    parts = family.split(width, recurrences, **fit.convention)
    plain = fit.draws(fit.recipe_at(recipe, 1), recurrences=1)
    differing = [
        name for name in (*CORE, "k") if name in draws and not np.array_equal(draws[name], plain[name], equal_nan=True)
    ]
    if not differing:
        sizes = law.effective_parameters(*parts, recurrences, draws) + np.zeros(len(draws["E"]))
        if not np.isfinite(sizes).all():
            raise DecisionError(f"what r = {recurrences:g} is worth has no upper end in this fit", do="add looped runs")
        return sizes, False
    if tokens is None:
        raise DecisionError(
            f"{', '.join(differing)} of this fit are not the same for {recipe} at r = {recurrences:g} and at r = 1, so "
            "the non-looped model of equal loss depends on the tokens",
            do="add --tokens, or fit a law that all r share (--law coupled or additive)",
        )
    sizes = law.size_for(law_loss(law, draws, *parts, recurrences, tokens)[:, 0], tokens, plain)
    lost = float(np.mean(~np.isfinite(sizes)))
    if lost > 0:
        raise DecisionError(
            f"at {tokens:.3g} tokens no non-looped model has the loss of r = {recurrences:g}, width {width:g}, in "
            f"{100 * lost:.0f} % of the draws: the laws of the two are too far apart there",
            do="choose tokens inside the trained range, or fit a law that all r share (--law coupled or additive)",
        )
    return sizes, True


def _notes(
    fit: Fit, recipe: str, recurrences: float, n_unique: float, tokens: float | None, needed: bool
) -> Iterator[str]:
    if recurrences == 1:
        yield "r = 1 is the non-looped model itself: every ratio to it is 1"
    elif not (fit.runs["recurrences"] > 1).any():
        yield "no fitted run loops: what a recurrence is worth here is the prior's word alone"
    elif why := untrained(fit, recurrences, recipe):
        yield why
    low, high = fit.range_of("n_unique")
    if not low <= n_unique <= high:
        yield f"{n_unique:.3g} parameters lie outside the trained {low:.3g} to {high:.3g}: an extrapolation"
    if tokens is not None and not needed:
        yield "the equally good size is the same at all tokens under this law"
    least, most = fit.range_of("tokens")
    if tokens is not None and needed and not least <= tokens <= most:
        yield f"{tokens:.3g} tokens lie outside the trained {least:.3g} to {most:.3g}: an extrapolation"


def _spoken(row: dict[str, float]) -> str:
    return f"{row['mean']:.3f} (90 % {row['q05']:.3f} to {row['q95']:.3f})"
