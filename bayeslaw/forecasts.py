"""Forecasts at several r, and their differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.errors import UsageError
from bayeslaw.posterior import Fit
from bayeslaw.predict import Prediction, interval, predict, spoken
from bayeslaw.rivals import rivals

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One prediction less another, with the same draws of all that they share; each run has an error of its own.

    Parameters
    ----------
    recurrences, against : float
        r of the one and of the other.
    loss, loss_mean : ndarray, shape (sample,)
        Of single new runs, and of their expectations; below 0 where the one is better. Nats per token.
    """

    recurrences: float
    against: float
    loss: Array
    loss_mean: Array

    def as_dict(self) -> dict[str, Any]:
        """One entry of ``predict --json``: ``p_lower`` of the expectations, ``p_lower_run`` of single runs."""
        return {
            "recurrences": self.recurrences,
            "against": self.against,
            "loss": interval(self.loss),
            "loss_mean": interval(self.loss_mean),
            "p_lower": float((self.loss_mean < 0).mean()),
            "p_lower_run": float((self.loss < 0).mean()),
        }

    def __str__(self) -> str:
        return (
            f"r = {self.recurrences:g} less r = {self.against:g}, a new run's loss: {spoken(self.loss, sign='+')}\n"
            f"its expectation: {spoken(self.loss_mean, sign='+')}, P(lower) {(self.loss_mean < 0).mean():.2f}"
        )


def differences(predictions: Sequence[Prediction]) -> tuple[Difference, ...]:
    """Each prediction less the first."""
    first, *others = predictions
    return tuple(
        Difference(
            recurrences=one.recurrences, against=first.recurrences, loss=one.loss - first.loss,
            loss_mean=one.loss_mean - first.loss_mean,
        )
        for one in others
    )  # fmt: skip


def predict_each(fit: Fit, *, recurrences: Iterable[float], **settings: Any) -> tuple[Prediction, ...]:
    """`predict` for several r with the other settings the same.

    Raises
    ------
    UsageError
        No r, or one twice; and what `predict` raises.
    """
    chosen = list(recurrences)
    if not chosen or len(set(chosen)) < len(chosen):
        raise UsageError(f"--recurrences {','.join(f'{r:g}' for r in chosen)}", allowed="different r, at least one")
    others = rivals(fit)
    return tuple(predict(fit, recurrences=r, others=others, **settings) for r in chosen)
