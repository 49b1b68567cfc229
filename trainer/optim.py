"""Optimiser and schedule: AdamW with one rate a kind of parameter, decayed linearly from 1 to .1.

Betas, epsilon, the absence of weight decay and the schedule follow the recipe of arXiv 2604.21106; the rates are our
own, measured for AdamW on small byte-level models.
"""

from __future__ import annotations

import torch
from torch import nn

from models.looped import LoopedTransformer
from trainer.config import TrainConfig

BETAS = (0.8, 0.95)
EPS = 1e-10
FINAL_RATE = 0.1


def make_optimizer(model: LoopedTransformer, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over every parameter of the model, in groups ``matrix``, ``embedding``, ``head`` and ``gain``.

    Each group keeps its peak rate as ``peak``; `set_rates` sets the rate of a step from it.
    """
    groups: dict[str, list[nn.Parameter]] = {"matrix": [], "embedding": [], "head": [], "gain": []}
    for part, _, parameter in model.parameters_by_part():
        kind = part if part in ("embedding", "head") else "matrix" if parameter.ndim == 2 else "gain"
        groups[kind].append(parameter)
    assert sum(map(len, groups.values())) == len(list(model.parameters())), "a parameter without a group"
    return torch.optim.AdamW(
        [{"params": params, "peak": getattr(config, f"{kind}_rate")} for kind, params in groups.items()],
        betas=BETAS,
        eps=EPS,
        weight_decay=0.0,
        fused=True,
    )


def schedule(step: int, steps: int) -> float:
    """Share of the peak rate at ``step`` of ``steps``: 1 at the first, `FINAL_RATE` at the last, linear between."""
    return 1.0 - (1.0 - FINAL_RATE) * step / max(1, steps - 1)


def set_rates(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Set every group's rate to ``share`` of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = share * group["peak"]
