"""Recipes under four structures: phi of each, its difference from the baseline's and P(> 0), in one table.

Run with `python benchmarks/recipes.py`; the table is printed and written to benchmarks/results/recipes.md. It is what
`bayeslaw fit isodepth-recipes --law additive|coupled --noise iid|cells` says four times.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

OUT = Path(__file__).parent / "results" / "recipes.md"


def rows() -> list[tuple[str, ...]]:
    from bayeslaw import load_runs
    from bayeslaw.diagnostics import check, phi_differences, worth_differences
    from bayeslaw.fit import fit

    table = load_runs("isodepth-recipes")
    out = []
    for law in ("additive", "coupled"):
        for noise in ("iid", "cells"):
            result = fit(table, law=law, noise=noise, outliers="gaussian")
            verdict = check(result)
            phi, worths = phi_differences(result), worth_differences(result)
            for recipe in result.recipes:
                row = verdict.parameters.loc[f"phi[{recipe}]"]
                differences = ("", "", "")
                if recipe in phi:
                    one, eight = phi[recipe], worths[recipe]["8"]
                    differences = (_span(one), f"{one['p_gt_0']:.3f}", _span(eight))
                out.append(
                    (law, noise, recipe, _span(row), *differences, f"{row['ess_bulk']:.0f}",
                     "yes" if verdict.passed else "no")
                )  # fmt: skip
    return out


def _span(row) -> str:
    return f"{row['mean']:+.3f} [{row['q05']:+.3f}, {row['q95']:+.3f}]"


def main() -> None:
    from bayeslaw.version import versions

    found = versions("numpy", "xarray", "pymc", "pytensor", "nutpie", "numba")
    header = (
        "law", "noise", "recipe", "phi", "less the baseline's phi", "P(> 0)", "log g(8) less the baseline's", "ESS",
        "converged",
    )  # fmt: skip
    lines = [
        "# Recipes under four structures",
        "",
        f"`python benchmarks/recipes.py`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, "
        f"{platform.system()}, " + ", ".join(f"{name} {value}" for name, value in found.items()),
        "",
        "Means and 90 % intervals; normal errors, injection in once, phi partially pooled by recipe, r = 1 shared.",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows()),
        "",
        "Cell effects take the level of each (recipe, budget, r) cell out of the evidence and leave the place of its",
        "minimum: the sign of a recipe's difference can hang on that. Read it beside the matched losses, never from",
        "one structure.",
    ]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
