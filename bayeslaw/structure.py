"""What a fit's vector of unknowns holds, in which order, and the arrays that its likelihood takes from the runs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.coordinates import Layout
from bayeslaw.densities import HALF_NORMAL, NORMAL, POOLED
from bayeslaw.deviation import PREFIX
from bayeslaw.errors import UsageError
from bayeslaw.groups import group_effects
from bayeslaw.inputs import Inputs
from bayeslaw.kernels import COLUMNS
from bayeslaw.laws import Law, make_law
from bayeslaw.priors import HalfNormal, Prior, Priors
from bayeslaw.spec import ALIASES, Spec, pooling_of

Array = NDArray[np.float64]

CORE = ("E", "size", "data", "alpha", "beta", "k")
"""The core's parameters as the vector holds them, by their logarithms; see `bayeslaw.kernels`."""

LOSS_RESOLUTION = 1e-5
"""No loss is known better than this (log scale): keeps a noise-free table from an error scale of zero."""

LEAST_ERROR = 2e-3
"""Least error of log loss where there are fewer runs than parameters: such runs cannot tell their scale."""


@dataclass(frozen=True)
class Block:
    """One parameter of the law in the vector.

    Parameters
    ----------
    name : str
    prior : Prior
    factor : str or None
        What it differs by; None when all runs share it.
    levels : tuple of str
        Names of its values, one entry of the vector each.
    spread : str
        Name of the standard deviation that its values are partially pooled with; empty where they are not.
    mean : str
        Name of the mean that they are pooled around; empty for 0.
    start : int
        Position of the first value.
    """

    name: str
    prior: Prior
    factor: str | None
    levels: tuple[str, ...]
    spread: str = ""
    mean: str = ""
    start: int = 0

    @property
    def log(self) -> bool:
        """Whether the vector holds logarithms of the values."""
        return self.prior.log and (bool(self.mean) or not self.spread)

    @property
    def slice(self) -> slice:
        """Positions of the values."""
        return slice(self.start, self.start + len(self.levels))


