"""The page of `bayeslaw check`: every finding on a fit with its figure, its numbers and what to do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bayeslaw.checks.cards import FAILED, NOT_APPLICABLE, CheckCard
from bayeslaw.checks.criticism import Criticism, capital
from bayeslaw.posterior import Fit
from reports import checks, text
from reports.build import page, write_page
from reports.cards import Body, Card, make
from reports.verdict import Verdict


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
    made = make_cards(found)
    judged = Verdict(doubts=found.findings, findings=(found.headline,), advice=found.advice)
    write_page(page(f"What speaks against this fit: {fit.attrs['source']}", judged, made), path)
    return made


def make_cards(found: Criticism) -> tuple[Card, ...]:
    """One card a check, warnings first, what could not be asked last."""
    order = {NOT_APPLICABLE: 2, FAILED: 1}
    ordered = sorted(found.cards, key=lambda card: (order.get(card.verdict, 0), -card.warns, -card.weight))
    return tuple(make(card.name, card.title, checks.HOW[card.name], partial(_body, card)) for card in ordered)


def _body(card: CheckCard) -> Body:
    told = f"{capital(card.reading)}."
    if card.verdict == NOT_APPLICABLE:
        return Body(takeaway=f"Not asked of this fit: {card.reading}.")
    if card.verdict == FAILED:
        raise RuntimeError(card.reading)
    if card.warns:
        told = f"Warning. {told} {text.sentence(card.advice)}"
    return Body(takeaway=told.rstrip(), figure=checks.figure(card), table=checks.table(card))
