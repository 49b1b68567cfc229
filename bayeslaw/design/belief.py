"""What is believed of the losses of runs not trained yet, jointly with the quantities that they shall tell.

Posterior draws of quantities q and of what a run x would show but for its own error, eta_x (log loss by the law, with
effects that it shares with other runs), are taken for jointly normal. A run observes y_x = eta_x + e_x with
Var e_x = s_x^2. Then one run more, whatever it will show, changes covariances by

    C' = C - c c' / (C_xx + s_x^2),  c = C[:, x],

and taking it back out of a set that holds it by C' = C + c c' / (s_x^2 - C_xx): a rank-one step each, so a batch is
valued jointly, and none of it needs a loss. (The normal linear model of Bayesian experimental design, Chaloner and
Verdinelli 1995; errors shared by runs are part of eta, so those that are left are independent.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Belief:
    """Covariances of quantities and candidate runs, given what has been observed or is chosen.

    Parameters
    ----------
    variance : ndarray, shape (quantity,)
    cross : ndarray, shape (quantity, candidate)
        Of the quantities with each run's eta, log loss.
    among : ndarray, shape (candidate, candidate)
        Of the eta.
    noise : ndarray, shape (candidate,)
        s_x^2, variance of each run's own error on log loss.
    weight : ndarray, shape (quantity,)
        What a unit of each variance counts in the total that is to be reduced.
    """

    variance: Array
    cross: Array
    among: Array
    noise: Array
    weight: Array

    @classmethod
    def of(
        cls,
        quantities: Array,
        log_losses: Array,
        *,
        noise: Array,
        weight: Array | None = None,
        shared: Array | None = None,
    ) -> Belief:
        """The belief that draws state.

        Parameters
        ----------
        quantities : ndarray, shape (sample, quantity)
        log_losses : ndarray, shape (sample, candidate)
        noise : ndarray, shape (candidate,)
            Variance of the own error of each run.
        weight : ndarray, shape (quantity,), optional
            Default: all quantities count alike, each as a share of its variance now.
        shared : ndarray, shape (candidate, candidate), optional
            Covariance of errors that runs share.
        """
        q = quantities - quantities.mean(axis=0)
        eta = log_losses - log_losses.mean(axis=0)
        count = len(q) - 1
        variance = (q**2).sum(axis=0) / count
        if weight is None:
            weight = 1 / (len(variance) * np.where(variance > 0, variance, np.inf))
        among = eta.T @ eta / count
        return cls(
            variance=variance,
            cross=q.T @ eta / count,
            among=among if shared is None else among + shared,
            noise=noise,
            weight=weight,
        )

    @property
    def total(self) -> float:
        """What is to be reduced: the weighted sum of the variances."""
        return float(self.weight @ self.variance)

    def gains(self) -> Array:
        """What each run alone would take off the total, shape (candidate,)."""
        explained: Array = (self.weight @ self.cross**2) / (np.diagonal(self.among) + self.noise)
        return explained

    def observe(self, run: int) -> Belief:
        """The belief once a run has been trained."""
        return self._moved(run, -1 / (self.among[run, run] + self.noise[run]))

    def observe_all(self, runs: Iterable[int]) -> Belief:
        """The belief once all these runs have been trained."""
        belief = self
        for run in runs:
            belief = belief.observe(run)
        return belief

    def forget(self, run: int) -> Belief:
        """The belief without a run that is among the observed ones."""
        return self._moved(run, 1 / (self.noise[run] - self.among[run, run]))

    def _moved(self, run: int, scale: float) -> Belief:
        column, own = self.among[:, run], self.cross[:, run]
        return replace(
            self,
            variance=self.variance + scale * own**2,
            cross=self.cross + scale * np.outer(own, column),
            among=self.among + scale * np.outer(column, column),
        )

    def pairs(self) -> Array:
        """The total after two runs more, shape (candidate, candidate); the diagonal has no meaning."""
        ahead = 1 / (np.diagonal(self.among) + self.noise)
        own = np.diagonal(self.among) - ahead[:, None] * self.among**2 + self.noise
        total = np.zeros(own.shape)
        for weight, variance, cross in zip(self.weight, self.variance, self.cross, strict=True):
            link = cross - (ahead * cross)[:, None] * self.among
            total += weight * (variance - (ahead * cross**2)[:, None] - link**2 / own)
        return total

    def exchanges(self, chosen: list[int]) -> Array:
        """The total after one observed run has given way to another, shape (chosen, candidate).

        The entries for a run that is chosen already have no meaning.
        """
        column = self.among[chosen]
        back = 1 / (self.noise[chosen] - self.among[chosen, chosen])
        own = np.diagonal(self.among) + back[:, None] * column**2 + self.noise
        total = np.zeros(own.shape)
        for weight, variance, cross in zip(self.weight, self.variance, self.cross, strict=True):
            lost = back * cross[chosen] ** 2
            link = cross + (back * cross[chosen])[:, None] * column
            total += weight * (variance + lost[:, None] - link**2 / own)
        return total
