"""Loss at designs: the law's curve for every posterior draw, and the loss of a new run around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.family import FAMILIES, FAMILY_COLUMNS, Family, spanned_family, what_differs
from bayeslaw.laws import Law
from bayeslaw.likelihood import new_run_errors
from bayeslaw.posterior import Fit
from bayeslaw.schema import COLUMNS

Array = NDArray[np.float64]

MOST_WIDTH = 2**20


def interval(draws: Array) -> dict[str, float]:
    """Mean and 90 % interval of draws, as every ``--json`` answer gives them."""
    q05, q95 = np.quantile(draws, [0.05, 0.95])
    return {"mean": float(draws.mean()), "q05": float(q05), "q95": float(q95)}


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
            do=f"add --family {'|'.join(FAMILIES)}; else allocate and report take --flops-rule 6nd, predict --n-unique",
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


def largest_budget(fit: Fit) -> float:
    """The most training FLOPs that a fitted run spent; 6 N D where the runs do not say."""
    if "flops" in fit.runs and fit.runs["flops"].notna().any():
        return float(fit.runs["flops"].max())
    return float((6.0 * fit.runs["n_unique"] * fit.runs["tokens"].astype(float)).max())


def _outside(fit: Fit, *, recurrences: float, n_unique: float, tokens: float) -> Iterator[str]:
    """Sentences on what lies outside the fitted runs."""
    if recurrences not in set(fit.runs["recurrences"]):
        yield f"r = {recurrences:g} was never trained: an extrapolation of the recurrence map"
    for name, value in (("n_unique", n_unique), ("tokens", tokens)):
        low, high = float(fit.runs[name].min()), float(fit.runs[name].max())
        if not low <= value <= high:
            yield f"{value:.3g} {COLUMNS[name].unit} lie outside the trained {low:.3g} to {high:.3g}: an extrapolation"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Loss of one configuration.

    Parameters
    ----------
    recurrences : float
    width_scale : float or None
        None for a size that is given in parameters.
    n_unique, tokens : float
    loss_mean : ndarray, shape (sample,)
        The law's curve for every draw, with the drift beyond the largest trained budget; nats per token.
    loss : ndarray, shape (sample,)
        A new run's loss for every draw: the curve and the run's own error.
    notes : tuple of str
        What of the configuration lies outside the trained runs.
    """

    recurrences: float
    width_scale: float | None
    n_unique: float
    tokens: float
    loss_mean: Array
    loss: Array
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
            "notes": list(self.notes),
        }


def predict(
    fit: Fit,
    *,
    tokens: float,
    recurrences: float = 1,
    width_scale: float | None = None,
    n_unique: float | None = None,
    recipe: str | None = None,
    family: str | None = None,
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
    """
    if not (1 <= tokens < np.inf):
        raise UsageError(f"tokens = {tokens}", allowed="a finite number, 1 or more")
    if (width_scale is None) == (n_unique is None):
        given = "neither" if width_scale is None else "both"
        raise UsageError(
            f"{given} of --width-scale and --n-unique", allowed="one of the two, for the size of the model"
        )
    if width_scale is not None:
        width = width_scale * WIDTH_UNIT
        if not (1 <= width <= MOST_WIDTH and width == round(width)):
            raise UsageError(
                f"--width-scale {width_scale:g} is a width of {width:g}", allowed=f"a whole width of 1 to {MOST_WIDTH}"
            )
        chosen = family_of(fit, family, recipe=recipe)
        member = chosen.architecture(width, recurrences)
        n_unique, flops_per_token = member.n_unique, member.flops_per_token
        parts = chosen.split(width, recurrences, **fit.convention)
    elif recurrences != 1:
        raise UsageError(f"recurrences = {recurrences:g} with --n-unique", allowed="1", do="give --width-scale instead")
    else:
        assert n_unique is not None
        if not (1 <= n_unique < np.inf):
            raise UsageError(f"n_unique = {n_unique}", allowed="a finite number of parameters, 1 or more")
        parts, flops_per_token = (n_unique, 0.0), 6 * n_unique
    draws = fit.draws(recipe, recurrences=recurrences)
    flops = flops_per_token * tokens
    curve = law_loss(fit.law, draws, *parts, recurrences, tokens)[:, 0] * np.exp(fit.drift(recurrences, flops))
    log_flops = float(np.log(flops / fit.attrs["centre"]["flops"]))
    error = new_run_errors(draws, fit.spec.outliers, log_flops, np.random.default_rng(fit.spec.seed))
    return Prediction(
        recurrences=recurrences,
        width_scale=width_scale,
        n_unique=float(n_unique),
        tokens=tokens,
        loss_mean=curve,
        loss=curve * np.exp(error),
        notes=tuple(_outside(fit, recurrences=recurrences, n_unique=float(n_unique), tokens=tokens)),
    )
