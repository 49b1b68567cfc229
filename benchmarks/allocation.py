"""The published allocation claims with probabilities, from the published grid: by the default model, and each r alone.

Run with `python benchmarks/allocation.py`; tables are printed and written to benchmarks/results/allocation.json.

Published are (arXiv 2604.21106): looped optima are wider and train on fewer tokens per unrolled parameter; the
compute-optimal loss trails that of r = 1 by .03-.06 (r = 2), .05-.08 (4) and .09-.12 nats (8) over the six budgets; N*
grows as C^.57 / .70 / .76 / .67 and D* as C^.53 / .42 / .37 / .44 for r = 1 / 2 / 4 / 8, each r fitted by itself.
`isodepth_minima.csv` has the published minima of the 24 cells' own parabolas.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.allocate import allocate
from bayeslaw.files import written_whole
from bayeslaw.fit import fit
from bayeslaw.location import location_of
from bayeslaw.recommendation import Allocation
from bayeslaw.tradeoffs import growth
from bayeslaw.version import versions

HERE = Path(__file__).parent
OUT = HERE / "results" / "allocation.json"
GAPS = {2: (0.03, 0.06), 4: (0.05, 0.08), 8: (0.09, 0.12)}
MODELS: dict[str, dict[str, Any]] = {"default": {}, "each r by itself (chinchilla)": {"law": "chinchilla"}}
EXPONENTS = {1: (0.57, 0.53), 2: (0.70, 0.42), 4: (0.76, 0.37), 8: (0.67, 0.44)}


def gaps(made: list[Allocation], minima: pd.DataFrame) -> list[dict[str, Any]]:
    """Loss above r = 1 at every budget, with what the published minima give; and the three probabilities."""
    rows = []
    for each in made:
        plain = each.plain
        assert plain is not None
        own = minima[np.isclose(minima["budget"], each.flops, rtol=1e-6)].set_index("recurrences")["loss_opt"]
        for option in each.options:
            if option is not plain:
                rows.append(
                    {"flops": each.flops, "recurrences": option.recurrences, **option.against(plain),
                     "measured": float(own[option.recurrences] - own[1])}
                )  # fmt: skip
    return rows


def covered(made: list[Allocation], minima: pd.DataFrame) -> dict[str, float]:
    """Share of the 24 published N* inside the 90 % intervals, by parameters alone and with the noise of location."""
    inside = {"parameters alone": [], "with location": []}  # type: dict[str, list[bool]]
    for each in made:
        own = minima[np.isclose(minima["budget"], each.flops, rtol=1e-6)].set_index("recurrences")["n_unique_opt"]
        for option in each.options:
            for name, draws in (
                ("parameters alone", option.optimum.n_unique),
                ("with location", option.located.n_unique),
            ):
                low, high = np.quantile(draws, [0.05, 0.95])
                inside[name].append(bool(low <= own[option.recurrences] <= high))
    return {name: float(np.mean(values)) for name, values in inside.items()}


def measured_growth(minima: pd.DataFrame) -> dict[int, float]:
    """Slope of log N* over log C of the published minima themselves."""
    return {
        int(r): float(np.polyfit(np.log(rows["budget"]), np.log(rows["n_unique_opt"]), 1)[0])
        for r, rows in minima.groupby("recurrences")
    }


def of_model(settings: dict[str, Any], minima: pd.DataFrame) -> dict[str, Any]:
    posterior = fit("isodepth", **settings)
    made = [allocate(posterior, flops=float(flops)) for flops in sorted(minima["budget"].unique())]
    by_hand = measured_growth(minima)
    return {
        "gaps": gaps(made, minima),
        "growth": [
            {**row, "published": EXPONENTS[row["recurrences"]], "n_unique_of_minima": by_hand[row["recurrences"]]}
            for row in growth(made)
        ],
        "location_noise": location_of(posterior).tau,
        "minima_covered_90": covered(made, minima),
    }


def main() -> None:
    minima = pd.read_csv(HERE / "isodepth_minima.csv")
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "versions": versions("numpy", "pymc", "nutpie", "numba"),
        "published_gaps": {str(r): span for r, span in GAPS.items()},
        "models": {name: of_model(settings, minima) for name, settings in MODELS.items()},
    }
    with written_whole(OUT) as partial:
        partial.write_text(json.dumps(result, indent=1, default=float) + "\n")
    for name, found in result["models"].items():
        print(name)
        report(found)
        print()


def report(found: dict[str, Any]) -> None:
    print("r  FLOPs     gap to r = 1 (90 %)        measured  P(wider)  P(fewer tokens per unrolled)  per unique")
    for row in found["gaps"]:
        loss = row["loss"]
        print(
            f"{row['recurrences']}  {row['flops']:.2e}  {loss['mean']:.4f} ({loss['q05']:.4f}-{loss['q95']:.4f})    "
            f"{row['measured']:.4f}    {row['p_wider']:.3f}     {row['p_fewer_tokens_per_unrolled']:.3f}"
            f"                         {row['p_fewer_tokens_per_unique']:.3f}"
        )
    off = np.array([abs(row["loss"]["mean"] - row["measured"]) for row in found["gaps"]])
    print(f"{(off <= 0.01).sum()} of {len(off)} gaps within .01 of the measured ones, the farthest {off.max():.4f} off")
    for r, (low, high) in GAPS.items():
        own = [row["loss"]["mean"] for row in found["gaps"] if row["recurrences"] == r]
        print(f"r = {r}: gaps {min(own):.3f} to {max(own):.3f}, published {low:.2f} to {high:.2f}")
    for row in found["growth"]:
        n, d = row["n_unique"], row["tokens"]
        print(
            f"r = {row['recurrences']}: N* ~ C^{n['mean']:.3f} ({n['q05']:.3f}-{n['q95']:.3f}), published "
            f"{row['published'][0]:.2f}, of the minima {row['n_unique_of_minima']:.2f}; D* ~ C^{d['mean']:.3f} "
            f"({d['q05']:.3f}-{d['q95']:.3f}), published {row['published'][1]:.2f}"
        )
    shares = ", ".join(f"{share:.2f} {name}" for name, share in found["minima_covered_90"].items())
    print(f"location noise {found['location_noise']:.3f}; the 24 minima of N* inside the 90 % intervals: {shares}")


if __name__ == "__main__":
    main()
