"""Speed: whole `bayeslaw fit`, effective draws per second of sampling, refits, point fits, and growth with the runs.

Run with `make benchmark`; the result is printed and written to benchmarks/results/posterior.json with date, machine and
versions. All comparisons are made within this one run.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

OUT = Path(__file__).parent / "results" / "posterior.json"

COMMANDS = {
    "default": ["fit", "isodepth"],
    "additive": ["fit", "isodepth", "--law", "additive"],
    "coupled, cells": ["fit", "isodepth", "--law", "coupled", "--noise", "cells", "--outliers", "gaussian"],
}


def whole_fit(command: list[str], cache: str) -> dict[str, float]:
    """Seconds by stage and peak memory (GB) of one `bayeslaw fit` in a process with its compile cache at ``cache``."""
    environment = {**os.environ, "PYTENSOR_FLAGS": f"base_compiledir={cache}", "NUMBA_CACHE_DIR": f"{cache}/numba"}
    script = (
        "import resource, sys\nfrom bayeslaw.cli import run\ncode = run(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\nsys.exit(code)"
    )
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *command, "--json"], env=environment, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - started
    peak = float(done.stderr.strip().splitlines()[-1]) / 2**20
    return {**json.loads(done.stdout)["seconds"], "process": seconds, "peak_gb": peak}


def effective(posterior, seconds: float, divergences: int) -> dict[str, float]:
    import arviz_stats as azs

    names = [name for name in ("E", "A", "B", "alpha", "beta", "k", "phi", "sigma", "tau_cell") if name in posterior]
    ess = azs.ess(posterior[names])
    least = min(float(ess[name].min()) for name in names)
    return {
        "ess_phi": float(ess["phi"].min()), "min_ess": least, "sample_seconds": seconds, "divergences": divergences,
        "ess_phi_per_second": float(ess["phi"].min()) / seconds, "min_ess_per_second": least / seconds,
    }  # fmt: skip


def sampling(seeds: tuple[int, ...], **settings) -> dict[str, dict[str, float]]:
    """Medians over seeds, by parametrisation, of one posterior: same priors, runs and effects."""
    import numpy as np
    import pymc as pm

    from bayeslaw import load_runs, model
    from bayeslaw.fit import fit
    from bayeslaw.inputs import inputs_of
    from bayeslaw.priors import DEFAULT
    from bayeslaw.spec import Spec
    from bayeslaw.structure import structure_of

    table = load_runs("isodepth")
    inputs = inputs_of(table.runs, injection_in="once")
    structure = structure_of(inputs, Spec(**settings), DEFAULT)
    plain = {"natural, latent effects": False, "natural, effects integrated": True}
    if not structure.effects:
        plain = {"natural": False}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in (*plain, "local, whitened")}
    for seed in seeds:
        for name, integrated in plain.items():
            with model.stated(structure, inputs, DEFAULT, direct=True, integrated=integrated):
                drawn = pm.sample(random_seed=seed, progressbar=False)
            seconds = float(drawn["posterior"].attrs["sampling_time"])
            diverging = int(drawn["sample_stats"]["diverging"].sum())
            rows[name].append(effective(drawn["posterior"].to_dataset(), seconds, diverging))
        ours = fit(table, seed=seed, **settings)
        diverging = int(ours.data["sample_stats"]["diverging"].sum())
        rows["local, whitened"].append(effective(ours.posterior, ours.attrs["seconds"]["sample"], diverging))
    out = {
        name: {key: float(np.median([row[key] for row in found])) for key in found[0]} for name, found in rows.items()
    }
    first = out[next(iter(plain))]
    for row in out.values():
        row["ratio_phi"] = row["ess_phi_per_second"] / first["ess_phi_per_second"]
        row["ratio_min"] = row["min_ess_per_second"] / first["min_ess_per_second"]
    return out


def refit(**settings) -> float:
    """Seconds of a whole fit of new runs by a model that this process has compiled for others."""
    from bayeslaw import load_runs
    from bayeslaw.fit import fit

    table = load_runs("isodepth")
    fit(table, **settings)
    other = load_runs(table.runs.sample(frac=0.8, random_state=1).reset_index(drop=True))
    started = time.perf_counter()
    fit(other, **settings)
    return time.perf_counter() - started


def growth(sizes: tuple[int, ...], recipes: tuple[int, ...]) -> list[dict[str, float]]:
    """Seconds of sampling per effective draw, and peak memory of the process so far, as runs and recipes grow."""
    from bayeslaw.fit import fit
    from bayeslaw.simulate import simulate

    truth = {"E": 1.55, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37, "phi": 0.46}
    rows = []
    for count in recipes:
        for size in sizes:
            runs = simulate(grid(size, count), parameters=truth, sigma=0.004, seed=size + count)
            grown = fit(runs, law="additive", draws=1000, tune=500)
            diverging = int(grown.data["sample_stats"]["diverging"].sum())
            found = effective(grown.posterior, grown.attrs["seconds"]["sample"], diverging)
            print(f"{len(runs)} runs, {count} recipes done", file=sys.stderr)
            rows.append(
                {
                    "runs": len(runs), "recipes": count, **found,
                    "ms_per_effective_draw": 1e3 / found["min_ess_per_second"],
                    "predictive_seconds": grown.attrs["seconds"]["predictive"],
                    "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                }
            )  # fmt: skip
    return rows


def point_fits() -> dict:
    """What benchmarks/point.py measures, in a process of its own: its libraries must not start threads."""
    script = Path(__file__).with_name("point.py")
    return json.loads(subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout)


def grid(size: int, recipes: int):
    """A design of about ``size`` runs over widths, budgets, r and recipes of the published family."""
    import numpy as np
    import pandas as pd

    from bayeslaw import ISODEPTH

    per_recipe = max(8, size // recipes)
    rng = np.random.default_rng(size)
    rows = []
    for recipe in range(recipes):
        for _ in range(per_recipe):
            r = int(rng.choice([1, 2, 4, 8]))
            member = ISODEPTH.architecture(128 * int(rng.integers(3, 17)), r)
            budget = float(np.exp(rng.uniform(np.log(4e17), np.log(3e19))))
            rows.append(
                {
                    "recipe": "baseline" if recipe == 0 else f"recipe_{recipe}", "recurrences": r,
                    "n_once": member.n_once, "n_shared": member.n_shared, "n_injection": member.n_injection,
                    "tokens": member.tokens_for(budget), "budget": budget, "loss": 3.0,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def main() -> None:
    from bayeslaw.spec import DEFAULT_MODEL
    from bayeslaw.version import versions

    whole = {}
    for name, command in COMMANDS.items():
        with tempfile.TemporaryDirectory() as cache:
            whole[name] = {"cold": whole_fit(command, cache), "warm": whole_fit(command, cache)}
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "versions": versions("numpy", "xarray", "pymc", "pytensor", "nutpie", "numba"),
        "commands": {name: "bayeslaw " + " ".join(command) for name, command in COMMANDS.items()},
        "whole_fit": whole,
        "sampling": {
            "default": sampling((1, 2, 3), **DEFAULT_MODEL),
            "additive, iid": sampling((1, 2, 3), law="additive"),
            "coupled, cells": sampling((1, 2, 3), law="coupled", noise="cells"),
        },
        "refit_seconds": {
            "default": refit(),
            "additive, iid": refit(law="additive"),
            "coupled, cells": refit(law="coupled", noise="cells"),
        },
        "point_fits": point_fits(),
        "growth": growth((116, 1000, 10000), (1, 10)),
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    for name, stages in whole.items():
        for stage, seconds in stages.items():
            print(f"{name}, {stage}: " + "  ".join(f"{key} {value:.2f}" for key, value in seconds.items()))
    for model_name, rows in result["sampling"].items():
        for name, row in rows.items():
            print(f"{model_name}, {name}: " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    print("refit: " + "  ".join(f"{name} {value:.2f} s" for name, value in result["refit_seconds"].items()))
    point = result["point_fits"]
    print(
        f"point fit: {1e3 * point['seconds']['point_fit']:.0f} ms, {point['ratio']:.0f} times faster than 500 starts "
        f"({point['seconds']['random_starts']:.1f} s), excess objective {point['objective']['excess']:.1e}; 200-sample "
        f"bootstrap {point['seconds']['bootstrap_200']:.1f} s"
    )
    for row in result["growth"]:
        print("growth: " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
