"""What decides a fit besides the runs, and the names that its settings may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayeslaw.errors import UsageError
from bayeslaw.inputs import FACTORS
from bayeslaw.laws import TERMS, make_law
from bayeslaw.schema import INJECTION_IN

LAWS = TERMS
NOISES = ("iid", "cells")
OUTLIERS = ("gaussian", "student")
ERROR_SCALES = ("constant", "compute")
POOLINGS = ("shared", "partial", "separate")

MAX_R_HAT = 1.01
MIN_ESS = 400.0
"""Bulk and tail: 100 a chain at the usual four, the least that R-hat and quantiles can be trusted at."""

DEFAULT_MODEL: Mapping[str, Any] = {
    "law": "coupled", "map": "power", "deviation": True, "noise": "iid", "outliers": "student", "drift": True,
}  # fmt: skip
"""What a fit means that names no law, as chosen by `benchmarks/default_model.py`."""

STRUCTURES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "coupled, independent": {"law": "coupled"},
    "coupled, cells": {"law": "coupled", "noise": "cells"},
    "additive, independent": {"law": "additive"},
    "additive, cells": {"law": "additive", "noise": "cells"},
}
"""Structures under which a careful person would fit the same runs: settings of each, as `Spec.of` takes them."""

ALIASES = {"A": "size", "B": "data"}
"""Parameters that are sampled under another name: A is the size term at the centre of the design, B the data term."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """All that decides a fit besides the runs.

    A spec made directly is the plain law that it names; `Spec.of` is what people mean by a few settings.

    Parameters
    ----------
    law : str
        One of `LAWS`: k = 1, k free, or a plain law for each architecture.
    map : str or None
        One of `bayeslaw.laws.MAPS`; None is "power", and "none" for chinchilla.
    deviation : bool
        Whether log g(r) deviates from the map by a number of its own for each r and recipe, see `bayeslaw.deviation`.
    drift : bool
        Whether forecasts beyond the largest trained budget may drift away from the law, see `bayeslaw.drift`.
    noise : str
        One of `NOISES`: "cells" gives every cell (recipe, budget, r) a shared normal effect on log loss. Rows of one
        training run always share one.
    outliers : str
        One of `OUTLIERS`: error distribution on log loss.
    error_scale : str
        One of `ERROR_SCALES`: "compute" lets log sigma change linearly with log FLOPs.
    pooling : mapping of str to str
        Parameter to ``MODE`` or ``MODE:FACTOR``: one of `POOLINGS`, by one of `bayeslaw.inputs.FACTORS` (default
        recipe). What is not named is shared, but the map's parameters are partially pooled by recipe.
    injection_in : str
        One of `bayeslaw.schema.INJECTION_IN`.
    recipe : str or None
        The one recipe that was asked for.
    draws, tune, chains, seed : int
        Kept and warm-up draws per chain, number of chains, random seed.
    target_accept : float
        Acceptance rate that the step size aims at.
    """

    law: str = "additive"
    map: str | None = None
    deviation: bool = False
    drift: bool = False
    noise: str = "iid"
    outliers: str = "gaussian"
    error_scale: str = "constant"
    pooling: Mapping[str, str] = field(default_factory=dict)
    injection_in: str = "once"
    recipe: str | None = None
    draws: int = 1000
    tune: int = 1000
    chains: int = 4
    target_accept: float = 0.95
    seed: int = 0

    @classmethod
    def of(cls, **settings: Any) -> Spec:
        """The spec that these settings mean: without a law the default model's, with one the plain law's fill it up.

        Where only a map is named that has a worth for each r already, there is no deviation to add.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        if "law" not in given:
            base = dict(DEFAULT_MODEL)
            if given.get("map") == "free":
                base["deviation"] = False
            given = {**base, **given}
        return cls(**given)

    @property
    def counted_in(self) -> str:
        """The convention that counts: a law for each architecture is one of n_unique, whatever the convention."""
        return "once" if self.law == "chinchilla" else self.injection_in

    def __post_init__(self) -> None:
        for name, allowed in (
            ("law", LAWS),
            ("noise", NOISES),
            ("outliers", OUTLIERS),
            ("error_scale", ERROR_SCALES),
            ("injection_in", INJECTION_IN),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} = {getattr(self, name)!r}", allowed=", ".join(allowed))
        if not isinstance(self.pooling, Mapping):
            raise UsageError(f"pooling = {self.pooling!r}", allowed='a mapping such as {"phi": "shared"}')
        for name, least in (("draws", 100), ("tune", 100), ("chains", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} = {getattr(self, name)}", allowed=f"{least} or more")
        if not 0.5 <= self.target_accept < 1:
            raise UsageError(f"target_accept = {self.target_accept}", allowed="from 0.5 to below 1")
        make_law(self.law, self.map, deviation=self.deviation)
        if self.law == "chinchilla" and self.pooling:
            raise UsageError(
                f"--pool {', '.join(self.pooling)} with --law chinchilla", allowed="no pooling",
                do="choose --law additive --map none, and pool that",
            )  # fmt: skip
        for name, text in self.pooling.items():
            mode, factor = pooling_of(text)
            if mode not in POOLINGS or factor not in FACTORS:
                raise UsageError(
                    f"--pool {name}={text}",
                    allowed=f"NAME=MODE or NAME=MODE:FACTOR, MODE one of {', '.join(POOLINGS)}, FACTOR one of "
                    f"{', '.join(FACTORS)}",
                )


def pooling_of(text: str) -> tuple[str, str]:
    """(mode, factor) of a pooling's text."""
    mode, _, factor = text.partition(":")
    return mode, factor or "recipe"
