"""What learns: the model, its optimisers and one optimiser step, on this process's device and share of the batch."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bayeslaw.errors import UsageError
from models.looped import LoopedTransformer
from trainer import compilation
from trainer.config import TrainConfig
from trainer.distributed import World
from trainer.execution import Execution
from trainer.memory import sequences_at_once
from trainer.optim import Optimizers, schedule
from trainer.states import require_same

ALL_THREADS = torch.get_num_threads()
THREAD_WORK = 2**17
"""Activations (batch tokens x MLP width) from which more than one thread pays; below, they only wait for each other."""


class Step:
    """What became of one optimiser step, the same in every process.

    The numbers are the device's until somebody asks for one, which waits for it; `settle` waits once for many steps.

    Parameters
    ----------
    facts_4 : tensor [4]
        Loss, gradient norm, and whether a process asked to stop or to save, above 0 if so.
    """

    def __init__(self, facts_4: Tensor) -> None:
        self._facts_4 = facts_4

    @functools.cached_property
    def _values(self) -> list[float]:
        values: list[float] = self._facts_4.tolist()
        return values

    @property
    def loss(self) -> float:
        """Before the step, nats per token, over the whole batch."""
        return self._values[0]

    @property
    def gradient_norm(self) -> float:
        """Euclidean norm of all gradients."""
        return self._values[1]

    @property
    def skipped(self) -> bool:
        """Whether loss or gradients were not finite in some process, and so no process moved anything."""
        return not (math.isfinite(self.loss) and math.isfinite(self.gradient_norm))

    @property
    def stop(self) -> bool:
        """Whether a process asked to stop after this step."""
        return self._values[2] > 0

    @property
    def save(self) -> bool:
        """Whether a process asked to save a checkpoint after this step."""
        return self._values[3] > 0

    @staticmethod
    def settle(steps: Sequence[Step]) -> None:
        """Read all numbers of the steps, waiting for the device once."""
        if steps:
            for step, values in zip(steps, torch.stack([step._facts_4 for step in steps]).tolist(), strict=True):
                step._values = values


class _Loss(nn.Module):
    """Mean loss of next tokens: what is compiled and shared out over processes as one."""

    def __init__(self, model: LoopedTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.model.loss(tokens_BS)


class Learner:
    """Model and optimisers of a run.

    Parameters
    ----------
    config : TrainConfig
    execution : Execution
    world : World

    Attributes
    ----------
    waits : bool
        Whether a step is over when `step` returns; if not, reading its numbers waits for it.

    Raises
    ------
    UsageError
        The batch cannot be shared out over processes and passes.
    """

    def __init__(self, config: TrainConfig, execution: Execution, world: World) -> None:
        self._world = world
        self._steps = config.steps
        # One GPU decides by itself whether a step is skipped, so that the host may run ahead of it. The sharded
        # optimisers of several know no such flag, and a CPU has nobody to wait for.
        self.waits = world.device.type == "cpu" or world.size > 1
        self.sequences, self.at_once = shares(config, execution, world)
        on_gpu = world.device.type == "cuda"
        if on_gpu:  # the injection's and the head's float32 products; CPUs have no such shortcut
            torch.set_float32_matmul_precision("high")
        else:
            work = config.optimizer.batch_tokens * 4 * config.model.d_model
            torch.set_num_threads(ALL_THREADS if work >= THREAD_WORK else 1)
        self._bfloat16 = execution.precision == "bfloat16" or (execution.precision == "auto" and on_gpu)
        self.model = LoopedTransformer(
            config.architecture,
            head_size=config.model.head_size,
            seed=config.seed,
            activation_checkpointing=execution.activation_checkpointing,
        ).to(world.device)
        self.optimizers = Optimizers(self.model, config.rates, world)
        self._parameters = list(self.model.parameters())
        loss: nn.Module = _Loss(self.model)
        if compilation.wanted(config, execution, on_gpu=on_gpu):
            loss = compilation.Compiled(loss, or_else_plain=execution.compile == "auto")
        self._loss = loss
        if world.size > 1:
            self._loss = DistributedDataParallel(loss, gradient_as_bucket_view=True)
            # DDP sums in another order from its second backward pass on: a resumed run must not have that one later.
            self._backward(torch.zeros(self.at_once, config.model.seq_len + 1, dtype=torch.int64, device=world.device))
            self.model.zero_grad(set_to_none=True)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """The precision of matmuls."""
        # Older torch takes a weight cast in a detached recurrence, without gradient, for the others (pytorch 165068).
        kept = self.model.architecture.backprop_recurrences == self.model.architecture.recurrences
        return torch.autocast(self._world.device.type, torch.bfloat16, enabled=self._bfloat16, cache_enabled=kept)

    def step(self, number: int, own_BS: Tensor, *, stop: bool = False, save: bool = False) -> Step:
        """Do optimiser step ``number``, unless loss or gradients of any process are not finite.

        Parameters
        ----------
        number : int
            From 0.
        own_BS : tensor of int64, [B / processes, T + 1]
            This process's share of the batch.
        stop, save : bool
            Whether this process asks to stop, or to save a checkpoint, after the step.
        """
        passes = torch.split(own_BS.to(self._world.device, non_blocking=True), self.at_once)
        loss = torch.zeros((), device=self._world.device)
        for place, part in enumerate(passes, start=1):
            alone: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if place < len(passes) and isinstance(self._loss, DistributedDataParallel):
                alone = self._loss.no_sync()  # gradients are shared out once a step
            with alone:
                loss += self._backward(part, len(passes))
        norm = torch.nn.utils.get_total_norm(
            [parameter.grad for parameter in self._parameters if parameter.grad is not None], foreach=True
        )
        facts_4 = torch.stack([loss, norm, *(loss.new_full((), float(asked)) for asked in (stop, save))])
        facts_4 = self._world.total(facts_4) / self._world.size  # a NaN anywhere is one in every sum
        step, share = Step(facts_4), schedule(number, self._steps)
        if not self.waits:
            self.optimizers.step(share, skip=~facts_4[:2].isfinite().all())
        elif not step.skipped:
            self.optimizers.step(share)
        self.model.zero_grad(set_to_none=True)
        return step

    def _backward(self, tokens_BS: Tensor, passes: int = 1) -> Tensor:
        """Add the gradients of one pass of so many; its share of the loss []."""
        with self.autocast():
            loss: Tensor = self._loss(tokens_BS) / passes
        torch.autograd.backward(loss)
        return loss.detach()

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of a checkpoint in rank 0; the other processes must call it too."""
        return {"model": dict(self.model.named_parameters()), "optimizer": self.optimizers.tensors()}

    @torch.no_grad()
    def load(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what `parts` gave.

        Raises
        ------
        CheckpointError
            The tensors are those of another architecture.
        """
        parameters = dict(self.model.named_parameters())
        require_same(parts["model"], parameters)
        for name, parameter in parameters.items():
            parameter.copy_(parts["model"][name])
        self.optimizers.load(parts["optimizer"])


def shares(config: TrainConfig, execution: Execution, world: World) -> tuple[int, int]:
    """Sequences of a step in each process, and of one pass.

    Raises
    ------
    UsageError
        The sequences of the batch are no multiple of the processes, or a process's are none of a pass's.
    """
    batch = config.optimizer.batch_tokens // config.model.seq_len
    if batch % world.size:
        raise UsageError(
            f"a batch of {batch} sequences in {world.size} processes",
            allowed="as many sequences in each: batch_tokens a multiple of seq_len x processes",
            do=f"start {max(n for n in range(1, world.size) if batch % n == 0)} processes, or change batch_tokens",
        )
    sequences = batch // world.size
    at_once = execution.micro_batch or sequences_at_once(
        config, execution, sequences, on_gpu=world.device.type == "cuda"
    )
    if sequences % at_once:
        divisors = [n for n in range(1, sequences + 1) if sequences % n == 0]
        raise UsageError(
            f"micro_batch = {at_once} with {sequences} sequences a process",
            allowed=", ".join(map(str, divisors)),
            do=f"the nearest is {min(divisors, key=lambda n: abs(n - at_once))}",
        )
    return sequences, at_once
