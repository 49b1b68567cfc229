"""The card that says what a recurrence is worth: measured, or assumed by the map, or left open by the law."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bayeslaw.diagnostics import phi_differences
from bayeslaw.laws import CORE
from reports import figures, text
from reports.cards import Body, Table
from reports.drawing import Band
from reports.recurrences import Worth
from reports.study import Study

_SCALES = (
    "Both scales are logarithmic, so the slope of a curve is its exponent: along the upper dashed line every run of a "
    "block is as good as a new block, along the lower one repeating it is worth nothing."
)
_POWER = (
    "The exponent phi says how much of a unique block each further run of the same block is worth: r runs do the work "
    "of r^phi unique blocks. At 1 (dashed line) a recurrence is as good as a new block, at 0 it is worth nothing. The "
    f"dotted curve is what was assumed before any run was seen. The second panel shows the same as "
    f"unique blocks g(r). {_SCALES}"
)
_MAPPED = (
    "g(r) is how many unique blocks r runs of one block are worth. Line and band: median and 90 % interval; points: "
    f"the trained r; dotted: what was assumed before any run was seen. {_SCALES} The average exponent log g / log r "
    "says what a recurrence is worth from 1 to r, d log g / d log r what one more is worth at r: 1 as much as a unique "
    "block, 0 nothing."
)
_PIECES = " Between the trained r this map is straight: d log g / d log r is the slope of the piece that ends at r."
_ASSUMED = (
    "A map with parameters measures what a recurrence is worth: fit with --map power, or with --map free for an "
    "exponent of each r."
)
_APART = (
    "Each architecture (a recipe with one r) has a law of its own by its own N, as a fit of plain models would. "
    "Laws with a recurrence map (--law additive or coupled) join architectures of different r, where there are any, "
    "and measure a worth."
)
ASSUMPTIONS = {
    "none": "a recurrence is worth nothing",
    "full": "a recurrence is worth as much as a unique block",
    "unrolled": "r runs of the recurrent part make every parameter of the model worth r, prelude and coda too",
}
"""What the maps without parameters take for granted."""


def how_to_read(study: Study) -> str:
    """What the card's figure and table mean."""
    if study.fit.spec.law == "chinchilla":
        return _APART
    if not study.worths:
        return _ASSUMED
    if "phi" in study.fit.law.parameters:
        return _POWER
    return _MAPPED + (_PIECES if study.fit.law.map.name == "free" else "")


def unmeasured(study: Study) -> str:
    """Why a fit without `Study.worths` says nothing about recurrences, in a sentence or two."""
    if not study.looped:
        return (
            "No run repeats a block (r = 1 throughout): this is a plain law of N and D, which says nothing about "
            "recurrences."
        )
    if study.fit.spec.law == "chinchilla":
        return (
            "Each architecture has a law of its own: this fit assumes nothing about recurrences and gives no worth of "
            "one."
        )
    name = study.fit.law.map.name
    return (
        f"This fit does not measure what a recurrence is worth: its map “{name}” assumes that {ASSUMPTIONS[name]} "
        f"({study.fit.law.map.equation})."
    )


def worth(study: Study) -> Body:
    """What recurrences are worth by each recipe."""
    if not study.worths:
        apart = study.fit.spec.law == "chinchilla"
        return Body(takeaway=unmeasured(study), table=_architectures(study) if apart else None)
    return _power(study) if "phi" in study.fit.law.parameters else _mapped(study)


def _power(study: Study) -> Body:
    """Posterior of phi beside its prior, and what follows of it."""
    told = study.worths
    draws = {recipe: each.exponent for recipe, each in told.items()}
    most = max(each.most for each in told.values())
    differences = phi_differences(study.fit) if len(told) > 1 else {}
    rows = []
    for recipe, phi in draws.items():
        row = [
            _name(study, recipe),
            text.mean_and_range(phi, ""),
            text.probability(float((phi < 1).mean()), len(phi)),
            text.probability(float((phi > 0).mean()), len(phi)),
            text.mean_and_range(told[recipe].at(2.0), ""),
        ]
        if most != 2:
            row.append(text.mean_and_range(told[recipe].at(most), ""))
        if differences:
            row.append(_difference(differences.get(recipe)))
        rows.append(tuple(row))
    header = ["recipe", "phi", "P(phi < 1)", "P(phi > 0)", "unique blocks, r = 2"]
    header += [f"unique blocks, r = {most:g}"] if most != 2 else []
    header += [f"phi less that of {study.fit.choose_recipe(None)}"] if differences else []
    parts = [
        f"{f'{recipe}: ' if len(told) > 1 else ''}phi = {text.mean_and_range(phi)}" for recipe, phi in draws.items()
    ]
    first = next(iter(told.values())).prior
    return Body(
        takeaway=f"{'; '.join(parts)}. {_narrowed(study)}",
        figure=figures.phi(draws, first.exponent, _curves(told)),
        table=Table(header=tuple(header), rows=tuple(rows), note="Mean and 90 % interval."),
    )


