"""What the report's figures are drawn with: colours, bands, an empty figure, its arrangements.

A figure carries no colour of text, grid or background: the page lays those on for light and for dark. It carries two
arrangements of its panels, ``layout.meta["wide"]`` and ``["narrow"]``, of which the page applies the one that fits.
Names that come from data go through `plain`, since plotly reads its texts as HTML.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
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


def plain(text: str) -> str:
    """Text that plotly shows as it is, shortened where it is very long."""
    shown = text if len(text) <= NAME_LENGTH else f"{text[: NAME_LENGTH - 1]}…"
    return html.escape(shown)


def blank(*, panels: int) -> go.Figure:
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


def arrange(figure: go.Figure, *, columns: int, panels: int) -> go.Figure:
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


def axes_of(place: int) -> dict[str, str]:
    """Where a trace of a panel goes."""
    suffix = "" if place == 0 else str(place + 1)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def panel_title(figure: go.Figure, place: int, text: str) -> None:
    """Write a title over a panel."""
    axes = axes_of(place)
    figure.add_annotation(
        text=f"<b>{text}</b>", x=0, y=1, xref=f"{axes['xaxis']} domain", yref=f"{axes['yaxis']} domain",
        xanchor="left", yanchor="bottom", showarrow=False,
    )  # fmt: skip


def ribbon(band: Band, color: str, where: Mapping[str, str]) -> go.Scatter:
    """A band as a faint area."""
    return go.Scatter(
        x=np.concatenate([band.x, band.x[::-1]]), y=np.concatenate([band.high, band.low[::-1]]), mode="lines",
        line={"width": 0}, fill="toself", fillcolor=faint(color), hoverinfo="skip", showlegend=False, **where,
    )  # fmt: skip


def density(draws: Array, low: float, high: float) -> dict[str, Array]:
    """Kernel density of draws on a grid fine enough for their own width."""
    from scipy.stats import gaussian_kde

    reach = 5 * draws.std()
    x = np.linspace(max(low, draws.mean() - reach), min(high, draws.mean() + reach), 200)
    return {"x": x, "y": gaussian_kde(draws)(x)}


def faint(color: str) -> str:
    """A colour that others show through."""
    red, green, blue = hex_to_rgb(color)
    return f"rgba({red},{green},{blue},0.2)"


def sequence(count: int) -> list[str]:
    """So many ordered colours."""
    if count == 1:
        return [SEQUENCE[0]]
    scale = [[place / (len(SEQUENCE) - 1), color] for place, color in enumerate(SEQUENCE)]
    sampled = sample_colorscale(scale, count, colortype="tuple")
    return ["#" + "".join(f"{round(255 * part):02x}" for part in color) for color in sampled]
