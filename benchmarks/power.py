"""How many runs of a new recipe tell its phi from the baseline's: recovery of planted differences, and power.

Run with `python benchmarks/power.py`; the tables are printed and written to benchmarks/results/power.json and power.md.

Truth is the default model as fitted to the shipped baseline, at its posterior mean. Every replicate draws the losses of
the 116 baseline runs anew, adds n runs of a recipe whose phi is higher by delta and whose deviations u_r from r^phi are
its own, drawn from N(0, their spread), and fits the default model to both recipes together. Two other settings say
what the deviations do: "none drawn" plants a recipe that follows r^phi exactly, "not fitted" fits a rigid r^phi to
recipes that do not. One structure serves all tables of one fit, so it is compiled once and data are swapped.

Fits are short (2 x 500 draws) and are not drawn again for a few divergences: held against 2 x 3000 draws with small
steps on eight tables, the mean of delta moved by .002, its sd by .004 and P(delta > 0) by .01 at most, small beside
the replicates' own scatter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

OUT = Path(__file__).parent / "results" / "power.json"
NEW = "new"
DELTAS = (0.0, 0.1, 0.2)
MAIN, OTHERS = 20, (8, 12, 40)
LOOPED = (4.0, 2.0, 8.0)
SURE = 0.95
"""P(delta > 0) from which on a higher phi is declared."""

POINTS = (
    (1e18, 10), (4.64e17, 8), (2.15e18, 12), (1e18, 8), (4.64e17, 10), (2.15e18, 10), (1e18, 12), (2.15e18, 14),
    (4.64e17, 6), (1e18, 6), (2.15e18, 8), (4.64e17, 12), (1e18, 14), (2.15e18, 16),
)  # fmt: skip
"""(budget, width scale) of the new recipe's runs in the order in which they are trained, at every r of `LOOPED`: the
three lowest budgets of the shipped grid, from the middle of each outwards."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the study: ``drawn``, the new recipe deviates; ``fitted``, the model lets it."""

    n: int
    delta: float
    replicates: int
    drawn: bool = True
    fitted: bool = True

    @property
    def deviations(self) -> str:
        return "drawn and fitted" if self.drawn and self.fitted else "none drawn" if self.fitted else "not fitted"


def truth(fit) -> tuple[dict[str, float], float, float]:
    """(parameters, spread of deviations, sigma) of the default model at its posterior mean.

    A and B follow from the means of the terms at the centre: their own means are those of long tails.
    """
    import numpy as np

    from bayeslaw.inputs import inputs_of

    posterior = fit.posterior
    n0, d0 = inputs_of(fit.runs, injection_in=fit.spec.counted_in).centre
    mean = {name: float(np.exp(np.log(posterior[name]).mean())) for name in ("E", "size", "data", "k")}
    for name in ("alpha", "beta"):  # of the terms, k alpha and k beta
        mean[name] = float(np.exp(np.log(posterior[name] * posterior["k"]).mean())) / mean["k"]
    size, data = (mean.pop(name) ** (1 / mean["k"]) for name in ("size", "data"))
    mean |= {"A": size * n0 ** mean["alpha"], "B": data * d0 ** mean["beta"]}
    mean |= {name: float(posterior[name].mean()) for name in fit.law.map.parameters}
    return mean, float(posterior["deviation_spread"].mean()), float(posterior["sigma"].mean())


def design(baseline, n: int):
    """The baseline's runs, and n of a new recipe at places of its grid."""
    import pandas as pd

    places = [(budget, width, r) for budget, width in POINTS for r in LOOPED][:n]
    keyed = baseline.set_index(["budget", "width_scale", "recurrences"], drop=False)
    new = keyed.loc[places].reset_index(drop=True).assign(recipe=NEW)
    new["run_id"] = [f"{NEW}/{i}" for i in range(n)]
    return pd.concat([baseline, new], ignore_index=True)


