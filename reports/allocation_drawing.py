"""What an allocation's figures are drawn with besides `reports.drawing`: curves, marks, logarithmic axes, shades."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bayeslaw.posterior import Fit
from bayeslaw.recommendation import Option
from reports import text
from reports.allocation_looks import NEARLY, Look
from reports.drawing import NEUTRAL, Band, axes_of, plain, ribbon

FEW = 3
"""A curve of so few points is drawn as points with bars."""

MOST_TICKS = 5
"""Labels that an axis has room for on a phone."""

STAR_NAME = "recommended"
STAR = {"symbol": "star", "size": 17, "color": "#f0e442", "line": {"color": "#000", "width": 1.5}}


def curve(
    figure: go.Figure, look: Look, band: Band, where: dict[str, str], *, unit: str, listed: bool, points: str = ""
) -> None:  # fmt: skip
    """A curve with its band; with its points where ``points`` is their format, and with bars where they are few."""
    name, few = plain(look.name), len(band.x) <= FEW
    group = {"legendgroup": look.name, **where}
    if not few:
        figure.add_trace(ribbon(band, look.color, group))
    bars = {"array": band.high - band.middle, "arrayminus": band.middle - band.low, "width": 4}
    figure.add_trace(
        go.Scatter(
            x=band.x, y=band.middle, mode="lines+markers" if few or points else "lines", name=name, showlegend=listed,
            line={"color": look.color, "dash": look.dash, "width": 2}, marker={"symbol": look.symbol, "size": 6},
            error_y=bars if few else None,
            hovertemplate=f"{name}<br>%{{x:.3s}} {unit}<br>%{{y:{points or '.4f'}}}<extra></extra>", **group,
        )
    )  # fmt: skip


def best_size(figure: go.Figure, look: Look, option: Option, where: dict[str, str]) -> None:
    """N* with its interval, at the loss of the optimum."""
    low, middle, high = (float(value) for value in np.quantile(option.located.n_unique, [0.05, 0.5, 0.95]))
    figure.add_trace(
        go.Scatter(
            x=[middle], y=[option.optimum.loss.mean()], mode="markers", showlegend=False, legendgroup=look.name,
            marker={"color": look.color, "size": 9, "symbol": look.symbol},
            error_x={"array": [high - middle], "arrayminus": [middle - low], "thickness": 3, "width": 7},
            hovertemplate=f"{plain(look.name)}: N* {text.quantity(middle)}, {text.PERCENT_90} {text.quantity(low)} to "
            f"{text.quantity(high)}<br>%{{y:.4f}} nats/token<extra></extra>",
            **where,
        )
    )  # fmt: skip


def star(figure: go.Figure, best: Option, where: dict[str, str], *, listed: bool) -> None:
    """The recommended run."""
    run = best.trainable
    told = (
        f"{STAR_NAME}: {plain(best.recipe)}, r = {best.recurrences}<br>{text.quantity(run.n_unique)} parameters, "
        f"{text.quantity(run.tokens)} tokens<br>{run.loss.mean():.4f} nats/token"
    )
    figure.add_trace(
        go.Scatter(
            x=[run.n_unique], y=[run.loss.mean()], mode="markers", name=STAR_NAME, showlegend=listed, marker=STAR,
            hoverinfo="text", hovertext=[told], cliponaxis=False, **where,
        )
    )  # fmt: skip


def log_axis(low: float, high: float, name: Callable[[float], str]) -> dict[str, Any]:
    """A logarithmic axis with round labels that each say all of the number, however short the axis."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in ([tenth / 10 for tenth in range(10, 100)], range(1, 10), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in decades for digit in digits]
        ticks = [tick for tick in ticks if 0.97 * low <= tick <= 1.03 * high]
        apart = np.diff(np.log10(ticks)).min(initial=np.inf)
        if len(ticks) <= MOST_TICKS and apart >= np.log10(high / low) / (MOST_TICKS + 1):
            break
    else:
        ticks = ticks[:: -(-len(ticks) // MOST_TICKS)]
    # Between two round numbers there may be none.
    ticks = ticks or [low, high]
    return {"type": "log", "tickvals": ticks, "ticktext": [name(tick) for tick in ticks]}


def count(value: float) -> str:
    """A count without the zeros that say how well it is known."""
    number, *unit = text.quantity(value).split(text.GAP)
    return text.GAP.join([f"{float(number):g}", *unit])


def suffix(place: int) -> str:
    """What tells a panel's axes from those of the first."""
    return str(place + 1) if place else ""


def shade_untrained(figure: go.Figure, place: int, low: float, high: float, fit: Fit) -> None:
    """Shade the budgets of an axis from ``low`` to ``high`` that no run was trained with."""
    where = axes_of(place)
    least, most = fit.range_of("flops")
    for start, end in ((low, min(least, high)), (max(most, low), high)):
        if end > NEARLY * start:
            figure.add_shape(
                type="rect", x0=start, x1=end, y0=0, y1=1, fillcolor=NEUTRAL, opacity=0.15, line_width=0,
                layer="below", xref=where["xaxis"], yref=f"{where['yaxis']} domain",
            )  # fmt: skip
