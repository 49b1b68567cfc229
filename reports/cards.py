"""Cards of a report, and those that look at the fit as it is: phi, runs, diagnostics, record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bayeslaw.diagnostics import phi_differences
from bayeslaw.errors import BayeslawError
from bayeslaw.priors import STUDENT_NU, Prior
from bayeslaw.sampling import MAX_R_HAT, MIN_ESS
from bayeslaw.schema import COLUMNS
from reports import figures, text
from reports.study import Study

MOST_RUNS = 500
MOST_EXCLUDED = 100

LAWS = {"additive": "L = E + A (N_once + r^phi N_rec)^-alpha + B D^-beta"}
NOISES = {"iid": "independent errors of one scale on log loss"}
OUTLIERS = {"gaussian": "normal errors", "student": f"Student errors with {STUDENT_NU} degrees of freedom"}
CONVENTIONS = {
    "once": "the injection's parameters count as run once (N_once)",
    "rec": "the injection's parameters count with the shared block (N_rec)",
    "nowhere": "the injection's parameters are not counted",
}
_PRIOR_MEANING = {
    "E": "irreducible loss, nats/token",
    "size": "loss owed to finite size at the centre of the design, nats/token",
    "data": "loss owed to finite data at the centre of the design, nats/token",
    "alpha": "exponent of size",
    "beta": "exponent of data",
    "phi": "recurrence-equivalence exponent",
    "phi_spread": "standard deviation of phi between recipes",
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts.

    Parameters
    ----------
    header : tuple of str
    rows : tuple of tuple of str
    text_columns : int
        The first so many columns are words, set left; the others numbers, set right.
    note : str
        What to know about the rows, such as that some are not shown.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Body:
    """What a card has to say."""

    takeaway: str
    figure: go.Figure | None = None
    table: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    """One section of a report.

    Parameters
    ----------
    name : str
        Short and unique.
    title, takeaway, how_to_read : str
    figure : plotly Figure or None
    table : Table or None
    failure : str or None
        Why it could not be made; None where it could.
    """

    name: str
    title: str
    takeaway: str
    how_to_read: str
    figure: go.Figure | None = None
    table: Table | None = None
    failure: str | None = None


def make(name: str, title: str, how_to_read: str, body: Callable[[], Body]) -> Card:
    """The card with its body or, whatever goes wrong there, with the reason: one card takes no other down."""
    try:
        made = body()
    except Exception as error:
        return Card(
            name=name,
            title=title,
            takeaway="This card could not be made.",
            how_to_read=how_to_read,
            failure=text.capital(reason(error)),
        )
    return Card(
        name=name,
        title=title,
        takeaway=made.takeaway,
        how_to_read=how_to_read,
        figure=made.figure,
        table=made.table,
    )


def reason(error: Exception) -> str:
    """An error in words: ours speak for themselves, others are named."""
    return str(error) if isinstance(error, BayeslawError) else f"{type(error).__name__}: {error}"


def phi(study: Study) -> Body:
    """Posterior of phi for each recipe beside its prior."""
    fit = study.fit
    draws = {recipe: fit.draws(recipe)["phi"] for recipe in fit.recipes}
    prior = fit.data["prior"].to_dataset()["phi"].isel(recipe=0).values.ravel()
    most = max(2.0, float(fit.runs["recurrences"].max()))
    differences = phi_differences(fit) if len(draws) > 1 else {}
    rows = []
    for recipe, phi in draws.items():
        row = [
            recipe,
            text.mean_and_range(phi, ""),
            text.probability(float((phi < 1).mean()), len(phi)),
            text.probability(float((phi > 0).mean()), len(phi)),
            text.mean_and_range(2.0**phi, ""),
        ]
        if most != 2:
            row.append(text.mean_and_range(most**phi, ""))
        if differences:
            row.append(_difference(differences.get(recipe)))
        rows.append(tuple(row))
    header = ["recipe", "phi", "P(phi < 1)", "P(phi > 0)", "unique blocks, r = 2"]
    header += [f"unique blocks, r = {most:g}"] if most != 2 else []
    header += [f"phi less that of {fit.choose_recipe(None)}"] if differences else []
    several = len(draws) > 1
    parts = [f"{f'{recipe}: ' if several else ''}phi = {text.mean_and_range(phi)}" for recipe, phi in draws.items()]
    ratio = study.check.parameters["sd_ratio"]
    left = text.listing(f"{100 * ratio[f'phi[{recipe}]']:.0f} %" for recipe in fit.recipes)
    said = (
        f"The data narrowed the prior to {left} of its width." if study.looped else "No run loops: this is the prior."
    )
    return Body(
        takeaway=f"{'; '.join(parts)}. {said}",
        figure=figures.phi_density(draws, prior),
        table=Table(header=tuple(header), rows=tuple(rows), note="Mean and 90 % interval."),
    )


def runs(study: Study) -> Body:
    """The runs that were fitted."""
    frame = study.fit.runs
    values = {
        name: frame[name].to_numpy(dtype=float) if name in frame else np.full(len(frame), np.nan)
        for name in ("recurrences", "d_model", "n_unique", "tokens", "flops", "loss")
    }
    shown = min(len(frame), MOST_RUNS)
    rows = tuple(
        (
            str(frame["run_id"].iloc[i]),
            str(frame["recipe"].iloc[i]),
            f"{values['recurrences'][i]:g}",
            f"{values['d_model'][i]:.0f}" if np.isfinite(values["d_model"][i]) else "–",
            text.quantity(values["n_unique"][i], 4),
            text.quantity(values["tokens"][i], 4),
            text.flops(values["flops"][i]),
            f"{values['loss'][i]:.4f}",
        )
        for i in range(shown)
    )
    r = text.listing(f"{value:g}" for value in np.unique(values["recurrences"]))
    takeaway = (
        f"{len(frame)} runs, r = {r}; {_range(values['n_unique'])} unique parameters, {_range(values['tokens'])} "
        f"tokens, losses of {values['loss'].min():.3f} to {values['loss'].max():.3f} {COLUMNS['loss'].unit}."
    )
    return Body(
        takeaway=takeaway,
        table=Table(
            header=("run", "recipe", "r", "width", "N (parameters)", "D (tokens)", "C (FLOPs)", "loss (nats/token)"),
            rows=rows,
            text_columns=2,
            note=f"The first {shown} of {len(frame)} runs; the fit file holds all." if shown < len(frame) else "",
        ),
    )


def diagnostics(study: Study) -> Body:
    """What the sampler did, and what the data spoke about."""
    check = study.check
    rows = []
    for name, row in check.parameters.iterrows():
        ess = min(row["ess_bulk"], row["ess_tail"])
        faults = [
            *(["R-hat"] if not row["r_hat"] < MAX_R_HAT else []),
            *(["ESS"] if not ess >= MIN_ESS else []),
            *(["not identified"] if name in check.not_identified else []),
        ]
        rows.append(
            (
                str(name),
                ", ".join(faults) or "ok",
                *(text.significant(row[key], 4) for key in ("mean", "sd", "q05", "q50", "q95")),
                f"{row['sd_ratio']:.2f}" if np.isfinite(row["sd_ratio"]) else "–",
                f"{row['r_hat']:.3f}",
                f"{row['ess_bulk']:.0f}",
                f"{row['ess_tail']:.0f}",
            )
        )
    state = "The sampler converged" if check.passed else "The sampler did not converge"
    takeaway = (
        f"{state}: {check.divergences} divergences, largest R-hat {check.max_r_hat:.3f}, smallest bulk ESS "
        f"{check.min_ess_bulk:.0f}."
    )
    if check.messages:
        takeaway += f" {_sentence('; '.join(check.messages))}"
    return Body(
        takeaway=takeaway,
        table=Table(
            header=(
                "parameter", "finding", "mean", "sd", "5 %", "50 %", "95 %", "sd / prior sd", "R-hat", "ESS bulk",
                "ESS tail",
            ),
            rows=tuple(rows),
            text_columns=2,
        ),
    )  # fmt: skip


def record(study: Study) -> Body:
    """Everything the numbers rest on."""
    fit = study.fit
    attrs, spec = fit.attrs, fit.spec
    excluded = attrs["excluded"]
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in attrs["seconds"].items())
    rows = [
        ("source", attrs["source"]),
        *([("where", attrs["where"])] if attrs["where"] else []),
        ("data hash", attrs["data_hash"]),
        ("runs", f"{len(fit.runs)} fitted, {len(excluded)} excluded"),
        ("law", f"{spec.law}: {LAWS[spec.law]}"),
        ("noise", f"{spec.noise}: {NOISES[spec.noise]}"),
        ("outliers", f"{spec.outliers}: {OUTLIERS[spec.outliers]}"),
        ("injection", f"{spec.injection_in}: {CONVENTIONS[spec.injection_in]}"),
        ("recipes", ", ".join(fit.recipes)),
        ("sampler", f"{spec.chains} chains of {spec.draws} draws after {spec.tune} of tuning, seed {spec.seed}"),
        ("time", seconds),
        ("versions", ", ".join(f"{name} {value}" for name, value in attrs["versions"].items())),
        *_prior_rows(attrs["priors"], several=len(fit.recipes) > 1),
        *((f"excluded: {row['run_id']}", str(row["reason"])) for row in excluded[:MOST_EXCLUDED]),
        *(("note", note) for note in attrs["notes"]),
    ]
    hidden = len(excluded) - MOST_EXCLUDED
    return Body(
        takeaway=f"{len(fit.runs)} runs of {attrs['source']}, the {spec.law} law, priors “{attrs['priors']['name']}”.",
        table=Table(
            header=("what", "value"),
            rows=tuple((str(name), str(value)) for name, value in rows),
            text_columns=2,
            note=f"{hidden} more excluded runs are not shown; the fit file names them." if hidden > 0 else "",
        ),
    )


def _prior_rows(priors: Mapping[str, Any], *, several: bool) -> list[tuple[str, str]]:
    """Each prior with its reason."""
    rows = []
    for name, meaning in _PRIOR_MEANING.items():
        if name == "phi_spread" and not several:
            continue
        prior = Prior(**priors[name])
        kind = "log-normal" if prior.log else "normal"
        span = f"90 % {text.significant(prior.quantile(0.05), 2)} to {text.significant(prior.quantile(0.95), 2)}"
        stated = f"{meaning}: {kind}, median {prior.median:g}, {span}. {_sentence(prior.reason)}"
        rows.append((f"prior of {name}", stated))
    stated = (
        f"scale of the errors of log loss: half-normal, scale {priors['sigma']:g}. {_sentence(priors['sigma_reason'])}"
    )
    rows.append(("prior of sigma", stated))
    return rows


def _difference(row: Mapping[str, float] | None) -> str:
    if row is None:
        return "–"
    decimals = text.decimals_for(row["sd"])
    return f"{row['mean']:+.{decimals}f} ({row['q05']:+.{decimals}f} to {row['q95']:+.{decimals}f})"


def _range(values: np.ndarray) -> str:
    return f"{text.quantity(float(np.nanmin(values)))} to {text.quantity(float(np.nanmax(values)))}"


def _sentence(words: str) -> str:
    return f"{text.capital(words)}." if words else ""
