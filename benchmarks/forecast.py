"""Forecasts far beyond the grid, and of its upper budgets from its lower ones, beside other ways to make them.

Run with `python benchmarks/forecast.py`; the result is printed and written to benchmarks/results/forecast.json and .md.

The far runs are the two of width scale 34 on 47e9 tokens (about 20 times the grid's largest budget). Their losses are
published, and were known while the drift was designed, so this is no blind test. The drift's size is learnt from
rolling origins inside the grid alone; a run that falls outside its interval is reported so.

Each forecaster is fitted to all 116 runs of `isodepth` and to the four lower budgets alone. Those of the upper two
budgets are 36 runs that the second fit has not seen. The public package is run in an environment of its own that is
made and thrown away, or by an interpreter that has it (--public).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))
from default_model import BEYOND, HERE, PUBLIC

OUT = HERE / "results" / "forecast.json"
FAR = {"width_scale": 34, "tokens": 47e9}
LOWER = "budget <= 4.64e18"
MOST_WIDTH, MOST_DIFFERENCE = 0.10, 0.06
"""What the 90 % intervals may be wide: of a loss, and of the difference."""


def told(draws: np.ndarray, measured: float) -> dict[str, Any]:
    """Mean and 90 % interval of a forecast, and whether it holds what was measured."""
    low, high = np.quantile(draws, [0.05, 0.95])
    return {
        "mean": float(draws.mean()), "q05": float(low), "q95": float(high), "width": float(high - low),
        "measured": measured, "inside": bool(low <= measured <= high), "p_below": float((draws < measured).mean()),
    }  # fmt: skip


def far_row(one: np.ndarray, four: np.ndarray) -> dict[str, Any]:
    """The far runs and their difference from draws of each, the same draws of what they share."""
    return {
        "r = 1": told(one, BEYOND[1]),
        "r = 4": told(four, BEYOND[4]),
        "difference": told(four - one, round(BEYOND[4] - BEYOND[1], 6)),
    }


def scored(draws: np.ndarray, loss: np.ndarray) -> dict[str, float]:
    """Scores of forecasts of the upper budgets; draws are all that some forecasters give, so densities are kernels'."""
    from scipy.stats import gaussian_kde

    from bayeslaw.scores import Forecast

    density = np.array([gaussian_kde(d).logpdf(y)[0] for d, y in zip(draws.T, loss, strict=True)])
    return Forecast(loss=loss, draws=draws, log_density=np.maximum(density, -700)).scores.as_dict()


def ours(table, upper: pd.DataFrame | None, settings: dict[str, Any]) -> dict[str, Any]:
    """The posterior's forecasts, with their parts."""
    from bayeslaw.fit import fit
    from bayeslaw.forecasts import differences, predict_each
    from bayeslaw.predict import predict

    posterior = fit(table, **settings)
    made = predict_each(posterior, recurrences=[1, 4], **FAR)
    row: dict[str, Any] = {"far": far_row(made[0].loss, made[1].loss)}
    assert np.array_equal(differences(made)[0].loss, made[1].loss - made[0].loss)
    row["parts"] = {f"r = {one.recurrences:g}": one.as_dict()["parts"] for one in made}
    row["outside"] = {f"r = {one.recurrences:g}": one.as_dict()["outside"] for one in made}
    if "drift" in posterior.data.children:
        drift = posterior.data["drift"]
        row["drift_scale"] = {name: float(drift[name].median()) for name in ("scale", "scale_each")}
    if upper is not None:
        rows = zip(upper["width_scale"], upper["recurrences"], upper["tokens"], strict=True)
        draws = [predict(posterior, width_scale=s, recurrences=r, tokens=d, others=()).loss for s, r, d in rows]
        row["upper"] = scored(np.stack(draws, axis=1), upper["loss"].to_numpy(dtype=float))
    return row


