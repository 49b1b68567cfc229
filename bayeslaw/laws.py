"""Loss laws as small objects: terms and a recurrence map; `bayeslaw.law` has their equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayeslaw import law
from bayeslaw.deviation import Deviating
from bayeslaw.errors import UsageError
from bayeslaw.maps import MAPS, RecurrenceMap

TERMS = ("additive", "coupled", "chinchilla")
"""additive: k = 1. coupled: k free. chinchilla: additive on N_once + N_rec, every parameter for each architecture."""

CORE = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True)
class Law:
    """A loss law: its terms and its recurrence map.

    Parameters
    ----------
    terms : str
        One of `TERMS`.
    map : RecurrenceMap
    """

    terms: str
    map: RecurrenceMap

    @property
    def coupled(self) -> bool:
        """Whether k is free."""
        return self.terms == "coupled"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters: E, A, B, alpha, beta, k when coupled, then the map's own."""
        return (*CORE, *(("k",) if self.coupled else ()), *self.map.parameters)

    @property
    def positive(self) -> tuple[str, ...]:
        """The parameters above 0, whose logarithms have normal priors."""
        own = zip(self.map.parameters, self.map.positive, strict=True)
        return (*CORE, *(("k",) if self.coupled else ()), *(name for name, plus in own if plus))

    @property
    def equation(self) -> str:
        """The law as a person reads it."""
        n_eff = "(N_once + g(r) N_rec)" if not self.map.unrolls_once else "N_eff"
        if self.terms == "chinchilla":
            return "L = E + A (N_once + N_rec)^-alpha + B D^-beta, all five for each architecture"
        if self.coupled:
            return f"L = E + (A {n_eff}^-alpha + B D^-beta)^k, {self.map.equation}"
        return f"L = E + A {n_eff}^-alpha + B D^-beta, {self.map.equation}"

    def map_values(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The map's own parameters out of all."""
        return [parameters[name] for name in self.map.parameters]

    def effective_parameters(self, n_once: Any, n_rec: Any, r: Any, parameters: Mapping[str, Any]) -> Any:
        """N_eff, parameters; numpy or xarray."""
        worth = np.exp(self.map.log_worth(r, self.map_values(parameters)))
        return law.effective_parameters(self.map.once(n_once, r), n_rec, worth)

    def loss(self, n_once: Any, n_rec: Any, r: Any, tokens: Any, parameters: Mapping[str, Any]) -> Any:
        """Validation loss in nats per token; numpy or xarray.

        Parameters
        ----------
        n_once, n_rec : parameters run once, and r times, per token
        r : recurrences
        tokens : D, training tokens
        parameters : mapping with at least `parameters`
        """
        n_eff = self.effective_parameters(n_once, n_rec, r, parameters)
        return law.loss(n_eff, tokens, **{name: parameters[name] for name in CORE}, k=parameters.get("k", 1))

    def size_for(self, loss: Any, tokens: Any, parameters: Mapping[str, Any]) -> Any:
        """N_eff that reaches a loss at given tokens, parameters; inf where no size does.

        Parameters
        ----------
        loss : nats per token
        tokens : D
        parameters : mapping with at least E, A, B, alpha, beta and, when coupled, k
        """
        excess = np.maximum(np.asarray(loss) - parameters["E"], 0.0) ** (1 / np.asarray(parameters.get("k", 1)))
        left = excess - law.data_term(tokens, B=parameters["B"], beta=parameters["beta"])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            size = (parameters["A"] / left) ** (1 / np.asarray(parameters["alpha"]))
        return np.where(left > 0, size, np.inf)


def make_law(
    terms: str, map_name: str | None = None, *, levels: tuple[float, ...] = (), deviation: bool = False
) -> Law:
    """The law of that name.

    Parameters
    ----------
    terms : str
        One of `TERMS`.
    map_name : str, optional
        One of `MAPS`; default "power", and "none" for chinchilla, which has no other.
    levels : tuple of float
        The looped r that the runs have.
    deviation : bool
        Whether log g(r) deviates from the map by a number of its own for each looped r, see `bayeslaw.deviation`.

    Raises
    ------
    UsageError
        There is no such law.
    """
    if terms not in TERMS:
        raise UsageError(f"law = {terms!r}", allowed=", ".join(TERMS))
    name = map_name or ("none" if terms == "chinchilla" else "power")
    if name not in MAPS:
        raise UsageError(f"map = {name!r}", allowed=", ".join(MAPS))
    if terms == "chinchilla" and name != "none":
        raise UsageError(
            f"--law chinchilla with --map {name}", allowed="no map: it fits every architecture by its own N",
            do="leave --map out, or choose --law additive",
        )  # fmt: skip
    if deviation and (name == "free" or terms == "chinchilla"):
        raise UsageError(
            f"--deviation on with --{'map free' if name == 'free' else 'law chinchilla'}",
            allowed="off: every r has its own worth there already", do="leave --deviation out",
        )  # fmt: skip
    ordered = tuple(sorted(levels))
    if deviation and ordered:
        return Law(terms, Deviating(ordered, MAPS[name]()))
    return Law(terms, MAPS[name](ordered if name == "free" else ()))
