"""Figures of a comparison: models by their differences from the best, and their forecasts by origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from reports.drawing import CATEGORIES, DASHES, NEUTRAL, SYMBOLS, arrange, axes_of, blank, panel_title, plain

MOST_LINES = 8
"""More models than this cannot be told apart by colour and dash: only so many of the best are drawn."""

DEEPEST = 5.0
"""Log densities so far below the best are left out of the picture, which would show nothing but them."""


@dataclass(frozen=True, kw_only=True)
class Points:
    """One number for each model with its standard error; nan where that is not known.

    Parameters
    ----------
    title, unit : str
        Over the panel, and along its axis.
    value, se : sequence of float
    """

    title: str
    unit: str
    value: Sequence[float]
    se: Sequence[float]


def differences(names: Sequence[str], panels: Sequence[Points]) -> go.Figure:
    """Differences from the best model with two standard errors, a panel for each way of measuring.

    Parameters
    ----------
    names : sequence of str
        The models, best first.
    panels : sequence of Points
    """
    figure = blank(panels=len(panels))
    labels = [plain(name) for name in names]
    for place, panel in enumerate(panels):
        figure.add_trace(
            go.Scatter(
                x=list(panel.value), y=labels, mode="markers", name="difference, ± 2 standard errors",
                showlegend=place == 0, marker={"color": CATEGORIES[0], "size": 9},
                error_x={"array": 2 * np.nan_to_num(np.asarray(panel.se, dtype=float)), "width": 4},
                hovertemplate="%{y}<br>%{x:.3g}<extra></extra>", **axes_of(place),
            )
        )  # fmt: skip
        suffix = "" if place == 0 else str(place + 1)
        figure.update_layout(
            {
                f"xaxis{suffix}.title.text": panel.unit,
                f"yaxis{suffix}": {"title_text": "model", "autorange": "reversed", "type": "category"},
            }
        )
        figure.add_shape(
            type="line", x0=0, x1=0, y0=0, y1=1, xref=axes_of(place)["xaxis"],
            yref=f"{axes_of(place)['yaxis']} domain", line={"color": NEUTRAL, "width": 1.5, "dash": "dash"},
        )  # fmt: skip
        panel_title(figure, place, panel.title)
    return arrange(figure, columns=len(panels), panels=len(panels))


def origins(
    trained_to: Sequence[float], log_density: Mapping[str, Sequence[float]], cover90: Mapping[str, Sequence[float]]
) -> go.Figure:
    """Forecasts by the largest budget fitted: log density, and how many runs the 90 % intervals hold.

    Parameters
    ----------
    trained_to : sequence of float
        FLOPs.
    log_density, cover90 : mapping of str to sequence of float
        By model, one for each origin.
    """
    figure = blank(panels=2)
    for panel, values in enumerate((log_density, cover90)):
        for place, (name, each) in enumerate(list(values.items())[:MOST_LINES]):
            color = CATEGORIES[place % len(CATEGORIES)]
            figure.add_trace(
                go.Scatter(
                    x=list(trained_to), y=list(each), mode="lines+markers", name=plain(name), showlegend=panel == 0,
                    legendgroup=str(place),
                    line={"color": color, "width": 2, "dash": DASHES[(place + place // 6) % len(DASHES)]},
                    marker={"symbol": SYMBOLS[(place + place // 6) % len(SYMBOLS)], "size": 7},
                    hovertemplate=f"{plain(name)}<br>fitted to %{{x:.3g}} FLOPs<br>%{{y:.3g}}<extra></extra>",
                    **axes_of(panel),
                )
            )  # fmt: skip
    figure.add_shape(
        type="line", x0=0, x1=1, xref="x2 domain", y0=0.9, y1=0.9, yref="y2",
        line={"color": NEUTRAL, "width": 1.5, "dash": "dash"},
    )  # fmt: skip
    figure.update_xaxes(
        title_text="largest budget fitted (FLOPs)", type="log", tickvals=list(trained_to),
        ticktext=[f"{flops:.3g}" for flops in trained_to],
    )  # fmt: skip
    shown = np.array(list(log_density.values())[:MOST_LINES])
    low, high = max(float(shown.min()), float(shown.max()) - DEEPEST), float(shown.max())
    margin = 0.08 * (high - low) + 0.05
    figure.update_layout(
        yaxis={"title_text": "log density of a run (per nat/token)", "range": [low - margin, high + margin]},
        yaxis2={"title_text": "runs inside 90 % intervals (share)", "range": [-0.03, 1.03]},
    )
    return arrange(figure, columns=2, panels=2)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A difference with its 90 % interval; nan where the interval is not known.

    Parameters
    ----------
    label, group : str
        Its line along the axis, and its colour.
    mean, low, high : float
    """

    label: str
    group: str
    mean: float
    low: float
    high: float


def spans(found: Sequence[Span], *, unit: str, what: str) -> go.Figure:
    """Differences with their 90 % intervals, a line for each label, side by side by group.

    Parameters
    ----------
    found : sequence of Span
        Labels in the order from above.
    unit, what : str
        Along the axis, and of the labels.
    """
    figure = blank(panels=1)
    labels = [plain(label) for label in dict.fromkeys(each.label for each in found)]
    for place, group in enumerate(dict.fromkeys(each.group for each in found)):
        own = [each for each in found if each.group == group]
        middle = np.array([each.mean for each in own])
        low, high = (np.nan_to_num(np.abs(np.array(ends) - middle)) for ends in
                     ([each.low for each in own], [each.high for each in own]))  # fmt: skip
        figure.add_trace(
            go.Scatter(
                x=middle, y=[plain(each.label) for each in own], mode="markers", name=plain(group), orientation="h",
                offsetgroup=str(place), marker={"size": 8, **_mark(place)},
                error_x={"array": high, "arrayminus": low, "width": 4},
                hovertemplate=f"%{{y}}, {plain(group)}<br>%{{x:.3g}}<extra></extra>", showlegend=True,
            )
        )  # fmt: skip
    figure.add_shape(
        type="line", x0=0, x1=0, y0=0, y1=1, xref="x", yref="y domain",
        line={"color": NEUTRAL, "width": 1.5, "dash": "dash"},
    )  # fmt: skip
    figure.update_layout(
        scattermode="group", scattergap=0.5, xaxis_title_text=unit,
        yaxis={
            "title_text": what, "type": "category", "categoryorder": "array", "categoryarray": labels[::-1],
            "range": [-0.5, len(labels) - 0.5],
        },
    )  # fmt: skip
    return arrange(figure, columns=1, panels=1)


def _mark(place: int) -> dict[str, str]:
    """Colour and symbol of a group."""
    return {"color": CATEGORIES[place % len(CATEGORIES)], "symbol": SYMBOLS[place % len(SYMBOLS)]}
