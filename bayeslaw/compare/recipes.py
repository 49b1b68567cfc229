"""Recipes against a baseline: matched runs first, then phi and g(r) under several structures, then loss at one budget.

The order is that of trust. Differences between matched runs need no law. Contrasts of g(r) and of phi need one, and can
hang on it, so each stands under every structure tried. What a budget buys needs the law's shape besides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bayeslaw.compare.matched import MATCHINGS, MatchedGain, matched_gain
from bayeslaw.compare.verdicts import Side, loss_sentence, matched_sentence, phi_sentence, range_sentence, side_of
from bayeslaw.compare.versus import Standing, standings
from bayeslaw.diagnostics import check, phi_differences, worth_differences
from bayeslaw.errors import DecisionError, FitError, UsageError
from bayeslaw.fit import fit
from bayeslaw.inputs import inputs_of
from bayeslaw.posterior import Fit
from bayeslaw.predict import interval
from bayeslaw.priors import DEFAULT, Priors
from bayeslaw.runs import RunTable
from bayeslaw.schema import BASELINE
from bayeslaw.spec import STRUCTURES
from bayeslaw.worth import worth

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True, kw_only=True)
class Under:
    """What one structure says of every recipe.

    Parameters
    ----------
    structure : str
    cells : bool
        Whether it has effects of cells, which take the level of each cell out of the evidence.
    converged : bool
    min_ess_bulk, max_r_hat : float
    divergences : int
    phi : dict
        By recipe: mean, q05, q95. Empty where the map has no phi.
    log_worth : dict
        By recipe and each r that it trained: log g(r), as phi.
    phi_difference : dict
        By recipe: phi less the anchor's, with p_gt_0; see `bayeslaw.diagnostics.phi_differences`.
    log_worth_difference : dict
        By recipe and r, likewise.
    reason : str
        Why the structure could not be fitted; empty where it was.
    """

    structure: str
    cells: bool
    converged: bool = False
    min_ess_bulk: float = 0.0
    max_r_hat: float = 0.0
    divergences: int = 0
    phi: Mapping[str, dict[str, float]] = field(default_factory=dict)
    log_worth: Mapping[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    phi_difference: Mapping[str, dict[str, float]] = field(default_factory=dict)
    log_worth_difference: Mapping[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    reason: str = ""

    def rows(self, recipe: str) -> Iterator[tuple[str, ...]]:
        """Texts for a table: structure, of what, value, difference from the anchor's (empty for itself), P(> 0)."""
        name = self.structure if self.converged or self.reason else f"{self.structure} (not converged)"
        if self.reason:
            yield (name, "left out", "", "", "")
            return
        differences = {"phi": self.phi_difference.get(recipe), **self.log_worth_difference.get(recipe, {})}
        own = {"phi": self.phi[recipe]} if recipe in self.phi else {}
        for of, value in (own | self.log_worth.get(recipe, {})).items():
            apart = differences.get(of)
            yield (
                name,
                of if of == "phi" else f"log g({of})",
                _range(value, ""),
                _range(apart, "+") if apart else "",
                f"{apart['p_gt_0']:.3f}" if apart else "",
            )
            name = ""  # said once


