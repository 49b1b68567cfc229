"""How often models of known truth are told apart by `bayeslaw compare`'s rule, and how often checks alarm.

Runs on the design of the published grid are drawn from a law whose parameters are those of its own fit to the published
losses, so that they look like the real ones, and fitted by every candidate.

laws, maps
    The preferred model is the true one: the best by PSIS-LOO, or the simplest of those within two standard errors.
worths
    No wrong map is declared better than the true one by over two standard errors.
checks
    Checks of misfit are silent on data of the fitted law itself, and find that an additive law fits coupled data.

Run with `python benchmarks/selection.py`; tables are printed and written to benchmarks/results/selection.json, as they
grow: a run that was stopped goes on where it was; delete the file to begin anew. `--replicates 50` and `--checks 100`
say how many data sets each truth has, `--parts laws,maps` that only these are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bayeslaw import sampling
from bayeslaw.checks.cards import FAILED
from bayeslaw.checks.misfit import misfit_checks
from bayeslaw.checks.predictive import predictive_check
from bayeslaw.files import written_whole
from bayeslaw.holdout import Candidate
from bayeslaw.inputs import Inputs
from bayeslaw.likelihood import log_likelihood, named, predictive
from bayeslaw.priors import DEFAULT
from bayeslaw.ranking import DISTINGUISHED, LEAST_DIFFERENCE, loo, rank
from bayeslaw.runs import load_runs
from bayeslaw.spec import Spec
from bayeslaw.structure import free_parameters
from bayeslaw.version import versions

OUT = Path(__file__).parent / "results" / "selection.json"

SAMPLER = {"draws": 500, "tune": 500, "chains": 2}
DEMAND = sampling.Demand(ess=200, r_hat=1.02, thin=2)
"""Enough for an elpd, whose own Monte Carlo error stays well below its standard error over the runs."""

K = 0.42
"""Of the coupled law, wherever it is the truth of a ranking: the fits that truths are taken from have it fixed."""

LAWS = {name: {"law": name, "map": "power"} for name in ("additive", "coupled")}
MAPS = {name: {"law": "coupled", "map": name} for name in ("power", "none", "full", "log", "bounded", "hill")}
"""Settings of the models by name."""

RANKINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "laws": (("additive", "coupled"), ("additive", "coupled")),
    "maps": (("power", "none", "full", "log"), ("power", "none", "full", "log")),
    "worths": (("power", "bounded", "hill"), ("power", "bounded", "hill", "log")),
}
"""Truths and candidates of each part."""

CHECKS = {
    "coupled": ("coupled", "coupled"),
    "default": ("default", "default"),
    "additive": ("default", "additive"),
}
"""Truth and fitted model of each part of the checks; they differ where the checks are to find it."""


class Models:
    """Candidates for the published design, each made once."""

    def __init__(self) -> None:
        self.table = load_runs("isodepth")
        self._made: dict[str, Candidate] = {}

    def __getitem__(self, name: str) -> Candidate:
        if name not in self._made:
            settings = {} if name == "default" else {**LAWS, **MAPS}[name]
            self._made[name] = Candidate.of(self.table, Spec.of(**settings, **SAMPLER))
        return self._made[name]


def sampled(model: Candidate, inputs: Inputs) -> xr.DataTree:
    return sampling.sample(
        model.structure, inputs, model.priors, model.spec, progress=lambda message: None, timed=lambda stage: None,
        demand=DEMAND,
    )  # fmt: skip


def posterior(model: Candidate, inputs: Inputs) -> xr.Dataset:
    theta = sampled(model, inputs)["posterior"].to_dataset()["theta"].values
    return named(theta, model.structure, inputs)


def truth(models: Models, name: str, *, k: float | None = None) -> xr.Dataset:
    """The posterior mean of a model of the published losses, taken in local coordinates, where it is near the mode.

    Parameters
    ----------
    models : Models
    name : str
    k : float, optional
        What the coupled law's k is held at.
    """
    model = models[name]
    if k is not None:
        held = replace(DEFAULT, k=replace(DEFAULT.k, median=k, sd=1e-4))
        model = Candidate.of(models.table, model.spec, priors=held)
    layout = model.structure.layout
    theta = sampled(model, model.inputs)["posterior"].to_dataset()["theta"].values
    local = np.stack([layout.to_local(row) for row in theta.reshape(-1, theta.shape[-1])])
    return named(layout.from_local(local.mean(axis=0))[None, None], model.structure, model.inputs)


def drawn(model: Candidate, parameters: xr.Dataset, seed: int) -> Inputs:
    """The published design with losses drawn from a model."""
    rng = np.random.default_rng(seed)
    log_loss = predictive(parameters, model.structure, model.inputs, rng)["log_loss"].values[0, 0]
    return replace(model.inputs, loss=np.exp(log_loss))


def ranked(models: Models, names: tuple[str, ...], true: str, inputs: Inputs) -> dict[str, Any]:
    """One data set's ranking: the preferred model; every other's elpd over the true one's, with its standard error."""
    found = {
        name: loo(log_likelihood(posterior(models[name], inputs), models[name].structure, inputs)) for name in names
    }
    ranking = rank(found, {name: free_parameters(models[name].structure.blocks) for name in names})
    pointwise = {name: np.asarray(found[name].elpd_i, dtype=float).ravel() for name in names}
    over = {name: pointwise[name] - pointwise[true] for name in names if name != true}
    return {
        "preferred": ranking.preferred,
        "high_pareto_k": int(ranking.table["high_pareto_k"].max()),
        "over_truth": {
            name: [round(float(d.sum()), 2), round(float(np.sqrt(len(d)) * d.std(ddof=1)), 2)]
            for name, d in over.items()
        },
    }


