"""Which regime each axis is in: the effect of looping beyond validation loss, with what the data could tell."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from bayeslaw.downstream.answer import AxisRegime as AxisRegime  # the result's classes are taken from here
from bayeslaw.downstream.answer import Curve
from bayeslaw.downstream.answer import Regimes as Regimes
from bayeslaw.downstream.axis import REFERENCE, AxisData, axis_data
from bayeslaw.downstream.effects import matched_compute, matched_loss, pools
from bayeslaw.downstream.model import Posterior, sample
from bayeslaw.downstream.priors import DEFAULT, RegimePriors
from bayeslaw.downstream.seeds import more_seeds
from bayeslaw.downstream.table import EvaluationTable
from bayeslaw.downstream.verdicts import DELTA, estimate, verdict_of
from bayeslaw.errors import NoRunsError, UsageError
from bayeslaw.evaluations import AXES, AXIS_MEAN, MOST_NATS, VALIDATION

ANALYSED = tuple(axis for axis in AXES if axis != VALIDATION)
"""Axes that are analysed unless others are named: all but the validation loss, which they are held against."""


def regimes(
    table: EvaluationTable,
    *,
    delta: float = DELTA,
    effect: float | None = None,
    axes: Sequence[str] | None = None,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    seed: int = 0,
    priors: RegimePriors = DEFAULT,
    progress: Callable[[str], None] = lambda text: None,
) -> Regimes:
    """Find the regime of each axis.

    Parameters
    ----------
    table : EvaluationTable
    delta : float
        Effects below it are none to speak of, nats per token.
    effect : float, optional
        The effect that should show; default delta.
    axes : sequence of str, optional
        Axes to analyse; default those of `ANALYSED` that the table has.
    draws, tune, chains, seed : int
        Of the sampler.
    priors : RegimePriors
    progress : callable
        Told in a few words what is being done.

    Raises
    ------
    UsageError
        delta or effect is no number above 0, an axis is unknown or not in the table, or the table has no r = 1 or
        nothing else.
    NoRunsError
        No axis is left.
    """
    for name, value in (("delta", delta), ("effect", effect)):
        if value is not None and not 0 < value <= MOST_NATS:
            raise UsageError(f"{name} {value:g}", allowed=f"nats per token, above 0 to {MOST_NATS:g}, such as 0.02")
    chosen = _chosen(table, axes)
    rows = {axis: table.rows[table.rows["axis"] == axis] for axis in chosen}
    notes = list(table.notes)
    left = {axis: reason for axis, own in rows.items() if (reason := _unusable(own))}
    if len(left) == len(rows):
        raise UsageError(
            f"{table.source}: {next(iter(left.values()))}", allowed="checkpoints of r = 1 and of an r above 1",
            do="evaluate both with `bayeslaw eval`, or widen --where",
        )  # fmt: skip
    notes += [f"{axis} is left out: {reason}" for axis, reason in left.items()]
    data = {axis: axis_data(_completed(own, notes), priors) for axis, own in rows.items() if axis not in left}
    most = max(len(one.tasks) for one in data.values())
    found = []
    for axis, one in data.items():
        progress(f"{axis}: sampling ({len(one.y)} task losses of {len(one.checkpoints)} checkpoints)")
        posterior = sample(one, priors, tasks=most, draws=draws, tune=tune, chains=chains, seed=seed)
        found.append(_regime(one, posterior, priors, delta, effect or delta))
    notes += _grounds(data)
    if not any(one.compute for one in found):
        notes.append(
            "no effects at matched compute: no budget has checkpoints of both r = 1 and a looped r; runs that are "
            "trained to a --budget have the same"
        )
    return Regimes(
        table=table, axes=tuple(found), delta=delta, effect=effect or delta, priors=priors, notes=tuple(notes)
    )


def _chosen(table: EvaluationTable, axes: Sequence[str] | None) -> list[str]:
    """The axes to analyse, in the order of `AXES`."""
    there = set(table.rows["axis"])
    for axis in axes or ():
        if axis not in there:
            what = "is no axis" if axis not in AXES else f"is not in {table.source}"
            near = difflib.get_close_matches(axis, AXES, n=1)
            hint = f", did you mean {near[0]}?" if near and axis not in AXES else ""
            raise UsageError(
                f"--axes: {axis!r} {what}{hint}", allowed=", ".join(name for name in AXES if name in there)
            )
    chosen = [axis for axis in AXES if axis in (set(axes) if axes else there & set(ANALYSED))]
    if not chosen:
        raise NoRunsError(
            f"{table.source} has no task of {', '.join(ANALYSED)}", do="evaluate some with `bayeslaw eval`"
        )
    return chosen


def _unusable(rows: pd.DataFrame) -> str:
    """Why nothing can be said of an axis; empty where something can."""
    names = set(rows["architecture"])
    if REFERENCE not in names:
        return f"no checkpoint of r = 1 to hold {', '.join(sorted(names))} against"
    if len(names) == 1:
        return "all checkpoints have r = 1"
    return ""


def _completed(rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The rows of an axis without tasks that were scored for one checkpoint alone, which say nothing."""
    tasks = rows[rows["task"] != AXIS_MEAN]
    counts = tasks.groupby("task")["architecture"].nunique()
    alone = list(counts.index[counts == 1])
    if alone and len(alone) < len(counts):
        notes.append(f"tasks of one architecture alone are left out: {', '.join(alone)}")
        return rows[~rows["task"].isin(alone)]
    return rows


