"""The law fitted to what happens within cells, or between them, alone: one that is true gives the same both ways."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bayeslaw import laplace
from bayeslaw.checks.cards import CheckCard, NotApplicableError, judged
from bayeslaw.checks.residuals import Residuals, advice
from bayeslaw.deviation import PREFIX, Deviating
from bayeslaw.inputs import Grouping, Inputs
from bayeslaw.likelihood import named, of_runs, predicted_log_loss
from bayeslaw.priors import Priors
from bayeslaw.spec import Spec
from bayeslaw.structure import Structure, structure_of

Array = NDArray[np.float64]

TREND = 3.0
"""Standard errors from which on cell offsets trend."""

APART = 2.0
"""Standard errors from which on the exponents within and between cells differ."""

LEAST_LEVELS = 3
"""Budgets that a trend needs."""

ELSEWHERE = "run `bayeslaw check` with --structures on for the answer under other structures"
"""Where a fit alone cannot settle the exponent; `bayeslaw.checks.criticism.criticise` may have that answer."""

DRAWS = 200
"""Draws of the normal approximation behind a standard error."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The law fitted to a part of what the runs say.

    Parameters
    ----------
    log_loss : ndarray, shape (1 + draw, run)
        Of the law at the mode, then at draws of the normal approximation there.
    exponents : ndarray, shape (1 + draw, recipe)
        log g(r) / log r at the largest r: phi for the power map.
    """

    log_loss: Array
    exponents: Array


@dataclass(frozen=True, kw_only=True)
class Within:
    """The two partial fits of one fit's law, made when first asked for.

    Deviations from the map that the fit has found are taken off the losses beforehand; the law is then fitted with the
    map alone.

    Parameters
    ----------
    left : Residuals
    priors : Priors
    rng : numpy Generator
    """

    left: Residuals
    priors: Priors
    rng: np.random.Generator

    @cached_property
    def _plain(self) -> tuple[Structure, Inputs]:
        left = self.left
        inputs = left.inputs
        mapped = left.structure.law.map
        if isinstance(mapped, Deviating):
            own = of_runs(left.parameters, left.structure, inputs)
            full = [own[name] for name in mapped.parameters]
            alone = [
                value if not name.startswith(PREFIX) else 0 * value
                for name, value in zip(mapped.parameters, full, strict=True)
            ]
            r = xr.DataArray(inputs.recurrences, dims="run")
            shift = (mapped.log_worth(r, full) - mapped.log_worth(r, alone)).mean(("chain", "draw")).values
            centre = inputs.centre
            inputs = replace(inputs, loss=inputs.loss * np.exp(-left.by_worth * shift))
            inputs.__dict__["centre"] = centre
        return plain_structure(left.structure, inputs, self.priors)

    @cached_property
    def inside(self) -> Part:
        """With a free offset for each cell: only differences between the runs of a cell count."""
        structure, inputs = self._plain
        cells = self.left.cells
        return _part(structure, inputs, self.priors, np.eye(len(inputs.loss)) - cells.means[cells.index], self.rng)

    @cached_property
    def between(self) -> Part:
        """By the mean log loss of each cell alone."""
        structure, inputs = self._plain
        cells = self.left.cells
        rows = cells.means * np.sqrt(np.bincount(cells.index))[:, None]
        return _part(structure, inputs, self.priors, rows, self.rng)

    @property
    def log_loss(self) -> Array:
        """What was fitted, shape (run,)."""
        return self._plain[1].log_loss

    def require(self) -> None:
        """Make sure that there are cells to look into."""
        cells = self.left.cells
        cells.require_curved()
        if len(cells.flops) <= self._plain[0].size:
            raise NotApplicableError(f"{len(cells.flops)} cells do not fix a law of {self._plain[0].size} parameters")


def offsets(left: Residuals, parts: Within, title: str) -> CheckCard:
    """Trend over the budgets of what each cell is off the law that fits best within cells."""
    parts.require()
    cells = left.cells
    if len(np.unique(cells.level)) < LEAST_LEVELS:
        raise NotApplicableError(f"{len(np.unique(cells.level))} budgets show no trend")
    off = (parts.log_loss - parts.inside.log_loss) @ cells.means.T
    off = off - off.mean(axis=1, keepdims=True)
    x = cells.steps - cells.steps.mean()
    slope = x / (x @ x)
    trend = off @ slope
    # Beside the law's parameters: errors of single runs, the cells' effects of the fit, and how far cells scatter.
    about = off[0] - trend[0] * x
    scattered = float(np.sqrt((about @ about) / max(1, len(x) - 2) * (slope @ slope)))
    error = max(float(np.hypot(trend[1:].std(), left.error(slope @ cells.means))), scattered)
    t = float(trend[0] / error)
    return CheckCard(
        name="offsets",
        title=title,
        verdict=judged(abs(t) > TREND),
        value=t,
        threshold=TREND,
        weight=abs(t) / TREND,
        reading=f"fitted within cells alone, the law leaves cells off by {trend[0]:+.4f} ± {error:.4f} of log loss a "
        f"budget step (t = {t:.1f}, tolerated up to {TREND:.0f})",
        advice=advice(left.structure, "forecasts beyond the trained budgets may be off to one side"),
        header=("cell", "off the law, log loss"),
        rows=tuple((name, f"{value:+.4f}") for name, value in zip(left.cell_names, off[0], strict=True)),
        arrays={"flops": cells.flops, "recurrences": cells.recurrences, "offset": off[0]},
    )


def phi_within(left: Residuals, parts: Within, title: str) -> CheckCard:
    """The exponent of a recurrence as runs of a cell show it, against what the cells' means show."""
    if not (left.inputs.recurrences > 1).any() or not left.structure.law.map.parameters:
        raise NotApplicableError("the law has no exponent of recurrence to look for")
    parts.require()
    inside, between = parts.inside.exponents, parts.between.exponents
    gap = inside[0] - between[0]
    error = np.hypot(inside[1:].std(axis=0), between[1:].std(axis=0))
    standard = gap / error
    worst = int(np.nanargmax(np.abs(standard)))
    name = "phi" if left.structure.law.map.name == "power" else "log g / log r at the largest r"
    whose = f" of {left.inputs.recipes[worst]}" if len(gap) > 1 else ""
    errors = inside[1:].std(axis=0), between[1:].std(axis=0)
    return CheckCard(
        name="within-between",
        title=title,
        verdict=judged(abs(standard[worst]) > APART),
        value=float(standard[worst]),
        threshold=APART,
        weight=float(abs(standard[worst]) / APART),
        reading=f"{name}{whose} is {inside[0, worst]:.2f} ± {errors[0][worst]:.2f} within cells and "
        f"{between[0, worst]:.2f} ± {errors[1][worst]:.2f} between them: {abs(standard[worst]):.1f} standard errors "
        f"apart, tolerated up to {APART:.0f}",
        advice=advice(
            left.structure, f"which size is best within a cell, and how low the loss of whole cells lies, ask for "
            f"different exponents: {ELSEWHERE}",
        ),
        header=("recipe", "within", "±", "between", "±", "apart, se"),
        rows=tuple(
            (recipe, f"{inside[0, i]:.3f}", f"{errors[0][i]:.3f}", f"{between[0, i]:.3f}", f"{errors[1][i]:.3f}",
             f"{standard[i]:+.1f}")
            for i, recipe in enumerate(left.inputs.recipes) if np.isfinite(standard[i])
        ),
        arrays={"recipes": left.inputs.recipes, "within": inside[0], "between": between[0], "error_within": errors[0],
                "error_between": errors[1]},
    )  # fmt: skip


