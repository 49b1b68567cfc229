"""The recommendation: width, tokens, recurrences and recipe for a training budget, with its expected regret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.constraints import MOST_FLOPS, Constraints
from bayeslaw.errors import UsageError
from bayeslaw.frontier import Optimum
from bayeslaw.location import Location, location_of
from bayeslaw.options import Choice, Located, Trainable, choices
from bayeslaw.posterior import Fit
from bayeslaw.predict import interval, largest_budget

Array = NDArray[np.float64]

OBJECTIVES = ("mean", "quantile", "regret")
"""What a recommendation has least of: expected loss, an upper quantile of the loss, the largest regret of any draw."""

BEYOND = 1.5
"""A recommended model so many times larger or smaller than all trained ones is called an extrapolation."""

OFTEN = 0.05
"""Share of draws with an optimum at an edge from which on it is said."""


NONE = Constraints()


@dataclass(frozen=True, kw_only=True, eq=False)
class Option:
    """What the budget buys with one recipe and r.

    Parameters
    ----------
    recipe : str
    recurrences : int
    optimum : Optimum
        Draw by draw, within the constraints; sizes and tokens by the law alone.
    located : Located
        The same with the noise of location.
    trainable : Trainable
        The best trainable configuration by the objective.
    probability_best : float
        Share of draws in which the best trainable configuration is one of this option.
    """

    recipe: str
    recurrences: int
    optimum: Optimum
    located: Located
    trainable: Trainable
    probability_best: float

    def against(self, plain: Option) -> dict[str, Any]:
        """Loss above that of another option, and the probabilities that the optimum is wider, with fewer tokens."""
        mine, other = self.located, plain.located
        wider = (
            None
            if mine.width_scale is None or other.width_scale is None
            else float((mine.width_scale > other.width_scale).mean())
        )
        return {
            "loss": interval(self.optimum.loss - plain.optimum.loss),
            "p_wider": wider,
            "p_fewer_tokens_per_unrolled": float(
                (mine.tokens / mine.n_unrolled < other.tokens / other.n_unrolled).mean()
            ),
            "p_fewer_tokens_per_unique": float((mine.tokens / mine.n_unique < other.tokens / other.n_unique).mean()),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Allocation:
    """A recommendation for one training budget.

    Parameters
    ----------
    flops : float
        Training budget C, FLOPs; where device hours alone are the budget, what the recommended run takes.
    constraints : Constraints
    objective : str
        One of `OBJECTIVES`.
    options : tuple of Option
        One for each recipe and r that was allowed.
    candidates : tuple of Trainable
        All trainable configurations that were weighed.
    recommended : Option
        The one whose trainable configuration is best by the objective.
    expected_regret : float
        Expected loss of the recommendation above that of the best trainable configuration, each draw's own; nats per
        token.
    location : Location
        The noise that intervals of size and tokens allow for.
    notes : tuple of str
        What to know before relying on it.
    """

    flops: float
    constraints: Constraints
    objective: str
    options: tuple[Option, ...]
    candidates: tuple[Trainable, ...]
    recommended: Option
    expected_regret: float
    location: Location
    notes: tuple[str, ...]

    @property
    def recipe(self) -> str:
        """Recipe of the recommendation."""
        return self.recommended.recipe

    @property
    def plain(self) -> Option | None:
        """The non-looped option, where there is one."""
        return next((option for option in self.options if option.recurrences == 1), None)

    def as_dict(self) -> dict[str, Any]:
        """The answer of ``allocate --json``."""
        best = self.recommended
        recipes = list(dict.fromkeys(option.recipe for option in self.options))
        by_recipe = {
            recipe: {
                str(option.recurrences): self._option(option) for option in self.options if option.recipe == recipe
            }
            for recipe in recipes
        }
        several = len(recipes) > 1
        return {
            "flops": self.flops,
            "constraints": self.constraints.as_dict(),
            "objective": self.objective,
            "recipe": best.recipe,
            **({"recipes": by_recipe} if several else {"recurrences": by_recipe[recipes[0]]}),
            "recommended": {
                "recipe": best.recipe,
                "recurrences": best.recurrences,
                **best.trainable.as_dict(),
                "loss": interval(best.trainable.loss),
                "n_opt": interval(best.located.n_unique),
                "memory": self.constraints.memory_of(best.trainable.n_unique),
            },
            "expected_regret": self.expected_regret,
            "probability_best": best.probability_best,
            "location_noise": self.location.tau if self.location.cells else None,
            "notes": list(self.notes),
        }

    def _option(self, option: Option) -> dict[str, Any]:
        located, plain = option.located, self.plain
        return {
            "optimum": {
                "width_scale": None if located.width_scale is None else interval(located.width_scale),
                "n_unique": interval(located.n_unique),
                "tokens": interval(located.tokens),
                "loss": interval(option.optimum.loss),
                "at_smallest": option.optimum.at_smallest,
                "at_largest": option.optimum.at_largest,
            },
            "trainable": option.trainable.as_dict() | {"loss": interval(option.trainable.loss)},
            "probability_best": option.probability_best,
            "against_plain": None if plain is None or option is plain else option.against(plain),
        }

    @property
    def runner_up(self) -> Option | None:
        """The next best option by expected loss."""
        others = [option for option in self.options if option is not self.recommended]
        return min(others, key=lambda option: float(option.trainable.loss.mean()), default=None)

    def __str__(self) -> str:
        best = self.recommended
        run = best.trainable
        loss, size = interval(run.loss), interval(best.located.n_unique)
        whose = "" if len({option.recipe for option in self.options}) == 1 else f"{best.recipe}, "
        width = "" if run.d_model is None else f"width {run.d_model}, "
        budget = f"{self.flops:.3g} FLOPs" if self.flops is not None else f"{self.constraints.gpu_hours:g} device hours"
        text = (
            f"For {budget} train {whose}r = {best.recurrences}, {width}{run.n_unique:.3g} unique parameters, on "
            f"{run.tokens:.3g} tokens: expected loss {loss['mean']:.4f} nats/token (90 % {loss['q05']:.4f} to "
            f"{loss['q95']:.4f}), expected regret {self.expected_regret:.1e}; the best size lies between "
            f"{size['q05']:.3g} and {size['q95']:.3g} (90 %), and this r is best with probability "
            f"{best.probability_best:.2f}."
        )
        if (other := self.runner_up) is not None:
            gap = interval(other.trainable.loss - run.loss)
            name = f"r = {other.recurrences}" if not whose else f"{other.recipe}, r = {other.recurrences}"
            text += (
                f" Next comes {name}: {gap['mean']:+.4f} nats/token ({gap['q05']:+.4f} to {gap['q95']:+.4f}) with "
                f"{other.trainable.n_unique / run.n_unique:.2f} times the unique parameters."
            )
        return text


def allocate(
    fit: Fit,
    *,
    flops: float | None = None,
    recurrences: Sequence[int] | None = None,
    recipe: str | Sequence[str] | None = None,
    family: str | None = None,
    flops_rule: str | None = None,
    constraints: Constraints = NONE,
    objective: str = "mean",
    quantile: float = 0.95,
    location: Location | None = None,
) -> Allocation:
    """Recommend an allocation of a training budget.

    Parameters
    ----------
    fit : Fit
    flops : float, optional
        Training budget C, FLOPs; may be left out where the constraints give device hours.
    recurrences : sequence of int, optional
        The r to choose from; default those that were trained.
    recipe : str or sequence of str, optional
        The recipes to choose from; default all of the fit.
    family : str, optional
        A named family; default the one that the runs span.
    flops_rule : "6nd", optional
        Count C = 6 N D (r = 1 only).
    constraints : Constraints
    objective : str
        One of `OBJECTIVES`.
    quantile : float
        The upper quantile that "quantile" has least of.
    location : Location, optional
        What `location_of` says of the fit, where it is known already.

    Raises
    ------
    UsageError
        What is asked for cannot be meant.
    DecisionError
        Nothing can be trained within the constraints (says which leaves nothing, and by how much), or the runs have
        no architecture.
    """
    _require(flops, family, flops_rule, constraints, objective, quantile)
    found, notes = choices(
        fit, flops=flops, recurrences=recurrences, recipe=recipe, family=family, flops_rule=flops_rule,
        constraints=constraints,
    )  # fmt: skip
    # Who knew the truth could train no other configurations either.
    each = np.stack([np.min([run.loss for run in choice.trainable], axis=0) for choice in found])
    best = np.asarray(each.min(axis=0), dtype=np.float64)
    share = np.bincount(each.argmin(axis=0), minlength=len(found)) / len(best)
    location = location or location_of(fit)
    options = tuple(
        Option(
            recipe=choice.recipe,
            recurrences=choice.recurrences,
            optimum=choice.optimum,
            located=choice.located(location, fit.spec.seed),
            trainable=min(choice.trainable, key=lambda run: _badness(run.loss, best, objective, quantile)),
            probability_best=float(probability),
        )
        for choice, probability in zip(found, share, strict=True)
    )
    recommended = min(options, key=lambda option: _badness(option.trainable.loss, best, objective, quantile))
    notes += _notes(fit, flops, found, recommended, constraints)
    notes += [] if location.cells else [str(location)]
    return Allocation(
        flops=recommended.trainable.flops if flops is None else flops,
        constraints=constraints,
        objective=objective,
        options=options,
        candidates=tuple(run for choice in found for run in choice.trainable),
        recommended=recommended,
        expected_regret=float((recommended.trainable.loss - best).mean()),
        location=location,
        notes=tuple(notes),
    )


def _require(
    flops: float | None, family: str | None, flops_rule: str | None, constraints: Constraints, objective: str,
    quantile: float,
) -> None:  # fmt: skip
    if flops is None and constraints.gpu_hours is None:
        raise UsageError("no budget", allowed="--flops, --gpu-hours or both")
    if flops is None and constraints.lifetime_tokens:
        raise UsageError("--lifetime-tokens without --flops", allowed="a budget in FLOPs, which they are priced into")
    if flops is not None and not 0 < flops <= MOST_FLOPS:
        raise UsageError(f"--flops {flops}", allowed=f"above 0 and at most {MOST_FLOPS:g}, such as 2.15e19")
    if family is not None and flops_rule is not None:
        raise UsageError(f"--family {family} with --flops-rule {flops_rule}", allowed="one of the two")
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective!r}", allowed=", ".join(OBJECTIVES))
    if not 0.5 <= quantile < 1:
        raise UsageError(f"--quantile {quantile:g}", allowed="an upper quantile, from 0.5 to below 1")


def _badness(loss: Array, best: Array, objective: str, quantile: float) -> float:
    if objective == "quantile":
        return float(np.quantile(loss, quantile))
    return float((loss - best).max() if objective == "regret" else loss.mean())


def _notes(
    fit: Fit, flops: float | None, found: Sequence[Choice], recommended: Option, constraints: Constraints
) -> list[str]:
    run, notes = recommended.trainable, []
    spent = largest_budget(fit)
    if (flops or run.flops) > 1.05 * spent:
        notes.append(
            f"the budget is {_factor((flops or run.flops) / spent)} times the largest trained one: an extrapolation"
        )
    if constraints.d_model is None:
        notes += [*_edge(found, "smallest"), *_edge(found, "largest")]
    if constraints.data_tokens is not None and (epochs := run.tokens / constraints.data_tokens) > 1:
        notes.append(f"the data are passed over {epochs:.2f} times, and the law takes repeated tokens for new ones")
    binding = next(
        choice.line.binding(run.size)
        for choice in found
        if (choice.recipe, choice.recurrences) == (recommended.recipe, recommended.recurrences)
    )
    if binding.name != "budget":
        left = "" if flops is None else f", {run.flops / flops:.0%} of the budget is spent"
        notes.append(f"{binding.name} limits the tokens of the recommended run{left}")
    sizes = fit.runs["n_unique"].astype(float)
    if not sizes.min() / BEYOND <= run.n_unique <= sizes.max() * BEYOND:
        notes.append(
            f"the recommended {run.n_unique:.3g} parameters lie outside the trained {sizes.min():.3g} to "
            f"{sizes.max():.3g}: the law alone speaks there"
        )
    return notes


def _edge(found: Sequence[Choice], end: str) -> list[str]:
    """A sentence on the options whose optimum is often the smallest, or the largest, size that is possible."""
    there = [choice for choice in found if getattr(choice.optimum, f"at_{end}") > OFTEN]
    if not there:
        return []
    sizes = ", ".join(choice.sizes.called(round(getattr(choice.line, end))) for choice in there)
    shares = ", ".join(dict.fromkeys(f"{getattr(choice.optimum, f'at_{end}'):.0%}" for choice in there))
    held = {choice.line.held_by for choice in there} - {""} if end == "largest" else set()
    return [
        f"{', '.join(choice.name for choice in there)}: the optimum lies at the edge of the possible sizes, the {end} "
        f"({sizes}{', by ' + ' and '.join(held) if held else ''}), in {shares} of the draws"
    ]


def _factor(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.2g}"
