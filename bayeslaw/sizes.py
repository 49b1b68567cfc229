"""Models of one r by their size: every count is a quadratic in the width.

A layer has 12 d^2 + 2 d parameters, attention costs d T FLOPs a token, the head d V: whatever a member of a family
counts is c0 + c1 d + c2 d^2 exactly, and three members say all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.family import Family

Array = NDArray[np.float64]

PLAIN_SIZES = (1e4, 1e13)
"""Range of N under the 6 N D rule, parameters."""

_WIDTHS = np.array([512.0, 1024.0, 2048.0])


def along(coefficients: Array, size: Array | float) -> Array:
    """c0 + c1 x + c2 x^2 at sizes x, of the shape of ``size``."""
    c0, c1, c2 = coefficients
    values: Array = c0 + size * (c1 + size * c2)
    return values


def short(count: float) -> str:
    """A count of parameters or tokens with three digits: 594M, 4.63B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if 0.9995 * size <= count < 999.5e12:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


def size_at(coefficients: Array, value: Array | float) -> Array:
    """The sizes where c0 + c1 x + c2 x^2, growing, has given values: 0 where it has more at once, inf where never."""
    c0, c1, c2 = coefficients
    above = np.asarray(value, dtype=float) - c0
    with np.errstate(divide="ignore", invalid="ignore"):
        # Of the two ways to write a root this one loses no digits, and serves a straight line too.
        size = 2 * above / (c1 + np.sqrt(c1 * c1 + 4 * c2 * np.maximum(above, 0)))
    out: Array = np.where(above > 0, size, 0.0)
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes:
    """Models of one r by size: what a budget line runs over.

    Parameters
    ----------
    n_once, n_rec, n_unique, flops_per_token, inference_flops : ndarray, shape (3,)
        Coefficients of powers 0, 1, 2 of the size: parameters, the injection counted by the fit's convention; training
        FLOPs per token; FLOPs per generated token at the end of a full context.
    smallest, largest : float
        The size is a width d_model, or N under the 6 N D rule.
    step : int
        Trainable widths are its multiples; 0 where sizes are no widths.
    batch_tokens : int
        Trainable token counts are its multiples.
    """

    n_once: Array
    n_rec: Array
    n_unique: Array
    flops_per_token: Array
    inference_flops: Array
    smallest: float
    largest: float
    step: int
    batch_tokens: int

    @property
    def has_width(self) -> bool:
        """Whether the size is a width."""
        return self.step > 0

    def called(self, size: float) -> str:
        """A size in words."""
        return f"width {size:g}" if self.has_width else f"a model of {size:.3g} parameters"

    def nearest(self, size: float) -> int:
        """The trainable width nearest to a size on a log scale, or the whole N."""
        if not self.has_width:
            return max(1, round(size))
        below = max(self.step, int(size // self.step) * self.step)
        return below if size * size <= below * (below + self.step) else below + self.step


def sizes_of(family: Family, recurrences: float, *, injection_in: str, trained: Iterable[float] = ()) -> Sizes:
    """The members of a family with one r; ``injection_in`` and ``trained`` as `Family.split` takes them.

    Raises
    ------
    UsageError
        The family has no such r.
    """
    trained = tuple(trained)
    members = [family.architecture(width, recurrences) for width in _WIDTHS]
    parts = [family.split(width, recurrences, injection_in=injection_in, trained=trained) for width in _WIDTHS]

    def quadratic(value: Callable[[int], float]) -> Array:
        # In units of the middle width the system is of small numbers, and exact.
        powers = np.vander(_WIDTHS / _WIDTHS[1], 3, increasing=True)
        scaled: Array = np.linalg.solve(powers, np.array([value(i) for i in range(3)])) / _WIDTHS[1] ** np.arange(3)
        return scaled

    return Sizes(
        n_once=quadratic(lambda i: parts[i][0]),
        n_rec=quadratic(lambda i: parts[i][1]),
        n_unique=quadratic(lambda i: members[i].n_unique),
        flops_per_token=quadratic(lambda i: members[i].flops_per_token),
        inference_flops=quadratic(lambda i: members[i].inference_flops_per_token),
        smallest=float(family.width_step),
        largest=np.inf,
        step=family.width_step,
        batch_tokens=family.batch_tokens,
    )


def plain_sizes() -> Sizes:
    """Models that run all N parameters once, at 6 N training and 2 N inference FLOPs per token (r = 1)."""
    unit = np.array([0.0, 1.0, 0.0])
    return Sizes(
        n_once=unit, n_rec=0 * unit, n_unique=unit, flops_per_token=6 * unit, inference_flops=2 * unit,
        smallest=PLAIN_SIZES[0], largest=PLAIN_SIZES[1], step=0, batch_tokens=1,
    )  # fmt: skip
