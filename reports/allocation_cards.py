"""The cards of an allocation: what to train, what else the budget buys, what other budgets and a loss take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.options import Trainable
from bayeslaw.posterior import Fit
from bayeslaw.predict import interval
from bayeslaw.recommendation import Allocation, Option
from bayeslaw.targets import Target
from bayeslaw.tradeoffs import growth
from reports import allocation_figures as figures
from reports import model_figures, text
from reports.allocation_looks import (
    NEARLY,
    Key,
    Looks,
    above_plain,
    budget_name,
    compares,
    key_of,
    objective_name,
    options_of,
    spread,
)
from reports.cards import Body, Table

Array = NDArray[np.float64]

NEAR = 0.01
"""Nats per token that a smaller or cheaper model may cost to be named."""

WORTH_A_LOOK = 0.5
"""Nats per token above the least loss from which on a configuration of the front is not shown."""

OFTEN = 0.01
"""Share of draws in which an option is best from which on the others are held against it."""

UNKNOWN = "–"
STAR = "★"

_CHANCES = {
    "p_wider": "P(wider)",
    "p_fewer_tokens_per_unrolled": "P(fewer tokens per unrolled)",
    "p_fewer_tokens_per_unique": "P(fewer tokens per unique)",
}


def target(fit: Fit, aim: Target, shown: Looks) -> Body:
    """The least compute by route, and whether the loss can be reached."""
    rows = []
    for route in aim.routes:
        reached = route.flops[np.isfinite(route.flops)]
        budget = text.figure_and_range(reached) if len(reached) else UNKNOWN
        chances = (route.probability_reachable, route.probability_best)
        rows.append((shown[key_of(route)].name, budget, *(text.probability(p, len(route.flops)) for p in chances)))
    chance = text.probability(aim.probability_reachable, len(aim.floor))
    takeaway = (
        f"Some budget reaches {aim.loss:g} nats/token with probability {chance}; E, which none goes below, is "
        f"{_interval(interval(aim.floor), f'{text.PERCENT_90} ')}."
    )
    header = ("option", "least FLOPs, of the draws that reach it", "P(reachable)", "P(cheapest, if reached)")
    note = "Median and 90 % interval of the least training FLOPs."
    return Body(
        takeaway=takeaway,
        figure=figures.reach(fit, aim, shown),
        table=Table(header=header, rows=tuple(rows), note=note),
    )


def recommendation(fit: Fit, made: Sequence[Allocation], shown: Looks, family: str | None) -> Body:
    """The best trainable configuration of each option, and the curves that it is the lowest point of."""
    last = made[-1]
    memory = last.constraints.memory is not None
    rows = []
    for each, option in options_of(made):
        run = option.trainable
        rows.append(
            (
                *_first(made, each, shown[key_of(option)].name + f" {STAR}" * (option is each.recommended)),
                text.probability(option.probability_best, len(run.loss)),
                _width(run),
                text.quantity(run.n_unique, 4),
                text.quantity(run.tokens, 4),
                *([text.quantity(each.constraints.memory_of(run.n_unique))] if memory else []),
                text.flops(run.flops),
                text.flops(run.inference_flops),
                text.mean_and_range(run.loss, ""),
            )
        )
    best = last.recommended
    chance = text.probability(best.probability_best, len(best.trainable.loss))
    takeaway = (
        f"At {budget_name(last)} {shown[key_of(best)].name} is the choice, and best with probability {chance}; "
        f"{len(last.candidates)} trainable configurations of {len(last.options)} option{'s' * (len(last.options) > 1)} "
        "were weighed."
    )
    if len(made) > 1:
        winners = list(dict.fromkeys(shown[key_of(each.recommended)].name for each in made))
        takeaway += (
            f" At every budget the choice is {winners[0]}." if len(winners) == 1
            else f" The choice, as the budget grows: {text.listing(winners)}."
        )  # fmt: skip
    header = (
        "P(best)", "width", "unique parameters", "tokens",
        *([f"bytes ({last.constraints.precision})"] if memory else []), "training FLOPs", "inference FLOPs/token",
        "loss (nats/token)",
    )  # fmt: skip
    note = (
        f"{STAR} recommended. The best trainable configuration of each option by the objective "
        f"({objective_name(last)}). P(best): share of draws in which the best configuration of all is one of this "
        "option."
    )
    return Body(
        takeaway=takeaway, figure=figures.sizes(fit, made, shown, family), table=_table(made, header, rows, note)
    )


def optimum(made: Sequence[Allocation], shown: Looks) -> Body:
    """Where each option's optimum lies, and how it compares with the best model without a loop."""
    last, drawn = made[-1], spread(made, figures.MOST_PANELS)
    compared = ("loss* above r = 1", *_CHANCES.values()) if compares(made) else ()
    rows, spans = [], []
    for each, option in options_of(made):
        where, loss, name = option.located, option.optimum.loss, shown[key_of(option)].name
        cells = [UNKNOWN] * len(compared)
        if each.plain is not None and option is not each.plain:
            against = option.against(each.plain)
            chances = (against[key] for key in _CHANCES)
            told = (UNKNOWN if chance is None else text.probability(chance, len(loss)) for chance in chances)
            cells = [_above(each, option), *told]
            if each in drawn:
                spans.append(_span(name, each, against["loss"]))
        rows.append(
            (
                *_first(made, each, name),
                UNKNOWN if where.width_scale is None else _widths(where.width_scale),
                text.quantity_and_range(where.n_unique),
                text.quantity(float(np.median(where.tokens))),
                f"{loss.mean():.4f}",
                *cells,
            )
        )
    best = last.recommended
    takeaway = (
        f"At {budget_name(last)} the best size of {shown[key_of(best)].name} is "
        f"{text.quantity_and_range(best.located.n_unique)} unique parameters."
    )
    looped = [option for option in last.options if option is not last.plain]
    if last.plain is not None and looped:
        loop = min(looped, key=lambda option: float(option.optimum.loss.mean()))
        gap = _above(last, loop, f"{text.PERCENT_90} ")
        takeaway += (
            f" The best loop, {shown[key_of(loop)].name}, ends at {gap} nats/token against the best model without one."
        )
    header = ("width*", "N* (parameters)", "D* (tokens)", "loss* (nats)", *compared)
    note = "Above r = 1: against the best model without a loop at the same budget." if compared else ""
    return Body(
        takeaway=takeaway,
        figure=model_figures.spans(spans, unit="loss* above r = 1 (nats/token)", what="option") if spans else None,
        table=_table(made, header, rows, note),
    )


