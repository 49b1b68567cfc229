"""The runs to train next for a purse of compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.design.aims import Aim, aim_of, expected_regrets
from bayeslaw.design.answer import HARDLY, Design
from bayeslaw.design.belief import Belief
from bayeslaw.design.candidates import Possible, candidates
from bayeslaw.design.detection import detection
from bayeslaw.design.knowledge import Knowledge, runs_to_come
from bayeslaw.design.search import cheapest, next_runs, within
from bayeslaw.errors import UsageError
from bayeslaw.family import Family
from bayeslaw.posterior import Fit

Array = NDArray[np.float64]

ENDLESS = 1000
"""So many runs of every candidate are called endless."""

TRIES = 8
"""Goals tried until the expected regret, which follows variances only nearly, has come down to the one asked for."""


def propose(
    fit: Fit,
    *,
    purse: float,
    about: str | Sequence[str],
    recipe: str | None = None,
    recipes: Sequence[str] | None = None,
    recurrences: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    budgets: Sequence[float] | None = None,
    most: int | None = None,
    until: float | None = None,
    detect: float = 0.1,
    power: float = 0.8,
    families: Mapping[str, Family] | None = None,
) -> Design:
    """Propose the runs that most reduce what a person is unsure of, within a purse.

    Parameters
    ----------
    fit : Fit
    purse : float
        Training FLOPs for all of them together.
    about : str or sequence of str
        What is to be told, see `bayeslaw.design.aims.GRAMMAR`; of several each counts alike.
    recipe : str, optional
        Whose phi, g, N* or decision; default the baseline, or the only recipe.
    recipes : sequence of str, optional
        Recipes of the runs; default those that ``about`` is about. One that the fit does not hold is taken as the
        model's own prior takes a further recipe.
    recurrences, widths, budgets : sequence, optional
        Only such runs, see `bayeslaw.design.candidates.candidates`.
    most : int, optional
        The most runs.
    until : float, optional
        Instead of all that the purse buys: the cheapest runs after which the sd, or the expected regret, is expected to
        be this.
    detect, power : float
        With delta_phi of a recipe that the fit does not hold: the difference that shall be declared, and with which
        probability.
    families : mapping of str to Family, optional
        Of recipes that the fit does not hold; default the baseline's.

    Raises
    ------
    UsageError
        What is asked for cannot be meant.
    DecisionError
        No run can be trained for the purse, or the runs have no architecture.
    """
    texts = [about] if isinstance(about, str) else list(about)
    _require(purse, texts, most, until, detect, power)
    compared = [text.partition(":")[2].strip() for text in texts if text.strip().startswith("delta_phi:")]
    own = [] if compared and recipe is None else [fit.choose_recipe(recipe)]
    if recipe is None and any(text.strip().startswith("regret") for text in texts):
        own = list(fit.recipes)  # a decision between all of them
    wanted = list(recipes) if recipes else list(dict.fromkeys([*own, *compared]))
    knowledge = Knowledge.of(fit, [*own, *wanted, *compared], families)
    aims = tuple(aim_of(text, knowledge, recipe=recipe) for text in texts)
    runs = candidates(
        fit, knowledge.families, recipes=wanted, purse=purse, recurrences=recurrences, widths=widths, budgets=budgets
    )
    cost = np.array([run.flops for run in runs])
    eta, noise, shared = runs_to_come(knowledge, runs)
    belief = Belief.of(
        np.column_stack([aim.parts for aim in aims]), eta, noise=noise, shared=shared, weight=_weights(aims)
    )
    notes = []

    def measured(order: Sequence[int]) -> Array:
        return _measured(aims, belief, eta, order, seed=fit.spec.seed)

    chosen = None
    if until is not None:
        chosen = _until(belief, cost, purse, until, aims[0], measured)
        if chosen is None:
            notes.append(f"{until:g} is not reached within the purse: these are the runs that come nearest")
        elif not chosen:
            notes.append(f"{aims[0].text}: {aims[0].measure}, is {aims[0].now:.3g} already")
    elif not belief.gains().max() > 0:
        notes.append("no run would tell more")
    if chosen is None:
        chosen = within(belief, cost, purse, most=most)
    after, picked = measured(chosen), tuple(runs[i] for i in chosen)
    gains = np.where(cost <= purse, belief.gains(), 0.0)
    share = gains[chosen] / belief.total if belief.total else gains[chosen]
    single = [int(gains.argmax())] if gains.max() > 0 else []
    endless = _endless(aims, belief)
    found = None
    if len(aims) == 1 and set(compared) & set(knowledge.new):
        found = detection(
            aims[0].parts[:, 0], after[0] ** 2, difference=detect, power=power, endless=(endless[0] or 0.0) ** 2
        )
    again = sum(run.replicates is not None for run in picked)
    if again:
        notes.append(f"of these runs {again} repeat a trained configuration with another seed")
    return Design(
        aims=aims,
        purse=purse,
        considered=len(runs),
        runs=picked,
        after=after,
        alone=1 - np.sqrt(np.maximum(1 - share, 0.0)),
        next=runs[following[0]] if (following := next_runs(belief, cost, purse=purse)) else None,
        single=runs[single[0]] if single else None,
        after_single=measured(single)[:, -1],
        endless=endless,
        enough=_enough(after),
        detection=found,
        notes=(*notes, *_untried(fit, knowledge, picked)),
    )


def _require(
    purse: float, texts: list[str], most: int | None, until: float | None, detect: float, power: float
) -> None:
    if not 0 < purse < np.inf:
        raise UsageError(f"--purse {purse:g}", allowed="training FLOPs above 0, such as 1e19")
    if not texts or len(set(texts)) < len(texts):
        raise UsageError(f"--about {' '.join(texts)}", allowed="one or more quantities, each once")
    if most is not None and most < 1:
        raise UsageError(f"--most {most}", allowed="1 or more")
    if until is not None and (not until > 0 or len(texts) > 1):
        raise UsageError(
            f"--until {until:g} with --about {' '.join(texts)}", allowed="a number above 0, and one quantity",
            do="name the quantity whose sd, or expected regret, is to come down to it",
        )  # fmt: skip
    if not detect > 0 or not 0.5 <= power < 1:
        raise UsageError(f"--detect {detect:g} --power {power:g}", allowed="above 0, and from 0.5 to below 1")


def _weights(aims: tuple[Aim, ...]) -> Array:
    """Each aim counts alike: its parts together are one share of the total."""
    out = []
    for aim in aims:
        variance = float(aim.parts.var(axis=0, ddof=1).sum())
        out += [1 / (len(aims) * variance) if variance > 0 else 0.0] * aim.parts.shape[1]
    return np.array(out)


def _measured(aims: tuple[Aim, ...], belief: Belief, eta: Array, order: Sequence[int], *, seed: int) -> Array:
    """Measure of each aim now and after each of a series of runs, shape (aim, run + 1)."""
    states = [belief]
    for run in order:
        states.append(states[-1].observe(run))
    out, start = [], 0
    for aim in aims:
        if aim.actions is None:
            out.append(np.sqrt([max(0.0, float(state.variance[start])) for state in states]))
        else:
            among = belief.among[np.ix_(order, order)]
            out.append(expected_regrets(aim.actions, eta[:, order], among, belief.noise[list(order)], seed=seed))
        start += aim.parts.shape[1]
    return np.array(out)


def _until(belief: Belief, cost: Array, purse: float, until: float, aim: Aim, measured: Any) -> list[int] | None:
    """The cheapest runs after which the aim's measure is what was asked for."""
    if aim.now <= until:
        return []
    goal = (until / aim.now) ** (2 if aim.actions is None else 1) * belief.total
    for _ in range(TRIES):
        chosen = cheapest(belief, cost, goal, purse=purse)
        if chosen is None:
            return None
        reached = float(measured(chosen)[0, -1])
        if reached <= until * (1 + 1e-9):
            return chosen
        goal *= until / reached
    return None


