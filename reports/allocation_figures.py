"""Figures of an allocation: loss over size, the Pareto front, the optimum over budgets, the compute of a loss.

Conventions of all of them, and what they are drawn with: `reports.drawing`, `reports.allocation_drawing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bayeslaw.errors import BayeslawError
from bayeslaw.options import Choice, Trainable, trainable
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of
from bayeslaw.recommendation import Allocation, Option
from bayeslaw.sizes import along, plain_sizes, sizes_of
from bayeslaw.targets import Target
from bayeslaw.throughput import throughput_of
from reports import text
from reports.allocation_drawing import STAR_NAME, best_size, count, curve, log_axis, shade_untrained, star, suffix
from reports.allocation_looks import Looks, above_plain, budget_name, compares, key_of, looks, options_of, spread
from reports.drawing import NEUTRAL, Band, arrange, axes_of, blank, panel_title, plain

POINTS = 40
"""Sizes of a curve, evenly on a log scale; each is the trainable one that is nearest."""

PAST = 2.5
"""A curve runs to sizes so many times smaller and larger than 98 % of its optima; N grows as the square of a width."""

MOST_PANELS = 6

HEADROOM = 2.5
"""A panel shows so many times the range of its options' best losses: curves rise without end."""

LEAST_RANGE = 0.04
"""Nats per token that this range is taken to be at least."""


