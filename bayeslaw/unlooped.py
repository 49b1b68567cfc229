"""The non-looped members of a family along their width, to read off which has a given size or cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.architecture import Architecture
from bayeslaw.family import Family

Array = NDArray[np.float64]

AXIS = 257
"""Members between which sizes and costs are interpolated."""


@dataclass(frozen=True, kw_only=True)
class Unlooped:
    """The members with r = 1 from a narrow to a wide one.

    Parameters
    ----------
    members : tuple of Architecture
    sizes : ndarray, shape (AXIS,)
        Their N by a fit's convention.
    """

    members: tuple[Architecture, ...]
    sizes: Array

    @classmethod
    def spanning(
        cls, family: Family, width: float, convention: Mapping[str, Any], *, sizes: tuple[float, float], cost: float
    ) -> Unlooped:
        """Those that span a range of sizes, and a cost.

        Parameters
        ----------
        family : Family
        width : float
            Where to begin.
        convention : mapping
            As `Family.split` takes it.
        sizes : (float, float)
            Least and greatest N by the convention.
        cost : float
            Training FLOPs per token.
        """

        def size(d_model: float) -> float:
            return sum(family.split(d_model, 1, **convention))

        low = high = width
        while size(low) > sizes[0] or family.architecture(low, 1).flops_per_token > cost:
            low /= 2
        while size(high) < sizes[1] or family.architecture(high, 1).flops_per_token < cost:
            high *= 2
        widths = np.geomspace(low, max(high, 2 * low), AXIS).tolist()
        members = tuple(family.architecture(d_model, 1) for d_model in widths)
        return cls(members=members, sizes=np.array([size(d_model) for d_model in widths]))

    def at_size(self, wanted: Array, what: Callable[[Architecture], float]) -> Array:
        """A quantity of the members of these N."""
        return self._between(wanted, self.sizes, what)

    def at_cost(self, wanted: float, what: Callable[[Architecture], float]) -> float:
        """A quantity of the member that costs so many training FLOPs per token."""
        costs = np.array([member.flops_per_token for member in self.members])
        return float(self._between(np.array(wanted), costs, what))

    def _between(self, wanted: Array, axis: Array, what: Callable[[Architecture], float]) -> Array:
        """On a log-log scale between the members, where all of this is nearly linear."""
        values = np.log([what(member) for member in self.members])
        out: Array = np.exp(np.interp(np.log(wanted), np.log(axis), values))
        return out