def published(table, upper: pd.DataFrame | None) -> dict[str, Any]:
    """The additive law by the published procedure: a point, and 200 block-bootstrap resamples of the curve."""
    from bayeslaw.family import ISODEPTH
    from bayeslaw.laws import make_law
    from bayeslaw.point.fit import point_fit
    from bayeslaw.point.huber import block_bootstrap

    law, trained = make_law("additive"), table.runs["recurrences"].unique()
    settings = {"law": "additive", "map": "power", "injection_in": "regression"}
    samples = block_bootstrap(table, **settings).samples
    point = point_fit(table, **settings).parameters

    def curve(parameters, s: float, r: float, tokens: float):
        n_once, n_rec = ISODEPTH.split(64 * s, r, injection_in="regression", trained=trained)
        return law.loss(n_once, n_rec, r, tokens, parameters)

    resampled = {name: samples[name].to_numpy() for name in law.parameters}
    one, four = (curve(resampled, FAR["width_scale"], r, FAR["tokens"]) for r in BEYOND)
    row: dict[str, Any] = {"far": far_row(one, four)}
    at = [float(curve(point, FAR["width_scale"], r, FAR["tokens"])) for r in BEYOND]
    for name, value in zip(row["far"], (*at, at[1] - at[0]), strict=True):
        row["far"][name]["mean"] = value  # of the point itself
    if upper is not None:
        rows = list(zip(upper["width_scale"], upper["recurrences"], upper["tokens"], strict=True))
        loss = upper["loss"].to_numpy(dtype=float)
        row["upper"] = scored(np.stack([curve(resampled, *each) for each in rows], axis=1), loss)
        errors = np.array([curve(point, *each) for each in rows]) - loss
        row["upper"]["rmse"] = float(np.sqrt((errors**2).mean()))
    return row


def public(python: str, table, upper: pd.DataFrame | None) -> dict[str, dict[str, Any]]:
    """The public package, given each r's own n_unique, or N_eff at the phi of a point fit to the same runs."""
    from bayeslaw.family import ISODEPTH
    from bayeslaw.inputs import inputs_of
    from bayeslaw.point.fit import point_fit

    inputs = inputs_of(table.runs, injection_in="once")
    far = pd.DataFrame(
        {"recurrences": list(BEYOND), "tokens": FAR["tokens"], "d_model": 64 * FAR["width_scale"], "loss": np.nan}
    )
    points = far if upper is None else pd.concat([far, upper[far.columns]], ignore_index=True)
    splits = [
        ISODEPTH.split(d, r, injection_in="once", trained=())
        for d, r in zip(points["d_model"], points["recurrences"], strict=True)
    ]
    once, rec = np.array(splits).T
    rows = {}
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for given in ("n_unique, by r", "N_eff"):
            for law, theirs in (("additive", "separable-power"), ("coupled", "skaling-joint-power")):
                phi = point_fit(table, law=law).parameters["phi"] if given == "N_eff" else 0.0
                r = points["recurrences"].to_numpy(dtype=float)
                train = {"n": inputs.n_once + inputs.recurrences**phi * inputs.n_rec, "tokens": inputs.tokens}
                at = {"n": once + r**phi * rec, "tokens": points["tokens"].to_numpy(dtype=float)}
                groups = (inputs.recurrences, r) if given != "N_eff" else (np.ones(len(inputs.loss)), np.ones(len(r)))
                pd.DataFrame({"group": groups[0], **train, "loss": inputs.loss}).to_csv(
                    folder / "train.csv", index=False
                )
                pd.DataFrame({"group": groups[1], **at}).to_csv(folder / "points.csv", index=False)
                subprocess.run([python, HERE / "public_fitter.py", name], check=True, capture_output=True)
                draws = np.load(folder / f"{theirs}.npy")
                four = draws[:, 1]
                if given != "N_eff":  # fits of their own, drawn with one seed: nothing in common but that
                    four = rng.permutation(four)
                row = rows[f"{PUBLIC}, {theirs}, {given}"] = {"far": far_row(draws[:, 0], four)}
                if upper is not None:
                    row["upper"] = scored(draws[:, 2:], upper["loss"].to_numpy(dtype=float))
    return rows


def met(rows: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, bool]]:
    """The bars: how wide the intervals may be is asked of the fit to all runs only."""
    whole, part = (rows[runs]["default"]["far"] for runs in ("all", "four lower budgets"))
    return {
        "all": {
            "both losses and the difference inside": all(each["inside"] for each in whole.values()),
            f"width <= {MOST_WIDTH}": max(whole[r]["width"] for r in ("r = 1", "r = 4")) <= MOST_WIDTH,
            f"width of the difference <= {MOST_DIFFERENCE}": whole["difference"]["width"] <= MOST_DIFFERENCE,
        },
        "four lower budgets": {"both losses inside": all(part[r]["inside"] for r in ("r = 1", "r = 4"))},
    }


