"""Recipes that no run has tried: what the model itself says of them beforehand.

A recipe has parameters of its recurrence map of its own, which lie around the recipes' mean as the prior of their
spread says; a fit of one recipe knows that mean by this recipe alone. Deviations of its own come on top.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.deviation import PREFIX
from bayeslaw.errors import DecisionError
from bayeslaw.posterior import Fit
from bayeslaw.spec import ALIASES, pooling_of

Array = NDArray[np.float64]

CORE = ("E", "A", "B", "alpha", "beta", "k")


def newcomer(fit: Fit, recipe: str) -> dict[str, Array]:
    """Draws of the map's parameters of a recipe that the fit does not hold, each of shape (sample,).

    A parameter p of recipe c is m + s z_c, on the scale that is normal. Where the fit holds several recipes, m and s
    are its own; with one recipe s has its prior, and m given that recipe's p is normal with precision 1 / s^2 + 1 / v
    around (p / s^2 + u / v) times its inverse, u and v mean and variance of the prior of m.

    Raises
    ------
    DecisionError
        The fit pools parameters otherwise than by recipe, so that it does not say what another recipe would be.
    """
    posterior = fit.posterior
    others = [name for name in CORE if name in posterior and {"recipe", "source"} & set(posterior[name].dims)]
    pooled = {name: pooling_of(text) for name, text in fit.spec.pooling.items()}
    own = [name for name in fit.law.map.parameters if not name.startswith(PREFIX)]
    strange = others + [name for name in own if pooled.get(name, ("partial", "recipe")) != ("partial", "recipe")]
    if strange or fit.spec.law == "chinchilla":
        names = {stated: name for name, stated in ALIASES.items()}
        what = ", ".join(names.get(name, name) for name in strange) or "every parameter of each architecture"
        raise DecisionError(
            f"the recipe {recipe!r} is not in this fit, whose pooling of {what} does not say what a new one would be",
            allowed=f"a recipe of the fit ({', '.join(fit.recipes)}), or a fit that pools the map by recipe",
            do="fit again without --pool",
        )
    rng = np.random.default_rng([fit.spec.seed, *recipe.encode()])
    anchor = fit.draws(fit.choose_recipe(None), names=fit.law.map.parameters)
    count = posterior.sizes["chain"] * posterior.sizes["draw"]
    priors = fit.attrs["priors"]
    out = {}
    for name in fit.law.map.parameters:
        if name.startswith(PREFIX):
            out[name] = posterior[f"{PREFIX}spread"].values.ravel() * rng.standard_normal(count)
            continue
        prior = priors[name.rsplit("_", 1)[0]]
        if f"{name}_mean" in posterior:
            mean, spread = (posterior[f"{name}_{kind}"].values.ravel() for kind in ("mean", "spread"))
            mean = np.log(mean) if prior["log"] else mean
        else:
            spread = _spreads(priors["spread"], count, rng)
            value = np.log(anchor[name]) if prior["log"] else anchor[name]
            median = math.log(prior["median"]) if prior["log"] else prior["median"]
            precision = 1 / spread**2 + 1 / prior["sd"] ** 2
            mean = (value / spread**2 + median / prior["sd"] ** 2) / precision
            mean = mean + rng.standard_normal(count) / np.sqrt(precision)
        drawn = mean + spread * rng.standard_normal(count)
        out[name] = np.exp(drawn) if prior["log"] else drawn
    return out


def _spreads(prior: dict[str, Any], count: int, rng: np.random.Generator) -> Array:
    """Draws of the prior of a spread, as a fit's record has it: half-normal or log-normal."""
    if "scale" in prior:
        half: Array = np.abs(prior["scale"] * rng.standard_normal(count))
        return np.maximum(half, 1e-6)
    drawn: Array = prior["median"] * np.exp(prior["sd"] * rng.standard_normal(count))
    return drawn
