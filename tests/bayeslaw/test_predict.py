"""Forecasts with their parts kept apart, how far outside the runs they lie, and what other laws say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import bayeslaw.rivals
from bayeslaw.errors import DecisionError, FitError, UsageError
from bayeslaw.fit import fit
from bayeslaw.forecasts import differences, predict_each
from bayeslaw.laws import make_law
from bayeslaw.posterior import Fit
from bayeslaw.predict import law_loss, predict
from bayeslaw.rivals import Rival, rivals
from bayeslaw.schema import STEP

FAR = {"width_scale": 34, "tokens": 47e9}
INSIDE = {"width_scale": 12, "tokens": 1.55e9}


@pytest.fixture(scope="module")
def others(default_fit):
    return rivals(default_fit)


def changed(posterior: Fit, spec: dict | None = None, **values) -> Fit:
    """The fit with other draws of some parameters, and another spec."""
    tree = posterior.data.copy()
    tree["posterior"] = xr.DataTree(posterior.posterior.assign(**values))
    return Fit(data=tree, runs=posterior.runs, spec=replace(posterior.spec, **(spec or {})))


def test_the_parts_add_up_in_quadrature(default_fit, others):
    for r in (1, 4, 16):
        for place in (INSIDE, FAR):
            made = predict(default_fit, recurrences=r, others=others, **place)
            parts = made.parts
            together = np.sqrt(parts.parameter**2 + parts.deviation**2 + parts.drift**2 + parts.run**2)
            assert together == pytest.approx(parts.total, rel=0.05)
            assert parts.total == pytest.approx(made.loss.std())
            assert (parts.deviation > 0) == (r > 1)
            assert (parts.drift > 0) == (place is FAR)
            assert parts.run > 0


def test_far_outside_the_drift_is_the_largest_part(default_fit, others):
    parts = predict(default_fit, recurrences=4, others=others, **FAR).parts
    assert parts.drift > 2 * max(parts.parameter, parts.deviation, parts.run)


def test_forecasts_of_the_runs_beyond_the_grid(default_fit):
    """Published losses of the runs at 20 times the largest budget; the drift's size comes from the grid only."""
    made = predict_each(default_fit, recurrences=[1, 4], **FAR)
    (difference,) = differences(made)
    for draws, measured, widest in (
        (made[0].loss, 2.047, 0.1),
        (made[1].loss, 2.108, 0.1),
        (difference.loss, 0.061, 0.06),
    ):
        low, high = np.quantile(draws, [0.05, 0.95])
        assert low < measured < high
        assert high - low <= widest


def test_forecasts_of_the_same_runs_from_the_four_lower_budgets():
    from bayeslaw import load_runs

    lower = fit(load_runs("isodepth", where="budget <= 4.64e18"))
    for one, measured in zip(predict_each(lower, recurrences=[1, 4], **FAR), (2.047, 2.108), strict=True):
        low, high = np.quantile(one.loss, [0.05, 0.95])
        assert low < measured < high


def test_an_untrained_r_has_a_deviation_that_nobody_measured(default_fit, others):
    assert default_fit.law_at(4) is default_fit.law
    assert default_fit.law_at(1) is default_fit.law
    assert default_fit.law_at(16).map.levels == (2, 4, 8, 16)
    draws = default_fit.draws(recurrences=16)
    assert set(draws) >= set(default_fit.law_at(16).parameters)
    assert "deviation_16" not in default_fit.draws(recurrences=8)
    own = draws["deviation_16"] - draws["deviation_8"]  # constant beyond the last r, and a draw around it
    spread = default_fit.draws(names=["deviation_spread"])["deviation_spread"]
    assert np.std(own / spread) == pytest.approx(1, abs=0.06)
    assert abs(np.mean(own / spread)) < 0.1
    np.testing.assert_array_equal(draws["deviation_16"], default_fit.draws(recurrences=16.0)["deviation_16"])
    made = {r: predict(default_fit, recurrences=r, others=others, **INSIDE).parts.deviation for r in (8, 16)}
    assert made[16] > 2 * made[8]


