"""The automatic checks: what a statistician found on isodepth, found unasked; silence where the law is true."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import load_runs, sampling
from bayeslaw.checks.cells import cells_of, replicates
from bayeslaw.checks.criticism import model_of
from bayeslaw.checks.misfit import misfit_checks
from bayeslaw.checks.optima import optima
from bayeslaw.checks.residuals import Residuals
from bayeslaw.datasets import load_dataset
from bayeslaw.fit import fit
from bayeslaw.inputs import inputs_of
from bayeslaw.likelihood import named
from bayeslaw.priors import DEFAULT
from bayeslaw.spec import Spec
from bayeslaw.structure import structure_of

# Published minima of the 24 (r, budget) cells: r, budget, N_unique at the optimum, loss there (the paper's page).
MINIMA = """
1 4.64e17 67800356.37 2.8522911955
1 1e18 108947505.56 2.7184313394
1 2.15e18 166600375.25 2.6047693327
1 4.64e18 253251356.96 2.4976328803
1 1e19 353365903.17 2.4013711712
1 2.15e19 544939137.39 2.3087943171
2 4.64e17 38242361.35 2.9136980993
2 1e18 63186383.97 2.7737983700
2 2.15e18 101320457.00 2.6451582021
2 4.64e18 161693393.36 2.5336934529
2 1e19 253729994.50 2.4312104401
2 2.15e19 381108164.49 2.3388663838
4 4.64e17 28102936.86 2.9357202539
4 1e18 45287636.96 2.7963291737
4 2.15e18 71622030.30 2.6706202465
4 4.64e18 118677054.85 2.5590913325
4 1e19 183437985.39 2.4582285841
4 2.15e19 305815134.64 2.3599083736
8 4.64e17 22610503.97 2.9767858798
8 1e18 39232872.18 2.8380851309
8 2.15e18 65349432.28 2.7089208439
8 4.64e18 96756236.33 2.5976845906
8 1e19 155473312.86 2.4949921906
8 2.15e19 243090367.68 2.4021002811
"""


def checks(result):
    inputs, structure, priors = model_of(result)
    return {card.name: card for card in misfit_checks(result.posterior, structure, inputs, priors)}


@pytest.fixture(scope="module")
def default_fit():
    return fit("isodepth", draws=300, tune=400, chains=2)


@pytest.fixture(scope="module")
def additive(isodepth_fit):
    return checks(isodepth_fit)


@pytest.fixture(scope="module")
def default(default_fit):
    return checks(default_fit)


def test_the_additive_laws_misfit_is_found(additive):
    """The prototypes' numbers: curvature 1.75 +- .03, F 32, .021 a step, .63 within cells, N* 1.06 to 1.50 times."""
    assert {name for name in ("curvature", "offsets", "within-between", "lack-of-fit", "exponent-drift", "optimum")
            if not additive[name].warns} == set()  # fmt: skip
    assert additive["curvature"].value == pytest.approx(1.75, abs=0.04)
    assert "24 of 24 cells" in additive["curvature"].reading
    assert additive["lack-of-fit"].value == pytest.approx(32, abs=2)
    assert additive["within-between"].arrays["within"][0] == pytest.approx(0.63, abs=0.02)
    x, offset = np.log(additive["offsets"].arrays["flops"]), additive["offsets"].arrays["offset"]
    assert np.polyfit(x, offset, 1)[0] * np.log(10) / 3 == pytest.approx(0.021, abs=0.003)
    ratio = additive["optimum"].arrays["ratio"]
    assert ratio.min() == pytest.approx(1.06, abs=0.03)
    assert ratio.max() == pytest.approx(1.50, abs=0.04)
    assert "the slope of measured loss over size, all cells together, is" in additive["optimum"].reading
    assert "default model" in additive["curvature"].advice


def test_the_default_model_has_the_shape_right(default):
    for name in ("curvature", "offsets", "optimum", "residuals-r", "residuals-budget"):
        assert not default[name].warns, default[name].reading
    assert 0.9 < default["curvature"].value < 1.15
    ratio = default["optimum"].arrays["ratio"]
    assert np.abs(ratio - 1).max() < 0.15


def test_what_the_default_model_misses_is_said_too(default):
    """Cells have levels of their own: independent errors are too sure, and the exponent of r = 2 grows."""
    assert 8 < default["lack-of-fit"].value < 14
    assert default["lack-of-fit"].warns
    assert default["within-between"].warns
    path = [float(value) for value in default["exponent-drift"].rows[0][-1].split()]
    assert path[0] < 0.3 < 0.43 < path[-1]


