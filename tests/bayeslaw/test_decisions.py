"""Predictions, the frontier and the recommendation."""

import numpy as np
import pytest

from bayeslaw import ISODEPTH
from bayeslaw.allocate import allocate
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.frontier import optimum
from bayeslaw.laws import make_law
from bayeslaw.predict import family_of, law_loss, predict
from bayeslaw.sizes import plain_sizes, sizes_of

LAW = make_law("additive")

PUBLISHED = {"E": 1.56773, "A": 28.027, "B": 915.82, "alpha": 0.19924, "beta": 0.36863, "phi": 0.459}
MEASURED = {1: 2.3088, 2: 2.3389, 4: 2.3599, 8: 2.4021}
"""Measured compute-optimal losses at 2.15e19 FLOPs, from the published minima."""


@pytest.fixture
def published():
    """The published point fit as two equal draws."""
    return {name: np.full(2, value) for name, value in {**PUBLISHED, "sigma": 0.004}.items()}


def test_law_loss_broadcasts(published):
    got = law_loss(LAW, published, 1e8, np.array([2e8, 3e8, 4e8]), 4, 1e9)
    assert got.shape == (2, 3)
    assert got[1, 2] == pytest.approx(LAW.loss(1e8, 4e8, 4.0, 1e9, PUBLISHED))


def test_runs_span_the_published_family(isodepth_fit):
    family = family_of(isodepth_fit)
    assert (family.prelude_layers, family.unrolled_layers, family.coda_layers) == (2, 16, 2)
    assert (family.width_step, family.batch_tokens) == (128, 2**18)
    assert family.architecture(640, 4) == ISODEPTH.architecture(640, 4)


@pytest.mark.parametrize("recurrences", [1, 2, 4, 8])
@pytest.mark.parametrize("flops", [4.64e17, 1e20])
def test_optimum_against_a_direct_minimiser(published, recurrences, flops):
    """Grid and parabola against scipy's bounded search over the real width."""
    from scipy.optimize import minimize_scalar

    def loss(log_width):
        member = ISODEPTH.architecture(float(np.exp(log_width)), recurrences)
        parts = member.n_once + member.n_injection, member.n_shared
        return LAW.loss(*parts, float(recurrences), flops / member.flops_per_token, PUBLISHED)

    direct = minimize_scalar(loss, bounds=(np.log(128), np.log(20000)), options={"xatol": 1e-9}, method="bounded")
    axis = sizes_of(ISODEPTH, recurrences, injection_in="once")
    best = optimum(LAW, published, axis, flops=flops, recurrences=recurrences)
    assert best.loss == pytest.approx(direct.fun, abs=1e-7)
    assert 64 * best.width_scale == pytest.approx(np.exp(direct.x), rel=2e-3)
    assert best.at_edge == 0
    member = ISODEPTH.architecture(float(np.exp(direct.x)), recurrences)
    assert best.n_unique == pytest.approx(member.n_unique, rel=5e-3)
    assert best.tokens * member.flops_per_token == pytest.approx(flops, rel=5e-3)


def test_optimum_of_6nd_has_its_closed_form(published):
    """For C = 6 N D, N* = G (C / 6)^(beta / (alpha + beta)) with G = (alpha A / (beta B))^(1 / (alpha + beta))."""
    alpha, beta = PUBLISHED["alpha"], PUBLISHED["beta"]
    G = (alpha * PUBLISHED["A"] / (beta * PUBLISHED["B"])) ** (1 / (alpha + beta))
    best = optimum(LAW, published, plain_sizes(), flops=1e21, recurrences=1)
    assert best.n_unique == pytest.approx(G * (1e21 / 6) ** (beta / (alpha + beta)), rel=1e-3)
    assert best.width_scale is None


def test_allocation_at_the_top_of_the_grid(isodepth_fit):
    result = allocate(isodepth_fit, flops=2.15e19, recurrences=[1, 2, 4, 8])
    for option in result.options:
        assert option.optimum.loss.mean() == pytest.approx(MEASURED[option.recurrences], abs=0.015)
        width = 64 * option.optimum.width_scale.mean()
        assert option.trainable.d_model % 128 == 0
        assert abs(option.trainable.d_model - width) < 128
        assert option.trainable.tokens % 2**18 == 0
        member = ISODEPTH.architecture(option.trainable.d_model, option.recurrences)
        assert option.trainable.n_unique == member.n_unique
        assert option.trainable.tokens * member.flops_per_token == pytest.approx(2.15e19, rel=0.01)
    assert sum(option.probability_best for option in result.options) == pytest.approx(1)
    assert result.recommended.recurrences == 1
    assert 0 <= result.expected_regret < 0.01
    assert result.notes == ()
    widths = [option.optimum.width_scale.mean() for option in result.options]
    assert widths == sorted(widths), "looped optima are wider"


def test_answer_of_allocate(isodepth_fit):
    answer = allocate(isodepth_fit, flops=2.15e19, recurrences=[1, 4]).as_dict()
    assert set(answer["recurrences"]) == {"1", "4"}
    one = answer["recurrences"]["4"]
    assert set(one) == {"optimum", "trainable", "probability_best", "against_plain"}
    for name in ("width_scale", "n_unique", "tokens", "loss"):
        interval = one["optimum"][name]
        assert interval["q05"] <= interval["mean"] <= interval["q95"]
    assert answer["recommended"].items() >= {"recipe": "baseline", "recurrences": 1}.items()
    assert answer["recommended"]["memory"] == 2 * answer["recommended"]["n_unique"]
    assert answer["recurrences"]["1"]["against_plain"] is None
    assert one["against_plain"]["p_wider"] > 0.6