def checked(model: Candidate, inputs: Inputs, seed: int) -> dict[str, Any]:
    """The cards of one data set that warn, those that failed, and every card's value."""
    parameters = posterior(model, inputs)
    cards = misfit_checks(parameters, model.structure, inputs, model.priors, rng=np.random.default_rng(seed))
    replicated = predictive(parameters, model.structure, inputs, np.random.default_rng(seed))["log_loss"]
    cards = (*cards, predictive_check(parameters, replicated, model.structure, inputs))
    return {
        "warnings": [card.name for card in cards if card.warns],
        "failed": [card.name for card in cards if card.verdict == FAILED],
        "values": {card.name: round(card.value, 3) for card in cards if card.value is not None},
    }


class Record:
    """Results as they grow, on disk after each data set."""

    def __init__(self, path: Path = OUT) -> None:
        self.path = path
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.truths: dict[str, dict[str, float]] = {}
        self.stamp = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
            "versions": versions("numpy", "xarray", "pymc", "pytensor", "nutpie", "numba", "arviz-stats"),
        }
        if path.exists():
            found = json.loads(path.read_text())
            if found["sampler"] == SAMPLER:
                self.rows, self.truths = found["data_sets"], found["truths"]

    def missing(self, part: str, true: str, count: int) -> list[int]:
        """Seeds of the data sets that are still to be drawn."""
        done = {row["seed"] for row in self.rows.get(part, ()) if row["truth"] == true}
        return [seed for seed in range(count) if seed not in done]

    def add(self, part: str, true: str, seed: int, row: Mapping[str, Any]) -> None:
        self.rows.setdefault(part, []).append({"truth": true, "seed": seed, **row})
        self.write()

    def write(self) -> None:
        result = {
            **self.stamp,
            "sampler": SAMPLER,
            "least_ess": DEMAND.ess,
            "k": K,
            "truths": self.truths,
            "summary": {part: summary(part, rows) for part, rows in self.rows.items()},
            "data_sets": self.rows,
        }
        with written_whole(self.path) as partial:
            partial.write_text(compact(result))


def compact(result: Mapping[str, Any]) -> str:
    """JSON with one line for each data set."""
    parts = {name: value for name, value in result.items() if name != "data_sets"}
    text = json.dumps(parts, indent=1)[:-2]
    sets = [
        f"  {json.dumps(part)}: [\n" + ",\n".join(f"   {json.dumps(row)}" for row in rows) + "\n  ]"
        for part, rows in result["data_sets"].items()
    ]
    return text + ',\n "data_sets": {\n' + ",\n".join(sets) + "\n }\n}\n"


