"""The inverse of an allocation: the least compute that reaches a loss, and whether any does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.allocate import NONE, allocate
from bayeslaw.constraints import MOST_FLOPS, Constraints
from bayeslaw.errors import UsageError
from bayeslaw.frontier import flops_limit, optima
from bayeslaw.location import location_of
from bayeslaw.options import Choice, choices
from bayeslaw.posterior import Fit
from bayeslaw.predict import interval
from bayeslaw.recommendation import Allocation
from bayeslaw.sizes import along, short

Array = NDArray[np.float64]

BUDGETS = 200
"""Budgets that a loss is looked for at, evenly on a log scale."""

CLOSE = 1e-3
"""How exactly the logarithm of the recommended budget is found."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """What a loss takes with one recipe and r.

    Parameters
    ----------
    recipe : str
    recurrences : int
    flops : ndarray, shape (sample,)
        Least training budget of every draw; inf where none reaches the loss.
    probability_best : float
        Share of draws in which this route is the cheapest, of those in which any reaches the loss.
    """

    recipe: str
    recurrences: int
    flops: Array
    probability_best: float

    @property
    def probability_reachable(self) -> float:
        """Share of draws in which some budget reaches the loss."""
        return float(np.isfinite(self.flops).mean())

    def as_dict(self) -> dict[str, Any]:
        """For JSON; the interval is that of the draws that reach the loss."""
        reached = self.flops[np.isfinite(self.flops)]
        return {
            "recipe": self.recipe,
            "recurrences": self.recurrences,
            "flops": interval(reached) if len(reached) else None,
            "probability_reachable": self.probability_reachable,
            "probability_best": self.probability_best,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What a loss takes.

    Parameters
    ----------
    loss : float
        Nats per token.
    probability : float or None
        That the recommended run's curve reaches it; None for its expectation.
    routes : tuple of Route
    recommended : Allocation or None
        The cheapest recommendation that reaches it; None where there is none.
    farthest : Allocation
        What the largest budget that was looked at buys.
    floor : ndarray, shape (sample,)
        The law's E, which no budget goes below.
    notes : tuple of str
    """

    loss: float
    probability: float | None
    routes: tuple[Route, ...]
    recommended: Allocation | None
    farthest: Allocation
    floor: Array
    notes: tuple[str, ...]

    @property
    def probability_reachable(self) -> float:
        """Share of draws in which some budget reaches the loss by some route."""
        return float(np.isfinite(np.min([route.flops for route in self.routes], axis=0)).mean())

    def as_dict(self) -> dict[str, Any]:
        """The answer of ``allocate --target-loss --json``."""
        return {
            "target_loss": self.loss,
            "probability": self.probability,
            "probability_reachable": self.probability_reachable,
            "E": interval(self.floor),
            "routes": [route.as_dict() for route in self.routes],
            "recommended": None if self.recommended is None else self.recommended.as_dict(),
            "least_loss": self.farthest_loss,
            "notes": list(self.notes),
        }

    @property
    def farthest_loss(self) -> float:
        """The loss of `farthest` that is to be the one asked for: expected, or the quantile."""
        return _counted(self.farthest, self.probability)

    def __str__(self) -> str:
        floor, share = interval(self.floor), self.probability_reachable
        chance = f"{share:.2f}" if share in (0, 1) or 0.005 <= share < 0.995 else f"{share:.4f}"
        known = (
            f"In {chance} of the posterior's draws some budget up to {MOST_FLOPS:.0e} FLOPs reaches it; E, which the "
            f"law never goes below, is {floor['mean']:.3f} (90 % {floor['q05']:.3f} to {floor['q95']:.3f})."
        )
        sure = "in expectation" if self.probability is None else f"with probability {self.probability:g}"
        if self.recommended is None:
            within = " within these constraints" if self.farthest.constraints.as_dict() else ""
            best = self.farthest.recommended.trainable
            return (
                f"No budget up to {MOST_FLOPS:.0e} FLOPs reaches {self.loss:g} nats/token {sure}{within}: the least "
                f"that it comes to there is {self.farthest_loss:.4f}, with r = {best.recurrences}, "
                f"{short(best.n_unique)} parameters and {short(best.tokens)} tokens. {known}"
            )
        return f"{self.loss:g} nats/token take {self.recommended.flops:.3g} FLOPs {sure}. {known}\n{self.recommended}"


