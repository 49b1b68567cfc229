"""`bayeslaw report`: write the offline HTML report of a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from bayeslaw.cli.output import keep_input, note, own, print_json

app = App(name="report", help="Write the offline HTML report of a fit.")


@app.default
def report(
    fit: Path,
    /,
    *,
    out: Path,
    family: str | None = None,
    flops_rule: Literal["6nd"] | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write the report of a fit: one HTML file that opens without a network.

    Parameters
    ----------
    fit
        A file that `bayeslaw fit --out` wrote.
    out
        The HTML file to write.
    family
        Architectures to decide between (isodepth); default the family that the fitted runs span.
    flops_rule
        Count C = 6 N D, for runs without an architecture.
    json
        Print one JSON object.
    """
    from bayeslaw.posterior import Fit

    keep_input(out, fit)
    made = own("reports.build").write_report(Fit.load(fit), out, family=family, flops_rule=flops_rule)
    for text in made.verdict.doubts:
        note(f"note: {text}")
    for card in made.cards:
        if card.failure is not None:
            note(f"card {card.name} left out: {card.failure}")
    if json:
        states = [
            {"name": card.name, "state": "ok" if card.failure is None else "failed", "reason": card.failure}
            for card in made.cards
        ]
        print_json({"report": str(out), "cards": states})
        return
    print(out)
