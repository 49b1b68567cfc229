"""The parts of one transformer block: norm, rotary positions, causal attention, squared-ReLU MLP.

Shapes: B sequences, T tokens, d width, H heads of size k, d = H k. No biases anywhere.

References
----------
arXiv 2604.21106, section "Architecture".
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayeslaw.errors import UsageError

NORM_EPS = 1e-6
ROPE_BASE = 10_000.0
MLP_RATIO = 4


class RMSNorm(nn.Module):
    """x / rms(x) * gain over the last axis; the gain starts at 1.

    Parameters
    ----------
    width : int
        d, size of the last axis.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` [..., d]."""
        return F.rms_norm(x, self.gain.shape, self.gain, NORM_EPS)


class Matrix(nn.Module):
    """A linear map without bias.

    Parameters
    ----------
    fan_in, fan_out : int
        Sizes of input and output; the weight is [fan_out, fan_in].
    """

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the weight uniformly with standard deviation 1 / sqrt(fan in)."""
        bound = math.sqrt(3 / self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` [..., fan_in] to [..., fan_out]."""
        return F.linear(x, self.weight)


class Rotary(nn.Module):
    """Rotary positions over the full head, half-split: y1 = x1 cos + x2 sin, y2 = -x1 sin + x2 cos.

    Parameters
    ----------
    head_size : int
        k, even.
    seq_len : int
        Longest sequence.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, seq_len: int) -> None:
        super().__init__()
        frequency = ROPE_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        angle_Tk2 = torch.outer(torch.arange(seq_len, dtype=torch.float32), frequency)
        self.register_buffer("cos", angle_Tk2.cos(), persistent=False)
        self.register_buffer("sin", angle_Tk2.sin(), persistent=False)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Rotate queries or keys [..., T, k] that stand at the positions from ``start`` on."""
        end = start + x.shape[-2]
        cos, sin = self.cos[start:end], self.sin[start:end]
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos + x2 * sin, x2 * cos - x1 * sin), dim=-1)


class Cache:
    """Keys and values of the tokens seen so far, one pair for each pass through a layer, for decoding token by token.

    The passes come in the same order in every forward pass, all with the recurrences of the first one; `advance` ends
    one.

    Parameters
    ----------
    seq_len : int
        Most tokens that it holds.
    """

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.length = 0
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._passes = 0
        self._passes_each = 0

    def extend(self, k_BHTk: Tensor, v_BHTk: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of this pass with the new ones appended, [B, H, length + T, k] each."""
        if self._passes == len(self._pairs):
            shape = (*k_BHTk.shape[:2], self.seq_len, k_BHTk.shape[3])
            self._pairs.append((k_BHTk.new_empty(shape), v_BHTk.new_empty(shape)))
        keys, values = self._pairs[self._passes]
        self._passes += 1
        end = self.length + k_BHTk.shape[2]
        keys[:, :, self.length : end] = k_BHTk
        values[:, :, self.length : end] = v_BHTk
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, tokens: int) -> None:
        """End a forward pass over ``tokens`` tokens.

        Raises
        ------
        UsageError
            The forward pass had other recurrences than the first one: a layer would read the keys of another.
        """
        if self.length and self._passes != self._passes_each:
            raise UsageError(
                f"{self._passes} passes through layers with a cache filled by {self._passes_each}",
                allowed="the same recurrences for all tokens of a cache",
            )
        self._passes_each = self._passes
        self.length += tokens
        self._passes = 0