def test_a_loop_that_is_worth_its_compute_is_recommended(isodepth_fit):
    """With phi far above 1 the posterior must change its mind: the recommendation is not a constant."""
    import xarray as xr

    from bayeslaw.posterior import Fit

    tree = isodepth_fit.data.copy()
    tree["posterior"] = xr.DataTree(isodepth_fit.posterior.assign(phi=isodepth_fit.posterior["phi"] + 1.5))
    result = allocate(Fit(data=tree, runs=isodepth_fit.runs, spec=isodepth_fit.spec), flops=2.15e19)
    assert result.recommended.recurrences == 8
    assert result.recommended.probability_best > 0.99


def test_extrapolation_is_said(isodepth_fit):
    notes = " ".join(allocate(isodepth_fit, flops=2.15e20, recurrences=[1, 16]).notes)
    assert "10 times the largest trained budget" in notes
    assert "r = 16 was never trained" in notes


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ({"flops": 0}, UsageError, "above 0"),
        ({"flops": float("nan")}, UsageError, "above 0"),
        ({"flops": 1e6}, DecisionError, "nothing can be trained"),
        ({"flops": 1e60}, UsageError, "at most 1e"),
        ({"flops": 1e19, "family": "isodepth", "flops_rule": "6nd"}, UsageError, "one of the two"),
        ({"flops": 1e19, "recurrences": [3]}, UsageError, "divisors of 16"),
        ({"flops": 1e19, "family": "nope"}, UsageError, "isodepth"),
        ({"flops": 1e19, "recipe": "nope"}, UsageError, "baseline"),
        ({"flops": 1e19, "flops_rule": "6nd", "recurrences": [2]}, UsageError, "r = 1"),
    ],
)
def test_allocations_that_cannot_be(isodepth_fit, call, error, text):
    with pytest.raises(error, match=text):
        allocate(isodepth_fit, **call)


def test_plain_table_asks_what_to_decide_over(plain_fit):
    with pytest.raises(DecisionError, match="--flops-rule 6nd"):
        allocate(plain_fit, flops=1e21)
    with pytest.raises(DecisionError, match="--family"):
        predict(plain_fit, width_scale=8, tokens=1e10)
    plain = allocate(plain_fit, flops=1e21, flops_rule="6nd")
    best = plain.recommended.trainable
    assert best.d_model is None
    assert 6 * best.n_unique * best.tokens == pytest.approx(1e21, rel=1e-3)
    named = allocate(plain_fit, flops=1e22, family="isodepth")
    assert any("times the largest trained budget" in note for note in named.notes)
    assert named.recommended.trainable.d_model % 128 == 0


def test_a_new_run_is_less_certain_than_its_expectation(isodepth_fit):
    made = predict(isodepth_fit, width_scale=16, recurrences=4, tokens=1e10)
    assert made.n_unique == ISODEPTH.architecture(1024, 4).n_unique
    assert len(made.notes) == 1
    assert "1e+10 tokens lie outside" in made.notes[0]
    assert made.loss.std() > made.loss_mean.std()
    assert made.loss.mean() == pytest.approx(made.loss_mean.mean(), abs=0.002)


def test_a_trained_run_is_predicted(isodepth_fit):
    row = isodepth_fit.runs.set_index("run_id").loc["baseline/4/12/1e+18"]
    made = predict(isodepth_fit, width_scale=12, recurrences=4, tokens=row["tokens"])
    assert abs(np.log(made.loss_mean.mean() / row["loss"])) < 4 * isodepth_fit.draws()["sigma"].mean()


def test_size_by_parameters(plain_fit):
    made = predict(plain_fit, n_unique=3e8, tokens=1e10)
    assert made.loss_mean.mean() == pytest.approx(1.7 + 400 * 3e8**-0.34 + 410 * 1e10**-0.28, abs=0.01)
    with pytest.raises(UsageError, match="one of"):
        predict(plain_fit, tokens=1e10)
    with pytest.raises(UsageError, match="--width-scale instead"):
        predict(plain_fit, n_unique=3e8, tokens=1e10, recurrences=2)


@pytest.mark.parametrize(
    "call",
    [
        {"tokens": float("inf"), "width_scale": 8},
        {"tokens": 0.5, "width_scale": 8},
        {"tokens": 1e9, "width_scale": 10.03},
        {"tokens": 1e9, "width_scale": 1e200},
        {"tokens": 1e9, "n_unique": 0},
    ],
)
def test_predictions_that_cannot_be_meant(isodepth_fit, call):
    with pytest.raises(UsageError, match="allowed"):
        predict(isodepth_fit, **call)


def test_a_prediction_far_outside_says_so(isodepth_fit):
    notes = " ".join(predict(isodepth_fit, width_scale=100, recurrences=16, tokens=47e9).notes)
    assert "r = 16 was never trained" in notes
    assert "parameters lie outside" in notes
    assert "tokens lie outside" in notes
