"""What a person is unsure of: phi, log g(r), a difference in phi, log N*(C), or the regret of a decision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayeslaw.allocate import allocate
from bayeslaw.design.knowledge import Knowledge
from bayeslaw.errors import UsageError
from bayeslaw.frontier import Optimum, optimum
from bayeslaw.sizes import sizes_of

Array = NDArray[np.float64]

GRAMMAR = "phi, g(R), delta_phi:RECIPE, n_opt(FLOPS), n_opt(FLOPS,R) or regret(FLOPS), such as g(4) or regret(2.15e19)"

EXPLAINED = 0.995
"""Share of the actions' differences that the parts of a regret stand for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Aim:
    """One thing to be told.

    Parameters
    ----------
    text : str
        As a person asks for it.
    scale : str
        Where its logarithm is meant, what of: "log g".
    parts : ndarray, shape (sample, part)
        Quantities whose variances, summed, are to be reduced; one but for a regret.
    actions : ndarray, shape (sample, action), or None
        Of a regret: loss of every trainable configuration, nats per token.
    """

    text: str
    scale: str
    parts: Array
    actions: Array | None = None

    @property
    def now(self) -> float:
        """Standard deviation, or expected regret, before any further run."""
        if self.actions is None:
            return float(self.parts[:, 0].std(ddof=1))
        return float(self.actions.mean(axis=0).min() - self.actions.min(axis=1).mean())

    @property
    def measure(self) -> str:
        """What `now` is."""
        if self.actions is not None:
            return "expected regret, nats/token"
        return f"sd of {self.scale}" if self.scale else "sd"


def aim_of(text: str, knowledge: Knowledge, *, recipe: str | None = None) -> Aim:
    """The aim that a text asks for.

    Parameters
    ----------
    text : str
        See `GRAMMAR`.
    knowledge : Knowledge
    recipe : str, optional
        Whose phi, worth, size or decision; default the baseline, or the only recipe.

    Raises
    ------
    UsageError
        The text asks for nothing that the fit has.
    """
    whose = recipe or knowledge.anchor
    matched = re.fullmatch(r"\s*(phi|g|delta_phi|n_opt|regret)\s*(?:\(([^)]*)\)|:\s*(\S+))?\s*", text)
    name, inside, other = matched.groups() if matched else ("", None, None)
    values = _numbers(inside)
    if name == "phi" and inside is None and other is None:
        return Aim(text="phi", scale="", parts=_phi(knowledge, whose, text)[:, None])
    if name == "delta_phi" and other is not None:
        if other == knowledge.anchor:
            raise UsageError(f"--about {text}: {other} against itself", allowed="another recipe")
        delta = _phi(knowledge, other, text) - _phi(knowledge, knowledge.anchor, text)
        return Aim(text=f"delta_phi:{other}", scale="", parts=delta[:, None])
    if name == "g" and len(values) == 1 and values[0] > 1:
        worth = knowledge.log_worth(whose, values[0])
        return Aim(text=f"g({values[0]:g})", scale="log g", parts=worth[:, None])
    if name == "n_opt" and len(values) in (1, 2) and values[0] > 0:
        flops, r = values[0], values[1] if len(values) == 2 else None
        if r is None:
            r = _best_recurrences(knowledge, whose, flops)
        size = best_size(knowledge, whose, r, flops)
        return Aim(text=f"n_opt({flops:g},{r:g})", scale="log N*", parts=np.log(size)[:, None])
    if name == "regret" and len(values) == 1 and values[0] > 0:
        found = allocate(knowledge.fit, flops=values[0], recipe=recipe)
        return regret_of(f"regret({values[0]:g})", np.column_stack([run.loss for run in found.candidates]))
    raise UsageError(f"--about {text}", allowed=GRAMMAR)


