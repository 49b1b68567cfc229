"""Simulated runs of every law and hierarchy: the posterior contains the truth."""

import arviz_stats as azs
import numpy as np
import pandas as pd
import pytest

from bayeslaw import load_runs
from bayeslaw.diagnostics import check
from bayeslaw.fit import fit
from bayeslaw.laws import MAPS, make_law
from bayeslaw.simulate import simulate
from bayeslaw.worth import worth

ADDITIVE = {"E": 1.6, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37}
COUPLED = {"E": 1.35, "A": 2300.0, "B": 1.5e5, "alpha": 0.42, "beta": 0.57, "k": 0.45}
MAP_TRUTH = {
    "power": {"phi": 0.3},
    "none": {},
    "full": {},
    "bounded": {"gain": 1.4, "scale": 2.5},
    "log": {"slope": 0.6},
    "hill": {"gain": 3.0, "half": 5.0},
    "unrolled": {},
    "free": {"phi_2": 0.5, "phi_4": 0.35, "phi_8": 0.4},
}
SLOW = pytest.mark.slow


def contains(posterior, truth, *, level=""):
    """Every truth inside the central 99.9 % of its posterior draws (A and B have long tails: no distance in sd)."""
    for name, value in truth.items():
        draws = posterior.posterior[name]
        for factor in (dim for dim in draws.dims if dim not in ("chain", "draw")):
            draws = draws.sel({factor: level})
        low, high = np.quantile(draws, [0.0005, 0.9995])
        assert low < value < high, (name, low, value, high)


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        pytest.param(terms, name, marks=() if (terms, name) in {("additive", "bounded"), ("coupled", "free")} else SLOW)
        for terms in ("additive", "coupled")
        for name in MAPS
    ],
)
@pytest.mark.slow
def test_every_law_and_map_is_recovered(terms, name):
    design = load_runs("isodepth").runs
    law = make_law(terms, name, levels=(2.0, 4.0, 8.0))
    truth = {**(ADDITIVE if terms == "additive" else COUPLED), **MAP_TRUTH[name]}
    posterior = fit(simulate(design, parameters=truth, sigma=0.003, seed=4, law=law), law=terms, map=name)
    assert check(posterior).passed
    contains(posterior, truth, level="baseline")
    for r, draws in worth(posterior).items():
        true = float(law.map.worth(r, law.map_values(truth)))
        assert abs(draws.mean() - true) <= 4 * draws.std() + 1e-12


def test_cell_effects_are_recovered():
    design = load_runs("isodepth").runs
    law = make_law("coupled")
    truth = {**COUPLED, "phi": 0.5}
    tau = {"recipe+budget+recurrences": 0.008}
    runs = simulate(design, parameters=truth, sigma=0.002, seed=3, law=law, tau=tau)
    posterior = fit(runs, law="coupled", noise="cells")
    assert check(posterior).passed
    contains(posterior, {**truth, "sigma": 0.002, "tau_cell": 0.008}, level="baseline")
    blind = fit(runs, law="coupled")
    assert azs.loo(posterior.data).elpd > azs.loo(blind.data).elpd + 50


@SLOW
def test_student_cell_effects_are_recovered():
    runs = simulate(
        load_runs("isodepth").runs, parameters={**ADDITIVE, "phi": 0.5}, sigma=0.002, seed=3, outliers="student",
        tau={"recipe+budget+recurrences": 0.008},
    )  # fmt: skip
    posterior = fit(runs, law="additive", noise="cells", outliers="student")
    assert check(posterior).passed
    contains(posterior, {**ADDITIVE, "phi": 0.5, "sigma": 0.002, "tau_cell": 0.008}, level="baseline")


@pytest.mark.slow
def test_a_parameter_of_each_source_and_an_error_scale_that_falls_with_compute():
    design = load_runs("isodepth").runs
    elsewhere = design.assign(source="elsewhere", run_id="elsewhere/" + design["run_id"])
    truth = {**ADDITIVE, "phi": 0.4}
    runs = pd.concat(
        [
            simulate(design, parameters=truth, sigma=0.003, seed=1),
            simulate(elsewhere, parameters={**truth, "E": 1.9}, sigma=0.003, seed=2),
        ],
        ignore_index=True,
    )
    compute = np.log(runs["flops"] / np.exp(np.log(runs["flops"]).mean()))
    curve = pd.concat(
        [
            simulate(design, parameters=truth, sigma=0.0, seed=1),
            simulate(elsewhere, parameters={**truth, "E": 1.9}, sigma=0.0, seed=1),
        ],
        ignore_index=True,
    )["loss"]
    runs["loss"] = curve * (runs["loss"] / curve) ** np.exp(-0.3 * compute)
    posterior = fit(runs, law="additive", pooling={"E": "separate:source"}, error_scale="compute")
    assert check(posterior).passed
    shared = {name: value for name, value in truth.items() if name != "E"}
    contains(posterior, {**shared, "sigma_slope": -0.3}, level="baseline")
    rows = check(posterior).parameters
    for source, value in (("isodepth", 1.6), ("elsewhere", 1.9)):
        row = rows.loc[f"E[{source}]"]
        assert abs(row["mean"] - value) < 4 * row["sd"]


@SLOW
@pytest.mark.parametrize("mode", ["shared", "partial", "separate"])
def test_every_pooling_recovers_what_it_assumes(mode):
    design = load_runs("isodepth-recipes").runs
    own = dict(zip(("baseline", "truncated_bptt", "hyperconnections"), (0.4, 0.25, 0.6), strict=True))
    by_recipe = {} if mode == "shared" else {recipe: {"phi": value} for recipe, value in own.items()}
    runs = simulate(design, parameters={**ADDITIVE, "phi": 0.4}, sigma=0.003, seed=6, by_recipe=by_recipe)
    posterior = fit(runs, law="additive", pooling={"phi": mode})
    assert check(posterior).passed
    rows = check(posterior).parameters
    expected = {"phi": 0.4} if mode == "shared" else {f"phi[{recipe}]": value for recipe, value in own.items()}
    for name, value in expected.items():
        assert abs(rows.loc[name, "mean"] - value) < 4 * rows.loc[name, "sd"]
    assert ("phi_spread" in rows.index) == (mode == "partial")


@SLOW
def test_chinchilla_for_each_architecture_is_recovered():
    design = load_runs("isodepth").runs
    law = make_law("additive", "none")
    pieces = [
        simulate(design[design["recurrences"] == r], parameters={**ADDITIVE, "E": E}, sigma=0.002, seed=10 + r, law=law)
        for r, E in ((1, 1.5), (2, 1.6), (4, 1.7), (8, 1.8))
    ]
    posterior = fit(pd.concat(pieces, ignore_index=True), law="chinchilla", injection_in="rec")
    assert check(posterior).passed
    for r, E in ((1, 1.5), (2, 1.6), (4, 1.7), (8, 1.8)):
        contains(posterior, {**ADDITIVE, "E": E}, level=f"baseline/r={r}")
    assert worth(posterior) == {}
