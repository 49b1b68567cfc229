"""How much partial pooling itself decides: the same fit under other scales of pooling, and without any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd

from bayeslaw.diagnostics import check, phi_differences
from bayeslaw.errors import UsageError
from bayeslaw.fit import fit
from bayeslaw.inputs import inputs_of
from bayeslaw.priors import DEFAULT, HalfNormal, Priors
from bayeslaw.runs import RunTable
from bayeslaw.spec import Spec
from bayeslaw.structure import structure_of

SCALES = (0.1, 0.3, 1.0)
"""Half-normal scales of the spread between levels that are tried: few levels barely inform it."""


def require_pooled(table: RunTable, *, priors: Priors = DEFAULT, **settings: Any) -> tuple[str, ...]:
    """The recurrence map's parameters that a fit would pool partially.

    Raises
    ------
    UsageError
        There is none.
    """
    spec = Spec.of(**settings)
    structure = structure_of(inputs_of(table.runs, injection_in=spec.counted_in), spec, priors)
    pooled = tuple(name for name in structure.law.map.parameters if f"{name}_spread" in structure.hyper)
    if not pooled:
        raise UsageError(
            "--pool-sensitivity without a partially pooled parameter of the recurrence map",
            allowed="several recipes with looped runs, and a map with parameters",
            do="leave it out",
        )
    return pooled


def pooling_sensitivity(
    table: RunTable,
    *,
    priors: Priors = DEFAULT,
    progress: Callable[[str], None] = lambda message: None,
    **settings: Any,
) -> pd.DataFrame:
    """Posterior of the map's parameters by recipe under half-normal spreads of several scales, and unpooled.

    Parameters
    ----------
    table : RunTable
    priors : Priors
    progress : callable
        Told in a few words what is being done.
    **settings
        As `bayeslaw.fit.fit`.

    Returns
    -------
    pandas.DataFrame, one row for each pooling and parameter: pooling, parameter, mean, q05, q95, p_gt_0 (P(> 0),
    differences from the baseline only), passed.

    Raises
    ------
    UsageError
        The table has one recipe, or the law no map parameter, or it is not partially pooled.
    """
    rows: list[tuple[Any, ...]] = []
    first = require_pooled(table, priors=priors, **{k: v for k, v in settings.items() if k != "allow_prior_dominated"})
    for scale in (*SCALES, None):
        name = "unpooled" if scale is None else f"half-normal {scale:g}"
        progress(f"pooling: {name}")
        if scale is None:
            changed = {"pooling": {**settings.get("pooling", {}), **dict.fromkeys(first, "separate")}}
            result = fit(table, priors=priors, **{**settings, **changed})
        else:
            spread = HalfNormal(scale=scale, reason="one of the scales tried for the sensitivity to pooling")
            result = fit(table, priors=replace(priors, name=name, spread=spread), **settings)
        verdict = check(result)
        for parameter in first:
            for recipe in result.recipes:
                row = verdict.parameters.loc[f"{parameter}[{recipe}]"]
                rows.append((name, f"{parameter}[{recipe}]", row["mean"], row["q05"], row["q95"], None, verdict.passed))
            for recipe, difference in phi_differences(result, parameter).items():
                label = f"{parameter}[{recipe}] - {parameter}[{result.choose_recipe(None)}]"
                values = (difference[key] for key in ("mean", "q05", "q95", "p_gt_0"))
                rows.append((name, label, *values, verdict.passed))
    return pd.DataFrame(rows, columns=["pooling", "parameter", "mean", "q05", "q95", "p_gt_0", "passed"])