def _enough(after: Array) -> int:
    """Runs after which what remains takes less than `HARDLY` off what is left, on the average of the aims."""
    left = (after / np.where(after[:, :1] > 0, after[:, :1], 1.0)).mean(axis=0)
    return int(np.argmax(left - left[-1] <= HARDLY * left))


def _endless(aims: tuple[Aim, ...], belief: Belief) -> tuple[float | None, ...]:
    """Sd of each aim after `ENDLESS` runs of every candidate; effects that they share stay."""
    gram = belief.among + np.diag(belief.noise / ENDLESS)
    left = belief.variance - (belief.cross.T * np.linalg.solve(gram, belief.cross.T)).sum(axis=0)
    ends = np.cumsum([aim.parts.shape[1] for aim in aims]) - 1
    return tuple(
        None if aim.actions is not None else float(np.sqrt(max(left[end], 0.0)))
        for aim, end in zip(aims, ends, strict=True)
    )


def _untried(fit: Fit, knowledge: Knowledge, runs: Sequence[Possible]) -> list[str]:
    """Sentences on runs where the law has not been tried."""
    notes = [
        f"no run of {name} is in this fit: what is expected of it is what the model's prior says of a further recipe"
        for name in knowledge.new
    ]
    trained = set(fit.runs["recurrences"])
    notes += [f"r = {r} was never trained" for r in sorted({run.recurrences for run in runs}) if r not in trained]
    most = fit.range_of("flops")[1]
    beyond = sum(run.flops > 1.05 * most for run in runs)
    if beyond:
        notes.append(f"of these runs {beyond} cost more than any trained one: an extrapolation of the law")
    return notes