def test_between_trained_r_a_deviation_is_drawn_around_the_interpolated_one(default_fit):
    certain = changed(default_fit, deviation_spread=0 * default_fit.posterior["deviation_spread"])
    draws = certain.draws(recurrences=3)
    share = np.log(3 / 2) / np.log(4 / 2)
    expected = (1 - share) * draws["deviation_2"] + share * draws["deviation_4"]
    np.testing.assert_allclose(draws["deviation_3"], expected)
    known = certain.draws()
    np.testing.assert_allclose(
        law_loss(certain.law_at(3), draws, 1e8, 1e8, 3, 1e9), law_loss(certain.law, known, 1e8, 1e8, 3, 1e9)
    )
    assert np.std(default_fit.draws(recurrences=3)["deviation_3"] - expected) > 0


def test_the_free_map_says_nothing_beyond_its_last_r(isodepth_fit):
    phi = isodepth_fit.posterior["phi"]
    free = changed(isodepth_fit, {"map": "free"}, phi_2=phi, phi_4=phi, phi_8=phi)
    record = {**free.attrs, "map_levels": [2.0, 4.0, 8.0]}
    free.data.attrs = {"record": json.dumps(record)}
    assert free.law.map.levels == (2, 4, 8)
    assert free.law_at(3) is free.law
    with pytest.raises(DecisionError, match=r"r = 16 was never trained.*\n.*r up to 8\n.*--map power"):
        predict(free, recurrences=16, **INSIDE)
    said = predict(free, recurrences=4, **INSIDE)
    assert said.parts.deviation == 0
    np.testing.assert_allclose(said.loss_mean, predict(isodepth_fit, recurrences=4, **INSIDE).loss_mean)


@pytest.mark.parametrize("r", [0.5, float("nan"), float("inf")])
def test_r_that_cannot_be(default_fit, r):
    with pytest.raises(UsageError, match="allowed"):
        default_fit.law_at(r)
    with pytest.raises(UsageError, match="allowed"):
        predict(default_fit, recurrences=r, **INSIDE)


def test_differences_share_all_but_the_runs_own_errors(default_fit, others):
    one, four, again = (predict(default_fit, recurrences=r, others=others, **FAR) for r in (1, 4, 4))
    np.testing.assert_array_equal(four.loss, again.loss)
    errors = [np.log(made.loss / made.loss_mean) for made in (one, four)]
    assert abs(np.corrcoef(errors)[0, 1]) < 0.1
    wider = predict(default_fit, recurrences=4, width_scale=30, tokens=47e9, others=others)
    assert abs(np.corrcoef(errors[1], np.log(wider.loss / wider.loss_mean))[0, 1]) < 0.1
    (difference,) = differences((one, four))
    apart = np.hypot(one.loss_mean.std(), four.loss_mean.std())
    assert difference.loss_mean.std() < 0.6 * apart
    assert difference.loss.std() == pytest.approx(
        np.sqrt(difference.loss_mean.var() + one.parts.run**2 + four.parts.run**2), rel=0.05
    )
    answer = difference.as_dict()
    assert (answer["recurrences"], answer["against"]) == (4, 1)
    assert answer["p_lower"] == np.mean(four.loss_mean < one.loss_mean)
    assert answer["p_lower_run"] == np.mean(four.loss < one.loss)


def test_several_r_are_different_ones(default_fit):
    for chosen in ([], [4, 4.0]):
        with pytest.raises(UsageError, match="different r"):
            predict_each(default_fit, recurrences=chosen, **INSIDE)


def test_how_far_outside(default_fit, others):
    made = predict(default_fit, recurrences=4, others=others, **FAR)
    found = made.outside
    assert set(found) == {"compute", "n_unique", "tokens", "tokens_per_parameter", "recurrences"}
    top = default_fit.runs["flops"].max()
    assert found["compute"].factor == pytest.approx(made.flops / top)
    assert found["compute"].steps == pytest.approx(np.log(made.flops / top) / np.log(STEP))
    assert found["tokens"].factor == pytest.approx(47e9 / default_fit.runs["tokens"].max())
    for inside in ("n_unique", "tokens_per_parameter", "recurrences"):
        assert (found[inside].factor, found[inside].steps) == (1, 0)
    assert len(made.notes) == 2
    assert "18.7 times the largest trained budget" in made.notes[1]
    own = default_fit.runs[default_fit.runs["recurrences"] == 4]
    assert found["tokens_per_parameter"].high == (own["tokens"] / own["n_unique"]).max()


def test_inside_nothing_is_said(default_fit, others):
    made = predict(default_fit, recurrences=4, others=others, **INSIDE)
    assert made.notes == ()
    assert not any(one.steps for one in made.outside.values())
    assert "outside the trained runs: nothing" in str(made)


