"""Figures of the checks of a fit, and the card that tells them together in an ordinary report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from bayeslaw.checks.cards import CheckCard
from bayeslaw.checks.criticism import automatic_checks, capital, findings, headline, steps
from reports.cards import Body, Table
from reports.drawing import (
    CATEGORIES,
    DASHES,
    NEUTRAL,
    SYMBOLS,
    arrange,
    axes_of,
    blank,
    density,
    faint,
    panel_title,
    plain,
)  # fmt: skip
from reports.study import Study

Array = NDArray[np.float64]

HOW = {
    "curvature": "Each point is a cell (recipe, budget, r): how strongly log loss curves over log N, measured and by "
    "the law at the same runs. On the dashed line both agree.",
    "offsets": "The law is fitted to differences within cells alone, each cell with a free offset. A true law leaves "
    "offsets without a trend over budgets.",
    "within-between": "The same exponent from two parts of the data that a true law makes agree: differences within "
    "cells, and the cells' mean losses. Bars: one standard error.",
    "lack-of-fit": "Residuals of log loss over size, a line for each cell. Scatter is noise; an arch that all cells "
    "share is the law's.",
    "exponent-drift": "The exponent log g / log r that the runs of each budget would have for themselves. Bars: one "
    "standard error. One exponent for all budgets means flat lines.",
    "residuals-r": "Mean residual of log loss; bars: one standard error.",
    "residuals-budget": "Mean residual of log loss; bars: one standard error.",
    "optimum": "The law's best size over that of the cell's own parabola, where that lies inside the trained sizes. "
    "Bars: one standard error. Dashed: equal; dotted: 25 % off.",
    "predictive": "A statistic of the residuals, computed with each posterior draw, of the measured runs and of runs "
    "drawn anew from the fit: curves that lie apart are what the fit does not repeat.",
    "prior": "Posterior sd over prior sd: near 0 the data speak, near 1 the prior does.",
    "power-scaling": "How much an answer changes when the prior, or the likelihood, is raised to a power near 1. A "
    "large bar of the prior means that the prior decides.",
    "influence": "Each point is a run: how far the answer moves without it, in posterior sd, over how well importance "
    "sampling can tell (Pareto k, below .7).",
    "drift": "Forecasts of higher budgets from the lower ones alone: errors with the forecasts' own sd, a row of "
    "points for each set of trained budgets.",
    "structures": "Median and 90 % interval of the exponent under each structure and way of counting the injection.",
}
"""What each card's figure and table mean."""


def figure(card: CheckCard) -> go.Figure | None:
    """The figure of a card; None where it has nothing to draw."""
    drawn: dict[str, Callable[[Mapping[str, Any]], go.Figure]] = {
        "curvature": _curvature,
        "offsets": lambda a: _by_r(a, "offset", "off the law (log loss)", (0.0,)),
        "within-between": _within,
        "lack-of-fit": _arches,
        "exponent-drift": lambda a: _by_r(a, "exponent", "log g / log r (no unit)", ()),
        "residuals-r": _means,
        "residuals-budget": _means,
        "optimum": lambda a: _by_r(a, "ratio", "N* law / N* measured", (1.0, 0.75, 1.25)),
        "predictive": _predictive,
        "prior": lambda a: _bars(a["names"], {"posterior sd / prior sd": a["ratio"]}),
        "power-scaling": lambda a: _bars(a["names"], {"prior": a["prior"], "likelihood": a["likelihood"]}),
        "influence": _influence,
        "drift": _origins,
        "structures": _structures,
    }
    return drawn[card.name](card.arrays) if card.arrays else None


def table(card: CheckCard) -> Table | None:
    """The table of a card; None where it has none."""
    return Table(header=card.header, rows=card.rows) if card.rows else None


def criticism(study: Study) -> Body:
    """What speaks against the fit: the checks of the law against the runs, which take less than a second."""
    made = automatic_checks(study.fit)
    told = [headline(study.fit, made, study.check), *findings(made), *steps(made)]
    rows = tuple(
        (card.title, card.verdict, f"{capital(card.reading)}.") for card in sorted(made, key=lambda c: -c.weight)
    )
    return Body(
        takeaway=" ".join(told[:MOST_SENTENCES]),
        table=Table(
            header=("check", "verdict", "what it found"), rows=rows, text_columns=3,
            note="`bayeslaw check` draws these, asks what priors and single runs do to the answer, and fits the runs "
            "again under other structures and ways of counting.",
        ),
    )  # fmt: skip


MOST_SENTENCES = 4


