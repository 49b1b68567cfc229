"""How a run is carried out: device, precision, compilation, memory, checkpoints.

Nothing here belongs to what is computed: the same config gives the same losses but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayeslaw.errors import UsageError
from trainer.checks import is_positive, nearest, require_whole

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "float32", "bfloat16")
COMPILE = ("auto", "on", "off")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is carried out.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda``; ``auto`` is ``cuda`` where there is one.
    precision : str
        Of matmuls and attention: ``float32``, or ``bfloat16`` by autocast; ``auto`` is bfloat16 on a GPU, float32 on a
        CPU. Weights, residual and optimiser stay in float32.
    compile : str
        ``on``, ``off``; ``auto`` compiles on a GPU, and on a CPU with a C++ compiler the runs that are long enough, see
        `trainer.compilation`.
    micro_batch : int, optional
        Sequences of one forward and backward pass on a device, a divisor of its share of the batch. By default all of
        them on a CPU, and on a GPU what 32 GiB of activations hold.
    activation_checkpointing : bool
        Keep only the states between recurrences for the backward pass.
    checkpoint_every : int
        Steps between checkpoints; 0 for none by steps.
    checkpoint_minutes : float
        Minutes between checkpoints.
    keep : int
        Newest checkpoints kept, besides the best of those that were taken right after a validation.
    """

    device: str = "auto"
    precision: str = "auto"
    compile: str = "auto"
    micro_batch: int | None = None
    activation_checkpointing: bool = False
    checkpoint_every: int = 0
    checkpoint_minutes: float = 10.0
    keep: int = 1

    def __post_init__(self) -> None:
        for name, allowed in (("device", DEVICES), ("precision", PRECISIONS), ("compile", COMPILE)):
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(f"{name} = {value!r}", allowed=", ".join(allowed), do=nearest(value, allowed))
        require_whole(self, only=("micro_batch", "checkpoint_every", "keep"), checkpoint_every=0)
        if not isinstance(self.activation_checkpointing, bool):
            raise UsageError(f"activation_checkpointing = {self.activation_checkpointing!r}", allowed="true or false")
        if not is_positive(self.checkpoint_minutes):
            raise UsageError(f"checkpoint_minutes = {self.checkpoint_minutes}", allowed="a number above 0")
