"""What the end of a point fit means: parameters in natural units, worths by r, and what a person must be warned of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.laws import CORE
from bayeslaw.point.objective import Problem
from bayeslaw.point.varpro import SMALL_GRADIENT, Optimum

Array = NDArray[np.float64]

VANISHED = 1e-9
"""A term whose share of every run's loss is below this has reached its bound, 0."""
RUNAWAY = 12.0
"""A map parameter above 0 whose logarithm is beyond this has left for its limit."""


def parameters_of(problem: Problem, theta: Array) -> dict[str, Any]:
    """The law's parameters in natural units, a map parameter {recipe: value} when there are several recipes."""
    n0, d0 = problem.inputs.centre
    core = problem.core(theta)
    k = math.exp(core[5])
    alpha, beta = math.exp(core[3]) / k, math.exp(core[4]) / k
    gone = problem.share(theta) < VANISHED
    E, A, B = np.exp([core[0], core[1] / k + alpha * math.log(n0), core[2] / k + beta * math.log(d0)])
    values = dict(
        zip(CORE, (0.0 if gone[0] else E, 0.0 if gone[1] else A, 0.0 if gone[2] else B, alpha, beta), strict=True)
    )
    if problem.law.coupled:
        values["k"] = k
    out: dict[str, Any] = {name: float(value) for name, value in values.items()}
    told = problem.told(theta)
    natural = problem.map_values(theta)
    for j, name in enumerate(problem.law.map.parameters):
        each = {
            recipe: float(natural[j, i]) if problem.n_map and told[j, i] else None
            for i, recipe in enumerate(problem.inputs.recipes)
        }
        out[name] = each if len(each) > 1 else next(iter(each.values()))
    return out


def agreeing(ends: Sequence[Optimum], tolerance: float) -> int:
    """How many ends have the least objective, up to a relative tolerance and rounding of log loss."""
    least = min(end.objective for end in ends)
    return sum(end.objective <= least * (1 + tolerance) + 1e-24 for end in ends)


def worths(problem: Problem, theta: Array) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """g and its elasticity by looped r, by recipe where there are several."""
    slot_r, slot_recipe = problem.slots[1][1:], problem.slots[2][1:]
    natural, law_map = problem.map_values(theta), problem.law.map
    # A recipe without runs at some r has no slope there, though g at the r of its runs is known.
    told = np.where(problem.told(theta), natural, np.nan) if problem.n_map else natural
    worth: dict[Any, Any] = {}
    elasticity: dict[Any, Any] = {}
    for i, recipe in enumerate(problem.inputs.recipes):
        r = slot_r[slot_recipe == i]
        if not len(r):
            continue
        for out, values in (
            (worth, law_map.worth(r, list(natural[:, i]))),
            (elasticity, law_map.elasticity(r, list(told[:, i]))),
        ):
            each = np.broadcast_to(values, r.shape).tolist()
            out[recipe] = {
                level: value if math.isfinite(value) else None for level, value in zip(r.tolist(), each, strict=True)
            }
    if len(problem.inputs.recipes) == 1:
        return next(iter(worth.values()), {}), next(iter(elasticity.values()), {})
    return worth, elasticity


def messages(problem: Problem, best: Optimum, ends: Sequence[Optimum]) -> tuple[list[str], bool]:
    """What is wrong with an optimum, and whether a parameter is at a bound."""
    out = []
    theta, (low, high) = best.theta, problem.bounds
    names = problem.names
    gone = dict(zip(("E", "A", "B"), problem.share(theta) < VANISHED, strict=True))
    held = [f"{name} = 0" for name, is_gone in gone.items() if is_gone]
    for j, name in enumerate(names):
        runaway = j >= problem.n_core and bool(problem.logged[(j - problem.n_core) % problem.n_map])
        limit = RUNAWAY if runaway else math.inf
        if name not in gone and (theta[j] <= low[j] or theta[j] >= high[j] or abs(theta[j]) > limit):
            idle = (name == "alpha" and gone["A"]) or (name == "beta" and gone["B"])
            held += (
                [] if idle else [f"{name} at {'its lower' if theta[j] < (low[j] + high[j]) / 2 else 'its upper'} limit"]
            )
    if best.gradient > SMALL_GRADIENT:
        out.append(
            f"not an optimum: the scaled gradient is {best.gradient:.1e}, more than {SMALL_GRADIENT:g}; "
            "do not use these parameters"
        )
    if held:
        out.append(f"the least loss is at a bound ({', '.join(held)}): these runs do not show the law's full form")
    if problem.law.map.parameters and not problem.loops:
        out.append(f"no run loops: {', '.join(problem.law.map.parameters)} cannot be told and are left out")
    elif problem.n_map and not problem.told(theta).all():
        blank = np.array(names[problem.n_core :])[~problem.told(theta).T.ravel()]
        out.append(f"no run tells of {', '.join(blank)}")
    if problem.size == len(problem.weight):
        out.append(f"{problem.size} parameters for as many runs: nothing is left over to judge the fit by")
    vague = problem.vague(theta)
    if vague and not held:
        out.append(f"the runs do not tell {', '.join(vague)} apart: other values fit alike")
    rivals = [end.theta for end in ends if end.objective <= best.objective * (1 + 1e-6) + 1e-24]
    away = np.max([np.abs(rival - theta)[3 : problem.n_core] for rival in rivals], axis=0)
    if (away > 0.02).any() and not vague and not held:
        moved = [names[3 + j] for j in np.flatnonzero(away > 0.02)]
        out.append(f"several optima are equally good and differ in {', '.join(moved)}: these runs do not choose")
    return out, bool(held)