def _marks(place: int, name: str) -> dict[str, Any]:
    color = CATEGORIES[place % len(CATEGORIES)]
    return {
        "name": name,
        "mode": "markers",
        "marker": {"color": color, "size": 8, "symbol": SYMBOLS[place % len(SYMBOLS)]},
        "line": {"color": color, "width": 1.5, "dash": DASHES[place % len(DASHES)]},
    }


def _line(drawing: go.Figure, value: float, *, dash: str = "dash", vertical: bool = False) -> None:
    style = {"color": NEUTRAL, "width": 1.5, "dash": dash}
    if vertical:
        drawing.add_vline(x=value, line=style)
    else:
        drawing.add_hline(y=value, line=style)


def _curvature(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=1)
    most = 1.05 * max(arrays["measured"].max(), arrays["law"].max())
    least = min(0.0, arrays["measured"].min(), arrays["law"].min())
    drawing.add_trace(
        go.Scatter(
            x=[least, most], y=[least, most], mode="lines", name="equal", hoverinfo="skip",
            line={"color": NEUTRAL, "width": 1.5, "dash": "dash"},
        )
    )  # fmt: skip
    for place, r in enumerate(np.unique(arrays["recurrences"])):
        here = arrays["recurrences"] == r
        drawing.add_trace(
            go.Scatter(
                x=arrays["law"][here], y=arrays["measured"][here], error_y={"array": arrays["error"][here], "width": 3},
                hovertemplate="law %{x:.4f}<br>measured %{y:.4f}<extra></extra>", **_marks(place, f"r = {r:g}"),
            )
        )  # fmt: skip
    drawing.update_xaxes(title_text="curvature by the law (log loss per log N²)")
    drawing.update_yaxes(title_text="measured")
    return arrange(drawing, columns=1, panels=1)


def _by_r(arrays: Mapping[str, Any], key: str, title: str, lines: tuple[float, ...]) -> go.Figure:
    """A number of each cell over budgets, a line for each r (and recipe)."""
    drawing = blank(panels=1)
    for place, value in enumerate(lines):
        _line(drawing, value, dash="dash" if place == 0 else "dot")
    recipe = arrays.get("recipe", np.zeros(len(arrays["flops"])))
    groups = np.unique(np.column_stack([recipe, arrays["recurrences"]]), axis=0)
    several = len(np.unique(recipe)) > 1
    for place, (owner, r) in enumerate(groups):
        here = np.flatnonzero((recipe == owner) & (arrays["recurrences"] == r))
        here = here[np.argsort(arrays["flops"][here])]
        marks = _marks(place, f"recipe {owner + 1:.0f}, r = {r:g}" if several else f"r = {r:g}") | {
            "mode": "lines+markers"
        }
        bars = {"error_y": {"array": arrays["error"][here], "width": 3}} if "error" in arrays else {}
        drawing.add_trace(
            go.Scatter(
                x=arrays["flops"][here], y=arrays[key][here],
                hovertemplate="%{x:.3g} FLOPs<br>%{y:.3f}<extra></extra>", **bars, **marks,
            )
        )  # fmt: skip
    drawing.update_xaxes(title_text="training budget C (FLOPs)", type="log", exponentformat="power", dtick=1)
    drawing.update_yaxes(title_text=title)
    return arrange(drawing, columns=1, panels=1)


def _within(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=1)
    known = np.flatnonzero(np.isfinite(arrays["within"]))
    names = [plain(arrays["recipes"][i]) for i in known]
    for place, part in enumerate(("within", "between")):
        drawing.add_trace(
            go.Scatter(
                x=arrays[part][known], y=names, error_x={"array": arrays[f"error_{part}"][known], "width": 4},
                hovertemplate="%{x:.3f}<extra></extra>", **_marks(place, f"{part} cells"),
            )
        )  # fmt: skip
    drawing.update_xaxes(title_text="exponent (no unit)")
    drawing.update_yaxes(type="category")
    return arrange(drawing, columns=1, panels=1)


def _arches(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=1)
    _line(drawing, 0.0)
    for cell in np.unique(arrays["cell"]):
        rows = np.flatnonzero(arrays["cell"] == cell)
        rows = rows[np.argsort(arrays["n_unique"][rows])]
        drawing.add_trace(
            go.Scatter(
                x=arrays["n_unique"][rows], y=arrays["residual"][rows], mode="lines+markers", name="runs of a cell",
                showlegend=bool(cell == 0), line={"color": faint(CATEGORIES[0]), "width": 1.5},
                marker={"color": CATEGORIES[0], "size": 5},
                hovertemplate="%{x:.3s} parameters<br>%{y:+.4f}<extra></extra>",
            )
        )  # fmt: skip
    drawing.update_xaxes(title_text="N_unique (parameters)", type="log", exponentformat="B")
    drawing.update_yaxes(title_text="residual (log loss)")
    return arrange(drawing, columns=1, panels=1)


