"""Calibration of the default model on the published design: 1,000 simulated data sets of 116 runs.

Run with `python benchmarks/calibration.py [FOLDER] [JOBS]`; it is what `bayeslaw calibrate isodepth --out FOLDER --jobs
JOBS` does, and goes on with a folder that one of them began. The summary is printed and written to
benchmarks/results/calibration.json with date, machine and versions, the ranks to calibration_ranks.csv beside it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

OUT = Path(__file__).parent / "results" / "calibration.json"

SIMULATIONS = 1000

STATED = ("phi", "a", "b", "E", "k", "g(4)", "L*(1e20)", "N*(1e19)")
TARGETS = {"50": (0.45, 0.55), "80": (0.76, 0.84), "90": (0.87, 0.93)}
"""Coverage that was asked for of these quantities."""


def main(folder: str | None = None, jobs: str = "1") -> None:
    from bayeslaw import load_runs
    from bayeslaw.calibration.simulations import simulations_of
    from bayeslaw.calibration.trials import SAMPLER, Calibration
    from bayeslaw.spec import Spec

    trial = Calibration.of(load_runs("isodepth"), Spec.of(**SAMPLER))
    with tempfile.TemporaryDirectory() as scratch:
        records = simulations_of(
            trial, SIMULATIONS, out=Path(folder or scratch), jobs=int(jobs),
            progress=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    write(trial.settings, records)


def write(settings, records) -> None:
    """Judge simulations and write what is published of them."""
    import pandas as pd

    from bayeslaw.calibration.trials import summed
    from bayeslaw.cli.calibrate import show
    from bayeslaw.version import versions

    result = summed(settings, records)
    answer = result.as_dict()
    answer["settings"] = {name: value for name, value in answer["settings"].items() if name != "priors"}
    covered = {name: answer["quantities"][name]["coverage"] for name in STATED}
    ess = [record["ess"] for record in records if "ess" in record]
    summary = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "versions": versions("numpy", "scipy", "xarray", "pymc", "pytensor", "nutpie", "numba"),
        "command": "bayeslaw calibrate isodepth",
        "targets": TARGETS,
        "targets_met": all(
            low <= covered[name][level]["share"] <= high for name in STATED for level, (low, high) in TARGETS.items()
        ),
        "least_ess": {"smallest": min(ess), "median": sorted(ess)[len(ess) // 2]},
        **answer,
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(summary, indent=1) + "\n")
    ranks = pd.DataFrame({name: quantity.ranks for name, quantity in result.quantities.items()})
    ranks.to_csv(OUT.with_name("calibration_ranks.csv"), index=False)
    show(result)
    print(f"asked-for coverage of {', '.join(STATED)}: {'met' if summary['targets_met'] else 'NOT met'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
