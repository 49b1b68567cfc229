"""`bayeslaw design`: which runs to train next for a purse of compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from bayeslaw.cli import flags
from bayeslaw.cli.lists import Floats, Integers, OptionalInteger, Texts
from bayeslaw.cli.output import keep_input, note, own, print_json, print_table
from bayeslaw.errors import BayeslawError, UsageError
from bayeslaw.files import require_writable
from bayeslaw.plan import Plan, write_plan

if TYPE_CHECKING:
    from bayeslaw.design.candidates import Possible
    from bayeslaw.family import Family
    from bayeslaw.posterior import Fit

app = App(name="design", help="Propose the runs to train next for a purse of compute.")

DELTA = "delta_phi:"


@app.default
def design(
    fit: Path,
    /,
    *,
    purse: float,
    about: Annotated[list[str], Parameter(consume_multiple=True, negative="")],
    recipe: str | None = None,
    recipes: Annotated[list[str] | None, Texts] = None,
    recurrences: Annotated[list[int] | None, Integers] = None,
    widths: Annotated[list[int] | None, Integers] = None,
    budgets: Annotated[list[float] | None, Floats] = None,
    most: OptionalInteger = None,
    until: float | None = None,
    detect: float = 0.1,
    power: float = 0.8,
    preset: str | None = None,
    unrolled_layers: OptionalInteger = None,
    model: flags.Model = None,
    optimizer: flags.Optimizer = None,
    data: flags.Data = None,
    study: str | None = None,
    out: Path | None = None,
    as_json: flags.Json = False,
) -> None:
    """Propose the runs that most reduce, per FLOP, what you are unsure of.

    With --out the proposal is a plan for `bayeslaw sweep run`; --preset, or the flags of `bayeslaw sweep plan`, then
    say how the runs are trained.

    Parameters
    ----------
    fit
        A file that `bayeslaw fit --out` wrote.
    purse
        Training FLOPs for all runs together.
    about
        What is to be told, one or more of: phi; g(R), the log worth of R recurrences; delta_phi:RECIPE, that recipe's
        phi less the baseline's; n_opt(FLOPS) or n_opt(FLOPS,R), the log of the optimal size for a budget;
        regret(FLOPS), what is lost there by not knowing the best configuration.
    recipe
        Whose phi, worth, size or decision; default the baseline.
    recipes
        Recipes of the runs; default those that --about is about. A recipe that the fit does not hold is taken for a
        further one of the kind.
    recurrences
        The r of the runs, such as 1,4; default the trained ones.
    widths
        d_model of the runs; default those of the grid up to 1.4 times the largest trained one.
    budgets
        Training FLOPs of a run; default the trained budgets and one step (a factor 2.15) beyond.
    most
        The most runs.
    until
        Instead of what the purse buys, the cheapest runs after which the sd (or the expected regret) is down to this.
    detect
        With delta_phi of a recipe that the fit does not hold, the difference that is to be declared.
    power
        With which probability it is to be.
    preset
        For the plan: paper, paper-47b, desk, desk-rates or desk-probes.
    unrolled_layers
        For a plan without a preset: layers of the recurrent part, 4 by default.
    study
        MLflow experiment of the plan, by default the preset or design.
    out
        Write the plan to this file.
    as_json
        Print one JSON object.
    """
    fields = flags.given(model, optimizer, data)
    if out is not None:
        keep_input(out, fit, *([fields["corpus"]] if "corpus" in fields else []))
        if preset is None and unrolled_layers is None and not fields:
            raise UsageError(
                f"--out {out}: nothing says how the runs are trained", allowed="--preset, or flags as --seq-len",
                do="name the preset that the runs of the fit are of, or leave --out out to see the proposal alone",
            )  # fmt: skip
        require_writable(out)
        own("trainer.planning")
    from bayeslaw.design.proposal import propose
    from bayeslaw.diagnostics import check
    from bayeslaw.posterior import Fit

    posterior = Fit.load(fit)
    named = [*(recipes or []), *([recipe] if recipe else []), *(t.strip()[len(DELTA) :] for t in about if DELTA in t)]
    new = [name for name in dict.fromkeys(named) if name not in posterior.recipes]
    result = propose(
        posterior, purse=purse, about=about, recipe=recipe, recipes=recipes, recurrences=recurrences, widths=widths,
        budgets=budgets, most=most, until=until, detect=detect, power=power,
        families=_families(posterior, new, fields.get("injection")) if new else None,
    )  # fmt: skip
    for text in (*check(posterior).messages, *result.notes):
        note(f"note: {text}")
    if out is not None and result.runs:
        study = study if study is not None else preset or "design"
        plan = _plan(result.runs, study, preset, unrolled_layers, fields)
        write_plan(plan, out)
        note(f"plan of {len(plan.runs)} runs written to {out}")
    elif out is not None:
        note(f"no run to plan: {out} not written")
    if as_json:
        print_json(result.as_dict())
        return
    if result.runs:
        print_table(
            ("run", "recipe", "r", "width", "tokens", "FLOPs", "alone", *(f"{aim.text} after" for aim in result.aims)),
            (
                (
                    f"{i + 1}{'*' if run.replicates else ''}", run.recipe, str(run.recurrences), str(run.d_model),
                    f"{run.tokens:.4g}", f"{run.flops:.3g}", f"-{100 * result.alone[i]:.1f}%",
                    *(f"{path[i + 1]:.3g}" for path in result.after),
                )
                for i, run in enumerate(result.runs)
            ),
        )  # fmt: skip
    if result.runs:
        print(
            "alone: what a run by itself would take off the sd (for a regret, off the spread of the losses behind it)"
        )
    if any(run.replicates for run in result.runs):
        print("* another seed of a trained configuration")
    for sentence in result.sentences():
        print(sentence)


def _families(fit: Fit, new: Iterable[str], injection: str | None) -> dict[str, Family]:
    """Families of recipes that the fit does not hold: the baseline's, with what a known recipe changes."""
    from bayeslaw.predict import family_of

    base = family_of(fit)
    try:
        presets: Any = own("trainer.presets")
    except BayeslawError:
        note("note: the trainer is not installed, so new recipes are taken to have the baseline's network")
        return {}
    out = {}
    most = base.unrolled_layers
    for name in new:
        if doubt := presets.mistyped(name):
            note(f"warning: {doubt}")
        changed = presets.recipe_fields(name, most)
        kept = changed.get("backprop_recurrences")
        out[name] = dataclasses.replace(
            base,
            injection=injection or changed.get("injection", base.injection),
            backprop_fraction=kept / most if kept else base.backprop_fraction,
        )
    return out


