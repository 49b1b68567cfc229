"""The page of `bayeslaw regimes`: what recurrences cost on each axis of evaluation, and what the metrics are worth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pandas as pd

from bayeslaw.downstream.discrimination import metric_ranking
from bayeslaw.downstream.regimes import Regimes
from bayeslaw.downstream.saturation import TOLERANCE, saturation
from reports import cards, text
from reports.build import page, write_page
from reports.cards import Body, Card, Table
from reports.downstream_metrics import axis_name, evaluated, ranking, saturating
from reports.downstream_regimes import matched_compute, matched_loss, more, task_curves
from reports.verdict import Verdict

_MATCHED_LOSS = (
    "Loss on the tasks of an axis, less what r = 1 would have at the same validation loss; mean and 90 % interval. "
    "Shaded: effects below delta, which count as none. An axis tracks validation loss where the effect is inside, "
    "closes the gap where it is left of it, and falls behind right of it, each with a probability of .95 or more; "
    "there is no signal where these data could not have told an effect of delta from 0, and the rest is undecided."
)
_COMPUTE = (
    "Loss on the tasks of an axis, less that of r = 1 for the same training FLOPs: at each budget the checkpoint of "
    "the lowest validation loss stands for its architecture. Mean over the budgets and 90 % interval."
)
_CURVES = (
    "Mean task loss of each checkpoint over its validation loss. Grey: what the model says of r = 1, with its 90 % "
    "band. Points below it are better on the axis than their validation loss tells."
)
_MORE = (
    "The smallest effect at matched validation loss that can be told from 0 falls with further seeds of the same "
    "designs, down to a floor that only more examples, tasks or budgets lower."
)
_RANKING = (
    "Spread of the architectures at a budget over the noise, median and 90 % interval: the further right, the better "
    "a metric tells architectures apart. Same order: the probability that two experiments put two architectures in "
    "the same order. The higher SNR is called better; posteriors of two metrics are taken for independent."
)
_SATURATION = (
    "Loss over the recurrences T at test time for the checkpoint of most training FLOPs of each architecture. Line and "
    f"band: L_inf + Z exp(-z T / r), median and 90 % interval; reach is the T from which on it is within {TOLERANCE:g} "
    "nats of L_inf. Points joined by a thin line do not follow that law, and the table says why."
)
_EVALUATED = "What was scored. The digest names the very examples: equal digests, equal examples."
_RECORD = "All that decides the numbers above; the same source, options and seed give them again."


def build_page(found: Regimes, *, made: Mapping[str, str] | None = None, title: str | None = None) -> str:
    """The page as one HTML text.

    Parameters
    ----------
    found : Regimes
    made : mapping of str to str, optional
        What the numbers rest on, such as the command; shown last.
    title : str, optional
    """
    judged = Verdict(
        doubts=tuple(f"The sampler did not converge: {message}." for message in found.messages),
        findings=found.sentences, advice=tuple(map(text.sentence, found.notes)),
    )  # fmt: skip
    return page(title or f"Where recurrences pay: {found.table.source}", judged, make_cards(found, made))


def write_downstream(
    found: Regimes, path: str | Path, *, made: Mapping[str, str] | None = None, title: str | None = None
) -> None:
    """Write the page, whole or not at all; parameters as for `build_page`.

    Raises
    ------
    BayeslawError
        The file cannot be written.
    """
    write_page(build_page(found, made=made, title=title), path)


def make_cards(found: Regimes, made: Mapping[str, str] | None = None) -> tuple[Card, ...]:
    """The cards in their order; one that cannot be made says so."""
    rows = found.table.rows
    all_rows = pd.concat([rows, found.table.others], ignore_index=True)
    out = [
        cards.make("regimes", "Effect of r at matched validation loss", _MATCHED_LOSS, partial(matched_loss, found)),
        cards.make("compute", "Effect of r for the same training FLOPs", _COMPUTE, partial(matched_compute, found)),
        cards.make("curves", "Task loss over validation loss", _CURVES, partial(task_curves, found)),
        cards.make("more", "What it would take to tell more", _MORE, partial(more, found)),
        cards.make(
            "ranking", "Which metric tells architectures apart", _RANKING, lambda: ranking(metric_ranking(rows))
        ),
        cards.make("evaluated", "What was evaluated", _EVALUATED, partial(evaluated, all_rows)),
    ]  # fmt: skip
    if len(found.table.others):
        depths = cards.make(
            "saturation", "More recurrences at test time", _SATURATION, lambda: saturating(saturation(all_rows), rows)
        )
        out.insert(-1, depths)
    if made:
        out.append(cards.make("record", "How this was made", _RECORD, partial(_made, found, made)))
    return tuple(out)


def _made(found: Regimes, made: Mapping[str, str]) -> Body:
    told = [
        (axis_name(axis.axis), f"{each.divergences} divergences, R-hat {each.r_hat:.3f}, ESS {each.ess:.0f}")
        for axis in found.axes
        for each in [axis.diagnostics]
    ]
    rows = (*made.items(), ("delta", f"{found.delta:g} nats/token"), *told)
    return Body(
        takeaway=f"{len(found.table.rows)} scores of {found.table.source}.",
        table=Table(header=("what", "value"), rows=rows, text_columns=2),
    )
