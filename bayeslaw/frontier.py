"""The compute-optimal frontier: along budget lines the size and tokens of least loss, draw by draw."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.laws import Law
from bayeslaw.lines import NOTHING, Limit, Line, budget_line
from bayeslaw.posterior import Fit
from bayeslaw.sizes import Sizes, along
from bayeslaw.stationary import minimise

Array = NDArray[np.float64]

AT_END = 1e-6
"""A size this near to an end of its line, by its logarithm, is that end."""

FEW = 20_000
"""Optima that one thread finds sooner than several are started."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Optimum:
    """The optimum of one line for every posterior draw, each array of shape (sample,).

    Parameters
    ----------
    width_scale : ndarray or None
        s = d_model / 64; None under the 6 N D rule.
    n_unique, tokens, loss : ndarray
        N* in parameters, D* in tokens, L* in nats per token.
    flops : ndarray
        Training FLOPs spent.
    at_smallest, at_largest : float
        Share of draws whose optimum is the smallest or the largest size that the line has.
    """

    width_scale: Array | None
    n_unique: Array
    tokens: Array
    loss: Array
    flops: Array
    at_smallest: float
    at_largest: float

    @property
    def at_edge(self) -> float:
        """Share of draws whose optimum is an end of the line."""
        return self.at_smallest + self.at_largest


def flops_limit(sizes: Sizes, flops: float, *, generated: float = 0.0) -> Limit:
    """A training budget, of which tokens to be generated later take their share.

    Parameters
    ----------
    sizes : Sizes
    flops : float
        FLOPs for training and, where tokens are generated, for these.
    generated : float
        Tokens that the model will generate over its life, each priced at a full context.
    """
    fixed = generated * sizes.inference_flops if generated else NOTHING
    return Limit(name="budget", amount=flops, unit="FLOPs", cost=sizes.flops_per_token, fixed=fixed)


def optima(
    law: Law, draws: Mapping[str, Array], sizes: Sizes, lines: Sequence[Line], *, recurrences: float
) -> tuple[Array, Array, Array]:
    """Minimise the law along budget lines for every draw.

    Parameters
    ----------
    law : Law
    draws : mapping
        As `Fit.draws` gives them, each of shape (sample,).
    sizes : Sizes
    lines : sequence of Line
        Best in ascending order of what they allow: each search starts where the one before ended.
    recurrences : float
        r.

    Returns
    -------
    size, tokens, loss : ndarray, shape (sample, line)
        The size is what ``sizes`` has; the loss is the law's, in nats per token.
    """
    count = len(draws["E"])
    with np.errstate(divide="ignore"):
        columns = [np.log(draws["A"]), draws["alpha"], np.log(draws["B"]), draws["beta"], draws["E"]]
    rows = np.column_stack([*columns, draws["k"] if law.coupled else np.ones(count)])
    worth = np.empty(count)
    worth[:] = law.map.worth(recurrences, law.map_values(draws))
    limits = [line.limits[active] for line in lines for active in line.active]
    arguments = (
        law.map.once(sizes.n_once, recurrences), sizes.n_rec,
        np.cumsum([0, *(len(line.active) for line in lines)]),
        np.concatenate([line.edges[:-1] for line in lines]), np.concatenate([line.edges[1:] for line in lines]),
        np.array([limit.amount for limit in limits]), np.array([limit.cost for limit in limits]),
        np.array([limit.fixed for limit in limits]),
    )  # fmt: skip
    found = np.empty((3, count, len(lines)))
    parts = np.array_split(np.arange(count), (os.cpu_count() or 1) if count * len(lines) > FEW else 1)

    def run(part: NDArray[np.int64]) -> None:
        chunk = slice(part[0], part[-1] + 1)
        minimise(rows[chunk], worth[chunk], *arguments, *found[:, chunk])

    if len(parts) == 1:
        run(parts[0])
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(run, (part for part in parts if len(part))))
    size, tokens, loss = found
    return size, tokens, loss


def optimum(
    law: Law,
    draws: Mapping[str, Array],
    sizes: Sizes,
    line: Line | None = None,
    *,
    flops: float | None = None,
    recurrences: float,
) -> Optimum:
    """The optimum of one line, or of one training budget alone.

    Parameters
    ----------
    law, draws, sizes, recurrences
        As for `optima`.
    line : Line, optional
    flops : float, optional
        Instead of a line: training budget C, FLOPs; D = C / F(size).

    Raises
    ------
    DecisionError
        The budget trains no model of these sizes.
    """
    if line is None:
        assert flops is not None
        line = budget_line(sizes, [flops_limit(sizes, flops)])
    size, tokens, loss = (each[:, 0] for each in optima(law, draws, sizes, [line], recurrences=recurrences))
    return placed(sizes, line, size, tokens, loss)


def placed(sizes: Sizes, line: Line, size: Array, tokens: Array, loss: Array) -> Optimum:
    """The optimum at these sizes of a line, for every draw."""
    reach = np.log(line.largest / line.smallest)
    return Optimum(
        width_scale=size / WIDTH_UNIT if sizes.has_width else None,
        n_unique=along(sizes.n_unique, size),
        tokens=tokens,
        loss=loss,
        flops=along(sizes.flops_per_token, size) * tokens,
        at_smallest=float((np.log(size / line.smallest) < AT_END).mean()),
        at_largest=float((np.log(line.largest / size) < AT_END).mean()) if reach > AT_END else 0.0,
    )


def drifted(fit: Fit, best: Optimum, recurrences: float) -> Optimum:
    """The optimum with what its draws may be off the law outside the trained runs."""
    off = fit.drift(recurrences, best.flops, tokens_per_parameter=best.tokens / best.n_unique)
    return replace(best, loss=best.loss * np.exp(off))