class Prefix(Cache):
    """What one sequence left in a cache, which any number of sequences go on from; they leave nothing in it.

    Parameters
    ----------
    cache : Cache
        Of one sequence, [1, H, length, k] for each pass; no longer of use itself.
    seq_len : int
        Most tokens of a sequence, its beginning in the cache included.
    """

    def __init__(self, cache: Cache, seq_len: int) -> None:
        super().__init__(seq_len)
        self.length = cache.length
        self._pairs = cache._pairs
        self._passes_each = cache._passes_each

    def extend(self, k_BHTk: Tensor, v_BHTk: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of this pass with those of each sequence appended, [B, H, length + T, k] each."""
        if self._passes < len(self._pairs):  # `advance` says what is wrong otherwise
            held = (pair[:, :, : self.length].expand(len(k_BHTk), -1, -1, -1) for pair in self._pairs[self._passes])
            k_BHTk, v_BHTk = (torch.cat(both, dim=2) for both in zip(held, (k_BHTk, v_BHTk), strict=True))
        self._passes += 1
        return k_BHTk, v_BHTk

    def advance(self, tokens: int) -> None:
        """End a forward pass."""
        super().advance(0)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and parameter-free RMSNorm on queries and keys.

    Parameters
    ----------
    width, head_size : int
        d and k.
    """

    def __init__(self, width: int, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size
        self.query = Matrix(width, width)
        self.key = Matrix(width, width)
        self.value = Matrix(width, width)
        self.out = Matrix(width, width)

    def forward(self, x_BTd: Tensor, rotary: Rotary, cache: Cache | None = None, first: int = 0) -> Tensor:
        """Mix tokens with those before them; [B, T, d] to [B, T - first, d], what the first ones become left out."""
        q_BHTk, k_BHTk, v_BHTk = (
            project(y_BTd).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for project, y_BTd in ((self.query, x_BTd[:, first:]), (self.key, x_BTd), (self.value, x_BTd))
        )
        start = 0 if cache is None else cache.length
        if first:
            q_BHTk, k_BHTk = self._placed(q_BHTk, rotary, start + first), self._placed(k_BHTk, rotary, start)
        else:  # in one pass: small networks spend most of their time on the number of operations
            q_BHTk, k_BHTk = self._placed(torch.stack((q_BHTk, k_BHTk)), rotary, start).unbind()
        start += first
        if cache is not None:
            k_BHTk, v_BHTk = cache.extend(k_BHTk, v_BHTk)
        mask_TS = None
        if start:  # is_causal would let the first new token see the first cached one only
            T, S = q_BHTk.shape[2], k_BHTk.shape[2]
            mask_TS = torch.ones(T, S, dtype=torch.bool, device=x_BTd.device).tril(start)
        y_BHTk = F.scaled_dot_product_attention(q_BHTk, k_BHTk, v_BHTk, attn_mask=mask_TS, is_causal=not start)
        out_BTd: Tensor = self.out(y_BHTk.transpose(1, 2).flatten(-2))
        return out_BTd

    def _placed(self, x: Tensor, rotary: Rotary, start: int) -> Tensor:
        """Queries or keys [..., T, k] at the positions from ``start`` on, in their own precision."""
        return F.rms_norm(rotary(x, start), (self.head_size,), eps=NORM_EPS).to(x.dtype)


class MLP(nn.Module):
    """d -> 4 d -> d with a squared ReLU between.

    Parameters
    ----------
    width : int
        d.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = Matrix(width, MLP_RATIO * width)
        self.down = Matrix(MLP_RATIO * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of ``x`` [..., d] by itself."""
        y: Tensor = self.down(F.relu(self.up(x)).square())
        return y


class Block(nn.Module):
    """One pre-norm layer: x += attention(norm(x)); x += mlp(norm(x)). It holds 12 d^2 + 2 d parameters.

    Under autocast the matmuls run in bfloat16 and x stays as it is: the residual is never rounded, in no arm.

    Parameters
    ----------
    width, head_size : int
        d and k.
    """

    def __init__(self, width: int, head_size: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(width)
        self.attention = Attention(width, head_size)
        self.mlp_norm = RMSNorm(width)
        self.mlp = MLP(width)

    def forward(
        self, x_BTd: Tensor, rotary: Rotary, cache: Cache | None = None, places_N: Tensor | None = None
    ) -> Tensor:
        """One layer; [B, T, d] to [B, T, d], or to [N, d] where only these of the B T tokens are wanted."""
        if places_N is None:
            x: Tensor = x_BTd + self.attention(self.attention_norm(x_BTd), rotary, cache)
        else:
            row_N, column_N = places_N // x_BTd.shape[1], places_N % x_BTd.shape[1]
            first = int(column_N.min())
            x = x_BTd[:, first:] + self.attention(self.attention_norm(x_BTd), rotary, cache, first)
            x = x[row_N, column_N - first]
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y
