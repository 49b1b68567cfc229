"""How the options and budgets of an allocation are called and drawn, the same everywhere on its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.options import Trainable
from bayeslaw.recommendation import Allocation, Option
from bayeslaw.targets import Route
from reports import text
from reports.drawing import CATEGORIES, DASHES, SYMBOLS

Array = NDArray[np.float64]
Key = tuple[str, int]

NEARLY = 1.05
"""A budget beyond the trained ones by no more than this factor counts as one of them."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one recipe and r is called and drawn."""

    name: str
    color: str
    dash: str
    symbol: str


Looks = Mapping[Key, Look]


def key_of(one: Option | Trainable | Route) -> Key:
    """Recipe and r."""
    return one.recipe, one.recurrences


def looks(found: Iterable[Key]) -> dict[Key, Look]:
    """Looks of recipes and r: r by colour, recipes by dash and symbol; where there is one recipe these tell r too."""
    keys = list(dict.fromkeys(found))
    recipes = list(dict.fromkeys(recipe for recipe, _ in keys))
    recurrences = sorted({r for _, r in keys})
    out = {}
    for recipe, r in sorted(keys, key=lambda key: (recipes.index(key[0]), key[1])):
        place = recurrences.index(r)
        mark = recipes.index(recipe) if len(recipes) > 1 else place + place // len(CATEGORIES)
        name = f"r{text.GAP}={text.GAP}{r}"
        out[recipe, r] = Look(
            name=f"{recipe}, {name}" if len(recipes) > 1 else name,
            color=CATEGORIES[place % len(CATEGORIES)],
            dash=DASHES[mark % len(DASHES)],
            symbol=SYMBOLS[mark % len(SYMBOLS)],
        )
    return out


def options_of(made: Iterable[Allocation]) -> list[tuple[Allocation, Option]]:
    """Every option, beside the allocation that it belongs to."""
    return [(each, option) for each in made for option in each.options]


def spread(made: Sequence[Allocation], most: int) -> list[Allocation]:
    """So many budgets at most, the largest always and the smallest where there is room, the others evenly between."""
    if most == 1:
        return [made[-1]]
    places = np.linspace(0, len(made) - 1, min(most, len(made))).round()
    return [made[int(place)] for place in dict.fromkeys(places)]


def budget_name(made: Allocation) -> str:
    """The budget in words."""
    return f"{text.flops(made.flops)} FLOPs" if made.in_flops else f"{made.constraints.gpu_hours:g} device hours"


def objective_name(made: Allocation) -> str:
    """The objective, with its quantile where it has one."""
    return f"{made.quantile:g} quantile" if made.objective == "quantile" else made.objective


def compares(made: Iterable[Allocation]) -> bool:
    """Whether there is a model without a loop, and others beside it."""
    return any(each.plain is not None and len(each.options) > 1 for each in made)


def above_plain(made: Allocation, option: Option) -> Array | None:
    """Loss of an option's optimum above that of the best model without a loop; None for that one, or without it."""
    plain = made.plain
    return None if plain is None or option is plain else option.optimum.loss - plain.optimum.loss
