"""The drift beyond the largest trained budget: learnt from rolling origins, and what it does to forecasts."""

import numpy as np
import pytest

from bayeslaw import load_runs
from bayeslaw.allocate import allocate
from bayeslaw.cli.answers import as_answer, show
from bayeslaw.diagnostics import check
from bayeslaw.drift import DIRECTIONS, Origin, draw_drift, drifted, scales, slope_of
from bayeslaw.fit import fit
from bayeslaw.inputs import inputs_of
from bayeslaw.origins import budget_levels, origins
from bayeslaw.posterior import Fit
from bayeslaw.predict import predict
from bayeslaw.priors import DEFAULT
from bayeslaw.schema import STEP
from bayeslaw.spec import Spec
from bayeslaw.structure import structure_of


def origin(slope, *, noise=1e-4, seed=0, extra=0.0):
    """Forecast errors that drift by ``slope`` a step, r = 8 by ``extra`` more."""
    rng = np.random.default_rng(seed)
    steps, r = (grid.ravel() for grid in np.meshgrid([1.0, 2.0, 3.0], [1.0, 2.0, 4.0, 8.0]))
    error = steps * (slope + extra * (r == 8)) + rng.normal(0, noise, len(steps))
    return Origin(trained_to=1e18, steps=steps, recurrences=r, error=error, covariance=noise**2 * np.eye(len(steps)))


def test_budget_levels_of_grids_and_of_scattered_runs():
    runs = load_runs("isodepth").runs
    levels = budget_levels(runs["flops"].to_numpy(dtype=float))
    assert levels.max() == 5
    assert all(runs["budget"][levels == level].nunique() == 1 for level in range(6))
    scattered = budget_levels(np.geomspace(1e17, 1e20, 200))
    assert scattered.max() == 9  # three decades in steps of a third, counted from the top
    assert set(np.diff(scattered)) == {0, 1}
    assert budget_levels(np.array([3e17])).tolist() == [0]


@pytest.mark.parametrize("slope", [0.0, 0.002, 0.008])
def test_the_size_follows_the_forecast_errors(slope):
    found = [origin(sign * slope, seed=i) for i, sign in enumerate((1, -1, 1))]
    scale, _ = scales(found, DEFAULT, 4000, np.random.default_rng(1))
    prior, _ = scales([], DEFAULT, 4000, np.random.default_rng(1))
    assert np.median(prior) == pytest.approx(DEFAULT.drift.median, rel=0.1)
    if slope == 0:
        assert np.median(scale) < 0.7 * np.median(prior)
    else:
        assert slope / 2 < np.median(scale) < 2.5 * slope


def test_what_only_one_r_shows_is_its_own():
    shared, each = scales([origin(0.0, extra=0.004)], DEFAULT, 4000, np.random.default_rng(1))
    assert np.median(each) > 1.5 * DEFAULT.drift_each.median
    assert np.median(shared) < DEFAULT.drift.median


def test_origins_that_overlap_count_as_one():
    """Five copies of one origin say no more than one."""
    one, five = (scales([origin(0.004)] * count, DEFAULT, 4000, np.random.default_rng(1))[0] for count in (1, 5))
    np.testing.assert_allclose(np.quantile(one, [0.1, 0.5, 0.9]), np.quantile(five, [0.1, 0.5, 0.9]), rtol=1e-9)


def test_the_drift_begins_at_the_edge_and_grows_with_log_compute():
    drift = draw_drift([origin(0.002)], DEFAULT, [1.0, 4.0], chains=2, draws=500, seed=0)
    assert not drifted(drift, 1e19, 4.0, 1e19).any()
    one, two = (drifted(drift, 1e19, 4.0, 1e19 * 10 ** (step / 3)) for step in (1, 2))
    np.testing.assert_allclose(two, 2 * one)
    unseen = drifted(drift, 1e19, 3.0, 1e20)
    np.testing.assert_array_equal(unseen, drifted(drift, 1e19, 3.0, 1e20))
    assert abs(np.corrcoef(unseen, drifted(drift, 1e19, 4.0, 1e20))[0, 1]) > 0.3  # what they share


def test_origins_of_the_published_grid():
    """Every law forecasts its grid's next budgets too high; the additive one by several times more."""
    inputs = inputs_of(load_runs("isodepth").runs, injection_in="once")
    slopes = {}
    for law in ("additive", "coupled"):
        found = origins(structure_of(inputs, Spec(law=law), DEFAULT), inputs, DEFAULT)
        assert [round(one.trained_to / 1e18, 2) for one in found] == pytest.approx([1.0, 2.15, 4.64, 10], rel=0.01)
        slopes[law] = np.mean([(one.error / one.steps).mean() for one in found])
    assert slopes["additive"] < 2 * slopes["coupled"] < 0


