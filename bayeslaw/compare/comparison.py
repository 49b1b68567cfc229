"""Models of the same runs side by side: what each predicted of runs that it did not see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bayeslaw.compare.parts import BUDGET, CELL, FORWARD, Split
from bayeslaw.ranking import DISTINGUISHED, Ranking, rank
from bayeslaw.scores import Forecast, Scores, joined


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """One model, fitted to all runs and to the part of every split.

    Parameters
    ----------
    name : str
    complexity : int
        Number of free numbers, see `bayeslaw.compare.models.complexity`.
    passed : bool
        Whether the sampler converged on all runs.
    loo : arviz_stats.ELPDData
        Of log loss, per run.
    forecasts : tuple of Forecast
        In the order of the splits.
    """

    name: str
    complexity: int
    passed: bool
    loo: Any
    forecasts: tuple[Forecast, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much less than the best model one gives each held-out run, in mean log density.

    Parameters
    ----------
    mean : float
        0 or below, per run.
    se : float
        The runs of a cell taken together, since they miss together; nan where one cell alone was held out.
    cells : int
    """

    mean: float
    se: float
    cells: int

    @property
    def distinguished(self) -> bool:
        """Whether the runs tell the model from the best: beyond `DISTINGUISHED` errors, more where cells are few."""
        if self.cells < 2:
            return False
        # As sure as for a normal difference, with the standard error itself learnt from the cells (Student).
        return bool(-self.mean > float(stats.t.isf(stats.norm.sf(DISTINGUISHED), self.cells - 1)) * self.se)


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Models of the same runs.

    Parameters
    ----------
    source : str
    n_runs : int
    models : dict of str to Model
    splits : tuple of Split
    notes : tuple of str
        Models, groups and origins that could not be used, and why.
    """

    source: str
    n_runs: int
    models: dict[str, Model]
    splits: tuple[Split, ...]
    notes: tuple[str, ...]

    @cached_property
    def ranking(self) -> Ranking:
        """The models by PSIS-LOO."""
        return rank(
            {name: model.loo for name, model in self.models.items()},
            {name: model.complexity for name, model in self.models.items()},
        )

    @cached_property
    def ranks(self) -> dict[str, dict[str, Any]]:
        """The ranking's rows by model, best first."""
        rows: dict[Any, dict[Any, Any]] = self.ranking.table.to_dict("index")
        return {str(name): dict(row) for name, row in rows.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The models, best first by PSIS-LOO."""
        return tuple(self.ranks)

    @property
    def preferred(self) -> str:
        """The simplest model that the runs do not tell from the best by PSIS-LOO."""
        return self.ranking.preferred

    @property
    def main(self) -> Split | None:
        """The forecast that models are judged by; None where there are too few budgets."""
        return next((split for split in self.splits if split.main), None)

    def of(self, kind: str) -> tuple[int, ...]:
        """Places of the splits of a kind."""
        return tuple(place for place, split in enumerate(self.splits) if split.kind == kind)

    def forecast(self, name: str, places: Iterable[int]) -> Forecast | None:
        """A model's forecasts of several splits as one; None where there is none."""
        parts = [self.models[name].forecasts[place] for place in places]
        return joined(parts) if parts else None

    def scores(self, name: str, kind: str) -> Scores | None:
        """How well a model did over all splits of a kind, for `FORWARD` in the main one; None where there is none."""
        forecast = self.forecast(name, self._judged(kind))
        return None if forecast is None else forecast.scores

    def differences(self, kind: str) -> dict[str, Difference]:
        """Log density less that of the model with the best, for the splits of `scores`; empty where there is none."""
        places = self._judged(kind)
        if not places:
            return {}
        density = {name: self.forecast(name, places).log_density for name in self.names}  # type: ignore[union-attr]
        best = max(density, key=lambda name: float(density[name].mean()))
        # A cell that is forecast in two splits counts once in each.
        cells = np.concatenate([1_000_000 * place + self.splits[place].cells for place in places])
        return {name: _difference(values - density[best], cells) for name, values in density.items()}

    def _judged(self, kind: str) -> tuple[int, ...]:
        return tuple(place for place in self.of(kind) if kind != FORWARD or self.splits[place].main)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: models (best first), preferred, verdict, notes."""
        return {
            "source": self.source,
            "n_runs": self.n_runs,
            "models": [self._row(name) for name in self.names],
            "preferred": self.preferred,
            "notes": list(self.notes),
        }

    def _row(self, name: str) -> dict[str, Any]:
        row = self.ranks[name]
        told: dict[str, Any] = {
            "name": name,
            **{key: float(row[key]) for key in ("elpd", "elpd_diff", "se_diff", "weight")},
            "forward": _five(self.scores(name, FORWARD)),
            "forward_diff": _told(self.differences(FORWARD).get(name)),
            "by_origin": [
                {"trained_to": self.splits[place].trained_to, **self.models[name].forecasts[place].scores.as_dict()}
                for place in self.of(FORWARD)
            ],
        }
        for kind in (CELL, BUDGET):
            scores = self.scores(name, kind)
            difference = _told(self.differences(kind).get(name))
            told[f"leave_{kind}"] = None if scores is None else {**scores.as_dict(), "difference": difference}
        return {
            **told,
            "complexity": int(row["complexity"]),
            "high_pareto_k": int(row["high_pareto_k"]),
            "passed": self.models[name].passed,
            "distinguished": bool(row["distinguished"]),
        }


def _five(scores: Scores | None) -> dict[str, float] | None:
    return None if scores is None else {name: value for name, value in scores.as_dict().items() if name != "runs"}


def _told(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "log_density": difference.mean, "se": difference.se, "cells": difference.cells,
        "distinguished": difference.distinguished,
    }  # fmt: skip


def _difference(values: NDArray[np.float64], cells: NDArray[np.int64]) -> Difference:
    """The mean with a standard error that takes the runs of a cell together."""
    mean = float(values.mean())
    _, index = np.unique(cells, return_inverse=True)
    count = int(index.max()) + 1
    sums = np.bincount(index, weights=values - mean)
    se = float(np.sqrt(count / (count - 1) * (sums**2).sum()) / len(values)) if count > 1 else float("nan")
    return Difference(mean=mean, se=se, cells=count)
