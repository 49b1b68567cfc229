"""Figures of a downstream evaluation: each a function from plain arrays to a plotly figure."""

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
    panel_title,
    plain,
    ribbon,
)  # fmt: skip
from reports.figures import MOST_TICKS
from reports.model_figures import Span, spans

Array = NDArray[np.float64]

_LABEL_HEIGHT = 24
_ROOMY = 12
"""Labels that a panel of the usual height holds."""


@dataclass(frozen=True, kw_only=True)
class Points:
    """Scores of one kind of checkpoints.

    Parameters
    ----------
    name : str
        What the legend calls them.
    x, y : ndarray, shape (point,)
    labels : sequence of str
        What the pointer shows at each.
    band : Band or None
        A law through them; None where there is none, and the points are joined instead.
    """

    name: str
    x: Array
    y: Array
    labels: Sequence[str]
    band: Band | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One axis of evaluation.

    Parameters
    ----------
    title : str
    points : sequence of Points
    band : Band or None
        The curve that all of them are held against.
    """

    title: str
    points: Sequence[Points]
    band: Band | None = None


def effects(found: Sequence[Span], *, delta: float | None, unit: str) -> go.Figure:
    """Effects with their 90 % intervals by axis, side by side by architecture; shaded what counts as none.

    Parameters
    ----------
    found : sequence of Span
    delta : float, optional
        Half the width of the shaded band.
    unit : str
    """
    figure = spans(found, unit=unit, what="axis")
    if delta is not None:
        figure.add_shape(
            type="rect", x0=-delta, x1=delta, y0=0, y1=1, xref="x", yref="y domain", fillcolor=NEUTRAL, opacity=0.2,
            line_width=0, layer="below",
        )  # fmt: skip
    return _taller(figure, len({(each.label, each.group) for each in found}))


def ratios(found: Sequence[Span]) -> go.Figure:
    """Signal over noise of every metric, losses and accuracies side by side."""
    figure = spans(found, unit="signal over noise", what="metric")
    return _taller(figure, len({each.label for each in found}))


def curves(panels: Sequence[Panel], *, x: str, y: str, doublings: bool = False) -> go.Figure:
    """Scores over something, a panel for each axis of evaluation.

    Parameters
    ----------
    panels : sequence of Panel
    x, y : str
        Titles of the axes.
    doublings : bool
        Whether x is logarithmic, with the values of the points for ticks.
    """
    figure = blank(panels=len(panels))
    names = list(dict.fromkeys(each.name for panel in panels for each in panel.points))
    listed: set[str] = set()
    for place, panel in enumerate(panels):
        where = axes_of(place)
        if panel.band is not None:
            figure.add_trace(ribbon(panel.band, NEUTRAL, where))
            figure.add_trace(_line(panel.band, {"color": NEUTRAL, "width": 2}, where))
        for each in panel.points:
            number = names.index(each.name)
            color, group = CATEGORIES[number % len(CATEGORIES)], {"legendgroup": str(number), **where}
            line = {"color": color, "width": 2, "dash": DASHES[number % len(DASHES)]}
            joined = each.band is None and panel.band is None
            if each.band is not None:
                figure.add_trace(ribbon(each.band, color, group))
                figure.add_trace(_line(each.band, line, group))
            figure.add_trace(
                go.Scatter(
                    x=each.x, y=each.y, mode="lines+markers" if joined else "markers", name=plain(each.name),
                    showlegend=each.name not in listed, hovertext=[plain(label) for label in each.labels],
                    hovertemplate="%{hovertext}<br>%{x:.4g}, %{y:.4f}<extra></extra>", line={**line, "width": 1},
                    marker={"color": color, "size": 8, "symbol": SYMBOLS[number % len(SYMBOLS)]}, **group,
                )
            )  # fmt: skip
            listed.add(each.name)
        panel_title(figure, place, plain(panel.title))
    figure.update_xaxes(title_text=x)
    if doublings:
        ticks = sorted({float(value) for panel in panels for each in panel.points for value in each.x})
        shown = {"tickvals": ticks, "ticktext": [f"{value:g}" for value in ticks]} if len(ticks) <= MOST_TICKS else {}
        figure.update_xaxes(type="log", **shown)
    figure.update_yaxes(title_text=y)
    return arrange(figure, columns=min(2, len(panels)), panels=len(panels))


def _line(band: Band, line: Mapping[str, object], where: Mapping[str, str]) -> go.Scatter:
    return go.Scatter(
        x=band.x, y=band.middle, mode="lines", line=dict(line), showlegend=False, hoverinfo="skip", **where
    )  # fmt: skip


def _taller(figure: go.Figure, labels: int) -> go.Figure:
    """Room for many labels."""
    more = _LABEL_HEIGHT * max(0, labels - _ROOMY)
    meta = {name: {**patch, "height": patch["height"] + more} for name, patch in figure.layout.meta.items()}
    return figure.update_layout(meta=meta)
