"""Losses on held-out text and the size of the state, of a model as it is."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from models.looped import LoopedTransformer
from trainer.distributed import World

EVALUATION_TOKENS = 16_384
"""Tokens of one validation pass: bounds its memory."""


@torch.no_grad()
def validation_loss(
    model: LoopedTransformer, sequences: Tensor, *, world: World, recurrences: int | None = None
) -> tuple[float, float]:
    """Mean loss over held-out sequences and its standard error, nats per token; the same in every process.

    Parameters
    ----------
    model : LoopedTransformer
    sequences : tensor of any integer type, [n, T + 1]
        All of them, in every process; each computes its share.
    world : World
    recurrences : int, optional
        How often the shared block runs, the trained r by default.

    Returns
    -------
    The mean over all tokens, and the standard error of the mean with the sequence as the unit: tokens of one
    sequence are not independent.
    """
    at_once = max(1, EVALUATION_TOKENS // sequences.shape[1])
    losses = []
    for part in torch.split(sequences[world.rank :: world.size], at_once):
        tokens = part.to(world.device, torch.int64)
        token_losses = model.token_losses(tokens, recurrences=recurrences)
        losses.append(token_losses.mean(dim=1, dtype=torch.float64).cpu().numpy())
    per_sequence = np.concatenate([np.empty(0), *losses])
    per_sequence = np.concatenate(world.gathered(per_sequence))  # of all processes, in an order that does not matter
    error = per_sequence.std(ddof=1) / math.sqrt(len(per_sequence)) if len(per_sequence) > 1 else math.nan
    return float(per_sequence.mean()), float(error)


@torch.no_grad()
def state_sizes(model: LoopedTransformer, tokens_BT: Tensor) -> list[float]:
    """Root mean square of the shared block's output in each recurrence, before the norm that ends it.

    Growth over the recurrences or over the training shows a state that runs away.
    """
    sizes: list[Tensor] = []

    def measure(norm: torch.nn.Module, inputs: tuple[Tensor]) -> None:
        sizes.append(inputs[0].float().square().mean().sqrt())

    hook = model.recurrence_norm.register_forward_pre_hook(measure)
    try:
        model(tokens_BT)
    finally:
        hook.remove()
    return torch.stack(sizes).tolist()
