"""The card that records what the numbers rest on: source, law, errors, sharing, priors with their reasons, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayeslaw.deviation import PREFIX
from bayeslaw.posterior import Fit
from bayeslaw.priors import HalfNormal, Prior
from bayeslaw.schema import STEP, STUDENT_NU
from bayeslaw.spec import ALIASES, pooling_of
from reports import text
from reports.cards import Body, Table
from reports.study import Study

MOST_EXCLUDED = 100

LAWS = {
    "additive": "the terms of size and of data add up",
    "coupled": "the sum of both terms is raised to a power k",
    "chinchilla": "a plain law for each architecture, by its own N",
}
MAPS = {
    "power": "a constant exponent",
    "none": "a recurrence is worth nothing",
    "full": "a recurrence is worth a unique block",
    "bounded": "worth that approaches a limit exponentially",
    "log": "worth that grows with log r",
    "hill": "worth that approaches a limit as a Hill curve",
    "unrolled": "all parameters count r times",
    "free": "an exponent for each trained r",
}
NOISES = {
    "iid": "errors of different training runs are independent",
    "cells": "the runs of a cell (recipe, budget, r) share an effect on log loss (tau_cell)",
}
OUTLIERS = {"gaussian": "normal errors", "student": f"Student errors with {STUDENT_NU} degrees of freedom"}
ERROR_SCALES = {
    "constant": "errors of one scale on log loss",
    "compute": "the log scale of the errors changes linearly with log FLOPs (sigma_slope)",
}
CONVENTIONS = {
    "once": "the injection's parameters count as run once (N_once)",
    "rec": "the injection's parameters count with the shared block (N_rec)",
    "nowhere": "the injection's parameters are not counted",
    "regression": "for each width a line of N over 1 / r splits N into N_once and N_rec",
}
DEVIATION = "log g(r) deviates from the map by a number for each r and recipe, around 0 with one spread"
POOLINGS = {"shared": "shared by all runs", "partial": "partially pooled by", "separate": "separate by"}
PRIOR_MEANING = {
    "E": "irreducible loss, nats/token",
    "size": "loss owed to finite size at the centre of the design, nats/token",
    "data": "loss owed to finite data at the centre of the design, nats/token",
    "alpha": "exponent of the loss owed to size",
    "beta": "exponent of the loss owed to data",
    "k": "power of the coupled terms",
    "phi": "recurrence-equivalence exponent",
    "gain": "unique blocks that endless recurrence adds",
    "scale": "further recurrences over which the gain comes",
    "half": "further recurrences that bring half of the gain",
    "slope": "unique blocks for each e-fold of r",
    "spread": "standard deviation of a pooled parameter between its levels (of its logarithm where it is positive)",
    "deviation": "standard deviation, between the r, of log g(r) around the map",
    "drift": "standard deviation of the drift of log loss a step of compute beyond the edge, shared by all r",
    "drift_each": "the same of each r beside it",
    "sigma": "scale of the errors of log loss",
    "tau": "standard deviation of the effects that runs share, on log loss",
    "sigma_slope": "change of log sigma for each e-fold of compute",
}


def record(study: Study) -> Body:
    """Everything the numbers rest on."""
    fit = study.fit
    attrs, spec, law = fit.attrs, fit.spec, fit.law
    excluded = attrs["excluded"]
    mapped = spec.law != "chinchilla"
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in attrs["seconds"].items())
    rows = [
        ("source", attrs["source"]),
        *([("where", attrs["where"])] if attrs["where"] else []),
        ("data hash", attrs["data_hash"]),
        ("runs", f"{len(fit.runs)} fitted, {len(excluded)} excluded"),
        ("law", f"{spec.law} ({LAWS[spec.law]}): {law.equation}"),
        *([("recurrence map", f"{law.map.name} ({MAPS[law.map.name]}): {law.map.equation}")] if mapped else []),
        ("parameters", "; ".join(sharing(fit))),
        ("deviation", f"on: {DEVIATION}" if spec.deviation else "off: r recurrences are worth what the map says"),
        ("drift", f"on: {_drift(fit)}" if spec.drift else "off: forecasts take the law at its word beyond the runs"),
        ("noise", f"{spec.noise}: {NOISES[spec.noise]}"),
        *([("training runs", "rows of one training run share an effect (tau_run)")] if _runs_share(fit) else []),
        ("outliers", f"{spec.outliers}: {OUTLIERS[spec.outliers]}"),
        ("error scale", f"{spec.error_scale}: {ERROR_SCALES[spec.error_scale]}"),
        ("injection", f"{spec.injection_in}: {CONVENTIONS[spec.injection_in]}"),
        ("recipes", ", ".join(fit.recipes)),
        ("sampler", f"{spec.chains} chains of {spec.draws} draws after {spec.tune} of tuning, seed {spec.seed}"),
        ("time", seconds),
        ("versions", ", ".join(f"{name} {value}" for name, value in attrs["versions"].items())),
        *_prior_rows(fit),
        *((f"excluded: {row['run_id']}", str(row["reason"])) for row in excluded[:MOST_EXCLUDED]),
        *(("note", note) for note in attrs["notes"]),
    ]
    hidden = len(excluded) - MOST_EXCLUDED
    named = f"the {spec.law} law" + (f" with the {law.map.name} map" if mapped else "")
    return Body(
        takeaway=f"{len(fit.runs)} runs of {attrs['source']}, {named}, priors “{attrs['priors']['name']}”.",
        table=Table(
            header=("what", "value"),
            rows=tuple((str(name), str(value)) for name, value in rows),
            text_columns=2,
            note=f"{hidden} more excluded runs are not shown; the fit file names them." if hidden > 0 else "",
        ),
    )


def _drift(fit: Fit) -> str:
    """What the drift is, in words."""
    found = fit.data["drift"].to_dataset()
    sd = text.significant(100 * float(found["scale"].median()), 2)
    return (
        f"beyond {text.flops(fit.attrs['drift']['edge'])} log loss may drift from the law by {sd} % a step (a factor "
        f"{STEP:.2f} of compute; standard deviation), learnt from {len(fit.attrs['drift']['origins'])} rolling origins"
    )


def sharing(fit: Fit) -> list[str]:
    """Which of the law's parameters are shared, partially pooled or separate, and by what."""
    given = {ALIASES.get(name, name): pooling_of(how) for name, how in fit.spec.pooling.items()}
    groups: dict[tuple[str, str], list[str]] = {}
    for name in (name for name in fit.law.parameters if not name.startswith(PREFIX)):
        sampled = ALIASES.get(name, name)
        by_default = ("partial", "recipe") if name in fit.law.map.parameters else ("shared", "")
        mode, factor = ("separate", "architecture") if fit.spec.law == "chinchilla" else given.get(sampled, by_default)
        if fit.posterior[sampled].sizes.get(factor, 1) == 1:
            mode, factor = "shared", ""
        groups.setdefault((mode, factor), []).append(name)
    return [f"{', '.join(names)} {POOLINGS[mode]} {factor}".strip() for (mode, factor), names in groups.items()]


