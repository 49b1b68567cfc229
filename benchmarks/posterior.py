"""Speed of the posterior: whole `bayeslaw fit` by stage, cold and warm, and effective draws per second of sampling.

Two parametrisations of one model (same priors, data and likelihood) are sampled in one process: the whitened local
coordinates that `fit` uses, and the natural ones under `pm.sample` defaults. Run with `make benchmark`; the result is
printed and written to benchmarks/results/posterior.json with date, machine and versions.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

COMMAND = ["fit", "isodepth", "--law", "additive", "--noise", "iid", "--outliers", "gaussian", "--json"]
OUT = Path(__file__).parent / "results" / "posterior.json"


def whole_fit(cache: str) -> dict[str, float]:
    """Seconds by stage of one `bayeslaw fit` in a process of its own, its compile cache at ``cache``."""
    environment = {**os.environ, "PYTENSOR_FLAGS": f"base_compiledir={cache}", "NUMBA_CACHE_DIR": f"{cache}/numba"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "bayeslaw", *COMMAND], env=environment, capture_output=True, text=True, check=True
    )
    seconds = json.loads(done.stdout)["seconds"]
    return {**seconds, "process": time.perf_counter() - started}


def sampling(seeds: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Effective draws per second of sampling, of phi and of the slowest parameter, by parametrisation."""
    import arviz_stats as azs
    import numpy as np
    import pymc as pm

    from bayeslaw import load_runs
    from bayeslaw.fit import fit
    from bayeslaw.inputs import inputs_of
    from bayeslaw.likelihood import natural_parameters
    from bayeslaw.model import build
    from bayeslaw.priors import DEFAULT

    table = load_runs("isodepth")
    inputs = inputs_of(table.runs, injection_in="once")
    rows: dict[str, list[tuple[float, float, float, float]]] = {"whitened local": [], "natural, pm.sample": []}

    def record(name: str, posterior, seconds: float, divergences: int) -> None:
        ess = azs.ess(posterior[["E", "A", "B", "alpha", "beta", "phi", "sigma"]])
        least = min(float(ess[parameter].min()) for parameter in ess.data_vars)
        rows[name].append((float(ess["phi"].min()), least, seconds, divergences))

    for seed in seeds:
        ours = fit(table, seed=seed)
        divergences = int(ours.data["sample_stats"]["diverging"].sum())
        record("whitened local", ours.posterior, ours.attrs["seconds"]["sample"], divergences)
        with build(inputs, DEFAULT, outliers="gaussian", whitening=None):
            plain = pm.sample(random_seed=seed, progressbar=False)
        natural = natural_parameters(plain["posterior"].to_dataset(), inputs)
        divergences = int(plain["sample_stats"]["diverging"].sum())
        record("natural, pm.sample", natural, float(plain["posterior"].attrs["sampling_time"]), divergences)
    names = ("ess_phi", "min_ess", "sample_seconds", "divergences")
    out = {}
    for name, values in rows.items():
        middle = dict(zip(names, np.median(np.array(values), axis=0).tolist(), strict=True))
        middle["ess_phi_per_second"] = middle["ess_phi"] / middle["sample_seconds"]
        middle["min_ess_per_second"] = middle["min_ess"] / middle["sample_seconds"]
        out[name] = middle
    return out


def main() -> None:
    from bayeslaw.fit import versions

    with tempfile.TemporaryDirectory() as cache:
        stages = {"cold": whole_fit(cache), "warm": whole_fit(cache)}
    by_coordinates = sampling(seeds=(1, 2, 3))
    ours, plain = by_coordinates["whitened local"], by_coordinates["natural, pm.sample"]
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "versions": versions(),
        "command": "bayeslaw " + " ".join(COMMAND),
        "seconds": stages,
        "sampling": by_coordinates,
        "ratio": {key: ours[key] / plain[key] for key in ("ess_phi_per_second", "min_ess_per_second")},
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    for name, seconds in stages.items():
        print(f"{name:5s} " + "  ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items()))
    for name, row in by_coordinates.items():
        print(f"{name:20s} " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    print("ratio " + "  ".join(f"{key} {value:.0f}" for key, value in result["ratio"].items()))


if __name__ == "__main__":
    main()
