"""Sets of runs: the one that reduces the total most within a purse, and the cheapest one that reaches a goal.

Both begin by ratio (the run of the greatest gain per FLOP, given those before it), by gain, and from the best single
run, and then exchange: add, swap one for another, drop one and fill up again, until nothing betters it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.design.belief import Belief

Array = NDArray[np.float64]

WORTHWHILE = 1e-6
"""Share of the total that a step has to take off."""

FEW = 12
"""Up to so many runs pairs are looked at, too: two runs may tell together what neither tells alone, and where a purse
buys few of them it matters which."""

ROUNDS = 200
"""Exchanges tried at most; a few dozen have been enough."""


@dataclass(frozen=True)
class Held:
    """Chosen runs, and the belief once they are trained."""

    runs: tuple[int, ...]
    belief: Belief

    def plus(self, run: int) -> Held:
        """With one more."""
        return Held((*self.runs, run), self.belief.observe(run))

    def minus(self, run: int) -> Held:
        """Without one of them."""
        return Held(tuple(other for other in self.runs if other != run), self.belief.forget(run))

    def cost(self, cost: Array) -> float:
        """FLOPs of all of them."""
        return float(cost[list(self.runs)].sum())


def within(belief: Belief, cost: Array, purse: float, *, most: int | None = None) -> list[int]:
    """The runs that reduce the total most within a purse.

    Parameters
    ----------
    belief : Belief
        Before any of them.
    cost : ndarray, shape (candidate,)
        FLOPs of each.
    purse : float
        FLOPs.
    most : int, optional
        The most runs.

    Returns
    -------
    list of int
        Indices of candidates, in the order in which they are best trained, see `ordered`.
    """
    most = len(cost) if most is None else most
    if not (cost <= purse).any():
        return []
    least = WORTHWHILE * belief.total
    single = int(np.where(cost <= purse, belief.gains(), -1.0).argmax())
    none = Held((), belief)
    starts = [
        *_refilled(none, cost, purse, most, least),
        _filled(none, cost, purse, most, least, 0),
        _filled(none.plus(single), cost, purse, most, least, 1),
    ]
    ends = [_exchanged(start, cost, purse, most, least) for start in _different(starts)]
    # What exchanges have added up is worked out anew.
    best = min(ends, key=lambda held: belief.observe_all(held.runs).total)
    return ordered(belief, cost, best.runs)


def cheapest(belief: Belief, cost: Array, goal: float, *, purse: float = np.inf) -> list[int] | None:
    """The cheapest runs that bring the total down to a goal, None where those in the purse do not.

    Parameters
    ----------
    belief, cost, purse
        As for `within`.
    goal : float
        What the total is to come down to.
    """
    least = WORTHWHILE * belief.total
    none = Held((), belief)
    greedy = [_reached(none, cost, goal, least, power) for power in (0.5, 0.0)]
    starts = [*_regrown(none, cost, goal, least), *(held for held in greedy if held is not None)]
    ends = [_cheapened(start, cost, goal, least) for start in _different(starts)]
    ends = [held for held in ends if held.cost(cost) <= purse]
    if not ends:
        return None
    best = min(ends, key=lambda held: held.cost(cost))
    return ordered(belief, cost, best.runs)


def next_runs(belief: Belief, cost: Array, *, most: int = 1, purse: float = np.inf) -> list[int]:
    """The runs to train before the law is fitted again: by gain per FLOP, each given those before it.

    What a set would tell together hangs on a posterior that the first runs will change. In `benchmarks/replay.py` one
    run at a time by its rate reached an sd of phi for less than the first runs of the cheapest set did; for an expected
    regret it was the other way round.

    Parameters
    ----------
    belief, cost, purse
        As for `within`.
    most : int
        So many runs, fewer where no more helps.
    """
    return list(_filled(Held((), belief), cost, purse, most, WORTHWHILE * belief.total, 1).runs)


def ordered(belief: Belief, cost: Array, runs: Iterable[int]) -> list[int]:
    """The runs by gain per FLOP, each given those before it."""
    left, out = list(runs), []
    while left:
        rate = belief.gains()[left] / cost[left]
        out.append(left.pop(int(rate.argmax())))
        belief = belief.observe(out[-1])
    return out


def _different(starts: list[Held]) -> list[Held]:
    return list({frozenset(start.runs): start for start in starts}.values())


def _filled(held: Held, cost: Array, purse: float, most: int, least: float, power: float) -> Held:
    """Add runs by gain over a power of their cost while the purse lasts."""
    scale = cost**power
    while len(held.runs) < most:
        free = cost <= purse - held.cost(cost)
        free[list(held.runs)] = False
        gain = np.where(free, held.belief.gains(), 0.0)
        best = int((gain / scale).argmax())
        if gain[best] <= least:
            break
        held = held.plus(best)
    return held


def _exchanged(held: Held, cost: Array, purse: float, most: int, least: float) -> Held:
    """Swap, add, and drop and fill up until the total comes down no more."""
    for _ in range(ROUNDS):
        held = _filled(held, cost, purse, most, least, 0)
        runs = list(held.runs)
        if not runs:
            return held
        total = held.belief.exchanges(runs)
        total[cost - cost[runs][:, None] > purse - held.cost(cost)] = np.inf
        total[:, runs] = np.inf
        out, new = np.unravel_index(int(total.argmin()), total.shape)
        if total[out, new] < held.belief.total - least:
            held = held.minus(runs[out]).plus(int(new))
            continue
        others = (other for run in runs for other in _refilled(held.minus(run), cost, purse, most, least))
        better = next((other for other in others if other.belief.total < held.belief.total - least), None)
        if better is None:
            return held
        held = better
    return held


def _refilled(held: Held, cost: Array, purse: float, most: int, least: float) -> Iterator[Held]:
    """Ways to use what is left of a purse: by ratio, and begun with the best pair."""
    yield _filled(held, cost, purse, most, least, 1)
    if len(held.runs) < min(FEW, most - 1):
        total = _pairs(held)
        total[cost[:, None] + cost > purse - held.cost(cost)] = np.inf
        one, other = np.unravel_index(int(total.argmin()), total.shape)
        if np.isfinite(total[one, other]):
            yield _filled(held.plus(int(one)).plus(int(other)), cost, purse, most, least, 1)


def _pairs(held: Held) -> Array:
    """The total after two runs more, inf for pairs that are none."""
    total = held.belief.pairs()
    total[list(held.runs)] = np.inf
    total[:, list(held.runs)] = np.inf
    np.fill_diagonal(total, np.inf)
    return total


def _reached(held: Held, cost: Array, goal: float, least: float, power: float) -> Held | None:
    """Add runs by gain over a power of their cost until the goal is reached; None where no more helps."""
    scale = cost**power
    while held.belief.total > goal:
        gain = held.belief.gains()
        gain[list(held.runs)] = 0.0
        # What goes beyond the goal is worth nothing: a cheap run that suffices is better than a dear one.
        best = int((np.minimum(gain, held.belief.total - goal) / scale).argmax())
        if gain[best] <= least:
            return None
        held = held.plus(best)
    return held


def _regrown(held: Held, cost: Array, goal: float, least: float) -> Iterator[Held]:
    """Ways to reach a goal: by ratio, and by the cheapest pair that does."""
    reached = _reached(held, cost, goal, least, 1)
    if reached is not None:
        yield reached
    if len(held.runs) < FEW:
        spent = np.where(_pairs(held) <= goal, cost[:, None] + cost, np.inf)
        one, other = np.unravel_index(int(spent.argmin()), spent.shape)
        if np.isfinite(spent[one, other]):
            yield held.plus(int(one)).plus(int(other))


def _cheapened(held: Held, cost: Array, goal: float, least: float) -> Held:
    """Drop, swap for a cheaper one, and drop and fill up as long as the goal is reached for less."""
    for _ in range(ROUNDS):
        runs = list(held.runs)
        if not runs:
            return held
        idle = [run for run in runs if held.minus(run).belief.total <= goal]
        if idle:
            held = held.minus(max(idle, key=lambda run: float(cost[run])))
            continue
        saved = np.where(held.belief.exchanges(runs) <= goal, cost[runs][:, None] - cost, -np.inf)
        saved[:, runs] = -np.inf
        out, new = np.unravel_index(int(saved.argmax()), saved.shape)
        enough = WORTHWHILE * held.cost(cost)
        if saved[out, new] > enough:
            held = held.minus(runs[out]).plus(int(new))
            continue
        dearest = sorted(runs, key=lambda run: -cost[run])
        others = (other for run in dearest for other in _regrown(held.minus(run), cost, goal, least))
        better = next((other for other in others if other.cost(cost) < held.cost(cost) - enough), None)
        if better is None:
            return held
        held = better
    return held