def _runs_share(fit: Fit) -> bool:
    return "tau_run" in fit.posterior


def _prior_rows(fit: Fit) -> list[tuple[str, str]]:
    """The prior of each parameter that the fit has, with its reason."""
    priors, names = fit.attrs["priors"], {str(name) for name in fit.posterior.data_vars}
    rows = []
    for name, meaning in PRIOR_MEANING.items():
        if _in_fit(name, names) or (name.startswith("drift") and fit.spec.drift):
            stated = f"{meaning}: {_stated(priors[name])} {text.sentence(priors[name]['reason'])}"
            rows.append((f"prior of {name}", stated))
    return rows


def _in_fit(prior: str, names: set[str]) -> bool:
    """Whether a fit with these parameters has one that this prior is of."""
    if prior == "spread":
        return any(name.endswith("_spread") for name in names - {f"{PREFIX}spread"})
    if prior == "deviation":
        return f"{PREFIX}spread" in names
    if prior == "tau":
        return any(name.startswith("tau_") for name in names)
    if prior == "phi":
        return any(name == "phi" or name.startswith("phi_") for name in names)
    return prior in names


def _stated(entry: Mapping[str, Any]) -> str:
    """A prior's family and numbers."""
    if "scale" in entry:
        half = HalfNormal(**entry)
        return f"half-normal, scale {half.scale:g}."
    prior = Prior(**entry)
    kind = "log-normal" if prior.log else "normal"
    span = f"90 % {text.significant(prior.quantile(0.05), 2)} to {text.significant(prior.quantile(0.95), 2)}"
    return f"{kind}, median {prior.median:g}, {span}."
