"""`bayeslaw check`: find what is wrong with a fit, and what its answer hangs on."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from bayeslaw.cli.output import note, own, print_json, print_table, printable, require_page
from bayeslaw.errors import EXIT_DIAGNOSTICS, EXIT_OK

app = App(name="check", help="Find what is wrong with a fit, and what its answer hangs on.")

COLUMNS = 80


@app.default
def check(
    fit: Path,
    /,
    *,
    structures: Literal["on", "off"] = "on",
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Put a fit under every check: the law against the runs, the prior, single runs, other structures and conventions.

    Parameters
    ----------
    fit
        A file that `bayeslaw fit --out` wrote.
    structures
        Whether to fit its runs again under other structures and ways of counting, which takes about a minute.
    out
        Write the cards with their figures to this HTML file.
    json
        Print one JSON object.
    """
    from bayeslaw.checks.criticism import criticise
    from bayeslaw.posterior import Fit

    require_page(out, fit)
    loaded = Fit.load(fit)
    found = criticise(loaded, refit=structures == "on", progress=note)
    if out is not None:
        own("reports.criticism").write_criticism(loaded, found, out)
        note(f"wrote {out}")
    if json:
        print_json(found.as_dict())
    else:
        _show(found)
    for message in found.diagnostics.messages:
        note(f"warning: {message}")
    return EXIT_OK if found.diagnostics.passed else EXIT_DIAGNOSTICS


def _show(found: Any) -> None:
    """The verdict, a line for each card, and the answer under each structure."""
    print(textwrap.fill(printable(found.verdict), COLUMNS))
    print()
    print_table(
        ("check", "verdict", "value", "threshold"),
        ((card.name, card.verdict, _number(card.value), _number(card.threshold)) for card in found.cards),
    )
    for card in found.cards:
        told = f"{card.name}: {card.reading}" + (f". Next: {card.advice}" if card.warns and card.advice else "")
        print(textwrap.fill(printable(told), COLUMNS, subsequent_indent="  "))
    if found.phi:
        print()
        print_table(
            ("structure", "injection in", "recipe", "phi", "5 %", "95 %", "P(<1)", "P(>0)"),
            (row.texts() for row in found.phi),
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
