"""`bayeslaw predict`: forecast the loss of one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bayeslaw.cli.lists import Floats
from bayeslaw.cli.output import note, print_json
from bayeslaw.cli.quantities import RequiredTokens

app = App(name="predict", help="Forecast the loss of one configuration, at one r or several.")


@app.default
def predict(
    fit: Path,
    /,
    *,
    tokens: RequiredTokens,
    width_scale: float | None = None,
    n_unique: float | None = None,
    recurrences: Annotated[list[float] | None, Floats] = None,
    recipe: str | None = None,
    family: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Forecast the loss of one configuration, at one r or several.

    Parameters
    ----------
    fit
        A file that `bayeslaw fit --out` wrote.
    tokens
        Training tokens D.
    width_scale
        Width as s = d_model / 64, of the family's architecture.
    n_unique
        Instead of a width: parameters of a model that runs each of them once.
    recurrences
        r, how often the shared block runs, such as 4; several, such as 1,4, are also held against the first. Default 1.
    recipe
        Whose phi; needed when the fit holds several recipes and no baseline.
    family
        Family of the width (isodepth); default the family that the fitted runs span.
    json
        Print one JSON object.
    """
    from bayeslaw.forecasts import differences, predict_each
    from bayeslaw.posterior import Fit

    made = predict_each(
        Fit.load(fit),
        tokens=tokens,
        recurrences=recurrences or [1],
        width_scale=width_scale,
        n_unique=n_unique,
        recipe=recipe,
        family=family,
    )
    against = differences(made)
    several = len(made) > 1
    for one in made:
        for text in one.notes:
            note(f"note: r = {one.recurrences:g}: {text}" if several else f"note: {text}")
    if json:
        compared = {"differences": [one.as_dict() for one in against]} if several else {}
        print_json({"predictions": [one.as_dict() for one in made], **compared})
        return
    print(*made, *against, sep="\n\n")
