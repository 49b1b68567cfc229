"""The report's figures: each a function from plain arrays to a plotly figure, nothing computed from the law here.

A figure carries no colour of text, grid or background: the page lays those on for light and for dark. It carries two
arrangements of its panels, ``layout.meta["wide"]`` and ``["narrow"]``, of which the page applies the one that fits.
Names that come from data go through `plain`, since plotly reads its texts as HTML.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import hex_to_rgb, sample_colorscale

Array = NDArray[np.float64]

CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, told apart under every common colour blindness, on white and on near-black."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x")

SEQUENCE = ("#5b53d6", "#a24bc0", "#cf4f93", "#e4685a", "#e8962e")
"""From low to high: violet to orange, ordered for the colour-blind too, none too pale or too dark for its ground."""

NEUTRAL = "#8a8f98"
NAME_LENGTH = 60
_ROW_HEIGHT = 330
_PANEL_GAP = 105
_BOTTOM = 56
_LEGEND_LINE = 24
_LEGEND_WIDTH = {"wide": 1000, "narrow": 290}
"""Pixels that a legend has for its lines, a little less than the figure's."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A curve with its 90 % band, each array of shape (point,)."""

    x: Array
    middle: Array
    low: Array
    high: Array

    @classmethod
    def mean(cls, x: Array, draws: Array) -> Band:
        """Mean and 5 % and 95 % quantiles of draws of shape (sample, point)."""
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        return cls(x=x, middle=draws.mean(axis=0), low=low, high=high)

    @classmethod
    def median(cls, x: Array, draws: Array) -> Band:
        """The same around the median, for counts: a few huge draws would drag their mean out of the band."""
        low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
        return cls(x=x, middle=middle, low=low, high=high)


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


def plain(text: str) -> str:
    """Text that plotly shows as it is, shortened where it is very long."""
    shown = text if len(text) <= NAME_LENGTH else f"{text[: NAME_LENGTH - 1]}…"
    return html.escape(shown)


def phi_density(posterior: Mapping[str, Array], prior: Array) -> go.Figure:
    """Posterior density of phi for each recipe, with the prior, 0 and 1.

    Parameters
    ----------
    posterior : mapping of str to ndarray, shape (sample,)
        Draws by recipe.
    prior : ndarray, shape (sample,)
    """
    figure = _figure(panels=1)
    low = min(-0.25, *(float(np.quantile(draws, 0.001)) for draws in posterior.values()))
    high = max(1.25, *(float(np.quantile(draws, 0.999)) for draws in posterior.values()))
    figure.add_trace(
        go.Scatter(
            **_density(prior, low, high),
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
                **_density(draws, low, high),
                name=plain(recipe) if len(posterior) > 1 else "posterior",
                mode="lines",
                line={"color": color, "width": 2, "dash": DASHES[place % len(DASHES)]},
                fill="tozeroy",
                fillcolor=_faint(color),
                hovertemplate="phi %{x:.3f}<br>density %{y:.3g}<extra></extra>",
            )
        )
    for value, meaning in ((0, "worth nothing"), (1, "a unique block")):
        figure.add_vline(x=value, line={"color": NEUTRAL, "width": 1.5, "dash": "dash"})
        figure.add_annotation(
            x=value, y=1, yref="y domain", yanchor="bottom", xanchor="center", text=meaning, showarrow=False,
            font={"size": 11},
        )  # fmt: skip
    figure.update_xaxes(title_text="phi (exponent, no unit)", range=[low, high])
    figure.update_yaxes(title_text="density (per unit of phi)", rangemode="tozero")
    return _arrange(figure, columns=1, panels=1)


def iso_flop(panels: Sequence[IsoPanel], levels: Sequence[float]) -> go.Figure:
    """Loss against unique parameters, a panel for each r, coloured by budget.

    Parameters
    ----------
    panels : sequence of IsoPanel
    levels : sequence of float
        Budgets in FLOPs, ascending.
    """
    figure = _figure(panels=len(panels))
    figure.update_layout(legend_title={"text": "budget (FLOPs)", "side": "top", "font": {"size": 13}})
    colors = _sequence(len(levels))
    listed: set[int] = set()
    for place, panel in enumerate(panels):
        axes = _axes(place)
        for level, band in panel.curves.items():
            group = {"legendgroup": str(level), **axes}
            figure.add_trace(_ribbon(band, colors[level], group))
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
        _panel_title(figure, place, f"r = {panel.recurrences}")
    figure.update_xaxes(title_text="N_unique (parameters)", type="log", exponentformat="B")
    figure.update_yaxes(title_text="loss (nats/token)")
    for place in range(1, len(panels)):  # one scale for all, so that panels can be held against each other
        figure.update_layout({f"xaxis{place + 1}.matches": "x", f"yaxis{place + 1}.matches": "y"})
    return _arrange(figure, columns=min(2, len(panels)), panels=len(panels))


