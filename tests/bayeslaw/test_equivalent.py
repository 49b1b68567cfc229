"""The non-looped model of equal loss: ratios, costs, and what they depend on."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from bayeslaw import ISODEPTH
from bayeslaw.equivalent import closed_form, equivalent
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.fit import fit
from bayeslaw.posterior import Fit
from bayeslaw.predict import law_loss
from bayeslaw.schema import INJECTION_IN


def with_posterior(made: Fit, posterior: xr.Dataset, **spec) -> Fit:
    tree = made.data.copy()
    tree["posterior"] = xr.DataTree(posterior)
    return Fit(data=tree, runs=made.runs, spec=replace(made.spec, **spec))


def by_architecture(made: Fit, shift: float) -> Fit:
    """The fit with an E of its own for r = 1, higher by ``shift`` than at other r."""
    E = made.posterior["E"]
    levels = [f"baseline/r={r}" for r in (1, 2, 4, 8)]
    each = xr.concat([E + shift, E, E, E], dim="architecture").assign_coords(
        architecture=np.array(levels, dtype=object)
    )
    return with_posterior(made, made.posterior.assign(E=each))


def test_the_published_example(default_fit):
    answer = equivalent(default_fit, recurrences=4, width_scale=32).as_dict()
    assert answer["unique_ratio"] == pytest.approx(0.408, abs=5e-4)
    assert answer["closed_form"]["effective_ratio"] == pytest.approx(0.578, abs=5e-4)
    assert answer["closed_form"]["phi"] == pytest.approx(0.459, abs=5e-4)
    assert answer["training_cost_ratio"]["same_width"] == pytest.approx(1.027, abs=5e-4)
    assert answer["n_unique"] == pytest.approx(410e6, rel=0.01)
    assert answer["closed_form"]["n_unique"] == pytest.approx(580e6, rel=0.01)
    assert answer["equal_cost"]["n_unique"] == pytest.approx(1e9, rel=0.05)
    own = answer["closed_form"]["own"]
    assert own["effective_ratio"]["q05"] < 0.578 < own["effective_ratio"]["q95"]
    ours = answer["effective_ratio"]
    assert 0.55 < ours["q05"] < ours["mean"] < ours["q95"] < 0.65
    assert answer["equal_loss"]["n_unique"]["mean"] == pytest.approx(ours["mean"] * answer["same_width"]["n_unique"])


def test_the_sentence_is_made_of_the_answer(default_fit):
    found = equivalent(default_fit, recurrences=4, width_scale=32)
    assert found.sentence.startswith("at r = 4, width 2048: 411M unique parameters do as well as a non-looped model of")
    numbers = [1e6 * float(n) for n in re.findall(r"([\d.]+)M", found.sentence)]
    answer = found.as_dict()["equal_loss"]["n_unique"]
    assert numbers == pytest.approx([found.n_unique, answer["mean"], answer["q05"], answer["q95"]], rel=5e-3)
    assert found.as_dict()["sentence"] == found.sentence
    assert found.sentence in str(found)


@pytest.mark.parametrize("injection_in", INJECTION_IN)
@pytest.mark.parametrize("r", [2, 8])
def test_the_equal_model_has_the_same_loss_at_any_tokens(default_fit, injection_in, r):
    made = with_posterior(default_fit, default_fit.posterior, injection_in=injection_in)
    found = equivalent(made, recurrences=r, width_scale=20)
    draws = made.draws(recurrences=r)
    for i in (0, 700):
        one = {name: values[[i]] for name, values in draws.items()}
        parts = ISODEPTH.split(64 * found.equal_width[i], 1, **made.convention)
        for tokens in (1e9, 1e11):
            plain = law_loss(made.law, one, *parts, 1, tokens)
            looped = law_loss(made.law, one, *ISODEPTH.split(1280, r, **made.convention), r, tokens)
            assert plain == pytest.approx(looped, rel=1e-6)
        member = ISODEPTH.architecture(64 * found.equal_width[i], 1)
        assert found.equal_n[i] == pytest.approx(member.n_unique, rel=1e-4)
        cost = ISODEPTH.architecture(1280, r)
        assert found.training.equal_loss[i] == pytest.approx(cost.flops_per_token / member.flops_per_token, rel=1e-4)
        assert found.inference.equal_loss[i] == pytest.approx(
            cost.inference_flops_per_token / member.inference_flops_per_token, rel=1e-4
        )


def test_the_model_of_equal_cost(default_fit):
    found = equivalent(default_fit, recurrences=8, width_scale=16)
    layers = np.sqrt(found.equal_cost_n / (12 * 20))  # its width, nearly
    plain = ISODEPTH.architecture(float(layers), 1).flops_per_token
    assert plain == pytest.approx(ISODEPTH.architecture(1024, 8).flops_per_token, rel=5e-3)


@pytest.mark.parametrize("width_scale", [1, 32, 500])
def test_r_1_is_the_model_itself(default_fit, width_scale):
    found = equivalent(default_fit, recurrences=1, width_scale=width_scale)
    for ratio in (found.effective_ratio, found.training.equal_loss, found.inference.equal_loss):
        np.testing.assert_allclose(ratio, 1, rtol=1e-9)
    assert found.unique_ratio == 1
    assert found.published[1] == 1
    assert found.equal_cost_n == pytest.approx(found.n_unique)
    assert "r = 1 is the non-looped model itself" in found.notes[0]


def test_an_untrained_r_is_said_and_less_certain(default_fit):
    found = {r: equivalent(default_fit, recurrences=r, width_scale=16) for r in (8, 16)}
    assert found[8].notes == ()
    assert "r = 16 was never trained" in found[16].notes[0]
    spread = {r: np.std(np.log(one.effective_ratio)) for r, one in found.items()}
    assert spread[16] > 1.5 * spread[8]


def test_tokens_that_make_no_difference(default_fit):
    one, other = (equivalent(default_fit, recurrences=4, width_scale=16, tokens=tokens) for tokens in (None, 1e9))
    np.testing.assert_array_equal(one.effective_ratio, other.effective_ratio)
    assert other.tokens is None
    assert "the same at all tokens" in other.notes[0]


def test_laws_that_differ_between_r_ask_for_tokens(isodepth_fit):
    made = by_architecture(isodepth_fit, 0.01)
    with pytest.raises(DecisionError, match=r"E of this fit are not the same.*\n.*--tokens"):
        equivalent(made, recurrences=4, width_scale=16)
    found = equivalent(made, recurrences=4, width_scale=16, tokens=2e9)
    shared = equivalent(isodepth_fit, recurrences=4, width_scale=16)
    assert found.tokens == 2e9
    assert (found.effective_ratio > shared.effective_ratio).all()  # the plain law is worse there
    draws = made.draws(recurrences=4)
    looped = law_loss(made.law, draws, *ISODEPTH.split(1024, 4, **made.convention), 4, 2e9)[:, 0]
    plain = made.law.loss(found.effective_ratio * found.n_plain, 0.0, 1.0, 2e9, made.draws(recurrences=1))
    np.testing.assert_allclose(plain, looped, rtol=1e-9)
    outside = equivalent(made, recurrences=4, width_scale=16, tokens=2e10)
    assert "2e+10 tokens lie outside" in outside.notes[0]
    with pytest.raises(DecisionError, match="no non-looped model has the loss"):
        equivalent(by_architecture(isodepth_fit, 2.0), recurrences=4, width_scale=16, tokens=2e9)


def test_a_plain_table_says_that_the_prior_speaks(plain_fit):
    with pytest.raises(DecisionError, match="--family"):
        equivalent(plain_fit, recurrences=4, width_scale=16)
    found = equivalent(plain_fit, recurrences=4, width_scale=16, family="isodepth")
    assert "no fitted run loops" in found.notes[0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"recurrences": 3, "width_scale": 16}, "divisors of 16"),
        ({"recurrences": 4, "width_scale": 16.01}, "whole width"),
        ({"recurrences": 4, "width_scale": 16, "tokens": 0}, "1 or more"),
        ({"recurrences": 4, "width_scale": 16, "recipe": "nope"}, "baseline"),
        ({"recurrences": 4, "width_scale": 16, "family": "nope"}, "isodepth"),
        ({"recurrences": float("nan"), "width_scale": 16}, "divisors of 16"),
    ],
)
def test_what_cannot_be_meant(default_fit, call, text):
    with pytest.raises(UsageError, match=text):
        equivalent(default_fit, **call)


def test_the_closed_form_is_that_of_layers():
    assert closed_form(ISODEPTH, 1, 0.3) == 1
    assert closed_form(ISODEPTH, 4, 0.0) == pytest.approx(8 / 20)
    assert closed_form(ISODEPTH, 4, 1.0) == 1


@pytest.mark.slow
def test_other_recipes_have_their_own_worth_and_costs():
    made = fit("isodepth-recipes", law="coupled", draws=300, tune=300)
    found = {recipe: equivalent(made, recurrences=4, width_scale=16, recipe=recipe) for recipe in made.recipes}
    base, truncated, lanes = (found[name] for name in ("baseline", "truncated_bptt", "hyperconnections"))
    assert equivalent(made, recurrences=4, width_scale=16).recipe == "baseline"
    assert np.mean(truncated.effective_ratio) < np.mean(base.effective_ratio) < np.mean(lanes.effective_ratio)
    assert truncated.training.same_width < 0.8
    assert truncated.inference.same_width == base.inference.same_width
    assert base.own_phi is not None
    assert truncated.own_phi is not None
    assert truncated.own_phi.mean() < base.own_phi.mean()


@pytest.mark.slow
def test_chinchilla_needs_tokens():
    made = fit("isodepth", law="chinchilla", draws=300, tune=300)
    with pytest.raises(DecisionError, match="--tokens"):
        equivalent(made, recurrences=4, width_scale=16)
    found = equivalent(made, recurrences=4, width_scale=16, tokens=3e9)
    assert 0.5 < found.effective_ratio.mean() < 0.7
    assert found.own_ratio is None
    assert found.as_dict()["closed_form"]["own"] is None