def regret(made: Sequence[Allocation], shown: Looks) -> Body:
    """What each option costs against having known the truth, and if another option is the truth."""
    last, drawn = made[-1], spread(made, figures.MOST_PANELS)
    likely = {key_of(option) for _, option in options_of(made) if option.probability_best >= OFTEN}
    truths = [key for key in shown if key in likely]
    rows, spans, worst = [], [], 0.0
    for each in made:
        lost, winner = _regrets(each)
        for option, loss in zip(each.options, lost, strict=True):
            low, middle, high = (float(value) for value in np.quantile(loss, [0.05, 0.5, 0.95]))
            given = [loss[[key == truth for key in winner]] for truth in truths]
            told = (float(loss.mean()), low, middle, high, *(part.mean() if len(part) else np.nan for part in given))
            rows.append((*_first(made, each, shown[key_of(option)].name), *map(_small, told)))
            if each in drawn:
                spans.append(_span(shown[key_of(option)].name, each, {"mean": told[0], "q05": low, "q95": high}))
            if option is last.recommended:
                worst = high
    takeaway = (
        f"At {budget_name(last)} the recommendation is expected to lose {_small(last.expected_regret)} nats/token to "
        f"the best configuration of each draw, and less than {_small(worst)} in 95 % of them."
    )
    if (other := last.runner_up) is not None:
        instead = _regrets(last)[0][last.options.index(other)].mean()
        takeaway += f" Choosing {shown[key_of(other)].name} instead is expected to lose {_small(float(instead))}."
    header = ("mean (nats/token)", "5 %", "50 %", "95 %", *(f"mean, if {shown[key].name} is best" for key in truths))
    unit = "loss above the best (nats/token)"
    figure = model_figures.spans(spans, unit=unit, what="option")
    figure.update_xaxes(exponentformat="power")  # not micronats
    note = f"Options that are best in less than {OFTEN:.0%} of the draws have no column." * (len(truths) < len(shown))
    return Body(takeaway=takeaway, figure=figure, table=_table(made, header, rows, note))


