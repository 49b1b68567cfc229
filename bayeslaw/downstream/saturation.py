"""How the loss saturates with the recurrences at test time T: L(T) = L_inf + Z exp(-z T / r), for each series.

A series is one checkpoint (trained with r recurrences) and one task, or the mean of an axis, scored with several T.
Given z the law is linear in L_inf and Z, so all but z and the residual scale sigma is integrated out in closed form and
those two are summed over a grid: exact, at no cost, where a sampler would add its own error to every small series.

The prior is flat in the curve's heights at the T that were scored (whatever z), uniform in log z and in log sigma
within bounds. Every T is scored on the same examples, so their sampling error moves a series as a whole: it widens
L_inf, and no other number. What single points are off the law is sigma, which each series tells by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.downstream.wide import require_columns, side_by_side
from bayeslaw.errors import UsageError
from bayeslaw.evaluations import AXIS_MEAN
from bayeslaw.predict import interval
from bayeslaw.schema import BASELINE
from bayeslaw.texts import printable

Array = NDArray[np.float64]

LEAST_POINTS = 4
"""Different T that a series needs: three unknowns, and one point to hold them to."""

TOLERANCE = 0.01
"""Nats per token: a loss this near its limit counts as arrived, and a smaller rise or fall is none."""

RATES = (0.2, 20.0)
"""Bounds of z: by T = r the least leaves 82 % of what there is to gain, the largest has arrived at a quarter of r."""

SMALLEST_SCALE = 1e-4
"""Lower bound of sigma, nats per token: rounding of published losses."""

DRAWS = 2000
_GRID = (1000, 100)
"""Values of z, which long series tell to a percent, and of sigma."""
NUMBERS = ("limit", "fall", "rate", "gain", "reach")


@dataclass(frozen=True, kw_only=True)
class Series:
    """Losses of one checkpoint on one task over T.

    Parameters
    ----------
    run_id : str
    step : int or None
        Of the checkpoint; None where the table does not say.
    recipe : str
    recurrences : float
        r of the training.
    axis, task : str
    test : ndarray, shape (point,)
        T, ascending.
    loss, loss_se : ndarray, shape (point,)
        Nats per token, with the sampling errors of their examples; NaN where not known.
    draws : dict of str to ndarray, shape (sample,)
        Posterior of ``limit`` L_inf, ``fall`` Z, ``rate`` z, ``gain`` L(r) - L_inf, ``reach`` (the T from which on the
        law is within `TOLERANCE` of its limit) and ``scale`` sigma; ``limit_here`` is L_inf on the very examples that
        were scored. Empty where the law is not fitted.
    note : str
        Why it is not, or what speaks against the fit; empty where nothing does.
    """

    run_id: str
    step: int | None
    recipe: str
    recurrences: float
    axis: str
    task: str
    test: Array
    loss: Array
    loss_se: Array
    draws: Mapping[str, Array]
    note: str

    @property
    def label(self) -> str:
        """Its name in a figure or table."""
        return f"{self.axis} ({AXIS_MEAN})" if self.task == AXIS_MEAN else self.task

    @property
    def common_se(self) -> float:
        """Sampling error of the examples that all points share, nats per token; 0 where not known."""
        known = self.loss_se[np.isfinite(self.loss_se)]
        return float(np.sqrt((known**2).mean())) if known.size else 0.0

    @property
    def rise(self) -> tuple[int, int, float]:
        """The largest rise of the loss with T: from which point, to which, nats per token."""
        end = int((self.loss - np.minimum.accumulate(self.loss)).argmax())
        start = int(self.loss[: end + 1].argmin())
        return start, end, float(self.loss[end] - self.loss[start])

    @property
    def rises(self) -> bool:
        """Whether the loss rises somewhere, by more than the tolerance and the examples' errors."""
        start, end, rise = self.rise
        # Errors of the same examples go together, so this is more than the rise's own error.
        error = np.nan_to_num(np.hypot(self.loss_se[start], self.loss_se[end]))
        return rise > max(TOLERANCE, 2 * float(error))

    def curve(self, test: Array) -> Array:
        """The law at T for every draw, about the examples scored: shape (sample, point), nats per token."""
        draws = {name: value[:, None] for name, value in self.draws.items()}
        left = draws["fall"] * np.exp(-draws["rate"] * test / self.recurrences)
        curve: Array = draws["limit_here"] + left
        return curve


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """Saturating laws of all series of a table.

    Parameters
    ----------
    series : tuple of Series
        In the order of the table, axis means behind the tasks of their axis.
    """

    series: tuple[Series, ...]

    @property
    def table(self) -> pd.DataFrame:
        """One row a series: what it is, its lowest loss, medians and 90 % intervals of `NUMBERS`, scale and note.

        Numbers are NaN where the law is not fitted.
        """
        rows = []
        for each in self.series:
            row: dict[str, Any] = {
                "run_id": each.run_id, "step": each.step, "recipe": each.recipe, "recurrences": each.recurrences,
                "axis": each.axis, "task": each.task, "points": len(each.test), "lowest": each.loss.min(),
                "lowest_at": each.test[each.loss.argmin()],
            }  # fmt: skip
            for name in NUMBERS:
                told = interval(each.draws[name]) if each.draws else dict.fromkeys(("mean", "q05", "q95"), math.nan)
                # The median: reach and Z have long tails.
                row[name] = float(np.median(each.draws[name])) if each.draws else math.nan
                row |= {f"{name}_q05": told["q05"], f"{name}_q95": told["q95"]}
            row["scale"] = float(np.median(each.draws["scale"])) if each.draws else math.nan
            rows.append(row | {"note": each.note})
        return pd.DataFrame(rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"tolerance": TOLERANCE, "series": self.table.to_dict("records")}

    def __str__(self) -> str:
        lines = [f"{'task':22s} {'r':>3s} {'L_inf':>7s} {'90 %':>15s} {'z':>5s} {'90 %':>10s} {'gain':>6s} {'T':>5s}"]
        run = None
        for each in self.series:
            if (each.run_id, each.step) != run:
                run = (each.run_id, each.step)
                lines.append(printable(each.run_id)[:80])
            name = f"  {printable(each.label)[:20]:20s} {each.recurrences:3g}"
            if not each.draws:
                lines += [f"{name} not fitted:", *_wrapped(each.note)]
                continue
            told = {key: interval(each.draws[key]) for key in NUMBERS}
            middle = {key: float(np.median(each.draws[key])) for key in NUMBERS}
            limits = f"{told['limit']['q05']:.3f} to {told['limit']['q95']:.3f}"
            rates = f"{told['rate']['q05']:.1f} to {told['rate']['q95']:.1f}"
            lines.append(
                f"{name} {middle['limit']:7.3f} {limits:>15s} {middle['rate']:5.1f} {rates:>10s} "
                f"{middle['gain']:6.3f} {middle['reach']:5.3g}"
            )
            lines += _wrapped(each.note)
        lines += wrap(
            f"Medians and 90 % intervals. gain: L(r) - L_inf in nats/token; T: from there on the loss is within "
            f"{TOLERANCE:g} nats of L_inf.",
            80,
        )
        return "\n".join(lines)


