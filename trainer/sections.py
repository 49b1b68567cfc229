"""The sections of a `trainer.config.TrainConfig`: network, optimiser, text, and how long to train."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from bayeslaw.architecture import INJECTIONS, Architecture
from bayeslaw.errors import UsageError
from trainer.checks import is_positive, nearest, require_multiple, require_text, require_whole
from trainer.rates import KINDS, RULES

BYTE_VALUES = 256
MOST_LAYERS = 10_000
"""A token that passes through more layers is a slip of the pen: a step would take hours."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network, see `bayeslaw.architecture.Architecture`.

    Parameters
    ----------
    d_model, head_size : int
        Width and size of an attention head; the width is a multiple of the even head size.
    recurrences : int
        r, how often the shared block runs.
    prelude_layers, shared_layers, coda_layers : int
        Layers before, inside and after the shared block.
    seq_len : int
        Context in tokens.
    vocab_size : int
        Rows of embedding and head: 256 or more; ids are below it.
    injection : str
        How the prelude's output enters each recurrence: ``linear``, ``additive``, ``hyperconnections`` or
        ``passthrough``; becomes ``none`` when r = 1.
    lanes : int
        K, lanes of hyperconnections.
    backprop_recurrences : int, optional
        The last recurrences that gradients pass through; default all.
    """

    d_model: int
    recurrences: int = 1
    prelude_layers: int = 1
    shared_layers: int = 4
    coda_layers: int = 1
    seq_len: int = 64
    head_size: int = 16
    vocab_size: int = BYTE_VALUES
    injection: str = "linear"
    lanes: int = 2
    backprop_recurrences: int | None = None

    def __post_init__(self) -> None:
        require_text(self, "injection")
        require_whole(self, prelude_layers=0, coda_layers=0, but=("injection",))
        if self.head_size % 2:
            raise UsageError(f"head_size = {self.head_size}", allowed="an even number of channels")
        require_multiple("d_model", self.d_model, "head_size", self.head_size)
        if self.vocab_size < BYTE_VALUES:
            raise UsageError(
                f"vocab_size = {self.vocab_size}",
                allowed=f"{BYTE_VALUES} or more: a byte each, or the tokens of packed shards and some more",
            )
        loops = tuple(name for name in INJECTIONS if name != "none")
        if self.recurrences > 1 and self.injection not in loops:
            raise UsageError(
                f"injection {self.injection!r} with recurrences = {self.recurrences}",
                allowed=", ".join(loops),
                do=nearest(self.injection, loops, cutoff=0.0),
            )
        if self.architecture.effective_layers > MOST_LAYERS:
            raise UsageError(
                f"recurrences = {self.recurrences} of {self.shared_layers} shared layers: "
                f"{self.architecture.effective_layers:,} layers in all",
                allowed=f"at most {MOST_LAYERS:,}, prelude and coda included",
            )
        object.__setattr__(self, "injection", self.architecture.injection)
        # What has no effect must not make two runs of one.
        if self.injection != "hyperconnections":
            object.__setattr__(self, "lanes", type(self).lanes)
        if self.backprop_recurrences == self.recurrences:
            object.__setattr__(self, "backprop_recurrences", None)
        if self.architecture.prelude_detached:
            raise UsageError(
                f"injection {self.injection!r} with backprop_recurrences = {self.backprop_recurrences} of "
                f"{self.recurrences}: the prelude would get no gradient",
                allowed="truncation with linear or additive injection, whose every recurrence reads the prelude",
            )

    @property
    def architecture(self) -> Architecture:
        """Counts and FLOPs of the network."""
        return Architecture(**{name: value for name, value in dataclasses.asdict(self).items() if name != "head_size"})


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Batch and peak learning rates.

    Parameters
    ----------
    batch_tokens : int
        B, tokens of one optimiser step on all devices together, a multiple of the context.
    rate_rule : str
        How rates move from the reference point to this run, see `trainer.rates.RULES`.
    matrix_rate, embedding_rate, head_rate, gain_rate, lane_rate : float, optional
        Peak rates at the rule's reference point, the rule's own by default; `TrainConfig.rates` are those of the run.
    """

    batch_tokens: int = 512
    rate_rule: str = "desk"
    matrix_rate: float | None = None
    embedding_rate: float | None = None
    head_rate: float | None = None
    gain_rate: float | None = None
    lane_rate: float | None = None

    def __post_init__(self) -> None:
        require_text(self, "rate_rule")
        require_whole(self, only=("batch_tokens",))
        if self.rate_rule not in RULES:
            raise UsageError(
                f"rate_rule {self.rate_rule!r}", allowed=", ".join(RULES), do=nearest(self.rate_rule, RULES)
            )
        for kind in KINDS:
            given = getattr(self, f"{kind}_rate")
            if given is None:
                object.__setattr__(self, f"{kind}_rate", getattr(RULES[self.rate_rule], kind))
            elif not is_positive(given):
                raise UsageError(f"{kind}_rate = {given}", allowed="a learning rate above 0")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Training and held-out text.

    Parameters
    ----------
    corpus : str
        ``stdlib``, a path to a text file, a folder of them or a folder of packed shards, or a packed data set of the
        hub; see `trainer.data.load_corpus`.
    corpus_digest : str, optional
        Digest that the corpus must have; filled in when a run is planned, so that a changed corpus is noticed.
    validation_tokens : int
        Held-out tokens of the validation loss, rounded down to whole sequences.
    """

    corpus: str = "stdlib"
    corpus_digest: str | None = None
    validation_tokens: int = 65_536

    def __post_init__(self) -> None:
        require_text(self, "corpus")
        require_whole(self, only=("validation_tokens",))


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """How long to train; give one of the three.

    Parameters
    ----------
    budget : float, optional
        Training FLOPs aimed at.
    tokens : int, optional
        Training tokens, a multiple of the batch.
    steps : int, optional
        Optimiser steps.
    """

    budget: float | None = None
    tokens: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if len(given) != 1:
            came = ", ".join(f"{name} = {value}" for name, value in given.items()) or "no target"
            raise UsageError(came, allowed="one of budget (FLOPs), tokens, steps")
        if self.budget is not None:
            if not is_positive(self.budget):
                raise UsageError(f"budget = {self.budget}", allowed="FLOPs, a finite number above 0, such as 2e11")
            object.__setattr__(self, "budget", float(self.budget))
        require_whole(self, but=("budget",))