def pareto(front: Sequence[Trainable], shown: Looks) -> Body:
    """What smaller models and cheaper inference cost."""
    best = min(front, key=lambda run: float(run.loss.mean()))
    kept = [run for run in front if run.loss.mean() <= best.loss.mean() + WORTH_A_LOOK]
    near = [run for run in kept if run.loss.mean() <= best.loss.mean() + NEAR]
    small = min(near, key=lambda run: run.n_unique)
    cheap = min(near, key=lambda run: run.inference_flops)
    takeaway = (
        f"The least expected loss, {best.loss.mean():.4f} nats/token, takes {text.quantity(best.n_unique)} unique "
        f"parameters ({shown[key_of(best)].name}). "
    )
    if len(near) == 1:
        takeaway += f"Every smaller or cheaper model is expected to end more than {NEAR:g} above it."
    else:
        takeaway += (
            f"For at most {NEAR:g} more, the smallest model is {shown[key_of(small)].name} with "
            f"{text.quantity(small.n_unique)}, {small.n_unique / best.n_unique:.2f} times as many, and the cheapest to "
            f"run is {shown[key_of(cheap)].name} at {cheap.inference_flops / best.inference_flops:.2f} times the "
            "inference FLOPs."
        )
    rows = [
        (
            shown[key_of(run)].name,
            _width(run),
            text.quantity(run.n_unique, 4),
            text.flops(run.inference_flops),
            text.quantity(run.tokens, 4),
            text.mean_and_range(run.loss, ""),
            UNKNOWN if run is best else text.mean_and_range(run.loss - best.loss, "", sign="+"),
        )
        for run in reversed(kept)
    ]
    header = (
        "option", "width", "unique parameters", "inference FLOPs/token", "tokens", "loss (nats/token)",
        "above the least",
    )  # fmt: skip
    hidden = len(front) - len(kept)
    note = (
        f"{hidden} smaller models, of more than {WORTH_A_LOOK:g} nats/token above it, are not shown." if hidden else ""
    )
    return Body(
        takeaway=takeaway, figure=figures.front(kept, shown), table=Table(header=header, rows=tuple(rows), note=note)
    )


def budgets(fit: Fit, made: Sequence[Allocation], shown: Looks) -> Body:
    """Exponents of the optimum, and the gap to r = 1 from the smallest to the largest budget."""
    ends = [(each, {key_of(option): option for option in each.options}) for each in (made[0], made[-1])]
    rows, found = [], growth(made)
    for row in found:
        key = (row["recipe"], row["recurrences"])
        exponents = (_interval(row[name]) for name in ("n_unique", "tokens"))
        rows.append((shown[key].name, *exponents, *(_above(each, own[key]) for each, own in ends)))
    chosen = key_of(made[-1].recommended)
    best = next((row for row in found if (row["recipe"], row["recurrences"]) == chosen), None)
    takeaway = "" if best is None else (
        f"The best size of {shown[chosen].name} grows as C to the {_interval(best['n_unique'])}, its tokens as C to "
        f"the {_interval(best['tokens'])}. "
    )  # fmt: skip
    least, most = fit.range_of("flops")
    outside = sum(not least / NEARLY <= each.flops <= NEARLY * most for each in made)
    takeaway += (
        f"{outside or 'None'} of the {len(made)} budgets {'lies' if outside < 2 else 'lie'} outside the trained ones."
    )
    low, high = (budget_name(each) for each in (made[0], made[-1]))
    header = (
        "option", "N* grows as C to the", "D* grows as C to the", f"loss* above r = 1 at {low}", f"at {high}",
    )  # fmt: skip
    return Body(
        takeaway=takeaway,
        figure=figures.growth(fit, made, shown),
        table=Table(header=header, rows=tuple(rows), note="Means with 90 % intervals."),
    )


def _regrets(made: Allocation) -> tuple[list[Array], list[Key]]:
    """Loss of each option's run above the best candidate, and the option of that candidate, draw by draw."""
    losses = np.stack([run.loss for run in made.candidates])
    winner = [key_of(made.candidates[place]) for place in losses.argmin(axis=0)]
    return [option.trainable.loss - losses.min(axis=0) for option in made.options], winner


def _first(made: Sequence[Allocation], each: Allocation, name: str) -> tuple[str, ...]:
    """What a row is of."""
    return (budget_name(each), name) if len(made) > 1 else (name,)


def _table(made: Sequence[Allocation], header: Iterable[str], rows: Iterable[tuple[str, ...]], note: str) -> Table:
    """A table whose rows `_first` begins."""
    words = ("budget", "option") if len(made) > 1 else ("option",)
    return Table(header=(*words, *header), rows=tuple(rows), text_columns=len(words), note=note)


def _span(label: str, each: Allocation, row: dict[str, float]) -> model_figures.Span:
    return model_figures.Span(label=label, group=budget_name(each), mean=row["mean"], low=row["q05"], high=row["q95"])


def _above(made: Allocation, option: Option, interval_name: str = "") -> str:
    """Loss of an option's optimum above that of the best model without a loop."""
    gap = above_plain(made, option)
    return UNKNOWN if gap is None else text.mean_and_range(gap, interval_name, sign="+")


def _interval(row: dict[str, float], interval_name: str = "") -> str:
    return f"{row['mean']:.3f} ({interval_name}{row['q05']:.3f} to {row['q95']:.3f})"


def _width(run: Trainable) -> str:
    return UNKNOWN if run.d_model is None else str(run.d_model)


def _widths(scale: Array) -> str:
    low, middle, high = WIDTH_UNIT * np.quantile(scale, [0.05, 0.5, 0.95])
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def _small(value: float) -> str:
    """A loss in nats that may be minute."""
    if np.isnan(value):
        return UNKNOWN
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}" if value else "0"
