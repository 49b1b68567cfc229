"""The page of `bayeslaw check`: every finding on a fit with its figure, its numbers and what to do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bayeslaw.checks.cards import FAILED, NOT_APPLICABLE, CheckCard
from bayeslaw.checks.criticism import UNMADE, Criticism, capital
from bayeslaw.posterior import Fit
from bayeslaw.version import __version__
from reports import checks, text
from reports.build import page, write_page
from reports.cards import Body, Card, Table, make
from reports.verdict import Verdict

HOW = "What these checks rest on. The same runs, settings and version give the same findings."


def write_criticism(fit: Fit, found: Criticism, path: str | Path) -> tuple[Card, ...]:
    """Write the page, whole or not at all.

    Parameters
    ----------
    fit : Fit
    found : Criticism
    path : str or Path
        The HTML file; folders above it are made.

    Returns
    -------
    tuple of Card, as the page has them.

    Raises
    ------
    BayeslawError
        The file cannot be written.
    """
    made = (*make_cards(found), make("made", "How this was made", HOW, partial(_made, fit, found)))
    judged = Verdict(doubts=found.findings, findings=(found.headline,), advice=found.advice)
    write_page(page(f"What speaks against this fit: {fit.attrs['source']}", judged, made), path)
    return made


def make_cards(found: Criticism) -> tuple[Card, ...]:
    """One card a check, warnings first, what could not be asked last."""
    order = {NOT_APPLICABLE: 2, FAILED: 1}
    ordered = sorted(found.cards, key=lambda card: (order.get(card.verdict, 0), -card.warns, -card.weight))
    return tuple(
        # What explains a figure goes with it.
        make(card.name, card.title, "" if card.verdict in UNMADE else checks.HOW[card.name], partial(_body, card))
        for card in ordered
    )


def _made(fit: Fit, found: Criticism) -> Body:
    """Version, data and settings."""
    spec, attrs = fit.spec, fit.attrs
    shown = ("law", "map", "deviation", "drift", "noise", "outliers", "error_scale", "injection_in", "recipe")
    sampled = ("draws", "tune", "chains", "target_accept", "seed")
    settings = {name: getattr(spec, name) for name in (*shown, *sampled)}
    words = {True: "on", False: "off"}
    rows = (
        ("source", attrs["source"]),
        *([("where", attrs["where"])] if attrs["where"] else []),
        ("data hash", attrs["data_hash"]),
        ("runs", f"{len(fit.runs)} fitted, {len(attrs['excluded'])} excluded"),
        *(
            (name.replace("_", " "), words[value] if isinstance(value, bool) else value)
            for name, value in settings.items()
            if value is not None
        ),
        ("priors", attrs["priors"]["name"]),
        ("divergences", found.diagnostics.divergences),
        ("fits under other structures", sum(row.by != "fit" for row in found.phi) or "none (--structures off)"),
        ("version", __version__),
        ("fitted with", ", ".join(f"{name} {value}" for name, value in attrs["versions"].items())),
    )
    return Body(
        takeaway=f"{len(found.cards)} checks of a fit to {len(fit.runs)} runs, by bayeslaw {__version__}.",
        table=Table(
            header=("what", "value"), rows=tuple((str(name), str(value)) for name, value in rows), text_columns=2
        ),
    )


def _body(card: CheckCard) -> Body:
    told = f"{capital(card.reading)}."
    if card.verdict == NOT_APPLICABLE:
        return Body(takeaway=f"Not asked of this fit: {card.reading}.")
    if card.verdict == FAILED:
        raise RuntimeError(card.reading)
    if card.warns:
        told = f"Warning. {told} {text.sentence(card.advice)}"
    return Body(takeaway=told.rstrip(), figure=checks.figure(card), table=checks.table(card))
