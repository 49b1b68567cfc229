"""Families of architectures of one effective depth: the trainable grid that a decision chooses from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayeslaw.architecture import Architecture
from bayeslaw.errors import UsageError
from bayeslaw.splits import regression_split, split_parameters


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
        r = np.array(sorted({float(r) for r in trained if r in self.allowed_recurrences} | {float(recurrences)}))
        sizes = np.array([self.architecture(d_model, value).n_unique for value in r])
        n_once, n_rec = regression_split(sizes, r, np.full(len(r), d_model))
        at = r == recurrences
        return float(n_once[at][0]), float(n_rec[at][0])


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


FAMILY_COLUMNS = (
    "recurrences", "d_model", "prelude_layers", "shared_layers", "coda_layers", "seq_len", "vocab_size", "injection",
    "backprop_recurrences", "tokens",
)  # fmt: skip
"""Columns of the run table that say which family a run belongs to, and what it was trained on."""


def what_differs(columns: Mapping[str, Iterable[Any]]) -> tuple[str, ...]:
    """What runs of one family share and these do not, with the values that came.

    Parameters
    ----------
    columns : mapping of str to sequence
        As `spanned_family` takes them, none of them missing.
    """
    table = {name: list(columns[name]) for name in FAMILY_COLUMNS}
    r = table["recurrences"]
    looped = [at for at, value in enumerate(r) if value > 1]
    shared = {
        **{name: {f"{value:g}" for value in table[name]} for name in ("prelude_layers", "coda_layers")},
        "recurrences x shared_layers": {f"{x * y:g}" for x, y in zip(r, table["shared_layers"], strict=True)},
        **{name: {f"{value:g}" for value in table[name]} for name in ("seq_len", "vocab_size")},
        "injection": {str(table["injection"][at]) for at in looped},
        "backprop_recurrences / recurrences": {f"{table['backprop_recurrences'][at] / r[at]:.3g}" for at in looped},
    }
    return tuple(f"{name} {' and '.join(sorted(values))}" for name, values in shared.items() if len(values) > 1)


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
