"""The PyMC model of task loss on validation loss, one axis at a time.

    y_j = m_t + h(x_i; s_t, kappa) + delta_arch + eps_{t,arch} + u_i + e_j,   h(x; s, k) = s (exp(k x) - 1) / k

for checkpoint i and task t: s_t = s exp(z_t) / mean_t exp(z_t) with z_t ~ N(0, tau), eps ~ N(0, rho) summing to 0 over
the tasks, u_i ~ N(0, omega), e_j ~ N(0, sqrt(se_j^2 + sigma^2)); r = 1 has delta = eps = 0. s_t > 0, so the curve
is monotone. s, the mean slope of the axis, is told well where single slopes are not, so it has a coordinate of its own.
rho and sigma are told together, as rho^2 + sigma^2, and have that sum and a share. The axes share no unknown, so each
has a posterior of its own.

All but s_t, kappa and the scales is Gaussian and integrated out: a few checkpoints leave scales near 0 possible, where
effects that are sampled beside them make funnels. The effects are drawn afterwards from their normal distribution given
the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from scipy.special import expit

from bayeslaw.downstream.axis import OMEGA, RHO, AxisData
from bayeslaw.downstream.evidence import LogEvidence
from bayeslaw.downstream.priors import RegimePriors
from bayeslaw.spec import MAX_R_HAT, MIN_ESS

Array = NDArray[np.float64]

PATIENT_ACCEPT = 0.99
"""Target acceptance of the second try, where the first sample is not good enough."""
HEAD, COLUMNS = 3, 4
"""Rows before those of the observations, and columns before those of the tasks, in `packed`."""
BATCH = 256
"""Draws whose effects are drawn together, which bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Whether the sampler can be trusted.

    Parameters
    ----------
    divergences : int
    ess : float
        Least effective sample size, bulk and tail.
    r_hat : float
        Largest R-hat.
    """

    divergences: int
    ess: float
    r_hat: float

    @property
    def passed(self) -> bool:
        """Whether it meets what a fit of the law has to meet."""
        return self.divergences == 0 and self.ess >= MIN_ESS and self.r_hat < MAX_R_HAT


@dataclass(frozen=True, eq=False)
class Posterior:
    """Draws of one axis.

    Parameters
    ----------
    slopes : ndarray, shape (sample, T)
    spread, curvature, omega, sigma, rho : ndarray, shape (sample,)
    levels : ndarray, shape (sample, T)
        Task losses at r = 1 and the mean validation loss, nats per token.
    effects : ndarray, shape (sample, R)
        Of each looped architecture at matched validation loss, mean over the tasks, nats per token.
    diagnostics : Diagnostics
    """

    slopes: Array
    spread: Array
    curvature: Array
    omega: Array
    sigma: Array
    rho: Array
    levels: Array
    effects: Array
    diagnostics: Diagnostics

    def rise(self, x: Array) -> Array:
        """Mean over the tasks of h at x, shape (sample, *x.shape)."""
        flat = np.ravel(x)
        height = growth(flat[None, :], self.curvature[:, None], xp=np)
        return np.asarray(self.slopes.mean(axis=1)[:, None] * height).reshape(-1, *np.shape(x))


def growth(x: Any, curvature: Any, *, xp: Any) -> Any:
    """(exp(kappa x) - 1) / kappa, x where kappa is 0; for numpy and pytensor alike."""
    z = curvature * x
    small = abs(z) < 1e-5
    safe = xp.where(small, 1.0, z)
    return x * xp.where(small, 1 + z / 2, xp.expm1(safe) / safe)


def build(data: AxisData, priors: RegimePriors, *, tasks: int) -> pm.Model:
    """The model of one axis, with all that a table decides as data.

    Parameters
    ----------
    data : AxisData
    priors : RegimePriors
    tasks : int
        Slopes in the model, at least those of the axis: further ones keep their prior. So axes of different numbers of
        tasks are one compiled model.

    Returns
    -------
    pymc.Model
        Free variables log_slope, log_slope_spread, slope_each, curvature, log_omega, log_scatter and
        logit_lasting.
    """
    with pm.Model() as model:
        table = pm.Data("packed", packed(data, tasks))
        y, x, known, share = (table[HEAD:, column] for column in range(COLUMNS))
        weights, design = table[HEAD:, COLUMNS : COLUMNS + tasks], table[HEAD:, COLUMNS + tasks :]
        fixed, is_rho, is_omega = (table[row, COLUMNS + tasks :] for row in range(HEAD))
        present = table[0, COLUMNS : COLUMNS + tasks]
        slope = pm.Normal("log_slope", priors.slope.mu, priors.slope.sd)
        curvature = pm.Normal("curvature", priors.curvature.mu, priors.curvature.sd)
        spread, omega, total = (
            pt.exp(pm.Normal(f"log_{name}", prior.mu, prior.sd))
            for name, prior in (
                ("slope_spread", priors.slope_spread), ("omega", priors.checkpoint), ("scatter", priors.scatter),
            )
        )  # fmt: skip
        each = pm.Normal("slope_each", 0.0, spread, shape=tasks)
        lasting = pm.math.sigmoid(pm.Normal("logit_lasting", priors.lasting.mu, priors.lasting.sd))
        sigma, rho = total * pt.sqrt(1 - lasting), total * pt.sqrt(lasting)
        factor = pt.exp(each) * present
        slopes = pt.exp(slope) * factor * present.sum() / factor.sum()
        residual = y - weights @ slopes * growth(x, curvature, xp=pt)
        value, *_ = LogEvidence()(
            residual, known + share * sigma**2, design, fixed + rho * is_rho + omega * is_omega
        )  # fmt: skip
        pm.Potential("task_loss", value)
    return model


def packed(data: AxisData, tasks: int) -> Array:
    """All that an axis decides of the compiled model, in one matrix of shape (HEAD + N, COLUMNS + tasks + B).

    (One, because every further shared variable costs the sampler's compiler most of a second.) Below the head a row is
    an observation: y, x, known, share, weights, design. The head is of the effects: their fixed standard deviation,
    whether rho, whether omega scales them; and says in its first row which slopes are of tasks of the axis.
    """
    count, size = data.design.shape
    found = np.zeros((HEAD + count, COLUMNS + tasks + size))
    found[HEAD:, :COLUMNS] = np.column_stack([data.y, data.x, data.known, data.share])
    found[HEAD:, COLUMNS : COLUMNS + len(data.tasks)] = data.weights
    found[HEAD:, COLUMNS + tasks :] = data.design
    found[:HEAD, COLUMNS + tasks :] = data.fixed, data.kind == RHO, data.kind == OMEGA
    found[0, COLUMNS : COLUMNS + len(data.tasks)] = 1.0
    return found


_compiled: dict[Any, Any] = {}


def sample(
    data: AxisData, priors: RegimePriors, *, tasks: int, draws: int, tune: int, chains: int, seed: int,
    patient: bool = True,
) -> Posterior:  # fmt: skip
    """Sample the posterior of one axis with nutpie, again with smaller steps where the first sample is not good enough.

    Parameters
    ----------
    data, priors, tasks
        See `build`; a process compiles a model once for a number of tasks.
    draws, tune, chains, seed : int
    patient : bool
        Whether there is a second try.
    """
    import nutpie

    key = (repr(priors), tasks)
    if key not in _compiled:
        _compiled[key] = nutpie.compile_pymc_model(build(data, priors, tasks=tasks))
    program = _compiled[key].with_data(packed=packed(data, tasks))

    def once(accept: float, thin: int) -> Posterior:
        tree = nutpie.sample(
            program, draws=thin * draws, tune=tune, chains=chains, cores=min(chains, os.cpu_count() or 1), seed=seed,
            target_accept=accept, adaptation="low_rank", save_warmup=False, progress_bar=False,
        )  # fmt: skip
        return _posterior(tree, data, priors, thin, seed)

    found = once(0.95, 1)
    return once(PATIENT_ACCEPT, 3) if patient and not found.diagnostics.passed else found


def _posterior(tree: Any, data: AxisData, priors: RegimePriors, thin: int, seed: int) -> Posterior:
    """The kept draws under their names, with the effects drawn given them."""
    import arviz_stats as azs

    sampled = tree["posterior"].to_dataset().isel(draw=slice(thin - 1, None, thin))
    least = min(float(azs.ess(sampled, method=method).to_array().min()) for method in ("bulk", "tail"))
    diagnostics = Diagnostics(
        divergences=int(tree["sample_stats"]["diverging"].sum()),
        ess=least,
        r_hat=float(azs.rhat(sampled).to_array().max()),
    )
    value = {str(name): array.values.reshape(-1, *array.shape[2:]) for name, array in sampled.items()}
    spread, lasting = np.exp(value["log_slope_spread"]), expit(value["logit_lasting"])
    factor = np.exp(value["slope_each"][:, : len(data.tasks)])
    found = Posterior(
        slopes=np.exp(value["log_slope"])[:, None] * factor / factor.mean(axis=1, keepdims=True),
        spread=spread,
        curvature=value["curvature"],
        omega=np.exp(value["log_omega"]),
        sigma=np.exp(value["log_scatter"]) * np.sqrt(1 - lasting),
        rho=np.exp(value["log_scatter"]) * np.sqrt(lasting),
        levels=np.empty(0),
        effects=np.empty(0),
        diagnostics=diagnostics,
    )
    gaussian = _effects(data, found, np.random.default_rng([seed, 1]))
    return replace(found, levels=gaussian[:, : len(data.tasks)] + data.means, effects=gaussian[:, data.effects])


def _effects(data: AxisData, found: Posterior, rng: np.random.Generator) -> Array:
    """Draws of the Gaussian effects given the rest, shape (sample, B)."""
    residual = data.y - found.slopes @ data.weights.T * growth(data.x, found.curvature[:, None], xp=np)
    noise = data.known + data.share * found.sigma[:, None] ** 2
    scale = scales(data, found.rho, found.omega)
    drawn = []
    for start in range(0, len(residual), BATCH):
        part = slice(start, start + BATCH)
        design = data.design * scale[part, None, :]
        weighted = design / noise[part, :, None]
        precision = np.eye(design.shape[2]) + np.swapaxes(design, 1, 2) @ weighted
        factor = np.linalg.cholesky(precision)
        pull = np.einsum("snb,sn->sb", weighted, residual[part])[..., None]
        mean = np.linalg.solve(precision, pull)
        around = np.linalg.solve(np.swapaxes(factor, 1, 2), rng.standard_normal(mean.shape))
        drawn.append((mean + around)[..., 0] * scale[part])
    return np.concatenate(drawn)


def scales(data: AxisData, rho: Array, omega: Array) -> Array:
    """Standard deviations of the Gaussian effects by draw, shape (sample, B)."""
    return np.asarray(
        data.fixed + np.multiply.outer(rho, data.kind == RHO) + np.multiply.outer(omega, data.kind == OMEGA)
    )