def main() -> None:
    from bayeslaw.runs import load_runs
    from bayeslaw.version import versions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--public", metavar="PYTHON", help=f"an interpreter that has {PUBLIC}")
    parser.add_argument("--no-public", action="store_true", help="leave the public package out (no network)")
    arguments = parser.parse_args()
    began = time.perf_counter()
    everything = load_runs("isodepth")
    lower = load_runs("isodepth", where=LOWER)
    upper = everything.runs[~everything.runs["run_id"].isin(lower.runs["run_id"])]
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        python = arguments.public
        if python is None and not arguments.no_public:
            venv.create(folder, with_pip=True)
            python = str(Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python")
            subprocess.run([python, "-m", "pip", "install", "-q", PUBLIC], check=True)
        for runs, table, unseen in (("all", everything, None), ("four lower budgets", lower, upper)):
            rows[runs] = {
                "default": ours(table, unseen, {}),
                "default without drift": ours(table, unseen, {"drift": False}),
                "additive, published procedure": published(table, unseen),
                **(public(python, table, unseen) if python is not None else {}),
            }
            print(f"{runs}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "seconds": round(time.perf_counter() - began),
        "versions": versions("numpy", "xarray", "pymc", "pytensor", "nutpie", "numba", "arviz"),
        "forecasts": rows,
        "met": met(rows),
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1, default=float) + "\n")
    text = page(result)
    OUT.with_suffix(".md").write_text(text)
    print(text)


def page(result: dict[str, Any]) -> str:
    """The result as a page."""
    stamp = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        "# Forecasts far beyond the grid, and of its upper budgets",
        "",
        f"`python benchmarks/forecast.py`, {result['date']}, {result['machine']}, {stamp}; {result['seconds']} s.",
        "",
        "Mean and 90 % interval of a new run's loss at width scale 34 on 47e9 tokens; an interval without the measured "
        "loss is marked `*`. The published procedure has intervals of the curve only, from 200 resamples of cells. The "
        "upper budgets are 36 runs that no fit to the four lower ones has seen. The far losses were known while the "
        "drift was designed; its size is learnt inside the grid.",
        "",
        f"| fitted to | forecaster | r = 1 ({BEYOND[1]}) | r = 4 ({BEYOND[4]}) | "
        f"difference ({BEYOND[4] - BEYOND[1]:.3f}) | RMSE of the upper budgets | covered at 90 % | log density |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for runs, found in result["forecasts"].items():
        for name, row in found.items():
            cells = [_interval(each) for each in row["far"].values()]
            scores = row.get("upper")
            cells += (
                [f"{scores['rmse']:.4f}", f"{scores['cover90']:.2f}", f"{scores['log_density']:.2f}"]
                if scores
                else [""] * 3
            )
            lines.append(f"| {runs} | {name} | {' | '.join(cells)} |")
    lines += ["", "## What the default's intervals are made of", ""]
    lines += [
        "Standard deviations in nats. Other laws are point fits of the additive and the coupled law with four maps to "
        "the same runs; they are no part of the interval.",
        "",
        "| fitted to | r | parameters | deviation | drift | new run | total | other laws | compute over the largest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for runs, found in result["forecasts"].items():
        for r, parts in found["default"]["parts"].items():
            each = [f"{parts[name]:.4f}" for name in ("parameter", "deviation", "drift", "run", "total")]
            law, compute = parts["law"], found["default"]["outside"][r]["compute"]
            lines.append(
                f"| {runs} | {r[4:]} | {' | '.join(each)} | {law['low']:.3f} to {law['high']:.3f} | "
                f"x {compute['factor']:.1f}, {compute['steps']:.1f} steps |"
            )
    lines += ["", "## Bars", ""]
    for runs, bars in result["met"].items():
        lines.append(f"- {runs}: " + "; ".join(f"{name}: {'yes' if ok else 'NO'}" for name, ok in bars.items()))
    for runs, found in result["forecasts"].items():
        scale = found["default"]["drift_scale"]
        lines.append(
            f"- drift of log loss a step, {runs}: standard deviation {scale['scale']:.4f} shared by all r, "
            f"{scale['scale_each']:.4f} of each r (medians)"
        )
    return "\n".join(lines) + "\n"


def _interval(each: dict[str, Any]) -> str:
    mark = "" if each["inside"] else " *"
    return f"{each['mean']:.3f} [{each['q05']:.3f}, {each['q95']:.3f}]{mark}"


if __name__ == "__main__":
    main()
