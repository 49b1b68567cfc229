"""What a comparison of models says in words: interpolation, forecast, where they disagree, and what to mind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

from bayeslaw.compare.comparison import Comparison
from bayeslaw.compare.parts import FORWARD, Split
from bayeslaw.maps import MAPS
from bayeslaw.ranking import DISTINGUISHED, LEAST_DIFFERENCE
from bayeslaw.scores import Scores

LEAST_HELD, LEAST_BUDGETS = 12, 2
"""Runs and budgets that a forecast has to be tried on before a model is recommended for what lies beyond."""

CHANCE = 0.05
"""Intervals that hold so many runs, or so few, by chance more seldom than this are called too wide, or too narrow."""


def verdict(found: Comparison) -> tuple[str, ...]:
    """What the comparison says, in sentences: interpolation, forecast, where they disagree, what to mind."""
    return tuple(sentence for part in readings(found).values() for sentence in part)


def readings(found: Comparison) -> dict[str, tuple[str, ...]]:
    """The sentences of `verdict` by what they are on: loo, forward, disagreement, mind."""
    return {
        "loo": (*_interpolation(found), *_maps(found)),
        "forward": tuple(_forecast(found)),
        "disagreement": tuple(_disagreement(found)),
        "mind": tuple(_mind(found)),
    }


def held_by_intervals(scores: Scores) -> str:
    """How many runs the 90 % intervals hold, and whether that is more or fewer than they should (binomial)."""
    inside = round(scores.cover90 * scores.runs)
    said = f"90 % intervals hold {100 * scores.cover90:.0f} % of them"
    if stats.binom.sf(inside - 1, scores.runs, 0.9) < CHANCE:
        return f"{said}: wider than needed (cautious)"
    if stats.binom.cdf(inside, scores.runs, 0.9) < CHANCE:
        return f"{said}: too narrow"
    return said


def _interpolation(found: Comparison) -> Iterable[str]:
    """Sentences on PSIS-LOO."""
    ranks, preferred = found.ranks, found.preferred
    if len(found.names) == 1:
        yield f"{preferred} is the only model here: nothing to compare it with."
        return
    tied = [name for name in found.ranking.tied if name != preferred]
    best = found.names[0]
    yield f"Preferred: {preferred}" + (
        ", which predicts a run best from all the others." if not tied else
        f", the simplest of {len(tied) + 1} models that these runs do not tell apart by predicting a run from all the "
        "others."
    )  # fmt: skip
    if tied:
        others = [_behind(found, name) for name in found.ranking.tied if name != best]
        yield f"Not distinguishable here: {_listing([f'{best} (the best)', *others])}."
    if worse := [_behind(found, name) for name in found.names if ranks[name]["distinguished"]]:
        yield (
            f"Worse than {best} by more than {DISTINGUISHED:g} standard errors and {LEAST_DIFFERENCE:g} in all: "
            f"{_listing(worse)}."
        )


def _behind(found: Comparison, name: str) -> str:
    """A model with how far it is behind the best by PSIS-LOO."""
    row = found.ranks[name]
    return f"{name} ({row['elpd_diff']:+.1f} ± {row['se_diff']:.1f})"


def _maps(found: Comparison) -> Iterable[str]:
    """Recurrence maps against power, where all else is the same."""
    for name in found.names:
        law, *words = name.split(", ")
        if (words or ["power"])[0] != "power":  # which a law alone has too, unsaid
            continue
        rivals = {each: [law, each, *words[1:]] for each in MAPS if each != "power"}
        told = []
        for each, named in rivals.items():
            if (other := ", ".join(named)) in found.models:
                apart = np.ravel(found.models[other].loo.elpd_i) - np.ravel(found.models[name].loo.elpd_i)
                told.append(f"{each} {apart.sum():+.1f} ± {np.sqrt(len(apart)) * apart.std(ddof=1):.1f}")
        if told:
            yield f"Maps against power, all else as in {name}, in elpd: {_listing(told)}."


def _forecast(found: Comparison) -> Iterable[str]:
    """Sentences on the forecast of higher budgets."""
    main = found.main
    if main is None or len(found.names) == 1:
        return
    differences = found.differences(FORWARD)
    order = sorted(found.names, key=lambda name: -differences[name].mean)
    scores = found.scores(order[0], FORWARD)
    assert scores is not None
    yield (
        f"Forecasting the {scores.runs} runs beyond {main.trained_to:.3g} FLOPs from those below, {order[0]} does "
        f"best by log density: {scores.log_density:.2f} a run, RMSE {scores.rmse:.4f} nats, "
        f"{held_by_intervals(scores)}."
    )
    rmse = {name: own.rmse for name in order if (own := found.scores(name, FORWARD)) is not None}
    nearest = min(rmse, key=lambda name: rmse[name])
    if f"{rmse[nearest]:.4f}" != f"{scores.rmse:.4f}":
        yield f"By RMSE, which leaves out how sure a forecast is, {nearest} does best: {rmse[nearest]:.4f} nats."
    groups: tuple[list[str], list[str]] = [], []
    for name in order[1:]:
        each = differences[name]
        groups[not each.distinguished].append(f"{name} ({each.mean:+.2f} ± {each.se:.2f} a run)")
    worse, tied = groups
    if tied:
        yield f"In the forecast not distinguishable from it: {_listing(tied)}."
    if worse:
        yield f"In the forecast worse, beyond the scatter between its cells: {_listing(worse)}."


def _disagreement(found: Comparison) -> Iterable[str]:
    """A warning where the best interpolator is no good forecaster."""
    differences = found.differences(FORWARD)
    main = found.main
    if not differences or main is None:
        return
    forecaster = max(found.names, key=lambda name: differences[name].mean)
    for name in dict.fromkeys((found.preferred, found.names[0])):
        if differences[name].distinguished:
            each = differences[name]
            yield (
                f"Interpolation and forecast disagree: {name} is ahead where runs are predicted from their neighbours "
                f"and forecasts higher budgets worse than {forecaster} by {-each.mean:.2f} ± {each.se:.2f} a run in "
                f"log density. {_advice(found, main, forecaster, name)}"
            )


def _advice(found: Comparison, main: Split, forecaster: str, other: str) -> str:
    """Which model to forecast with, where enough speaks for it."""
    runs = int(main.held.sum())
    rests = f"{runs} runs at {main.levels} budget{'s' if main.levels > 1 else ''}"
    if failed := [name for name in (forecaster, other) if not found.models[name].passed]:
        return f"Which to take beyond the trained budgets stays open: {_listing(failed)} did not converge."
    if runs < LEAST_HELD or main.levels < LEAST_BUDGETS:
        return f"That rests on {rests}: too little to say which to take beyond the trained ones."
    return f"For budgets beyond the trained ones take {forecaster}; that rests on {rests}."


def _mind(found: Comparison) -> Iterable[str]:
    """What to know before relying on the numbers."""
    high = [f"{name} {row['high_pareto_k']}" for name, row in found.ranks.items() if row["high_pareto_k"]]
    if high:
        yield (
            f"Runs that decide so much that leaving them out is only roughly known (Pareto k above 0.7): "
            f"{_listing(high)}."
        )
    failed = [name for name in found.names if not found.models[name].passed]
    if failed:
        yield f"The sampler did not converge for {_listing(failed)}: more --draws before relying on these rows."


def _listing(items: Sequence[str]) -> str:
    """Items as a phrase, between which commas may stand: a; b and c."""
    return items[0] if len(items) == 1 else f"{'; '.join(items[:-1])}; and {items[-1]}"
