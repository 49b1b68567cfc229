"""What a comparison of recipes says, in sentences made from its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bayeslaw.compare.matched import Estimate, MatchedGain
from bayeslaw.compare.versus import Standing
from bayeslaw.inputs import NEAR

SURE = 0.95
"""Posterior probability from which on a sign is called known."""


HANGS = "hangs on structure"
"""Reading of a side that structures contradict each other on."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """On which side of 0 a difference lies, by structure.

    Parameters
    ----------
    higher, lower, undecided : dict of str to float
        Structures with P(> 0) above `SURE`, with P(> 0) below 1 - `SURE`, and between; with the mean difference.
    reading : str
        "higher" or "lower" where every structure tried says so, "undecided" where none says anything, "higher or
        undecided" or "lower or undecided" where none says the opposite, else "hangs on structure".
    """

    higher: Mapping[str, float]
    lower: Mapping[str, float]
    undecided: Mapping[str, float]
    reading: str


def side_of(differences: Mapping[str, Mapping[str, float]]) -> Side:
    """The side, from each structure's mean difference and ``p_gt_0``."""
    parts: dict[str, dict[str, float]] = {"higher": {}, "lower": {}, "undecided": {}}
    for name, found in differences.items():
        chance = found["p_gt_0"]
        parts["higher" if chance > SURE else "lower" if chance < 1 - SURE else "undecided"][name] = found["mean"]
    said = [name for name, structures in parts.items() if structures] or ["undecided"]
    opposed = {"higher", "lower"} <= set(said)
    return Side(**parts, reading=HANGS if opposed else " or ".join(said))


def matched_sentence(gains: Sequence[MatchedGain]) -> str:
    """Of one recipe's matched runs: those of the same budget first."""
    parts = []
    for gain in gains:
        what = {"budget": "for the same training FLOPs", "tokens": "for the same tokens"}[gain.matching]
        if gain.overall is None:
            parts.append(f"no runs match {what}")
            continue
        said = f"{_change(gain.overall)} {what}"
        if gain.matching == "budget" and max(gain.tokens_ratio, 1 / gain.tokens_ratio) > NEAR:
            said += f" (which buy {gain.tokens_ratio:.2f} times the tokens)"
        parts.append(said + _trending(gain, known=any("step of compute" in part for part in parts)))
    sentence = f"Matched runs of {gains[0].recipe}, no law needed: {'; '.join(parts)}"
    if "step of compute" in sentence:
        sentence += "; carry it no further than it was measured"
    return f"{sentence}."


def _trending(gain: MatchedGain, *, known: bool) -> str:
    """How a matching's difference changes with compute, where that is known; what a step is, unless that is."""
    trend = gain.trend
    if gain.overall is None or trend is None or 1 - SURE <= trend.p_lower <= SURE:
        return ""
    way = "shrinks" if trend.mean * gain.overall.mean < 0 else "grows"
    step = "with each step of compute" + ("" if known else " (a factor 2.15)")
    return f", a difference that {way} by {abs(trend.mean):.4f} {step}"


def _change(one: Estimate) -> str:
    """The loss is lower by .044 nats (90 % .039 to .050, P(lower) 1.00)."""
    if not np.isfinite(one.se):
        return f"one pair, the loss is {'lower' if one.mean < 0 else 'higher'} by {abs(one.mean):.3f} nats"
    if 1 - SURE <= one.p_lower <= SURE:
        return f"the loss differs by {one.mean:+.3f} nats (90 % {one.q05:+.3f} to {one.q95:+.3f}), undecided"
    low, high = sorted((abs(one.q05), abs(one.q95)))
    side = "lower" if one.mean < 0 else "higher"
    return f"the loss is {side} by {abs(one.mean):.3f} nats (90 % {low:.3f} to {high:.3f})"


def range_sentence(anchor: str, phi: Mapping[str, Mapping[str, float] | None]) -> str:
    """From where to where the anchor's own phi goes by structure."""
    means = {name: found["mean"] for name, found in phi.items() if found}
    if not means:
        return f"No structure whose sampler converged gives {anchor} a phi."
    low, high = (pick(means, key=lambda name: means[name]) for pick in (min, max))
    return f"phi of {anchor} itself goes from {means[low]:.2f} ({low}) to {means[high]:.2f} ({high}) by structure."


