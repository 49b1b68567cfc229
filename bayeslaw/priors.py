"""Priors of the law, on scales a person can read, each with its reason.

Size and data terms are stated as the loss they contribute at the centre of the run table's own design (its typical
N_eff and D), so that one set fits byte-level desk runs and large runs alike. Nothing here depends on a measured loss.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

STUDENT_NU = 4
"""Degrees of freedom of Student errors, fixed: one bad run of .15 nats then moves little."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A normal prior for a parameter, or for its logarithm.

    Parameters
    ----------
    median : float
        Median, in the parameter's own unit.
    sd : float
        Standard deviation, of the logarithm when ``log`` is True.
    log : bool
        True for a log-normal prior (a positive parameter).
    reason : str
        Why it is so, for the report.
    """

    median: float
    sd: float
    log: bool
    reason: str

    @property
    def mu(self) -> float:
        """Mean on the scale that is normal."""
        return math.log(self.median) if self.log else self.median

    def quantile(self, probability: float) -> float:
        """Quantile in the parameter's own unit."""
        from scipy.special import ndtri

        value = self.mu + self.sd * float(ndtri(probability))
        return math.exp(value) if self.log else value


@dataclass(frozen=True, kw_only=True)
class Priors:
    """One named set of priors.

    Parameters
    ----------
    name : str
        What the set is called in a fit's record.
    E : Prior
        Irreducible loss, nats per token.
    size, data : Prior
        Loss owed to finite size and to finite data at the design's centre, nats per token.
    alpha, beta : Prior
        Exponents of size and data.
    phi : Prior
        Recurrence-equivalence exponent; with several recipes the prior of their mean.
    phi_spread : Prior
        Standard deviation of phi between recipes, used when there are several.
    sigma : float
        Scale of the half-normal prior of the errors' scale on log loss.
    sigma_reason : str
        Why it is so.
    """

    name: str
    E: Prior
    size: Prior
    data: Prior
    alpha: Prior
    beta: Prior
    phi: Prior
    phi_spread: Prior
    sigma: float
    sigma_reason: str

    @property
    def law(self) -> tuple[Prior, ...]:
        """Priors of the parameters that all recipes share, in the order of `bayeslaw.coordinates.SHARED`."""
        return (self.E, self.size, self.data, self.alpha, self.beta)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a fit's record."""
        return asdict(self)


DEFAULT = Priors(
    name="default",
    E=Prior(
        median=1.2,
        sd=0.6,
        log=True,
        reason="published fits of text lie at 1.5-1.9 nats per subword token, bytes at 0.4-0.7 nats per byte; 90 % of "
        "the prior is .45-3.2",
    ),
    size=Prior(
        median=0.6,
        sd=0.8,
        log=True,
        reason="at the centre of published grids the size term is .5-.8 nats; tiny runs owe more of their loss to it; "
        "90 % is .16-2.2",
    ),
    data=Prior(median=0.6, sd=0.8, log=True, reason="as the size term: a compute-optimal grid splits the excess loss"),
    alpha=Prior(
        median=0.3, sd=0.5, log=True, reason="published exponents lie between .08 and .55; 90 % of the prior is .13-.68"
    ),
    beta=Prior(median=0.3, sd=0.5, log=True, reason="as alpha"),
    phi=Prior(
        median=0.5,
        sd=0.5,
        log=False,
        reason="half-way between worthless (0) and a unique block (1), with one chance in six beyond either",
    ),
    phi_spread=Prior(
        median=0.15,
        sd=0.7,
        log=True,
        reason="recipes of one architecture have differed by .08-.2; 90 % of the prior is .05-.47",
    ),
    sigma=0.05,
    sigma_reason="published grids scatter by .003-.01 on log loss, tiny runs with one seed by up to .05",
)


def sample_prior(priors: Priors, draws: int, recipes: int, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Prior draws of the free variables of `bayeslaw.model.build`.

    Returns
    -------
    dict
        ``theta`` of shape (draws, 5 + recipes), ``sigma`` and, with several recipes, ``phi_mean`` and ``phi_spread`` of
        shape (draws,).
    """
    shared = np.stack([rng.normal(prior.mu, prior.sd, draws) for prior in priors.law], axis=-1)
    centre = rng.normal(priors.phi.mu, priors.phi.sd, draws)
    drawn = {"sigma": np.abs(rng.normal(0.0, priors.sigma, draws))}
    phi = centre[:, None]
    if recipes > 1:
        spread = np.exp(rng.normal(priors.phi_spread.mu, priors.phi_spread.sd, draws))
        phi = rng.normal(centre[:, None], spread[:, None], (draws, recipes))
        drawn |= {"phi_mean": centre, "phi_spread": spread}
    return {"theta": np.concatenate([shared, phi], axis=-1), **drawn}
