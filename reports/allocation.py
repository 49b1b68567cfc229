"""The page of `bayeslaw allocate`: what to train with a budget, how sure that is, and what else the budget buys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bayeslaw.diagnostics import check
from bayeslaw.options import Trainable
from bayeslaw.posterior import Fit
from bayeslaw.recommendation import Allocation
from bayeslaw.targets import Target
from bayeslaw.version import __version__
from reports import allocation_cards as cards
from reports import text
from reports.allocation_looks import budget_name, compares, key_of, looks, objective_name, options_of, spread
from reports.build import page, write_page
from reports.cards import Body, Card, Table, make
from reports.verdict import Verdict

MOST_SPOKEN = 3
"""Of more budgets than this only the smallest and the largest are spoken of; the tables have all."""

_ON = {True: "on", False: "off"}

_RECOMMENDATION = (
    "Each point of a curve is a configuration that can be trained within budget and constraints: larger models are "
    "left fewer tokens. Line and band: expected loss and its 90 % interval by the law, with what it may be off outside "
    "the trained runs; single runs scatter around it. Marks with bars: where the best size lies (median, 90 %, with "
    "the noise of location). Star: the recommended run."
)
_OPTIMUM = (
    "Optima draw by draw, before widths and tokens are rounded to what can be trained; sizes and tokens, and the "
    "probabilities of them, with the noise of location. Medians, losses as means, with 90 % intervals. Unrolled "
    "parameters count a block once for each time that it runs."
)
_REGRET = (
    "Loss of the best trainable configuration of each option above the best of all, each draw's own: what it costs not "
    "to have known the truth. Mean and 90 % interval. Last columns: the mean over those draws alone in which the named "
    "option is the best, which is what a choice costs if that is the truth."
)
_PARETO = (
    "Configurations of one training budget, none of which another beats in loss, unique parameters and inference FLOPs "
    "together. Line and band: expected loss and its 90 % interval. Inference: FLOPs per generated token at the end of "
    "a full context."
)
_BUDGETS = (
    "Optima over training budgets: sizes and tokens as medians with the noise of location, the gap as a mean; bands "
    "are 90 %. Exponents are slopes over all budgets of the table, by each draw's optimum. Shaded: budgets that no run "
    "was trained with, where the bands hold only if the law stays true."
)
_TARGET = (
    "Each draw of the law needs a least budget of its own. A curve is the share of draws whose best model of that "
    "budget reaches the loss; where it ends below 1, the other draws never do. Shaded: budgets that no run was "
    "trained with."
)
_MADE = "What this page rests on. The same fit, options and version give the same numbers."


def write_allocation(
    fit: Fit,
    made: Sequence[Allocation],
    path: str | Path,
    *,
    front: Sequence[Trainable] | None = None,
    target: Target | None = None,
    family: str | None = None,
) -> tuple[Card, ...]:
    """Write the page, whole or not at all.

    Parameters
    ----------
    fit : Fit
    made : sequence of Allocation
        One for each budget, ascending, all within the same constraints; none where no budget reaches a target.
    path : str or Path
        The HTML file; folders above it are made.
    front : sequence of Trainable, optional
        `bayeslaw.tradeoffs.pareto` at the largest budget.
    target : Target, optional
        What a loss takes.
    family : str, optional
        The named family that the allocations chose from; default the one that the runs span.

    Returns
    -------
    tuple of Card, as the page has them.

    Raises
    ------
    BayeslawError
        The file cannot be written.
    """
    found = make_cards(fit, made, front=front, target=target, family=family)
    spoken = list(made) if len(made) <= MOST_SPOKEN else spread(made, 2)
    between = len(made) - len(spoken)
    judged = Verdict(
        doubts=_doubts(fit, spoken, target),
        findings=() if target is None else (str(target).split("\n")[0],),
        advice=(*map(str, spoken), *([f"The tables have {between} more budgets between these."] if between else [])),
    )
    if target is not None:
        goal = f"for {target.loss:g} nats/token"
    else:
        smallest = f"{text.flops(made[0].flops)} to " if len(made) > 1 else ""
        goal = f"with {smallest}{budget_name(made[-1])}"
    write_page(page(f"What to train {goal}: {fit.attrs['source']}", judged, found), path)
    return found


def make_cards(
    fit: Fit,
    made: Sequence[Allocation],
    *,
    front: Sequence[Trainable] | None = None,
    target: Target | None = None,
    family: str | None = None,
) -> tuple[Card, ...]:
    """The cards in the order of the page; parameters as for `write_allocation`."""
    routes = () if target is None else target.routes
    # A recipe and r look the same in every figure.
    keys = (*(key_of(option) for _, option in options_of(made)), *map(key_of, front or ()), *map(key_of, routes))
    shown, found = looks(keys), []
    if target is not None:
        title = f"What {target.loss:g} nats/token take"
        found.append(make("target", title, _TARGET, partial(cards.target, fit, target, shown)))
    if made:
        where = f"Where the optimum lies{', and what a loop changes' * compares(made)}"
        chosen = partial(cards.recommendation, fit, made, shown, family)
        found += [
            make("recommendation", "What to train", _RECOMMENDATION, chosen),
            make("optimum", where, _OPTIMUM, partial(cards.optimum, made, shown)),
            make("regret", "What a wrong choice costs", _REGRET, partial(cards.regret, made, shown)),
        ]
    if front is not None:
        smaller = partial(cards.pareto, front, shown)
        found.append(make("pareto", "Smaller models, cheaper inference", _PARETO, smaller))
    if len(made) > 1:
        grown = partial(cards.budgets, fit, made, shown)
        found.append(make("budgets", "How the optimum grows with the budget", _BUDGETS, grown))
    return (*found, make("made", "How this was made", _MADE, partial(_made, fit, made, target, family)))


def _made(fit: Fit, made: Sequence[Allocation], target: Target | None, family: str | None) -> Body:
    """Fit, constraints, objective and versions."""
    attrs, first = fit.attrs, next(iter(made), None)
    shown = ("law", "map", "noise", "outliers", "injection_in")
    law = ", ".join(f"{name} {value}" for name in shown if (value := getattr(fit.spec, name)) is not None)
    rows: list[tuple[str, Any]] = [
        ("source", attrs["source"]),
        *([("where", attrs["where"])] if attrs["where"] else []),
        ("data hash", attrs["data_hash"]),
        ("runs", f"{len(fit.runs)} fitted, {len(attrs['excluded'])} excluded"),
        ("fit", f"{law}, deviation {_ON[fit.spec.deviation]}, drift {_ON[fit.spec.drift]}"),
        ("draws", len(fit.draws(fit.recipes[0], names=["E"])["E"])),
    ]
    if target is not None:
        sure = "in expectation" if target.probability is None else f"with probability {target.probability:g}"
        rows.append(("target", f"{target.loss:g} nats/token, {sure}"))
    if first is not None:
        given = first.constraints.as_dict()
        rows += [
            ("budgets", "; ".join(map(budget_name, made))),
            ("constraints", ", ".join(f"{name} {_written(value)}" for name, value in given.items()) or "none"),
            ("objective", objective_name(first)),
            ("FLOPs", "6 N D" if first.recommended.optimum.width_scale is None else "of the architectures, exactly"),
            ("location noise", first.location),
        ]
    rows += [
        *([("family", family)] if family is not None else []),
        ("version", __version__),
        ("fitted with", ", ".join(f"{name} {value}" for name, value in attrs["versions"].items())),
    ]
    return Body(
        takeaway=f"A decision on {len(fit.runs)} runs of {attrs['source']}, by bayeslaw {__version__}.",
        table=Table(header=("what", "value"), rows=tuple((name, str(value)) for name, value in rows), text_columns=2),
    )


def _doubts(fit: Fit, made: Sequence[Allocation], target: Target | None) -> tuple[str, ...]:
    """What to know before relying on the page, once each, with the budget where it does not hold of all."""
    said: dict[str, list[str]] = {message: [] for message in check(fit).messages}
    for note in () if target is None else target.notes:
        said.setdefault(note, [])
    always = set(said)
    for each in made:
        for note in each.notes:
            said.setdefault(note, []).append(budget_name(each))
    return tuple(
        _said(note if note in always or len(where) == len(made) else f"at {text.listing(where)}, {note}")
        for note, where in said.items()
    )


def _said(note: str) -> str:
    """A note as a sentence; r stays small."""
    return f"{note}." if note.startswith("r = ") else text.sentence(note)


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
