"""What a fit knows of runs, trained or not: log losses for every draw, and the errors that come on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.design.candidates import Possible
from bayeslaw.design.newcomers import newcomer
from bayeslaw.deviation import PREFIX, Deviating, fresh
from bayeslaw.family import Family
from bayeslaw.inputs import Inputs, inputs_of
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of, law_loss
from bayeslaw.schema import STUDENT_NU

Array = NDArray[np.float64]

INFORMATION = (STUDENT_NU + 3) / (STUDENT_NU + 1)
"""A Student error with nu degrees of freedom and scale sigma says as much of its centre as a normal one of variance
sigma^2 (nu + 3) / (nu + 1): the inverse of its Fisher information."""

NEAR_ANCHOR = 0.1
"""A new recipe's log loss is taken to be linear in how it differs from the anchor: what a tenth of the difference
changes, ten times. The prior of the difference is so wide that over its draws losses are far from linear in it, and a
regression on them would see errors where the first runs already tell which part of the curve is the true one."""

SAME_AGAIN = 0.5
"""Share of a run's error variance that a second seed of the same run is taken to share, in a fit to runs none of which
was repeated: such a fit cannot tell, and both parts have the same prior."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """The fit, with recipes that it does not hold.

    Parameters
    ----------
    fit : Fit
    families : dict of str to Family
        By recipe: the trainable grid of each.
    new : dict of str to (dict of str to ndarray, shape (sample,))
        Map parameters of the recipes that the fit does not hold.
    """

    fit: Fit
    families: dict[str, Family]
    new: dict[str, dict[str, Array]]

    @classmethod
    def of(cls, fit: Fit, recipes: Sequence[str], families: Mapping[str, Family] | None = None) -> Knowledge:
        """What the fit knows of these recipes and of the one that others are held against.

        Parameters
        ----------
        fit : Fit
        recipes : sequence of str
        families : mapping of str to Family, optional
            Of recipes that the fit does not hold; without one theirs is the anchor's.

        Raises
        ------
        DecisionError
            The runs have no architecture, or the fit does not say what a new recipe would be.
        """
        anchor = fit.choose_recipe(None)
        given = families or {}
        names = dict.fromkeys((anchor, *recipes))
        return cls(
            fit=fit,
            families={
                name: family_of(fit, recipe=name) if name in fit.recipes else given.get(name, family_of(fit))
                for name in names
            },
            new={name: newcomer(fit, name) for name in names if name not in fit.recipes},
        )

    @property
    def anchor(self) -> str:
        """The baseline, or the only recipe."""
        return self.fit.choose_recipe(None)

    def draws(self, recipe: str, recurrences: float) -> dict[str, Array]:
        """As `Fit.draws`, for new recipes too."""
        if recipe not in self.new:
            return self.fit.draws(recipe, recurrences=recurrences)
        own = self.new[recipe]
        out = {**self.fit.draws(self.anchor, recurrences=recurrences), **own}
        known = self.fit.law.map
        if isinstance(known, Deviating) and not known.knows(recurrences):
            deviations = [own[f"{PREFIX}{level:g}"] for level in known.levels]
            spread = self.fit.posterior[f"{PREFIX}spread"].values.ravel()
            out[f"{PREFIX}{recurrences:g}"] = fresh(known, recurrences, deviations, spread, recipe)
        return out

    def log_worth(self, recipe: str, recurrences: float) -> Array:
        """log g(r) for every draw, shape (sample,)."""
        law = self.fit.law_at(recurrences)
        draws = self.draws(recipe, recurrences)
        values: Array = law.map.log_worth(recurrences, law.map_values(draws)) + np.zeros(len(draws["E"]))
        return values

    def log_losses(self, runs: Sequence[Possible]) -> Array:
        """Log of the law, with what it may be off outside the trained runs, shape (sample, run)."""
        out = np.empty((self.fit.posterior.sizes["chain"] * self.fit.posterior.sizes["draw"], len(runs)))
        groups = {(run.recipe, run.recurrences) for run in runs}
        for recipe, r in sorted(groups):
            at = [i for i, run in enumerate(runs) if (run.recipe, run.recurrences) == (recipe, r)]
            members = [runs[i] for i in at]
            family = self.families[recipe]
            n_once, n_rec = np.array([family.split(run.d_model, r, **self.fit.convention) for run in members]).T
            tokens = np.array([run.tokens for run in members], dtype=float)
            law, draws = self.fit.law_at(r), self.draws(recipe, r)
            if recipe in self.new:
                known = self.draws(self.anchor, r)
                near = {name: known[name] + NEAR_ANCHOR * (draws[name] - known[name]) for name in law.parameters}
                start, moved = (np.log(law_loss(law, values, n_once, n_rec, r, tokens)) for values in (known, near))
                out[:, at] = start + (moved - start) / NEAR_ANCHOR
            else:
                out[:, at] = np.log(law_loss(law, draws, n_once, n_rec, r, tokens))
            for i, run in zip(at, members, strict=True):
                out[:, i] += self.fit.drift(r, run.flops, run.tokens / run.n_unique)
        return out

    def error_variance(self, flops: Array) -> Array:
        """Variance of a run's own error on log loss, as it counts for information, of the shape of ``flops``."""
        draws = self.fit.draws(self.anchor)
        steps = np.log(flops / self.fit.attrs["centre"]["flops"])
        log_sigma = np.log(draws["sigma"])[:, None] + draws.get("sigma_slope", np.zeros(1))[:, None] * steps
        variance: Array = np.exp(2 * log_sigma).mean(axis=0)
        return variance * (INFORMATION if self.fit.spec.outliers == "student" else 1.0)

    def effect_variance(self, effect: str) -> float | None:
        """Variance of the effects of training runs ("run") or cells ("cell"); None where the fit has none."""
        draws = self.fit.draws(self.anchor)
        name = f"tau_{effect}"
        return float((draws[name] ** 2).mean()) if name in draws else None


