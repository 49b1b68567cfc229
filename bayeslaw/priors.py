"""Priors of the law, on scales a person can read, each with its reason.

Size and data terms are stated as the loss they contribute at the centre of the run table's own design (its typical
N_eff and D), so that one set fits byte-level desk runs and large runs alike. Nothing here depends on a measured loss.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


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
class HalfNormal:
    """A half-normal prior for a scale.

    Parameters
    ----------
    scale : float
        Standard deviation of the normal that it is half of.
    reason : str
        Why it is so, for the report.
    """

    scale: float
    reason: str


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
        Loss that finite size alone, and finite data alone, would owe at the design's centre, nats per token.
    alpha, beta : Prior
        Exponents of these two; for the coupled law of a term by itself, k alpha and k beta.
    k : Prior
        Exponent of the coupled law.
    phi : Prior
        Recurrence-equivalence exponent, also of each r in the free map; with several recipes the prior of their mean.
    gain, scale, half, slope : Prior
        Parameters of the bounded, Hill and logarithmic maps.
    spread : Prior or HalfNormal
        Standard deviation of a pooled parameter between its levels (of its logarithm, if it is positive).
    deviation : Prior
        Standard deviation, between the r, of log g(r) around the map.
    drift, drift_each : Prior
        Standard deviations of the drift of log loss away from the law, for each step beyond the largest trained budget:
        of what all r share, and of each r beside it; see `bayeslaw.drift`.
    sigma : HalfNormal
        Scale of the errors on log loss.
    tau : HalfNormal
        Standard deviation of the effects of cells and of training runs on log loss.
    sigma_slope : Prior
        Change of log sigma for each e-fold of compute.
    """

    name: str
    E: Prior
    size: Prior
    data: Prior
    alpha: Prior
    beta: Prior
    k: Prior
    phi: Prior
    gain: Prior
    scale: Prior
    half: Prior
    slope: Prior
    spread: Prior | HalfNormal
    deviation: Prior
    drift: Prior
    drift_each: Prior
    sigma: HalfNormal
    tau: HalfNormal
    sigma_slope: Prior

    def of(self, name: str) -> Prior:
        """Prior of a law parameter; phi_2, phi_4, ... of the free map have phi's, deviations their spread's."""
        prior: Prior = getattr(self, name.rsplit("_", 1)[0])
        return prior

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
    k=Prior(
        median=0.6,
        sd=0.5,
        log=True,
        reason="1 is the additive law; fits of public grids lie between .3 and 1; 90 % of the prior is .26-1.37",
    ),
    phi=Prior(
        median=0.5,
        sd=0.5,
        log=False,
        reason="half-way between worthless (0) and a unique block (1), with one chance in six beyond either",
    ),
    gain=Prior(
        median=2.0,
        sd=1.0,
        log=True,
        reason="endless recurrence is worth 1.4 to 11 unique blocks, as r^.5 at r = 2 to 120",
    ),
    scale=Prior(
        median=3.0,
        sd=1.0,
        log=True,
        reason="most of the gain comes within 1 to 15 further recurrences, as r is trained",
    ),
    half=Prior(median=4.0, sd=1.0, log=True, reason="as scale: half of the gain after 1 to 20 further recurrences"),
    slope=Prior(median=0.7, sd=0.8, log=True, reason="at r = 4 a worth of 1.3 to 4.6 blocks, which is r^.18 to r^1.1"),
    spread=Prior(
        median=0.15,
        sd=0.7,
        log=True,
        reason="recipes of one architecture have differed by .08-.2 in phi; 90 % of the prior is .05-.47",
    ),
    deviation=Prior(
        median=0.07,
        sd=0.7,
        log=True,
        reason="maps fitted to public grids miss single r by 5-10 % of g; 90 % of the prior is .02-.22",
    ),
    drift=Prior(
        median=0.0025,
        sd=0.7,
        log=True,
        reason="laws fitted to the lower budgets of published grids miss the next ones by .1-.8 % of the loss a step; "
        "90 % of the prior is .08-.8 %",
    ),
    drift_each=Prior(
        median=0.001, sd=0.7, log=True, reason="as drift; forecasts for different r miss to much the same side"
    ),
    sigma=HalfNormal(
        scale=0.05, reason="published grids scatter by .003-.01 on log loss, tiny runs with one seed by up to .05"
    ),
    tau=HalfNormal(scale=0.05, reason="as sigma: cells and training runs have been off by .01-.02 together"),
    sigma_slope=Prior(
        median=0.0, sd=0.25, log=False, reason="over a hundredfold range of compute the scale changes by a factor of 3"
    ),
)
