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
        Config fields that tell the runs of its grid apart: ``recipe``, ``recurrences``, ``d_model``, where the fields
        have no target ``budget``, and ``seed`` where it is not 0.
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


DESK_RECIPES = ("baseline", "truncated_bptt", "hyperconnections")
DESK_BUDGETS = (4e11, 8e11, 1.6e12, 3.2e12)
DESK_RATE = 0.032
"""Within 20 % of the best of every recipe and r at the cell of `DESK_TUNED` (benchmarks/results/desk.json)."""
REPLICATED = (0, 1, 2)
"""Seeds of the replicated designs."""
MISTUNED = (0.5, 2.0)
"""Factors of the matrices' rate in the study of mis-tuned rates."""


def _desk_loops(**cell: Any) -> list[dict[str, Any]]:
    """A cell for every recipe and r of the study; r = 1, the same network for all recipes, once."""
    loops = [{"recipe": recipe, "recurrences": r, **cell} for recipe in DESK_RECIPES for r in (2, 4)]
    return [{"recipe": "baseline", "recurrences": 1, **cell}, *loops]


def _desk_cells() -> tuple[dict[str, Any], ...]:
    """Four widths about the optimum of each budget, and ten designs with two more seeds."""
    widths = dict.fromkeys(DESK_BUDGETS, (16, 32, 48, 64)) | {DESK_BUDGETS[-1]: (32, 48, 64, 80)}
    grid = [cell for budget in widths for d in widths[budget] for cell in _desk_loops(d_model=d, budget=budget)]
    again = [
        *_desk_loops(**DESK_TUNED),
        *({"recipe": "baseline", "recurrences": r, "d_model": 48, "budget": DESK_BUDGETS[2]} for r in (1, 2, 4)),
    ]
    return (*grid, *(cell | {"seed": seed} for cell in again for seed in REPLICATED[1:]))


DESK_TUNED: dict[str, Any] = {"d_model": 32, "budget": DESK_BUDGETS[1]}
"""The cell at which rates are swept; its runs at `DESK_RATE` are replicates of the study."""


def _mistuned_cells() -> tuple[dict[str, Any], ...]:
    """Every recipe and r at one width and budget, with half and twice the matrices' rate."""
    return tuple(
        cell | {"matrix_rate": factor * DESK_RATE, "seed": seed}
        for factor in MISTUNED
        for seed in REPLICATED
        for cell in _desk_loops(**DESK_TUNED)
    )


PROBED_WIDTHS = {4e11: 32, 1.6e12: 48, 6.4e12: 64, 2.56e13: 96}
"""Width of each budget of the runs that are evaluated on tasks: near the optimum of all r by the study `desk`."""


def _probed_cells() -> tuple[dict[str, Any], ...]:
    """One width for each budget, three seeds but for the largest budget."""
    return tuple(
        {"recipe": "baseline", "recurrences": r, "d_model": width, "budget": budget, "seed": seed}
        for budget, width in PROBED_WIDTHS.items()
        for seed in (REPLICATED if budget < max(PROBED_WIDTHS) else REPLICATED[:1])
        for r in (1, 2, 4)
    )


_DESK = {
    "matrix_rate": DESK_RATE,
    "prelude_layers": 1,
    "coda_layers": 1,
    "head_size": 16,
    "seq_len": 128,
    "batch_tokens": 2048,
    "rate_rule": "desk",
    "validation_tokens": 131_072,
    "log_every": 20,
}

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
            "132 byte-level runs for a desktop's CPU: six effective layers, r = 1, 2, 4, four budgets, three recipes",
            unrolled_layers=4,
            fields=_DESK,
            cells=_desk_cells(),
        ),
        Preset(
            "desk-rates",
            "42 runs of one cell of desk with half and twice the matrices' rate",
            unrolled_layers=4,
            fields=_DESK,
            cells=_mistuned_cells(),
        ),
        Preset(
            "desk-probes",
            "30 runs to be evaluated on tasks: desk with a context of 256, r = 1, 2, 4 at four budgets up to 2.56e13",
            unrolled_layers=4,
            fields=_DESK | {"seq_len": 256},
            cells=_probed_cells(),
        ),
    )
}
"""Presets by name. ``desk`` and ``desk-rates`` are 2.2e14 FLOPs in all: two hours at 3e10 FLOP/s, on one CPU core."""