def runs_to_come(knowledge: Knowledge, runs: Sequence[Possible]) -> tuple[Array, Array, Array]:
    """What runs would show, and their errors: what `bayeslaw.design.belief.Belief.of` takes.

    A cell (recipe, budget, r) shares an effect where the fit has such effects, and a second seed shares its run's. The
    trained runs of the cell, or the first seed, have told a part of it: the effect's conditional mean moves with the
    draw's residuals there, and what is left of its variance is shared by the new runs.

    Returns
    -------
    eta : ndarray, shape (sample, run)
        Log loss, with what is known of effects by trained runs.
    noise : ndarray, shape (run,)
        Variance of each run's own error.
    shared : ndarray, shape (run, run)
        Covariance of the errors that runs share.
    """
    eta = knowledge.log_losses(runs)
    cell, repeated = knowledge.effect_variance("cell") or 0.0, knowledge.effect_variance("run")
    own = knowledge.error_variance(np.array([run.flops for run in runs]))
    again = np.array([run.replicates is not None for run in runs])
    same = np.where(again, SAME_AGAIN * own, 0.0) if repeated is None else np.full(len(runs), repeated)
    noise = own - same if repeated is None else own
    keys = np.array([run.cell for run in runs])
    shared = cell * (keys[:, None] == keys) + np.diag(same)
    if not cell and not again.any():
        return eta, noise, shared

    inputs = inputs_of(knowledge.fit.runs, injection_in=knowledge.fit.spec.counted_in)
    ids = knowledge.fit.runs["run_id"].astype(str).to_numpy()
    cells = np.array(inputs.cell.levels)[inputs.cell.index] if inputs.cell else np.full(len(ids), "")
    first = np.array([run.replicates or "" for run in runs])
    label = inputs.run.index[np.array([int((ids == name).argmax()) for name in first])]
    link = cell * (keys[:, None] == cells) + same[:, None] * (again[:, None] & (label[:, None] == inputs.run.index))
    rows = np.flatnonzero(link.any(axis=0))
    link, part = link[:, rows], inputs.subset(rows)
    between = np.diag(knowledge.error_variance(part.flops))
    between = between + cell * (cells[rows][:, None] == cells[rows])
    between += (repeated or 0.0) * (part.run.index[:, None] == part.run.index)
    weight = np.linalg.solve(between, link.T)
    return eta + _residuals(knowledge, part) @ weight, noise, shared - link @ weight


def _residuals(knowledge: Knowledge, trained: Inputs) -> Array:
    """Measured less forecast log loss of trained runs, shape (sample, run)."""
    out = np.empty((knowledge.fit.posterior.sizes["chain"] * knowledge.fit.posterior.sizes["draw"], len(trained.loss)))
    for recipe, r in sorted(set(zip(trained.recipe.tolist(), trained.recurrences.tolist(), strict=True))):
        at = (trained.recipe == recipe) & (trained.recurrences == r)
        draws = knowledge.draws(trained.recipes[recipe], r)
        curve = law_loss(knowledge.fit.law, draws, trained.n_once[at], trained.n_rec[at], r, trained.tokens[at])
        out[:, at] = trained.log_loss[at] - np.log(curve)
    return out