def plain_structure(structure: Structure, inputs: Inputs, priors: Priors) -> tuple[Structure, Inputs]:
    """The same law without deviations from its map and without group effects, and inputs whose rows stand alone."""
    law = structure.law
    pooling = {}
    for block in structure.blocks if law.terms != "chinchilla" else ():
        if block.name in law.map.parameters and block.name.startswith(PREFIX):
            continue
        mode = "shared" if block.factor is None else "partial" if block.mean else "separate"
        pooling[block.name] = mode if block.factor is None else f"{mode}:{block.factor}"
    spec = Spec(law=law.terms, map=law.map.name, pooling=pooling)
    count = len(inputs.loss)
    alone = replace(inputs, run=Grouping(levels=tuple(map(str, range(count))), index=np.arange(count)))
    alone.__dict__["centre"] = inputs.centre
    return structure_of(alone, spec, priors), alone


def _part(structure: Structure, inputs: Inputs, priors: Priors, seen: Array, rng: np.random.Generator) -> Part:
    found = laplace.start(structure, inputs, priors, seen=seen)
    z = rng.standard_normal((DRAWS, structure.size))
    xi = np.concatenate([found.mean[None], found.mean + z @ found.chol.T])
    theta = np.stack([structure.layout.from_local(each) for each in xi])
    parameters = named(theta[None], structure, inputs)
    log_loss = predicted_log_loss(parameters, structure, inputs).values[0]
    return Part(log_loss=log_loss, exponents=exponents(parameters, structure, inputs))


def exponents(parameters: xr.Dataset, structure: Structure, inputs: Inputs) -> Array:
    """log g(r) / log r at the largest r of each recipe for every draw, shape (sample, recipe); nan without loops."""
    own = of_runs(parameters, structure, inputs)
    values = [own[name] for name in structure.law.map.parameters]
    count = parameters.sizes["chain"] * parameters.sizes["draw"]
    out = np.full((count, len(inputs.recipes)), np.nan)
    for recipe in range(len(inputs.recipes)):
        rows = np.flatnonzero((inputs.recipe == recipe) & (inputs.recurrences > 1))
        if not len(rows) or not values:
            continue
        at = rows[inputs.recurrences[rows].argmax()]
        r = inputs.recurrences[at]
        chosen = [(value.isel(run=at) if "run" in value.dims else value).values.reshape(-1) for value in values]
        out[:, recipe] = structure.law.map.log_worth(r, chosen) / np.log(r)
    return out