def replicate(setting: Setting, runs, known, seed: int) -> dict[str, float]:
    """Posterior of delta from one simulated table."""
    import numpy as np

    from bayeslaw import sampling
    from bayeslaw.inputs import inputs_of
    from bayeslaw.laws import make_law
    from bayeslaw.likelihood import named
    from bayeslaw.priors import DEFAULT
    from bayeslaw.simulate import simulate
    from bayeslaw.spec import Spec
    from bayeslaw.structure import structure_of

    parameters, spread, sigma = known
    rng = np.random.default_rng([seed, setting.n, round(1000 * setting.delta), setting.drawn])
    own = {name: rng.normal(0, spread) * setting.drawn for name in parameters if name.startswith("deviation_")}
    own["phi"] = parameters["phi"] + setting.delta
    law = make_law("coupled", "power", levels=tuple(sorted(LOOPED)), deviation=True)
    simulated = simulate(
        runs, parameters=parameters, by_recipe={NEW: own}, law=law, sigma=sigma, outliers="student",
        seed=int(rng.integers(2**31)),
    )  # fmt: skip
    spec = Spec.of(draws=500, tune=300, chains=2, seed=seed, deviation=setting.fitted, drift=False)
    inputs = inputs_of(simulated, injection_in=spec.counted_in)
    structure = structure_of(inputs, spec, DEFAULT)
    tree = sampling.sample(
        structure, inputs, DEFAULT, spec, progress=lambda message: None, timed=lambda stage: None,
        demand=sampling.Demand(ess=100, r_hat=1.1, thin=1, divergences=20),
    )  # fmt: skip
    phi = named(tree["posterior"].to_dataset()["theta"].values, structure, inputs)["phi"]
    draws = (phi.sel(recipe=NEW) - phi.sel(recipe="baseline")).values.ravel()
    q05, q25, q75, q95 = np.quantile(draws, [0.05, 0.25, 0.75, 0.95])
    return {
        "mean": float(draws.mean()), "sd": float(draws.std()), "p_gt_0": float((draws > 0).mean()),
        "in50": float(q25 <= setting.delta <= q75), "in90": float(q05 <= setting.delta <= q95),
    }  # fmt: skip


def summary(setting: Setting, rows: list[dict[str, float]]) -> dict[str, Any]:
    """What the replicates of one setting show; ``band90`` is what a true coverage of .90 (.50) would show."""
    import numpy as np
    from scipy import stats

    mean, sd, probability, in50, in90 = (
        np.array([row[name] for row in rows]) for name in ("mean", "sd", "p_gt_0", "in50", "in90")
    )
    count, declared = len(rows), int((probability > SURE).sum())
    exact = stats.binomtest(declared, count).proportion_ci(0.9)
    return {
        "n": setting.n, "delta": setting.delta, "deviations": setting.deviations, "replicates": count,
        "bias": float((mean - setting.delta).mean()), "bias_se": float(mean.std(ddof=1) / np.sqrt(count)),
        "rmse": float(np.sqrt(((mean - setting.delta) ** 2).mean())), "posterior_sd": float(sd.mean()),
        "cover50": float(in50.mean()), "band50": [float(v) / count for v in stats.binom(count, 0.5).interval(0.99)],
        "cover90": float(in90.mean()), "band90": [float(v) / count for v in stats.binom(count, 0.9).interval(0.99)],
        "declared_higher": declared / count, "declared_higher_90": [float(exact.low), float(exact.high)],
        "declared_lower": float((probability < 1 - SURE).mean()),
    }  # fmt: skip