def summary(part: str, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rates by truth."""
    of = ranking_rates if part in RANKINGS else check_rates
    names = dict.fromkeys(row["truth"] for row in rows)
    return {true: of(true, [row for row in rows if row["truth"] == true]) for true in names}


def ranking_rates(true: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the data sets of one truth: how often it is preferred, and how often told from the others.

    The latter by two standard errors alone, and where the difference of elpd must be over `LEAST_DIFFERENCE`
    besides, as the rule has it.
    """
    return {
        "data_sets": len(rows),
        "first": float(np.mean([row["preferred"] == true for row in rows])),
        "preferred": dict(Counter(row["preferred"] for row in rows)),
        "over_2_se": told(rows, 0.0),
        f"over_2_se_and_{LEAST_DIFFERENCE:g}": told(rows, LEAST_DIFFERENCE),
    }


def told(rows: list[dict[str, Any]], least: float) -> dict[str, Any]:
    """Shares of right (the true model better than every other), wrong (some other better than it), and neither."""
    others = [
        {name: abs(d) > max(DISTINGUISHED * se, least) and np.sign(d) for name, (d, se) in row["over_truth"].items()}
        for row in rows
    ]
    right = np.array([all(sign == -1 for sign in signs.values()) for signs in others])
    wrong = np.array([any(sign == 1 for sign in signs.values()) for signs in others])
    return {
        "right": float(right.mean()),
        "undecided": float((~right & ~wrong).mean()),
        "wrong": float(wrong.mean()),
        "declared_better": dict(Counter(name for signs in others for name, sign in signs.items() if sign == 1)),
    }


def check_rates(true: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the data sets of one part of the checks: with any warning, with one beside the predictive check's."""
    by_card = Counter(name for row in rows for name in row["warnings"])
    return {
        "data_sets": len(rows),
        "any": float(np.mean([bool(row["warnings"]) for row in rows])),
        "any_but_predictive": float(np.mean([bool(set(row["warnings"]) - {"predictive"}) for row in rows])),
        "curvature_or_lack_of_fit": float(
            np.mean([bool({"curvature", "lack-of-fit"} & set(row["warnings"])) for row in rows])
        ),
        "failed": sum(bool(row["failed"]) for row in rows),
        "by_card": dict(by_card.most_common()),
    }


def rank_all(models: Models, record: Record, part: str, count: int) -> None:
    """Draw and rank the data sets of a part that the record lacks."""
    truths, candidates = RANKINGS[part]
    for true in truths:
        if seeds := record.missing(part, true, count):
            sigma = truth(models, "coupled", k=K)["sigma"]
            parameters = truth(models, true, k=K).assign(sigma=sigma)
            record.truths[f"{part}: {true}"] = numbers(parameters)
            for seed in seeds:
                record.add(part, true, seed, ranked(models, candidates, true, drawn(models[true], parameters, seed)))


def check_all(models: Models, record: Record, count: int) -> None:
    """Draw and check the data sets that the record lacks."""
    for part, (true, fitted) in CHECKS.items():
        if seeds := record.missing("checks", part, count):
            parameters = truth(models, true)
            record.truths[f"checks: {part}"] = numbers(parameters)
            for seed in seeds:
                record.add("checks", part, seed, checked(models[fitted], drawn(models[true], parameters, seed), seed))


def numbers(parameters: xr.Dataset) -> dict[str, float]:
    return {str(name): float(f"{value.item():.6g}") for name, value in parameters.items()}


def table(part: str, rates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is printed of a part."""
    if part not in RANKINGS:
        lines = [f"{'checks':10s} {'sets':>5s} {'any':>6s} {'misfit':>7s} {'curvature, F':>13s}  warnings by card"]
        for true, row in rates.items():
            shares = f"{row['any']:6.2f} {row['any_but_predictive']:7.2f} {row['curvature_or_lack_of_fit']:13.2f}"
            lines.append(f"{true:10s} {row['data_sets']:5d} {shares}  {listed(row['by_card'])}")
        return lines
    rules = f"over 2 se; over 2 se and {LEAST_DIFFERENCE:g}"
    lines = [f"{part:10s} {'sets':>5s} {'first':>6s}   right, undecided, wrong: {rules}"]
    for true, row in rates.items():
        by = [row["over_2_se"], row[f"over_2_se_and_{LEAST_DIFFERENCE:g}"]]
        shares = "   ".join(f"{one['right']:.2f} {one['undecided']:.2f} {one['wrong']:.2f}" for one in by)
        better = listed(by[0]["declared_better"])
        lines.append(
            f"{true:10s} {row['data_sets']:5d} {row['first']:6.2f}   {shares}   preferred {listed(row['preferred'])}"
            + (f"; over 2 se better {better}" if better else "")
        )
    return lines


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicates", type=int, default=50)
    parser.add_argument("--checks", type=int, default=100)
    parser.add_argument("--parts", default=",".join((*RANKINGS, "checks")))
    arguments = parser.parse_args()
    models, record = Models(), Record()
    for part in arguments.parts.split(","):
        if part in RANKINGS:
            rank_all(models, record, part, arguments.replicates)
        else:
            check_all(models, record, arguments.checks)
        print("\n".join(table(part, summary(part, record.rows[part]))), flush=True)


if __name__ == "__main__":
    main()
