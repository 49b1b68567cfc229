"""How far a configuration lies outside the trained runs, as numbers and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bayeslaw.drift import steps_beyond
from bayeslaw.inputs import NEAR
from bayeslaw.posterior import Fit
from bayeslaw.schema import COLUMNS

COMPUTE, RATIO = "compute", "tokens_per_parameter"


@dataclass(frozen=True, kw_only=True)
class Distance:
    """A value beside the range that was trained.

    Parameters
    ----------
    value, low, high : float
    """

    value: float
    low: float
    high: float

    @property
    def factor(self) -> float:
        """The value over the nearer end of the range; 1 inside it."""
        return self.value / min(max(self.value, self.low), self.high)

    @property
    def steps(self) -> float:
        """Steps of `bayeslaw.schema.STEP` from the range; 0 inside it."""
        return float(sum(steps_beyond(self.value, self.low, self.high)))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {
            "value": self.value, "low": self.low, "high": self.high, "factor": self.factor, "steps": self.steps,
        }  # fmt: skip


def distances(fit: Fit, *, recurrences: float, n_unique: float, tokens: float, flops: float) -> dict[str, Distance]:
    """How far a configuration lies outside the trained runs.

    Parameters
    ----------
    fit : Fit
    recurrences, n_unique, tokens, flops : float
        r, unique parameters, D, training FLOPs.

    Returns
    -------
    dict of str to Distance
        By compute (FLOPs), n_unique, tokens, tokens_per_parameter (against the runs of this r, where there are any)
        and recurrences.
    """
    found = {
        COMPUTE: (flops, fit.range_of("flops")),
        "n_unique": (n_unique, fit.range_of("n_unique")),
        "tokens": (tokens, fit.range_of("tokens")),
        RATIO: (tokens / n_unique, fit.range_of(RATIO, recurrences)),
        "recurrences": (recurrences, fit.range_of("recurrences")),
    }
    return {
        name: Distance(value=float(value), low=low, high=high) for name, (value, (low, high)) in found.items()
    }  # fmt: skip


def sentences(fit: Fit, found: Mapping[str, Distance], recipe: str) -> Iterator[str]:
    """What of a configuration lies outside the trained runs, and whether the interval allows for it.

    Parameters
    ----------
    fit : Fit
    found : mapping
        As `distances` gives it.
    recipe : str
    """
    r = found["recurrences"].value
    trained = set(fit.runs["recurrences"])
    if why := untrained(fit, r, recipe):
        yield why
    for name in ("n_unique", "tokens"):
        one = found[name]
        if one.steps:
            yield (
                f"{one.value:.4g} {COLUMNS[name].unit} lie outside the trained {one.low:.4g} to {one.high:.4g}: "
                "an extrapolation"
            )
    compute, ratio = found[COMPUTE], found[RATIO]
    far = abs(np.log(compute.factor)) > np.log(NEAR)  # runs that aim at one budget differ by as much
    if far:
        end = "largest" if compute.factor > 1 else "smallest"
        yield f"{compute.value:.3g} FLOPs are {compute.factor:.3g} times the {end} trained budget: an extrapolation"
    if ratio.steps:
        where = f" at r = {r:g}" if r in trained else ""
        yield (
            f"{ratio.value:.4g} tokens per parameter lie outside the {ratio.low:.4g} to {ratio.high:.4g} trained"
            f"{where}: an extrapolation"
        )
    if (far or ratio.steps) and not fit.spec.drift:
        yield (
            "this fit has no drift, so its intervals do not widen outside the trained budgets and tokens per parameter;"
            " the default model's (no --law) do, and so do those of a fit with --drift on"
        )


def untrained(fit: Fit, recurrences: float, recipe: str) -> str | None:
    """A sentence where no run of the recipe has that r; the runs at r = 1 serve every recipe."""
    with_it = fit.runs[fit.runs["recurrences"] == recurrences]
    if (with_it["recipe"] == recipe).any() or (recurrences == 1 and len(with_it)):
        return None
    under = f" under {recipe}" if len(with_it) else ""
    return f"r = {recurrences:g} was never trained{under}: an extrapolation of the recurrence map"