def _plan(
    runs: Iterable[Possible], study: str, preset: str | None, unrolled_layers: int | None, fields: dict[str, Any]
) -> Plan:
    """The plan of a proposal; refused where its runs would not be of the family that the fit's are of."""
    trainer_sweep = own("trainer.sweep")
    runs = tuple(runs)
    cells = [
        {
            "recipe": run.recipe, "recurrences": run.recurrences, "d_model": run.d_model, "tokens": run.tokens,
            "budget": run.budget, "seed": run.seed,
        }
        for run in runs
    ]  # fmt: skip
    try:
        plan: Plan = own("trainer.planning").plan_cells(
            cells, study=study, preset_name=preset, unrolled_layers=unrolled_layers, **fields
        )
    except UsageError as error:
        raise UsageError(
            f"the proposed runs cannot be planned with these settings: {error.what}", allowed=error.allowed,
            do="give the settings of the fit's runs: their --preset, or depth, --seq-len, --vocab-size, --head-size "
            "and a --batch-tokens that divides the tokens",
        ) from error  # fmt: skip
    config = own("trainer.config").TrainConfig
    for run, planned in zip(runs, plan.runs, strict=True):
        mine, theirs = config.from_dict(planned.config).architecture, run.architecture
        differing = [
            f"{name} {getattr(mine, name)} and not {getattr(theirs, name)}"
            for name in (field.name for field in dataclasses.fields(theirs))
            if getattr(mine, name) != getattr(theirs, name)
        ]
        if differing:
            raise UsageError(
                f"the planned {run.recipe} runs with r = {run.recurrences} would not be of the family of the fit's "
                f"runs: {', '.join(differing)}",
                allowed="the depth, context, vocabulary and injection that the fit is about",
                do=f"choose another --preset than {preset}" if preset else "name its --preset, or set these by flags",
            )
    for corpus in trainer_sweep.unread(plan):
        note(
            f"note: the corpus {corpus} is not on this machine; where the plan is run it is downloaded, "
            "unless you plan with --corpus PATH (text, or a folder of packed shards)"
        )
    return plan