def test_the_default_models_optima_against_the_published_minima(default_fit):
    """All N* within 15 %, L* within .006 rms and .012 at most: the bar that the default model was chosen by."""
    inputs, structure, _ = model_of(default_fit)
    left = Residuals.of(default_fit.posterior, structure, inputs)
    found = optima(left)
    published = np.array([line.split() for line in MINIMA.split("\n") if line], dtype=float)
    order = [
        int(np.argmin(np.abs(np.log(published[:, 1] / flops)) + 10 * np.abs(published[:, 0] - r)))
        for flops, r in zip(left.cells.flops[found.cell], left.cells.recurrences[found.cell], strict=True)
    ]
    assert sorted(order) == list(range(24))
    _, _, size, loss = published[order].T
    np.testing.assert_allclose(found.measured, size, rtol=0.01)
    np.testing.assert_allclose(found.measured_loss, loss, atol=3e-4)
    assert np.abs(found.law / size - 1).max() < 0.15
    off = found.law_loss - loss
    assert np.sqrt((off**2).mean()) <= 0.006
    assert np.abs(off).max() <= 0.012


def alarms(source, model, count, *, draws=200):
    """Share of alarms by check, and of data sets with any, over data drawn from a fit and fitted by a model."""
    inputs, *_ = model_of(source)
    spec = replace(model, draws=draws, tune=300, chains=2)
    structure = structure_of(inputs, spec, DEFAULT)
    drawn = source.data["posterior_predictive"]["log_loss"].values.reshape(-1, len(inputs.loss))
    warned = []
    for place in np.random.default_rng(8).choice(len(drawn), count, replace=False):
        data = replace(inputs, loss=np.exp(drawn[place]))
        data.__dict__["centre"] = inputs.centre
        sampled = sampling.sample(
            structure, data, DEFAULT, spec, progress=lambda message: None, timed=lambda stage: None
        )
        parameters = named(sampled["posterior"].to_dataset()["theta"].values, structure, data)
        cards = misfit_checks(parameters, structure, data, DEFAULT)
        assert {card.verdict for card in cards} <= {"ok", "warning"}
        warned.append(any(card.warns for card in cards))
    return float(np.mean(warned))


@pytest.mark.slow
def test_data_from_the_fitted_law_rarely_raise_an_alarm(default_fit):
    """One in ten at most: of 6 data sets, four alarms would be one chance in eight hundred."""
    assert alarms(default_fit, default_fit.spec, 6) <= 3 / 6


@pytest.mark.slow
def test_false_alarms_are_at_most_one_in_ten(default_fit):
    """Of 60 data sets with 10 % alarms 12 or fewer would have one in 98 of a hundred tries."""
    assert alarms(default_fit, default_fit.spec, 60) <= 12 / 60


@pytest.mark.slow
def test_the_additive_misfit_is_found_in_simulated_data(default_fit):
    assert alarms(default_fit, Spec(), 20) >= 18 / 20


def test_seeds_serve_as_pure_error_and_checkpoints_do_not():
    runs = load_dataset("isodepth").iloc[:40]
    again = runs.assign(run_id=runs["run_id"] + "/1", loss=runs["loss"] * 1.001)
    seeds = inputs_of(load_runs(pd.concat([runs, again], ignore_index=True)).runs, injection_in="once")
    assert len(replicates(seeds)) == 40
    again["tokens"] = (again["tokens"] * 0.9).astype(int)
    again["flops"] = again["tokens"] * again["flops_per_token"]
    checkpoints = inputs_of(load_runs(pd.concat([runs, again], ignore_index=True)).runs, injection_in="once")
    assert replicates(checkpoints) == []


def test_a_grid_without_budget_lines_is_told_so(plain_table):
    found = checks(fit(plain_table, law="additive", draws=150, tune=250, chains=2))
    for name in ("curvature", "offsets", "within-between", "lack-of-fit", "exponent-drift", "optimum"):
        assert found[name].verdict == "not applicable", name
        assert found[name].reading
    assert found["residuals-budget"].verdict in ("ok", "warning")


def test_parabolas_find_a_known_curve():
    inputs = inputs_of(load_runs("isodepth").runs, injection_in="once")
    cells = cells_of(inputs)
    x = cells.log_n - cells.centres[cells.index]
    values = 1.0 + cells.index - 0.3 * x + 0.05 * x**2
    found = cells.parabolas[cells.curved] @ values
    np.testing.assert_allclose(found[:, 2], 0.05, rtol=1e-8)
    np.testing.assert_allclose(found[:, 1], -0.3, rtol=1e-8)
    left, free = cells.off_parabolas(values)
    assert np.abs(left).max() < 1e-9
    assert free == 116 - 3 * 24