def regret_of(text: str, losses: Array) -> Aim:
    """The aim of a decision between actions.

    Near the best one a loss is a smooth function of the action, so the least expected loss falls with the variances of
    the losses' differences, each as far as its action may be the best: with p the probability of each action to be the
    best, half the curvature of a soft minimum is diag(p) - p p', and the trace of its product with the covariance of
    the losses is sum_a p_a Var(L_a - sum_b p_b L_b). The parts are the principal components of these differences.

    Parameters
    ----------
    text : str
    losses : ndarray, shape (sample, action)
        Nats per token.
    """
    best = np.bincount(losses.argmin(axis=1), minlength=losses.shape[1]) / len(losses)
    chosen = best > 0
    p, likely = best[chosen], losses[:, chosen] - losses[:, chosen].mean(axis=0)
    differences = np.sqrt(p) * (likely - (likely @ p)[:, None])
    value, vector = np.linalg.eigh(differences.T @ differences)
    share = np.cumsum(value[::-1]) / max(value.sum(), np.finfo(float).tiny)
    count = int(np.searchsorted(share, EXPLAINED)) + 1
    return Aim(text=text, scale="", parts=differences @ vector[:, ::-1][:, :count], actions=losses)


def expected_regrets(actions: Array, eta: Array, among: Array, noise: Array, *, seed: int) -> Array:
    """Expected regret before any run and after each of a series.

    The expected value of sample information by regression (Strong, Oakley and Brennan 2014; Jalal and Alarid-Escudero
    2018): what the runs will show is simulated from the draws, the actions' expected losses given it are linear in it,
    and the decision is the least of them.

    Parameters
    ----------
    actions : ndarray, shape (sample, action)
        Nats per token.
    eta : ndarray, shape (sample, run)
        What the runs would show but for errors, log loss, in their order.
    among : ndarray, shape (run, run)
        Covariance of eta with the errors that runs share.
    noise : ndarray, shape (run,)
        Variance of the runs' own errors.
    seed : int

    Returns
    -------
    ndarray, shape (run + 1,)
    """
    mean = actions.mean(axis=0)
    now = float(mean.min() - actions.min(axis=1).mean())
    if not len(noise):
        return np.array([now])
    deviation = eta - eta.mean(axis=0)
    errors = among - deviation.T @ deviation / (len(eta) - 1) + np.diag(noise)
    rng = np.random.default_rng(seed)
    drawn = rng.multivariate_normal(np.zeros(len(noise)), errors, size=len(eta), check_valid="ignore", method="eigh")
    root = np.linalg.cholesky(among + np.diag(noise))
    news = np.linalg.solve(root, (deviation + drawn).T)
    # Against the action that is best now: its own expected loss stays what it is, and its scatter out of the average.
    against = actions - actions[:, [int(mean.argmin())]]
    expected = against.mean(axis=0) + np.zeros(actions.shape)
    link = np.linalg.solve(root, deviation.T @ (against - expected) / (len(eta) - 1))
    out = [now]
    for innovation, effect in zip(news, link, strict=True):
        expected += np.outer(innovation, effect)
        out.append(max(0.0, now + float(expected.min(axis=1).mean())))
    return np.array(out)


def best_size(knowledge: Knowledge, recipe: str, recurrences: float, flops: float) -> Array:
    """N*(C) of a recipe and r for every draw, parameters, shape (sample,)."""
    return _optimum(knowledge, recipe, recurrences, flops).n_unique


def _optimum(knowledge: Knowledge, recipe: str, recurrences: float, flops: float) -> Optimum:
    fit = knowledge.fit
    sizes = sizes_of(knowledge.families[recipe], recurrences, **fit.convention)
    draws = knowledge.draws(recipe, recurrences)
    return optimum(fit.law_at(recurrences), draws, sizes, flops=flops, recurrences=recurrences)


def _best_recurrences(knowledge: Knowledge, recipe: str, flops: float) -> float:
    """The trained r whose optimum has the least expected loss."""
    trained = knowledge.fit.recurrences_of(recipe)
    return min(trained, key=lambda r: float(_optimum(knowledge, recipe, r, flops).loss.mean()))


def _phi(knowledge: Knowledge, recipe: str, text: str) -> Array:
    if "phi" not in knowledge.fit.law.map.parameters:
        name = knowledge.fit.law.map.name
        raise UsageError(
            f"--about {text}: the map {name} has no phi", allowed="g(R): what r recurrences are worth",
            do="ask for g(4), or fit with --map power",
        )  # fmt: skip
    return knowledge.draws(recipe, 1)["phi"]


def _numbers(inside: str | None) -> Sequence[float]:
    try:
        values = [float(part) for part in inside.split(",")] if inside else []
    except ValueError:
        return []
    return values if all(np.isfinite(values)) else []
