"""Loss at designs: the law's curve for every posterior draw, and the loss of a new run around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.family import FAMILIES, FAMILY_COLUMNS, Family, spanned_family, what_differs
from bayeslaw.laws import Law
from bayeslaw.likelihood import new_run_errors
from bayeslaw.outside import Distance, distances, sentences
from bayeslaw.posterior import Fit
from bayeslaw.rivals import OtherLaws, Rival, forecasts, rivals
from bayeslaw.uncertainty import Parts, explained, parts_of

Array = NDArray[np.float64]

MOST_WIDTH = 2**20


def interval(draws: Array) -> dict[str, float]:
    """Mean and 90 % interval of draws, as every ``--json`` answer gives them."""
    q05, q95 = np.quantile(draws, [0.05, 0.95])
    return {"mean": float(draws.mean()), "q05": float(q05), "q95": float(q95)}


def spoken(draws: Array, *, sign: str = "") -> str:
    """Mean and 90 % interval of losses as a person reads them."""
    row = interval(draws)
    return f"{row['mean']:{sign}.4f} nats/token, 90 % {row['q05']:{sign}.4f} to {row['q95']:{sign}.4f}"


def law_loss(law: Law, draws: dict[str, Array], n_once: Any, n_rec: Any, recurrences: Any, tokens: Any) -> Array:
    """The law at designs for every draw.

    Parameters
    ----------
    law : Law
    draws : dict
        As `Fit.draws` gives them, each of shape (sample,).
    n_once, n_rec, recurrences, tokens : float or ndarray, shape (design,)

    Returns
    -------
    ndarray, shape (sample, design), nats per token.
    """
    parameters = {name: draws[name][:, None] for name in law.parameters}
    once, rec, r, d = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, dtype=float)) for v in (n_once, n_rec, recurrences, tokens))
    )
    predicted: Array = law.loss(once, rec, r, d, parameters)
    return predicted


def family_of(fit: Fit, name: str | None = None, *, recipe: str | None = None) -> Family:
    """The family a decision chooses from: the named one, else the one that the runs of the recipe span.

    Raises
    ------
    UsageError
        There is no family of that name.
    DecisionError
        The runs have no architecture, or are of several depths.
    """
    if name is not None:
        if name not in FAMILIES:
            raise UsageError(f"--family {name!r}", allowed=", ".join(FAMILIES))
        return FAMILIES[name]
    recipe = fit.choose_recipe(recipe)
    runs = fit.runs[(fit.runs["recipe"] == recipe) | (fit.runs["recurrences"] == 1)]
    missing = [column for column in FAMILY_COLUMNS if column not in runs or runs[column].isna().all()]
    if missing:
        raise DecisionError(
            f"the runs of this fit have no architecture (no {', '.join(missing)})",
            do=f"add --family {'|'.join(FAMILIES)}; else allocate and report take --flops-rule 6nd at r = 1, predict "
            "--n-unique",
        )
    columns = {name: runs[name].tolist() for name in FAMILY_COLUMNS}
    family = spanned_family("of the runs", columns)
    if family is None:
        gaps = [
            f"no {column} for {lacking.sum()} of {len(runs)} runs, those of "
            f"{', '.join(sorted(set(runs.loc[lacking, 'recipe'].astype(str))))}"
            for column in FAMILY_COLUMNS
            if (lacking := runs[column].isna()).any()
        ]
        what = gaps or [f"they differ in {', '.join(what_differs(columns))}"]
        raise DecisionError(
            f"the runs of {recipe}, with those at r = 1, are of no one family: {'; '.join(what)}",
            allowed=f"runs with every one of {', '.join(FAMILY_COLUMNS)}, and one depth, context, vocabulary, "
            "injection and truncation",
            do=f"add --family {'|'.join(FAMILIES)}, or fit a part of them with --where",
        )
    return family


def width_of(width_scale: float) -> float:
    """d_model of a width scale; a `UsageError` where there is no such network."""
    width = width_scale * WIDTH_UNIT
    if not (1 <= width <= MOST_WIDTH and width == round(width)):
        raise UsageError(
            f"--width-scale {width_scale:g} is a width of {width:g}", allowed=f"a whole width of 1 to {MOST_WIDTH}"
        )
    return width


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Loss of one configuration.

    Parameters
    ----------
    recurrences : float
    width_scale : float or None
        None for a size that is given in parameters.
    n_unique, tokens : float
    flops : float
        Training FLOPs; 6 N D for a size that is given in parameters.
    loss_mean : ndarray, shape (sample,)
        The law's curve for every draw, with the drift outside the trained runs; nats per token.
    loss : ndarray, shape (sample,)
        A new run's loss for every draw: the curve and the run's own error.
    parts : Parts
        What the interval of the loss is made of.
    laws : OtherLaws
        What other laws' point fits say. No part of the interval.
    outside : dict of str to Distance
        How far the configuration lies outside the trained runs, see `bayeslaw.outside.distances`.
    notes : tuple of str
        The same in sentences, and where the other laws all contradict.
    """

    recurrences: float
    width_scale: float | None
    n_unique: float
    tokens: float
    flops: float
    loss_mean: Array
    loss: Array
    parts: Parts
    laws: OtherLaws
    outside: dict[str, Distance]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """One entry of ``predict --json``."""
        return {
            "recurrences": self.recurrences,
            "width_scale": self.width_scale,
            "n_unique": self.n_unique,
            "tokens": self.tokens,
            "loss": interval(self.loss),
            "loss_mean": interval(self.loss_mean),
            "flops": self.flops,
            "parts": {**self.parts.as_dict(), "law": self.laws.as_dict()},
            "outside": {name: one.as_dict() for name, one in self.outside.items()},
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        size = "" if self.width_scale is None else f"width {WIDTH_UNIT * self.width_scale:.0f}, "
        lines = [
            f"r = {self.recurrences:g}, {size}{self.n_unique:.4g} parameters, {self.tokens:.4g} tokens, "
            f"{self.flops:.3g} FLOPs"
        ]
        for label, draws in (("a new run's loss", self.loss), ("its expectation", self.loss_mean)):
            lines.append(f"{label}: {spoken(draws)}")
        lines.append(str(self.parts))
        if self.laws.range:
            low, high = self.laws.range
            lines.append(f"other laws' point fits, no part of the interval: {low:.4f} to {high:.4f}")
        far = [
            f"{name.replace('_', ' ')} x {one.factor:.3g} ({one.steps:.1f} steps)"
            for name, one in self.outside.items()
            if one.steps
        ]
        lines.append(f"outside the trained runs: {', '.join(far) or 'nothing'}")
        return "\n".join(lines)


def predict(
    fit: Fit,
    *,
    tokens: float,
    recurrences: float = 1,
    width_scale: float | None = None,
    n_unique: float | None = None,
    recipe: str | None = None,
    family: str | None = None,
    others: tuple[Rival, ...] | None = None,
) -> Prediction:
    """Forecast the loss of one configuration.

    Parameters
    ----------
    fit : Fit
    tokens : float
        D, training tokens.
    recurrences : float
        r.
    width_scale : float, optional
        s = d_model / 64 of a member of the family.
    n_unique : float, optional
        Instead of a width: parameters of a model whose parameters all run once (r = 1).
    recipe, family : str, optional
        Whose phi, and which family; see `Fit.choose_recipe` and `family_of`.
    others : tuple of Rival, optional
        `bayeslaw.rivals.rivals` of the fit, where they are at hand: they take a second.

    Raises
    ------
    UsageError
        A number or name that there is not, or an architecture that is not in the fit.
    DecisionError
        The runs have no architecture, or the law says nothing of that r.
    """
    if not (1 <= tokens < np.inf):
        raise UsageError(f"tokens = {tokens}", allowed="a finite number, 1 or more")
    if (width_scale is None) == (n_unique is None):
        given = "neither" if width_scale is None else "both"
        raise UsageError(
            f"{given} of --width-scale and --n-unique", allowed="one of the two, for the size of the model"
        )
    if width_scale is not None:
        width = width_of(width_scale)
        chosen = family_of(fit, family, recipe=recipe)
        member = chosen.architecture(width, recurrences)
        n_unique, flops_per_token = member.n_unique, member.flops_per_token
        parts, guess = chosen.split(width, recurrences, **fit.convention), np.log(chosen.vocab_size)
    elif recurrences != 1:
        raise UsageError(f"recurrences = {recurrences:g} with --n-unique", allowed="1", do="give --width-scale instead")
    else:
        assert n_unique is not None
        if not (1 <= n_unique < np.inf):
            raise UsageError(f"n_unique = {n_unique}", allowed="a finite number of parameters, 1 or more")
        parts, flops_per_token, guess = (n_unique, 0.0), 6 * n_unique, np.inf
    assert n_unique is not None
    recipe = fit.recipe_at(fit.choose_recipe(recipe), recurrences)
    flops = flops_per_token * tokens
    draws = fit.draws(recipe, recurrences=recurrences)
    shift = fit.drift(recurrences, flops, tokens / n_unique)
    error = _new_error(fit, draws, flops, seed=(recurrences, n_unique, tokens))
    law = fit.law_at(recurrences)
    curves = [law_loss(law, each, *parts, recurrences, tokens)[:, 0] for each in (explained(law, draws), draws)]
    curves.append(curves[-1] * np.exp(shift))
    curves.append(curves[-1] * np.exp(error))
    said = forecasts(
        rivals(fit) if others is None else others, recipe, n_once=parts[0], n_rec=parts[1], recurrences=recurrences,
        tokens=tokens,
    )  # fmt: skip
    outside = distances(fit, recurrences=recurrences, n_unique=n_unique, tokens=tokens, flops=flops)
    notes = [*sentences(fit, outside, recipe)]
    if contradiction := said.outside(*np.quantile(curves[-1], [0.05, 0.95])):
        notes.append(contradiction)
    if curves[-2].mean() > guess:
        notes.append(f"guessing a token reaches {guess:.2f} nats: the law does not hold there")
    return Prediction(
        recurrences=recurrences,
        width_scale=width_scale,
        n_unique=float(n_unique),
        tokens=tokens,
        flops=float(flops),
        loss_mean=curves[-2],
        loss=curves[-1],
        parts=parts_of(curves),
        laws=said,
        outside=outside,
        notes=tuple(notes),
    )


def _new_error(fit: Fit, draws: dict[str, Array], flops: float, *, seed: tuple[float, ...]) -> Array:
    """Error on log loss of a new run: each configuration has its own, always the same."""
    rng = np.random.default_rng([fit.spec.seed, *np.array(seed, dtype=float).view(np.uint32).tolist()])
    return new_run_errors(draws, fit.spec.outliers, float(np.log(flops / fit.attrs["centre"]["flops"])), rng)