def test_a_fit_keeps_its_drift_and_uses_it_beyond_the_edge_only(default_fit, tmp_path):
    default_fit.save(tmp_path / "fit.nc")
    again = Fit.load(tmp_path / "fit.nc")
    assert again.spec == default_fit.spec
    edge = again.attrs["drift"]["edge"]
    assert edge == pytest.approx(2.15e19, rel=0.01)
    assert len(again.attrs["drift"]["origins"]) == 4
    np.testing.assert_array_equal(again.drift(4, 1e21), default_fit.drift(4, 1e21))
    assert not again.drift(4, edge).any()

    without = fit("isodepth", draws=500, tune=500, drift=False)
    for place in ((1e21, None), (1e10, None), (1e19, 1e6), (1e19, 1e-3)):
        assert not without.drift(4, *place).any()
    inside, beyond = ({"tokens": 1e9, "width_scale": 10}, {"tokens": 47e9, "width_scale": 34})
    for place, wider in ((inside, False), (beyond, True)):
        spread = [predict(made, recurrences=4, **place).loss_mean.std() for made in (without, again)]
        assert (spread[1] > 1.2 * spread[0]) == wider
    losses = [allocate(made, flops=1e21).recommended.trainable.loss.std() for made in (without, again)]
    assert losses[1] > 1.2 * losses[0]


def test_the_printed_answer_fits_a_terminal(default_fit, capsys):
    show(default_fit, check(default_fit))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "deviation_spread" in printed
    assert "deviation_2" not in printed


def test_the_answer_names_deviation_and_drift(default_fit):
    answer = as_answer(default_fit, check(default_fit))
    assert (answer["law"], answer["map"], answer["deviation"], answer["outliers"]) == (
        "coupled",
        "power",
        True,
        "student",
    )
    assert answer["drift"]["origins"] == 4
    assert 0 < answer["drift"]["sd_each"] < answer["drift"]["sd_shared"] < 0.01
    assert set(answer["parameters"]) >= {"deviation_2", "deviation_4", "deviation_8", "deviation_spread"}
    # g(r) holds the deviation, so it is better known than the exponent of the map.
    g, phi = answer["worth"]["8"], answer["parameters"]["phi"]
    assert np.log(g["q95"] / g["q05"]) < np.log(8) * (phi["q95"] - phi["q05"])
    assert not [name for name in answer["diagnostics"]["not_identified"] if name.startswith("deviation")]


def test_every_way_out_of_the_runs_has_slopes_of_its_own(default_fit):
    data = default_fit.data["drift"].to_dataset()
    slopes = {way: slope_of(data, way, 4.0) for way in DIRECTIONS}
    for i, way in enumerate(DIRECTIONS):
        for other in DIRECTIONS[i + 1 :]:
            assert abs(np.corrcoef(slopes[way], slopes[other])[0, 1]) < 0.1
        assert slopes[way].std() == pytest.approx(slopes[DIRECTIONS[0]].std(), rel=0.2)
        np.testing.assert_array_equal(slopes[way], slope_of(data, way, 4.0))
        assert 0.3 < np.corrcoef(slopes[way], slope_of(data, way, 8.0))[0, 1] < 0.999


def test_the_drift_outside_in_compute_and_in_tokens_per_parameter(default_fit):
    data = default_fit.data["drift"].to_dataset()
    least, most = default_fit.range_of("flops")
    low, high = default_fit.range_of("tokens_per_parameter", 4)
    inside, far = np.sqrt(least * most), most * STEP**3
    middle = np.sqrt(low * high)
    assert not default_fit.drift(4, inside, middle).any()
    assert not default_fit.drift(4, least, low).any()
    above, below, more, fewer = (slope_of(data, way, 4.0) for way in DIRECTIONS)
    np.testing.assert_allclose(default_fit.drift(4, least / STEP**2, middle), 2 * below)
    np.testing.assert_allclose(default_fit.drift(4, inside, high * STEP), more)
    np.testing.assert_allclose(default_fit.drift(4, inside, low / STEP), fewer)
    np.testing.assert_allclose(default_fit.drift(4, far, high * STEP), 3 * above + more)
    np.testing.assert_array_equal(default_fit.drift(4, far), default_fit.drift(4, far, middle))
    # An r that no run trained has the range of all.
    assert default_fit.drift(16, inside, high * STEP).any() == (
        high * STEP > default_fit.range_of("tokens_per_parameter")[1]
    )


def test_the_drift_of_arrays_is_that_of_their_numbers(default_fit):
    count = len(default_fit.drift(4, 1e19))
    flops = np.geomspace(1e17, 1e22, count)
    ratio = np.geomspace(0.1, 1e4, count)
    whole = default_fit.drift(4, flops, ratio)
    assert whole.shape == (count,)
    for i in (0, count // 2, count - 1):
        assert whole[i] == pytest.approx(default_fit.drift(4, float(flops[i]), float(ratio[i]))[i])


def test_beyond_the_edge_the_drift_is_what_was_learnt(default_fit):
    data, edge = default_fit.data["drift"].to_dataset(), default_fit.attrs["drift"]["edge"]
    learnt = data["shared"].values.ravel() + data["each"].sel(recurrences=4.0).values.ravel()
    np.testing.assert_array_equal(default_fit.drift(4, 4e20), np.log(4e20 / edge) / np.log(STEP) * learnt)
    np.testing.assert_array_equal(default_fit.drift(4, 4e20, 47e9 / 464e6), default_fit.drift(4, 4e20))
