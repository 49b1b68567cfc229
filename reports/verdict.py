"""The verdict of a report: what the fit says in plain words, its doubts first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.allocate import Allocation
from bayeslaw.predict import interval
from reports import text
from reports.cards import reason
from reports.study import Study

Array = NDArray[np.float64]

WIDE = 0.5
"""A 90 % interval of phi as wide as half the way from worthless to a unique block decides little."""

SURE = 0.95

VAGUE = 10.0
"""A best size that is known to no better than so many times is no advice to follow blindly."""

BEYOND = 2.0
"""A recommendation so many times larger or smaller than all trained models rests on the law alone."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Sentences, in the order they are to be read.

    Parameters
    ----------
    doubts : tuple of str
        Why not to rely on what follows.
    findings : tuple of str
        phi and what it means.
    advice : tuple of str
        The recommendation at the largest trained budget.
    """

    doubts: tuple[str, ...]
    findings: tuple[str, ...]
    advice: tuple[str, ...]


def verdict(study: Study) -> Verdict:
    """The verdict of a fit."""
    try:
        doubts, findings = _doubts(study), _findings(study)
    except Exception as error:
        doubts, findings = (f"The fit could not be judged: {reason(error)}",), ()
    return Verdict(doubts=doubts, findings=findings, advice=_advice(study))


def _doubts(study: Study) -> tuple[str, ...]:
    check = study.check
    doubts = []
    if not check.passed:
        failed = "; ".join(message for message in check.messages if not message.startswith("not identified"))
        doubts.append(f"Do not rely on these numbers yet, the sampler's diagnostics failed: {failed}.")
    unknown = [recipe for recipe in study.fit.recipes if _not_identified(study, recipe)]
    if not study.looped:
        doubts.append(
            "No run repeats a block (r = 1 throughout), so the data say nothing about phi: wherever it appears here, "
            "it is the prior's."
        )
    elif unknown:
        widths = check.parameters["sd_ratio"]
        ratio = [f"{float(widths[f'phi[{recipe}]']):.2f}" for recipe in unknown]
        doubts.append(
            f"The data do not identify phi{_whose(study, unknown)}: its posterior is still {text.listing(ratio)} times "
            "as wide as the prior, so read it as a guess. Runs with a larger r, or more of them, would tell."
        )
    for recipe in study.fit.recipes:
        summary = interval(study.fit.draws(recipe)["phi"])
        width = summary["q95"] - summary["q05"]
        if study.looped and recipe not in unknown and width > WIDE:
            doubts.append(
                f"phi{_whose(study, [recipe])} is known only roughly: its 90 % interval spans {width:.2f}, where 1 "
                "lies between a worthless recurrence and a unique block."
            )
    others = [name for name in check.not_identified if not name.startswith("phi")]
    if others:
        doubts.append(
            f"The data do not identify {text.listing(others)} of the law: the prior carries the answer there, and the "
            "recommendation leans on it."
        )
    return (*doubts, *_doubts_of_size(study))


def _doubts_of_size(study: Study) -> tuple[str, ...]:
    """Where the recommended size is hardly known, or far from every model that was trained."""
    trained = study.fit.runs["n_unique"]
    doubts: dict[str, None] = {}
    for recipe in study.fit.recipes:
        try:
            best = study.recommendation(recipe).recommended
        except Exception:  # that there is no recommendation is said where it is missing
            continue
        low, high = np.quantile(best.optimum.n_unique, [0.05, 0.95])
        if high > VAGUE * low:
            doubts[
                f"The best size for the largest trained budget is hardly known: 90 % of its draws lie between "
                f"{text.quantity(low)} and {text.quantity(high)} parameters."
            ] = None
        larger, smaller = best.trainable.n_unique / trained.max(), trained.min() / best.trainable.n_unique
        if max(larger, smaller) > BEYOND:
            ratio, kind, most = (larger, "larger", "largest") if larger > smaller else (smaller, "smaller", "smallest")
            doubts[
                f"The recommended model is {ratio:.1f} times {kind} than the {most} that was trained: an extrapolation."
            ] = None
    return tuple(doubts)


def _findings(study: Study) -> tuple[str, ...]:
    """phi and its meaning for each recipe, those of one meaning together."""
    if not study.looped:
        return ()
    several = len(study.fit.recipes) > 1
    found: dict[str, list[str]] = {}
    for recipe in study.fit.recipes:
        phi = study.fit.draws(recipe)["phi"]
        facts = f"phi = {text.mean_and_range(phi, f'{text.PERCENT_90} interval ')}"
        if _not_identified(study, recipe):
            meaning = "What a recurrence is worth is not known from these runs"
            facts += ", hardly more than the prior."
        else:
            below, above = float((phi < 1).mean()), float((phi > 0).mean())
            meaning = _meaning(below, above)
            most = float(study.runs_of(recipe)["recurrences"].max())
            facts += (
                f", P(phi < 1) {_equals(text.probability(below, len(phi)))}, P(phi > 0) "
                f"{_equals(text.probability(above, len(phi)))}. {_worth(phi, most, step=not several)}"
            )
        found.setdefault(meaning, []).append(f"{recipe}: {facts}" if several else facts)
    if several:
        return tuple(sentence for meaning, facts in found.items() for sentence in (f"{meaning}:", *facts))
    return tuple(f"{meaning}: {facts[0]}" for meaning, facts in found.items())


def _worth(phi: Array, most: float, *, step: bool) -> str:
    """What r^phi means for r = 2 and for the largest trained r."""
    words = f"A block run twice is worth {text.mean_and_range(2.0**phi)} unique blocks"
    if most > 2:
        words += f", one run {most:g} times {text.mean_and_range(most**phi)}"
    if step:
        words += f"; at r = 2, one more recurrence of it adds {text.mean_and_range(3.0**phi - 2.0**phi)}"
    return f"{words}."


def _meaning(below: float, above: float) -> str:
    """What the chances of phi < 1 and phi > 0 say about one recurrence."""
    if below < 1 - SURE:
        return "A recurrence is worth at least a unique block"
    if above < 1 - SURE:
        return "A recurrence is worth nothing, or does harm"
    if below <= SURE:
        return "Whether a recurrence is worth less than a unique block stays open"
    if above <= SURE:
        return "Whether a recurrence is worth anything stays open"
    return "A recurrence is worth something, but less than a unique block"


def _advice(study: Study) -> tuple[str, ...]:
    """The recommendation, said once for all recipes that share it, then what each recipe has to add."""
    said: dict[str, list[str]] = {}
    more: dict[str, str] = {}
    for recipe in study.fit.recipes:
        try:
            allocation = study.recommendation(recipe)
            words, more[recipe] = recommendation(allocation), _alternative(allocation)
        except Exception as error:
            words = f"No recommendation: {reason(error)}"
        said.setdefault(words, []).append(recipe)
    if len(study.fit.recipes) == 1:
        return tuple(" ".join([words, *more.values()]) for words in said)
    sentences = []
    for words, recipes in said.items():
        sentences.append(words if len(said) == 1 else f"{text.listing(recipes)}: {words}")
        sentences += [f"{recipe}: {more[recipe]}" for recipe in recipes if recipe in more]
    return tuple(sentences)


def recommendation(allocation: Allocation) -> str:
    """The recommended configuration in one sentence."""
    best = allocation.recommended
    width = "" if best.trainable.d_model is None else f", width {best.trainable.d_model}"
    return (
        f"At the largest trained budget, {text.flops(allocation.flops)} FLOPs, train r = {best.recurrences}{width} "
        f"({text.quantity(best.trainable.n_unique)} unique parameters) on {text.quantity(best.trainable.tokens)} "
        f"tokens: expected loss {text.mean_and_range(best.trainable.loss)} nats/token."
    )


def _alternative(allocation: Allocation) -> str:
    """How sure the recommendation is, and what the best model of the other kind, looped or not, would cost."""
    best = allocation.recommended
    words = []
    others = [option for option in allocation.options if (option.recurrences == 1) != (best.recurrences == 1)]
    if others:
        other = min(others, key=lambda option: float(option.trainable.loss.mean()))
        kind = "without a loop" if other.recurrences == 1 else "with a loop"
        chance = text.probability(best.probability_best, len(best.optimum.loss))
        share = 100 * other.trainable.n_unique / best.trainable.n_unique
        loss = text.mean_and_range(other.trainable.loss - best.trainable.loss)
        words.append(
            f"r = {best.recurrences} is the best r with probability {chance}; the best model {kind} (r = "
            f"{other.recurrences}, {share:.0f} % of the unique parameters) would end {loss} nats/token higher."
        )
    words.append(f"Expected regret: {allocation.expected_regret:.1e} nats/token.")
    words += [f"Note: {note}." for note in allocation.notes]
    return " ".join(words)


def _not_identified(study: Study, recipe: str) -> bool:
    return f"phi[{recipe}]" in study.check.not_identified


def _whose(study: Study, recipes: list[str]) -> str:
    return f" of {text.listing(recipes)}" if len(study.fit.recipes) > 1 else ""


def _equals(probability: str) -> str:
    return probability if probability[0] in "<>" else f"= {probability}"
