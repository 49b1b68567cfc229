"""Architectures of looped transformers: depth partition, parameter counts, FLOPs per token, the trainable grid.

The counts are those of the network in ``models/`` to the last parameter and are the only place where they are
written. Embedding and head never count towards N; the head's matmul counts towards FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bayeslaw.errors import UsageError
from bayeslaw.schema import INJECTION_IN

INJECTIONS = ("none", "linear", "additive", "passthrough", "hyperconnections")
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
    def forward_flops_per_token(self) -> float:
        """FLOPs of one forward pass, per token at full context: 2 per parameter run, 4 per attention unit d T."""
        attention = 4 * self.d_model * self.seq_len
        return (
            self.effective_layers * (2 * self.n_layer + attention)
            + self.recurrences * (2 * self.n_injection + 2 * self.n_lane * self.d_model)
            + 2 * self.d_model * self.vocab_size
        )

    @property
    def inference_flops_per_token(self) -> float:
        """FLOPs to generate one token at the end of a full context, with a key-value cache."""
        return self.forward_flops_per_token

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token: three forward passes, one for each detached recurrence.

        For an untruncated loop this is 6 (L (12 d^2 + 2 d) + r 2 d^2 [r > 1]) + 12 L d T + 6 d V with L effective
        layers (arXiv 2604.21106, Table 6).
        """
        detached = self.recurrences - self._kept
        block = self.shared_layers * (2 * self.n_layer + 4 * self.d_model * self.seq_len) + 2 * self.n_injection
        return 3 * self.forward_flops_per_token - 2 * detached * block

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


