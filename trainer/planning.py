"""Iso-FLOP grids: which runs a sweep is, and what each takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bayeslaw.errors import UsageError
from bayeslaw.plan import Plan, PlannedRun, require_study
from trainer.checks import require_count
from trainer.config import BudgetError, TrainConfig
from trainer.layering import TARGETS, layered
from trainer.loop import with_digest
from trainer.memory import estimated_bytes
from trainer.presets import Preset, preset

MIN_STEPS = 20
"""A run of fewer optimiser steps says nothing about the law."""


def plan_grid(
    *,
    study: str,
    budgets: Sequence[float],
    widths: Sequence[int],
    recurrences: Sequence[int],
    unrolled_layers: int = 4,
    recipes: Sequence[str] = ("baseline",),
    seeds: Sequence[int] = (0,),
    min_steps: int = MIN_STEPS,
    left_out: Callable[[str], None] | None = None,
    **fields: Any,
) -> Plan:
    """An iso-FLOP grid at one effective depth: every recipe x r x budget x width x seed, cheapest budget first.

    For r = 1 all recipes are the same plain transformer: it is planned for the first of them only.

    Parameters
    ----------
    study : str
        MLflow experiment of the runs.
    budgets : sequence of float
        Training FLOPs.
    widths : sequence of int
        d_model.
    recurrences : sequence of int
        r; each divides ``unrolled_layers``, and the shared block has ``unrolled_layers / r`` layers.
    unrolled_layers : int
        Layers of the recurrent part when unrolled.
    recipes : sequence of str
        Those of `trainer.presets.RECIPES` set their fields; any other name is a label.
    seeds : sequence of int
        More than one plans replicates.
    min_steps : int
        A cell of fewer optimiser steps is left out.
    left_out : callable, optional
        Told of every cell that is left out; stderr by default.
    **fields
        Further fields of `trainer.config.TrainConfig`, the same for all runs.

    Raises
    ------
    UsageError
        A value that cannot be trained, an empty axis, no cell of ``min_steps``, or a study without a name.
    """
    axes = {"budgets": budgets, "widths": widths, "recurrences": recurrences, "recipes": recipes, "seeds": seeds}
    for name, values in axes.items():
        _require_each_once(name, values)
    cells = tuple(
        {"recipe": recipe, "recurrences": r, "d_model": width, "budget": budget, "seed": seed}
        for recipe in recipes
        for r in recurrences
        for budget in budgets
        for width in widths
        for seed in seeds
        if r != 1 or recipe == recipes[0]
    )
    require_count("unrolled_layers", unrolled_layers)
    family = Preset("grid", "a grid", unrolled_layers, {}, cells)
    return _plan(family, cells, study, min_steps, left_out, fields)


def plan_preset(
    name: str,
    *,
    study: str,
    budgets: Sequence[float] | None = None,
    widths: Sequence[int] | None = None,
    recurrences: Sequence[int] | None = None,
    recipes: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    min_steps: int = MIN_STEPS,
    left_out: Callable[[str], None] | None = None,
    **changes: Any,
) -> Plan:
    """The grid of a preset or a part of it, cheapest budget first.

    Parameters
    ----------
    name : str
        One of `trainer.presets.PRESETS`.
    study, min_steps, left_out
        As for `plan_grid`.
    seeds : sequence of int, optional
        Every cell with each of them; by default those of the preset.
    budgets, widths, recurrences, recipes : sequence, optional
        The part of the grid to plan; all of it by default.
    **changes
        Fields of `trainer.config.TrainConfig` that take the place of the preset's.

    Raises
    ------
    UsageError
        An unknown preset, a part that it does not have, a value that cannot be trained, or a study without a name.
    """
    family = preset(name)
    cells = family.cells
    axes = {"budgets": budgets, "widths": widths, "recurrences": recurrences, "recipes": recipes}
    for (axis, chosen), field in zip(axes.items(), ("budget", "d_model", "recurrences", "recipe"), strict=True):
        if chosen is None:
            continue
        _require_each_once(axis, chosen)
        there = dict.fromkeys(cell[field] for cell in family.cells if field in cell)
        for value in chosen:
            if value not in there:
                allowed = ", ".join(map(str, there)) or f"no {axis}: the preset has a target of its own"
                raise UsageError(f"{axis}: {value} in the preset {name}", allowed=allowed)
        cells = tuple(cell for cell in cells if cell[field] in chosen)
    if not cells:
        raise UsageError(f"no run of the preset {name} is in all the parts chosen", do="choose fewer parts, or others")
    if seeds is not None:
        _require_each_once("seeds", seeds)
        alone = [{name: value for name, value in cell.items() if name != "seed"} for cell in cells]
        different = [cell for place, cell in enumerate(alone) if cell not in alone[:place]]
        cells = tuple(cell | {"seed": seed} for cell in different for seed in seeds)
    return _plan(family, cells, study, min_steps, left_out, changes)


def plan_cells(
    cells: Sequence[Mapping[str, Any]],
    *,
    study: str,
    preset_name: str | None = None,
    unrolled_layers: int | None = None,
    **changes: Any,
) -> Plan:
    """A plan of runs that are named one by one, in their order.

    Parameters
    ----------
    cells : sequence of mapping
        Each with ``recipe``, ``recurrences``, ``d_model`` and ``tokens``, an exact multiple of the batch; ``seed``
        where it is not 0; ``budget``, FLOPs: where it buys these tokens the run aims at it, and so belongs to its cell
        of a grid.
    study : str
        MLflow experiment of the runs.
    preset_name : str, optional
        One of `trainer.presets.PRESETS`, whose fields the runs have.
    unrolled_layers : int, optional
        Layers of the recurrent part when unrolled; the preset's, without one 4.
    **changes
        Fields of `trainer.config.TrainConfig` for all runs, in place of the preset's.

    Raises
    ------
    UsageError
        An unknown preset, a cell that lacks one of these fields or has others, a value that cannot be trained, a run
        that comes twice, or a study without a name.
    """
    require_study(study)
    needed, more = {"recipe", "recurrences", "d_model", "tokens"}, {"seed", "budget"}
    for number, cell in enumerate(cells, start=1):
        if not needed <= set(cell) <= needed | more:
            raise UsageError(
                f"cell {number} has {', '.join(cell)}", allowed=f"{', '.join(sorted(needed))}, and seed and budget"
            )
    for name in (*TARGETS, "seed", *sorted(needed)):
        if name in changes:
            raise UsageError(f"{name} for all cells", allowed="the cells' own")
    if preset_name is None:
        base = Preset("cells", "runs named one by one", 4 if unrolled_layers is None else unrolled_layers, {}, ())
    elif unrolled_layers is None:
        base = preset(preset_name)
    else:
        raise UsageError(f"unrolled_layers with the preset {preset_name}", allowed="the preset's own depth")
    require_count("unrolled_layers", base.unrolled_layers)
    return Plan(study, tuple(_planned(with_digest(_of_cell(base, changes, cell))) for cell in cells))


def _of_cell(base: Preset, changes: Mapping[str, Any], cell: Mapping[str, Any]) -> TrainConfig:
    """The config of one cell: aimed at its budget where that buys its tokens, else at its tokens."""
    named = {name: value for name, value in cell.items() if name not in TARGETS}
    config = layered(base, changes, named, {"tokens": cell["tokens"]})
    if cell.get("budget") is None:
        return config
    aimed = layered(base, changes, named, {"budget": cell["budget"]})
    return aimed if aimed.train_tokens == config.train_tokens else config


def _require_each_once(name: str, values: Sequence[Any]) -> None:
    if not values or len(set(values)) < len(values):
        raise UsageError(f"{name} = {list(values)}", allowed="one or more values, each once")


def _plan(
    family: Preset,
    cells: Iterable[Mapping[str, Any]],
    study: str,
    min_steps: int,
    left_out: Callable[[str], None] | None,
    fields: Mapping[str, Any],
) -> Plan:
    """The plan of a family's cells with further fields for all of them."""
    require_study(study)
    require_count("min_steps", min_steps)
    for name in (*TARGETS, "seed"):
        if name in fields:
            raise UsageError(f"{name} in a grid", allowed="budgets and seeds: the tokens follow from the budgets")
    tell = left_out or (lambda text: print(text, file=sys.stderr))
    runs = []
    for cell in sorted(cells, key=lambda cell: cell.get("budget", 0.0)):
        try:
            config = layered(family, cell, fields)
        except BudgetError as error:
            tell(f"left out: {error.what}")
            continue
        if config.steps < min_steps:
            tell(f"left out: {config.run_id} would have {config.steps} steps, fewer than {min_steps}")
        else:
            runs.append(_planned(with_digest(config)))
    if not runs:
        raise UsageError(
            f"no cell of the grid has {min_steps} optimiser steps",
            allowed="larger budgets, smaller widths or a smaller batch",
        )
    return Plan(study, tuple(runs))


def _planned(config: TrainConfig) -> PlannedRun:
    row = config.row
    tokens = config.train_tokens
    spent = {"tokens": tokens, "flops": float(tokens) * row["flops_per_token"], "memory": estimated_bytes(config)}
    return PlannedRun(config.to_dict(), row | spent)


DEMO_BUDGETS = (1.25e10, 5e10)
DEMO_WIDTHS = (12, 24, 36)


def demo_plan(corpus: str = "stdlib", seed: int = 0) -> Plan:
    """The 18 runs of the demo: r in {1, 2, 4} x two budgets x three widths, one effective depth of six layers."""
    return plan_grid(
        study="demo",
        budgets=DEMO_BUDGETS,
        widths=DEMO_WIDTHS,
        recurrences=(1, 2, 4),
        prelude_layers=1,
        unrolled_layers=4,
        coda_layers=1,
        seq_len=32,
        batch_tokens=256,
        head_size=12,
        seeds=(seed,),
        corpus=corpus,
        validation_tokens=32_768,
        log_every=20,
    )
