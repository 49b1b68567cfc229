"""The looped transformer: prelude -> r x (injection, shared block, norm) -> coda -> head.

References
----------
arXiv 2604.21106, section "Architecture".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayeslaw.architecture import Architecture
from bayeslaw.errors import UsageError
from models.injection import LinearInjection, make_injection
from models.layers import Block, Matrix, RMSNorm, Rotary

LOGIT_CAP = 15.0
HEAD_STD = 1e-3

PARTS = ("once", "shared", "injection", "embedding", "head")


class LoopedTransformer(nn.Module):
    """A decoder-only transformer whose middle block runs r times; r = 1 is one pass of the same code.

    Parameters
    ----------
    architecture : Architecture
        Depth partition, width, recurrences, vocabulary, injection.
    head_size : int
        k, even and a divisor of the width.
    seed : int
        Seed of the starting values.

    Raises
    ------
    UsageError
        The width is no multiple of the head size, the injection has no module, or a plain transformer is asked to loop.
    """

    def __init__(self, architecture: Architecture, *, head_size: int, seed: int = 0) -> None:
        super().__init__()
        width = int(architecture.d_model)
        if width != architecture.d_model or head_size < 2 or head_size % 2 or width % head_size:
            raise UsageError(
                f"d_model = {architecture.d_model} with head size {head_size}",
                allowed="a whole width that is a multiple of an even head size",
            )
        if architecture.injection == "none" and architecture.recurrences > 1:
            raise UsageError(
                f"injection 'none' with recurrences = {architecture.recurrences}", allowed="linear for recurrences > 1"
            )
        self.architecture = architecture
        self.rotary = Rotary(head_size, architecture.seq_len)
        self.embedding = nn.Parameter(torch.empty(architecture.vocab_size, width))
        self.embedding_norm = RMSNorm(width)
        self.prelude = nn.ModuleList(Block(width, head_size) for _ in range(architecture.prelude_layers))
        self.injection = make_injection(architecture.injection, width)
        self.shared = nn.ModuleList(Block(width, head_size) for _ in range(architecture.shared_layers))
        self.recurrence_norm = RMSNorm(width)  # one gain for all recurrences
        self.coda = nn.ModuleList(Block(width, head_size) for _ in range(architecture.coda_layers))
        self.final_norm = RMSNorm(width)
        self.head = nn.Parameter(torch.empty(architecture.vocab_size, width))
        self.reset(seed)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Draw the starting values: embedding N(0, 1), head N(0, .001^2), block matrices by `Matrix.reset`, norms 1."""
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.embedding, generator=generator)
        nn.init.normal_(self.head, std=HEAD_STD, generator=generator)
        for module in self.modules():
            if isinstance(module, Matrix):
                module.reset(generator)
            elif isinstance(module, LinearInjection):
                module.reset()
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.gain)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits [B, T, V] in fp32 for token ids [B, T], T at most the architecture's context."""
        e_BTd = self.embedding_norm(F.embedding(tokens_BT, self.embedding))
        for block in self.prelude:
            e_BTd = block(e_BTd, self.rotary)

        h_BTd = e_BTd
        recurrences = self.architecture.recurrences
        detached = recurrences - (self.architecture.backprop_recurrences or recurrences)
        for t in range(recurrences):
            # Truncated backpropagation: the state that leaves the first recurrences carries no gradient.
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= detached):
                h_BTd = self.recur(e_BTd, h_BTd)

        for block in self.coda:
            h_BTd = block(h_BTd, self.rotary)
        logits_BTV = F.linear(self.final_norm(h_BTd), self.head).float()
        return LOGIT_CAP * torch.tanh(logits_BTV / LOGIT_CAP)

    def recur(self, e_BTd: Tensor, h_BTd: Tensor) -> Tensor:
        """One recurrence: injection, shared block, norm."""
        u_BTd: Tensor = self.injection(e_BTd, h_BTd)
        for block in self.shared:
            u_BTd = block(u_BTd, self.rotary)
        normed_BTd: Tensor = self.recurrence_norm(u_BTd)
        return normed_BTd

    def parameters_by_part(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """Every parameter once, as (part, name, parameter); the part is one of `PARTS`."""
        for name, parameter in self.named_parameters():
            root = name.split(".")[0]
            yield root if root in PARTS else "once", name, parameter

    def count(self) -> dict[str, int]:
        """Parameters of each part; ``once``, ``shared`` and ``injection`` are those that N counts."""
        counts = dict.fromkeys(PARTS, 0)
        for part, _, parameter in self.parameters_by_part():
            counts[part] += parameter.numel()
        return counts
