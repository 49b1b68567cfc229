"""What decides the result of one training run, and nothing else: no host, no output folder, no time."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayeslaw.architecture import WIDTH_UNIT, Architecture
from bayeslaw.errors import UsageError
from bayeslaw.schema import run_name

BYTE_VALUES = 256
TRAINABLE_INJECTIONS = ("linear",)
MOST_STEPS = 10**9
"""A run of more optimiser steps would take years: its budget is a slip of the pen."""

MATRIX_RATE = 0.003
EMBEDDING_RATE = 0.06
HEAD_RATE = 0.072
GAIN_RATE = 0.012
"""Peak AdamW rates at width 64, measured on small byte-level models. Matrices fall with the width, the others with its
square root."""


class BudgetError(UsageError):
    """A budget that does not buy one optimiser step."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

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
    batch_tokens : int
        Tokens of one optimiser step, a multiple of ``seq_len``.
    budget : float, optional
        Training FLOPs aimed at. Give this or ``tokens``.
    tokens : int, optional
        Training tokens, a multiple of ``batch_tokens``.
    recipe : str
        Name of the recipe in the run table: letters, digits, ``_ - .``.
    injection : str
        How the prelude's output enters each recurrence; unused when r = 1.
    backprop_recurrences : int, optional
        The last recurrences that gradients pass through; default all.
    vocab_size : int
        Rows of embedding and head; a corpus of bytes needs 256.
    corpus : str
        ``stdlib``, or a path to a text file or a folder of them; see `trainer.data.load_corpus`.
    corpus_digest : str, optional
        Digest that the corpus must have; filled in when a run is planned, so that a changed corpus is noticed.
    validation_tokens : int
        Held-out tokens of the validation loss, rounded down to whole sequences.
    seed : int
        Seed of starting values and data order.
    matrix_rate, embedding_rate, head_rate, gain_rate : float, optional
        Peak learning rates; default by width.
    log_every, validate_every : int
        Steps between points of the training curve, and between validations before the last (0: the last only).

    Raises
    ------
    UsageError
        A value that cannot be trained; `BudgetError` when the budget is below one optimiser step.
    """

    d_model: int
    recurrences: int
    prelude_layers: int
    shared_layers: int
    coda_layers: int
    seq_len: int
    batch_tokens: int
    budget: float | None = None
    tokens: int | None = None
    head_size: int = 16
    recipe: str = "baseline"
    injection: str = "linear"
    backprop_recurrences: int | None = None
    vocab_size: int = BYTE_VALUES
    corpus: str = "stdlib"
    corpus_digest: str | None = None
    validation_tokens: int = 65_536
    seed: int = 0
    matrix_rate: float | None = None
    embedding_rate: float | None = None
    head_rate: float | None = None
    gain_rate: float | None = None
    log_every: int = 10
    validate_every: int = 0

    def __post_init__(self) -> None:
        for name in _WHOLE:
            _require_whole(name, getattr(self, name), _WHOLE[name])
        if self.backprop_recurrences is not None:
            _require_whole("backprop_recurrences", self.backprop_recurrences, 1)
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.recipe):
            raise UsageError(f"recipe {self.recipe!r}", allowed="letters, digits, _ - .")
        if self.head_size % 2:
            raise UsageError(f"head_size = {self.head_size}", allowed="an even number of channels")
        _require_multiple("d_model", self.d_model, "head_size", self.head_size)
        _require_multiple("batch_tokens", self.batch_tokens, "seq_len", self.seq_len)
        if (self.budget is None) == (self.tokens is None):
            raise UsageError(f"budget = {self.budget}, tokens = {self.tokens}", allowed="one of the two")
        if self.tokens is not None:
            _require_whole("tokens", self.tokens, 1)
            _require_multiple("tokens", self.tokens, "batch_tokens", self.batch_tokens)
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget > 0):
            raise UsageError(f"budget = {self.budget}", allowed="FLOPs, a finite number above 0, such as 2e11")
        if self.vocab_size < BYTE_VALUES:
            raise UsageError(f"vocab_size = {self.vocab_size}", allowed=f"{BYTE_VALUES} or more: tokens are bytes")
        if self.validation_tokens < self.seq_len:
            raise UsageError(
                f"validation_tokens = {self.validation_tokens}", allowed=f"at least one sequence, {self.seq_len}"
            )
        if self.recurrences > 1 and self.injection not in TRAINABLE_INJECTIONS:
            close = difflib.get_close_matches(self.injection, TRAINABLE_INJECTIONS, n=1, cutoff=0)
            raise UsageError(
                f"injection {self.injection!r} with recurrences = {self.recurrences}",
                allowed=", ".join(TRAINABLE_INJECTIONS),
                do=f"the nearest is {close[0]}",
            )
        object.__setattr__(self, "injection", self.architecture.injection)
        self._require_steps()
        for name, rate in _default_rates(self.d_model).items():
            given = getattr(self, name)
            if given is None:
                object.__setattr__(self, name, rate)
            elif not (math.isfinite(given) and given > 0):
                raise UsageError(f"{name} = {given}", allowed="a learning rate above 0")

    def _require_steps(self) -> None:
        """Refuse what is less than one optimiser step, or more than anybody would wait for."""
        step_flops = float(self.batch_tokens) * float(self.architecture.flops_per_token)
        if self.budget is not None and self.budget < step_flops:
            raise BudgetError(
                f"budget = {self.budget:g} with d_model = {self.d_model}, recurrences = {self.recurrences} and "
                f"batch_tokens = {self.batch_tokens} is less than one optimiser step, which costs {step_flops!r} FLOPs",
                allowed=f"{step_flops!r} FLOPs or more",
                do="raise the budget, or lower d_model or batch_tokens",
            )
        if self.steps > MOST_STEPS:
            given = f"budget = {self.budget:g}" if self.budget is not None else f"tokens = {self.tokens}"
            raise UsageError(
                f"{given} with batch_tokens = {self.batch_tokens} is a run of {self.steps:.3g} optimiser steps",
                allowed=f"at most {MOST_STEPS:.0e} steps: {MOST_STEPS * self.batch_tokens} tokens, "
                f"{MOST_STEPS * step_flops:.3g} FLOPs",
                do="lower the budget or the tokens, or raise d_model or batch_tokens",
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TrainConfig:
        """The config of a plan or journal.

        Raises
        ------
        UsageError
            An unknown or missing name, or a value that cannot be trained.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in config:
            if name not in fields:
                close = difflib.get_close_matches(name, fields, n=1)
                raise UsageError(
                    f"config field {name!r}",
                    allowed=", ".join(fields),
                    do=f"the nearest is {close[0]}" if close else None,
                )
        missing = [
            name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in config
        ]
        if missing:
            raise UsageError(f"a config without {', '.join(missing)}", allowed="all of " + ", ".join(fields))
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON can hold them; `from_dict` gives the same config back."""
        return dataclasses.asdict(self)

    @property
    def architecture(self) -> Architecture:
        """Counts and FLOPs of the network."""
        return Architecture(
            d_model=self.d_model,
            prelude_layers=self.prelude_layers,
            shared_layers=self.shared_layers,
            coda_layers=self.coda_layers,
            recurrences=self.recurrences,
            seq_len=self.seq_len,
            vocab_size=self.vocab_size,
            injection=self.injection,
            backprop_recurrences=self.backprop_recurrences,
        )

    @property
    def train_tokens(self) -> int:
        """D, training tokens: as given, else whole batches for the budget."""
        if self.tokens is not None:
            return self.tokens
        assert self.budget is not None
        return self.architecture.tokens_for(self.budget, batch_tokens=self.batch_tokens)

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        return self.train_tokens // self.batch_tokens

    @property
    def run_id(self) -> str:
        """Name of the run in every table."""
        return run_name(self.recipe, self.recurrences, self.architecture.width_scale, self._budget, self.seed)

    @property
    def _budget(self) -> float:
        spent = float(self.train_tokens) * float(self.architecture.flops_per_token)
        return float(self.budget) if self.budget is not None else spent

    @property
    def row(self) -> dict[str, Any]:
        """Run-table columns known before the run, see `bayeslaw.schema.COLUMNS`; device columns excepted."""
        architecture = self.architecture
        return {
            "run_id": self.run_id,
            "recipe": self.recipe,
            "seed": self.seed,
            "recurrences": self.recurrences,
            "width_scale": architecture.width_scale,
            "d_model": self.d_model,
            "prelude_layers": self.prelude_layers,
            "shared_layers": self.shared_layers,
            "coda_layers": self.coda_layers,
            "seq_len": self.seq_len,
            "vocab_size": self.vocab_size,
            "injection": architecture.injection,
            "backprop_recurrences": architecture.backprop_recurrences,
            "n_once": architecture.n_once,
            "n_shared": architecture.n_shared,
            "n_injection": architecture.n_injection,
            "n_unique": architecture.n_unique,
            "budget": self._budget,
            "flops_per_token": float(architecture.flops_per_token),
        }


_WHOLE = {
    "d_model": 1,
    "head_size": 1,
    "recurrences": 1,
    "prelude_layers": 0,
    "shared_layers": 1,
    "coda_layers": 0,
    "seq_len": 1,
    "batch_tokens": 1,
    "vocab_size": 1,
    "validation_tokens": 1,
    "seed": 0,
    "log_every": 1,
    "validate_every": 0,
}
"""Whole-number fields and the least value of each."""


def _default_rates(d_model: int) -> dict[str, float]:
    scale = WIDTH_UNIT / d_model
    return {
        "matrix_rate": MATRIX_RATE * scale,
        "embedding_rate": EMBEDDING_RATE * math.sqrt(scale),
        "head_rate": HEAD_RATE * math.sqrt(scale),
        "gain_rate": GAIN_RATE * math.sqrt(scale),
    }


def _require_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} = {value}", allowed=f"a whole number, {least} or more")


def _require_multiple(name: str, value: int, of: str, unit: int) -> None:
    if value % unit:
        nearest = unit * max(1, round(value / unit))
        raise UsageError(
            f"{name} = {value} with {of} = {unit}", allowed=f"a multiple of {of}", do=f"the nearest is {nearest}"
        )