def sizes(fit: Fit, made: Sequence[Allocation], shown: Looks, family: str | None) -> go.Figure:
    """Loss over unique parameters along budget lines, the best sizes with their intervals, and the recommended runs.

    A panel for each budget, and for each recipe where there are several.

    Parameters
    ----------
    fit : Fit
    made : sequence of Allocation
    shown : Looks
    family : str, optional
        The named family that they chose from.
    """
    recipes = list(dict.fromkeys(option.recipe for _, option in options_of(made)))
    # The panels tell recipes apart.
    look_of = {r: look for (_, r), look in looks(("", r) for _, r in shown).items()}
    budgets = spread(made, max(1, MOST_PANELS // len(recipes)))
    rows = [[recipe for recipe in recipes if any(o.recipe == recipe for o in each.options)] for each in budgets]
    figure, place, listed = blank(panels=sum(map(len, rows))), 0, set[str]()
    for each, names in zip(budgets, rows, strict=True):
        bands = {key_of(option): _losses(fit, each, option, family) for option in each.options}
        first, window = place, _window(each, bands.values())
        for recipe in names:
            # The model without a loop is the same for all recipes, and what they are held against.
            options = [option for option in each.options if option.recipe == recipe or option.recurrences == 1]
            for option in options:
                look = look_of[option.recurrences]
                listing = look.name not in listed
                curve(figure, look, bands[key_of(option)], axes_of(place), unit="parameters", listed=listing)
                listed.add(look.name)
            for option in options:
                best_size(figure, look_of[option.recurrences], option, axes_of(place))
            if each.recommended in options:
                star(figure, each.recommended, axes_of(place), listed=STAR_NAME not in listed)
                listed.add(STAR_NAME)
            title = [*([budget_name(each)] if len(made) > 1 else []), *([plain(recipe)] if len(recipes) > 1 else [])]
            if title:
                panel_title(figure, place, ", ".join(title))
            figure.update_layout({f"xaxis{suffix(place)}": window[0], f"yaxis{suffix(place)}": window[1]})
            if first != place:
                shared = {f"{axis}axis{suffix(place)}.matches": f"{axis}{suffix(first)}" for axis in "xy"}
                figure.update_layout(shared)
            place += 1
    figure.update_xaxes(title_text="unique parameters")
    figure.update_yaxes(title_text="expected loss (nats/token)")
    return arrange(figure, columns=min(2, place), panels=place)


def front(found: Sequence[Trainable], shown: Looks) -> go.Figure:
    """Expected loss of the Pareto front over unique parameters, and over inference FLOPs.

    Parameters
    ----------
    found : sequence of Trainable
    shown : Looks
    """
    figure = blank(panels=2)
    for key, look in shown.items():
        own = [run for run in found if key_of(run) == key]
        if not own:
            continue
        for place, (name, unit) in enumerate((("n_unique", "parameters"), ("inference_flops", "FLOPs a token"))):
            ordered = sorted(own, key=lambda run, name=name: getattr(run, name))  # type: ignore[misc]
            x = np.array([getattr(run, name) for run in ordered], dtype=float)
            band = Band.mean(x, np.stack([run.loss for run in ordered], axis=1))
            curve(figure, look, band, axes_of(place), unit=unit, listed=place == 0, points=".4f")
    sizes, costs = [run.n_unique for run in found], [run.inference_flops for run in found]
    figure.update_yaxes(title_text="expected loss (nats/token)")
    figure.update_layout(
        xaxis={"title_text": "unique parameters", **log_axis(min(sizes), max(sizes), count)},
        xaxis2={"title_text": "inference FLOPs per token", **log_axis(min(costs), max(costs), text.flops)},
        yaxis2_matches="y",
    )
    return arrange(figure, columns=2, panels=2)


def growth(fit: Fit, made: Sequence[Allocation], shown: Looks) -> go.Figure:
    """N*, D* and the loss above r = 1 over training budgets, those that were never trained shaded.

    Parameters
    ----------
    fit : Fit
    made : sequence of Allocation
        For two budgets or more.
    shown : Looks
    """
    titles = ["N* (unique parameters)", "D* (training tokens)", *["loss* above r = 1 (nats/token)"] * compares(made)]
    figure, bands = blank(panels=len(titles)), [list[Band]() for _ in titles]
    for key, look in shown.items():
        own = [(each, option) for each, option in options_of(made) if key_of(option) == key]
        if not own:
            continue
        budgets = np.array([each.flops for each, _ in own])
        for place, name in enumerate(("n_unique", "tokens")):
            draws = np.stack([getattr(option.located, name) for _, option in own], axis=1)
            bands[place].append(Band.median(budgets, draws))
            curve(figure, look, bands[place][-1], axes_of(place), unit="FLOPs", listed=place == 0, points=".3s")
        gaps = {each.flops: gap for each, option in own if (gap := above_plain(each, option)) is not None}
        if gaps:
            band = Band.mean(np.array(list(gaps)), np.stack(list(gaps.values()), axis=1))
            curve(figure, look, band, axes_of(2), unit="FLOPs", listed=False, points="+.4f")
    low, high = made[0].flops, made[-1].flops
    for place, title in enumerate(titles):
        ends = [value for band in bands[place] for value in (band.low.min(), band.high.max())]
        scale = log_axis(min(ends), max(ends), count) if ends else {}
        figure.update_layout({f"yaxis{suffix(place)}": {"title_text": title, **scale}})
        shade_untrained(figure, place, low, high, fit)
    figure.update_xaxes(title_text="training budget C (FLOPs)", **log_axis(low, high, text.flops))
    return arrange(figure, columns=min(2, len(titles)), panels=len(titles))


def reach(fit: Fit, target: Target, shown: Looks) -> go.Figure | None:
    """The share of draws in which a budget reaches the loss, over budgets, by route; None where no draw ever does.

    Parameters
    ----------
    fit : Fit
    target : Target
    shown : Looks
    """
    reached = {key_of(route): np.sort(route.flops[np.isfinite(route.flops)]) for route in target.routes}
    known = np.concatenate([*reached.values()])
    if not len(known):
        return None
    # The last hundredth of a long tail would take half of the picture.
    low, high = 0.7 * float(known.min()), 1.4 * float(np.quantile(known, 0.99))
    if target.recommended is not None:
        high = max(high, 1.4 * target.recommended.flops)
    budgets = np.geomspace(low, high, 200)
    figure = blank(panels=1)
    for route in target.routes:
        look = shown[key_of(route)]
        figure.add_trace(
            go.Scatter(
                x=budgets, y=np.searchsorted(reached[key_of(route)], budgets, side="right") / len(route.flops),
                mode="lines", name=plain(look.name), showlegend=True,
                line={"color": look.color, "dash": look.dash, "width": 2},
                hovertemplate=f"{plain(look.name)}<br>%{{x:.3g}} FLOPs<br>%{{y:.2f}} of the draws<extra></extra>",
            )
        )  # fmt: skip
    shade_untrained(figure, 0, low, high, fit)
    if target.recommended is not None:
        figure.add_vline(x=target.recommended.flops, line={"color": NEUTRAL, "width": 1.5, "dash": "dash"})
        figure.add_annotation(
            x=float(np.log10(target.recommended.flops)), y=1, yref="y domain", yanchor="bottom", showarrow=False,
            text=STAR_NAME, font={"size": 11},
        )  # fmt: skip
    figure.update_xaxes(title_text="training budget C (FLOPs)", **log_axis(low, high, text.flops))
    figure.update_yaxes(title_text="probability of reaching the loss", range=[-0.03, 1.03])
    return arrange(figure, columns=1, panels=1)


def _losses(fit: Fit, made: Allocation, option: Option, family: str | None) -> Band:
    """Expected loss of what can be trained along the budget line of an option, around its optima."""
    recipe, r, best = option.recipe, option.recurrences, option.optimum
    if best.width_scale is None:
        sizes = plain_sizes()
    else:
        sizes = sizes_of(family_of(fit, family, recipe=recipe), r, **fit.convention)
        if round(float(along(sizes.n_unique, option.trainable.size))) != option.trainable.n_unique:
            raise BayeslawError("this budget was allocated to another family", do="name it with family=")
    hours = made.constraints.gpu_hours
    speed = None if hours is None else throughput_of(fit.runs, made.constraints.device)
    line_at = partial(made.constraints.line, sizes, speed=speed)
    line = line_at(made.flops if made.in_flops else None)
    choice = Choice(
        recipe=recipe, recurrences=r, name="", sizes=sizes, line=line, line_at=line_at, optimum=best, trainable=()
    )
    low, high = np.quantile([run.size for run in made.candidates if key_of(run) == key_of(option)], [0, 1])
    past = PAST if sizes.has_width else PAST**2
    wanted = np.geomspace(max(line.smallest, low / past), min(line.largest, high * past), POINTS)
    runs = trainable(fit, choice, wanted)
    return Band.mean(
        np.array([run.n_unique for run in runs], dtype=float), np.stack([run.loss for run in runs], axis=1)
    )


def _window(made: Allocation, bands: Iterable[Band]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Axes that show every best run with its band, and how the curves rise from it."""
    low, high = (extreme(float(np.quantile(option.trainable.loss, q)) for option in made.options)
                 for extreme, q in ((min, 0.05), (max, 0.95)))  # fmt: skip
    span = max(high - low, LEAST_RANGE)
    top = low + HEADROOM * span
    seen = np.concatenate([band.x[band.middle <= top] for band in bands])
    ends = [end for option in made.options for end in np.quantile(option.located.n_unique, [0.05, 0.95])]
    left, right = min(seen.min(), *ends), max(seen.max(), *ends)
    # A single size needs some room too.
    margin = max(0.05 * np.log10(right / left), 0.02)
    across = [float(np.log10(left) - margin), float(np.log10(right) + margin)]
    return {**log_axis(left, right, count), "range": across}, {"range": [low - 0.15 * span, top]}
