"""What a run takes in memory at least, and what to say when it is not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from bayeslaw.errors import BayeslawError
from models.layers import MLP_RATIO
from trainer.config import TrainConfig
from trainer.execution import Execution

FLOAT_BYTES = 4


def parameters(config: TrainConfig) -> int:
    """All parameters of the model, embedding and head included."""
    return int(config.architecture.n_unique) + 2 * config.model.vocab_size * config.model.d_model


def least_bytes(config: TrainConfig) -> int:
    """Bytes of weights, gradients and momentum in float32, AdamW's second moment too; activations come on top."""
    adamw = 2 * config.model.vocab_size * config.model.d_model  # the gains and lanes hardly count
    return FLOAT_BYTES * (3 * parameters(config) + adamw)


def estimated_bytes(config: TrainConfig) -> int:
    """Bytes of a run on one device, roughly: weights, gradients, optimisers' state, the activations of one pass.

    The pass is that of `sequences_at_once` on a GPU; on a CPU, where all sequences of a batch pass at once, a large run
    takes more.
    """
    execution, sequences = Execution(), config.optimizer.batch_tokens // config.model.seq_len
    at_once = sequences_at_once(config, execution, sequences, on_gpu=True)
    return least_bytes(config) + round(_activations(config, execution, at_once))


@contextlib.contextmanager
def shortage_told(config: TrainConfig, execution: Execution, sequences: int, device: torch.device) -> Iterator[None]:
    """Turn a failed allocation inside the block into an error that says what the run takes.

    ``sequences`` are those of one pass. A run that the whole memory of the machine cannot hold is refused at once,
    half of its activations included where they are kept there too: where the system promises memory that it does not
    have, the process would be killed without a word.

    Raises
    ------
    BayeslawError
        There is not enough memory.
    """
    try:
        activations = 0.0 if device.type == "cuda" else _activations(config, execution, sequences) / 2
        if least_bytes(config) + activations > _machine_bytes():
            raise MemoryError("more than the machine has")
        yield
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own for a failed allocation on the CPU
        if isinstance(error, RuntimeError) and not any(word in str(error).lower() for word in ("allocate", "memory")):
            raise
        raise BayeslawError(
            f"not enough memory: {parameters(config):,} parameters with gradients and the optimisers' state take "
            f"{least_bytes(config):,} bytes in float32; the activations of {sequences:,} sequences at once come on "
            f"top, roughly {_activations(config, execution, sequences):,.0f} bytes{_gpu_use()}",
            do=f"try {_advice(execution, sequences)}",
        ) from error


def sequences_at_once(config: TrainConfig, execution: Execution, sequences: int, *, on_gpu: bool) -> int:
    """Sequences of one forward and backward pass where nobody chose: a divisor of ``sequences``, a device's share."""
    if not on_gpu:
        return sequences
    fitting = GPU_ACTIVATIONS / _activations(config, execution, 1)
    return max(n for n in range(1, sequences + 1) if sequences % n == 0 and n <= max(1.0, fitting))


GPU_ACTIVATIONS = 32 * 2**30
"""Bytes of activations of one pass that a training GPU of today has room for."""


def _activations(config: TrainConfig, execution: Execution, sequences: int) -> float:
    """Bytes kept for the backward pass of so many sequences, roughly: matmul inputs in bfloat16, residual in float32.

    A layer keeps the inputs of its six matmuls, of its two norms, queries, keys and values, and the MLP's middle twice;
    the head the gradient of what it reads (its logits are there a piece at a time). Of detached recurrences nothing is
    kept, of those computed again the state alone.
    """
    model = config.model
    kept = model.backprop_recurrences or model.recurrences
    passes, states = (1, kept) if execution.activation_checkpointing else (kept, 0)
    layers = model.prelude_layers + passes * model.shared_layers + model.coda_layers
    per_token = model.d_model * (layers * (9 + 2 * MLP_RATIO) * 3 + FLOAT_BYTES * (states + 1))
    return float(sequences * model.seq_len * per_token)


def _advice(execution: Execution, sequences: int) -> str:
    advice = [f"--micro-batch {sequences // 2} (less at once, the same result)"] if sequences > 1 else []
    if not execution.activation_checkpointing:
        advice.append("--activation-checkpointing")
    return " or ".join([*advice, "a smaller d_model or fewer layers"])


def _gpu_use() -> str:
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    return (
        f"; the GPU has {total:,} bytes, {free:,} of them free, {torch.cuda.memory_allocated():,} held by this process"
    )


def _machine_bytes() -> float:
    """Physical memory of the machine in bytes, infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return float("inf")
