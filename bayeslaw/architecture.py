"""Architectures of looped transformers: depth partition, parameter counts, FLOPs per token.

The counts are those of the network in ``models/`` to the last parameter and are the only place where they are
written. Embedding and head never count towards N; the head's matmul counts towards FLOPs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bayeslaw.errors import UsageError

INJECTIONS = ("none", "linear", "additive", "passthrough", "hyperconnections")
REENTERING = ("linear", "additive")
"""Injections by which the prelude's output enters every recurrence; by the others it enters the first one only."""
WIDTH_UNIT = 64
"""Width per unit of width scale: d_model = 64 s."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One prelude-recur-coda transformer.

    Parameters
    ----------
    d_model : float
        Width. A whole number for a network that exists; real values are allowed so that an optimum between two
        trainable widths has counts and FLOPs too.
    prelude_layers, shared_layers, coda_layers : int
        Layers before, inside and after the recurrent block.
    recurrences : int
        r, how often the shared block runs; r = 1 is the plain transformer.
    seq_len : int
        Context length in tokens.
    vocab_size : int
        Rows of the embedding and of the head.
    injection : str
        How the prelude's output enters each recurrence; ``"none"`` when r = 1.
    backprop_recurrences : int, optional
        The last recurrences that gradients pass through; default all r.
    lanes : int
        Residual lanes of hyperconnections, unused by the other injections.

    References
    ----------
    arXiv 2604.21106, section "Architecture" and Table 6, whose N and FLOPs per token these counts reproduce.
    """

    d_model: float
    prelude_layers: int
    shared_layers: int
    coda_layers: int
    recurrences: int
    seq_len: int
    vocab_size: int
    injection: str = "linear"
    backprop_recurrences: int | None = None
    lanes: int = 2

    def __post_init__(self) -> None:
        if self.injection not in INJECTIONS:
            raise UsageError(f"injection {self.injection!r}", allowed=", ".join(INJECTIONS))
        for name in ("d_model", "shared_layers", "recurrences", "seq_len", "vocab_size", "lanes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} = {value}", allowed="a number above 0")
        for name in ("prelude_layers", "coda_layers"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} = {getattr(self, name)}", allowed="0 or more layers")
        if self.recurrences == 1 and self.injection != "none":
            object.__setattr__(self, "injection", "none")
        if self.backprop_recurrences is None:
            object.__setattr__(self, "backprop_recurrences", self.recurrences)
        if not 1 <= self._kept <= self.recurrences:
            raise UsageError(
                f"backprop_recurrences = {self.backprop_recurrences}",
                allowed=f"1 to {self.recurrences}, the recurrences",
            )

    @property
    def _kept(self) -> int:
        """Recurrences that gradients pass through, as an int."""
        return self.recurrences if self.backprop_recurrences is None else self.backprop_recurrences

    @property
    def width_scale(self) -> float:
        """s = d_model / 64."""
        return self.d_model / WIDTH_UNIT

    @property
    def effective_layers(self) -> int:
        """Layers a token passes through: prelude + r shared + coda."""
        return self.prelude_layers + self.recurrences * self.shared_layers + self.coda_layers

    @property
    def n_layer(self) -> float:
        """Parameters of one layer, 12 d^2 + 2 d: attention 4 d^2, MLP 8 d^2, two norm gains."""
        return 12 * self.d_model**2 + 2 * self.d_model

    @property
    def n_lane(self) -> int:
        """Hyperconnection parameters of one recurrence, K^2 + 2 K."""
        return self.lanes**2 + 2 * self.lanes if self.injection == "hyperconnections" else 0

    @property
    def n_once(self) -> float:
        """Parameters run once per token: prelude, coda and the three norms of the model."""
        return (self.prelude_layers + self.coda_layers) * self.n_layer + 3 * self.d_model

    @property
    def n_shared(self) -> float:
        """Parameters of the shared block, hyperconnection lanes of all recurrences included, injection excluded."""
        return self.shared_layers * self.n_layer + self.recurrences * self.n_lane

    @property
    def n_injection(self) -> float:
        """Parameters of the linear injection, 2 d^2; 0 for the injections without a matrix."""
        return 2 * self.d_model**2 if self.injection == "linear" else 0

    @property
    def n_unique(self) -> float:
        """Non-embedding parameters that exist in memory."""
        return self.n_once + self.n_shared + self.n_injection

    @property
    def _layer_flops(self) -> float:
        """FLOPs of one layer's forward pass: 2 per parameter, 4 per attention unit d T."""
        return 2 * self.n_layer + 4 * self.d_model * self.seq_len

    @property
    def _recurrence_flops(self) -> float:
        """FLOPs of one recurrence's forward pass: shared layers, injection, mixing of lanes."""
        mixing = 2 * self.n_injection + 2 * self.n_lane * self.d_model
        return self.shared_layers * self._layer_flops + mixing

    @property
    def forward_flops_per_token(self) -> float:
        """FLOPs of one forward pass, per token at full context: 2 per parameter run, 4 per attention unit d T."""
        once = (self.prelude_layers + self.coda_layers) * self._layer_flops
        return once + self.recurrences * self._recurrence_flops + 2 * self.d_model * self.vocab_size

    @property
    def inference_flops_per_token(self) -> float:
        """FLOPs to generate one token at the end of a full context, with a key-value cache."""
        return self.forward_flops_per_token

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token: three forward passes, one for what no gradient passes through.

        For an untruncated loop this is 6 (L (12 d^2 + 2 d) + r 2 d^2 [r > 1]) + 12 L d T + 6 d V with L effective
        layers (arXiv 2604.21106, Table 6). Detached recurrences cost one forward pass, and so does the prelude where
        the detached state was its only way to the loss.
        """
        detached = (self.recurrences - self._kept) * self._recurrence_flops
        if self.prelude_detached:
            detached += self.prelude_layers * self._layer_flops
        return 3 * self.forward_flops_per_token - 2 * detached

    @property
    def prelude_detached(self) -> bool:
        """Whether truncation cuts the prelude off from the loss: its output then enters no recurrence that is kept."""
        return self._kept < self.recurrences and self.injection not in REENTERING

    def tokens_for(self, flops: float, *, batch_tokens: int = 1) -> int:
        """Training tokens that a budget buys, in whole batches (at least one).

        Parameters
        ----------
        flops : float
            Training budget C in FLOPs.
        batch_tokens : int
            Tokens of one optimiser step.
        """
        if not (math.isfinite(flops) and flops > 0):
            raise UsageError(f"a budget of {flops} FLOPs", allowed="a finite number above 0, such as 2.15e19")
        return batch_tokens * max(1, round(flops / (batch_tokens * self.flops_per_token)))
