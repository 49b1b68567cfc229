"""Which metric tells architectures apart at a budget: spread of the architectures over noise, for each metric.

An architecture is a recipe with an r. At each budget its design of the lowest validation loss stands for it, and what
other seeds of one design differ by, of whichever design has several, is the noise. For each metric

    y_{b,arch,seed} = mu_b + g_{b,arch} + e,    g ~ N(0, tau^2),    e ~ N(0, v^2)

(`bayeslaw.downstream.spread`). The signal is the standard deviation of the g of the architectures at hand, pooled over
the budgets; the noise is v.

All checkpoints answer the same examples: what they share of the sampling error cancels between them, and the rest
differs between seeds as well, so v measured on seeds holds it. Standard errors are thus not added to v; they only stand
beside it. Where no design has several seeds, they are all that is known of the noise, and take the place of v.
Architectures are told apart on the examples that were scored: what other examples would change of their spread is in no
number here, and small where ``example_se`` is small beside the signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.downstream.spread import Cells, posterior
from bayeslaw.downstream.wide import require_columns, side_by_side
from bayeslaw.errors import NoRunsError, RunTableError
from bayeslaw.evaluations import AXIS_MEAN, VALIDATION
from bayeslaw.origins import budget_levels
from bayeslaw.schema import BASELINE
from bayeslaw.texts import printable

Array = NDArray[np.float64]

VALIDATION_LOSS = "validation loss"
"""Name of the metric that the others are held against."""

SEEDS, EXAMPLES = "seeds", "examples"
"""What the noise is learnt from."""

_NUMBERS = (
    "signal", "noise", "snr", "snr_q05", "snr_q95", "same_order", "rank", "rank_q05", "rank_q95", "p_best", "p_better",
)  # fmt: skip
_WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Metrics by how well they tell architectures apart.

    Parameters
    ----------
    table : pandas.DataFrame
        One row a metric, best median SNR first, those not measurable last: ``metric, axis, task, score`` (loss or
        accuracy), ``checkpoints, architectures, budgets, seed_differences`` (degrees of freedom of the noise),
        ``signal, noise`` (medians, in the metric's unit), ``example_se`` (sampling error of the examples, root mean
        square), ``snr, snr_q05, snr_q95`` (median and 90 % interval), ``same_order`` (probability that two experiments
        with one new seed each put two architectures in the same order), ``rank, rank_q05, rank_q95, p_best,
        p_better`` (than the validation loss), ``reason`` (why it is not measurable; its numbers are then NaN).
    noise_from : str
        `SEEDS` or `EXAMPLES`.
    notes : tuple of str
    """

    table: pd.DataFrame
    noise_from: str
    notes: tuple[str, ...]

    @property
    def measured(self) -> pd.DataFrame:
        """The rows with numbers."""
        return self.table[self.table["reason"] == ""]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"noise_from": self.noise_from, "metrics": self.table.to_dict("records"), "notes": list(self.notes)}

    def __str__(self) -> str:
        lines = []
        if len(self.measured):
            lines.append(f"{'metric':34s} {'SNR':>5s} {'90 %':>13s} {'order':>6s} {'P(best)':>8s} {'P(> val)':>9s}")
        for row in self.measured.to_dict("records"):
            better = f"{row['p_better']:.2f}" if math.isfinite(row["p_better"]) else "-"
            lines.append(
                f"{printable(row['metric'])[:34]:34s} {row['snr']:5.2g} "
                f"{f'{row["snr_q05"]:.2g} to {row["snr_q95"]:.2g}':>13s} {row['same_order']:6.2f} "
                f"{row['p_best']:8.2f} {better:>9s}"
            )
        if len(self.measured):
            lines += wrap(
                "SNR: spread of the architectures over noise. order: probability that two experiments put two "
                "architectures in the same order. P(> val): that the metric's SNR is above the validation loss's.",
                _WIDTH,
            )
        for reason, rows in self.table[self.table["reason"] != ""].groupby("reason", sort=False):
            lines += wrap(f"Not measurable ({reason}): {'; '.join(map(printable, rows['metric']))}.", _WIDTH)
        for note in self.notes:
            lines += wrap(printable(note), _WIDTH)
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of each checkpoint.

    Parameters
    ----------
    name, axis, task, score : str
    value, se : pandas.Series
        By checkpoint; ``se`` is NaN where not known.
    """

    name: str
    axis: str
    task: str
    score: str
    value: pd.Series
    se: pd.Series


def metric_ranking(table: pd.DataFrame, *, seed: int = 0) -> Ranking:
    """Rank the validation loss, every task and every axis, by loss and accuracy.

    The posteriors of two metrics are taken for independent where they are compared, though they are measured on the
    same checkpoints.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns of `bayeslaw.evaluations.EVALUATION_COLUMNS`; rows with another r at test time than the trained one are
        left out, and of several steps of a run at a budget the last one counts. Architectures are named by the column
        ``architecture`` where there is one.
    seed : int

    Raises
    ------
    NoRunsError
        There is no row with the trained r.
    RunTableError
        A column is missing, a task stands twice for a checkpoint, or no budget has two architectures.
    """
    require_columns(table, ("run_id", "recurrences", "loss", "axis", "task", "task_loss"))
    rows = _at_trained_r(table)
    checkpoints = _checkpoints(rows)
    standing = checkpoints[checkpoints["stands"]]
    if (standing.groupby("level")["architecture"].nunique() < 2).all():
        raise RunTableError(
            "no budget at which two architectures were evaluated", allowed="two or more recipes or r at a budget",
            do="evaluate checkpoints of other r at the same budgets",
        )  # fmt: skip
    several = bool((checkpoints.groupby("design").size() > 1).any())
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    draws: dict[int, Array] = {}
    for metric in metrics_of(rows, checkpoints):
        row, snr = _measured(metric, checkpoints, by_seeds=several, rng=rng)
        if snr is not None:
            draws[len(found)] = snr
        found.append(row)
    notes = ["At each budget the design of the lowest validation loss stands for its architecture (recipe and r)."]
    if draws and several:
        notes.append("Noise: what checkpoints of one design differ by, whose other seeds were evaluated.")
    elif draws:
        notes.append(
            "Noise: the sampling error of the examples alone. No design was evaluated with two seeds, so what another "
            "seed changes is not known, and these SNR are too high by that."
        )
    return Ranking(
        table=_ranked(pd.DataFrame(found), draws), noise_from=SEEDS if several else EXAMPLES, notes=tuple(notes)
    )


def _at_trained_r(table: pd.DataFrame) -> pd.DataFrame:
    """Rows at the trained r, each with the level of its budget; the last step of a run at a level."""
    rows = table.copy()
    if "test_recurrences" in rows:
        rows = rows[rows["test_recurrences"].isna() | (rows["test_recurrences"] == rows["recurrences"])]
    if rows.empty:
        raise NoRunsError("no evaluation at the trained r", do="evaluate without --recurrences")
    spent = pd.Series(np.nan, rows.index)
    for name in ("budget", "flops"):
        spent = spent.fillna(rows[name].astype(float)) if name in rows else spent
    if spent.isna().any():
        raise RunTableError(f"{spent.isna().sum()} rows without a budget", allowed="a number in budget or flops")
    rows["level"] = budget_levels(np.asarray(spent, dtype=np.float64))
    if "step" in rows:
        run = rows["training_run"].fillna(rows["run_id"]) if "training_run" in rows else rows["run_id"]
        last = rows["step"].groupby([run, rows["level"]]).transform("max")
        rows = rows[rows["step"].isna() | (rows["step"] == last)]
    if (twice := rows.duplicated(["run_id", "level", "axis", "task"])).any():
        run, task = rows.loc[twice, ["run_id", "task"]].iloc[0]
        raise RunTableError(f"task {task} stands twice for {run}", do="keep one of the rows")
    # A run that has rows at several budgets is a checkpoint of each.
    rows["checkpoint"] = rows["run_id"].astype(str) + "\n" + rows["level"].astype(str)
    return rows


def _checkpoints(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a checkpoint: level, architecture, design, loss, loss_se, and whether its design stands for others."""
    points = rows.drop_duplicates("checkpoint").set_index("checkpoint")
    size = pd.Series(np.nan, points.index)
    for name in ("d_model", "width_scale", "n_unique"):
        size = size.fillna(points[name].astype(float)) if name in points else size
    out = pd.DataFrame({"level": points["level"], "loss": points["loss"].astype(float)})
    out["loss_se"] = points["loss_se"].astype(float) if "loss_se" in points else np.nan
    if "architecture" in points:
        out["architecture"] = points["architecture"]
    else:
        recipe = points["recipe"].fillna(BASELINE) if "recipe" in points else pd.Series(BASELINE, points.index)
        out["architecture"] = [f"{name}, r = {r:g}" for name, r in zip(recipe, points["recurrences"], strict=True)]
    out["design"] = [f"{level}/{architecture}/{each:g}" for level, architecture, each in zip(
        out["level"], out["architecture"], size, strict=True)]  # fmt: skip
    mean = out.groupby("design")["loss"].transform("mean")
    out["stands"] = mean == mean.groupby([out["level"], out["architecture"]]).transform("min")
    return out