def saturation(table: pd.DataFrame, *, seed: int = 0) -> Saturation:
    """Fit the saturating law to every checkpoint and task that was scored with several r at test time.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns of `bayeslaw.evaluations.EVALUATION_COLUMNS`, all r at test time.
    seed : int

    Raises
    ------
    NoRunsError
        The table has no row.
    RunTableError
        A column is missing.
    UsageError
        No series has `LEAST_POINTS` different r at test time.

    Notes
    -----
    What was scored with one r alone is no series.
    """
    require_columns(table, ("run_id", "recurrences", "test_recurrences", "axis", "task", "task_loss"))
    rng = np.random.default_rng(seed)
    found = [_fitted(series, rng) for series in _series_of(table) if len(np.unique(series.test)) > 1]
    most = max((len(each.test) for each in found), default=1)
    if most < LEAST_POINTS:
        raise UsageError(
            f"at most {most} different r at test time for a checkpoint and task",
            allowed=f"{LEAST_POINTS} or more: the law has three unknowns",
            do="evaluate with more, such as --recurrences 1,2,4,8,16",
        )  # fmt: skip
    return Saturation(series=tuple(found))


def _series_of(table: pd.DataFrame) -> Iterator[Series]:
    """The series without their laws; the mean of an axis at the T that all its tasks have."""
    rows = table.dropna(subset=["task_loss", "test_recurrences"])
    for _, run in rows.groupby(["run_id", *(["step"] if "step" in rows else [])], sort=False, dropna=False):
        first = run.iloc[0]
        for axis, own in run.groupby("axis", sort=False):
            value, se = side_by_side(own, index="test_recurrences", score="task_loss")
            for task in map(str, value):
                known = value[task].dropna()
                yield Series(
                    run_id=str(first["run_id"]), step=step_of(first), recipe=str(first.get("recipe", BASELINE)),
                    recurrences=float(first["recurrences"]), axis=str(axis), task=task,
                    test=known.index.to_numpy(dtype=float), loss=known.to_numpy(dtype=float),
                    loss_se=se[task][known.index].to_numpy(dtype=float), draws={}, note="",
                )  # fmt: skip