def _mapped(study: Study) -> Body:
    """Worth, average and local exponent at each trained r."""
    told = study.worths
    several = len(told) > 1
    anchor = study.fit.choose_recipe(None) if several else ""
    rows = []
    for recipe, each in told.items():
        for r in each.trained:
            exponents = each.exponents(r)
            row = [
                *([recipe] if several else []),
                f"{r:g}",
                text.mean_and_range(each.blocks[r], ""),
                text.mean_and_range(exponents, ""),
                text.mean_and_range(each.growth[r], ""),
                text.probability(float((exponents < 1).mean()), len(exponents)),
            ]
            if several:
                base = told[anchor]
                same = recipe == anchor or r not in base.blocks
                row.append("–" if same else text.mean_and_range(exponents - base.exponents(r), "", sign="+"))
            rows.append(tuple(row))
    header = ["recipe"] if several else []
    header += ["r", "g(r), unique blocks", "log g / log r", "d log g / d log r", f"P(g{text.GAP}<{text.GAP}r)"]
    header += [f"log g / log r less that of {anchor}"] if several else []
    parts = [
        f"{f'{recipe}: ' if several else ''}a block run {each.most:g} times is worth "
        f"{text.mean_and_range(each.blocks[each.most])} unique blocks"
        for recipe, each in told.items()
    ]
    first = next(iter(told.values())).prior
    curve = first.curve()
    return Body(
        takeaway=f"{'; '.join(parts) if several else text.capital(parts[0])}. {_narrowed(study)}",
        figure=figures.worth(_curves(told), Band.median(*(curve or _at_trained(first)))),
        table=Table(header=tuple(header), rows=tuple(rows), text_columns=1 + several, note="Mean and 90 % interval."),
    )


def _architectures(study: Study) -> Table:
    """The law of each architecture."""
    posterior = study.fit.posterior
    rows = []
    for name in posterior["architecture"].to_numpy():
        values = {each: posterior[each].sel(architecture=name).values.ravel() for each in CORE}
        rows.append(
            (
                str(name),
                *(
                    text.figure_and_range(values[each]) if each in ("A", "B") else text.mean_and_range(values[each], "")
                    for each in ("E", "A", "alpha", "B", "beta")
                ),
            )
        )
    header = ("architecture", "E (nats/token)", "A", "alpha", "B", "beta")
    return Table(header=header, rows=tuple(rows), note="Mean and 90 % interval; of A and B the median.")


def _curves(told: Mapping[str, Worth]) -> list[figures.WorthCurve]:
    curves = []
    for recipe, each in told.items():
        curve = each.curve()
        curves.append(
            figures.WorthCurve(
                name=recipe if len(told) > 1 else "",
                curve=None if curve is None else Band.median(*curve),
                trained=Band.median(*_at_trained(each)),
            )
        )
    return curves


def _at_trained(each: Worth) -> tuple[np.ndarray, np.ndarray]:
    return np.array(each.trained), np.stack([each.blocks[r] for r in each.trained], axis=1)


def _narrowed(study: Study) -> str:
    """What the runs added to the prior."""
    if not study.looped:
        return "No run loops: this is the prior."
    what = "the prior" if "phi" in study.fit.law.parameters else "the prior of the average exponent"
    left = text.listing(f"{100 * each.narrowed:.0f}{text.GAP}%" for each in study.worths.values())
    return f"The data narrowed {what} to {left} of its width."


def _name(study: Study, recipe: str) -> str:
    return recipe if len(study.worths) == len(study.fit.recipes) else "all recipes"


def _difference(row: Mapping[str, float] | None) -> str:
    if row is None:
        return "–"
    decimals = text.decimals_for(row["sd"])
    return f"{row['mean']:+.{decimals}f} ({row['q05']:+.{decimals}f} to {row['q95']:+.{decimals}f})"
