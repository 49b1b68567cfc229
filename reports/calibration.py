"""The page of a calibration: coverage of intervals, and the ranks of truths within their envelopes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from bayeslaw.calibration.coverage import BAND, RANKED, Calibrated, Uniform, cumulative
from bayeslaw.calibration.trials import Result
from reports import cards, text
from reports.build import page, write_page
from reports.cards import Body, Card, Table
from reports.drawing import (
    CATEGORIES,
    NEUTRAL,
    SYMBOLS,
    Band,
    arrange,
    axes_of,
    blank,
    faint,
    panel_title,
    plain,
    ribbon,
)  # fmt: skip
from reports.verdict import Verdict

USUAL = 0.95
"""Probability of the inner envelope, the customary one; the outer one decides."""

_COVERAGE = (
    "How often the posterior's central 50, 80 and 90 % intervals hold the truth that the data were simulated from. "
    f"Shaded: where a calibrated posterior's share lies with a probability of {BAND:g}. Further left, intervals are "
    "too narrow; further right, too wide."
)
_RANKS = (
    f"Each truth is ranked among {RANKED} about independent posterior draws; the ranks of a calibrated posterior are "
    "uniform. The line is how many more truths lie among the lowest ranks than that; uniform ranks stay inside the "
    f"bands everywhere at once with a probability of {USUAL:g} (inner) and of {BAND:g} (outer, which decides). A line "
    "above on the left and below on the right: the posterior is too narrow; the reverse: too wide. All above: the "
    "posterior is too high; all below: too low."
)
_SAMPLER = "What decided the simulations, and how the sampler fared. The same settings give the same simulations."


def calibration_page(result: Result, *, title: str | None = None) -> str:
    """The page as one HTML text.

    Parameters
    ----------
    result : Result
    title : str, optional
    """
    verdict, *others = result.sentences
    judged = Verdict(
        doubts=() if result.passed else (verdict,), findings=result.sentences if result.passed else tuple(others),
        advice=(),
    )  # fmt: skip
    return page(title or f"Calibration on {result.settings['runs']} runs", judged, make_cards(result))


def write_calibration(result: Result, path: str | Path, *, title: str | None = None) -> None:
    """Write the page, whole or not at all; parameters as for `calibration_page`.

    Raises
    ------
    BayeslawError
        The file cannot be written.
    """
    write_page(calibration_page(result, title=title), path)


def make_cards(result: Result) -> tuple[Card, ...]:
    """The cards in their order."""
    return (
        cards.make("coverage", "How often intervals hold the truth", _COVERAGE, partial(coverage, result)),
        cards.make("ranks", "Ranks of the truths", _RANKS, partial(ranks, result)),
        cards.make("sampler", "How this was made", _SAMPLER, partial(sampler, result)),
    )


def coverage(result: Result) -> Body:
    """Coverage of every quantity."""
    found = tuple(result.quantities.values())
    rows = tuple(
        (
            each.name, "ok" if each.passed else f"off: {', '.join(each.faults)}",
            *(f"{part.share:.3f}" for part in each.coverage), f"{each.p:.3f}",
        )
        for each in found
    )  # fmt: skip
    bands = (f"{part.low:.3f} to {part.high:.3f}" for part in found[0].coverage)
    off = [each.name for each in found if any(not part.passed for part in each.coverage)]
    if off:
        takeaway = f"Intervals of {text.listing(off)} do not hold the truth as often as they say."
        if result.cautious:
            takeaway += f" Wider than needed (cautious): {text.listing(result.cautious)}."
    elif result.enough:
        takeaway = (
            f"The intervals of all {len(found)} quantities hold the truth as often as they say, as far as "
            f"{result.simulations} simulations tell."
        )
    else:
        takeaway = f"No interval was shown to be off: {result.limit}."
    return Body(
        takeaway=takeaway,
        figure=coverage_figure(found),
        table=Table(
            header=(
                "quantity",
                "finding",
                *(f"in {100 * part.level:.0f} %" for part in found[0].coverage),
                "p of ranks",
            ),
            rows=(*rows, ("allowed", "", *bands, f"{1 - BAND:.3f} or more")),
            text_columns=2,
            note=" ".join(result.meanings),
        ),
    )


def ranks(result: Result) -> Body:
    """Rank distributions of every quantity."""
    found = tuple(result.quantities.values())
    off = [each.name for each in found if not each.ranks_passed]
    return Body(
        takeaway=f"Ranks of {text.listing(off)} leave their envelope."
        if off
        else f"The ranks of all {len(found)} quantities stay inside their envelopes.",
        figure=ranks_figure(found),
    )


def sampler(result: Result) -> Body:
    """Settings, and what became of the simulations."""
    spec = result.settings["spec"]
    shown = ("law", "map", "deviation", "noise", "outliers", "error_scale", "injection_in", "recipe")
    sampled = ("draws", "tune", "chains", "target_accept", "seed")
    rows = [
        ("runs of the design", str(result.settings["runs"])),
        ("hash of the design", str(result.settings["design"])),
        ("simulations", str(result.simulations)),
        *((name.replace("_", " "), str(spec[name])) for name in (*shown, *sampled) if spec[name] is not None),
        ("drift", "no part of the model of the runs"),
        ("priors", str(result.settings["priors"]["name"])),
        ("version", str(result.settings["version"])),
        ("sampled again with smaller steps", str(result.again)),
        ("divergences left", str(result.divergences)),
        (f"short of {RANKED} effective draws", str(result.short)),
        ("seconds in all", f"{result.seconds:.0f}"),
        *((f"simulation {number} failed", reason) for number, reason in result.failed),
    ]
    return Body(
        takeaway=f"{result.simulations} simulations, {len(result.failed)} of which could not be sampled.",
        table=Table(header=("setting", "value"), rows=tuple(rows), text_columns=2),
    )


def coverage_figure(found: Sequence[Calibrated]) -> go.Figure:
    """Share of truths held by each interval, a row for each quantity, with the bands."""
    figure = blank(panels=1)
    names = [plain(each.name) for each in found]
    for place in range(len(found[0].coverage)):
        parts = [each.coverage[place] for each in found]
        level, color = parts[0].level, CATEGORIES[place]
        figure.add_shape(
            type="rect", x0=parts[0].low, x1=parts[0].high, y0=0, y1=1, yref="y domain", fillcolor=faint(color),
            line_width=0, layer="below",
        )  # fmt: skip
        figure.add_vline(x=level, line={"color": NEUTRAL, "width": 1, "dash": "dash"})
        figure.add_trace(
            go.Scatter(
                x=[part.share for part in parts], y=names, mode="markers", name=f"{100 * level:.0f} % interval",
                marker={"color": color, "size": 8, "symbol": SYMBOLS[place]},
                hovertemplate="%{y}: %{x:.3f}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(
        xaxis={"title_text": "share of truths held", "range": [min(0.4, found[0].coverage[0].low - 0.02), 1.0]},
        yaxis={"autorange": "reversed", "type": "category"},
    )
    return arrange(figure, columns=1, panels=1)


def ranks_figure(found: Sequence[Calibrated]) -> go.Figure:
    """Empirical distribution of ranks less the uniform one, a panel for each quantity."""
    figure = blank(panels=len(found))
    for place, each in enumerate(found):
        where = axes_of(place)
        uniform = Uniform.of(len(each.ranks))
        x = uniform.shares
        for probability in (BAND, USUAL):
            low, high = uniform.envelope(probability)
            figure.add_trace(ribbon(Band(x=x, middle=np.zeros_like(x), low=low - x, high=high - x), NEUTRAL, where))
        figure.add_trace(
            go.Scatter(
                x=x, y=cumulative(each.ranks) - x, mode="lines", name="truths", showlegend=place == 0,
                line={"color": CATEGORIES[0] if each.ranks_passed else CATEGORIES[1], "width": 2},
                hovertemplate="rank up to %{x:.2f}<br>%{y:+.3f}<extra></extra>", **where,
            )
        )  # fmt: skip
        panel_title(figure, place, plain(each.name))
    figure.update_xaxes(title_text="rank (share of the draws)", range=[0, 1])
    figure.update_yaxes(title_text="share of truths, less uniform")
    for place in range(1, len(found)):  # one scale for all, so that panels can be held against each other
        figure.update_layout({f"yaxis{place + 1}.matches": "y"})
    return arrange(figure, columns=min(3, len(found)), panels=len(found))
