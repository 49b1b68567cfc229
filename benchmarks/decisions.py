"""What decisions are worth when the truth is known: realised regret of `bayeslaw allocate` and of the plug-in optimum.

Run with `python benchmarks/decisions.py`; tables are printed and written to benchmarks/results/decisions.json, single
decisions to decisions.csv as they grow: a run that was stopped goes on where it was; delete it to begin anew.
`--truths 200` says how many truths each law has.

A truth is one posterior draw of a law fitted to the published baseline runs: of the default model or of the additive
law. Losses of the 116 runs are drawn from it, and two people decide on them. One fits the default model and takes what
`allocate` recommends; the other repeats the published procedure, a point fit of the additive law with the published
split of N, and takes the trainable configuration next to its optimum. The realised regret is the truth's loss of what
was chosen above that of the best trainable configuration; the stated one is `expected_regret`.

Problems, within the trained compute: the two largest budgets; the largest with room for 200 million parameters only,
where r matters; with two thirds of the tokens that it would take; with ten billion tokens to be generated. And beyond
it: five times the largest budget, where the default model allows for a drift that no law has, so that the regret it
states is more than a law as truth bears out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

from bayeslaw.allocate import allocate
from bayeslaw.constraints import Constraints
from bayeslaw.files import written_whole
from bayeslaw.fit import fit
from bayeslaw.frontier import optimum
from bayeslaw.laws import make_law
from bayeslaw.lines import Line
from bayeslaw.location import Location
from bayeslaw.point.fit import point_fit
from bayeslaw.posterior import Fit
from bayeslaw.predict import family_of, law_loss
from bayeslaw.runs import RunTable, load_runs
from bayeslaw.schema import STUDENT_NU
from bayeslaw.sizes import Sizes, along, sizes_of
from bayeslaw.spec import DEFAULT_MODEL
from bayeslaw.version import versions

OUT = Path(__file__).parent / "results" / "decisions.json"

RECURRENCES = (1, 2, 4, 8)
LAWS = {"default": dict(DEFAULT_MODEL), "additive": {"law": "additive"}}
PROBLEMS: dict[str, tuple[float, Constraints]] = {
    "1e19": (1e19, Constraints()),
    "2.15e19": (2.15e19, Constraints()),
    "2.15e19, 400 MB": (2.15e19, Constraints(memory=4e8)),
    "2.15e19, 3e9 tokens": (2.15e19, Constraints(data_tokens=3e9)),
    "2.15e19, 1e10 generated": (2.15e19, Constraints(lifetime_tokens=1e10)),
    "1e20": (1e20, Constraints()),
}
BEYOND = ("1e20",)
INSIDE = "within trained compute"
SAMPLER = {"draws": 500, "tune": 500, "chains": 2}
MOST_WIDTH = 24_000


@dataclass(frozen=True)
class Menu:
    """All that can be trained for one problem, by r."""

    sizes: dict[int, Sizes]
    lines: dict[int, Line]
    widths: dict[int, np.ndarray]
    tokens: dict[int, np.ndarray]

    def losses(self, truth: Fit, place: int, convention: dict[str, Any]) -> dict[int, np.ndarray]:
        """Loss of every configuration by one draw of a fit."""
        out = {}
        for r in RECURRENCES:
            sizes = sizes_of(family_of(truth), r, **convention)
            draws = {name: values[place : place + 1] for name, values in truth.draws(recurrences=r).items()}
            x, d = self.widths[r].astype(float), self.tokens[r].astype(float)
            out[r] = law_loss(truth.law, draws, along(sizes.n_once, x), along(sizes.n_rec, x), r, d)[0]
        return out


def menu(found: Fit, flops: float, constraints: Constraints) -> Menu:
    family = family_of(found)
    sizes = {r: sizes_of(family, r, **found.convention) for r in RECURRENCES}
    lines = {r: constraints.line(sizes[r], flops) for r in RECURRENCES}
    widths = {
        r: np.arange(family.width_step, min(lines[r].largest * (1 + 1e-9), MOST_WIDTH) + 1e-6, family.width_step)
        for r in RECURRENCES
    }
    tokens = {
        r: np.array([lines[r].whole_tokens(float(x), family.batch_tokens) for x in widths[r]]) for r in RECURRENCES
    }
    return Menu(sizes, lines, widths, tokens)


def drawn(truth: Fit, place: int, table: RunTable, rng: np.random.Generator) -> RunTable:
    """The runs with losses drawn from one draw of a fit."""
    runs = table.runs.copy()
    log_loss = np.empty(len(runs))
    for r in RECURRENCES:
        rows = (runs["recurrences"] == r).to_numpy()
        parameters = {name: values[place] for name, values in truth.draws(recurrences=r).items()}
        n_once, n_rec, tokens = (
            runs.loc[rows, name].to_numpy(dtype=float) for name in ("n_once", "n_shared", "tokens")
        )
        n_once = n_once + runs.loc[rows, "n_injection"].to_numpy(dtype=float)
        log_loss[rows] = np.log(truth.law.loss(n_once, n_rec, float(r), tokens, parameters))
    student = truth.spec.outliers == "student"
    standard = rng.standard_t(STUDENT_NU, len(runs)) if student else rng.standard_normal(len(runs))
    runs["loss"] = np.exp(log_loss + parameters["sigma"] * standard)
    if "loss_se" in runs:
        runs = runs.drop(columns="loss_se")
    return load_runs(runs)


def plugged(table: RunTable, choice: Menu, convention: dict[str, Any]) -> tuple[int, float]:
    """r and width next to the optimum of the published procedure's point law."""
    parameters = point_fit(table, law="additive", injection_in="regression").parameters
    law = make_law("additive")
    draws = {name: np.array([float(parameters[name])]) for name in law.parameters}
    best: tuple[float, int, float] = (np.inf, 0, 0.0)
    for r in RECURRENCES:
        own = sizes_of(family_of_table(table), r, injection_in="regression", trained=RECURRENCES)
        at = optimum(law, draws, own, choice.lines[r], recurrences=r)
        assert at.width_scale is not None
        widths = choice.widths[r]
        width = float(np.clip(own.nearest(64 * float(at.width_scale[0])), widths[0], widths[-1]))
        place = int(np.searchsorted(widths, width))
        loss = law_loss(law, draws, along(own.n_once, width), along(own.n_rec, width), r, choice.tokens[r][place])
        best = min(best, (float(loss[0, 0]), r, width))
    return best[1], best[2]


