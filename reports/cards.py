"""Cards of a report, and those that show the fit as it is: its runs and its diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from bayeslaw.diagnostics import CheckResult
from bayeslaw.errors import BayeslawError
from bayeslaw.schema import COLUMNS
from bayeslaw.spec import MAX_R_HAT, MIN_ESS
from reports import text
from reports.study import Study

MOST_RUNS = 500
MOST_NAMED = 6
"""More parameters than this are counted, not named, in a sentence."""


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
    if faults := failures(check):
        takeaway += f" {text.sentence('; '.join(faults))}"
    if check.not_identified:
        unknown = text.shortened(check.not_identified, MOST_NAMED)
        takeaway += f" Not identified by the data: {unknown}; the prior carries the answer there."
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


def failures(check: CheckResult) -> list[str]:
    """What is wrong with the sampling and what to do."""
    named = [message.split("diagnostics failed: ")[-1] for message in check.messages]
    return [message for message in named if not message.startswith("not identified")]


def _range(values: np.ndarray) -> str:
    return f"{text.quantity(float(np.nanmin(values)))} to {text.quantity(float(np.nanmax(values)))}"
