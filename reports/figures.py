"""The report's figures: each a function from plain arrays to a plotly figure, nothing computed from the law here.

Conventions of all of them, and what they are drawn with: `reports.drawing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from reports.drawing import (
    CATEGORIES,
    DASHES,
    NEUTRAL,
    SYMBOLS,
    Band,
    arrange,
    axes_of,
    blank,
    density,
    faint,
    panel_title,
    plain,
    ribbon,
    sequence,
)  # fmt: skip

Array = NDArray[np.float64]

_ROUND = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
"""Unique blocks that an axis names."""

MOST_TICKS = 8
"""More trained r than this, and the axis ticks itself."""


@dataclass(frozen=True, kw_only=True)
class IsoPanel:
    """Iso-FLOP curves of one r.

    Parameters
    ----------
    recurrences : int
    curves : mapping of int to Band
        Loss over N_unique for each budget, by its place among the levels.
    n_unique, loss : ndarray, shape (run,)
        The measured runs.
    level : ndarray of int, shape (run,)
        The budget of each run.
    labels : sequence of str
        What the pointer shows at each run.
    """

    recurrences: int
    curves: Mapping[int, Band]
    n_unique: Array
    loss: Array
    level: NDArray[np.int64]
    labels: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Path:
    """The optimum of one r along the budgets: N* in parameters and D* in tokens."""

    recurrences: int
    n_unique: Band
    tokens: Band


@dataclass(frozen=True, kw_only=True)
class WorthCurve:
    """What recurrences are worth by one recipe.

    Parameters
    ----------
    name : str
        The recipe; empty where there is no other.
    curve : Band or None
        Unique blocks over r; None where only the trained r have a worth.
    trained : Band
        The same at the trained r.
    """

    name: str
    curve: Band | None
    trained: Band


def phi(posterior: Mapping[str, Array], prior: Array, curves: Sequence[WorthCurve]) -> go.Figure:
    """Density of phi for each recipe, with the prior, 0 and 1, beside what r recurrences are worth.

    Parameters
    ----------
    posterior : mapping of str to ndarray, shape (sample,)
        Draws by recipe.
    prior : ndarray, shape (sample,)
    curves : sequence of WorthCurve
        In the order of the recipes.
    """
    figure = blank(panels=2)
    low = min(-0.25, *(float(np.quantile(draws, 0.001)) for draws in posterior.values()))
    high = max(1.25, *(float(np.quantile(draws, 0.999)) for draws in posterior.values()))
    figure.add_trace(
        go.Scatter(
            **density(prior, low, high),
            name="prior",
            mode="lines",
            line={"color": NEUTRAL, "width": 1.5, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    for place, (recipe, draws) in enumerate(posterior.items()):
        color = CATEGORIES[place % len(CATEGORIES)]
        figure.add_trace(
            go.Scatter(
                **density(draws, low, high),
                name=plain(recipe) if len(posterior) > 1 else "posterior",
                legendgroup=str(place),
                mode="lines",
                line={"color": color, "width": 2, "dash": DASHES[place % len(DASHES)]},
                fill="tozeroy",
                fillcolor=faint(color),
                hovertemplate="phi %{x:.3f}<br>density %{y:.3g}<extra></extra>",
            )
        )
    for value, meaning in ((0, "worth nothing"), (1, "a unique block")):
        figure.add_vline(x=value, line={"color": NEUTRAL, "width": 1.5, "dash": "dash"})
        figure.add_annotation(
            x=value, y=1, yref="y domain", yanchor="bottom", xanchor="center", text=meaning, showarrow=False,
            font={"size": 11},
        )  # fmt: skip
    _worth_panel(figure, 1, curves, listed=False)
    figure.update_layout(
        xaxis={"title_text": "phi (exponent, no unit)", "range": [low, high]},
        yaxis={"title_text": "density (per unit of phi)", "rangemode": "tozero"},
    )
    return arrange(figure, columns=2, panels=2)


def worth(curves: Sequence[WorthCurve], prior: Band) -> go.Figure:
    """What r recurrences are worth for each recipe, with the prior, a unique block each and nothing.

    Parameters
    ----------
    curves : sequence of WorthCurve
    prior : Band
        Unique blocks over r.
    """
    figure = blank(panels=1)
    for values in (prior.low, prior.high):
        figure.add_trace(
            go.Scatter(
                x=prior.x, y=values, name=f"prior, 90{chr(0xA0)}%", mode="lines", legendgroup="prior",
                showlegend=values is prior.low, line={"color": NEUTRAL, "width": 1.5, "dash": "dot"},
                hoverinfo="skip",
            )
        )  # fmt: skip
    _worth_panel(figure, 0, curves, listed=True)
    return arrange(figure, columns=1, panels=1)


def _worth_panel(figure: go.Figure, place: int, curves: Sequence[WorthCurve], *, listed: bool) -> None:
    """Unique blocks over r, both logarithmic, so that a slope is an exponent."""
    where = axes_of(place)
    most = max(float(each.trained.x.max()) for each in curves)
    for ends, meaning in (((1, 1), "worth nothing"), ((1, most), "a unique block each")):
        figure.add_trace(
            go.Scatter(
                x=[1, most], y=list(ends), mode="lines", showlegend=False, hoverinfo="skip",
                line={"color": NEUTRAL, "width": 1.5, "dash": "dash"}, **where,
            )
        )  # fmt: skip
        figure.add_annotation(
            x=float(np.log10(most)), y=float(np.log10(ends[1])), xref=where["xaxis"], yref=where["yaxis"],
            xanchor="right", yanchor="bottom", yshift=2, text=meaning, showarrow=False, font={"size": 11},
        )  # fmt: skip
    for number, each in enumerate(curves):
        color = CATEGORIES[number % len(CATEGORIES)]
        group = {"legendgroup": str(number), **where}
        told = "r = %{x:g}<br>%{y:.3g} unique blocks<extra></extra>"
        line = {"color": color, "width": 2, "dash": DASHES[number % len(DASHES)]}
        if each.curve is not None:
            figure.add_trace(ribbon(each.curve, color, group))
            figure.add_trace(
                go.Scatter(
                    x=each.curve.x, y=each.curve.middle, mode="lines", line=line, showlegend=False,
                    hovertemplate=told, **group,
                )
            )  # fmt: skip
        band = each.trained
        figure.add_trace(
            go.Scatter(
                x=band.x, y=band.middle, mode="markers", name=plain(each.name) if each.name else "trained r",
                showlegend=listed, hovertemplate=told,
                marker={"color": color, "size": 8, "symbol": SYMBOLS[number % len(SYMBOLS)]},
                error_y={"array": band.high - band.middle, "arrayminus": band.middle - band.low, "width": 4}, **group,
            )
        )  # fmt: skip
    ticks = sorted({1.0, *(float(r) for each in curves for r in each.trained.x)})
    shown = {"tickvals": ticks, "ticktext": [f"{r:g}" for r in ticks]} if len(ticks) <= MOST_TICKS else {"dtick": "D2"}
    suffix = "" if place == 0 else str(place + 1)
    figure.update_layout(
        {
            f"xaxis{suffix}": {"type": "log", "title_text": "r (recurrences)", "range": _past(1, most), **shown},
            f"yaxis{suffix}": {
                "type": "log",
                "title_text": "g(r) (unique blocks)",
                "tickvals": _ROUND,
                "ticktext": [f"{g:g}" for g in _ROUND],
            },
        }
    )


def _past(low: float, high: float) -> list[float]:
    """Range of a logarithmic axis a little past both ends."""
    margin = 0.04 * np.log10(high / low)
    return [float(np.log10(low) - margin), float(np.log10(high) + margin)]


def iso_flop(panels: Sequence[IsoPanel], levels: Sequence[float]) -> go.Figure:
    """Loss against unique parameters, a panel for each r, coloured by budget.

    Parameters
    ----------
    panels : sequence of IsoPanel
    levels : sequence of float
        Budgets in FLOPs, ascending.
    """
    figure = blank(panels=len(panels))
    figure.update_layout(legend_title={"text": "budget (FLOPs)", "side": "top", "font": {"size": 13}})
    colors = sequence(len(levels))
    listed: set[int] = set()
    for place, panel in enumerate(panels):
        axes = axes_of(place)
        for level, band in panel.curves.items():
            group = {"legendgroup": str(level), **axes}
            figure.add_trace(ribbon(band, colors[level], group))
            figure.add_trace(
                go.Scatter(
                    x=band.x, y=band.middle, mode="lines", line={"color": colors[level], "width": 2},
                    name=f"{levels[level]:.3g}", showlegend=level not in listed,
                    hovertemplate="%{x:.3s} parameters<br>%{y:.4f} nats/token (law)<extra></extra>", **group,
                )
            )  # fmt: skip
            listed.add(level)
        for level in np.unique(panel.level).tolist():
            here = np.flatnonzero(panel.level == level).tolist()
            figure.add_trace(
                go.Scatter(
                    x=panel.n_unique[here], y=panel.loss[here], mode="markers", showlegend=False,
                    marker={"color": colors[level], "size": 6, "line": {"width": 0}},
                    hovertext=[panel.labels[i] for i in here], hoverinfo="text", legendgroup=str(level), **axes,
                )
            )  # fmt: skip
        panel_title(figure, place, f"r = {panel.recurrences}")
    figure.update_xaxes(title_text="N_unique (parameters)", type="log", exponentformat="B")
    figure.update_yaxes(title_text="loss (nats/token)")
    for place in range(1, len(panels)):  # one scale for all, so that panels can be held against each other
        figure.update_layout({f"xaxis{place + 1}.matches": "x", f"yaxis{place + 1}.matches": "y"})
    return arrange(figure, columns=min(2, len(panels)), panels=len(panels))


def frontier(paths: Sequence[Path], *, trained: float) -> go.Figure:
    """N* and D* against the training budget for each r, what lies beyond the trained budgets shaded.

    Parameters
    ----------
    paths : sequence of Path
    trained : float
        Largest trained budget, FLOPs.
    """
    figure = blank(panels=2)
    for place, path in enumerate(paths):
        color = CATEGORIES[place % len(CATEGORIES)]
        for panel, band in enumerate((path.n_unique, path.tokens)):
            group = {"legendgroup": str(path.recurrences), **axes_of(panel)}
            unit = "parameters" if panel == 0 else "tokens"
            figure.add_trace(ribbon(band, color, group))
            figure.add_trace(
                go.Scatter(
                    x=band.x, y=band.middle, mode="lines+markers", showlegend=panel == 0,
                    name=f"r = {path.recurrences}",
                    line={"color": color, "width": 2, "dash": DASHES[place % len(DASHES)]},
                    marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 6},
                    hovertemplate=f"r = {path.recurrences}<br>%{{x:.3g}} FLOPs<br>%{{y:.3s}} {unit}<extra></extra>",
                    **group,
                )
            )  # fmt: skip
    end = max(float(path.n_unique.x.max()) for path in paths)
    for panel in range(2):
        axes = {"xref": axes_of(panel)["xaxis"], "yref": f"{axes_of(panel)['yaxis']} domain"}
        figure.add_shape(
            type="rect", x0=trained, x1=end, y0=0, y1=1, fillcolor=NEUTRAL, opacity=0.15, line_width=0, layer="below",
            **axes,
        )  # fmt: skip
        figure.add_annotation(
            x=float(np.log10(trained)), y=0.02, xanchor="left", yanchor="bottom", xshift=4, showarrow=False,
            text="never trained:<br>extrapolation", align="left", font={"size": 11}, **axes,
        )  # fmt: skip
    figure.update_xaxes(title_text="training budget C (FLOPs)", type="log", exponentformat="power", dtick=1)
    figure.update_yaxes(type="log", exponentformat="B", dtick="D2")
    figure.update_layout(yaxis_title_text="N* (unique parameters)", yaxis2_title_text="D* (training tokens)")
    return arrange(figure, columns=2, panels=2)
