"""Recipes and presets by name: the fields of a config that they stand for.

A recipe is how a loop is trained: its injection, and how far gradients go back. A preset is a family of runs of one
effective depth: the fields that all of them share, and the cells of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.errors import UsageError
from trainer.checks import nearest, require_known
from trainer.data import FINEWEB_EDU

RECIPES: dict[str, dict[str, Any]] = {
    "baseline": {"injection": "linear"},
    "truncated_bptt": {"injection": "linear"},
    "hyperconnections": {"injection": "hyperconnections", "lanes": 2},
    "additive": {"injection": "additive"},
    "passthrough": {"injection": "passthrough"},
}
"""Recipes that set fields of a loop; any other name is only a label of the run. Truncation depends on r, see
`recipe_fields`."""


def recipe_fields(recipe: str, recurrences: int) -> dict[str, Any]:
    """The fields that a recipe sets for r recurrences: none for r = 1, the plain transformer whatever the recipe."""
    if recurrences == 1:
        return {}
    fields = dict(RECIPES.get(recipe, {}))
    if recipe == "truncated_bptt":
        fields["backprop_recurrences"] = math.ceil(recurrences / 2)
    return fields


def mistyped(recipe: str) -> str | None:
    """A word of doubt on a name that is a label but nearly that of a recipe."""
    near = None if recipe in RECIPES else nearest(recipe, RECIPES)
    return f"the recipe {recipe!r} is only a label and sets nothing; {near}" if near else None


def shared_layers(unrolled_layers: int, recurrences: int) -> int:
    """Layers of the shared block of a family whose recurrent part unrolls to ``unrolled_layers``.

    Raises
    ------
    UsageError
        The recurrences do not divide the layers.
    """
    if recurrences < 1 or unrolled_layers % recurrences:
        divisors = [n for n in range(1, unrolled_layers + 1) if unrolled_layers % n == 0]
        raise UsageError(
            f"recurrences = {recurrences} with {unrolled_layers} unrolled layers",
            allowed=", ".join(map(str, divisors)) + " (divisors of the unrolled layers)",
            do=f"the nearest is {min(divisors, key=lambda n: abs(n - recurrences))}" if divisors else None,
        )
    return unrolled_layers // recurrences


@dataclass(frozen=True)
class Preset:
    """A family of runs of one effective depth.

    Parameters
    ----------
    name : str
    meaning : str
        What it is, for a listing.
    unrolled_layers : int
        Layers of the recurrent part when unrolled: recurrences x shared layers.
    fields : dict
        Config fields of all its runs.
    cells : tuple of dict
        Config fields that tell the runs of its grid apart: ``recipe``, ``recurrences``, ``d_model`` and, where the
        fields have no target, ``budget``.
    """

    name: str
    meaning: str
    unrolled_layers: int
    fields: Mapping[str, Any]
    cells: tuple[dict[str, Any], ...]


def preset(name: str) -> Preset:
    """The preset of this name.

    Raises
    ------
    UsageError
        There is none.
    """
    require_known("preset", [name], PRESETS)
    return PRESETS[name]


def _grid(recipe: str, recurrences: Iterable[int], widths: Mapping[float, Sequence[int]]) -> list[dict[str, Any]]:
    return [
        {"recipe": recipe, "recurrences": r, "d_model": width, "budget": budget}
        for r in recurrences
        for budget in widths
        for width in widths[budget]
    ]


PAPER_SCALES = {
    4.64e17: (6, 8, 10, 12),
    1e18: (6, 8, 10, 12, 14),
    2.15e18: (8, 10, 12, 14, 16),
    4.64e18: (10, 12, 14, 16, 18, 20),
    1e19: (12, 16, 18, 20, 24),
    2.15e19: (18, 24, 28, 34),
}
"""Width scales s = d_model / 64 of each budget of the published grid."""


def _paper_cells() -> tuple[dict[str, Any], ...]:
    """The 240 published runs: 116 of the baseline, and its loops at the four lower budgets again in two case studies.

    The case studies differ from that rule in eight cells: both add s = 18 at 2.15e18 (truncated backpropagation for
    r = 4, 8), truncated backpropagation adds s = 16 at 1e18 for r = 8 and lacks s = 8, 10 at 2.15e18 for r = 2.
    """
    widths = {budget: [WIDTH_UNIT * s for s in scales] for budget, scales in PAPER_SCALES.items()}
    lower = dict(list(widths.items())[:4])
    wider = lower | {2.15e18: [*lower[2.15e18], WIDTH_UNIT * 18]}
    return (
        *_grid("baseline", (1, 2, 4, 8), widths),
        *_grid("truncated_bptt", (2,), lower | {2.15e18: lower[2.15e18][2:]}),
        *_grid("truncated_bptt", (4,), wider),
        *_grid("truncated_bptt", (8,), wider | {1e18: [*lower[1e18], WIDTH_UNIT * 16]}),
        *_grid("hyperconnections", (2, 4, 8), wider),
    )


def _desk_cells() -> tuple[dict[str, Any], ...]:
    """Four widths about the optimum of each budget: at 2.5e12 and r = 1 it lies between 32 and 48."""
    widths = {
        2.5e12: (16, 32, 48, 64),
        5e12: (32, 48, 64, 80),
        1e13: (32, 48, 64, 96),
        2e13: (48, 64, 96, 128),
    }
    loops = ("baseline", "truncated_bptt", "hyperconnections")
    return (*_grid("baseline", (1,), widths), *(cell for recipe in loops for cell in _grid(recipe, (2, 4), widths)))


_PAPER = {
    "prelude_layers": 2,
    "coda_layers": 2,
    "head_size": 128,
    "seq_len": 2048,
    "vocab_size": 32_064,
    "batch_tokens": 2**18,
    "rate_rule": "paper",
    "corpus": FINEWEB_EDU,
    "validation_tokens": 34_560 * 2048,
}

PRESETS = {
    each.name: each
    for each in (
        Preset(
            "paper",
            "the 240 runs of arXiv 2604.21106: 20 effective layers, r = 1, 2, 4, 8, six budgets, three recipes",
            unrolled_layers=16,
            fields=_PAPER,
            cells=_paper_cells(),
        ),
        Preset(
            "paper-47b",
            "its two runs outside the grid: width scale 34, 47e9 tokens, r = 1 and 4",
            unrolled_layers=16,
            fields=_PAPER | {"batch_tokens": 2**19, "tokens": 2**19 * round(47e9 / 2**19), "d_model": WIDTH_UNIT * 34},
            cells=tuple({"recipe": "baseline", "recurrences": r, "d_model": WIDTH_UNIT * 34} for r in (1, 4)),
        ),
        Preset(
            "desk",
            "112 byte-level runs for a desktop's CPU: six effective layers, r = 1, 2, 4, four budgets, three recipes",
            unrolled_layers=4,
            fields={
                "prelude_layers": 1,
                "coda_layers": 1,
                "head_size": 16,
                "seq_len": 128,
                "batch_tokens": 2048,
                "rate_rule": "desk",
            },
            cells=_desk_cells(),
        ),
    )
}
"""Presets by name. ``desk`` holds 112 runs of 1.05e15 FLOPs in all: about 6 hours at 5e10 FLOP/s, on two CPU cores."""
