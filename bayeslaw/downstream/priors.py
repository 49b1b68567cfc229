"""Priors of the model of task loss on validation loss, each with its reason.

They are scales of losses per token and of slopes between two losses, which are of one size whatever the tokens are.
None was chosen by looking at an effect of r.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bayeslaw.priors import Prior


@dataclass(frozen=True, kw_only=True)
class RegimePriors:
    """One named set of priors.

    Parameters
    ----------
    name : str
    level : Prior
        Loss of a task at the mean validation loss, from the task's own mean, nats per token.
    slope : Prior
        Typical slope of an axis's tasks at the mean validation loss: nats of task loss per nat of validation loss.
    slope_spread : Prior
        Standard deviation of log slope between the tasks of an axis.
    curvature : Prior
        kappa, what log slope gains with each nat of validation loss.
    effect : Prior
        Effect of an architecture on an axis at matched validation loss, nats per token.
    checkpoint : Prior
        omega, standard deviation of what one checkpoint is off on a whole axis.
    scatter : Prior
        sqrt(rho^2 + sigma^2), standard deviation of what one task is off beside its axis and beside its examples'
        standard error.
    lasting : Prior
        Logit of rho^2 / (rho^2 + sigma^2), the share of that which is the architecture's and not the single
        checkpoint's.
    """

    name: str
    level: Prior
    slope: Prior
    slope_spread: Prior
    curvature: Prior
    effect: Prior
    checkpoint: Prior
    scatter: Prior
    lasting: Prior

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a record."""
        return asdict(self)


DEFAULT = RegimePriors(
    name="default",
    level=Prior(median=0.0, sd=10.0, log=False, reason="flat: no loss of a model that has learnt anything is so large"),
    slope=Prior(
        median=1.0,
        sd=1.0,
        log=True,
        reason="an answer is text, so its loss moves as that of other text; 90 % of the prior is .2-5.2",
    ),
    slope_spread=Prior(
        median=0.4,
        sd=0.5,
        log=True,
        reason="tasks of one axis differ in slope by a factor of 1.5; 90 % of the prior is 1.2-2.5",
    ),
    curvature=Prior(
        median=0.0,
        sd=1.0,
        log=False,
        reason="tasks may be learnt early (saturating) or late (emerging): a factor of 2.7 in slope over a nat",
    ),
    effect=Prior(
        median=0.0,
        sd=0.25,
        log=False,
        reason="two architectures of one validation loss have been a few hundredths to a few tenths of a nat apart",
    ),
    checkpoint=Prior(
        median=0.015,
        sd=0.8,
        log=True,
        reason="seeds move validation loss by .003-.01, the smaller text of an axis by some times that; 90 % of the "
        "prior is .004-.056",
    ),
    scatter=Prior(
        median=0.05,
        sd=1.1,
        log=True,
        reason="seeds move the loss of one task by .01 (long answers) to .3 nats (a skill that is learnt suddenly); "
        "90 % of the prior is .008-.31",
    ),
    lasting=Prior(
        median=0.0,
        sd=1.5,
        log=False,
        reason="nothing is known of it without repeated seeds: 90 % of the prior is 8-92 % of the variance",
    ),
)
