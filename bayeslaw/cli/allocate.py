"""`bayeslaw allocate`: recommend width, tokens and recurrences for a training budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from bayeslaw.cli.lists import Integers
from bayeslaw.cli.output import note, print_json, print_table

app = App(name="allocate", help="Recommend width, tokens and recurrences for a training budget.")


@app.default
def allocate(
    fit: Path,
    /,
    *,
    flops: float,
    recurrences: Annotated[list[int] | None, Integers] = None,
    recipe: str | None = None,
    family: str | None = None,
    flops_rule: Literal["6nd"] | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Recommend width, tokens and recurrences for a training budget.

    Parameters
    ----------
    fit
        A file that `bayeslaw fit --out` wrote.
    flops
        Training budget in FLOPs, such as 2.15e19.
    recurrences
        The r to choose from, such as 1,2,4,8; default those of the fitted runs.
    recipe
        Whose phi; needed when the fit holds several recipes and no baseline.
    family
        Architectures to choose from (isodepth); default the family that the fitted runs span.
    flops_rule
        Count C = 6 N D, for runs without an architecture.
    json
        Print one JSON object.
    """
    from bayeslaw.allocate import allocate as recommend
    from bayeslaw.diagnostics import check
    from bayeslaw.posterior import Fit

    posterior = Fit.load(fit)
    result = recommend(
        posterior,
        flops=flops,
        recurrences=recurrences,
        recipe=recipe,
        family=family,
        flops_rule=flops_rule,
    )
    result = replace(result, notes=(*check(posterior).messages, *result.notes))
    for text in result.notes:
        note(f"note: {text}")
    if json:
        print_json(result.as_dict())
        return
    rows = []
    for option in result.options:
        best, trainable = option.optimum, option.trainable
        width = "-" if best.width_scale is None else f"{64 * best.width_scale.mean():.0f}"
        rows.append(
            (
                str(option.recurrences), width, f"{best.n_unique.mean():.3g}", f"{best.tokens.mean():.3g}",
                f"{best.loss.mean():.4f}", "-" if trainable.d_model is None else str(trainable.d_model),
                f"{trainable.tokens:.3g}", f"{option.probability_best:.2f}",
            )
        )  # fmt: skip
    print_table(("r", "width*", "N*", "D*", "loss*", "train width", "tokens", "P(best)"), rows)
    print(result)
