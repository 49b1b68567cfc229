"""What the shipped study `desk` shows: phi under five structures, checks, matched recipes, noise, mis-tuned rates.

Run with `python benchmarks/desk.py`; nothing is trained. The tables are printed and written to
benchmarks/results/desk.md, all figures to desk.json. docs/desk.md reads them for people.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from mistuning import phi_shifts, rate_rows, shifts_of
from recipes import table_of
from scipy import stats

from bayeslaw.checks.cells import cells_of
from bayeslaw.checks.criticism import automatic_checks, criticise
from bayeslaw.cli.output import plain
from bayeslaw.compare.matched import MATCHINGS, MatchedGain, matched_gain
from bayeslaw.compare.versus import Standing, standings
from bayeslaw.diagnostics import check, phi_differences, worth_differences
from bayeslaw.fit import fit
from bayeslaw.inputs import inputs_of
from bayeslaw.posterior import Fit
from bayeslaw.predict import interval
from bayeslaw.runs import RunTable, load_runs
from bayeslaw.schema import BASELINE, INJECTION_IN
from bayeslaw.spec import STRUCTURES
from bayeslaw.version import versions
from bayeslaw.worth import worth

OUT = Path(__file__).parent / "results" / "desk.json"
SUMMARY = ["mean", "sd", "q05", "q95", "sd_ratio", "ess_bulk", "r_hat"]
TOP = 3.2e12
"""The largest budget, FLOPs."""
Rows = list[dict[str, Any]]


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def seeds_of(runs: pd.DataFrame) -> Rows:
    """The designs with several seeds: mean loss and sd between seeds, nats per token, and all of them pooled."""
    keys = ["recipe", "recurrences", "d_model", "budget"]
    groups = runs.groupby(keys)["loss"].agg(["size", "mean", "std"]).query("size > 1").reset_index()
    free = groups["size"] - 1
    rows: Rows = [
        {**{key: row[key] for key in keys}, "seeds": row["size"], "loss": row["mean"], "sd": row["std"]}
        for row in groups.to_dict("records")
    ]
    sd = float(np.sqrt((free * groups["std"] ** 2).sum() / free.sum()))
    rows.append({"recipe": "all", "free": int(free.sum()), "sd": sd, "sd_log": sd / float(groups["mean"].mean())})
    return rows


def lack_of_fit(posterior: Fit) -> dict[str, Any]:
    """F of the law's residuals against the pure error, as `bayeslaw check` computes it, with its p-value."""
    card = next(card for card in automatic_checks(posterior) if card.name == "lack-of-fit")
    (against, pure, noise), (_, law, misfit) = card.rows
    more, free = int(law) - int(pure), int(pure)
    assert card.value is not None
    p = float(stats.f.sf(card.value, more, free))
    return {
        "F": card.value, "free_misfit": more, "free_pure": free, "p": p, "against": against,
        "rms_pure_log": float(noise), "rms_law_log": float(misfit),
    }  # fmt: skip


def cell_rows(runs: pd.DataFrame) -> Rows:
    """The parabola of every cell: where its best width is, and whether that lies within the widths trained."""
    inputs = inputs_of(runs, injection_in="once")
    cells = cells_of(inputs)
    off, free = cells.off_parabolas(inputs.loss)
    scatter = float(np.sqrt((off**2).sum() / free))
    rows: Rows = []
    for cell in np.flatnonzero(cells.curved):
        at, slope, curvature = cells.parabolas[cell] @ inputs.loss
        error = scatter * float(np.linalg.norm(cells.parabolas[cell][2]))
        members = cells.members[cell]
        order = np.argsort(cells.log_n[members])
        log_n, widths = cells.log_n[members][order], runs["d_model"].to_numpy(dtype=float)[members][order]
        best = cells.centres[cell] - slope / (2 * curvature) if curvature > 0 else np.nan
        lowest = int(runs["loss"].to_numpy()[members].argmin())
        rows.append(
            {
                "recipe": inputs.recipes[cells.recipe[cell]],
                "recurrences": cells.recurrences[cell],
                "budget": float(runs["budget"].to_numpy()[members[0]]),
                "widths": sorted(set(widths.astype(int).tolist())),
                "curvature": curvature,
                "curvature_se": error,
                "best_width": float(np.exp(np.interp(best, log_n, np.log(widths)))),
                "inside": bool(log_n[0] < best < log_n[-1]),
                "best_loss": float(at - slope**2 / (4 * curvature)),
                "lowest_width": int(runs["d_model"].to_numpy()[members[lowest]]),
            }
        )
    return rows