@dataclass(frozen=True)
class Structure:
    """The vector of unknowns.

    Parameters
    ----------
    law : Law
    blocks : tuple of Block
        The law's parameters in order: the core, then the map's own.
    hyper : dict of str to int
        ``NAME_mean`` and ``NAME_spread`` (its logarithm) of every pooled block, ``deviation_spread`` of all deviations
        from the map, and their positions.
    scales : dict of str to int
        ``sigma``, ``tau_run``, ``tau_cell`` (logarithms) and ``sigma_slope``, and their positions.
    profiles : tuple of tuple of int
        Positions of every distinct core, as `CORE`; -1 for a k fixed at 1.
    worths : tuple of (positions, r)
        Every distinct g(r): positions of the map's parameters, and r.
    effects : tuple of str
        Levels of group effects that are integrated out, lowest first: "run", "cell".
    outliers : str
    half_normal_spread : bool
        Whether the spread of pooled parameters has a half-normal prior, else a log-normal one.
    resolution : float
        The least error of any log loss, in quadrature with the others.
    """

    law: Law
    blocks: tuple[Block, ...]
    hyper: dict[str, int]
    scales: dict[str, int]
    profiles: tuple[tuple[int, ...], ...]
    worths: tuple[tuple[tuple[int, ...], float], ...]
    effects: tuple[str, ...]
    outliers: str
    half_normal_spread: bool
    resolution: float

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return sum(len(block.levels) for block in self.blocks) + len(self.hyper) + len(self.scales)

    @property
    def errors(self) -> str:
        """The error density: a key of `bayeslaw.ops.ERRORS`."""
        return "student_grouped" if self.outliers == "student" and self.effects else self.outliers

    @cached_property
    def signature(self) -> tuple[Any, ...]:
        """What a compiled model depends on; runs and priors are data."""
        blocks = tuple((block.name, block.log, len(block.levels), block.spread) for block in self.blocks)
        scales = tuple(sorted(self.scales.items()))
        return (
            self.law, blocks, tuple(self.hyper), scales, self.profiles, self.worths, self.outliers,
            self.half_normal_spread,
        )  # fmt: skip

    def block(self, name: str) -> Block | None:
        """The block of that name."""
        return next((block for block in self.blocks if block.name == name), None)

    @cached_property
    def layout(self) -> Layout:
        """Where the core stands, for the local coordinates."""
        core = [self.block(name) for name in CORE]
        reference = np.full(self.size, -1)
        free = [block for block in core if block is not None]
        together = len({(block.factor, block.levels) for block in free}) == 1
        if not together:
            for block in free:
                reference[block.start + 1 : block.slice.stop] = block.start
        rows = range(len(free[0].levels) if together else 1)
        return Layout(
            np.array([[-1 if block is None else block.start + row for block in core] for row in rows]), reference
        )

    @cached_property
    def cores(self) -> NDArray[np.int64]:
        """Positions of every core that some run has, shape (core, 6); -1 for a k fixed at 1."""
        return np.array(self.profiles)

    @cached_property
    def scale_positions(self) -> NDArray[np.int64]:
        """Positions of log sigma, its slope (-1: none) and the log tau of every level of groups."""
        return np.array(
            [self.scales["sigma"], self.scales.get("sigma_slope", -1), *(self.scales[f"tau_{e}"] for e in self.effects)]
        )

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Kind of every entry's prior, shape (p, 3): see `bayeslaw.densities.log_prior`."""
        kinds = np.full((self.size, 3), -1)
        kinds[:, 0] = NORMAL
        for block in self.blocks:
            if block.spread:
                if self.half_normal_spread and block.mean:
                    kinds[self.hyper[block.spread], 0] = HALF_NORMAL
                kinds[block.slice] = POOLED, self.hyper.get(block.mean, -1), self.hyper[block.spread]
        for name, at in self.scales.items():
            if name != "sigma_slope":
                kinds[at, 0] = HALF_NORMAL
        return kinds

    def prior(self, priors: Priors) -> tuple[Array, Array]:
        """Centre and spread of every entry's prior, shape (p,) both; a half-normal one has its scale as the spread."""
        mu, sd = np.zeros(self.size), np.ones(self.size)
        for block in self.blocks:
            mu[block.slice], sd[block.slice] = block.prior.mu, block.prior.sd
            if block.spread:
                spread = self.hyper[block.spread]
                if not block.mean:
                    mu[block.slice], sd[block.slice] = 0.0, block.prior.median
                    mu[spread], sd[spread] = block.prior.mu, block.prior.sd
                    continue
                mean = self.hyper[block.mean]
                mu[mean], sd[mean] = block.prior.mu, block.prior.sd
                if isinstance(priors.spread, HalfNormal):
                    sd[spread] = priors.spread.scale
                else:
                    mu[spread], sd[spread] = priors.spread.mu, priors.spread.sd
        for name, at in self.scales.items():
            if name == "sigma_slope":
                mu[at], sd[at] = priors.sigma_slope.mu, priors.sigma_slope.sd
            else:
                sd[at] = (priors.sigma if name == "sigma" else priors.tau).scale
        return mu, sd

    def log_worth(self, theta: Any, *, xp: Any = np) -> Any:
        """Log g of every worth, shape (worth,), from the vector; numpy or pytensor."""
        at = np.array([positions for positions, _ in self.worths], dtype=np.int64)
        r = np.array([r for _, r in self.worths])
        own = [theta[at[:, j]] for j in range(at.shape[1])]
        values = [xp.exp(value) if plus else value for value, plus in zip(own, self.law.map.positive, strict=True)]
        return self.law.map.log_worth(r, values, xp=xp) if values else self.law.map.log_worth(r, values)

    def known_variance(self, inputs: Inputs) -> Array:
        """Variance of log loss that is known, shape (run,): the measurement's, and the resolution's."""
        known: Array = (inputs.loss_se / inputs.loss) ** 2 + self.resolution**2
        return known

    def columns(self, inputs: Inputs) -> dict[str, Array]:
        """What the likelihood takes of the runs, by `bayeslaw.kernels.COLUMNS`, each of shape (run,)."""
        n0, d0 = inputs.centre
        log_flops = np.log(inputs.flops)
        groups = [getattr(inputs, effect).index for effect in self.effects]
        lower, upper = (groups[i] if i < len(groups) else np.zeros(len(inputs.loss)) for i in range(2))
        worths = {(*at, r): i for i, (at, r) in enumerate(self.worths)}
        cores = {at: i for i, at in enumerate(self.profiles)}
        own = positions_of(self.blocks, inputs, self.law.map.parameters).tolist()
        core = positions_of(self.blocks, inputs, CORE).tolist()
        return {
            "core": np.array([cores[tuple(at)] for at in core]),
            "worth": np.array([worths[(*at, r)] for at, r in zip(own, inputs.recurrences.tolist(), strict=True)]),
            "n_once": self.law.map.once(inputs.n_once, inputs.recurrences) / n0,
            "n_rec": inputs.n_rec / n0,
            "log_d": np.log(inputs.tokens / d0),
            "log_loss": inputs.log_loss,
            "known": self.known_variance(inputs),
            "log_flops": log_flops - log_flops.mean(),
            "group_0": lower,
            "group_1": upper,
        }

    def table(self, inputs: Inputs) -> Array:
        """The same as the kernels take it, shape (run, column)."""
        columns = self.columns(inputs)
        table = np.column_stack([columns[name] for name in COLUMNS])
        return table[np.argsort(columns["group_0"], kind="stable")]