def _means(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=1)
    _line(drawing, 0.0)
    names = [plain(name) for name in arrays["names"]]
    drawing.add_trace(
        go.Scatter(
            x=names, y=arrays["mean"], error_y={"array": arrays["error"], "width": 4},
            hovertemplate="%{y:+.4f}<extra></extra>", **_marks(0, "mean residual"),
        )
    )  # fmt: skip
    drawing.update_xaxes(type="category")
    drawing.update_yaxes(title_text="residual (log loss)")
    return arrange(drawing, columns=1, panels=1)


def _predictive(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=len(arrays))
    for panel, told in enumerate(arrays.values()):
        where = axes_of(panel)
        both = np.concatenate([told["measured"], told["drawn"]])
        low, high = np.quantile(both, [0.001, 0.999])
        for place, whose in enumerate(("measured", "drawn")):
            color = CATEGORIES[place]
            drawing.add_trace(
                go.Scatter(
                    **density(told[whose], float(low), float(high)), mode="lines", name=whose, showlegend=panel == 0,
                    legendgroup=whose, line={"color": color, "width": 2, "dash": DASHES[place]}, fill="tozeroy",
                    fillcolor=faint(color), hoverinfo="skip", **where,
                )
            )  # fmt: skip
        panel_title(drawing, panel, told["label"])
    drawing.update_yaxes(title_text="density", rangemode="tozero")
    return arrange(drawing, columns=min(2, len(arrays)), panels=len(arrays))


def _bars(names: list[str], series: Mapping[str, Array]) -> go.Figure:
    drawing = blank(panels=1)
    for place, (name, values) in enumerate(series.items()):
        drawing.add_trace(
            go.Bar(
                y=[plain(each) for each in names], x=values, name=name, orientation="h",
                marker={"color": CATEGORIES[place]}, hovertemplate="%{y}: %{x:.3f}<extra></extra>",
            )
        )  # fmt: skip
    drawing.update_xaxes(title_text=next(iter(series)) if len(series) == 1 else "sensitivity", rangemode="tozero")
    drawing.update_yaxes(type="category", autorange="reversed")
    return arrange(drawing, columns=1, panels=1)


def _influence(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=1)
    drawing.add_trace(
        go.Scatter(
            x=arrays["pareto_k"], y=arrays["moved"], hovertext=[plain(label) for label in arrays["labels"]],
            hoverinfo="text+y", **_marks(0, "runs"),
        )
    )  # fmt: skip
    _line(drawing, 0.7, vertical=True, dash="dot")
    for value in (-0.5, 0.5):
        _line(drawing, value, dash="dot")
    drawing.update_xaxes(title_text="Pareto k (no unit)")
    drawing.update_yaxes(title_text=f"change of {plain(arrays['name'])} (posterior sd)")
    return arrange(drawing, columns=1, panels=1)


def _origins(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=1)
    _line(drawing, 0.0)
    for place, edge in enumerate(np.unique(arrays["trained_to"])):
        here = arrays["trained_to"] == edge
        drawing.add_trace(
            go.Scatter(
                x=arrays["steps"][here] + 0.04 * place, y=arrays["error"][here],
                error_y={"array": arrays["sd"][here], "width": 3},
                hovertemplate="%{y:+.4f}<extra></extra>", **_marks(place, f"trained to {edge:.3g} FLOPs"),
            )
        )  # fmt: skip
    drawing.update_xaxes(title_text="budget steps beyond (factor 2.15)")
    drawing.update_yaxes(title_text="measured - forecast (log loss)")
    return arrange(drawing, columns=1, panels=1)


def _structures(arrays: Mapping[str, Any]) -> go.Figure:
    drawing = blank(panels=1)
    recipes = np.array(arrays["recipes"])
    low, middle, high = arrays["quantiles"].T
    for place, recipe in enumerate(dict.fromkeys(arrays["recipes"])):
        here = np.flatnonzero(recipes == recipe)
        drawing.add_trace(
            go.Scatter(
                x=middle[here], y=[plain(arrays["labels"][i]) for i in here],
                error_x={"array": (high - middle)[here], "arrayminus": (middle - low)[here], "width": 4},
                hovertemplate="%{y}: %{x:.3f}<extra></extra>", **_marks(place, plain(recipe)),
            )
        )  # fmt: skip
    for value in (0.0, 1.0):
        _line(drawing, value, vertical=True)
    drawing.update_xaxes(title_text="exponent (no unit)")
    drawing.update_yaxes(type="category", autorange="reversed")
    return arrange(drawing, columns=1, panels=1)
