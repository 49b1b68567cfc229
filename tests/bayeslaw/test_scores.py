"""Scores of forecasts against their closed forms, the rule that ranks models, and forecasts of runs left out."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from bayeslaw import load_runs
from bayeslaw.holdout import Candidate
from bayeslaw.origins import budget_levels
from bayeslaw.ranking import HIGH_PARETO_K, loo, rank
from bayeslaw.runs import validate
from bayeslaw.schema import STEP
from bayeslaw.scores import Forecast, joined, log_mean_exp
from bayeslaw.simulate import simulate
from bayeslaw.spec import Spec

TRUTH = {"E": 1.6, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37, "phi": 0.45}
SIGMA = 0.003


def made(draws, loss=0.0, density=0.0):
    """A forecast of one run from draws."""
    draws = np.asarray(draws, dtype=float)
    return Forecast(loss=np.array([loss]), draws=draws[:, None], log_density=np.array([density]))


@pytest.mark.parametrize("z", [-2.0, 0.0, 0.7, 3.0])
def test_crps_of_a_normal_forecast(z):
    """Gneiting and Raftery (2007), equation 21."""
    mean, sd = 2.5, 0.02
    draws = stats.norm(mean, sd).ppf((np.arange(4000) + 0.5) / 4000)
    closed = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert made(draws, mean + z * sd).crps[0] == pytest.approx(closed, rel=2e-3)


def test_crps_by_its_definition():
    draws, y = np.array([2.0, 2.5, 1.75, 3.0, 2.5]), 2.2
    apart = np.abs(draws[:, None] - draws[None, :]).mean()
    assert made(draws, y).crps[0] == pytest.approx(np.abs(draws - y).mean() - apart / 2)
    assert made([2.0], 2.3).crps[0] == pytest.approx(0.3), "of a point forecast it is the distance"


def test_central_intervals():
    draws = np.linspace(0, 1, 1001)
    for loss, in50, in90 in ((0.5, True, True), (0.26, True, True), (0.2, False, True), (0.96, False, False)):
        forecast = made(draws, loss)
        assert (bool(forecast.inside(0.5)[0]), bool(forecast.inside(0.9)[0])) == (in50, in90)


def test_scores_are_means_over_runs():
    rng = np.random.default_rng(0)
    loss = np.array([2.0, 3.0, 4.0])
    draws = loss + np.array([0.1, 0.0, -0.2]) + 1e-9 * rng.standard_normal((50, 3))
    scores = Forecast(loss=loss, draws=draws, log_density=np.array([1.0, 2.0, 6.0])).scores
    assert scores.runs == 3
    assert scores.rmse == pytest.approx(np.sqrt((0.01 + 0.04) / 3))
    assert scores.log_density == pytest.approx(3.0)
    assert scores.crps == pytest.approx(0.1, abs=1e-6)
    assert scores.cover90 <= 1 / 3


def test_forecasts_join_at_the_shortest():
    both = joined([made(np.arange(10.0), 1.0, 0.5), made(np.arange(6.0), 2.0, 1.5)])
    assert both.draws.shape == (6, 2)
    assert both.loss.tolist() == [1.0, 2.0]
    assert both.scores.log_density == 1.0


def test_log_mean_exp_does_not_overflow():
    assert log_mean_exp(np.array([[800.0], [800.0 + np.log(3)]]))[0] == pytest.approx(800 + np.log(2))


def pointwise(values, jitter=0.05):
    """PSIS-LOO of log likelihoods that hardly depend on the parameters: each run's is about the value."""
    values = np.asarray(values, dtype=float)
    noise = np.random.default_rng(1).standard_normal((4, 250, 1)) * jitter
    return loo(xr.Dataset({"log_loss": (("chain", "draw", "run"), values + noise)}))


BASE = np.random.default_rng(5).normal(3.0, 0.5, 60)
WAVE = np.tile([1.0, -1.0], 30)


def test_a_difference_beyond_two_errors_beats_simplicity():
    better = BASE + 0.3 + 0.1 * WAVE
    found = rank({"plain": pointwise(BASE), "rich": pointwise(better)}, {"plain": 3, "rich": 9})
    row = found.table.loc["plain"]
    assert found.preferred == "rich"
    assert found.tied == ("rich",)
    assert row["elpd_diff"] == pytest.approx(-0.3 * 60, rel=1e-3)
    assert row["se_diff"] == pytest.approx(np.sqrt(60) * 0.1 * np.std(WAVE, ddof=1), rel=1e-2)
    assert bool(row["distinguished"])
    assert found.table["weight"].sum() == pytest.approx(1)
    assert found.table.loc["rich", "weight"] > 0.9