def family_of_table(table: RunTable):
    from bayeslaw.family import FAMILY_COLUMNS, spanned_family

    return spanned_family("of the runs", {name: table.runs[name].tolist() for name in FAMILY_COLUMNS})


def decided(truth: Fit, place: int, table: RunTable, menus: dict[str, Menu]) -> list[dict[str, Any]]:
    rng = np.random.default_rng([17, place])
    runs = drawn(truth, place, table, rng)
    own = fit(runs, seed=place, **SAMPLER)
    rows = []
    for name, (flops, constraints) in PROBLEMS.items():
        losses = menus[name].losses(truth, place, truth.convention)
        least = min(float(values.min()) for values in losses.values())
        made = allocate(own, flops=flops, constraints=constraints, location=Location(tau=0.0, cells=0))
        ours = (made.recommended.recurrences, float(made.recommended.trainable.d_model or 0))
        theirs = plugged(runs, menus[name], truth.convention)
        row: dict[str, Any] = {"draw": place, "problem": name, "stated": made.expected_regret}
        for who, (r, width) in (("ours", ours), ("plug_in", theirs)):
            regret = float(losses[r][np.searchsorted(menus[name].widths[r], width)]) - least
            row |= {f"{who}_r": r, f"{who}_width": width, f"{who}_regret": regret}
        rows.append(row)
    return rows


def summary(rows: pd.DataFrame) -> dict[str, Any]:
    out = {}
    together = {INSIDE: [name for name in PROBLEMS if name not in BEYOND], "all": list(PROBLEMS)}
    for name in (*PROBLEMS, *together):
        part = rows[rows["problem"].isin(together.get(name, [name]))]
        ours, theirs = part["ours_regret"], part["plug_in_regret"]
        # A truth is drawn again with all its problems.
        each = part.groupby("draw")[["stated", "ours_regret"]].mean().to_numpy()
        picks = np.random.default_rng(0).integers(0, len(each), (2000, len(each)))
        drawn = each[picks].mean(axis=1)
        ratio = drawn[:, 0] / np.maximum(drawn[:, 1], 1e-12)
        out[name] = {
            "ours_mean": ours.mean(), "ours_q95": ours.quantile(0.95), "plug_in_mean": theirs.mean(),
            "plug_in_q95": theirs.quantile(0.95), "stated_mean": part["stated"].mean(),
            "stated_over_realised": part["stated"].mean() / max(ours.mean(), 1e-12),
            "stated_over_realised_90": np.quantile(ratio, [0.05, 0.95]).tolist(),
        }  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truths", type=int, default=200)
    parser.add_argument("--laws", default=",".join(LAWS))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    table, path = load_runs("isodepth"), arguments.out.with_suffix(".csv")
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["law", "draw"])
    for law in arguments.laws.split(","):
        truth = fit(table, **LAWS[law])
        count = truth.posterior.sizes["chain"] * truth.posterior.sizes["draw"]
        menus = {name: menu(truth, flops, constraints) for name, (flops, constraints) in PROBLEMS.items()}
        for place in np.linspace(0, count - 1, arguments.truths).astype(int):
            if ((done["law"] == law) & (done["draw"] == place)).any():
                continue
            rows = pd.DataFrame(decided(truth, int(place), table, menus))
            rows.insert(0, "law", law)
            done = pd.concat([done, rows], ignore_index=True) if len(done) else rows
            with written_whole(path) as partial:
                done.to_csv(partial, index=False, float_format="%.4g")
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "versions": versions("numpy", "pymc", "nutpie", "numba"),
        "truths": {law: int(rows["draw"].nunique()) for law, rows in done.groupby("law")},
        "summary": {law: summary(rows) for law, rows in done.groupby("law")},
    }
    with written_whole(arguments.out) as partial:
        partial.write_text(json.dumps(result, indent=1, default=float) + "\n")
    report(result)


def report(result: dict[str, Any]) -> None:
    for law, rows in result["summary"].items():
        print(f"{result['truths'][law]} truths from the {law} law; regret in 1e-4 nats/token")
        print("problem                    ours: mean, q95   plug-in: mean, q95   stated   stated / realised (90 %)")
        for name, row in rows.items():
            ours, theirs = ([1e4 * row[f"{who}_{key}"] for key in ("mean", "q95")] for who in ("ours", "plug_in"))
            ratio = "-"
            if row["ours_mean"] > 0:
                low, high = row["stated_over_realised_90"]
                ratio = f"{row['stated_over_realised']:.2f} ({low:.2f}-{high:.2f})"
            print(
                f"{name:24s} {ours[0]:8.2f} {ours[1]:8.2f} {theirs[0]:11.2f} {theirs[1]:8.2f} "
                f"{1e4 * row['stated_mean']:8.2f}   {ratio}"
            )


if __name__ == "__main__":
    main()
