"""`bayeslaw predict`: forecast the loss of one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bayeslaw.cli.output import note, print_json

app = App(name="predict", help="Forecast the loss of one configuration.")


@app.default
def predict(
    fit: Path,
    /,
    *,
    tokens: float,
    width_scale: float | None = None,
    n_unique: float | None = None,
    recurrences: float = 1,
    recipe: str | None = None,
    family: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Forecast the loss of one configuration.

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
        r, how often the shared block runs.
    recipe
        Whose phi; needed when the fit holds several recipes and no baseline.
    family
        Family of the width (isodepth); default the family that the fitted runs span.
    json
        Print one JSON object.
    """
    from bayeslaw.posterior import Fit
    from bayeslaw.predict import interval
    from bayeslaw.predict import predict as forecast

    made = forecast(
        Fit.load(fit),
        tokens=tokens,
        recurrences=recurrences,
        width_scale=width_scale,
        n_unique=n_unique,
        recipe=recipe,
        family=family,
    )
    for text in made.notes:
        note(f"note: {text}")
    if json:
        print_json({"predictions": [made.as_dict()]})
        return
    for label, draws in (("a new run's loss", made.loss), ("its expectation", made.loss_mean)):
        row = interval(draws)
        print(f"{label}: {row['mean']:.4f} nats/token, 90 % {row['q05']:.4f} to {row['q95']:.4f}")
