"""What other laws say: point fits of several laws and recurrence maps to the same runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.errors import BayeslawError
from bayeslaw.laws import Law, make_law
from bayeslaw.point.fit import Status, point_fit
from bayeslaw.posterior import Fit
from bayeslaw.runs import RunTable

TERMS = ("additive", "coupled")
MAPS = ("power", "bounded", "hill", "free")


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A law's point fit.

    Parameters
    ----------
    name : str
        Its terms and, where runs loop, its map.
    law : Law or None
    parameters : dict
        As `bayeslaw.point.fit.PointFit` gives them.
    failure : str
        Why there are no usable parameters; empty where there are.
    """

    name: str
    law: Law | None
    parameters: dict[str, Any]
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class OtherLaws:
    """Forecasts of one configuration by other laws.

    Parameters
    ----------
    forecasts : dict of str to float
        Loss by the name of the law, nats per token.
    left_out : dict of str to str
        Laws that forecast nothing here, and why.
    """

    forecasts: dict[str, float]
    left_out: dict[str, str]

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest forecast; None where there is none."""
        values = self.forecasts.values()
        return (min(values), max(values)) if values else None

    def outside(self, low: float, high: float) -> str | None:
        """A sentence where every forecast lies outside an interval."""
        if self.range is None or any(low <= value <= high for value in self.forecasts.values()):
            return None
        least, most = self.range
        return (
            f"point fits of {len(self.forecasts)} laws to the same runs all lie outside this interval: "
            f"{least:.4f} to {most:.4f}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        low, high = self.range or (None, None)
        return {"low": low, "high": high, "forecasts": self.forecasts, "left_out": self.left_out}


def rivals(fit: Fit) -> tuple[Rival, ...]:
    """Point fits of the additive and the coupled law with several maps to the runs of a fit; a second or so.

    A law that cannot be fitted is among them, with the reason.
    """
    table = RunTable(runs=fit.runs, source=fit.attrs["source"], excluded=pd.DataFrame(), notes=())
    looped = tuple(sorted(float(r) for r in fit.runs["recurrences"].unique() if r > 1))
    maps = MAPS if looped else ("none",)
    return tuple(_fitted(fit, table, terms, name, looped) for terms in TERMS for name in maps)


def _fitted(fit: Fit, table: RunTable, terms: str, name: str, looped: tuple[float, ...]) -> Rival:
    blank = Rival(name=f"{terms}, {name}" if looped else terms, law=None, parameters={})
    try:
        made = point_fit(table, law=terms, map=name, injection_in=fit.spec.counted_in)
    except (BayeslawError, ArithmeticError, ValueError) as error:  # LinAlgError is a ValueError
        return replace(blank, failure=str(error).splitlines()[0])
    if made.status == Status.NOT_OPTIMUM:
        return replace(blank, failure="its point fit is not an optimum")
    return replace(blank, law=make_law(terms, name, levels=looped), parameters=made.parameters)


def forecasts(
    found: tuple[Rival, ...], recipe: str, *, n_once: float, n_rec: float, recurrences: float, tokens: float
) -> OtherLaws:
    """What the rivals say of one configuration.

    Parameters
    ----------
    found : tuple of Rival
    recipe : str
        Whose map parameters.
    n_once, n_rec, recurrences, tokens : float
        As `bayeslaw.laws.Law.loss` takes them.
    """
    said: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for rival in found:
        why = rival.failure or _silent(rival, recipe, recurrences)
        if not why:
            assert rival.law is not None
            # What no run tells of has no part in this loss: any number does.
            values = {
                name: 1.0 if value is None else value for name, value in _of_recipe(rival.parameters, recipe).items()
            }
            with np.errstate(all="ignore"):
                loss = float(rival.law.loss(n_once, n_rec, recurrences, tokens, values))
            why = "" if np.isfinite(loss) else "its forecast is not finite"
        if why:
            left_out[rival.name] = why
        else:
            said[rival.name] = loss
    return OtherLaws(forecasts=said, left_out=left_out)


def _silent(rival: Rival, recipe: str, recurrences: float) -> str:
    """Why a fitted law says nothing of an r; empty where it does."""
    assert rival.law is not None
    if recurrences == 1:
        return ""
    own = rival.law.map
    if own.name == "none":
        return "no run loops"
    if own.name == "free" and recurrences not in own.levels:
        return f"its map is free, and r = {recurrences:g} was never trained"
    values = _of_recipe(rival.parameters, recipe)
    unknown = [name for name in own.parameters if values[name] is None]
    if own.name == "free":
        unknown = [name for name in unknown if name == f"phi_{recurrences:g}"]
    return f"no run tells of {', '.join(unknown)}" if unknown else ""


def _of_recipe(parameters: Mapping[str, Any], recipe: str) -> dict[str, Any]:
    """The parameters of one recipe."""
    return {name: value.get(recipe) if isinstance(value, dict) else value for name, value in parameters.items()}
