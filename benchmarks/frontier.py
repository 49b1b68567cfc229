"""What decisions cost: optima over budgets with constraints, whole recommendations, and choosing the next runs.

Run with `python benchmarks/frontier.py`; prints its figures and writes benchmarks/results/frontier.json. The posterior
has 4,000 draws; optima are those of r = 1, 2, 4, 8 at 200 budgets from 1e17 to 1e22 FLOPs, alone and within limits of
memory, data and lifetime inference. Peak memory is that of the whole process less what it held before.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bayeslaw.allocate import allocate
from bayeslaw.constraints import Constraints
from bayeslaw.files import written_whole
from bayeslaw.fit import fit
from bayeslaw.frontier import optima
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of
from bayeslaw.sizes import sizes_of
from bayeslaw.version import versions

OUT = Path(__file__).parent / "results" / "frontier.json"
RECURRENCES = (1, 2, 4, 8)
CONSTRAINTS = {
    "none": Constraints(),
    "memory, data, lifetime inference": Constraints(memory=2e9, data_tokens=2e10, epochs=2, lifetime_tokens=1e9),
}
REPEATS = 5


def all_optima(found: Fit, constraints: Constraints, budgets: int, draws: int) -> None:
    family = family_of(found)
    for r in RECURRENCES:
        sizes = sizes_of(family, r, **found.convention)
        lines = [constraints.line(sizes, float(flops)) for flops in np.geomspace(1e17, 1e22, budgets)]
        own = found.draws(recurrences=r)
        taken = np.resize(np.arange(len(own["E"])), draws)
        optima(found.law, {name: values[taken] for name, values in own.items()}, sizes, lines, recurrences=r)


def best_of(work: Callable[[], Any]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def peak() -> float:
    """Peak resident memory of the process, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    found = fit("isodepth")
    before = peak()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "versions": versions("numpy", "numba"),
        "optima_seconds": {
            name: best_of(lambda bounds=bounds: all_optima(found, bounds, 200, 4000))
            for name, bounds in CONSTRAINTS.items()
        },
        "growth": {
            f"{draws} draws, {budgets} budgets": best_of(
                lambda draws=draws, budgets=budgets: all_optima(found, CONSTRAINTS["none"], budgets, draws)
            )
            for draws, budgets in ((4000, 100), (4000, 200), (4000, 400), (8000, 200), (16_000, 200))
        },
        "allocate_seconds": best_of(lambda: allocate(found, flops=1e20)),
        "peak_gb_more": peak() - before,
    }
    with written_whole(OUT) as partial:
        partial.write_text(json.dumps(result, indent=1) + "\n")
    for name, seconds in result["optima_seconds"].items():
        print(f"4,000 draws x 4 r x 200 budgets, constraints {name}: {seconds:.2f} s")
    for name, seconds in result["growth"].items():
        print(f"4 r, {name}: {seconds:.2f} s")
    print(f"a recommendation: {result['allocate_seconds']:.2f} s; peak memory {result['peak_gb_more']:.2f} GB more")


if __name__ == "__main__":
    main()
