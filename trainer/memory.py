"""Memory of a run: what it takes at least, what to say when it is not there, and the peak that was used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bayeslaw.errors import BayeslawError
from trainer.config import TrainConfig

COPIES = 4
"""Weights, gradients and the two moments of AdamW."""
FLOAT_BYTES = 4


def parameters(config: TrainConfig) -> int:
    """All parameters of the model, embedding and head included."""
    return int(config.architecture.n_unique) + 2 * config.vocab_size * config.d_model


def least_bytes(config: TrainConfig) -> int:
    """Bytes of weights, gradients and AdamW's moments in float32; activations come on top."""
    return COPIES * FLOAT_BYTES * parameters(config)


@contextlib.contextmanager
def shortage_told(config: TrainConfig) -> Iterator[None]:
    """Turn a failed allocation inside the block into an error that says what the run takes.

    A run that the whole memory of the machine cannot hold is refused at once: where the system promises memory that it
    does not have, building it would end in the process being killed.

    Raises
    ------
    BayeslawError
        There is not enough memory.
    """
    try:
        if least_bytes(config) > _machine_bytes():
            raise MemoryError("more than the machine has")
        yield
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own for a failed allocation on the CPU
        if isinstance(error, RuntimeError) and not any(word in str(error).lower() for word in ("allocate", "memory")):
            raise
        raise BayeslawError(
            f"not enough memory: the model has {parameters(config):,} parameters, and with gradients and the two "
            f"moments of AdamW in float32 they take {least_bytes(config):,} bytes; the activations of "
            f"{config.batch_tokens:,} tokens come on top",
            do="use a smaller d_model, fewer layers or smaller batch_tokens, or a machine with more memory",
        ) from error


def _machine_bytes() -> float:
    """Physical memory of the machine in bytes, infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return float("inf")


def restart_peak_memory() -> None:
    """Let the peak begin anew, so that a run in a sweep does not report the largest run before it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float | None:
    """Peak resident memory of the process since `restart_peak_memory`, in bytes; None where /proc does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    return None
