"""What a token costs in time of a device, measured by the runs at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.errors import DecisionError

Array = NDArray[np.float64]

UNNAMED = "an unnamed device"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Seconds of one device for a token: a part that no model saves, and one that grows with its FLOPs.

    Parameters
    ----------
    device : str
    overhead : float
        Device seconds per token, whatever the model.
    per_flop : float
        Device seconds per training FLOP.
    runs : int
        Measured runs behind it.
    scatter : float
        Root mean square of measured over fitted seconds less 1.
    least, most : float
        FLOPs per token of the smallest and the largest measured model.
    """

    device: str
    overhead: float
    per_flop: float
    runs: int
    scatter: float
    least: float
    most: float

    def seconds(self, flops_per_token: Array) -> Array:
        """Device seconds per token of models whose FLOPs per token are these coefficients of powers of the size."""
        cost: Array = self.per_flop * flops_per_token + self.overhead * np.array([1.0, 0.0, 0.0])
        return cost

    def __str__(self) -> str:
        return (
            f"device time by {self.runs} measured runs on {self.device}: a token of F FLOPs takes F / "
            f"{1 / self.per_flop:.3g} + {self.overhead:.2g} s, off by {self.scatter:.0%} rms"
        )


def throughput_of(runs: pd.DataFrame, device: str | None = None) -> Throughput:
    """Fit device seconds per token to the measured speed of runs, by relative least squares with both parts >= 0.

    Parameters
    ----------
    runs : pandas.DataFrame
        A run table; ``tokens_per_second`` is that of a whole run, on ``device_count`` devices (1 where not given).
    device : str, optional
        Only runs on this device; needed where there are several.

    Raises
    ------
    DecisionError
        No run says how fast it was, none on that device, or they are of several devices and none is named.
    """
    from scipy.optimize import nnls

    if "tokens_per_second" not in runs or runs["tokens_per_second"].isna().all():
        raise DecisionError(
            "device hours need measured speed, and no run of this fit has tokens_per_second",
            do="fit runs whose speed is known (`bayeslaw sweep run` records it), or give the budget in --flops",
        )
    known = runs[runs["tokens_per_second"].notna() & runs["flops_per_token"].notna()]
    names = known["device"].fillna(UNNAMED).astype(str) if "device" in known else pd.Series(UNNAMED, known.index)
    found = sorted(names.unique())
    if device is None and len(found) > 1:
        raise DecisionError(f"the runs were measured on {' and '.join(found)}", do="name one with --device")
    if device is not None and device not in found:
        raise DecisionError(f"--device {device!r}: no run was measured on it", allowed=", ".join(found))
    known = known[names == (device or found[0])]
    count = known["device_count"].fillna(1).to_numpy(dtype=float) if "device_count" in known else np.ones(len(known))
    seconds = count / known["tokens_per_second"].to_numpy(dtype=float)
    cost = known["flops_per_token"].to_numpy(dtype=float)
    both = len(np.unique(cost)) > 1
    design = np.column_stack([cost / cost.max(), np.full(len(cost), float(both))]) / seconds[:, None]
    (per_flop, overhead), _ = nnls(design, np.ones(len(cost)))
    return Throughput(
        device=device or found[0],
        overhead=float(overhead),
        per_flop=float(per_flop / cost.max()),
        runs=len(known),
        scatter=float(np.sqrt(np.mean((design @ [per_flop, overhead] - 1) ** 2))),
        least=float(cost.min()),
        most=float(cost.max()),
    )
