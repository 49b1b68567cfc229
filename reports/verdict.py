"""The verdict of a report: what the fit says in plain words, its doubts first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.diagnostics import NOT_IDENTIFIED
from bayeslaw.predict import interval
from bayeslaw.recommendation import Allocation
from reports import text
from reports.cards import MOST_NAMED, failures, reason
from reports.recurrences import Worth
from reports.study import Study
from reports.worth import unmeasured

Array = NDArray[np.float64]

WIDE = 0.5
"""A 90 % interval of an exponent as wide as half the way from worthless to a unique block decides little."""

SURE = 0.95

UNKNOWN = "What a recurrence is worth is not known from these runs"

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
        What recurrences are worth, or why that is not known.
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
        failed = "; ".join(failures(check))
        doubts.append(f"Do not rely on these numbers yet, the sampler's diagnostics failed: {failed}.")
    own = study.fit.law.map.parameters
    others = [name for name in check.not_identified if name.split("[")[0] not in own]
    return (*doubts, *_doubts_of_worth(study), *_doubts_of_law(others), *_doubts_of_size(study))


def _doubts_of_worth(study: Study) -> list[str]:
    """Where the runs say little about recurrences."""
    told, power = study.worths, "phi" in study.fit.law.parameters
    if not told:
        return []
    exponent = "phi" if power else "the average exponent of a recurrence"
    if not study.looped:
        what = "phi" if power else "what a recurrence is worth"
        return [
            f"No run repeats a block (r = 1 throughout), so the data say nothing about {what}: wherever it appears "
            "here, it is the prior's."
        ]
    doubts = []
    unknown = [recipe for recipe, each in told.items() if _not_identified(each)]
    if unknown:
        ratio = [f"{told[recipe].narrowed:.2f}" for recipe in unknown]
        doubts.append(
            f"The data do not identify {exponent}{_whose(study, unknown)}: its posterior is still "
            f"{text.listing(ratio)} times as wide as the prior, so read it as a guess. "
            "Runs at r = 1 and at several larger r of the same recipe would tell."
        )
    for recipe, each in told.items():
        summary = interval(each.exponent)
        width = summary["q95"] - summary["q05"]
        if recipe not in unknown and width > WIDE:
            doubts.append(
                f"{exponent if power else text.capital(exponent)}{_whose(study, [recipe])} is known only roughly: "
                f"its 90 % interval spans {width:.2f}, where 1 lies between a worthless recurrence and a unique block."
            )
    own = study.fit.law.map.parameters
    vague = [name for name in study.check.not_identified if name.split("[")[0] in own]
    if not power and vague and not unknown:
        doubts.append(
            f"The data do not identify {text.shortened(vague, MOST_NAMED)} of the recurrence map: what other r than "
            "the trained ones are worth leans on the prior."
        )
    return doubts


def _doubts_of_law(unknown: list[str]) -> list[str]:
    if not unknown:
        return []
    return [
        f"The data do not identify {text.shortened(unknown, MOST_NAMED)} of the law: the prior carries the answer "
        "there, and the recommendation leans on it."
    ]


def _doubts_of_size(study: Study) -> tuple[str, ...]:
    """Where the recommended size is hardly known, or far from every model that was trained."""
    trained = study.fit.runs["n_unique"]
    doubts: dict[str, None] = {}
    for recipe in study.fit.recipes:
        try:
            best = study.recommendation(recipe).recommended
        except Exception:  # that there is no recommendation is said where it is missing
            continue
        low, high = np.quantile(best.located.n_unique, [0.05, 0.95])
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
    """What recurrences are worth by each recipe, those of one meaning together."""
    if not study.worths:
        return (unmeasured(study),)
    if not study.looped:
        return ()
    several = len(study.worths) > 1
    found: dict[str, list[str]] = {}
    for recipe, each in study.worths.items():
        meaning, facts = (_of_phi if "phi" in study.fit.law.parameters else _of_map)(each, step=not several)
        found.setdefault(meaning, []).append(f"{recipe}: {facts}" if several else facts)
    if several:
        return tuple(sentence for meaning, facts in found.items() for sentence in (f"{meaning}:", *facts))
    return tuple(f"{meaning}: {facts[0]}" for meaning, facts in found.items())


def _of_phi(each: Worth, *, step: bool) -> tuple[str, str]:
    """Meaning and facts of phi."""
    phi = each.exponent
    facts = f"phi = {text.mean_and_range(phi, f'{text.PERCENT_90} interval ')}"
    if _not_identified(each):
        return UNKNOWN, f"{facts}, hardly more than the prior."
    below, above = _chances(phi)
    words = f"A block run twice is worth {text.mean_and_range(each.at(2.0))} unique blocks"
    if each.most > 2:
        words += f", one run {each.most:g} times {text.mean_and_range(each.at(each.most))}"
    if step:
        words += f"; at r = 2, one more recurrence of it adds {text.mean_and_range(each.at(3.0) - each.at(2.0))}"
    return _meaning(below, above), f"{facts}, {_probabilities('phi', phi)}. {words}."


def _of_map(each: Worth, *, step: bool) -> tuple[str, str]:
    """The same of the average exponent at the largest trained r, for the other maps."""
    exponent, most, law_map = each.exponents(each.most), each.most, each.fit.law.map
    facts = (
        f"a block run {most:g} times is worth {text.mean_and_range(each.blocks[most])} unique blocks, an average "
        f"exponent of {text.mean_and_range(exponent, f'{text.PERCENT_90} interval ')}"
    )
    if _not_identified(each):
        return UNKNOWN, f"{facts}, hardly more than the prior."
    assumed = all(law_map.positive)
    below, above = _chances(exponent)
    facts += f", {_probabilities('exponent', exponent, above=not assumed)}."
    if assumed:
        facts += f" That it is worth something is the {law_map.name} map's own assumption."
    meaning = _meaning(below, None if assumed else above)
    for r in each.trained[:-1]:
        under, over = _chances(each.exponents(r))
        if (other := _meaning(under, None if assumed else over)) != meaning:
            facts += f" Up to r = {r:g} it is otherwise: {_small(other)}, with an average exponent of "
            facts += f"{text.mean_and_range(each.exponents(r))}."
    if step:
        near = [f"near r = {r:g} as r to the {text.mean_and_range(each.growth[r])}" for r in _ends(each.trained)]
        facts += f" It grows {text.listing(near)}."
    return f"Up to r = {most:g}, {_small(meaning)}", facts


def _ends(trained: tuple[float, ...]) -> tuple[float, ...]:
    return trained if len(trained) == 1 else (trained[0], trained[-1])


def _small(words: str) -> str:
    return f"{words[:1].lower()}{words[1:]}"


def _chances(exponent: Array) -> tuple[float, float]:
    """P(< 1) and P(> 0)."""
    return float((exponent < 1).mean()), float((exponent > 0).mean())


def _probabilities(name: str, exponent: Array, *, above: bool = True) -> str:
    chances = _chances(exponent)[: 1 + above]
    return ", ".join(
        f"P({name} {sign}) {_equals(text.probability(chance, len(exponent)))}"
        for sign, chance in zip(("< 1", "> 0"), chances, strict=False)
    )


def _meaning(below: float, above: float | None) -> str:
    """What the chances of an exponent < 1 and > 0 say about one recurrence; ``above`` None where it must be > 0."""
    if below < 1 - SURE:
        return "A recurrence is worth at least a unique block"
    if above is not None and above < 1 - SURE:
        return "A recurrence is worth nothing, or does harm"
    if below <= SURE:
        return "Whether a recurrence is worth less than a unique block stays open"
    if above is None:
        return "A recurrence is worth less than a unique block"
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


def _not_identified(each: Worth) -> bool:
    return each.narrowed > NOT_IDENTIFIED


def _whose(study: Study, recipes: list[str]) -> str:
    return f" of {text.listing(recipes)}" if len(study.worths) > 1 else ""


def _equals(probability: str) -> str:
    return probability if probability[0] in "<>" else f"= {probability}"