def answers(table: RunTable) -> tuple[dict[str, Any], Fit]:
    """What every structure says of every recipe, and how far it misses the runs; the fit of the default model."""
    out: dict[str, Any] = {}
    kept = None
    for name, settings in STRUCTURES.items():
        say(f"structure: {name}")
        posterior = fit(table, **settings)
        kept = kept or posterior
        out[name] = answer(posterior) | {"lack_of_fit": lack_of_fit(posterior)}
    assert kept is not None
    return out, kept


def answer(posterior: Fit) -> dict[str, Any]:
    """phi and g(r) by recipe, differences from the baseline's, all parameters, and whether the sampler worked."""
    verdict = check(posterior)
    return {
        "phi": {each: interval(posterior.draws(each, names=["phi"])["phi"]) for each in posterior.recipes},
        "worth": {
            each: {f"{r:g}": interval(draws) for r, draws in worth(posterior, recipe=each).items()}
            for each in posterior.recipes
        },
        "phi_difference": phi_differences(posterior),
        "log_worth_difference": worth_differences(posterior),
        "parameters": verdict.parameters[SUMMARY].T.to_dict(),
        "diagnostics": verdict.as_dict(),
    }


def other_counts(table: RunTable) -> dict[str, Any]:
    """The default model with the injection's parameters counted elsewhere."""
    out = {}
    for convention in INJECTION_IN[1:]:
        say(f"injection in {convention}")
        out[convention] = answer(fit(table, injection_in=convention, drift=False))
    return out


def worth_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """phi, g(2) and g(4) of every recipe under every structure: mean and 90 % interval."""
    rows = []
    for name, one in found.items():
        mark = "" if one["diagnostics"]["passed"] else " (not converged)"
        for recipe, phi in one["phi"].items():
            apart = one["phi_difference"].get(recipe)
            rows.append(
                (
                    name + mark, recipe, ranged(phi), *(ranged(one["worth"][recipe][r]) for r in ("2", "4")),
                    ranged(apart, sign="+") if apart else "", f"{apart['p_gt_0']:.3f}" if apart else "",
                )
            )  # fmt: skip
    return rows


def ranged(value: Any, digits: int = 2, sign: str = "") -> str:
    mean, low, high = (f"{value[key]:{sign}.{digits}f}" for key in ("mean", "q05", "q95"))
    return f"{mean} [{low}, {high}]"


