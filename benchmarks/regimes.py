"""How often the intervals and verdicts of `bayeslaw regimes` are right: planted regimes, found again.

Run with `python benchmarks/regimes.py`; the tables are printed and written to benchmarks/results/regimes.json and
regimes.md.

Every replicate is a table of the paper's five axes (3, 5, 3, 5 and 4 tasks). Each axis is planted by itself, as
`bayeslaw/downstream/simulate.py` says: a third tracks validation loss (effect 0), a third closes the gap (effects of
-.02 to -.2 nats per token), a third has noise from the upper third of its prior, with effects of 0 to -.2. Two
designs: the paper's own six checkpoints, four with all tasks and a pair with the means of the axes alone, without
standard errors; and the 24 runs of the shipped grid with the lowest loss at each of six budgets and r = 1, 2, 4, 8,
with standard errors of the examples of .01 nats.

Fits are one chain of 400 draws and are not drawn again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

OUT = Path(__file__).parent / "results" / "regimes.json"
ERROR = 0.01


def designs() -> dict[str, pd.DataFrame]:
    """Rows of an evaluation table without task losses that mean anything."""
    from bayeslaw.datasets import load_dataset
    from bayeslaw.downstream.table import load_evaluations
    from bayeslaw.evaluations import AXIS_MEAN

    paper = load_evaluations("isodepth-downstream").rows
    runs = load_dataset("isodepth").sort_values("loss").drop_duplicates(["recurrences", "budget"])
    tasks = paper.loc[paper["task"] != AXIS_MEAN, ["axis", "task"]].drop_duplicates()
    grid = runs.merge(tasks, how="cross").assign(
        checkpoint=lambda rows: rows["run_id"], task_loss_se=ERROR, task_loss=0.0,
        architecture=lambda rows: [f"r = {r:g}" for r in rows["recurrences"]],
    )  # fmt: skip
    return {"paper, 6 checkpoints": paper, "grid, 24 checkpoints": grid}


def replicate(rows: pd.DataFrame, seed: int) -> list[dict[str, Any]]:
    """What is found of every axis and effect of one planted table."""
    from bayeslaw.evaluations import AXIS_MEAN

    rng = np.random.default_rng([seed, len(rows)])
    counts = rows[rows["task"] != AXIS_MEAN].groupby("axis")["task"].nunique()
    return [
        row
        for axis, own in rows.groupby("axis", sort=False)
        for row in of_axis(own, rng=rng, tasks=int(counts[axis]), slopes=int(counts.max()), seed=seed)
    ]


def of_axis(own: pd.DataFrame, *, rng: np.random.Generator, tasks: int, slopes: int, seed: int) -> list[dict[str, Any]]:
    """One axis planted, drawn and fitted; ``slopes`` are those of the compiled model."""
    from bayeslaw.downstream.axis import REFERENCE, axis_data
    from bayeslaw.downstream.effects import compute_draws, matched_loss
    from bayeslaw.downstream.model import sample
    from bayeslaw.downstream.priors import DEFAULT
    from bayeslaw.downstream.simulate import EFFECTS, planted, simulated
    from bayeslaw.downstream.verdicts import DELTA, estimate, verdict_of

    truth = planted(str(rng.choice(list(EFFECTS))), tasks=tasks, rng=rng)
    data = axis_data(simulated(own, truth, rng=rng), DEFAULT)
    posterior = sample(data, DEFAULT, tasks=slopes, draws=400, tune=800, chains=1, seed=seed, patient=False)

    def row(kind: str, name: str, draws: Any, true: float, verdict: str = "") -> dict[str, Any]:
        one = estimate(draws)
        return {
            "axis": data.axis, "regime": truth.regime, "effect": truth.effect, "kind": kind, "architecture": name,
            "true": true, "mean": one.mean, "sd": one.sd, "in50": one.q25 <= true <= one.q75,
            "in90": one.q05 <= true <= one.q95, "verdict": verdict,
        }  # fmt: skip

    found = []
    for name, (pooled, draws) in matched_loss(data, posterior).items():
        verdict = verdict_of(draws, delta=DELTA, axis=data.axis, architecture=name, pooled=pooled).verdict
        found.append(row("pooled" if pooled else "architecture", name, draws, truth.effect, verdict))
    seen = data.checkpoints.set_index(["architecture", "budget"])["loss"]
    for name, by_budget in compute_draws(data, posterior).items():
        pairs = np.array([[seen[REFERENCE, budget], seen[name, budget]] for budget in by_budget]) - data.centre
        true = truth.effect + float(np.diff(truth.rise(pairs), axis=1).mean())
        found.append(row("compute", name, np.mean(list(by_budget.values()), axis=0), true))
    return found


def summary(rows: pd.DataFrame) -> dict[str, Any]:
    """Coverage, error and verdicts of rows that belong together."""
    from scipy import stats

    error = rows["mean"] - rows["true"]
    count, inside = len(rows), int(rows["in90"].sum())
    exact = stats.binomtest(inside, count).proportion_ci(0.9)
    return {
        "count": count, "cover50": float(rows["in50"].mean()), "cover90": inside / count,
        "cover90_90": [float(exact.low), float(exact.high)], "bias": float(error.mean()),
        "rmse": float(np.sqrt((error**2).mean())), "posterior_sd": float(rows["sd"].mean()),
        "verdicts": {str(k): float(v) for k, v in rows["verdict"].value_counts(normalize=True).items() if k},
    }  # fmt: skip


def summarise(rows: pd.DataFrame) -> dict[str, Any]:
    """Of one design: coverage over all effects, by regime and effect, and how often a signal is false."""
    from bayeslaw.downstream.verdicts import BEHIND, CLOSES

    matched = rows[rows["kind"] != "compute"]
    null = matched[matched["effect"] == 0]
    wrong = null["verdict"].isin([CLOSES, BEHIND])
    return {
        "coverage": {kind: summary(part) for kind, part in rows.groupby("kind")} | {"all": summary(rows)},
        "regimes": {
            f"{regime}, {effect:g}": summary(part)
            for (regime, effect), part in rows[rows["kind"] == "pooled"].groupby(["regime", "effect"])
        },
        "false_signal": {
            kind: {"count": len(part), "rate": float(wrong[part.index].mean())} for kind, part in null.groupby("kind")
        },
    }


def report(answer: dict[str, Any]) -> str:
    """The tables as Markdown."""
    machine = answer["machine"]
    lines = [
        "# How often the intervals and verdicts of `bayeslaw regimes` are right",
        "",
        f"`python benchmarks/regimes.py`, {answer['date']}, {machine['cores']} cores, {machine['system']}, "
        + ", ".join(f"{name} {value}" for name, value in answer["versions"].items())
        + f"; {answer['seconds']:.0f} s, {answer['replicates']} replicates.",
        "",
        "Effects in nats per token; coverage of 90 % intervals with its own 90 % interval. Pooled: mean over the",
        "looped architectures; compute: at matched compute. Delta is .02.",
    ]
    for design, found in answer["designs"].items():
        lines += [
            "", f"## {design}", "", "| effects | number | 50 % covers | 90 % covers | bias | rmse | posterior sd |",
            "|" + "---|" * 7,
        ]  # fmt: skip
        lines += [_covered(name, one) for name, one in found["coverage"].items()]
        lines += [
            "",
            "| planted | number | 90 % covers | rmse | sd | " + " | ".join(VERDICTS) + " |",
            "|" + "---|" * 10,
        ]
        for name, one in found["regimes"].items():
            shares = " | ".join(f"{one['verdicts'].get(verdict, 0):.2f}" for verdict in VERDICTS)
            lines.append(
                f"| {name} | {one['count']} | {one['cover90']:.2f} | {one['rmse']:.3f} | {one['posterior_sd']:.3f} "
                f"| {shares} |"
            )
        lines += ["", "False signals (closes the gap or falls behind where the planted effect is 0): "]
        lines[-1] += ", ".join(
            f"{one['rate']:.3f} of {one['count']} ({kind})" for kind, one in found["false_signal"].items()
        )
    return "\n".join(lines)


VERDICTS = ("tracks validation loss", "closes the gap", "falls behind", "no signal", "undecided")


def _covered(name: str, one: dict[str, Any]) -> str:
    low, high = one["cover90_90"]
    return (
        f"| {name} | {one['count']} | {one['cover50']:.2f} | {one['cover90']:.3f} [{low:.3f}, {high:.3f}] "
        f"| {one['bias']:+.4f} | {one['rmse']:.3f} | {one['posterior_sd']:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=200)
    replicates = parser.parse_args().replicates

    from bayeslaw.version import versions

    started = time.perf_counter()
    found: dict[str, list[dict[str, Any]]] = {}
    tables = designs()
    for seed in range(replicates):
        for design, rows in tables.items():
            found.setdefault(design, []).extend(replicate(rows, seed))
        if (seed + 1) % 10 and seed + 1 < replicates:
            continue
        answer = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
            "versions": versions("numpy", "pymc", "pytensor", "nutpie", "numba"),
            "seconds": time.perf_counter() - started,
            "replicates": seed + 1,
            "designs": {design: summarise(pd.DataFrame(rows)) for design, rows in found.items()},
        }
        OUT.write_text(json.dumps(answer, indent=1) + "\n")  # what is done stays if the rest is stopped
        OUT.with_suffix(".md").write_text(report(answer) + "\n")
        print(f"{time.perf_counter() - started:.0f} s: {seed + 1} replicates", flush=True)
    print(report(answer))


if __name__ == "__main__":
    main()
