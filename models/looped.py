"""The looped transformer: prelude -> r x (injection, shared block, norm) -> coda -> head.

One rule of precision for every arm: the residual stays in the precision of the weights (float32) from the embedding to
the head; matmuls run in autocast's precision; the cap and the loss take logits of float32 at least.

References
----------
arXiv 2604.21106, section "Architecture".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayeslaw.architecture import Architecture
from bayeslaw.errors import UsageError
from models.head import capped, mean_loss, token_losses, token_scores
from models.injection import HyperConnections, make_injection
from models.layers import Block, Cache, Matrix, Prefix, RMSNorm, Rotary

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
    activation_checkpointing : bool
        Keep only the state between recurrences for the backward pass and compute the rest again: memory no longer grows
        with r times the layers of the block, for one more forward pass of each recurrence.

    Raises
    ------
    UsageError
        The width is no multiple of the head size, or a plain transformer is asked to loop.
    """

    def __init__(
        self, architecture: Architecture, *, head_size: int, seed: int = 0, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        width = int(architecture.d_model)
        if width != architecture.d_model or head_size < 2 or head_size % 2 or width % head_size:
            raise UsageError(
                f"d_model = {architecture.d_model} with head size {head_size}",
                allowed="a whole width that is a multiple of an even head size",
            )
        if architecture.injection == "none" and architecture.recurrences > 1:
            raise UsageError(
                f"injection 'none' with recurrences = {architecture.recurrences}",
                allowed="linear, additive, hyperconnections or passthrough for recurrences > 1",
            )
        self.architecture = architecture
        self.activation_checkpointing = activation_checkpointing
        self.rotary = Rotary(head_size, architecture.seq_len)
        self.embedding = nn.Parameter(torch.empty(architecture.vocab_size, width))
        self.embedding_norm = RMSNorm(width)
        self.prelude = nn.ModuleList(Block(width, head_size) for _ in range(architecture.prelude_layers))
        self.injection = make_injection(architecture)
        self.shared = nn.ModuleList(Block(width, head_size) for _ in range(architecture.shared_layers))
        self.recurrence_norm = RMSNorm(width)  # one gain for all recurrences
        self.coda = nn.ModuleList(Block(width, head_size) for _ in range(architecture.coda_layers))
        self.final_norm = RMSNorm(width)
        self.head = nn.Parameter(torch.empty(architecture.vocab_size, width))
        self.reset(seed)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Draw the starting values.

        Embedding N(0, 1) rounded to bfloat16, head N(0, .001^2), block matrices uniform with standard deviation
        1 / sqrt(fan in), norms 1, the injection by its own `reset`.
        """
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.embedding, generator=generator)
        self.embedding.copy_(self.embedding.bfloat16())
        nn.init.normal_(self.head, std=HEAD_STD, generator=generator)
        for module in self.modules():
            if isinstance(module, Matrix):
                module.reset(generator)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.gain)
        self.injection.reset()

    def forward(self, tokens_BT: Tensor, *, recurrences: int | None = None, cache: Cache | None = None) -> Tensor:
        """Logits of the next token.

        Parameters
        ----------
        tokens_BT : tensor of int64, [B, T]
            Token ids, T at most the architecture's context; with a cache, those that come after what it holds.
        recurrences : int, optional
            How often the shared block runs, the trained r by default.
        cache : Cache, optional
            Keys and values of the tokens before; extended by those of these tokens.

        Returns
        -------
        Logits [B, T, V] within +-15, in float32 or, for a network in float64, float64.

        Raises
        ------
        UsageError
            The network has no parameters for so many recurrences, or the tokens exceed the context, those in the cache
            included.
        """
        return capped(F.linear(self._read_by_head(tokens_BT, recurrences, cache), self.head))

    def loss(self, tokens_BS: Tensor) -> Tensor:
        """Mean loss of next tokens [], nats, of sequences [B, T + 1]: as from `forward`, without all logits at once."""
        h_BTd = self._read_by_head(tokens_BS[:, :-1])
        return mean_loss(h_BTd.flatten(0, 1), self.head, tokens_BS[:, 1:].flatten())

    @torch.no_grad()
    def token_losses(self, tokens_BS: Tensor, *, recurrences: int | None = None) -> Tensor:
        """Loss of each next token [B, T], nats, of sequences [B, T + 1]; parameters as for `forward`."""
        h_BTd = self._read_by_head(tokens_BS[:, :-1], recurrences)
        losses_N = token_losses(h_BTd.flatten(0, 1), self.head, tokens_BS[:, 1:].flatten())
        return losses_N.view(h_BTd.shape[:2])

    @torch.no_grad()
    def token_scores(
        self,
        tokens_BT: Tensor,
        places_N: Tensor,
        targets_N: Tensor,
        *,
        recurrences: int | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Loss of some next tokens [N], nats, and whether each is the likeliest [N].

        Parameters
        ----------
        tokens_BT, recurrences, cache
            As for `forward`.
        places_N : tensor of int64, [N]
            Which of the B T tokens, counted row by row, they come after.
        targets_N : tensor of int64, [N]
            The tokens that come next there.
        """
        h_Nd = self._read_by_head(tokens_BT, recurrences, cache, places_N)
        return token_scores(h_Nd, self.head, targets_N)

    @torch.no_grad()
    def fill(self, tokens_T: Tensor, *, recurrences: int | None = None) -> Prefix:
        """What tokens [T] leave for sequences that begin with them; parameters as for `forward`."""
        cache = Cache(len(tokens_T))
        self._read_by_head(tokens_T[None], recurrences, cache)
        return Prefix(cache, self.architecture.seq_len)

    def _read_by_head(
        self,
        tokens_BT: Tensor,
        recurrences: int | None = None,
        cache: Cache | None = None,
        places_N: Tensor | None = None,
    ) -> Tensor:
        """What the head reads, [B, T, d], or [N, d] of some of the B T tokens."""
        runs = self.architecture.recurrences if recurrences is None else self._checked(recurrences)
        self._check_length(tokens_BT.shape[1], cache)
        e_BTd = self.embedding_norm(F.embedding(tokens_BT, self.embedding))
        e_BTd = self._through(self.prelude, e_BTd, cache)

        kept = self.architecture.backprop_recurrences
        detached = 0 if kept in (None, self.architecture.recurrences) else max(0, runs - kept)
        h = self.injection.start(e_BTd)
        for t in range(runs):
            # Truncated backpropagation: the state that leaves the first recurrences carries no gradient.
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= detached):
                if self.activation_checkpointing and torch.is_grad_enabled() and cache is None:
                    # Nothing in a recurrence is random: no need to keep the generators' states.
                    h = checkpoint(self._recur, e_BTd, h, t, use_reentrant=False, preserve_rng_state=False)
                else:
                    h = self._recur(e_BTd, h, t, cache)

        h = self._through(self.coda, self.injection.read(h), cache, places_N)
        if cache is not None:
            cache.advance(tokens_BT.shape[1])
        read: Tensor = self.final_norm(h)
        return read

    def _recur(self, e_BTd: Tensor, h: Tensor, t: int, cache: Cache | None = None) -> Tensor:
        """One recurrence: injection, shared block, norm; the state before it to the state after it."""
        u_BTd = self._through(self.shared, self.injection.enter(e_BTd, h, t), cache)
        return self.injection.leave(h, self.recurrence_norm(u_BTd), t)

    def _through(self, blocks: nn.ModuleList, x: Tensor, cache: Cache | None, places_N: Tensor | None = None) -> Tensor:
        """Through all blocks, [B, T, d] to [B, T, d]; after the last to [N, d] where only these tokens are wanted."""
        for number, block in enumerate(blocks, start=1):
            x = block(x, self.rotary, cache, places_N if number == len(blocks) else None)
        return x if places_N is None or len(blocks) else x.flatten(0, 1)[places_N]

    def _checked(self, recurrences: int) -> int:
        """Refuse a number of recurrences that there are no parameters for."""
        trained = self.architecture.recurrences
        own = isinstance(self.injection, HyperConnections)
        if recurrences < 1 or (own and recurrences > trained) or (trained == 1 and recurrences > 1):
            why = "; hyperconnections have parameters for each trained recurrence" if own else ""
            raise UsageError(
                f"recurrences = {recurrences} in a network trained with {trained}",
                allowed=(f"1 to {trained}" if own or trained == 1 else "1 or more") + why,
            )
        return recurrences

    def _check_length(self, tokens: int, cache: Cache | None) -> None:
        """Refuse tokens beyond the context or what is left of a cache."""
        seq_len, before = self.architecture.seq_len, 0
        if cache is not None:
            seq_len, before = min(seq_len, cache.seq_len), cache.length
        if before + tokens > seq_len:
            raise UsageError(
                f"{tokens} tokens" + (f" after {before} in the cache" if before else ""),
                allowed=f"{seq_len} tokens in all",
            )

    def parameters_by_part(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """Every parameter once, as (part, name, parameter); the part is one of `PARTS`.

        The lane parameters of hyperconnections belong to the shared block, as `Architecture` counts them.
        """
        for name, parameter in self.named_parameters():
            root = name.split(".")[0]
            if root == "injection" and isinstance(self.injection, HyperConnections):
                root = "shared"
            yield root if root in PARTS else "once", name, parameter

    def count(self) -> dict[str, int]:
        """Parameters of each part; ``once``, ``shared`` and ``injection`` are those that N counts."""
        counts = dict.fromkeys(PARTS, 0)
        for part, _, parameter in self.parameters_by_part():
            counts[part] += parameter.numel()
        return counts