def step_of(row: pd.Series) -> int | None:
    """The step of a row of an evaluation table."""
    return int(row["step"]) if "step" in row and pd.notna(row["step"]) else None


def _fitted(series: Series, rng: np.random.Generator) -> Series:
    """The series with its law, or the reason why there is none."""
    if reason := _unfit(series):
        return replace(series, note=reason)
    series = replace(series, draws=_posterior(series, rng))
    return replace(series, note=" ".join(_doubts(series)))


def _unfit(series: Series) -> str:
    """Why a saturating law would say nothing of a series, or something wrong."""
    test, loss = series.test, series.loss
    if len(np.unique(test)) < LEAST_POINTS:
        return f"{len(np.unique(test))} different r at test time, {LEAST_POINTS} are needed."
    if series.rises:
        start, end, rise = series.rise
        return (
            f"The loss rises by {rise:.3f} nats from T = {test[start]:g} to T = {test[end]:g} (trained with "
            f"r = {series.recurrences:g}), so it does not saturate; lowest at T = {test[loss.argmin()]:g}."
        )
    if loss[0] - loss[-1] < TOLERANCE:
        return f"The loss changes by less than {TOLERANCE:g} nats from the first T to the last: nothing to saturate."
    return ""


def _posterior(series: Series, rng: np.random.Generator) -> dict[str, Array]:
    """Draws of the law's numbers; arrays of shape (sample,)."""
    depth = (series.test - series.test[0]) / series.recurrences  # from the first T, where the exponential is 1
    rates = np.geomspace(*RATES, _GRID[0])
    scales = np.geomspace(SMALLEST_SCALE, max(np.ptp(series.loss), 10 * SMALLEST_SCALE), _GRID[1])
    column = np.exp(-rates[:, None] * depth)
    about = column - column.mean(axis=1, keepdims=True)
    power = (about**2).sum(axis=1)
    slope = about @ series.loss / power
    left = ((series.loss - series.loss.mean() - slope[:, None] * about) ** 2).sum(axis=1)
    # Flat in the heights of the fitted curve, so the two determinants of the linear part cancel.
    log_weight = -(len(depth) - 2) * np.log(scales) - left[:, None] / (2 * scales**2)
    weight = np.exp(log_weight - log_weight.max()).ravel()
    row, place = np.unravel_index(rng.choice(weight.size, DRAWS, p=weight / weight.sum()), log_weight.shape)
    scale, rate = scales[place], rates[row]
    normal = rng.standard_normal((3, DRAWS))
    fall = slope[row] + scale / np.sqrt(power[row]) * normal[0]
    limit = series.loss.mean() + scale / math.sqrt(len(depth)) * normal[1] - fall * column.mean(axis=1)[row]
    fall *= np.exp(rate * series.test[0] / series.recurrences)
    kept = fall > 0  # a law that falls; the series does
    rate, scale, fall, limit = rate[kept], scale[kept], fall[kept], limit[kept]
    return {
        "limit_here": limit,
        "limit": limit + series.common_se * normal[2][kept],
        "fall": fall,
        "rate": rate,
        "gain": fall * np.exp(-rate),
        "reach": np.maximum(0.0, series.recurrences / rate * np.log(fall / TOLERANCE)),
        "scale": scale,
    }


def _doubts(series: Series) -> Iterator[str]:
    """What speaks against a fit."""
    low, high = np.quantile(series.draws["rate"], [0.05, 0.95])
    if low < 1.1 * RATES[0] or high > RATES[1] / 1.1:
        yield f"These T do not tell z: its interval ends where the prior does ({RATES[0]:g} to {RATES[1]:g})."
    scale = float(np.median(series.draws["scale"]))
    if scale > max(TOLERANCE, 2 * series.common_se):
        yield f"Points are {scale:.3f} nats off the law, more than sampling explains: it is not of this form."


def _wrapped(note: str) -> list[str]:
    return wrap(note, 80, initial_indent="    ", subsequent_indent="    ")
