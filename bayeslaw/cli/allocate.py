"""`bayeslaw allocate`: recommend width, tokens, recurrences and recipe for a training budget, or for a loss."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.cli.flags import Json
from bayeslaw.cli.lists import Floats, Integers, OptionalInteger, Texts
from bayeslaw.cli.output import note, own, print_json, print_table, printable, require_page
from bayeslaw.cli.quantities import Bytes, Tokens
from bayeslaw.errors import UsageError

app = App(name="allocate", help="Recommend width, tokens, recurrences and recipe for a training budget, or for a loss.")

COLUMNS = 80

FAR = 0.5
"""Steps of compute, size, tokens or their ratio outside the trained runs from which on a configuration is marked."""


@dataclass(frozen=True, kw_only=True)
class ConstraintFlags:
    """What a run may use up; any of them hold together.

    Parameters
    ----------
    memory
        Bytes for the unique parameters, such as 2GB or 2GiB; embedding and head come on top.
    precision
        Of these parameters: bfloat16 (the default), float32, float16, float8, int8 or int4.
    inference_flops
        Most FLOPs per generated token, at the end of a full context.
    lifetime_tokens
        Tokens to be generated over the model's life, such as 50B: their FLOPs come out of the same budget.
    data_tokens
        Different tokens there are to train on.
    epochs
        How often they may be passed over, once by default.
    d_model
        The only width. Give this or --width-scale.
    width_scale
        The only width in units of 64.
    gpu_hours
        Device hours of training, by the measured speed of the fitted runs; with --flops or instead of it.
    device
        Whose speed, where runs were trained on several.
    """

    memory: Bytes = None
    precision: str | None = None
    inference_flops: float | None = None
    lifetime_tokens: Tokens = None
    data_tokens: Tokens = None
    epochs: float | None = None
    d_model: OptionalInteger = None
    width_scale: float | None = None
    gpu_hours: float | None = None
    device: str | None = None


Constrained = Annotated[ConstraintFlags | None, Parameter(name="*", group=Group("Constraints", sort_key=1))]


@app.default
def allocate(
    fit: Path,
    /,
    *,
    flops: Annotated[list[float] | None, Floats] = None,
    target_loss: float | None = None,
    probability: float | None = None,
    recurrences: Annotated[list[int] | None, Integers] = None,
    recipe: Annotated[list[str] | None, Texts] = None,
    objective: Literal["mean", "quantile", "regret"] | None = None,
    quantile: float | None = None,
    constraints: Constrained = None,
    family: str | None = None,
    flops_rule: Literal["6nd"] | None = None,
    pareto: Annotated[bool, Parameter(negative="")] = False,
    out: Path | None = None,
    as_json: Json = False,
) -> None:
    """Recommend width, tokens, recurrences and recipe for a training budget, or for a loss.

    Parameters
    ----------
    fit
        A file that `bayeslaw fit --out` wrote.
    flops
        Training budget in FLOPs, such as 2.15e19; several, such as 1e18,1e19,1e20, also say how the optimum grows.
    target_loss
        Instead of a budget: the loss to reach, in nats per token, with the least compute.
    probability
        How sure the run's curve has to reach --target-loss, such as 0.9; by default its expectation does.
    recurrences
        The r to choose from, such as 1,2,4,8; default those of the fitted runs.
    recipe
        The recipes to choose from; default all of the fit.
    objective
        What to have least of: the expected loss (mean, the default), an upper quantile of the loss (quantile), or the
        largest regret that any posterior draw gives (regret).
    quantile
        Of --objective quantile, 0.95 by default.
    family
        Architectures to choose from (isodepth); default the family that the fitted runs span.
    flops_rule
        Count C = 6 N D, for runs without an architecture; says how far off that is where it is known.
    pareto
        Also list the configurations that no other beats in loss, unique parameters and inference together.
    out
        Write the decision with its figures to this HTML file.
    as_json
        Print one JSON object.
    """
    from bayeslaw.allocate import allocate as recommend
    from bayeslaw.diagnostics import check
    from bayeslaw.posterior import Fit
    from bayeslaw.targets import target
    from bayeslaw.tradeoffs import growth
    from bayeslaw.tradeoffs import pareto as front_of

    _require(flops, target_loss, probability, objective, quantile, constraints)
    require_page(out, fit)
    bounds = _constraints(constraints)
    posterior = Fit.load(fit)
    options: dict[str, Any] = {
        "recurrences": recurrences, "recipe": recipe, "family": family, "flops_rule": flops_rule, "constraints": bounds,
    }  # fmt: skip
    aim = target(posterior, loss=target_loss, probability=probability, **options) if target_loss is not None else None
    chosen: dict[str, Any] = {"objective": objective or "mean", "quantile": 0.95 if quantile is None else quantile}
    budgets: list[float | None] = [*sorted(set(flops))] if flops else [None]
    if aim is None:
        made = [recommend(posterior, flops=budget, **options, **chosen) for budget in budgets]
    else:
        made = [aim.recommended] if aim.recommended is not None else []
    doubts = check(posterior).messages
    front = front_of(posterior, flops=made[-1].flops, **options) if pareto and made else None
    for text in dict.fromkeys((*doubts, *(aim.notes if aim else ()), *(text for each in made for text in each.notes))):
        note(textwrap.fill(printable(f"note: {text}"), COLUMNS, subsequent_indent="  "))
    if out is not None:
        own("reports.allocation").write_allocation(posterior, made, out, front=front, target=aim, family=family)
        note(f"wrote {out}")
    if as_json:
        made = [replace(each, notes=(*doubts, *each.notes)) for each in made]
        answer = (
            aim.as_dict()
            if aim
            else made[0].as_dict()
            if len(made) == 1
            else {"budgets": [each.as_dict() for each in made], "growth": growth(made)}
        )
        print_json(answer | ({"pareto": [_point(run) for run in front]} if front is not None else {}))
        return
    for each in made:
        if len(made) > 1:
            print(f"{each.flops:.3g} FLOPs")
        _show(each)
    if len(made) > 1:
        print()
        _show_growth(growth(made))
    if front is not None:
        print()
        _show_front(posterior, front)
    if aim is not None:
        print(textwrap.fill(printable(str(aim).splitlines()[0]), COLUMNS))


def _require(
    flops: Sequence[float] | None, target_loss: float | None, probability: float | None, objective: str | None,
    quantile: float | None, constraints: ConstraintFlags | None,
) -> None:  # fmt: skip
    """Refuse flags that mean nothing without, or together with, others."""
    if target_loss is not None:
        for name, value in (("--flops", flops), ("--objective", objective)):
            if value is not None:
                raise UsageError(
                    f"{name} with --target-loss", allowed="one of the two: a loss takes the budget it takes"
                )
    if probability is not None and target_loss is None:
        raise UsageError(f"--probability {probability:g} without --target-loss", allowed="both or neither")
    if quantile is not None and objective != "quantile":
        raise UsageError(f"--quantile {quantile:g} without --objective quantile", allowed="both or neither")
    if constraints is not None and constraints.precision is not None and constraints.memory is None:
        raise UsageError(f"--precision {constraints.precision} without --memory", allowed="both or neither")
    if constraints is not None and constraints.d_model is not None and constraints.width_scale is not None:
        raise UsageError(
            f"--d-model {constraints.d_model} with --width-scale {constraints.width_scale:g}", allowed="one of the two"
        )


def _constraints(given: ConstraintFlags | None) -> Any:
    from bayeslaw.constraints import Constraints

    fields = {name: value for name, value in asdict(given).items() if value is not None} if given else {}
    if (scale := fields.pop("width_scale", None)) is not None:
        if scale * WIDTH_UNIT != round(scale * WIDTH_UNIT):
            raise UsageError(f"--width-scale {scale:g} is a width of {scale * WIDTH_UNIT:g}", allowed="a whole width")
        fields["d_model"] = round(scale * WIDTH_UNIT)
    return Constraints(**fields)


def _show(made: Any) -> None:
    """The options of one budget, and what to do."""
    import numpy as np

    from bayeslaw.sizes import short

    several = len({option.recipe for option in made.options}) > 1
    rows = []
    for option in made.options:
        best, run = option.located, option.trainable
        gap = "" if made.plain in (None, option) else f"{option.against(made.plain)['loss']['mean']:+.4f}"
        name = f"{option.recipe}, {option.recurrences}" if several else str(option.recurrences)
        rows.append(
            (
                name, *(short(float(q)) for q in np.quantile(best.n_unique, [0.5, 0.05, 0.95])),
                short(float(np.median(best.tokens))), f"{option.optimum.loss.mean():.4f}", gap,
                "-" if run.d_model is None else str(run.d_model), short(run.tokens), f"{option.probability_best:.2f}",
            )
        )  # fmt: skip
    first = "recipe, r" if several else "r"
    print_table((first, "N*", "5 %", "95 %", "D*", "loss*", "to r = 1", "width", "tokens", "P(best)"), rows)
    print(textwrap.fill(printable(str(made)), COLUMNS))
    if made.location.cells:
        print(textwrap.fill(f"Here {made.location}.", COLUMNS))


def _show_growth(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        ("recipe", "r", "N* ~ C^", "5 %", "95 %", "D* ~ C^", "5 %", "95 %"),
        (
            (row["recipe"], str(row["recurrences"]),
             *(f"{row[name][key]:.3f}" for name in ("n_unique", "tokens") for key in ("mean", "q05", "q95")))
            for row in rows
        ),
    )  # fmt: skip


def _show_front(fit: Any, front: Sequence[Any]) -> None:
    import numpy as np

    from bayeslaw.outside import distances
    from bayeslaw.sizes import short

    far = []
    for run in front:
        found = distances(
            fit, recurrences=run.recurrences, n_unique=run.n_unique, tokens=run.tokens, flops=run.flops
        )  # fmt: skip
        far.append("*" if any(one.steps > FAR for one in found.values()) else "")

    print_table(
        ("recipe", "r", "width", "parameters", "FLOPs to generate", "tokens", "loss", "5 %", "95 %"),
        (
            (
                run.recipe + mark, str(run.recurrences), "-" if run.d_model is None else str(run.d_model),
                short(run.n_unique), f"{run.inference_flops:.3g}", short(run.tokens), f"{run.loss.mean():.4f}",
                *(f"{q:.4f}" for q in np.quantile(run.loss, [0.05, 0.95])),
            )
            for run, mark in zip(front, far, strict=True)
        ),
    )  # fmt: skip
    if any(far):
        print("* well outside the trained runs, see `bayeslaw predict`")


def _point(run: Any) -> dict[str, Any]:
    from bayeslaw.predict import interval

    return {"recipe": run.recipe, "recurrences": run.recurrences, **run.as_dict(), "loss": interval(run.loss)}
