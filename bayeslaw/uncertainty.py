"""What the uncertainty of a forecast is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bayeslaw.deviation import PREFIX
from bayeslaw.laws import Law

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a forecast's uncertainty is made of: standard deviations, nats per token.

    The parts are switched on one after the other with the same draws, and each is the standard deviation of what it
    adds, so in quadrature they give the total but for what chance correlates. A deviation hangs together with the
    law's parameters (of phi and the deviation only their sum is well known): what a linear regression on these explains
    of it is reckoned to the parameters, the rest is the deviation's part. That order is a convention.

    Parameters
    ----------
    parameter : float
        The law's and its map's parameters.
    deviation : float
        What r is worth beside the map: what the runs of this r leave open, or all of it where there are none.
    drift : float
        The law itself outside the trained runs.
    run : float
        A new run's own error.
    total : float
        Of a new run's loss.
    """

    parameter: float
    deviation: float
    drift: float
    run: float
    total: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        each = ", ".join(f"{name} {value:.4f}" for name, value in asdict(self).items() if name != "total")
        return f"standard deviation {self.total:.4f} nats/token: {each}"


def explained(law: Law, draws: dict[str, Array]) -> dict[str, Array]:
    """The draws with what a linear regression on the law's other parameters says of each deviation in its place."""
    own = [name for name in law.parameters if name.startswith(PREFIX)]
    if not own:
        return draws
    others = [
        np.log(draws[name]) if name in law.positive else draws[name] for name in law.parameters if name not in own
    ]
    columns = [values - values.mean() for values in others if np.isfinite(values).all()]
    table = np.column_stack([np.ones_like(draws[own[0]]), *columns])
    return {**draws, **{name: table @ np.linalg.lstsq(table, draws[name])[0] for name in own}}


def parts_of(curves: Sequence[Array]) -> Parts:
    """The parts from the loss as each is switched on: parameters, deviation, drift, run."""
    added = [one - each for each, one in pairwise(curves)]
    parameter, deviation, drift, run = (float(each.std()) for each in (curves[0], *added))
    return Parts(parameter=parameter, deviation=deviation, drift=drift, run=run, total=float(curves[-1].std()))