def structure_of(inputs: Inputs, spec: Spec, priors: Priors) -> Structure:
    """The vector that a spec means for a run table.

    Raises
    ------
    UsageError
        A pooled parameter is not the law's.
    FitError
        The table has not what the noise asks for, see `bayeslaw.groups.group_effects`.
    """
    law = make_law(spec.law, spec.map, levels=inputs.looped, deviation=spec.deviation)
    names = (*(name for name in CORE if name != "k" or law.coupled), *law.map.parameters)
    deviations = {name for name in law.map.parameters if name.startswith(PREFIX)}
    pooling = {ALIASES.get(name, name): pooling_of(text) for name, text in spec.pooling.items()}
    for name in pooling:
        if name not in names or name in deviations:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(
                f"--pool {name}: the {spec.law} law with the {law.map.name} map has no such parameter"
                + (f", did you mean {near[0]}?" if near else ""),
                allowed=", ".join(
                    {"size": "A", "data": "B"}.get(name, name) for name in names if name not in deviations
                ),
            )
    blocks: list[Block] = []
    start = 0
    for name in names:
        mode, factor = pooling.get(name, ("partial", "recipe") if name in law.map.parameters else ("shared", ""))
        if spec.law == "chinchilla":
            mode, factor = "separate", "architecture"
        levels = ("",) if mode == "shared" else inputs.factors[factor].levels
        block = Block(name, priors.of(name), None if mode == "shared" else factor, levels, start=start)
        if name in deviations:
            block = replace(block, spread=f"{PREFIX}spread")
        elif mode == "partial" and len(levels) > 1:
            block = replace(block, spread=f"{name}_spread", mean=f"{name}_mean")
        blocks.append(block)
        start += len(levels)
    hyper: dict[str, int] = {}
    for name in dict.fromkeys(name for block in blocks for name in (block.mean, block.spread) if name):
        hyper[name] = start
        start += 1
    effects = group_effects(inputs, spec)
    scale_names = ["sigma", *(f"tau_{effect}" for effect in effects)]
    scale_names += ["sigma_slope"] if spec.error_scale == "compute" else []
    scales = {name: start + i for i, name in enumerate(scale_names)}
    cores = positions_of(tuple(blocks), inputs, CORE)
    own = positions_of(tuple(blocks), inputs, law.map.parameters)
    worths = {(tuple(at), r) for at, r in zip(own.tolist(), inputs.recurrences.tolist(), strict=True)}
    return Structure(
        law=law,
        blocks=tuple(blocks),
        hyper=hyper,
        scales=scales,
        profiles=tuple(sorted({tuple(row) for row in cores.tolist()})),
        worths=tuple(sorted(worths)),
        effects=effects,
        outliers=spec.outliers,
        half_normal_spread=isinstance(priors.spread, HalfNormal),
        resolution=LEAST_ERROR if len(inputs.run.levels) < free_parameters(tuple(blocks)) else LOSS_RESOLUTION,
    )


def free_parameters(blocks: tuple[Block, ...]) -> int:
    """Number of law parameters and the errors' scale: what the runs themselves must feed.

    (Hyperparameters, deviations from the map and group effects are borne by their priors where they have to be.)
    """
    return sum(len(block.levels) for block in blocks if block.mean or not block.spread) + 1


def positions_of(blocks: tuple[Block, ...], inputs: Inputs, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Positions in the vector of named parameters for every run, shape (run, name); -1 for what is not there."""
    out = np.full((len(inputs.loss), len(names)), -1)
    for block in blocks:
        if block.name in names:
            own = 0 if block.factor is None else inputs.factors[block.factor].index
            out[:, names.index(block.name)] = block.start + own
    return out
