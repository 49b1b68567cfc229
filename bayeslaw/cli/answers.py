"""What `bayeslaw fit` answers: the JSON object, and the tables for people."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.cli.output import print_table
from bayeslaw.diagnostics import QUANTILES, CheckResult, phi_differences, worth_differences
from bayeslaw.posterior import Fit
from bayeslaw.schema import STEP
from bayeslaw.worth import elasticity, worth

SUMMARY = ("mean", "sd", "q05", "q50", "q95", "ess_bulk", "ess_tail", "r_hat")


def as_answer(result: Fit, verdict: CheckResult) -> dict[str, Any]:
    """The object that ``fit --json`` prints."""
    record, spec = result.attrs, result.spec
    several = len(result.recipes) > 1
    answer = {
        "source": record["source"],
        "n_runs": len(result.runs),
        "law": spec.law,
        "map": result.law.map.name,
        "deviation": spec.deviation,
        "drift": _drift(result),
        "noise": spec.noise,
        "outliers": spec.outliers,
        "error_scale": spec.error_scale,
        "pooling": dict(spec.pooling),
        "injection_in": spec.injection_in,
        "parameters": parameters(verdict, single=result.recipes[0] if not several else None),
        "worth": {recipe: _by_r(worth(result, recipe=recipe)) for recipe in result.recipes},
        "elasticity": {recipe: _by_r(elasticity(result, recipe=recipe)) for recipe in result.recipes},
        "diagnostics": verdict.as_dict(),
        "data_hash": record["data_hash"],
        "excluded": record["excluded"],
        "notes": record["notes"],
        "versions": record["versions"],
        "seconds": record["seconds"],
    }
    if several:
        answer["phi_difference"] = phi_differences(result)
        answer["log_worth_difference"] = worth_differences(result)
    else:
        answer["worth"], answer["elasticity"] = (
            answer["worth"][result.recipes[0]],
            answer["elasticity"][result.recipes[0]],
        )
    return answer


def _drift(result: Fit) -> dict[str, Any] | None:
    """Standard deviations of the drift in log loss a step beyond the edge; None where there is none."""
    if not result.spec.drift:
        return None
    found = result.data["drift"].to_dataset()
    names = {"sd_shared": "scale", "sd_each": "scale_each"}
    return {
        "edge": result.attrs["drift"]["edge"], "step": STEP, "origins": len(result.attrs["drift"]["origins"]),
        **{key: float(found[name].median()) for key, name in names.items()},
    }  # fmt: skip


def parameters(verdict: CheckResult, *, single: str | None) -> dict[str, Any]:
    """Summary of every parameter; by level where it differs, flat where ``single`` is its only one."""
    out: dict[str, Any] = {}
    for label, row in verdict.parameters.iterrows():
        name, _, level = str(label).rstrip("]").partition("[")
        summary = {key: row[key] for key in SUMMARY}
        if not level or level == single:
            out[name] = summary
        else:
            out.setdefault(name, {})[level] = summary
    return out


def show(result: Fit, verdict: CheckResult, sensitivity: pd.DataFrame | None = None) -> None:
    """Print the posterior as tables for people."""
    # What deviations make of g(r) stands in the table of recurrences below.
    hidden = [name for name in verdict.parameters.index if re.match(r"(size|data)|deviation_\d", str(name))]
    print_table(
        ("", "mean", "sd", "5 %", "95 %", "ESS", "R-hat"),
        (
            (
                str(name),
                *(f"{row[key]:.4g}" for key in ("mean", "sd", "q05", "q95")),
                f"{row['ess_bulk']:.0f}",
                f"{row['r_hat']:.3f}",
            )
            for name, row in verdict.parameters.drop(index=hidden).iterrows()
        ),
    )
    several = len(result.recipes) > 1
    for recipe in result.recipes:
        label = f" ({recipe})" if several else ""
        if "phi" in result.law.parameters and (result.runs["recurrences"] > 1).any():
            draws = result.draws(recipe)["phi"]
            print(f"phi{label}: P(< 1) = {(draws < 1).mean():.3f}, P(> 0) = {(draws > 0).mean():.3f}")
    for recipe, row in phi_differences(result).items():
        span = f"{row['q05']:+.3f} to {row['q95']:+.3f}"
        anchor = result.choose_recipe(None)
        print(f"phi ({recipe}) less that of {anchor}: {row['mean']:+.3f} ({span}), P(> 0) = {row['p_gt_0']:.3f}")
    if several:
        print(
            "Differences between recipes hold under this structure: compare --law and --noise before relying on a sign."
        )
    if any(worth(result, recipe=recipe) for recipe in result.recipes):
        print_table(
            ("recipe", "r", "worth, blocks", "5 %", "95 %", "exponent", "5 %", "95 %"),
            (
                (recipe, f"{r:g}", *_mean_and_range(draws), *_mean_and_range(elasticity(result, [r], recipe)[r]))
                for recipe in result.recipes
                for r, draws in worth(result, recipe=recipe).items()
            ),
        )
    if sensitivity is not None:
        print_table(
            ("pooling", "parameter", "mean", "5 %", "95 %", "P(> 0)"),
            (
                (row["pooling"], row["parameter"], f"{row['mean']:.3f}", f"{row['q05']:.3f}", f"{row['q95']:.3f}",
                 "" if pd.isna(row["p_gt_0"]) else f"{row['p_gt_0']:.3f}")
                for row in sensitivity.to_dict("records")
            ),
        )  # fmt: skip


def _by_r(draws: dict[float, np.ndarray]) -> dict[str, dict[str, float]]:
    return {
        f"{r:g}": {
            "mean": float(values.mean()), **{key: float(np.quantile(values, q)) for key, q in QUANTILES.items()}
        }
        for r, values in draws.items()
    }  # fmt: skip


def _mean_and_range(values: np.ndarray) -> tuple[str, str, str]:
    low, high = (float(q) for q in np.quantile(values, [0.05, 0.95]))
    return f"{values.mean():.3f}", f"{low:.3f}", f"{high:.3f}"
