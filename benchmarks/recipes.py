"""Recipes against the baseline on the shipped runs: matched runs, five structures, and loss at one budget.

Run with `python benchmarks/recipes.py`; the tables and their readings are printed and written to
benchmarks/results/recipes.md. It is what `bayeslaw compare isodepth-recipes` says of recipes.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

OUT = Path(__file__).parent / "results" / "recipes.md"


def table_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]


def main() -> None:
    from bayeslaw import load_runs
    from bayeslaw.compare.recipes import compare_recipes
    from bayeslaw.version import versions

    started = time.perf_counter()
    found = compare_recipes(load_runs("isodepth-recipes"), progress=lambda message: print(message, file=sys.stderr))
    seconds = time.perf_counter() - started
    names = versions("numpy", "xarray", "pymc", "pytensor", "nutpie", "numba")
    lines = [
        "# Recipes against the baseline",
        "",
        f"`python benchmarks/recipes.py`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}, "
        f"{platform.system()}, "
        + ", ".join(f"{name} {value}" for name, value in names.items())
        + f"; {seconds:.0f} s.",
        "",
        "Means and 90 % intervals; injection in once, phi partially pooled by recipe, r = 1 shared. Differences of",
        "loss below 0 are gains. `per step`: change of the difference with each factor 2.15 of training FLOPs.",
        "",
        *(f"- {sentence}" for sentence in found.sentences),
    ]
    for title, (header, rows) in found.tables().items():
        lines += ["", f"## {title[:1].upper()}{title[1:]}", "", *table_of(header, rows)]
    header = ("structure", "least bulk ESS", "largest R-hat", "divergences", "converged")
    quality = [
        (one.structure, f"{one.min_ess_bulk:.0f}", f"{one.max_r_hat:.3f}", str(one.divergences), str(one.converged))
        for one in found.structures
    ]
    lines += ["", "## The sampler", "", *table_of(header, quality)]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
