"""Cards on an evaluation table itself: what its metrics tell, how losses saturate, what was scored."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.downstream.discrimination import EXAMPLES, VALIDATION_LOSS, Ranking
from bayeslaw.downstream.saturation import NUMBERS, Saturation, Series, step_of
from bayeslaw.evaluations import AXES
from reports import downstream_figures, text
from reports.cards import Body, Table
from reports.downstream_figures import Panel, Points
from reports.drawing import Band
from reports.model_figures import Span

MOST_ROWS = 500


def ranking(found: Ranking) -> Body:
    """Metrics by signal over noise."""
    measured = found.measured.to_dict("records")
    rows = tuple(
        (
            row["metric"], f"{row['snr']:.2g} ({row['snr_q05']:.2g} to {row['snr_q95']:.2g})",
            share(row["same_order"]), f"{row['rank']:.0f} ({row['rank_q05']:.0f} to {row['rank_q95']:.0f})",
            share(row["p_best"]), share(row["p_better"]), text.significant(row["signal"], 2),
            text.significant(row["noise"], 2), text.significant(row["example_se"], 2),
        )
        for row in measured
    )  # fmt: skip
    unmeasured = found.table[found.table["reason"] != ""].to_dict("records")
    rows += tuple((row["metric"], f"not measurable: {row['reason']}", *["–"] * 7) for row in unmeasured)
    if measured:
        first = measured[0]
        takeaway = f"{first['metric']} has the highest signal over noise, {first['snr']:.2g}"
        takeaway += f" (best with a probability of {first['p_best']:.2f})."
        if first["metric"] != VALIDATION_LOSS and np.isfinite(first["p_better"]):
            takeaway += f" It is above that of the validation loss with a probability of {first['p_better']:.2f}."
        if found.noise_from == EXAMPLES:
            takeaway += " What another seed changes is not known."
    else:
        takeaway = "No metric can be ranked: the noise is not known."
    figure = None
    if measured:
        figure = downstream_figures.ratios(
            [
                Span(
                    label=row["metric"].removesuffix(f", {row['score']}"), group=row["score"], mean=row["snr"],
                    low=row["snr_q05"], high=row["snr_q95"],
                )
                for row in measured
            ]
        )  # fmt: skip
    return Body(
        takeaway=text.capital(takeaway),
        figure=figure,
        table=Table(
            header=(
                "metric", "signal over noise (90 %)", "same order", "rank (90 %)", "P(best)", "P(better than val.)",
                "signal", "noise", "error of the examples",
            ),
            rows=rows, text_columns=2, note=" ".join(found.notes),
        ),
    )  # fmt: skip


def saturating(found: Saturation, rows: pd.DataFrame) -> Body:
    """Losses over test-time recurrences, of the checkpoint with most FLOPs of each architecture."""
    spent = rows["flops"] if "flops" in rows else pd.Series(0.0, rows.index)
    last = rows.assign(spent=spent.fillna(0.0)).sort_values("spent").drop_duplicates("architecture", keep="last")
    names = {
        (str(row["run_id"]), step_of(row)): str(row["architecture"])
        for _, row in last.sort_values("recurrences").iterrows()
    }
    panels = []
    for axis in dict.fromkeys(each.axis for each in found.series):
        # The mean of an axis comes first, where it has several tasks.
        own = {(each.run_id, each.step): each for each in reversed(found.series) if each.axis == axis}
        points = [_over_depths(own[checkpoint], name) for checkpoint, name in names.items() if checkpoint in own]
        if points:
            panels.append(Panel(title=axis_name(axis), points=points))
    fitted = [each for each in found.series if each.draws]
    risen = [each for each in found.series if each.rises]
    takeaway = f"{len(fitted)} of {len(found.series)} series follow a saturating law"
    if fitted:
        gains = [float(np.median(each.draws["gain"])) for each in fitted]
        takeaway += f"; from the trained r on they could gain {min(gains):.3f} to {max(gains):.3f} nats/token"
    takeaway += f". In {len(risen)} the loss rises with T." if risen else "."
    table = found.table
    shown = table.head(MOST_ROWS)
    return Body(
        takeaway=takeaway,
        figure=downstream_figures.curves(panels, x="T (recurrences at test time)", y="loss (nats/token)",
                                         doublings=True) if panels else None,
        table=Table(
            header=("run", "task", "finding", "r", "lowest at T", "L_inf (90 %)", "Z", "z", "L(r) - L_inf", "reach"),
            rows=tuple(
                (
                    each.run_id, each.label, each.note or "follows the law", f"{each.recurrences:g}",
                    f"{row['lowest_at']:g}", *(_told(row, name) for name in NUMBERS),
                )
                for each, row in zip(found.series, shown.to_dict("records"), strict=False)
            ),
            text_columns=3,
            note=f"The first {len(shown)} of {len(table)} series." if len(shown) < len(table) else "",
        ),
    )  # fmt: skip


def evaluated(rows: pd.DataFrame) -> Body:
    """Tasks with their examples."""
    lines = []
    for (axis, task), own in rows.groupby(["axis", "task"], sort=False):
        digests = [str(each)[:12] for each in _known(own, "data_digest")]
        lines.append(
            (
                axis_name(str(axis)), str(task), ", ".join(digests) or "–",
                *(_counted(_known(own, name)) for name in ("shots", "examples", "answer_tokens")),
                str(own["run_id"].nunique()), _counted(_known(own, "test_recurrences")),
            )
        )  # fmt: skip
    return Body(
        takeaway=f"{len(lines)} tasks on {rows['axis'].nunique()} axes at {rows['run_id'].nunique()} checkpoints.",
        table=Table(
            header=("axis", "task", "digest", "shots", "examples", "answer tokens", "checkpoints", "r at test time"),
            rows=tuple(lines), text_columns=3,
        ),
    )  # fmt: skip


def _over_depths(series: Series, name: str) -> Points:
    band = None
    if series.draws:
        depths = np.geomspace(series.test.min(), series.test.max(), 60)
        band = Band.median(depths, series.curve(depths))
    labels = [f"{series.run_id}, T = {depth:g}" for depth in series.test]
    return Points(name=name, x=series.test, y=series.loss, labels=labels, band=band)


def _known(rows: pd.DataFrame, name: str) -> list[object]:
    return list(rows[name].dropna().unique()) if name in rows else []


def _counted(values: Sequence[object]) -> str:
    """One number, or the range of several."""
    numbers = sorted(float(value) for value in values)  # type: ignore[arg-type]
    ends = dict.fromkeys(f"{numbers[place]:,.0f}" for place in (0, -1)) if numbers else ["–"]
    return " to ".join(ends)


def _told(row: Mapping[Hashable, Any], name: str) -> str:
    if not np.isfinite(row[name]):
        return "–"
    return f"{row[name]:.3g} ({row[f'{name}_q05']:.3g} to {row[f'{name}_q95']:.3g})"


def axis_name(name: str) -> str:
    """The axis in words."""
    return AXES.get(name, name)


def share(value: float) -> str:
    """A probability; a dash where it is not known."""
    return f"{value:.2f}" if np.isfinite(value) else "–"
