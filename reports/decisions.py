"""The cards that decide: iso-FLOP curves, and the optimum along the budgets."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.predict import family_of, law_loss
from bayeslaw.sizes import Sizes, along, plain_sizes, size_at, sizes_of
from reports import figures, text
from reports.cards import Body, Table
from reports.drawing import Band, plain
from reports.study import Study, whole_recurrences
from reports.verdict import recommendation

Array = NDArray[np.float64]

MARGIN = 1.3
"""A curve runs so much past the smallest and largest run of its panel."""

POINTS = 60
"""Points of a curve."""

REACH = 10.0
"""The frontier is drawn up to so many times the largest trained budget."""


def iso_flop(study: Study, recipe: str) -> Body:
    """Curves of loss along each budget, with the measured runs."""
    # What forbids a recommendation forbids these curves, and says it best.
    study.recommendation(recipe)
    runs = study.runs_of(recipe).reset_index(drop=True)
    levels, level, grid = study.levels(runs)
    panels = [_panel(study, recipe, runs, r, levels, level) for r in whole_recurrences(runs)]
    takeaway = _closeness(study, recipe)
    if not grid:
        takeaway += (
            f" The runs are no iso-FLOP grid: curves at {len(levels)} budgets over their range, each run in the colour "
            "of the nearest and not bound to lie on it."
        )
    if study.flops_rule is None and not study.records_flops:
        takeaway += " The runs record no FLOPs: their budgets are taken to be 6 N D."
    hidden = int((~runs["recurrences"].isin([panel.recurrences for panel in panels])).sum())
    if hidden:
        takeaway += f" {hidden} runs whose r is no whole number have no panel."
    return Body(takeaway=takeaway, figure=figures.iso_flop(panels, levels.tolist()))


def frontier(study: Study, recipe: str) -> Body:
    """N* and D* for each r over the trained budgets and beyond."""
    best = study.recommendation(recipe)
    spent = study.spent(study.runs_of(recipe))
    least, most = float(spent.min()), float(spent.max())
    points = int(np.clip(np.ceil(3 * np.log10(most / least)), 1, 8)) + 1
    inside = np.unique(np.geomspace(least, most, points))
    budgets = np.concatenate([inside, np.geomspace(most, REACH * most, 4)[1:]])
    allocations = [study.allocation(study.thinned, recipe, float(budget)) for budget in budgets]
    paths, rows = [], []
    for place, option in enumerate(best.options):
        n_unique, tokens = (
            np.stack([getattr(allocation.options[place].located, name) for allocation in allocations], axis=1)
            for name in ("n_unique", "tokens")
        )
        paths.append(
            figures.Path(
                recurrences=option.recurrences,
                n_unique=Band.median(budgets, n_unique),
                tokens=Band.median(budgets, tokens),
            )
        )
        rows.append(
            (
                f"r = {option.recurrences}",
                text.quantity_and_range(option.located.n_unique),
                text.quantity_and_range(option.located.tokens),
                text.mean_and_range(option.optimum.loss, ""),
                _growth(n_unique, budgets, len(inside)),
                text.probability(option.probability_best, len(option.optimum.loss)),
            )
        )
    takeaway = " ".join([recommendation(best), *(f"Note: {note}." for note in best.notes)])
    header = ("", "N* (parameters)", "D* (tokens)", "loss* (nats/token)", "N* grows as C to the", "P(best r)")
    return Body(
        takeaway=takeaway,
        figure=figures.frontier(paths, trained=most),
        table=Table(
            header=header,
            rows=tuple(rows),
            note=f"At {text.flops(best.flops)} FLOPs, the largest trained budget, with 90 % intervals; N* and D* are "
            "medians, the rest means.",
        ),
    )


def _panel(
    study: Study,
    recipe: str,
    runs: pd.DataFrame,
    r: int,
    levels: Array,
    level: NDArray[np.int64],
) -> figures.IsoPanel:
    draws = study.thinned.draws(recipe, recurrences=r)
    here = (runs["recurrences"] == r).to_numpy()
    chosen, at = runs[here], level[here]
    n_unique, loss = chosen["n_unique"].to_numpy(dtype=float), chosen["loss"].to_numpy(dtype=float)
    curves, sizes = {}, _sizes(study, recipe, r)
    for place in np.unique(at):
        measured = n_unique[at == place]
        shown = np.geomspace(measured.min() / MARGIN, measured.max() * MARGIN, POINTS)
        size = size_at(sizes.n_unique, shown)
        affordable = levels[place] / along(sizes.flops_per_token, size)
        curve = law_loss(study.fit.law, draws, along(sizes.n_once, size), along(sizes.n_rec, size), r, affordable)
        curves[int(place)] = Band.mean(shown, curve)
    tokens = chosen["tokens"].to_numpy(dtype=float)
    labels = [
        f"{plain(name)}<br>{plain(recipe_name)}<br>{text.quantity(n)} parameters, {text.quantity(d)} "
        f"tokens<br>{value:.4f} nats/token (measured)"
        for name, recipe_name, n, d, value in zip(
            chosen["run_id"].astype(str), chosen["recipe"].astype(str), n_unique, tokens, loss, strict=True
        )
    ]
    return figures.IsoPanel(recurrences=r, curves=curves, n_unique=n_unique, loss=loss, level=at, labels=labels)


def _sizes(study: Study, recipe: str, r: int) -> Sizes:
    if study.flops_rule is not None:
        return plain_sizes()
    return sizes_of(family_of(study.fit, study.family, recipe=recipe), r, **study.fit.convention)


def _closeness(study: Study, recipe: str) -> str:
    """How near the law's curves come to the runs."""
    fit, inputs = study.thinned, study.inputs
    rows = np.flatnonzero(study.rows_of(recipe))
    miss = np.empty(len(rows))
    for r in np.unique(inputs.recurrences[rows]):
        here = inputs.recurrences[rows] == r
        n_once, n_rec, tokens = (values[rows[here]] for values in (inputs.n_once, inputs.n_rec, inputs.tokens))
        curve = law_loss(fit.law, fit.draws(recipe, recurrences=float(r)), n_once, n_rec, r, tokens).mean(axis=0)
        miss[here] = np.abs(inputs.loss[rows[here]] - curve)
    worst = fit.runs["run_id"].iloc[int(rows[miss.argmax()])]
    return (
        f"Half of the {len(rows)} runs lie within {np.median(miss):.4f} nats/token of the law's curve; the farthest, "
        f"{worst}, is {miss.max():.4f} away."
    )


def _growth(optima: Array, budgets: Array, trained: int) -> str:
    """Slope of log N* over log C between the first and the last trained budget (the whole range where there is one)."""
    last = trained - 1 if trained > 1 else len(budgets) - 1
    slope = np.log(optima[:, last] / optima[:, 0]) / np.log(budgets[last] / budgets[0])
    return text.mean_and_range(slope, "")
