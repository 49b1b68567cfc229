"""Point fits of the laws: the parameters of least Huber loss, or least squares, in milliseconds, without priors.

A point fit says nothing of uncertainty; `bayeslaw.point.huber` adds the published bootstrap, `bayeslaw.fit` the
posterior.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.errors import FitError, UsageError
from bayeslaw.inputs import Grouping, Inputs, inputs_of
from bayeslaw.laws import CORE, make_law
from bayeslaw.point.ending import agreeing, messages, parameters_of, worths
from bayeslaw.point.objective import Problem
from bayeslaw.point.varpro import SMALL_GRADIENT, Optimum, search
from bayeslaw.runs import RunTable, load_runs
from bayeslaw.schema import INJECTION_IN
from bayeslaw.version import versions

Array = NDArray[np.float64]

LOSSES = ("huber", "ls")
DELTA = 1e-3
"""Where Huber's loss turns linear, on log loss: the published fits' value."""
STARTS = 4


class Status(StrEnum):
    """What the point is."""

    CONVERGED = "converged"
    BOUNDARY = "boundary"
    NOT_OPTIMUM = "not an optimum"


@dataclass(frozen=True, kw_only=True)
class PointFit:
    """Parameters of least loss; prints as a table.

    Parameters
    ----------
    law, map, injection_in : str
        The law's terms, its recurrence map, and where the injection's parameters count.
    recipes : tuple of str
    parameters : dict
        In natural units: E (nats per token), A, B, alpha, beta, k when coupled, then the map's own. A map parameter is
        {recipe: value} when there are several recipes, every parameter {architecture: value} for chinchilla. None
        stands for a parameter that no run tells of.
    worth, elasticity : dict
        g(r) and d log g / d log r by r, for the looped r of the runs; {recipe: {r: value}} when there are several
        recipes.
    objective : float
        Sum over the runs, on log loss: of Huber's loss, or of squares.
    loss : str
        "huber" or "ls".
    delta : float or None
        Of Huber's loss.
    n_runs : int
    r2, rmse : float
        Of the losses, in nats per token.
    residuals : Series
        Actual minus predicted loss by run_id, nats per token.
    status : Status
    gradient : float
        Scaled gradient, see `bayeslaw.point.varpro.Optimum`; of the worst architecture for chinchilla.
    n_starts, n_agree, n_near : int
        Polished starts; those whose objective is within 1e-6 and within 1 % of the best (relative). Of the architecture
        with the fewest for chinchilla.
    messages : tuple of str
        What a person should know before using the parameters.
    seconds : float
    source, data_hash : str
        Of the run table.
    """

    law: str
    map: str
    injection_in: str
    recipes: tuple[str, ...]
    parameters: dict[str, Any]
    worth: dict[Any, Any]
    elasticity: dict[Any, Any]
    objective: float
    loss: str
    delta: float | None
    n_runs: int
    r2: float
    rmse: float
    residuals: pd.Series[float]
    status: Status
    gradient: float
    n_starts: int
    n_agree: int
    n_near: int
    messages: tuple[str, ...]
    seconds: float
    source: str
    data_hash: str

    def as_dict(self) -> dict[str, Any]:
        """All but the residuals, ready for JSON."""
        fit = {
            "value": self.objective, "delta": self.delta, "status": str(self.status), "gradient": self.gradient,
            "n_starts": self.n_starts, "n_agree": self.n_agree, "n_near": self.n_near, "r2": _number(self.r2),
            "rmse": self.rmse, "seconds": self.seconds,
        }  # fmt: skip
        return {
            "law": self.law, "map": self.map, "injection_in": self.injection_in, "objective": self.loss,
            "parameters": _texts(self.parameters), "worth": _texts(self.worth), "elasticity": _texts(self.elasticity),
            "fit": fit, "messages": list(self.messages), "data_hash": self.data_hash, "source": self.source,
            "n_runs": self.n_runs, "versions": versions("numpy", "scipy", "numba"),
        }  # fmt: skip

    def __str__(self) -> str:
        loss = "least squares" if self.delta is None else f"Huber {self.delta:g}"
        groups = list(dict.fromkeys(name for value in self.parameters.values() for name in _groups(value)))
        groups = groups if len(groups) == 1 else [name for name in groups if name]
        lines = [
            f"{self.source}: {self.n_runs} runs, data {self.data_hash}",
            f"point fit of the {self.law} law, map {self.map}",
            f"injection in {self.injection_in}, {loss} on log loss: {self.objective:.6g}, R2 {self.r2:.4f}, "
            f"RMSE {self.rmse:.4f} nats",
            f"{self.status}: scaled gradient {self.gradient:.1e}, {self.n_agree} of {self.n_starts} starts agree",
            "",
            " " * 10 + "".join(f"  {name:>16.16s}" for name in groups),
        ]
        for name, value in self.parameters.items():
            cells = [value] * len(groups) if not isinstance(value, dict) else [value.get(group) for group in groups]
            lines.append(f"{name:10s}" + "".join("  " + _cell(cell) for cell in cells))
        for title, table in (("g", self.worth), ("e", self.elasticity)):
            nested = table if any(isinstance(value, dict) for value in table.values()) else {groups[0]: table}
            for r in sorted({r for values in nested.values() for r in values}):
                cells = [nested.get(group, {}).get(r) for group in groups]
                lines.append(f"{f'{title}({r:g})':10s}" + "".join("  " + _cell(cell) for cell in cells))
        if self.worth:
            lines.append("g(r): worth in unique blocks; e(r): d log g / d log r, for the free map of the piece up to r")
        return "\n".join([*lines, *(f"! {message}" for message in self.messages)])


def point_fit(
    source: RunTable | pd.DataFrame | str | Path,
    *,
    law: str = "additive",
    map: str | None = None,
    loss: str = "huber",
    injection_in: str = "once",
    recipe: str | None = None,
    delta: float = DELTA,
    seed: int = 0,
) -> PointFit:
    """Fit a law by variable projection: a grid of exponents, its best points polished by Newton's method.

    Parameters
    ----------
    source : RunTable, DataFrame, Path or str
        Runs, or what `bayeslaw.load_runs` reads them from.
    law : str
        "additive", "coupled", or "chinchilla": a fit by n_unique for each architecture (recipe with one r).
    map : str, optional
        The recurrence map, one of `bayeslaw.laws.MAPS`; default power. Each recipe has its own map parameters and
        shares the rest.
    loss : str
        "huber": sum over the runs of Huber's loss of the difference of log losses. "ls": its sum of squares.
    injection_in : str
        "once", "rec", "nowhere" or "regression" (the published fits).
    recipe : str, optional
        The one recipe to fit.
    delta : float
        Where Huber's loss turns linear, on log loss.
    seed : int
        Of the one start that is drawn beside the grid's.

    Returns
    -------
    PointFit

    Raises
    ------
    UsageError
        An option that there is not.
    FitError
        Fewer runs than parameters.

    Examples
    --------
    >>> round(point_fit("isodepth", injection_in="regression").parameters["phi"], 3)
    0.459
    """
    began = time.perf_counter()
    table, problems = problems_of(
        source, law=law, map=map, loss=loss, injection_in=injection_in, recipe=recipe, delta=delta
    )
    rng = np.random.default_rng(seed)
    ends = {name: search(problem, STARTS, rng) for name, problem in problems.items()}
    return fit_of(table, problems, ends, loss=loss, injection_in=injection_in, began=began)


def problems_of(
    source: RunTable | pd.DataFrame | str | Path, *, law: str, map: str | None, loss: str, injection_in: str,
    recipe: str | None = None, delta: float = DELTA,
) -> tuple[RunTable, dict[str, Problem]]:  # fmt: skip
    """The run table and what to minimise: one problem under the name "", or one for each architecture (chinchilla).

    Parameters and errors are those of `point_fit`.
    """
    if loss not in LOSSES:
        raise UsageError(f"loss = {loss!r}", allowed=", ".join(LOSSES))
    if injection_in not in INJECTION_IN:
        raise UsageError(f"injection_in = {injection_in!r}", allowed=", ".join(INJECTION_IN))
    if loss == "huber" and not (math.isfinite(delta) and delta > 0):
        raise UsageError(f"delta = {delta}", allowed="a number above 0, on log loss", do="1e-3 is the published value")
    make_law(law, map)
    table = source if isinstance(source, RunTable) else load_runs(source, recipe=recipe)
    if isinstance(source, RunTable) and recipe is not None:
        table = replace(load_runs(source.runs, recipe=recipe), source=source.source)
    # The count of the injection has no part in a fit on n_unique.
    inputs = inputs_of(table.runs, injection_in="once" if law == "chinchilla" else injection_in)
    parts = (
        {"": inputs} if law != "chinchilla" else _architectures(inputs, table.runs["n_unique"].to_numpy(dtype=float))
    )
    problems = {}
    for name, part in parts.items():
        problem = Problem(
            law=make_law(law, map, levels=part.looped), inputs=part, weight=np.ones(len(part.loss)),
            delta=delta if loss == "huber" else math.inf,
        )  # fmt: skip
        if problem.size > len(part.loss):
            raise FitError(
                f"{len(part.loss)} runs{f' of {name}' if name else ''} for {problem.size} parameters",
                allowed=f"at least {problem.size} runs",
                do="add runs, leave the group out with --where, or sample the posterior: with --allow-prior-dominated "
                "its priors stand in",
            )
        problems[name] = problem
    return table, problems


def _architectures(inputs: Inputs, n_unique: Array) -> dict[str, Inputs]:
    """Inputs of each architecture, its parameters all run once."""
    factor = inputs.factors["architecture"]
    out = {}
    for index, name in enumerate(factor.levels):
        rows = factor.index == index
        alone = Grouping(levels=(name,), index=np.zeros(rows.sum(), dtype=np.int64))
        arrays = {key: getattr(inputs, key)[rows] for key in ("tokens", "loss", "loss_se", "flops")}
        cell = inputs.cell and Grouping(levels=inputs.cell.levels, index=inputs.cell.index[rows])
        out[name] = Inputs(
            **arrays, n_once=n_unique[rows], n_rec=np.zeros(rows.sum()), recurrences=np.ones(rows.sum()),
            factors=dict.fromkeys(inputs.factors, alone), cell=cell,
            run=Grouping(levels=inputs.run.levels, index=inputs.run.index[rows]),
        )  # fmt: skip
    return out


def fit_of(
    table: RunTable, problems: dict[str, Problem], ends: dict[str, list[Optimum]], *, loss: str, injection_in: str,
    began: float,
) -> PointFit:  # fmt: skip
    """The result of polished starts, by the names of `problems_of`."""
    best = {name: min(group, key=lambda end: end.objective) for name, group in ends.items()}
    first = next(iter(problems.values()))
    loss_of, predicted = table.runs["loss"].to_numpy(dtype=float), np.full(len(table.runs), np.nan)
    architecture = None if "" in problems else inputs_of(table.runs, injection_in="once").factors["architecture"]
    for index, (name, problem) in enumerate(problems.items()):
        rows = slice(None) if architecture is None else architecture.index == index
        predicted[rows] = np.exp(problem.predicted(best[name].theta))
    residuals = loss_of - predicted
    spread = float(((loss_of - loss_of.mean()) ** 2).sum())
    sheets = {name: parameters_of(problem, best[name].theta) for name, problem in problems.items()}
    notes, edge = [], False
    for name, problem in problems.items():
        found, bound = messages(problem, best[name], ends[name])
        notes += [f"{name}: {note}" if name else note for note in found]
        edge = edge or bound
    gradient = max(end.gradient for end in best.values())
    status = Status.NOT_OPTIMUM if gradient > SMALL_GRADIENT else Status.BOUNDARY if edge else Status.CONVERGED
    shared = sheets.get("") or {name: {arch: sheets[arch][name] for arch in sheets} for name in CORE}
    worth, elasticity = worths(first, best[next(iter(problems))].theta)
    counts = [[agreeing(group, tolerance) for group in ends.values()] for tolerance in (1e-6, 1e-2)]
    scale = 1.0 if loss == "huber" else 2.0  # Huber's loss begins as half the square
    return PointFit(
        law=first.law.terms, map=first.law.map.name, injection_in=injection_in,
        recipes=tuple(problems) if "" not in problems else first.inputs.recipes,
        parameters=shared,
        worth=worth, elasticity=elasticity, objective=scale * sum(end.objective for end in best.values()), loss=loss,
        delta=first.delta if loss == "huber" else None, n_runs=len(table.runs),
        r2=1 - float((residuals**2).sum()) / spread if spread > 0 else math.nan,
        rmse=float(np.sqrt((residuals**2).mean())),
        residuals=pd.Series(residuals, index=table.runs["run_id"], name="residual"), status=status, gradient=gradient,
        n_starts=min(len(group) for group in ends.values()), n_agree=min(counts[0]), n_near=min(counts[1]),
        messages=(*table.notes, *notes), seconds=time.perf_counter() - began, source=table.source,
        data_hash=table.data_hash,
    )  # fmt: skip


@cache
def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _groups(value: Any) -> list[str]:
    return [str(name) for name in value] if isinstance(value, dict) else [""]


def _cell(value: Any) -> str:
    return f"{'-' if value is None else format(value, '.5g'):>14s}"


def _texts(table: dict[Any, Any]) -> dict[str, Any]:
    """As JSON has it: texts for keys, None for what is not finite."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        out[key if isinstance(key, str) else f"{key:g}"] = (
            _texts(value) if isinstance(value, dict) else value if finite else None
        )
    return out
