"""The optimisers of a run and its schedule: MuonH for matrices, AdamW for the rest.

Betas, epsilon, the absence of weight decay and the schedule follow the recipe of arXiv 2604.21106; the rates are those
of `trainer.config.TrainConfig.rates`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from models.injection import HyperConnections
from models.looped import LoopedTransformer
from trainer.distributed import World
from trainer.muon import MuonH
from trainer.states import optimizer_state, optimizer_tensors

BETAS = (0.8, 0.95)
EPS = 1e-10
FINAL_RATE = 0.1


def schedule(step: int, steps: int) -> float:
    """Share of the peak rate at ``step`` of ``steps``: 1 at the first, `FINAL_RATE` at the last, linear between."""
    return 1.0 - (1.0 - FINAL_RATE) * step / max(1, steps - 1)


def parameters_by_kind(model: LoopedTransformer) -> dict[str, dict[str, nn.Parameter]]:
    """Every parameter of a model by name, in exactly one of the kinds of `trainer.rates.KINDS`."""
    kinds: dict[str, dict[str, nn.Parameter]] = {}
    for part, name, parameter in model.parameters_by_part():
        if part in ("embedding", "head"):
            kind = part
        elif isinstance(model.injection, HyperConnections) and name.startswith("injection."):
            kind = "lane"
        else:
            kind = "matrix" if parameter.ndim == 2 else "gain"
        kinds.setdefault(kind, {})[name] = parameter
    assert sum(map(len, kinds.values())) == len(list(model.parameters())), "a parameter without a kind"
    return kinds


class Optimizers:
    """MuonH over the matrices and AdamW over the rest; in several processes each keeps a share of the state.

    Parameters
    ----------
    model : LoopedTransformer
    rates : mapping of str to float
        Peak rate of each kind, see `trainer.config.TrainConfig.rates`.
    world : World
    """

    def __init__(self, model: LoopedTransformer, rates: Mapping[str, float], world: World) -> None:
        self._world = world
        kinds = parameters_by_kind(model)
        self.rates = {kind: rates[kind] for kind in kinds}
        self._kinds = ([kind for kind in kinds if kind == "matrix"], [kind for kind in kinds if kind != "matrix"])
        self._names = tuple([name for kind in group for name in kinds[kind]] for group in self._kinds)
        matrices, others = ([{"params": list(kinds[kind].values())} for kind in group] for group in self._kinds)
        adamw: dict[str, Any] = {"lr": 0.0, "betas": BETAS, "eps": EPS, "weight_decay": 0.0}
        self._parts: tuple[torch.optim.Optimizer, ...]
        if world.size == 1:
            self._parts = (MuonH(matrices, lr=0.0), torch.optim.AdamW(others, fused=True, **adamw))
        else:  # not fused: a loaded step count stays on the CPU there, which the fused kernel for GPUs refuses
            self._parts = (
                ZeroRedundancyOptimizer(matrices, MuonH, lr=0.0),
                ZeroRedundancyOptimizer(others, torch.optim.AdamW, **adamw),
            )

    def step(self, share: float, *, skip: Tensor | None = None) -> None:
        """Move all parameters at ``share`` of the peak rates.

        Parameters
        ----------
        share : float
            See `schedule`.
        skip : tensor of bool [], optional
            Whether to leave all as it is, known to the device alone; in one process only.
        """
        for part in self._parts:
            # What torch's gradient scaler tells a fused optimiser.
            part.found_inf = None if skip is None else skip.float()  # type: ignore[attr-defined]
        for kinds, part in zip(self._kinds, self._parts, strict=True):
            for kind, group in zip(kinds, part.param_groups, strict=True):
                group["lr"] = share * self.rates[kind]
            part.step()

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name, in rank 0; empty in the other processes, which must call it too."""
        tensors: dict[str, Tensor] = {}
        for names, part in zip(self._names, self._parts, strict=True):
            if isinstance(part, ZeroRedundancyOptimizer):
                part.consolidate_state_dict(to=0)
                if self._world.device.type == "cuda":  # it copies to the host without waiting
                    torch.cuda.synchronize()
            if self._world.first:
                tensors |= optimizer_tensors(part.state_dict(), names)
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `tensors` gave, in this or another number of processes."""
        for names, part in zip(self._names, self._parts, strict=True):
            groups, numbered = [], itertools.count()
            for group in part.param_groups:
                groups.append({**group, "params": list(itertools.islice(numbered, len(group["params"])))})
            part.load_state_dict(optimizer_state(tensors, groups, names))
            if isinstance(part, ZeroRedundancyOptimizer):
                part.state.clear()  # a second copy, and never used: the state is in part.optim
