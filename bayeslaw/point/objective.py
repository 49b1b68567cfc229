"""The objective of the point fits, a sum of Huber losses of log loss, with exact first and second derivatives.

References
----------
Huber, "Robust estimation of a location parameter", Ann. Math. Statist. 35 (1964).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.inputs import Inputs
from bayeslaw.kernels import N_CORE, N_PARTIAL
from bayeslaw.laws import CORE, Law
from bayeslaw.point.kernels import huber_expansion, huber_slope, huber_sum, law_runs, refit

Array = NDArray[np.float64]
Index = NDArray[np.int64]

FLAT = 40.0
"""Bound of log map parameters on both sides: beyond it a map has its limiting form to the last digit."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Sum of weighted Huber losses of the differences of log losses, as a function of one vector.

    The vector is ``(log E, log size, log data, log a, log b, [log k], map parameters of the first recipe, of the
    second, ...)``, the core as in `bayeslaw.kernels`; map parameters above 0 are logarithms.

    Parameters
    ----------
    law : Law
    inputs : Inputs
    weight : ndarray, shape (run,)
        How often each run counts.
    delta : float
        Where Huber's loss turns from square to linear, on log loss; inf is least squares.
    """

    law: Law
    inputs: Inputs
    weight: Array
    delta: float

    @cached_property
    def slots(self) -> tuple[Index, Array, Index]:
        """(slot of each run; r of each slot; recipe of each slot): slot 0 is r = 1, the others a recipe with one r."""
        r, recipe = self.inputs.recurrences, self.inputs.recipe
        keys = np.stack([np.where(r > 1, recipe, -1), r], axis=1)
        levels, of = np.unique(np.vstack([[-1.0, 1.0], keys]), axis=0, return_inverse=True)
        return of.ravel()[1:].astype(np.int64), levels[:, 1].copy(), np.maximum(levels[:, 0], 0).astype(np.int64)

    @cached_property
    def data(self) -> tuple[Array, Array, Array, Array]:
        """(N_once as the map counts it, N_rec, log D, log loss), sizes and tokens in units of the centre."""
        inputs = self.inputs
        n0, d0 = inputs.centre
        once = np.asarray(self.law.map.once(inputs.n_once, inputs.recurrences), dtype=float)
        return once / n0, inputs.n_rec / n0, np.log(inputs.tokens / d0), inputs.log_loss

    def changed(self, **fields: Any) -> Problem:
        """The same problem with another weight or delta."""
        out = replace(self, **fields)
        out.__dict__.update(slots=self.slots, data=self.data, bounds=self.bounds, _linear=self._linear)  # the same
        return out

    @property
    def n_core(self) -> int:
        """5, or 6 with k."""
        return N_CORE if self.law.coupled else N_CORE - 1

    @cached_property
    def loops(self) -> bool:
        """Whether any run loops; if none does, the map has no parameters to fit."""
        return len(self.slots[1]) > 1

    @cached_property
    def n_map(self) -> int:
        """Map parameters of one recipe."""
        return len(self.law.map.parameters) if self.loops else 0

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return self.n_core + self.n_map * len(self.inputs.recipes)

    @cached_property
    def logged(self) -> NDArray[np.bool_]:
        """Map parameters that stand as logarithms, shape (n_map,)."""
        return np.array(self.law.map.positive[: self.n_map], dtype=bool)

    @cached_property
    def _any_logged(self) -> bool:
        return bool(self.logged.any())

    @cached_property
    def _linear(self) -> Array | None:
        """Log g / map part of theta where log g is proportional to it, shape (slot, recipe times n_map), else None."""
        if not self.n_map or self._any_logged:
            return None
        of = self.slots[2]
        points = np.random.default_rng(0).normal(size=(2, self.size))
        slopes = [self.worth_jacobian(point) for point in points]
        values = (points[0, self.n_core :].reshape(-1, self.n_map)[of] * slopes[0]).sum(axis=1)
        truth = self.law.map.log_worth(self.slots[1], list(self.map_values(points[0])[:, of]))
        if not (np.array_equal(slopes[0], slopes[1]) and np.allclose(values, truth, rtol=1e-13, atol=1e-15)):
            return None
        out: Array = (self._owners.T[:, :, None] * slopes[0][:, None, :]).reshape(len(of), -1)
        return out

    @cached_property
    def _owners(self) -> Array:
        """1 where a slot's log g belongs to a recipe, shape (recipe, slot)."""
        recipes = np.arange(len(self.inputs.recipes))
        owners: Array = (recipes[:, None] == self.slots[2]).astype(float)
        return owners

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds, far outside of what data can tell from the limit."""
        low, high = np.full(self.size, -FLAT), np.full(self.size, FLAT)
        top = float(self.inputs.log_loss.max())
        low[0], high[0] = top - FLAT, top + 1
        spread = 700.0 if self.law.coupled else 0.0
        low[1:3], high[1:3] = top - FLAT - spread, top + 5 + spread
        low[3:5], high[3:5] = math.log(1e-6), math.log(100)
        if self.law.coupled:
            low[5], high[5] = math.log(1e-2), math.log(1e3)
        return low, high

    def core(self, theta: Array) -> Array:
        """The six natural coordinates as in `bayeslaw.kernels`, shape (6,)."""
        core = np.zeros(N_CORE)
        core[: self.n_core] = theta[: self.n_core]
        return core

    def map_values(self, theta: Array) -> Array:
        """Natural map parameters, shape (n_map, recipe)."""
        if not self.n_map:
            return np.empty((0, len(self.inputs.recipes)))
        values: Array = theta[self.n_core :].reshape(-1, self.n_map).T
        if not self._any_logged:
            return values
        return np.where(self.logged[:, None], np.exp(values), values)

    def log_worth(self, theta: Array) -> Array:
        """Log g of every slot."""
        _, r, recipe = self.slots
        if not self.n_map and self.law.map.parameters:
            return np.zeros(len(r))  # no run loops
        if self._linear is not None:
            straight: Array = self._linear @ theta[self.n_core :]
            return straight
        out: Array = np.asarray(self.law.map.log_worth(r, list(self.map_values(theta)[:, recipe])), dtype=float)
        return out

    def worth_jacobian(self, theta: Array) -> Array:
        """D log g / d map part of theta, each slot by the parameters of its own recipe, shape (slot, n_map)."""
        _, r, recipe = self.slots
        values = self.map_values(theta)[:, recipe]
        slopes: Array = np.array(self.law.map.gradient(r, list(values)))
        return np.where(self.logged[:, None], slopes * values, slopes).T if self._any_logged else slopes.T

    def predicted(self, theta: Array) -> Array:
        """Log loss of every run by the law."""
        return self._mean(theta)[0]

    def _mean(self, theta: Array) -> tuple[Array, Array]:
        slot, n = self.slots[0], len(self.weight)
        once, rec, log_d, _ = self.data
        mean, partial = np.empty(n), np.empty((n, N_PARTIAL))
        law_runs(self.core(theta), self.log_worth(theta), slot, once, rec, log_d, mean, partial)
        return mean, partial

    def objective(self, theta: Array) -> float:
        """Weighted sum of the losses."""
        slot = self.slots[0]
        return float(huber_sum(self.core(theta), self.log_worth(theta), slot, *self.data, self.weight, self.delta))

    def refitted(self, theta: Array) -> Array:
        """The same exponents with better linear coefficients, see `refit`."""
        core = self.core(theta)
        refit(core, self.log_worth(theta), self.slots[0], *self.data, self.weight, self.delta)
        low, high = self.bounds
        out = theta.copy()
        out[:3] = np.where(np.isfinite(core[:3]), np.clip(core[:3], low[:3], high[:3]), theta[:3])
        return out

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """The objective and its gradient."""
        slot, r, _ = self.slots
        grad = np.zeros(N_CORE + len(r))
        value = huber_slope(self.core(theta), self.log_worth(theta), slot, *self.data, self.weight, self.delta, grad)
        if not self.n_map:
            return float(value), grad[: self.n_core]
        if self._linear is not None:
            return float(value), np.concatenate([grad[: self.n_core], grad[N_CORE:] @ self._linear])
        by_map = (self._owners * grad[N_CORE:]) @ self.worth_jacobian(theta)
        return float(value), np.concatenate([grad[: self.n_core], by_map.ravel()])

    def expansion(self, theta: Array) -> tuple[float, Array, Array, Array, Array]:
        """The objective, its gradient, Hessian and Gauss-Newton majoriser, and the gradient's absolute terms."""
        slot, count = self.slots[0], N_CORE + len(self.slots[1])
        grad, size = np.zeros(count), np.zeros(count)
        hess, major = np.zeros((count, count)), np.zeros((count, count))
        pull = self._pulled(theta)
        value = huber_expansion(
            self.core(theta), self.log_worth(theta), slot, *self.data, self.weight, self.delta, grad, size, hess, major
        )
        full = pull @ hess @ pull.T
        if self.n_map and self._linear is None:
            self._add_map_curvature(theta, grad[N_CORE:], full)
        return float(value), pull @ grad, full, pull @ major @ pull.T, np.abs(pull) @ size

    def _pulled(self, theta: Array) -> Array:
        """D (core, log g) / d theta, shape (parameter, 6 + slot)."""
        _, r, recipe = self.slots
        pull = np.zeros((self.size, N_CORE + len(r)))
        pull[: self.n_core, : self.n_core] = np.eye(self.n_core)
        if self._linear is not None:
            pull[self.n_core :, N_CORE:] = self._linear.T
        elif self.n_map:
            jacobian = self.worth_jacobian(theta)
            for j in range(self.n_map):
                pull[self.n_core + recipe * self.n_map + j, N_CORE + np.arange(len(r))] = jacobian[:, j]
        return pull

    def _add_map_curvature(self, theta: Array, slope: Array, hess: Array) -> None:
        """Add what the map's own second derivatives, by differences of its gradient, give to the Hessian."""
        recipe, m, step = self.slots[2], self.n_map, 1e-5
        for j in range(m):
            move = np.zeros(self.size)
            move[self.n_core + j :: m] = step
            change = (self.worth_jacobian(theta + move) - self.worth_jacobian(theta - move)) / (2 * step)
            for s, of in enumerate(recipe):
                row = self.n_core + of * m
                hess[row + j, row : row + m] += slope[s] * change[s]

    @property
    def names(self) -> list[str]:
        """Of the vector's entries, in the law's terms; map parameters with their recipe where there are several."""
        several = len(self.inputs.recipes) > 1
        maps = [
            f"{name}[{recipe}]" if several else name
            for recipe in self.inputs.recipes
            for name in self.law.map.parameters[: self.n_map]
        ]
        return [*CORE, *(["k"] if self.law.coupled else []), *maps]

    def told(self, theta: Array) -> NDArray[np.bool_]:
        """Whether any run tells of each map parameter, shape (n_map, recipe)."""
        diagonal = np.diag(self.expansion(theta)[3])[self.n_core :]
        out: NDArray[np.bool_] = (diagonal > 0).reshape(len(self.inputs.recipes), -1).T
        return out

    def vague(self, theta: Array) -> list[str]:
        """Parameters in a direction along which the predictions hardly change; none where each has its say."""
        major = self.changed(delta=math.inf).expansion(theta)[3]
        scale = np.sqrt(np.diag(major))
        kept = np.flatnonzero(scale > 0)
        values, vectors = np.linalg.eigh(major[np.ix_(kept, kept)] / np.outer(scale[kept], scale[kept]))
        if not len(kept) or values[0] > 1e-10:
            return []
        return [self.names[j] for j, share in zip(kept, np.abs(vectors[:, 0]), strict=True) if share > 0.2]

    def share(self, theta: Array) -> Array:
        """Largest share of E, of the size term and of the data term in any run's loss, shape (3,)."""
        out: Array = self._mean(theta)[1][:, :3].max(axis=0)
        return out
