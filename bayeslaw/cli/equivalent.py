"""`bayeslaw equivalent`: the non-looped model that is as good as a looped one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bayeslaw.cli.output import note, print_json
from bayeslaw.cli.quantities import Tokens

app = App(name="equivalent", help="Say which non-looped model is as good as a looped one, and what either costs.")


@app.default
def equivalent(
    fit: Path,
    /,
    *,
    recurrences: float,
    width_scale: float,
    tokens: Tokens = None,
    recipe: str | None = None,
    family: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Say which non-looped model is as good as a looped one, and what either costs.

    Parameters
    ----------
    fit
        A file that `bayeslaw fit --out` wrote.
    recurrences
        r of the looped model.
    width_scale
        Its width as s = d_model / 64.
    tokens
        Training tokens D of both; needed only where each architecture has a law of its own (chinchilla).
    recipe
        Whose phi; needed when the fit holds several recipes and no baseline.
    family
        Family of the width (isodepth); default the family that the fitted runs span.
    json
        Print one JSON object.
    """
    from bayeslaw.equivalent import equivalent as find
    from bayeslaw.posterior import Fit

    found = find(
        Fit.load(fit),
        recurrences=recurrences,
        width_scale=width_scale,
        tokens=tokens,
        recipe=recipe,
        family=family,
    )
    for text in found.notes:
        note(f"note: {text}")
    if json:
        print_json(found.as_dict())
        return
    print(found)