def _regime(data: AxisData, posterior: Posterior, priors: RegimePriors, delta: float, effect: float) -> AxisRegime:
    """What the posterior of an axis says."""
    verdicts = [
        verdict_of(draws, delta=delta, axis=data.axis, architecture=name, pooled=pooled)
        for name, (pooled, draws) in matched_loss(data, posterior).items()
    ]
    members = next(iter(pools(data.checkpoints).values()))
    weights = np.array([name in members for name in data.architectures], dtype=float) / len(members)
    return AxisRegime(
        axis=data.axis,
        tasks=data.tasks,
        checkpoints=len(data.checkpoints),
        verdicts=tuple(verdicts),
        compute=matched_compute(data, posterior),
        more=more_seeds(data, posterior, priors, weights=weights, effect=effect),
        noise={name: estimate(getattr(posterior, name)) for name in ("omega", "sigma", "rho")},
        slope=estimate(posterior.slopes.mean(axis=1)),
        curve=_curve(data, posterior),
        diagnostics=posterior.diagnostics,
    )


def _curve(data: AxisData, posterior: Posterior) -> Curve:
    """The curve at r = 1 over the checkpoints' validation losses, and the checkpoints."""
    loss = np.linspace(data.checkpoints["loss"].min(), data.checkpoints["loss"].max(), 50)
    height = posterior.levels.mean(axis=1)[:, None] + posterior.rise(loss - data.centre)
    low, high = np.quantile(height, [0.05, 0.95], axis=0)
    seen = (
        data.weights.T @ np.eye(len(data.checkpoints))[data.checkpoint]
    )  # what was seen of each task, (T, checkpoints)
    whole = np.isclose(seen, seen[:1]).all(axis=0) & (seen[0] > 0)
    total = pd.Series(data.losses).groupby(data.checkpoint).mean()
    points = data.checkpoints[["run_id", "architecture", "loss"]].assign(task_loss=total)[whole]
    return Curve(loss, np.array([low, height.mean(axis=0), high]), points.reset_index(drop=True))


def _grounds(data: Mapping[str, AxisData]) -> list[str]:
    """How few numbers the answer rests on, where they are few."""
    notes = []
    if bare := [axis for axis, one in data.items() if not one.known.any()]:
        notes.append(f"no standard errors of the examples: the noise of {', '.join(bare)} is told by the scatter alone")
    single = [
        axis
        for axis, one in data.items()
        if one.checkpoints.groupby(["architecture", "budget"], dropna=False)["run_id"].nunique().max() == 1
    ]
    if single:
        notes.append(
            f"no repeated seeds in {', '.join(single)}: what one checkpoint is off on a whole axis is told from the "
            "effect of r by its prior, and by how the budgets of one r differ"
        )
    return notes
