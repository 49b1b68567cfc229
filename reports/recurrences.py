"""What a fit measures about recurrences, in the one currency that all maps share: unique blocks, and their exponent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw.posterior import Fit
from bayeslaw.worth import elasticity, worth

Array = NDArray[np.float64]
Currency = Callable[..., dict[float, Array]]

CURVE_POINTS = 60


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What the recurrences of one recipe, or of all where nothing tells them apart, are worth.

    Parameters
    ----------
    fit : Fit
    recipe : str
    trained : tuple of float
        The r > 1 of its runs, ascending; 2 where none loops.
    """

    fit: Fit
    recipe: str
    trained: tuple[float, ...]

    @property
    def most(self) -> float:
        """The largest trained r."""
        return self.trained[-1]

    @cached_property
    def blocks(self) -> dict[float, Array]:
        """g(r), unique blocks, at the trained r."""
        return _currency(self.fit, worth, self.recipe, self.trained)

    @cached_property
    def growth(self) -> dict[float, Array]:
        """d log g / d log r at the trained r."""
        return _currency(self.fit, elasticity, self.recipe, self.trained)

    @cached_property
    def exponent(self) -> Array:
        """The exponent in one number: phi of the power map, else the average one up to the largest trained r."""
        if "phi" not in self.fit.law.map.parameters:
            return self.exponents(self.most)
        return _currency(self.fit, _phi, self.recipe, (self.most,))[self.most]

    def at(self, r: float) -> Array:
        """g(r), unique blocks, at any r."""
        if "architecture" in factors_of(self.fit):  # where each trained r has a phi of its own, the last one's
            return self.blocks[r] if r in self.blocks else r**self.exponent
        return _currency(self.fit, worth, self.recipe, (r,))[r]

    def exponents(self, r: float) -> Array:
        """Average exponent from 1 to r, log g(r) / log r."""
        exponents: Array = np.log(self.blocks[r]) / np.log(r)
        return exponents

    @cached_property
    def narrowed(self) -> float:
        """Posterior over prior standard deviation of the exponent."""
        return float(self.exponent.std() / self.prior.exponent.std())

    @cached_property
    def prior(self) -> Worth:
        """The same before any run was seen."""
        return replace(self, fit=_with(self.fit, self.fit.data["prior"].to_dataset()))

    def curve(self) -> tuple[Array, Array] | None:
        """r from 1 to the largest trained, shape (point,), and g there, (sample, point); None where each r is apart."""
        if "architecture" in factors_of(self.fit):
            return None
        r = np.unique(np.concatenate([np.geomspace(1, self.most, CURVE_POINTS), self.trained]))
        values = _currency(self.fit, worth, self.recipe, r.tolist())
        return r, np.stack([values[each] for each in r.tolist()], axis=1)


def worths(fit: Fit) -> dict[str, Worth]:
    """The worth by recipe, one alone where all share it; empty for a map without parameters, which measures nothing."""
    if not fit.law.map.parameters:
        return {}
    recipes = fit.recipes if factors_of(fit) else fit.recipes[:1]
    looped = fit.runs[fit.runs["recurrences"] > 1]
    out = {}
    for recipe in recipes:
        own = looped if len(recipes) == 1 else looped[looped["recipe"] == recipe]
        trained = tuple(sorted(float(r) for r in own["recurrences"].unique())) or (2.0,)
        out[recipe] = Worth(fit=fit, recipe=recipe, trained=trained)
    return out


def factors_of(fit: Fit, names: Iterable[str] | None = None) -> set[str]:
    """What parameters differ by: of the map, or those named."""
    wanted = fit.law.map.parameters if names is None else names
    return {str(dim) for name in wanted for dim in fit.posterior[name].dims} - {"chain", "draw"}


def _currency(fit: Fit, what: Currency, recipe: str, r: Iterable[float]) -> dict[float, Array]:
    """`worth` or `elasticity` at each r, whatever the law's other parameters differ by."""
    own, posterior = factors_of(fit), fit.posterior
    # The other parameters do not matter here, and which of their levels the recipe has may not even be settled.
    idle = [dim for dim in ("source", "architecture") if dim in posterior.dims and dim not in own]
    posterior = posterior.isel(dict.fromkeys(idle, 0))
    if "architecture" not in own:
        return what(_with(fit, posterior), r, recipe)
    apart = {each: posterior.sel(architecture=f"{recipe}/r={each:g}") for each in r}
    return {each: what(_with(fit, chosen), [each], recipe)[each] for each, chosen in apart.items()}


def _phi(fit: Fit, recurrences: Iterable[float], recipe: str) -> dict[float, Array]:
    """Phi, as `worth`."""
    return {r: fit.draws(recipe, recurrences=r, names=["phi"])["phi"] for r in recurrences}


def _with(fit: Fit, posterior: xr.Dataset) -> Fit:
    """The fit with this posterior and nothing else of its data."""
    tree = xr.DataTree.from_dict({"posterior": posterior})
    tree.attrs = dict(fit.data.attrs)
    return replace(fit, data=tree)
