"""The compute-optimal frontier: for a budget and r, the size and tokens of least loss, draw by draw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.errors import DecisionError
from bayeslaw.family import Family
from bayeslaw.laws import Law
from bayeslaw.predict import law_loss

Array = NDArray[np.float64]

GRID = 400
"""Sizes tried along a budget line, evenly on a log scale; a parabola through the best three refines them."""

PLAIN_SIZES = (1e4, 1e13)
"""Range of N along a 6 N D budget line, parameters."""


@dataclass(frozen=True, kw_only=True)
class SizeAxis:
    """Models of one r by size: what a budget line runs over.

    Parameters
    ----------
    size : ndarray, shape (size,)
        d_model, or N for the 6 N D rule; ascending.
    n_once, n_rec, n_unique : ndarray, shape (size,)
        Parameters, the injection counted by the fit's convention.
    flops_per_token : ndarray, shape (size,)
    has_width : bool
        Whether ``size`` is a width.
    """

    size: Array
    n_once: Array
    n_rec: Array
    n_unique: Array
    flops_per_token: Array
    has_width: bool


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The optimum of one budget and r for every posterior draw, each array of shape (sample,).

    Parameters
    ----------
    width_scale : ndarray or None
        s = d_model / 64; None under the 6 N D rule.
    n_unique, tokens, loss : ndarray
        N* in parameters, D* in tokens, L* in nats per token.
    at_edge : float
        Share of draws whose optimum lies at the smallest or largest size possible.
    """

    width_scale: Array | None
    n_unique: Array
    tokens: Array
    loss: Array
    at_edge: float


def size_axis(
    family: Family, flops: float, recurrences: float, *, injection_in: str, trained: Iterable[float] = ()
) -> SizeAxis:
    """Members of the family from one width step up to the width whose single step spends the budget.

    ``injection_in`` and ``trained`` as `bayeslaw.family.Family.split` takes them.
    """
    smallest = float(family.width_step)
    least = family.architecture(smallest, recurrences).flops_per_token * family.batch_tokens
    if flops < least:
        raise DecisionError(
            f"a budget of {flops:.3g} FLOPs trains no member of the family {family.name} with r = {recurrences:g}",
            allowed=f"{least:.3g} FLOPs or more (width {smallest:g}, one step of {family.batch_tokens} tokens)",
        )
    largest = smallest
    while family.architecture(2 * largest, recurrences).flops_per_token * family.batch_tokens <= flops:
        largest *= 2
    widths = np.geomspace(smallest, 2 * largest, GRID)
    members = [family.architecture(d, recurrences) for d in widths]
    parts = [family.split(d, recurrences, injection_in=injection_in, trained=trained) for d in widths]
    n_once, n_rec = np.array(parts).T
    return SizeAxis(
        size=widths,
        n_once=n_once,
        n_rec=n_rec,
        n_unique=np.array([member.n_unique for member in members], dtype=float),
        flops_per_token=np.array([member.flops_per_token for member in members], dtype=float),
        has_width=True,
    )


def plain_axis() -> SizeAxis:
    """Models that run all N parameters once, at 6 N FLOPs per token (r = 1)."""
    n = np.geomspace(*PLAIN_SIZES, 2 * GRID)
    return SizeAxis(size=n, n_once=n, n_rec=np.zeros_like(n), n_unique=n, flops_per_token=6 * n, has_width=False)


def optimum(law: Law, draws: dict[str, Array], axis: SizeAxis, *, flops: float, recurrences: float) -> Optimum:
    """Minimise the law along a budget line for every draw.

    Parameters
    ----------
    law : Law
    draws : dict
        As `Fit.draws` gives them.
    axis : SizeAxis
    flops : float
        Training budget C, FLOPs; D = C / F(size).
    recurrences : float
        r.
    """
    losses = law_loss(law, draws, axis.n_once, axis.n_rec, recurrences, flops / axis.flops_per_token)
    best = losses.argmin(axis=1)
    inner = np.clip(best, 1, len(axis.size) - 2)
    rows = np.arange(len(losses))
    left, middle, right = (losses[rows, inner + step] for step in (-1, 0, 1))
    curvature = left - 2 * middle + right
    # Past the edge of the axis the parabola is not followed: the optimum is then the edge itself.
    shift = np.clip(0.5 * (left - right) / np.where(curvature > 0, curvature, np.inf), -1, 1)
    edge = best != inner
    position = np.where(edge, best, inner + shift)
    loss = np.where(edge, losses[rows, best], middle - 0.25 * (left - right) * shift)

    def along(values: Array) -> Array:
        interpolated: Array = np.exp(np.interp(position, np.arange(len(values)), np.log(values)))
        return interpolated

    return Optimum(
        width_scale=along(axis.size) / WIDTH_UNIT if axis.has_width else None,
        n_unique=along(axis.n_unique),
        tokens=flops / along(axis.flops_per_token),
        loss=loss,
        at_edge=float(edge.mean()),
    )