def phi_sentence(
    recipe: str,
    anchor: str,
    side: Side,
    worths: Mapping[str, Side],
    gains: Sequence[MatchedGain],
    cells: Sequence[str],
) -> str:
    """What the structures say together of one recipe's phi and g(r), beside its matched runs.

    Parameters
    ----------
    recipe, anchor : str
    side : Side
        Of the difference in phi.
    worths : mapping of str to Side
        Of the differences in log g(r), by r.
    gains : sequence of MatchedGain
        Of the recipe.
    cells : sequence of str
        The structures with effects of cells that were fitted.
    """
    parts = [
        f"{name} ({_range(found.values())}) under {_listed(list(found))}"
        for name, found in (("higher", side.higher), ("lower", side.lower), ("undecided", side.undecided))
        if found
    ]
    if not parts:
        sentence = f"No structure compares phi of {recipe} with that of {anchor}"
    elif len(parts) == 1:
        apart = _range([*side.higher.values(), *side.lower.values(), *side.undecided.values()])
        what = f"undecided against that of {anchor}" if side.undecided else f"{side.reading} than that of {anchor}"
        sentence = f"phi of {recipe} is {what} under every structure tried ({apart})"
    else:
        sentence = f"phi of {recipe}, against that of {anchor}, is {', '.join(parts)}: "
        opposed = side.reading == HANGS
        sentence += "its sign hangs on structure" if opposed else "how sure its sign is hangs on structure"
    if worths:
        readings: dict[str, list[str]] = {}
        for r, one in worths.items():
            readings.setdefault(one.reading, []).append(r)
        told = (
            f"the sign of log g(r) {'does too' if side.reading == name else 'hangs on it'} at r = {_listed(at)}"
            if name == HANGS
            else f"log g(r) is {name} under all at r = {_listed(at)}"
            for name, at in readings.items()
        )
        sentence += f"; {', '.join(told)}"
    sentence += "."
    if len(parts) > 1:
        sentence += _beside(gains, [r for r, one in worths.items() if one.reading == HANGS])
        if set(cells) & {*side.higher, *side.lower}:
            sentence += (
                " Cell effects take the level of each (recipe, budget, r) cell out of the evidence and leave the place "
                "of its minimum: never read them alone."
            )
    return sentence


def _beside(gains: Sequence[MatchedGain], flips: Sequence[str]) -> str:
    """What the matched runs, which need no structure, say where phi hangs on it, and log g(r) at some r perhaps too."""
    sure = [
        (gain.matching, gain.overall.mean < 0)
        for gain in gains
        if gain.overall and not 1 - SURE <= gain.overall.p_lower <= SURE
    ]
    if not sure:
        return ""
    if len({lower for _, lower in sure}) > 1:
        equal = {"budget": "training FLOPs", "tokens": "tokens"}
        says = _listed([f"a {'lower' if lower else 'higher'} loss for equal {equal[name]}" for name, lower in sure])
        return f" The matched runs need no structure, but to say what is held equal: {says}."
    if flips:
        return (
            f" What the matched runs say does not: rank by the loss of matched runs only, since g(r) at r = "
            f"{_listed(flips)} hangs on structure as phi does."
        )
    return " What the matched runs say does not: rank by them and by g(r) first, by phi second."


def loss_sentence(found: Sequence[Standing], flops: float, trained_to: Mapping[str, float]) -> str:
    """What a budget buys with every recipe, at equal r, against r = 1, and at equal inference."""
    best = min(found, key=lambda one: float(one.contender.loss.mean()))
    who = best.contender
    sentence = f"At {flops:.3g} training FLOPs the least loss is expected of {who.recipe} at r = {who.recurrences:g}"
    rivals = [one for one in found if one is not best]
    if rivals:
        near = min(rivals, key=lambda one: float(one.contender.loss.mean())).contender
        sentence += (
            f" ({who.loss.mean():.3f} nats; P that it beats {near.recipe} at r = {near.recurrences:g} is "
            f"{(who.loss < near.loss).mean():.2f}, of single new runs {(who.run < near.run).mean():.2f})"
        )
    for recipe in dict.fromkeys(one.contender.recipe for one in found):
        own = [one for one in found if one.contender.recipe == recipe and one.same_recurrences]
        if own:
            values = [one.same_recurrences["difference"]["mean"] for one in own if one.same_recurrences]
            chance = [one.same_recurrences["p_curve"] for one in own if one.same_recurrences]
            sentence += (
                f"; {recipe} less the baseline at the same r: {_range(values)} (P(lower) {_range(chance, '.2f')})"
            )
    looped = [one.same_inference["difference"]["mean"] for one in found if one.same_inference]
    if looped:
        sentence += f"; looping at the same inference FLOPs per token: {_range(looped)} nats against r = 1"
    beyond = [f"{recipe} to {most:.3g}" for recipe, most in trained_to.items() if flops > NEAR * most]
    if beyond:
        sentence += f". Trained no further than that: {_listed(beyond)}; beyond it the law is taken at its word"
    return f"{sentence}."


def _range(values: Iterable[float], spec: str = "+.3f") -> str:
    """The least and the largest, or the one there is."""
    numbers = list(values)
    low, high = format(min(numbers), spec), format(max(numbers), spec)
    return low if low == high else f"{low} to {high}"


def _listed(items: Sequence[str]) -> str:
    """a, b and c; items with commas of their own are told apart by semicolons."""
    comma = "; " if any("," in item for item in items) else ", "
    return items[0] if len(items) == 1 else f"{comma.join(items[:-1])} and {items[-1]}"