def settings(replicates: int) -> list[Setting]:
    few = max(2, replicates // 4)
    return [
        *(Setting(n=MAIN, delta=delta, replicates=replicates) for delta in DELTAS),
        *(Setting(n=n, delta=delta, replicates=few) for n in OTHERS for delta in DELTAS),
        Setting(n=MAIN, delta=DELTAS[1], replicates=few, drawn=False),
        *(Setting(n=MAIN, delta=delta, replicates=few, fitted=False) for delta in DELTAS[:2]),
    ]


def report(answer: dict[str, Any]) -> str:
    """The tables as Markdown."""
    machine = answer["machine"]
    lines = [
        "# How many runs of a new recipe tell its phi from the baseline's",
        "",
        f"`python benchmarks/power.py`, {answer['date']}, {machine['cores']} cores, {machine['system']}, "
        + ", ".join(f"{name} {value}" for name, value in answer["versions"].items())
        + f"; {answer['seconds']:.0f} s.",
        "",
        "A new recipe at r = 2, 4, 8 and the three lowest budgets, beside the 116 baseline runs; its phi is higher by "
        "delta. Truth: the default model at its posterior mean on the baseline "
        f"(sigma {answer['truth']['sigma']:.5f}, spread of the deviations {answer['truth']['spread']:.3f}). "
        f"Declared higher: P(delta > 0) > {SURE}.",
        "",
        "| n | delta | deviations | replicates | bias | rmse | posterior sd | 50 % covers | 90 % covers "
        "| declared higher | declared lower |",
        "|" + "---|" * 11,
    ]
    for row in answer["rows"]:
        low, high = row["declared_higher_90"]
        lines.append(
            f"| {row['n']} | {row['delta']:g} | {row['deviations']} | {row['replicates']} "
            f"| {row['bias']:+.3f} ({row['bias_se']:.3f}) | {row['rmse']:.3f} | {row['posterior_sd']:.3f} "
            f"| {row['cover50']:.2f} [{row['band50'][0]:.2f}, {row['band50'][1]:.2f}] "
            f"| {row['cover90']:.2f} [{row['band90'][0]:.2f}, {row['band90'][1]:.2f}] "
            f"| {row['declared_higher']:.2f} [{low:.2f}, {high:.2f}] | {row['declared_lower']:.2f} |"
        )
    return "\n".join([*lines, "", *readings(answer["rows"])])


def readings(rows: list[dict[str, Any]]) -> list[str]:
    """What the rows say, in words."""
    own = {(row["n"], row["delta"]): row for row in rows if row["deviations"] == "drawn and fitted"}
    sizes = sorted({n for n, _ in own})
    lines = [
        "Brackets: after a coverage the range of 99 % of such studies if the intervals are right, after a rate its",
        "90 % interval; after a bias its standard error.",
        "",
    ]
    for delta in DELTAS:
        rates = ", ".join(f"{own[n, delta]['declared_higher']:.2f} with {n}" for n in sizes)
        lines.append(f"- delta = {delta:g}: declared higher in {rates} runs.")
    for delta in DELTAS[1:]:
        enough = next((n for n in sizes if own[n, delta]["declared_higher"] >= 0.8), None)
        lines.append(
            f"- A difference of {delta:g} is declared in 80 % of the cases "
            + (f"from {enough} runs on." if enough else f"by none of these: {sizes[-1]} runs are too few.")
        )
    for row in rows:
        for share in (50, 90):
            low, high = row[f"band{share}"]
            if not low <= row[f"cover{share}"] <= high:
                lines.append(
                    f"- Deviations {row['deviations']}, n = {row['n']}, delta = {row['delta']:g}: {share} % intervals "
                    f"cover {row[f'cover{share}']:.2f}, outside [{low:.2f}, {high:.2f}]."
                )
    if any(row["cover50"] > row["band50"][1] or row["cover90"] > row["band90"][1] for row in own.values()):
        lines += [
            "- Where the default model's intervals cover too much they are cautious: partial pooling draws delta to 0,",
            "  so a true 0 is met more often, and the baseline's own deviations are not drawn anew, as a model would.",
        ]
    few, many = (own[n, DELTAS[1]]["posterior_sd"] for n in (sizes[0], sizes[-1]))
    noise = few * (sizes[0] / sizes[-1]) ** 0.5
    lines += [
        f"- From {sizes[0]} to {sizes[-1]} runs the posterior sd of delta goes from {few:.3f} to {many:.3f}; noise",
        f"  alone would take it to {noise:.3f}. What remains is how far the worth at three r may deviate from r^phi:",
        "  more runs at the same r do not tell that.",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--replicates", type=int, default=100, help="of each delta at 20 runs; the other rows take a quarter"
    )
    replicates = parser.parse_args().replicates

    from bayeslaw import load_runs
    from bayeslaw.fit import fit
    from bayeslaw.version import versions

    started = time.perf_counter()
    table = load_runs("isodepth")
    known = truth(fit(table))
    rows: list[dict[str, Any]] = []
    OUT.parent.mkdir(exist_ok=True)
    for setting in settings(replicates):
        runs = design(table.runs, setting.n)
        rows.append(summary(setting, [replicate(setting, runs, known, seed) for seed in range(setting.replicates)]))
        seconds = time.perf_counter() - started
        print(f"{seconds:6.0f} s  {rows[-1]}", flush=True)
        answer = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
            "versions": versions("numpy", "xarray", "pymc", "pytensor", "nutpie", "numba"),
            "seconds": seconds,
            "truth": {**known[0], "spread": known[1], "sigma": known[2]},
            "rows": rows,
        }
        OUT.write_text(json.dumps(answer, indent=1) + "\n")  # what is done stays if the rest is stopped
    text = report(answer)
    OUT.with_suffix(".md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