def frontier(paths: Sequence[Path], *, trained: float) -> go.Figure:
    """N* and D* against the training budget for each r, what lies beyond the trained budgets shaded.

    Parameters
    ----------
    paths : sequence of Path
    trained : float
        Largest trained budget, FLOPs.
    """
    figure = _figure(panels=2)
    for place, path in enumerate(paths):
        color = CATEGORIES[place % len(CATEGORIES)]
        for panel, band in enumerate((path.n_unique, path.tokens)):
            group = {"legendgroup": str(path.recurrences), **_axes(panel)}
            unit = "parameters" if panel == 0 else "tokens"
            figure.add_trace(_ribbon(band, color, group))
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
        axes = {"xref": _axes(panel)["xaxis"], "yref": f"{_axes(panel)['yaxis']} domain"}
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
    return _arrange(figure, columns=2, panels=2)


def _figure(*, panels: int) -> go.Figure:
    """An empty figure with its axes and no colours of its own."""
    figure = go.Figure()
    figure.update_layout(
        template="none",
        autosize=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"},
        margin={"l": 50, "r": 14, "b": _BOTTOM},
        hovermode="closest",
    )
    axis = {
        "zeroline": False, "ticks": "outside", "showline": True, "automargin": True, "tickfont": {"size": 12},
        "title": {"standoff": 8, "font": {"size": 13}},
    }  # fmt: skip
    for place in range(panels):
        suffix = "" if place == 0 else str(place + 1)
        figure.update_layout(
            {f"xaxis{suffix}": {"anchor": f"y{suffix}", **axis}, f"yaxis{suffix}": {"anchor": f"x{suffix}", **axis}}
        )
    return figure


def _arrange(figure: go.Figure, *, columns: int, panels: int) -> go.Figure:
    """Add the two arrangements to a figure that is complete."""
    names = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    entry = 45 + 7 * max(map(len, names))
    title = figure.layout.legend.title.text
    meta = {}
    for name, across in (("wide", columns), ("narrow", 1)):
        lines = -(-len(names) // max(1, _LEGEND_WIDTH[name] // entry)) + (title is not None)
        meta[name] = _arrangement(-(-panels // across), across, panels, top=36 + _LEGEND_LINE * lines)
    return figure.update_layout(meta=meta)


def _arrangement(rows: int, columns: int, panels: int, *, top: int) -> dict[str, Any]:
    """Where each panel lies, as plotly's relayout takes it; ``top`` pixels are left for the legend."""
    gap_x, gap_y = 0.12, _PANEL_GAP / (rows * _ROW_HEIGHT)
    width, tall = (1 - gap_x * (columns - 1)) / columns, (1 - gap_y * (rows - 1)) / rows
    patch: dict[str, Any] = {"height": rows * _ROW_HEIGHT + top + _BOTTOM, "margin.t": top}
    for place in range(panels):
        row, column = divmod(place, columns)
        left, upper = column * (width + gap_x), 1 - row * (tall + gap_y)
        suffix = "" if place == 0 else str(place + 1)
        patch[f"xaxis{suffix}.domain"] = [left, min(1.0, left + width)]
        patch[f"yaxis{suffix}.domain"] = [max(0.0, upper - tall), upper]
    return patch


def _axes(place: int) -> dict[str, str]:
    suffix = "" if place == 0 else str(place + 1)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def _panel_title(figure: go.Figure, place: int, text: str) -> None:
    axes = _axes(place)
    figure.add_annotation(
        text=f"<b>{text}</b>", x=0, y=1, xref=f"{axes['xaxis']} domain", yref=f"{axes['yaxis']} domain",
        xanchor="left", yanchor="bottom", showarrow=False,
    )  # fmt: skip


def _ribbon(band: Band, color: str, where: Mapping[str, str]) -> go.Scatter:
    return go.Scatter(
        x=np.concatenate([band.x, band.x[::-1]]), y=np.concatenate([band.high, band.low[::-1]]), mode="lines",
        line={"width": 0}, fill="toself", fillcolor=_faint(color), hoverinfo="skip", showlegend=False, **where,
    )  # fmt: skip


def _density(draws: Array, low: float, high: float) -> dict[str, Array]:
    """Kernel density of draws on a grid fine enough for their own width."""
    from scipy.stats import gaussian_kde

    reach = 5 * draws.std()
    x = np.linspace(max(low, draws.mean() - reach), min(high, draws.mean() + reach), 200)
    return {"x": x, "y": gaussian_kde(draws)(x)}


def _faint(color: str) -> str:
    red, green, blue = hex_to_rgb(color)
    return f"rgba({red},{green},{blue},0.2)"


def _sequence(count: int) -> list[str]:
    """So many ordered colours."""
    if count == 1:
        return [SEQUENCE[0]]
    scale = [[place / (len(SEQUENCE) - 1), color] for place, color in enumerate(SEQUENCE)]
    sampled = sample_colorscale(scale, count, colortype="tuple")
    return ["#" + "".join(f"{round(255 * part):02x}" for part in color) for color in sampled]
