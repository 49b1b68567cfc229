"""What can be chosen within the constraints: for each recipe and r the optimum of every draw, and trainable runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.constraints import Constraints
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.frontier import Optimum, drifted, optimum
from bayeslaw.lines import Line
from bayeslaw.location import Location
from bayeslaw.outside import untrained
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of, law_loss
from bayeslaw.sizes import Sizes, along, plain_sizes, size_at, sizes_of
from bayeslaw.throughput import Throughput, throughput_of

Array = NDArray[np.float64]

FLOPS_RULES = ("6nd",)

CANDIDATES = 100
"""Sizes looked at for trainable ones, evenly on a log scale over the posterior of the optimum."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trainable:
    """A configuration that can be trained.

    Parameters
    ----------
    recipe : str
    recurrences : int
    d_model : int or None
        None under the 6 N D rule.
    n_unique, tokens : int
    flops, inference_flops : float
        Training FLOPs that it takes, and FLOPs per generated token at the end of a full context.
    loss : ndarray, shape (sample,)
        The law at this configuration for every draw, with what it may be off outside the trained runs; nats per token.
    """

    recipe: str
    recurrences: int
    d_model: int | None
    n_unique: int
    tokens: int
    flops: float
    inference_flops: float
    loss: Array

    @property
    def size(self) -> float:
        """The size as `Sizes` has it."""
        return float(self.n_unique if self.d_model is None else self.d_model)

    def as_dict(self) -> dict[str, Any]:
        """Entries of ``allocate --json`` without the loss."""
        return {
            "d_model": self.d_model,
            "width_scale": None if self.d_model is None else self.d_model / WIDTH_UNIT,
            "n_unique": self.n_unique,
            "tokens": self.tokens,
            "flops": self.flops,
            "inference_flops": self.inference_flops,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Located:
    """Where the optimum lies, with the noise of location, each array of shape (sample,).

    Parameters
    ----------
    width_scale : ndarray or None
        None under the 6 N D rule.
    n_unique, n_unrolled : ndarray
        Parameters; unrolled, N_once + r N_rec as the fit counts them.
    tokens : ndarray
    """

    width_scale: Array | None
    n_unique: Array
    n_unrolled: Array
    tokens: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """One recipe and r within the constraints.

    Parameters
    ----------
    recipe : str
    recurrences : int
    name : str
        In messages.
    sizes : Sizes
    line : Line
    line_at : callable
        The line of another training budget, FLOPs, within the same constraints.
    optimum : Optimum
    trainable : tuple of Trainable
        Those that some draw in a hundred calls optimal.
    """

    recipe: str
    recurrences: int
    name: str
    sizes: Sizes
    line: Line
    line_at: Callable[[float], Line]
    optimum: Optimum
    trainable: tuple[Trainable, ...]

    def located(self, location: Location, seed: int) -> Located:
        """Size and tokens of the optimum with the noise of location, within the line."""
        sizes, best = self.sizes, self.optimum
        size = best.n_unique if best.width_scale is None else best.width_scale * WIDTH_UNIT
        # N grows about as the square of a width.
        power = 2.0 if sizes.has_width else 1.0
        noise = location.draws(len(size), seed, self.recurrences, *self.recipe.encode())
        moved = np.clip(size * np.exp(noise / power), self.line.smallest, self.line.largest)
        return Located(
            width_scale=moved / WIDTH_UNIT if sizes.has_width else None,
            n_unique=along(sizes.n_unique, moved),
            n_unrolled=along(sizes.n_once + self.recurrences * sizes.n_rec, moved),
            tokens=self.line.tokens(moved),
        )


def choices(
    fit: Fit,
    *,
    flops: float | None,
    recurrences: Sequence[int] | None,
    recipe: str | Sequence[str] | None,
    family: str | None,
    flops_rule: str | None,
    constraints: Constraints,
) -> tuple[list[Choice], list[str]]:
    """All that can be chosen, and notes on what could not or was never trained; parameters as `allocate` takes them.

    Raises
    ------
    DecisionError
        Nothing is left.
    """
    recipes = fit.recipes if recipe is None else (recipe,) if isinstance(recipe, str) else tuple(dict.fromkeys(recipe))
    chosen = {fit.choose_recipe(name) for name in recipes}
    recipes = tuple(name for name in fit.recipes if name in chosen)
    speed = None if constraints.gpu_hours is None else throughput_of(fit.runs, constraints.device)
    found: list[Choice] = []
    notes: list[str] = [] if speed is None else [str(speed)]
    refused: list[DecisionError] = []
    for name, r in _pairs(fit, recipes, recurrences, flops_rule):
        label = f"r = {r}" if len(recipes) == 1 else f"{name}, r = {r}"
        sizes = (
            plain_sizes() if flops_rule else sizes_of(family_of(fit, family, recipe=name), r, **fit.convention)
        )  # fmt: skip
        try:
            found.append(_choice(fit, name, r, label, sizes, constraints, flops, speed))
            notes += [why] if (why := untrained(fit, r, name)) else []
        except DecisionError as error:
            refused.append(error)
            notes.append(f"{label} is left out: {error.what}")
    if not found:
        if len({error.what for error in refused}) == 1:
            raise refused[0]
        raise DecisionError("nothing can be trained: " + "; ".join(note for note in notes if "left out" in note))
    if flops_rule is not None:
        notes += _rule_error(fit, family, found[0])
    return found, notes


def trained_recurrences(fit: Fit, recipe: str) -> list[int]:
    """The whole r that runs of a recipe were trained at; r = 1 is the same network for all of them."""
    runs = fit.runs
    own = runs[(runs["recipe"] == recipe) | (runs["recurrences"] == 1)] if len(fit.recipes) > 1 else runs
    return sorted({int(r) for r in own["recurrences"] if r == int(r)} & {int(r) for r in fit.recurrences_of(recipe)})


def _pairs(
    fit: Fit, recipes: tuple[str, ...], recurrences: Sequence[int] | None, flops_rule: str | None
) -> list[tuple[str, int]]:
    """Recipes and r to choose from: r = 1 once, for the first of the recipes that has it, unless the law differs."""
    if flops_rule is not None:
        if flops_rule not in FLOPS_RULES:
            raise UsageError(f"--flops-rule {flops_rule!r}", allowed=", ".join(FLOPS_RULES))
        looped = sorted({r for name in recipes for r in recurrences or trained_recurrences(fit, name)})
        if looped != [1]:
            raise UsageError(
                f"--flops-rule 6nd with r = {looped}", allowed="r = 1", do="use --family for looped models"
            )
    core = [name for name in fit.law.parameters if name not in fit.law.map.parameters]
    own_core = any("recipe" in fit.posterior[name].dims for name in core)
    pairs, plain = [], False
    for name in recipes:
        for r in sorted(set(recurrences or trained_recurrences(fit, name))):
            if r == 1 and plain and not own_core:
                continue
            plain |= r == 1
            pairs.append((name, r))
    return pairs


def _choice(
    fit: Fit, recipe: str, r: int, name: str, sizes: Sizes, constraints: Constraints, flops: float | None,
    speed: Throughput | None,
) -> Choice:  # fmt: skip
    draws, law = fit.draws(recipe, recurrences=r), fit.law_at(r)
    line = constraints.line(sizes, flops, speed)
    best = drifted(fit, optimum(law, draws, sizes, line, recurrences=r), r)
    size = best.n_unique if best.width_scale is None else best.width_scale * WIDTH_UNIT
    choice = Choice(
        recipe=recipe, recurrences=r, name=name, sizes=sizes, line=line,
        line_at=lambda flops: constraints.line(sizes, flops, speed), optimum=best, trainable=(),
    )  # fmt: skip
    # Of the sizes that some draw in a hundred calls optimal: the mean would be drawn far out by a long tail.
    low, high = np.quantile(size, [0.01, 0.99])
    return replace(choice, trainable=trainable(fit, choice, np.geomspace(low, high, CANDIDATES)))


def trainable(fit: Fit, choice: Choice, wanted: Array) -> tuple[Trainable, ...]:
    """The trainable configurations next to some sizes, each once, within the line of a choice.

    Parameters
    ----------
    fit : Fit
    choice : Choice
        Its own ``trainable`` are not looked at.
    wanted : ndarray, shape (size,)
    """
    sizes, line, recipe, r = choice.sizes, choice.line, choice.recipe, choice.recurrences
    law, draws = fit.law_at(r), fit.draws(recipe, recurrences=r)
    step = sizes.step or 1
    least, most = step * np.ceil(line.smallest / step - 1e-9), step * np.floor(line.largest / step + 1e-9)
    # The better of two widths is not always the nearer one.
    either = np.concatenate([step * np.floor(wanted / step), step * np.ceil(wanted / step)] if sizes.step else [wanted])
    chosen = np.unique(np.clip(either.round(), least, max(least, most)))
    tokens = np.array([line.whole_tokens(float(x), sizes.batch_tokens) for x in chosen])
    n_unique, cost = along(sizes.n_unique, chosen).round(), along(sizes.flops_per_token, chosen)
    inference = along(sizes.inference_flops, chosen)
    losses = law_loss(law, draws, along(sizes.n_once, chosen), along(sizes.n_rec, chosen), r, tokens)
    found = []
    for place, (n, d) in enumerate(zip(n_unique.tolist(), tokens.tolist(), strict=True)):
        flops = float(cost[place]) * d
        off = fit.drift(r, flops, tokens_per_parameter=d / n)
        found.append(
            Trainable(
                recipe=recipe,
                recurrences=r,
                d_model=int(chosen[place]) if sizes.has_width else None,
                n_unique=int(n),
                tokens=int(d),
                flops=flops,
                inference_flops=float(inference[place]),
                loss=losses[:, place] * np.exp(off),
            )
        )
    return tuple(found)


def _rule_error(fit: Fit, family: str | None, plain: Choice) -> list[str]:
    """How far 6 N D is off the FLOPs of the family's member of the same size, where there is a family."""
    try:
        sizes = sizes_of(family_of(fit, family), 1, **fit.convention)
    except DecisionError:
        return ["6 N D leaves out attention and head, and nothing says how much that is for runs without architecture"]
    n = plain.trainable[len(plain.trainable) // 2].n_unique
    exact = float(along(sizes.flops_per_token, size_at(sizes.n_unique, n)))
    return [
        f"6 N D counts {6 * n:.3g} FLOPs a token for {n:.3g} parameters, the architecture {exact:.3g}: the run would "
        f"cost {exact / (6 * n):.2f} times the budget"
    ]
