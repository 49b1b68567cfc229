"""Runs of two recipes that differ in nothing else, and how far apart their losses are: no law is involved.

Two things can be held equal besides the network (r, width, layers): the training budget in FLOPs, or the tokens. Where
a recipe trains a token more cheaply than the other these are different questions, and their answers can differ in sign.

Pairs of one cell (budget, r) err together, so the mean over pairs has a cluster-robust standard error with the cells
as clusters, and a t distribution with as many degrees of freedom as there are cells, less one.

References
----------
Cameron, Miller, "A practitioner's guide to cluster-robust inference", J. Human Resources 50 (2015), sections II, VI.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.inputs import NEAR, optional
from bayeslaw.schema import STEP

Array = NDArray[np.float64]
Index = NDArray[np.int64]

MATCHINGS = {"budget": "FLOPs", "tokens": "tokens"}
"""What may be held equal besides the network, and what it is counted in."""

DATA_EXPONENT = 0.4
"""Loss is taken as linear in D^-.4 between neighbouring runs of the other recipe that differ in tokens alone. Published
exponents are .25 to .6; on the shipped runs .25 or .6 instead moves no mean by more than .0025 nats."""

_LAYERS = ("prelude_layers", "shared_layers", "coda_layers", "seq_len", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean, or a slope, with its uncertainty.

    Parameters
    ----------
    mean, se : float
        nats per token. ``se`` is NaN for a single pair.
    q05, q95 : float
        90 % interval.
    p_lower : float
        P(< 0): that the recipe loses less.
    pairs, cells : int
        What it rests on.
    """

    mean: float
    se: float
    q05: float
    q95: float
    p_lower: float
    pairs: int
    cells: int

    def __str__(self) -> str:
        if not np.isfinite(self.se):
            return f"{self.mean:+.4f}"
        return f"{self.mean:+.4f} [{self.q05:+.4f}, {self.q95:+.4f}]"

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class MatchedGain:
    """Loss of a recipe's runs less that of the anchor's matched ones.

    Parameters
    ----------
    recipe, anchor : str
    matching : str
        One of `MATCHINGS`.
    overall : Estimate or None
        Over all pairs; None where there is none.
    by_recurrences : dict of float to Estimate
    trend : Estimate or None
        Change of the difference for each step of compute (a factor 10^(1/3)) at equal r; None below three cells or two
        budgets.
    tokens_ratio : float
        Geometric mean of the recipe's tokens over the anchor's.
    unmatched : int
        Designs of the recipe without a partner.
    """

    recipe: str
    anchor: str
    matching: str
    overall: Estimate | None
    by_recurrences: dict[float, Estimate]
    trend: Estimate | None
    tokens_ratio: float
    unmatched: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "all": self.overall and self.overall.as_dict(),
            "recurrences": {f"{r:g}": one.as_dict() for r, one in self.by_recurrences.items()},
            "trend": self.trend and self.trend.as_dict(),
            "tokens_ratio": self.tokens_ratio,
            "unmatched": self.unmatched,
        }

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Texts for a table: what is held equal, r, difference with its interval, P(lower), pairs, cells, tokens."""
        said = MATCHINGS[self.matching]
        if self.overall is None:
            yield (said, "all", "no pairs", "", "0", "0", "")
            return
        rows = {"all": self.overall, **{f"{r:g}": one for r, one in self.by_recurrences.items()}}
        if self.trend is not None:
            rows["per step"] = self.trend
        for at, (name, one) in enumerate(rows.items()):
            chance = f"{one.p_lower:.3f}" if np.isfinite(one.se) else ""
            yield (
                said if not at else "", name, str(one), chance, str(one.pairs), str(one.cells),
                f"x {self.tokens_ratio:.2f}" if not at else "",
            )  # fmt: skip


def matched_gain(runs: pd.DataFrame, recipe: str, anchor: str, *, matching: str = "budget") -> MatchedGain:
    """Pair runs of two recipes and average their differences in loss.

    Parameters
    ----------
    runs : pandas.DataFrame
        A run table.
    recipe, anchor : str
        Runs that differ in their seed alone are averaged first.
    matching : str
        "budget": partners have the same training budget, within `bayeslaw.inputs.NEAR`; none where runs record neither
        budget nor FLOPs (6 N D would say that a recipe with more parameters in its block costs more). "tokens": the
        partner's loss is interpolated between runs of the anchor that differ in tokens alone, see `DATA_EXPONENT`, and
        never carried further than `NEAR` beyond them.
    """
    pairs, unmatched = matched_pairs(runs, recipe, anchor, matching=matching)
    r, difference = (pairs[name].to_numpy(dtype=float) for name in ("recurrences", "difference"))
    ratio = pairs["tokens_ratio"].to_numpy(dtype=float)
    level = _levels(pairs["spent"].to_numpy(dtype=float))
    cell = _numbered(np.column_stack([level, r]))
    return MatchedGain(
        recipe=recipe,
        anchor=anchor,
        matching=matching,
        overall=clustered_mean(difference, cell) if len(pairs) else None,
        by_recurrences={float(each): clustered_mean(difference[r == each], cell[r == each]) for each in np.unique(r)},
        trend=_trend(difference, np.log(pairs["spent"].to_numpy(dtype=float)) / np.log(STEP), r, cell),
        tokens_ratio=float(np.exp(np.log(ratio).mean())) if len(pairs) else float("nan"),
        unmatched=unmatched,
    )


def matched_pairs(
    runs: pd.DataFrame, recipe: str, anchor: str, *, matching: str = "budget"
) -> tuple[pd.DataFrame, int]:
    """The pairs behind `matched_gain`.

    Returns
    -------
    pairs : pandas.DataFrame
        One row a pair: recurrences, spent (FLOPs of the recipe's run, as aimed at where a budget says), difference
        (recipe's loss less the anchor's, nats per token), tokens_ratio (the recipe's tokens over the anchor's).
    unmatched : int
        Designs of the recipe without a partner.
    """
    own, others = (_designs(runs, name) for name in (recipe, anchor))
    both = runs[runs["recipe"].isin([recipe, anchor])]
    recorded = np.isfinite(optional(both, "budget", np.nan)) | np.isfinite(optional(both, "flops", np.nan))
    if matching == "budget" and not recorded.all():
        others = {}
    rows, unmatched = [], 0
    for key, design in own.items():
        partner = others.get(key)
        for spent, tokens, loss in design:
            found = None if partner is None else _partner(partner, spent, tokens, matching)
            if found is None:
                unmatched += 1
            else:
                rows.append((key[0], spent, loss - found[1], tokens / found[0]))
    return pd.DataFrame(rows, columns=["recurrences", "spent", "difference", "tokens_ratio"]), unmatched


def clustered_mean(values: Array, cells: Index) -> Estimate:
    """Mean with a cluster-robust standard error; with one cell, that of its values as if they were independent."""
    mean = float(values.mean())
    found, index = np.unique(cells, return_inverse=True)
    sums = np.bincount(index, weights=values - mean) if len(found) > 1 else values - mean
    return _estimate(mean, sums / len(values), len(sums) - 1, len(values), len(found))


def _trend(values: Array, steps: Array, r: Array, cells: Index) -> Estimate | None:
    """Slope over steps of compute, with a level for each r."""
    count = len(np.unique(cells))
    if count < 3 or np.ptp(steps) < 0.5:
        return None
    apart = np.zeros_like(steps)
    centred = np.zeros_like(values)
    for each in np.unique(r):
        rows = r == each
        apart[rows], centred[rows] = steps[rows] - steps[rows].mean(), values[rows] - values[rows].mean()
    square = float((apart**2).sum())
    if square < 0.1:
        return None
    slope = float(apart @ centred / square)
    sums = np.bincount(_numbered(cells[:, None]), weights=apart * (centred - slope * apart) / square)
    return _estimate(slope, sums, max(1, count - len(np.unique(r)) - 1), len(values), count)


def _estimate(mean: float, shares: Array, freedom: int, pairs: int, cells: int) -> Estimate:
    """From each cluster's share in the error of the mean, with the small-sample factor G / (G - 1)."""
    from scipy import stats

    count = len(shares)
    if count < 2:
        nan = float("nan")
        return Estimate(mean=mean, se=nan, q05=nan, q95=nan, p_lower=nan, pairs=pairs, cells=cells)
    se = max(float(np.sqrt(count / (count - 1) * (shares**2).sum())), 1e-12)
    half = float(stats.t.ppf(0.95, freedom)) * se
    return Estimate(
        mean=mean, se=se, q05=mean - half, q95=mean + half, p_lower=float(stats.t.cdf(-mean / se, freedom)),
        pairs=pairs, cells=cells,
    )  # fmt: skip


def _designs(runs: pd.DataFrame, recipe: str) -> dict[tuple[float, ...], list[tuple[float, float, float]]]:
    """By network, what it was trained on: (FLOPs, tokens, loss) for each budget, seeds averaged."""
    size = "d_model" if "d_model" in runs and runs["d_model"].notna().all() else "n_once"
    layers = [name for name in _LAYERS if name in runs and runs[name].notna().all()]
    chosen = runs[runs["recipe"] == recipe]
    flops = optional(chosen, "flops", np.nan)
    tokens = chosen["tokens"].to_numpy(dtype=float)
    flops = np.where(np.isfinite(flops), flops, 6 * chosen["n_unique"].to_numpy(dtype=float) * tokens)
    budget = optional(chosen, "budget", np.nan)
    spent = np.where(np.isfinite(budget), budget, flops)
    loss = chosen["loss"].to_numpy(dtype=float)
    keys = chosen[["recurrences", size, *layers]].to_numpy(dtype=float)
    out: dict[tuple[float, ...], list[tuple[float, float, float]]] = {}
    for key in dict.fromkeys(map(tuple, keys.tolist())):
        rows = np.flatnonzero((keys == np.array(key)).all(axis=1))
        level = _levels(spent[rows])
        out[key] = [
            (float(spent[at].mean()), float(tokens[at].mean()), float(loss[at].mean()))
            for at in (rows[level == each] for each in np.unique(level))
        ]
    return out


def _partner(
    design: list[tuple[float, float, float]], spent: float, tokens: float, matching: str
) -> tuple[float, float] | None:
    """(tokens, loss) of the other recipe's run to hold against, None where there is none."""
    flops, known, loss = (np.array(values) for values in zip(*design, strict=True))
    if matching == "budget":
        nearest = int(np.abs(np.log(flops / spent)).argmin())
        near = max(flops[nearest] / spent, spent / flops[nearest]) <= NEAR
        return (float(known[nearest]), float(loss[nearest])) if near else None
    order = np.argsort(known)
    known, loss = known[order], loss[order]
    if not known[0] / NEAR <= tokens <= known[-1] * NEAR:
        return None
    if len(known) == 1:
        return float(known[0]), float(loss[0])
    after = int(np.clip(np.searchsorted(known, tokens), 1, len(known) - 1))
    x, (x0, x1) = tokens**-DATA_EXPONENT, known[after - 1 : after + 1] ** -DATA_EXPONENT
    slope = (loss[after] - loss[after - 1]) / (x1 - x0)
    return tokens, float(loss[after - 1] + slope * (x - x0))


def _levels(values: Array) -> Index:
    """Number of each value's level, from 0: a new one begins where the next larger value is further than `NEAR`."""
    order = np.argsort(values)
    level = np.empty(len(values), dtype=np.int64)
    level[order] = np.cumsum(np.concatenate([[False], np.diff(np.log(values[order])) > np.log(NEAR)])[: len(values)])
    return level


def _numbered(rows: NDArray[Any]) -> Index:
    """Number of each distinct row."""
    index: Index = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return index