def test_below_the_grid_and_beside_it_the_interval_widens(default_fit, others):
    small = predict(default_fit, width_scale=6, tokens=1e8, others=others)
    assert small.outside["compute"].factor < 1
    assert small.parts.drift > 0
    assert any("times the smallest trained budget" in note for note in small.notes)
    # A budget inside the grid, spent on far more tokens for each parameter than any run.
    lopsided = predict(default_fit, width_scale=2, tokens=6e9, others=others)
    assert lopsided.outside["compute"].steps == 0
    assert lopsided.outside["tokens_per_parameter"].steps > 4
    assert lopsided.parts.drift > 0
    assert any("tokens per parameter lie outside" in note for note in lopsided.notes)
    assert not any("no drift" in note for note in lopsided.notes)


def test_a_fit_without_drift_says_that_it_does_not_widen(isodepth_fit):
    made = predict(isodepth_fit, recurrences=4, others=(), **FAR)
    assert made.parts.drift == 0
    assert "--drift on" in made.notes[-1]
    assert predict(isodepth_fit, recurrences=4, others=(), **INSIDE).notes == ()


def test_a_loss_worse_than_guessing_is_said(isodepth_fit):
    notes = predict(isodepth_fit, width_scale=16, tokens=1e3, others=()).notes
    assert "guessing a token reaches 10.38 nats: the law does not hold there" in notes


def test_other_laws(default_fit, others):
    names = {f"{law}, {name}" for law in ("additive", "coupled") for name in ("power", "bounded", "hill", "free")}
    made = predict(default_fit, recurrences=4, others=others, **FAR)
    assert set(made.laws.forecasts) == names
    assert made.laws.left_out == {}
    assert made.laws.forecasts["additive, power"] == pytest.approx(2.163, abs=0.003), "near the published law's 2.162"
    assert made.laws.range == (min(made.laws.forecasts.values()), max(made.laws.forecasts.values()))
    untrained = predict(default_fit, recurrences=16, others=others, **FAR).laws
    assert set(untrained.left_out) == {"additive, free", "coupled, free"}
    answer = made.as_dict()["parts"]["law"]
    assert (answer["low"], answer["high"]) == made.laws.range


def test_a_law_that_cannot_be_fitted_is_left_out(default_fit, monkeypatch):
    real = bayeslaw.rivals.point_fit

    def failing(table, *, law, **settings):
        if law == "coupled":
            raise FitError("3 runs for 7 parameters")
        return real(table, law=law, **settings)

    monkeypatch.setattr(bayeslaw.rivals, "point_fit", failing)
    laws = predict(default_fit, recurrences=4, **INSIDE).laws
    assert set(laws.left_out.values()) == {"3 runs for 7 parameters"}
    assert set(laws.left_out) == {f"coupled, {name}" for name in ("power", "bounded", "hill", "free")}
    assert len(laws.forecasts) == 4


def test_laws_that_all_contradict_are_named(default_fit):
    parameters = {"E": 2.5, "A": 28.0, "B": 916.0, "alpha": 0.2, "beta": 0.37, "phi": 0.46}
    high = Rival(name="high", law=make_law("additive"), parameters=parameters)
    made = predict(default_fit, recurrences=4, others=(high,), **INSIDE)
    assert "all lie outside this interval" in made.notes[-1]
    unknown = replace(high, name="unknown", parameters={**parameters, "phi": None})
    made = predict(default_fit, recurrences=4, others=(unknown,), **INSIDE)
    assert made.laws.left_out == {"unknown": "no run tells of phi"}
    assert made.laws.range is None
    assert made.notes == ()
    assert "other laws" not in str(made)


def test_a_plain_table(plain_fit):
    made = predict(plain_fit, n_unique=3e8, tokens=1e10)
    assert set(made.laws.forecasts) == {"additive", "coupled"}
    assert made.laws.forecasts["additive"] == pytest.approx(made.loss_mean.mean(), abs=0.003)
    assert made.flops == 6 * 3e8 * 1e10
    assert made.parts.deviation == 0
    looped = predict(plain_fit, width_scale=20, recurrences=4, tokens=1e10, family="isodepth")
    assert set(looped.laws.left_out.values()) == {"no run loops"}
    assert "r = 4 was never trained" in looped.notes[0]
