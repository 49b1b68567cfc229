"""The common currency of all recurrence maps: what r recurrences are worth in unique blocks, and how that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.maps import RecurrenceMap
from bayeslaw.posterior import Fit

Array = NDArray[np.float64]


def worth(fit: Fit, recurrences: Iterable[float] | None = None, recipe: str | None = None) -> dict[float, Array]:
    """g(r) for every posterior draw, unique blocks; empty for a law without a map (chinchilla).

    Parameters
    ----------
    fit : Fit
    recurrences : iterable of float, optional
        Default the r of the looped runs.
    recipe : str, optional
        Whose, see `Fit.choose_recipe`.

    Returns
    -------
    dict of r to ndarray, shape (sample,)
    """
    return _along(fit, lambda own: own.worth, recurrences, recipe)


def elasticity(fit: Fit, recurrences: Iterable[float] | None = None, recipe: str | None = None) -> dict[float, Array]:
    """d log g / d log r for every posterior draw, as `worth`: 1 where one more recurrence is worth one more block."""
    return _along(fit, lambda own: own.elasticity, recurrences, recipe)


def _along(
    fit: Fit, of: Callable[[RecurrenceMap], Callable[..., Any]], recurrences: Iterable[float] | None, recipe: str | None
) -> dict[float, Array]:
    if fit.spec.law == "chinchilla":
        return {}
    recipe = fit.choose_recipe(recipe)
    if recurrences is None:
        recurrences = [r for r in fit.recurrences_of(recipe) if r > 1]
    # A map without parameters has no draws of its own to broadcast against.
    zeros = np.zeros(fit.posterior.sizes["chain"] * fit.posterior.sizes["draw"])
    out = {}
    for r in recurrences:
        law = fit.law_at(r)
        out[r] = of(law.map)(r, law.map_values(fit.draws(recipe, recurrences=r))) + zeros
    return out
