"""The looped transformer and its recipe written down plainly: torch's own modules, one matrix at a time, eager.

What benchmarks/training.py measures the trainer against; equal to it in what it computes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trainer.muon import POLAR_EXPRESS
from trainer.optim import BETAS, EPS, schedule


class Layer(nn.Module):
    def __init__(self, width: int, head: int, seq_len: int) -> None:
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        frequency = 10_000.0 ** (-torch.arange(0, head, 2) / head)
        angle = torch.outer(torch.arange(seq_len), frequency)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotated(self, x):
        x1, x2 = x.chunk(2, dim=-1)
        y = torch.cat((x1 * self.cos + x2 * self.sin, x2 * self.cos - x1 * self.sin), dim=-1)
        return F.rms_norm(y, (self.head,), eps=1e-6)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.norm2(x))) ** 2)


class Plain(nn.Module):
    def __init__(self, architecture, head: int) -> None:
        super().__init__()
        width, self.recurrences = architecture.d_model, architecture.recurrences
        layers = lambda n: nn.ModuleList(Layer(width, head, architecture.seq_len) for _ in range(n))  # noqa: E731
        self.embedding = nn.Embedding(architecture.vocab_size, width)
        self.prelude, self.shared, self.coda = map(
            layers, (architecture.prelude_layers, architecture.shared_layers, architecture.coda_layers)
        )
        self.injection = nn.Linear(2 * width, width, bias=False) if self.recurrences > 1 else None
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(3))
        self.head = nn.Linear(width, architecture.vocab_size, bias=False)

    def forward(self, tokens):
        x = self.norms[0](self.embedding(tokens))
        for layer in self.prelude:
            x = layer(x)
        e = x
        for _ in range(self.recurrences):
            if self.injection is not None:
                x = self.injection(torch.cat((e, x), dim=-1))
            for layer in self.shared:
                x = layer(x)
            x = self.norms[1](x)
        for layer in self.coda:
            x = layer(x)
        return 15 * torch.tanh(self.head(self.norms[2](x)) / 15)


class PlainMuonH:
    """The recipe's formulas, matrix by matrix."""

    def __init__(self, matrices) -> None:
        self.matrices = matrices
        self.norms = [matrix.detach().norm() for matrix in matrices]
        self.momenta = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for matrix, c, m in zip(self.matrices, self.norms, self.momenta, strict=True):
            g = matrix.grad
            m.mul_(0.95).add_(g, alpha=0.05)
            v = 0.05 * g + 0.95 * m
            x = v.T if v.shape[0] > v.shape[1] else v
            x = x / (1.02 * x.norm() + 1e-6)
            for a, b, d in POLAR_EXPRESS:
                gram = x @ x.T
                x = a * x + (b * gram + d * gram @ gram) @ x
            x = x.T if v.shape[0] > v.shape[1] else x
            matrix -= rate * x * c / x.norm()
            matrix *= c / matrix.norm()


class PlainLearner:
    """One optimiser step after another."""

    def __init__(self, config) -> None:
        self.steps, self.rates = config.steps, config.rates
        self.model = Plain(config.architecture, config.model.head_size)
        named = dict(self.model.named_parameters())
        special = {"embedding.weight": "embedding", "head.weight": "head"}
        matrices = [p for name, p in named.items() if p.ndim == 2 and name not in special]
        others = {name: [p] if name in special else [] for name, p in named.items() if name in special}
        gains = [p for p in named.values() if p.ndim == 1]
        self.muon = PlainMuonH(matrices)
        groups = [{"params": params, "peak": self.rates[special[name]]} for name, params in others.items()]
        groups.append({"params": gains, "peak": self.rates["gain"]})
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=EPS, weight_decay=0.0, foreach=False)

    def step(self, number: int, batch) -> float:
        logits = self.model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        share = schedule(number, self.steps)
        self.muon.step(share * self.rates["matrix"])
        for group in self.adamw.param_groups:
            group["lr"] = share * group["peak"]
        self.adamw.step()
        self.adamw.zero_grad()
        self.model.zero_grad()
        return loss.item()
