"""What a fit takes from a run table: arrays, with the injection counted by a convention and the recipes numbered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw import law
from bayeslaw.architecture import split_parameters
from bayeslaw.schema import BASELINE

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the law is fitted to, one entry a run.

    Parameters
    ----------
    n_once, n_rec : ndarray, shape (run,)
        Parameters run once and r times, the injection counted by the fit's convention.
    recurrences, tokens, loss : ndarray, shape (run,)
        r, D in tokens, validation loss in nats per token.
    recipe : ndarray of int, shape (run,)
        Index into ``recipes``.
    recipes : tuple of str
        Names of the recipes, each with its own phi.
    """

    n_once: Array
    n_rec: Array
    recurrences: Array
    tokens: Array
    loss: Array
    recipe: NDArray[np.int64]
    recipes: tuple[str, ...]

    @property
    def centre(self) -> tuple[float, float]:
        """(N0, D0): geometric means of N_eff at phi = 1/2 and of D; they depend on the design only."""
        n_eff = law.effective_parameters(self.n_once, self.n_rec, self.recurrences, 0.5)
        return float(np.exp(np.log(n_eff).mean())), float(np.exp(np.log(self.tokens).mean()))


def inputs_of(runs: pd.DataFrame, *, injection_in: str) -> Inputs:
    """Arrays of a run table, with the injection counted by the convention.

    The r = 1 rows serve every recipe: their loss does not depend on phi, so a recipe needs rows with r > 1 to have one.
    """
    column = {
        name: runs[name].to_numpy(dtype=float)
        for name in ("n_once", "n_shared", "n_injection", "recurrences", "tokens", "loss")
    }
    looped = runs.loc[column["recurrences"] > 1, "recipe"]
    names = sorted(set(looped if len(looped) else runs["recipe"]), key=lambda name: (name != BASELINE, name))
    n_once, n_rec = split_parameters(
        column["n_once"], column["n_shared"], column["n_injection"], injection_in=injection_in
    )
    return Inputs(
        n_once=n_once,
        n_rec=n_rec,
        recurrences=column["recurrences"],
        tokens=column["tokens"],
        loss=column["loss"],
        recipe=np.array([names.index(name) if name in names else 0 for name in runs["recipe"]]),
        recipes=tuple(names),
    )