@dataclass(frozen=True, kw_only=True)
class Family:
    """Architectures of one effective depth that differ in width and recurrences: the grid a decision may choose from.

    Parameters
    ----------
    name : str
        What the family is called in messages.
    prelude_layers, unrolled_layers, coda_layers : int
        The recurrent part unrolls to ``unrolled_layers`` = r x shared layers for every r.
    width_step : int
        A trainable width is a multiple of it (the head size).
    seq_len, vocab_size : int
        As in `Architecture`.
    batch_tokens : int
        Trainable token counts are multiples of it.
    injection : str
        The injection of the members with r > 1.
    backprop_fraction : float
        Share of the recurrences, rounded up, that gradients pass through; .5 is the published truncation.
    """

    name: str
    prelude_layers: int
    unrolled_layers: int
    coda_layers: int
    width_step: int
    seq_len: int
    vocab_size: int
    batch_tokens: int = 1
    injection: str = "linear"
    backprop_fraction: float = 1.0

    @property
    def allowed_recurrences(self) -> tuple[int, ...]:
        """The r that divide the unrolled layers."""
        return tuple(r for r in range(1, self.unrolled_layers + 1) if self.unrolled_layers % r == 0)

    def architecture(self, d_model: float, recurrences: float) -> Architecture:
        """The member of width ``d_model`` whose shared block runs ``recurrences`` times."""
        if recurrences not in self.allowed_recurrences:
            raise UsageError(
                f"recurrences = {recurrences:g} in the family {self.name}",
                allowed=f"{', '.join(map(str, self.allowed_recurrences))} (divisors of {self.unrolled_layers} layers)",
            )
        r = int(recurrences)
        return Architecture(
            d_model=d_model,
            prelude_layers=self.prelude_layers,
            shared_layers=self.unrolled_layers // r,
            coda_layers=self.coda_layers,
            recurrences=r,
            seq_len=self.seq_len,
            vocab_size=self.vocab_size,
            injection=self.injection if r > 1 else "none",
            backprop_recurrences=math.ceil(r * self.backprop_fraction),
        )

    def split(
        self, d_model: float, recurrences: float, *, injection_in: str, trained: Iterable[float]
    ) -> tuple[float, float]:
        """(N_once, N_rec) of a member by a convention, parameters.

        Parameters
        ----------
        d_model, recurrences : as in `architecture`
        injection_in : str
            One of `bayeslaw.schema.INJECTION_IN`.
        trained : iterable of float
            The r that the convention "regression" draws its line through.
        """
        member = self.architecture(d_model, recurrences)
        if injection_in != "regression":
            n_once, n_rec = split_parameters(
                member.n_once, member.n_shared, member.n_injection, injection_in=injection_in
            )
            return float(n_once), float(n_rec)
        import numpy as np  # here, as in `regression_split`

        r = np.array(sorted({float(r) for r in trained if r in self.allowed_recurrences} | {float(recurrences)}))
        sizes = np.array([self.architecture(d_model, value).n_unique for value in r])
        n_once, n_rec = regression_split(sizes, r, np.full(len(r), d_model))
        at = r == recurrences
        return float(n_once[at][0]), float(n_rec[at][0])

    def nearest_width(self, d_model: float) -> int:
        """The trainable width nearest to ``d_model`` on a log scale."""
        below = max(self.width_step, int(d_model // self.width_step) * self.width_step)
        above = below + self.width_step
        return below if d_model * d_model <= below * above else above


ISODEPTH = Family(
    name="isodepth",
    prelude_layers=2,
    unrolled_layers=16,
    coda_layers=2,
    width_step=128,
    seq_len=2048,
    vocab_size=32064,
    batch_tokens=2**18,
)
"""The iso-depth family of arXiv 2604.21106: 20 effective layers, heads of 128, 2^18 tokens a step."""

FAMILIES = {ISODEPTH.name: ISODEPTH}


def split_parameters(n_once: Any, n_shared: Any, n_injection: Any, *, injection_in: str) -> tuple[Any, Any]:
    """Apply the convention that says which part of the law the injection's parameters belong to.

    Parameters
    ----------
    n_once, n_shared, n_injection : parameters, broadcast together
    injection_in : str
        ``"once"`` (nearest to the published split), ``"rec"`` (what the paper's text says) or ``"nowhere"``; for
        ``"regression"`` see `regression_split`.

    Returns
    -------
    (N_once, N_rec) of the law, parameters.
    """
    allowed = tuple(name for name in INJECTION_IN if name != "regression")
    if injection_in not in allowed:
        raise UsageError(f"injection_in = {injection_in!r}", allowed=", ".join(allowed))
    if injection_in == "once":
        return n_once + n_injection, n_shared
    if injection_in == "rec":
        return n_once, n_shared + n_injection
    return n_once, n_shared


def regression_split(n_unique: Any, recurrences: Any, width: Any) -> tuple[Any, Any]:
    """The published split of N: for each width, the line of n_unique over 1 / r.

    Parameters
    ----------
    n_unique, recurrences, width : array-like, shape (run,)
        Parameters in all, r, and the width whose runs share a line. Each distinct (r, n_unique) of a width counts once,
        however many runs it has.

    Returns
    -------
    (N_once, N_rec), ndarrays of shape (run,), parameters: the line's intercept, and its slope over r. A width with one
    r has no line: all of its N runs once there if r = 1.

    Raises
    ------
    UsageError
        A width has looped runs of one r only.

    References
    ----------
    arXiv 2604.21106, whose own fits use this split (a line over 16 / r, the shared layers, is the same line).
    """
    import numpy as np  # here, because the trainer takes the counts from this module and needs no arrays

    n, r, d = (np.asarray(values, dtype=float) for values in (n_unique, recurrences, width))
    n_once, n_rec = n.copy(), np.zeros_like(n)
    for one in np.unique(d):
        rows = d == one
        points = np.unique(np.stack([1 / r[rows], n[rows]]), axis=1)
        if np.ptp(points[0]) > 0:
            share, size = points - points.mean(axis=1, keepdims=True)
            slope = (share @ size) / (share @ share)
            intercept = points[1].mean() - slope * points[0].mean()
            n_once[rows], n_rec[rows] = intercept, slope / r[rows]
        elif (r[rows] > 1).any():
            raise UsageError(
                f"--injection-in regression draws a line of n_unique over 1 / r for each width, and all "
                f"{rows.sum()} runs of width {one:g} have r = {r[rows][0]:g}",
                allowed="two or more r for each width with looped runs, or once, rec, nowhere",
                do="choose another convention, or leave that width out with --where",
            )
    return n_once, n_rec


FAMILY_COLUMNS = (
    "recurrences", "d_model", "prelude_layers", "shared_layers", "coda_layers", "seq_len", "vocab_size", "injection",
    "backprop_recurrences", "tokens",
)  # fmt: skip
"""Columns of the run table that say which family a run belongs to, and what it was trained on."""


def spanned_family(name: str, columns: Mapping[str, Iterable[Any]]) -> Family | None:
    """The family that a set of runs spans, None where they are not of one.

    Parameters
    ----------
    name : str
        Name of the family in messages.
    columns : mapping of str to sequence
        The run table's `FAMILY_COLUMNS`, equally long. Trainable widths and tokens are the multiples of what all
        runs share.
    """
    runs = list(zip(*(columns[key] for key in FAMILY_COLUMNS), strict=True))
    if not runs or any(value is None or value != value for run in runs for value in run):
        return None
    depths = {
        (int(prelude), round(r * shared), int(coda), int(T), int(V)) for r, _, prelude, shared, coda, T, V, *_ in runs
    }
    injections = {run[7] for run in runs if run[0] > 1} or {"linear"}
    fractions = {run[8] / run[0] for run in runs if run[0] > 1} or {1.0}
    if not len(depths) == len(injections) == len(fractions) == 1:
        return None
    prelude, unrolled, coda, seq_len, vocab_size = depths.pop()
    return Family(
        name=name,
        prelude_layers=prelude,
        unrolled_layers=unrolled,
        coda_layers=coda,
        width_step=math.gcd(*(int(run[1]) for run in runs)),
        seq_len=seq_len,
        vocab_size=vocab_size,
        batch_tokens=math.gcd(*(int(run[-1]) for run in runs)),
        injection=injections.pop(),
        backprop_fraction=fractions.pop(),
    )
