"""The page of a comparison: models by what they predict, recipes by what they lose and what a recurrence is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from bayeslaw.compare.comparison import Comparison
from bayeslaw.compare.matched import MATCHINGS
from bayeslaw.compare.parts import BUDGET, CELL, FORWARD
from bayeslaw.compare.readings import held_by_intervals, readings
from bayeslaw.compare.recipes import RecipeComparison
from bayeslaw.errors import BayeslawError
from bayeslaw.ranking import HIGH_PARETO_K
from bayeslaw.scores import Scores
from reports import cards, model_figures, text
from reports.build import page, write_page
from reports.cards import Body, Card, Table
from reports.drawing import plain
from reports.verdict import Verdict

_LOO = (
    "elpd is the expected log predictive density of the log losses, each run predicted from all the others (PSIS-LOO); "
    "differences are to the best model, and two standard errors are the least that tells models apart. Weights are "
    "those of a mixture that predicts best (stacking). Parameters count the free numbers; the simplest of the models "
    f"that tie is preferred. A run with Pareto k above {HIGH_PARETO_K:g} decides so much that leaving it out is only "
    "roughly known."
)
_FORWARD = (
    "Each model is fitted to the lower budgets and forecasts all runs of the higher ones. Log density rewards being "
    "near and not claiming to be surer than one is; CRPS is the distance of forecast and loss. The 50 and 90 % "
    "intervals should hold 50 and 90 % of the runs (dashed line): fewer means too sure. The table is of the forecast "
    "from the lower two thirds of the budgets; the standard errors of its differences take the runs of a cell together."
)
_GROUPS = (
    "As leave-one-out, but a whole group of runs at a time: a cell has one recipe, budget and r. Models with effects "
    "of cells have no neighbour left to borrow from there. Log density per run, differences to the best model."
)
_MATCHED = (
    "Runs that differ in nothing but the recipe, pair by pair; below 0 the recipe loses less. No law is involved. "
    "Equal training FLOPs and equal tokens are two questions where a recipe changes what a token costs. Intervals "
    "(90 %) take the pairs of a cell (budget, r) together."
)
_WORTH = (
    "log g(r), for other recipes less the baseline's, under each structure: above 0 a block run r times is worth more "
    "by the recipe (for the baseline: than a block run once). Mean and 90 % interval. Where structures disagree on the "
    "side of 0, the runs do not settle it; effects of cells take the level of the loss out of the evidence and leave "
    "the place of the minima alone."
)
_RECORD = "All that decides the numbers above; the same source, options and seed give them again."
_STANDING = (
    "Each recipe and r at the width that is best for it by every posterior draw of the first structure. P is the "
    "probability that its loss is the lower one: against the baseline at the same r, against the plain model (r = 1), "
    "and against the plain model that costs the same inference per token."
)


def comparison_page(
    found: Comparison,
    recipes: RecipeComparison | None = None,
    *,
    doubts: Sequence[str] = (),
    made: Mapping[str, str] | None = None,
    title: str | None = None,
) -> str:
    """The page as one HTML text.

    Parameters
    ----------
    found : Comparison
    recipes : optional
        A comparison of recipes, which then leads.
    doubts : sequence of str
        Why the runs may not compare; shown first.
    made : mapping of str to str, optional
        What the numbers rest on, such as the command and the data's hash; shown last.
    title : str, optional
    """
    said = readings(found)
    # The rest stands at the cards.
    leading = recipes.sentences[: len(recipes.recipes)] if recipes else ()
    findings = (*leading, *said["loo"][:1], *said["forward"][:1], *said["disagreement"][:1], *said["mind"])
    heading = title or f"{'Recipes and models' if recipes else 'Models'} compared: {found.source}"
    judged = Verdict(doubts=tuple(map(text.capital, doubts)), findings=findings, advice=())
    return page(heading, judged, make_cards(found, recipes, made))


def write_comparison(
    found: Comparison,
    path: str | Path,
    recipes: RecipeComparison | None = None,
    *,
    doubts: Sequence[str] = (),
    made: Mapping[str, str] | None = None,
    title: str | None = None,
) -> None:
    """Write the page, whole or not at all; parameters as for `comparison_page`.

    Raises
    ------
    BayeslawError
        The file cannot be written.
    """
    write_page(comparison_page(found, recipes, doubts=doubts, made=made, title=title), path)


def make_cards(
    found: Comparison, recipes: RecipeComparison | None = None, made: Mapping[str, str] | None = None
) -> tuple[Card, ...]:
    """The cards, those on recipes first, what the numbers rest on last."""
    out = list(recipe_cards(recipes)) if recipes else []
    out.append(cards.make("loo", "Each run predicted from the others", _LOO, partial(interpolation, found)))
    out.append(cards.make("forward", "Higher budgets forecast from lower ones", _FORWARD, partial(forecast, found)))
    if found.of(CELL) or found.of(BUDGET):
        out.append(cards.make("groups", "Whole groups left out", _GROUPS, partial(groups, found)))
    if made:
        out.append(cards.make("record", "How this was made", _RECORD, partial(_made, found, made)))
    return tuple(out)


def _made(found: Comparison, made: Mapping[str, str]) -> Body:
    rows = (*made.items(), ("models", "; ".join(found.names)))
    return Body(
        takeaway=f"{found.n_runs} runs of {found.source}, {len(found.names)} models.",
        table=Table(header=("what", "value"), rows=rows, text_columns=2),
    )


def interpolation(found: Comparison) -> Body:
    """Models by PSIS-LOO."""
    ranks = found.ranks
    rows = tuple(
        (
            name,
            f"{row['elpd']:.1f}", f"{row['elpd_diff']:.1f}", f"{row['se_diff']:.1f}", f"{row['weight']:.2f}",
            f"{row['complexity']:.0f}", f"{row['high_pareto_k']:.0f}",
            "yes" if found.models[name].passed else "no",
        )
        for name, row in ranks.items()
    )  # fmt: skip
    panel = model_figures.Points(
        title="PSIS-LOO",
        unit="elpd less the best's (nats, all runs)",
        value=[row["elpd_diff"] for row in ranks.values()],
        se=[row["se_diff"] for row in ranks.values()],
    )
    tied = len(found.ranking.tied)
    takeaway = f"{found.preferred} is preferred: " + (
        "no other predicts these runs as well." if tied == 1
        else f"the simplest of {tied} models that these runs do not tell apart."
    )  # fmt: skip
    return Body(
        takeaway=takeaway,
        figure=model_figures.differences(found.names, [panel]),
        table=Table(
            header=("model", "elpd", "difference", "se", "weight", "parameters", "runs of high k", "converged"),
            rows=rows,
            note=" ".join([*readings(found)["loo"][1:], *map(text.sentence, found.notes)]),
        ),
    )


def forecast(found: Comparison) -> Body:
    """Models by forward chaining."""
    if not found.of(FORWARD):
        raise BayeslawError(next((note for note in found.notes if "forward chaining" in note), "no forecast was made"))
    places = found.of(FORWARD)
    told = {name: [found.models[name].forecasts[place].scores for place in places] for name in found.names}
    figure = model_figures.origins(
        [found.splits[place].trained_to for place in places],
        {name: [each.log_density for each in scores] for name, scores in told.items()},
        {name: [each.cover90 for each in scores] for name, scores in told.items()},
    )
    differences = found.differences(FORWARD)
    if not differences:
        return Body(takeaway="The forecast from the lower two thirds of the budgets could not be made.", figure=figure)
    order = sorted(found.names, key=lambda name: -differences[name].mean)
    rows = []
    for name in order:
        scores = found.scores(name, FORWARD)
        assert scores is not None
        rows.append((name, *_scores(scores), *_difference(differences[name].mean, differences[name].se)))
    assert found.main is not None
    best = found.scores(order[0], FORWARD)
    assert best is not None
    hidden = len(found.names) - model_figures.MOST_LINES
    return Body(
        takeaway=f"Beyond {text.flops(found.main.trained_to)} FLOPs {order[0]} forecasts {best.runs} runs best by "
        f"log density: RMSE {best.rmse:.4f} nats/token, and its {held_by_intervals(best)}.",
        figure=figure,
        table=Table(
            header=("model", "RMSE (nats)", "log density", "CRPS (nats)", "in 50 %", "in 90 %", "difference", "se"),
            rows=tuple(rows),
            note=" ".join(
                [
                    *readings(found)["forward"][1:],
                    *readings(found)["disagreement"],
                    *(
                        [f"The figure shows the {model_figures.MOST_LINES} best by leave-one-out."]
                        if hidden > 0
                        else []
                    ),
                ]
            ),
        ),
    )


def groups(found: Comparison) -> Body:
    """Models by groups left out in turn."""
    kinds = [kind for kind in (CELL, BUDGET) if found.of(kind)]
    panels, header, best = [], ["model"], []
    columns: dict[str, list[str]] = {name: [] for name in found.names}
    for kind in kinds:
        differences = found.differences(kind)
        panels.append(
            model_figures.Points(
                title=f"one {kind} left out", unit="log density less the best's (nats, a run)",
                value=[differences[name].mean for name in found.names],
                se=[differences[name].se for name in found.names],
            )
        )  # fmt: skip
        header += [f"{kind}: log density", "RMSE (nats)", "in 90 %", "difference", "se"]
        best.append(f"{max(differences, key=lambda name, d=differences: d[name].mean)} with a {kind} left out")  # type: ignore[misc]
        for name in found.names:
            scores = found.scores(name, kind)
            assert scores is not None
            columns[name] += [
                f"{scores.log_density:.2f}", f"{scores.rmse:.4f}", f"{scores.cover90:.2f}",
                *_difference(differences[name].mean, differences[name].se),
            ]  # fmt: skip
    return Body(
        takeaway=f"Best predictions by log density: {text.listing(best)}.",
        figure=model_figures.differences(found.names, panels),
        table=Table(header=tuple(header), rows=tuple((name, *cells) for name, cells in columns.items())),
    )


def recipe_cards(found: RecipeComparison) -> list[Card]:
    """A card for each table of a comparison of recipes: matched runs, then recurrences, then losses at a budget."""
    kinds: list[tuple[str, str, Callable[[], go.Figure | None]]] = []
    for recipe in found.recipes:
        kinds.append(("matched", _MATCHED, partial(_matched, found, recipe)))
    if any(not one.reason for one in found.structures):
        for recipe in (found.anchor, *found.recipes):
            kinds.append(("recurrence", _WORTH, partial(_worth, found, recipe)))
    kinds += [("standing", _STANDING, lambda: None)] * len(found.standings)

    def body(place: int, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Body:
        return Body(
            takeaway=found.sentences[place],
            figure=kinds[place][2](),
            table=Table(header=header, rows=tuple(rows), text_columns=2),
        )

    made = [
        cards.make(f"{kind}-{place + 1}", text.capital(title), how, partial(body, place, header, rows))
        for place, ((kind, how, _), (title, (header, rows))) in enumerate(
            zip(kinds, found.tables().items(), strict=True)
        )
    ]
    if made and found.notes and (table := made[-1].table) is not None:
        made[-1] = replace(made[-1], table=replace(table, note=" ".join(found.notes)))
    return made


def _matched(found: RecipeComparison, recipe: str) -> go.Figure | None:
    """Differences between matched runs by r, under each way of matching."""
    spans = []
    for gain in (gain for gain in found.matched if gain.recipe == recipe and gain.overall is not None):
        assert gain.overall is not None
        told = {"all r": gain.overall, **{f"r = {r:g}": one for r, one in gain.by_recurrences.items()}}
        spans += [
            model_figures.Span(
                label=label, group=f"same {MATCHINGS[gain.matching]}", mean=one.mean, low=one.q05, high=one.q95
            )
            for label, one in told.items()
        ]
    unit = f"loss less that of {plain(found.anchor)} (nats/token)"
    return model_figures.spans(spans, unit=unit, what="matched runs") if spans else None


def _worth(found: RecipeComparison, recipe: str) -> go.Figure | None:
    """log g(r) by structure: less that of the anchor, of the anchor itself as it is."""
    own = recipe == found.anchor
    spans = [
        model_figures.Span(label=one.structure, group=f"r = {r}", mean=row["mean"], low=row["q05"], high=row["q95"])
        for one in found.structures
        for r, row in (one.log_worth if own else one.log_worth_difference).get(recipe, {}).items()
    ]
    unit = "log g(r)" if own else f"log g(r) less that of {plain(found.anchor)}"
    return model_figures.spans(spans, unit=unit, what="structure") if spans else None


def _scores(scores: Scores) -> tuple[str, ...]:
    return (
        f"{scores.rmse:.4f}", f"{scores.log_density:.2f}", f"{scores.crps:.4f}", f"{scores.cover50:.2f}",
        f"{scores.cover90:.2f}",
    )  # fmt: skip


def _difference(mean: float, se: float) -> tuple[str, str]:
    return f"{mean:.2f}", f"{se:.2f}" if np.isfinite(se) else "–"