def metrics_of(rows: pd.DataFrame, checkpoints: pd.DataFrame) -> Iterator[Metric]:
    """The validation loss, then every axis and its tasks, by loss and by accuracy.

    Accuracies that the table does not have are left out, and so is the axis of the validation loss, which it is.
    """
    yield Metric(
        name=VALIDATION_LOSS, axis="", task="", score="loss", value=checkpoints["loss"], se=checkpoints["loss_se"]
    )
    for axis, own in rows[rows["axis"] != VALIDATION].groupby("axis", sort=False):
        for column, score in (("task_loss", "loss"), ("accuracy", "accuracy")):
            if column not in own or own[column].isna().all():
                continue
            value, se = side_by_side(own, index="checkpoint", score=column)
            for task in map(str, value):
                name = f"{axis} axis" if task == AXIS_MEAN else task
                yield Metric(
                    name=f"{name}, {score}", axis=str(axis), task=task, score=score, value=value[task], se=se[task]
                )


def _measured(
    metric: Metric, checkpoints: pd.DataFrame, *, by_seeds: bool, rng: np.random.Generator
) -> tuple[dict[str, Any], Array | None]:
    """A row of the ranking, and draws of the SNR, shape (sample,), where it can be measured."""
    points = checkpoints.assign(value=metric.value, se=metric.se).dropna(subset=["value"])
    standing = points[points["stands"]]
    counts = standing.groupby("level")["architecture"].nunique()
    standing = standing[standing["level"].isin(counts.index[counts > 1])]
    cells = standing.groupby(["level", "design"], sort=False).agg(
        mean=("value", "mean"), n=("value", "size"), variance=("se", lambda se: (se**2).mean() / len(se))
    )
    about = points["value"] - points.groupby("design")["value"].transform("mean")
    freedom = len(points) - points["design"].nunique()
    row = {
        "metric": metric.name, "axis": metric.axis, "task": metric.task, "score": metric.score,
        "checkpoints": len(points), "architectures": standing["architecture"].nunique(),
        "budgets": standing["level"].nunique(), "seed_differences": freedom,
        "example_se": float(np.sqrt((standing["se"] ** 2).mean())), "reason": "",
    }  # fmt: skip
    spread_freedom = len(cells) - cells.index.get_level_values(0).nunique()
    if spread_freedom < 2:
        reason = "fewer than three architectures at a budget, or two at each of two"
    elif by_seeds and freedom == 0:
        reason = "no design was evaluated with two seeds"
    elif by_seeds and (about**2).sum() == 0:
        reason = "its seeds do not differ"
    elif not by_seeds and not (cells["variance"] > 0).all():
        reason = "neither other seeds nor standard errors"
    else:
        level = np.unique(cells.index.get_level_values(0), return_inverse=True)[1]
        scale = 1 / cells["n"] if by_seeds else cells["variance"]
        signal, noise, order = posterior(
            Cells(
                level=level, mean=cells["mean"].to_numpy(), scale=scale.to_numpy(dtype=float),
                squares=float((about**2).sum()) if by_seeds else math.nan, freedom=freedom,
            ),
            rng=rng,
        )  # fmt: skip
        snr = signal / noise
        low, middle, high = np.quantile(snr, [0.05, 0.5, 0.95])
        row |= {
            "signal": float(np.median(signal)), "noise": float(np.median(noise)), "snr": middle, "snr_q05": low,
            "snr_q95": high, "same_order": float(order.mean()),
        }  # fmt: skip
        return row, snr
    return row | {"reason": reason}, None


def _ranked(table: pd.DataFrame, draws: dict[int, Array]) -> pd.DataFrame:
    """The rows in their order, with ranks and probabilities; ``draws`` by row, of which the validation loss is 0."""
    table = table.reindex(columns=[*dict.fromkeys([*table.columns, *_NUMBERS])])
    if draws:
        rows, snr = list(draws), np.array(list(draws.values()))
        ranks = (-snr).argsort(axis=0).argsort(axis=0) + 1
        table.loc[rows, ["rank_q05", "rank", "rank_q95"]] = np.quantile(ranks, [0.05, 0.5, 0.95], axis=1).T
        table.loc[rows, "p_best"] = (ranks == 1).mean(axis=1)
        if 0 in draws:
            table.loc[rows[1:], "p_better"] = (snr[1:] > draws[0]).mean(axis=1)
    return table.sort_values("snr", ascending=False, na_position="last", kind="stable").reset_index(drop=True)