def test_a_small_difference_beats_nothing_however_sure():
    better = BASE + 0.05 + 0.001 * WAVE
    found = rank({"plain": pointwise(BASE), "rich": pointwise(better)}, {"plain": 3, "rich": 9})
    assert -4 < found.table.loc["plain", "elpd_diff"] < -2 * found.table.loc["plain", "se_diff"]
    assert not found.table.loc["plain", "distinguished"]
    assert found.preferred == "plain"


def test_the_simplest_of_a_tie_is_preferred():
    noisy = {"a": BASE, "b": BASE + 0.02 + 0.5 * WAVE, "c": BASE + 0.01 + 0.4 * WAVE, "far": BASE - 1}
    models = {name: pointwise(values) for name, values in noisy.items()}
    found = rank(models, {"a": 9, "b": 7, "c": 6, "far": 1})
    assert found.table.index[0] == "b", "the table is in the order of elpd"
    assert set(found.tied) == {"a", "b", "c"}
    assert found.preferred == "c", "the simplest is far, but that one is worse"
    assert rank(models, {"a": 6, "b": 6, "c": 6, "far": 1}).preferred == "b", "of equally simple ones the better"


def test_equal_models_tie():
    found = rank({"a": pointwise(BASE), "b": pointwise(BASE)}, {"a": 8, "b": 7})
    assert found.preferred == "b"
    assert set(found.tied) == {"a", "b"}
    assert rank({"alone": pointwise(BASE)}, {"alone": 7}).preferred == "alone"


def test_runs_that_decide_too_much_are_counted():
    draws = np.random.default_rng(2).standard_normal((4, 250, 1))
    values = np.concatenate([0.05 * draws + BASE[:20], -(draws**2) * 4], axis=2)
    measured = loo(xr.Dataset({"log_loss": (("chain", "draw", "run"), values)}))
    assert float(measured.pareto_k[-1]) > HIGH_PARETO_K
    assert rank({"one": measured}, {"one": 7}).table.loc["one", "high_pareto_k"] == 1


@pytest.fixture(scope="module")
def candidate():
    """The additive law on simulated runs of five budgets, two designs a cell."""
    design = load_runs("isodepth", where="budget < 1e19").runs
    design = design[design.groupby(["recurrences", "budget"]).cumcount() < 2].reset_index(drop=True)
    table = validate(simulate(design, parameters=TRUTH, sigma=SIGMA, seed=2), source="simulated")
    return Candidate.of(table, Spec.of(law="additive", drift=True, draws=200, tune=300, chains=2))


def test_runs_left_out_are_forecast(candidate):
    held = candidate.inputs.recurrences == 2
    forecast = candidate.forecast(~held, held)
    assert forecast.draws.shape == (400, held.sum())
    np.testing.assert_array_equal(forecast.loss, candidate.inputs.loss[held])
    scores = forecast.scores
    assert scores.rmse < 4 * SIGMA * forecast.loss.mean()
    assert scores.cover90 >= 0.6
    # Not far from what the truth itself would score.
    ideal = stats.norm(0, SIGMA).entropy() * -1 - np.log(forecast.loss).mean()
    assert abs(scores.log_density - ideal) < 1


def test_a_density_is_that_of_the_draws(candidate):
    """The log density of a run is the one that its predictive draws have."""
    held = np.arange(len(candidate.inputs.loss)) == 9
    forecast = candidate.forecast(~held, held)
    drawn = stats.gaussian_kde(forecast.draws[:, 0])(forecast.loss)
    assert forecast.log_density[0] == pytest.approx(float(np.log(drawn[0])), abs=0.25)


def test_forward_chaining_and_its_drift(candidate):
    level = budget_levels(candidate.inputs.flops)
    origins = list(candidate.forward())
    assert [held.sum() for _, held, _ in origins] == [(level > edge).sum() for edge in range(2, level.max())]
    for edge, (trained_to, held, forecast) in enumerate(origins, start=2):
        assert trained_to == candidate.inputs.flops[level <= edge].max()
        np.testing.assert_array_equal(held, level > edge)
        assert len(forecast.loss) == held.sum()
    held = level >= 3
    still = replace(candidate, spec=replace(candidate.spec, drift=False)).forecast(~held, held)
    spread = [each.draws.std(axis=0) / each.loss for each in (origins[0][2], still)]
    steps = np.log(candidate.inputs.flops[held] / candidate.inputs.flops[~held].max()) / np.log(STEP)
    assert steps.min() > 0.5
    assert (spread[0] > spread[1]).mean() > 0.8, "what nobody trained is less sure with drift"
