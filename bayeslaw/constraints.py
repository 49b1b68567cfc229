"""What a decision may use up: memory, inference, data and device time besides the training budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.frontier import flops_limit
from bayeslaw.lines import NOTHING, Limit, Line, budget_line
from bayeslaw.sizes import Sizes
from bayeslaw.throughput import Throughput

PRECISIONS: Mapping[str, float] = {
    "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1, "int4": 0.5,
}  # fmt: skip
"""Bytes of a parameter."""

MOST_FLOPS = 1e30
"""Beyond any computer: a larger budget is a slip of the pen."""

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Bounds of a decision, none by default; any of them hold together.

    Parameters
    ----------
    memory : float, optional
        Bytes for the unique parameters; embedding and head, which do not depend on r, come on top.
    precision : str
        Of these parameters, one of `PRECISIONS`.
    inference_flops : float, optional
        Most FLOPs per generated token, at the end of a full context.
    lifetime_tokens : float
        Tokens to be generated over the model's life, whose FLOPs come out of the same budget as training.
    data_tokens : float, optional
        Different tokens there are to train on.
    epochs : float, optional
        How often they may be passed over; once by default.
    d_model : int, optional
        The only width.
    gpu_hours : float, optional
        Device hours of training, by the measured speed of the fit's runs.
    device : str, optional
        Whose speed, where the runs were trained on several devices.

    Raises
    ------
    UsageError
        A bound that is no positive finite number, or one that means nothing without another.
    """

    memory: float | None = None
    precision: str = "bfloat16"
    inference_flops: float | None = None
    lifetime_tokens: float = 0.0
    data_tokens: float | None = None
    epochs: float | None = None
    d_model: int | None = None
    gpu_hours: float | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "inference_flops", "data_tokens", "epochs", "d_model", "gpu_hours"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{_flag(name)} {value:g}", allowed="a finite number above 0")
        if not (math.isfinite(self.lifetime_tokens) and self.lifetime_tokens >= 0):
            raise UsageError(f"--lifetime-tokens {self.lifetime_tokens:g}", allowed="a finite number, 0 or more")
        if self.precision not in PRECISIONS:
            raise UsageError(f"--precision {self.precision!r}", allowed=", ".join(PRECISIONS))
        if self.epochs is not None and self.data_tokens is None:
            raise UsageError(
                f"--epochs {self.epochs:g} of no data", do="say with --data-tokens how many tokens there are"
            )
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(f"--epochs {self.epochs:g}", allowed="1 or more")
        if self.device is not None and self.gpu_hours is None:
            raise UsageError(f"--device {self.device} without --gpu-hours", allowed="both or neither")

    def as_dict(self) -> dict[str, Any]:
        """Those that were given."""
        given = {name: value for name, value in vars(self).items() if value}
        if self.memory is None:
            del given["precision"]
        return given

    def line(self, sizes: Sizes, flops: float | None, speed: Throughput | None = None) -> Line:
        """The sizes that are left, and the tokens that each can be trained on.

        Parameters
        ----------
        sizes : Sizes
        flops : float or None
            Training budget; None where device hours alone are the budget.
        speed : Throughput, optional
            Needed with ``gpu_hours``.

        Raises
        ------
        DecisionError
            No size is left: says which bound leaves none, and by how much.
        """
        limits = list(self._limits(sizes, flops, speed))
        smallest, largest, held_by = 0.0, math.inf, ""
        if self.d_model is not None:
            if not sizes.has_width or self.d_model % sizes.step:
                raise UsageError(
                    f"--d-model {self.d_model}",
                    allowed=f"a multiple of {sizes.step}" if sizes.has_width else "none under --flops-rule 6nd",
                    do=f"the nearest is {sizes.nearest(self.d_model)}" if sizes.has_width else None,
                )
            smallest = largest = float(self.d_model)
        least = max(smallest, sizes.smallest)
        lacking = []
        for bound in self._bounds(sizes):
            lacking.append(bound.lacks(least, sizes.called(least)))
            if (reach := max(bound.largest(0.0), least)) < largest:
                largest, held_by = reach, bound.name
        if any(lacking):
            lacking += [limit.lacks(least, sizes.called(least), sizes.batch_tokens) for limit in limits]
            raise DecisionError("; ".join(filter(None, lacking)))
        line = budget_line(sizes, limits, smallest=smallest, largest=largest)
        return replace(line, held_by=held_by if line.largest == largest else "")

    def memory_of(self, n_unique: float) -> float:
        """Bytes of so many parameters at the precision."""
        return n_unique * PRECISIONS[self.precision]

    def _limits(self, sizes: Sizes, flops: float | None, speed: Throughput | None) -> Iterator[Limit]:
        if flops is not None:
            yield flops_limit(sizes, flops, generated=self.lifetime_tokens)
        if self.gpu_hours is not None:
            assert speed is not None
            yield Limit(
                name="device time", amount=self.gpu_hours * HOUR, unit="device seconds",
                cost=speed.seconds(sizes.flops_per_token), fixed=NOTHING,
            )  # fmt: skip
        if self.data_tokens is not None:
            yield Limit(
                name="data", amount=self.data_tokens * (self.epochs or 1.0), unit="tokens",
                cost=np.array([1.0, 0.0, 0.0]), fixed=NOTHING,
            )  # fmt: skip

    def _bounds(self, sizes: Sizes) -> Iterator[Limit]:
        """What only the size uses up."""
        if self.memory is not None:
            per = PRECISIONS[self.precision]
            yield Limit(name="memory", amount=self.memory, unit="bytes", cost=NOTHING, fixed=per * sizes.n_unique)
        if self.inference_flops is not None:
            yield Limit(
                name="inference", amount=self.inference_flops, unit="FLOPs per generated token", cost=NOTHING,
                fixed=sizes.inference_flops,
            )  # fmt: skip


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