@dataclass(frozen=True, kw_only=True)
class RecipeComparison:
    """Recipes held against an anchor.

    Parameters
    ----------
    anchor : str
        The baseline.
    recipes : tuple of str
        The others.
    matched : tuple of MatchedGain
        Of every recipe, with each of `bayeslaw.compare.matched.MATCHINGS`.
    structures : tuple of Under
    standings : dict of float to tuple of Standing
        By training budget, from the first structure that could be fitted.
    trained_to : dict of str to float
        Largest training FLOPs of each recipe's looped runs.
    notes : tuple of str
        What is left out, and why.
    """

    anchor: str
    recipes: tuple[str, ...]
    matched: tuple[MatchedGain, ...]
    structures: tuple[Under, ...]
    standings: Mapping[float, tuple[Standing, ...]]
    trained_to: Mapping[str, float]
    notes: tuple[str, ...]

    def phi_side(self, recipe: str) -> Side:
        """On which side of 0 the difference in phi lies, by structure."""
        return self._side(lambda one: one.phi_difference.get(recipe))

    def worth_side(self, recipe: str, r: str) -> Side:
        """On which side of 0 the difference in log g(r) lies, by structure."""
        return self._side(lambda one: one.log_worth_difference.get(recipe, {}).get(r))

    def _side(self, of: Callable[[Under], dict[str, float] | None]) -> Side:
        # A fit that did not converge says nothing for or against.
        found = {one.structure: of(one) for one in self.structures if one.converged}
        return side_of({name: value for name, value in found.items() if value is not None})

    def as_dict(self) -> dict[str, Any]:
        """The ``recipes`` object of ``compare --json``."""
        out: dict[str, Any] = {"anchor": self.anchor, "matched": {}, "structures": {}, "reading": {}}
        for gain in self.matched:
            out["matched"].setdefault(gain.recipe, {})[gain.matching] = gain.as_dict()
        for one in self.structures:
            values = asdict(one)
            out["structures"][values.pop("structure")] = values
        for recipe in self.recipes:
            out["reading"][recipe] = {
                "phi": asdict(self.phi_side(recipe)),
                "log_worth": {r: asdict(self.worth_side(recipe, r)) for r in self._recurrences(recipe)},
            }
        out["budgets"] = [one.as_dict() for found in self.standings.values() for one in found]
        out["trained_to"] = dict(self.trained_to)
        out["sentences"] = list(self.sentences)
        return out

    def _recurrences(self, recipe: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r for one in self.structures for r in one.log_worth_difference.get(recipe, {})))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What each of `tables` says, in their order, and what else there is to know."""
        out = [matched_sentence([gain for gain in self.matched if gain.recipe == recipe]) for recipe in self.recipes]
        if any(not one.reason for one in self.structures):
            out.append(
                range_sentence(
                    self.anchor, {one.structure: one.phi.get(self.anchor) for one in self.structures if one.converged}
                )
            )
            for recipe in self.recipes:
                gains = [gain for gain in self.matched if gain.recipe == recipe]
                sides = {r: self.worth_side(recipe, r) for r in self._recurrences(recipe)}
                cells = [one.structure for one in self.structures if one.cells and one.converged]
                out.append(phi_sentence(recipe, self.anchor, self.phi_side(recipe), sides, gains, cells))
        out += [loss_sentence(found, flops, self.trained_to) for flops, found in self.standings.items()]
        return (*out, *self.notes)

    def tables(self) -> dict[str, Table]:
        """Title to (header, rows of texts), at most 80 columns wide with short names."""
        out: dict[str, Table] = {}
        for recipe in self.recipes:
            gains = [gain for gain in self.matched if gain.recipe == recipe]
            out[f"matched runs: loss of {recipe} less that of {self.anchor}, nats per token"] = (
                ("same", "r", "difference [90 %]", "P(lower)", "pairs", "cells", "tokens"),
                [row for gain in gains for row in gain.rows()],
            )
        if any(not one.reason for one in self.structures):
            for recipe in (self.anchor, *self.recipes):
                header = ("structure", "of", "value [90 %]", f"less {self.anchor}'s", "P(> 0)")
                keep = 3 if recipe == self.anchor else 5
                rows = [row[:keep] for one in self.structures for row in one.rows(recipe)]
                out[f"what a recurrence of {recipe} is worth, by structure"] = (header[:keep], rows)
        for flops, found in self.standings.items():
            out[f"loss at {flops:.3g} training FLOPs, and less {self.anchor}'s (P: that it is lower)"] = (
                ("recipe", "r", "width", "loss", "same r", "P", "r = 1", "P", "inference", "P"),
                [one.row() for one in found],
            )
        return out


def compare_recipes(
    table: RunTable,
    *,
    flops: float | Sequence[float] | None = None,
    structures: Mapping[str, Mapping[str, Any]] = STRUCTURES,
    priors: Priors = DEFAULT,
    draws: int = 1000,
    seed: int = 0,
    progress: Callable[[str], None] = lambda message: None,
    **settings: Any,
) -> RecipeComparison:
    """Hold every recipe with looped runs against the baseline.

    Parameters
    ----------
    table : RunTable
    flops : float or sequence of float, optional
        Training budgets C at which losses are compared; default the largest that every recipe trained, and the largest.
    structures : mapping
        Names and settings of the fits; the first is the one that losses at a budget come from.
    priors : Priors
    draws, seed : int
        Of every fit.
    progress : callable
        Told in a few words what is being done.
    **settings
        Of every fit, such as ``injection_in``.

    Raises
    ------
    UsageError
        Fewer than two recipes have looped runs, or none of them is the baseline; a budget that cannot be meant.
    """
    recipes = inputs_of(table.runs, injection_in="once").recipes
    if len(recipes) < 2 or BASELINE not in recipes:
        raise UsageError(
            f"a comparison of the recipes {', '.join(recipes)}",
            allowed=f"two or more recipes with looped runs, one of them called {BASELINE!r}",
            do="add the baseline's runs, such as with --against isodepth",
        )
    others = tuple(recipe for recipe in recipes if recipe != BASELINE)
    trained_to = _trained_to(table, recipes)
    budgets = _budgets(flops, trained_to)
    matched = [
        matched_gain(table.runs, recipe, BASELINE, matching=matching) for recipe in others for matching in MATCHINGS
    ]
    answers: list[Under] = []
    notes: list[str] = []
    found: dict[float, tuple[Standing, ...]] = {}
    asked = False
    for name, own in structures.items():
        progress(f"recipes under the structure: {name}")
        chosen = {"draws": draws, "seed": seed, **settings, **own}
        if asked and "law" not in own:
            chosen.setdefault("drift", False)  # nobody forecasts with it
        try:
            posterior = fit(table, priors=priors, **chosen)
        except FitError as error:
            answers.append(Under(structure=name, cells=own.get("noise") == "cells", reason=error.what))
            notes.append(f"{name} left out: {error.what}.")
            continue
        answers.append(_answer(name, posterior))
        if not answers[-1].converged:
            notes.append(f"The sampler did not converge under {name}: it is shown, and counts neither way.")
        if not asked:
            asked = True
            for budget in budgets:
                try:
                    found[budget] = standings(posterior, budget)
                except (DecisionError, UsageError) as error:
                    notes.append(f"No losses at {budget:.3g} training FLOPs: {error.what}.")
        del posterior
    return RecipeComparison(
        anchor=BASELINE, recipes=others, matched=tuple(matched), structures=tuple(answers), standings=found,
        trained_to=trained_to, notes=tuple(notes),
    )  # fmt: skip


def _answer(name: str, posterior: Fit) -> Under:
    verdict = check(posterior)
    has_phi = "phi" in posterior.law.parameters
    looped = posterior.runs[posterior.runs["recurrences"] > 1]
    # An r that a recipe did not train is the map's word, and no evidence on the recipe.
    own = {recipe: sorted(set(looped.loc[looped["recipe"] == recipe, "recurrences"])) for recipe in posterior.recipes}
    differences = worth_differences(posterior)
    return Under(
        structure=name,
        cells=posterior.spec.noise == "cells",
        converged=verdict.passed,
        min_ess_bulk=verdict.min_ess_bulk,
        max_r_hat=verdict.max_r_hat,
        divergences=verdict.divergences,
        phi={r: interval(posterior.draws(r, names=["phi"])["phi"]) for r in posterior.recipes} if has_phi else {},
        log_worth={
            recipe: {f"{r:g}": interval(np.log(values)) for r, values in worth(posterior, trained, recipe).items()}
            for recipe, trained in own.items()
        },
        phi_difference=phi_differences(posterior),
        log_worth_difference={
            recipe: {f"{r:g}": found[f"{r:g}"] for r in own[recipe]} for recipe, found in differences.items()
        },
    )


def _trained_to(table: RunTable, recipes: Sequence[str]) -> dict[str, float]:
    """Largest training FLOPs of the looped runs of each recipe: as aimed at, where a budget says."""
    runs = table.runs
    spent = inputs_of(runs, injection_in="once").flops
    if "budget" in runs:
        aimed = runs["budget"].to_numpy(dtype=float)
        spent = np.where(np.isfinite(aimed), aimed, spent)
    looped = (runs["recurrences"] > 1).to_numpy()
    return {recipe: float(spent[looped & (runs["recipe"] == recipe).to_numpy()].max()) for recipe in recipes}


def _budgets(flops: float | Sequence[float] | None, trained_to: Mapping[str, float]) -> tuple[float, ...]:
    if flops is None:
        return tuple(sorted({min(trained_to.values()), max(trained_to.values())}))
    chosen = tuple(float(value) for value in np.atleast_1d(np.asarray(flops, dtype=float)))
    if not chosen or not all(np.isfinite(value) and value > 0 for value in chosen):
        raise UsageError(f"a budget of {flops} FLOPs", allowed="finite numbers above 0, such as 2.15e19")
    return chosen


def _range(value: Mapping[str, float], sign: str) -> str:
    """Mean and 90 % interval without the zeros before the point, so that a table stays narrow: -.11 [-.16, -.07]."""
    mean, low, high = (re.sub(r"(?<!\d)0\.", ".", f"{value[key]:{sign}.2f}") for key in ("mean", "q05", "q95"))
    return f"{mean} [{low}, {high}]"
