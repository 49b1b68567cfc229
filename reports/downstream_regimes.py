"""Cards on what recurrences cost on each axis of evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bayeslaw.downstream.effects import ComputeEffect
from bayeslaw.downstream.regimes import AxisRegime, Regimes
from bayeslaw.downstream.verdicts import Estimate
from bayeslaw.errors import DecisionError
from reports import downstream_figures, text
from reports.cards import Body, Table
from reports.downstream_figures import Panel, Points
from reports.downstream_metrics import axis_name, share
from reports.drawing import Band
from reports.model_figures import Span


def matched_loss(found: Regimes) -> Body:
    """Effects at matched validation loss with their verdicts."""
    told = [verdict for axis in found.axes for verdict in axis.verdicts]
    figure = downstream_figures.effects(
        [_span(each.axis, each.architecture, each.effect) for each in told], delta=found.delta,
        unit="effect at matched validation loss (nats/token)",
    )  # fmt: skip
    rows = tuple(
        (
            axis_name(each.axis), each.architecture, each.verdict, _range(each.effect), share(each.p_closes),
            share(each.p_tracks), share(each.p_behind), f"{each.resolvable:.3f}", share(each.power),
        )
        for each in told
    )  # fmt: skip
    by_verdict: dict[str, list[str]] = {}
    for axis in found.axes:
        for each in axis.main:
            name = axis_name(axis.axis) + (f" ({each.architecture})" if len(axis.main) > 1 else "")
            by_verdict.setdefault(each.verdict, []).append(name)
    return Body(
        takeaway=text.sentence("; ".join(f"{verdict}: {text.listing(axes)}" for verdict, axes in by_verdict.items())),
        figure=figure,
        table=Table(
            header=(
                "axis", "architecture", "verdict", "effect (nats/token, 90 %)", "P(closes the gap)", "P(tracks)",
                "P(falls behind)", "smallest resolvable", f"power for {found.delta:g}",
            ),
            rows=rows, text_columns=3,
        ),
    )  # fmt: skip


def matched_compute(found: Regimes) -> Body:
    """Effects for the same training FLOPs, over all budgets in the figure, at each in the table."""
    told = [effect for axis in found.axes for effect in axis.compute]
    overall = [each for each in told if each.budget is None]
    if not overall:
        raise DecisionError("no budget has checkpoints of r = 1 and of another r", do="evaluate both at equal budgets")
    sides = [
        f"{what} on {text.listing(f'{axis} ({", ".join(names)})' for axis, names in of_side.items())}"
        for what, sign in (("lose", 1), ("gain", -1))
        if (of_side := _on_side(overall, sign))
    ]
    return Body(
        takeaway="For the same training FLOPs looped models "
        + (f"{' and '.join(sides)}: 90 % intervals on one side of 0." if sides else "differ from r = 1 on no axis."),
        figure=downstream_figures.effects(
            [_span(each.axis, each.architecture, each.effect) for each in overall], delta=None,
            unit="effect for the same training FLOPs (nats/token)",
        ),
        table=Table(
            header=("axis", "architecture", "budget (FLOPs)", "effect (nats/token, 90 %)"),
            rows=tuple(
                (
                    axis_name(each.axis), each.architecture,
                    "mean over budgets" if each.budget is None else text.flops(each.budget), _range(each.effect),
                )
                for each in told
            ),
            text_columns=2,
        ),
    )  # fmt: skip


def task_curves(found: Regimes) -> Body:
    """Task loss over validation loss, a panel for each axis."""
    shown = [axis for axis in found.axes if len(axis.curve.points)]
    if not shown:
        raise DecisionError("no checkpoint has all tasks of an axis", do="evaluate the same tasks at every checkpoint")
    panels = [Panel(title=axis_name(axis.axis), points=_by_architecture(axis), band=_band(axis)) for axis in shown]
    count = len(pd.concat([axis.curve.points["run_id"] for axis in shown]).unique())
    return Body(
        takeaway=f"{count} checkpoints on {len(shown)} {'axis' if len(shown) == 1 else 'axes'}.",
        figure=downstream_figures.curves(
            panels, x="validation loss (nats/token)", y="task loss (nats/token)"
        ),
    )  # fmt: skip


def more(found: Regimes) -> Body:
    """What further runs would resolve."""
    rows = tuple(
        (
            axis_name(axis.axis), axis.more.sentence, "–" if axis.more.runs is None else str(axis.more.runs),
            "–" if axis.more.flops is None else text.flops(axis.more.flops), f"{axis.more.floor:.3f}",
        )
        for axis in found.axes
    )  # fmt: skip
    never = [axis_name(axis.axis) for axis in found.axes if axis.more.copies is None]
    return Body(
        takeaway=f"An effect of {found.effect:g} nats/token: "
        + (
            f"seeds alone would not show it on {text.listing(never)}."
            if never
            else "enough further seeds would show it on every axis."
        ),
        table=Table(
            header=("axis", "what would do", "further runs", "their FLOPs", "floor (nats/token)"),
            rows=rows, text_columns=2,
        ),
    )  # fmt: skip


def _by_architecture(axis: AxisRegime) -> list[Points]:
    return [
        Points(
            name=str(name), x=own["loss"].to_numpy(dtype=float), y=own["task_loss"].to_numpy(dtype=float),
            labels=[str(run) for run in own["run_id"]],
        )
        for name, own in axis.curve.points.groupby("architecture", sort=False)
    ]  # fmt: skip


def _on_side(effects: Sequence[ComputeEffect], sign: int) -> dict[str, list[str]]:
    """Architectures by axis whose 90 % interval lies above 0 (sign 1) or below (-1)."""
    found: dict[str, list[str]] = {}
    for each in effects:
        if min(sign * each.effect.q05, sign * each.effect.q95) > 0:
            found.setdefault(axis_name(each.axis), []).append(each.architecture)
    return found


def _band(axis: AxisRegime) -> Band:
    low, middle, high = np.asarray(axis.curve.band, dtype=float)
    return Band(x=np.asarray(axis.curve.loss, dtype=float), middle=middle, low=low, high=high)


def _span(axis: str, architecture: str, effect: Estimate) -> Span:
    return Span(label=axis_name(axis), group=architecture, mean=effect.mean, low=effect.q05, high=effect.q95)


def _range(effect: Estimate) -> str:
    decimals = text.decimals_for(effect.sd)
    return f"{effect.mean:+.{decimals}f} ({effect.q05:+.{decimals}f} to {effect.q95:+.{decimals}f})"