def target(
    fit: Fit,
    *,
    loss: float,
    probability: float | None = None,
    recurrences: Sequence[int] | None = None,
    recipe: str | Sequence[str] | None = None,
    family: str | None = None,
    flops_rule: str | None = None,
    constraints: Constraints = NONE,
) -> Target:
    """The least compute for a loss, within constraints.

    Parameters
    ----------
    fit : Fit
    loss : float
        Nats per token.
    probability : float, optional
        How sure the recommended run's curve has to reach it; by default its expectation does.
    recurrences, recipe, family, flops_rule, constraints
        As for `bayeslaw.allocate.allocate`.

    Raises
    ------
    UsageError
        A loss or a probability that cannot be meant.
    DecisionError
        Nothing can be trained within the constraints.
    """
    if not (np.isfinite(loss) and loss > 0):
        raise UsageError(f"--target-loss {loss:g}", allowed="a finite loss above 0, in nats per token")
    if probability is not None and not 0.5 <= probability < 1:
        raise UsageError(f"--probability {probability:g}", allowed="from 0.5 to below 1")
    options = {"recurrences": recurrences, "recipe": recipe, "family": family, "flops_rule": flops_rule}
    found, notes = choices(fit, flops=MOST_FLOPS, constraints=constraints, **options)  # type: ignore[arg-type]
    needed = np.stack([_needed(fit, choice, constraints, loss) for choice in found])
    reached = np.isfinite(needed.min(axis=0))
    cheapest = np.bincount(needed.argmin(axis=0)[reached], minlength=len(found)) / max(1, reached.sum())
    location = location_of(fit)

    def at(flops: float) -> Allocation:
        return allocate(
            fit, flops=flops, constraints=constraints, location=location,
            objective="mean" if probability is None else "quantile", quantile=probability or 0.95, **options,  # type: ignore[arg-type]
        )  # fmt: skip

    def missed(made: Allocation) -> float:
        return _counted(made, probability) - loss

    farthest = at(MOST_FLOPS)
    recommended = _cheapest(at, missed, needed)
    floor = fit.draws(found[0].recipe, recurrences=found[0].recurrences, names=["E"])["E"]
    if loss <= floor.mean():
        notes.append("the loss asked for lies below the law's E: where it was ever measured, the law is wrong")
    if recommended is not None:
        notes += [note for note in recommended.notes if note not in notes]
    return Target(
        loss=loss,
        probability=probability,
        routes=tuple(
            Route(recipe=choice.recipe, recurrences=choice.recurrences, flops=flops, probability_best=float(share))
            for choice, flops, share in zip(found, needed, cheapest, strict=True)
        ),
        recommended=recommended,
        farthest=farthest,
        floor=floor,
        notes=tuple(notes),
    )


def _counted(made: Allocation, probability: float | None) -> float:
    """The loss of a recommended run that counts: expected, or the quantile."""
    draws = made.recommended.trainable.loss
    return float(draws.mean() if probability is None else np.quantile(draws, probability))


def _needed(fit: Fit, choice: Choice, constraints: Constraints, loss: float) -> Array:
    """Least training budget of every draw, by the curve of its optimum over budgets; inf where it stays above."""
    sizes, r = choice.sizes, choice.recurrences
    one = flops_limit(sizes, 1.0, generated=constraints.lifetime_tokens)
    least = one.taken(choice.line.smallest, sizes.batch_tokens)
    budgets = np.geomspace(least, MOST_FLOPS, BUDGETS)
    lines = [choice.line_at(float(flops)) for flops in budgets]
    size, tokens, curve = optima(
        fit.law_at(r), fit.draws(choice.recipe, recurrences=r), sizes, lines, recurrences=r
    )  # fmt: skip
    spent, ratio = along(sizes.flops_per_token, size) * tokens, tokens / along(sizes.n_unique, size)
    for place in range(BUDGETS):
        curve[:, place] *= np.exp(fit.drift(r, spent[:, place], tokens_per_parameter=ratio[:, place]))
    below = curve <= loss
    first = np.maximum(below.argmax(axis=1), 1)
    rows, logs = np.arange(len(curve)), np.log(budgets)
    before, after = curve[rows, first - 1], curve[rows, first]
    share = np.clip((before - loss) / np.where(before > after, before - after, 1.0), 0, 1)
    found = np.exp(logs[first - 1] + share * (logs[first] - logs[first - 1]))
    return np.where(below.any(axis=1), found, np.inf)


def _cheapest(
    at: Callable[[float], Allocation], missed: Callable[[Allocation], float], needed: Array
) -> Allocation | None:
    """The recommendation of the least budget that is enough, between those of the most and the least hopeful draw."""
    from scipy.optimize import brentq

    known = needed[np.isfinite(needed)]
    if not len(known):
        return None
    tried: dict[float, Allocation] = {}

    def miss(log_flops: float) -> float:
        tried[log_flops] = at(float(np.exp(log_flops)))
        return missed(tried[log_flops])

    low, high = np.log(known.min()), np.log(min(2 * known.max(), MOST_FLOPS))
    if miss(high) > 0:
        return None
    if miss(low) > 0:
        brentq(miss, low, high, xtol=CLOSE)
    # Trainable widths make small steps of the curve: of all that were tried the least that is enough.
    return tried[min(log_flops for log_flops, made in tried.items() if missed(made) <= 0)]
