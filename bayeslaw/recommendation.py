"""A recommendation and what it was chosen from, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayeslaw.constraints import Constraints
from bayeslaw.frontier import Optimum
from bayeslaw.location import Location
from bayeslaw.options import Located, Trainable
from bayeslaw.predict import interval
from bayeslaw.sizes import short


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
    in_flops : bool
        Whether the budget was given in FLOPs.
    constraints : Constraints
    objective : str
        What the recommendation has least of: one of `bayeslaw.allocate.OBJECTIVES`.
    quantile : float
        Of the objective "quantile".
    options : tuple of Option
        One for each recipe and r that was allowed.
    candidates : tuple of Trainable
        All trainable configurations that were weighed.
    recommended : Option
        The one whose trainable configuration is best by the objective.
    objective_value : float
        How much of the objective it has; nats per token.
    expected_regret : float
        Expected loss of the recommendation above that of the best trainable configuration, each draw's own; nats per
        token.
    location : Location
        The noise that intervals of size and tokens allow for.
    notes : tuple of str
        What to know before relying on it.
    """

    flops: float
    in_flops: bool
    constraints: Constraints
    objective: str
    quantile: float
    options: tuple[Option, ...]
    candidates: tuple[Trainable, ...]
    recommended: Option
    objective_value: float
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
            **({"quantile": self.quantile} if self.objective == "quantile" else {}),
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
            "objective_value": self.objective_value,
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
    def spoken_budget(self) -> str:
        """The budget in words, with what of it goes to generation."""
        if not self.in_flops:
            return f"{self.constraints.gpu_hours:g} device hours"
        generated = self.constraints.lifetime_tokens
        if not generated:
            return f"{self.flops:.3g} FLOPs"
        share = generated * self.recommended.trainable.inference_flops / self.flops
        return f"{self.flops:.3g} FLOPs, {share:.0%} of them to generate {short(generated)} tokens,"

    @property
    def spoken_objective(self) -> str:
        """What the recommendation has least of, in words."""
        return {
            "mean": "expected loss", "quantile": f"{self.quantile:g} quantile of loss",
            "regret": "largest regret of any draw",
        }[self.objective]  # fmt: skip

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
        located = f"; the best size lies between {short(size['q05'])} and {short(size['q95'])} (90 %)"
        text = (
            f"For {self.spoken_budget} train {whose}r = {best.recurrences}, {width}{short(run.n_unique)} unique "
            f"parameters, on {short(run.tokens)} tokens: expected loss {loss['mean']:.4f} nats/token (90 % "
            f"{loss['q05']:.4f} to {loss['q95']:.4f}), expected regret {self.expected_regret:.1e}"
            f"{'' if self.constraints.d_model else located}. This r is best with probability "
            f"{best.probability_best:.2f}."
        )
        if self.objective != "mean":
            text = f"{text} It has the least {self.spoken_objective}: {self.objective_value:.4g} nats/token."
        if (other := self.runner_up) is not None:
            gap = interval(other.trainable.loss - run.loss)
            name = f"r = {other.recurrences}" if not whose else f"{other.recipe}, r = {other.recurrences}"
            text += (
                f" Next comes {name}: {gap['mean']:+.4f} nats/token ({gap['q05']:+.4f} to {gap['q95']:+.4f}) with "
                f"{other.trainable.n_unique / run.n_unique:.2f} times the unique parameters."
            )
        return text