def page(result: dict[str, Any], gains: Sequence[MatchedGain], standing: Sequence[Standing]) -> list[str]:
    """desk.md: each table under its heading."""
    lines = ["# The study `desk`", "", result["about"], ""]

    def section(title: str, text: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines.extend([f"## {title}", "", *([text, ""] if text else []), *table_of(header, rows), ""])

    header = ("structure", "recipe", "phi [90 %]", "g(2)", "g(4)", "phi less baseline's", "P(> 0)")
    section("What a recurrence is worth", "Injection counted in once.", header, worth_rows(result["structures"]))
    header = ("injection in", *header[1:])
    section("The default model by other counts", "", header, worth_rows(result["counts"]))
    header = ("recipe", "same", "r", "difference [90 %]", "P(lower)", "pairs", "cells", "tokens")
    rows = [(gain.recipe, *row) for gain in gains for row in gain.rows()]
    told = "Loss less that of the baseline's matched run, nats per token; `per step`: a factor 2.15 of FLOPs."
    section("Matched runs", told, header, rows)
    header = ("recipe", "r", "width", "loss", "same r", "P", "r = 1", "P", "inference", "P")
    told = "At each one's best width, by the default model; differences from the baseline's, P that it is lower."
    section(f"Loss at {TOP:.3g} training FLOPs", told, header, [one.row() for one in standing])
    default = result["structures"]["default"]
    rows = [
        (name, *(f"{row[key]:.4g}" for key in ("mean", "sd", "q05", "q95")), f"{row['sd_ratio']:.2f}")
        for name, row in default["parameters"].items()
        if row["sd_ratio"] is not None
    ]
    told = "Default model. sd ratio: posterior over prior sd (of logarithms, where positive); from .71 on the prior "
    told += "says more than the runs."
    section("What is learnt", told, ("parameter", "mean", "sd", "5 %", "95 %", "sd ratio"), rows)
    rows = [
        (name, f"{each['F']:.2f}", f"{each['free_misfit']}, {each['free_pure']}", f"{each['p']:.2g}",
         f"{each['rms_pure_log']:.4f}", f"{each['rms_law_log']:.4f}")
        for name, each in ((name, one["lack_of_fit"]) for name, one in result["structures"].items())
    ]  # fmt: skip
    head = ("structure", "F", "degrees of freedom", "p", "rms between seeds, log loss", "rms of the law, log loss")
    section("Lack of fit against the seeds", "", head, rows)
    rows = [
        (row["recipe"], f"{row['recurrences']:g}", f"{row['d_model']:g}", f"{row['budget']:.2g}", f"{row['seeds']:g}",
         f"{row['loss']:.4f}", f"{row['sd']:.4f}")
        for row in result["seeds"][:-1]
    ]  # fmt: skip
    pooled = result["seeds"][-1]
    told = f"Pooled sd {pooled['sd']:.4f} nats per token with {pooled['free']} degrees of freedom."
    section("Seeds", told, ("recipe", "r", "width", "budget", "seeds", "loss", "sd"), rows)
    rows = [
        (row["recipe"], f"{row['recurrences']:g}", f"{row['budget']:.2g}", ", ".join(map(str, row["widths"])),
         f"{row['best_width']:.0f}" if row["inside"] else "outside", str(row["lowest_width"]),
         f"{row['best_loss']:.4f}" if row["inside"] else "", f"{row['curvature']:.3f} ± {row['curvature_se']:.3f}")
        for row in result["cells"]
    ]  # fmt: skip
    inside = sum(row["inside"] for row in result["cells"])
    told = f"Parabolas of loss over log N; the best width lies inside the grid in {inside} of {len(rows)} cells."
    head = ("recipe", "r", "budget", "widths", "best width", "width of least loss", "loss there", "curvature")
    section("Cells", told, head, rows)
    rows = [
        (row["recipe"], str(row["recurrences"]), f"{row['loss']:.4f}",
         *(f"{row[f'change_x{f}']:+.4f} ± {row[f'se_x{f}']:.4f}" for f in ("0.5", "2")),
         f"{row['best_factor']:.2f} [{row['best_q05']:.2f}, {row['best_q95']:.2f}]",
         f"{row['lost']:.4f} [{row['lost_q05']:.4f}, {row['lost_q95']:.4f}]")
        for row in result["rates"]
    ]  # fmt: skip
    told = "Nats per token at width 32 and 8e11 FLOPs, paired by seed; best factor by a parabola in the log of the "
    told += "rate, within the rates tried; lost: loss at the study's rate less that at the best."
    head = ("recipe", "r", "loss", "rate x 0.5", "rate x 2", "best factor", "lost")
    section("Rates", told, head, rows)
    rows = [
        (row["scenario"], row["recipe"], f"{row['phi']:.2f} [{row['q05']:.2f}, {row['q95']:.2f}]",
         f"{row['shift']:+.3f}", f"{row['point_shift']:+.3f} [{row['point_q05']:+.3f}, {row['point_q95']:+.3f}]")
        for row in result["mistuned"]
    ]  # fmt: skip
    told = "Each arm's losses moved by what its rates move them at one cell. Shift: of the default model's posterior "
    told += "mean; in the last column of the coupled law's point fit (least squares), with the error of the measured "
    told += "changes."
    head = ("mis-tuned", "recipe", "phi [90 %]", "shift", "shift of the point fit [90 %]")
    section("phi under mis-tuning", told, head, rows)
    rows = [(card["name"], card["verdict"], card["reading"]) for card in result["check"]["cards"]]
    section("Checks of the default model", result["check"]["verdict"], ("check", "verdict", "reading"), rows)
    return lines


def main() -> None:
    started = time.perf_counter()
    table, rates = load_runs("desk"), load_runs("desk-rates")
    structures, posterior = answers(table)
    gains = [
        matched_gain(table.runs, recipe, BASELINE, matching=matching)
        for recipe in posterior.recipes[1:]
        for matching in MATCHINGS
    ]
    standing = standings(posterior, TOP)
    shifts = shifts_of(table.runs, rates.runs)
    names = versions("numpy", "xarray", "pymc", "pytensor", "nutpie", "numba")
    result: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": names,
        "data": {each.source: {"runs": len(each.runs), "data_hash": each.data_hash} for each in (table, rates)},
        "structures": structures,
        "counts": other_counts(table),
        "matched": [{"recipe": gain.recipe, "matching": gain.matching, **gain.as_dict()} for gain in gains],
        "standings": [one.as_dict() for one in standing],
        "check": criticise(posterior, refit=False).as_dict(),
        "seeds": seeds_of(table.runs),
        "cells": cell_rows(table.runs),
        "rates": rate_rows(shifts),
        "mistuned": phi_shifts(table, posterior, shifts, say),
    }
    result["seconds"] = time.perf_counter() - started
    result["about"] = (
        f"`python benchmarks/desk.py`, {result['date']}, {os.cpu_count()} cores, {result['machine']['system']}, "
        + ", ".join(f"{name} {value}" for name, value in names.items())
        + f"; {result['seconds']:.0f} s. Data sets desk ({len(table.runs)} runs) and desk-rates ({len(rates.runs)})."
    )
    result = plain(result)
    OUT.parent.mkdir(exist_ok=True)
    lines = page(result, gains, standing)
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    OUT.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
