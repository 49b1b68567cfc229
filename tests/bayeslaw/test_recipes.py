"""Recipes against a baseline: matched runs, phi and g(r) by structure, loss at one budget; planted truths are found."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import load_runs
from bayeslaw.compare.matched import Estimate, MatchedGain, clustered_mean, matched_gain, matched_pairs
from bayeslaw.compare.recipes import RecipeComparison, Under, compare_recipes
from bayeslaw.compare.verdicts import matched_sentence, phi_sentence, side_of
from bayeslaw.compare.versus import beats, standings
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.fit import fit
from bayeslaw.frontier import optimum
from bayeslaw.laws import make_law
from bayeslaw.predict import family_of
from bayeslaw.runs import validate
from bayeslaw.simulate import simulate
from bayeslaw.sizes import sizes_of

TRUTH = {"E": 1.6, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37, "phi": 0.45}
PLANTED = {"hyperconnections": {"phi": 0.75}, "truncated_bptt": {"phi": 0.25}}
SAMPLER = {"law": "additive", "draws": 600, "tune": 400, "chains": 2}


@pytest.fixture(scope="module")
def planted():
    """The shipped design with a phi of its own for each recipe."""
    design = load_runs("isodepth-recipes").runs
    return simulate(design, parameters=TRUTH, by_recipe=PLANTED, sigma=0.003, seed=3)


@pytest.fixture(scope="module")
def planted_fit(planted):
    return fit(planted, **SAMPLER)


def runs_of(rows):
    """A run table of (recipe, r, width, budget, tokens, loss)."""
    frame = pd.DataFrame(rows, columns=["recipe", "recurrences", "d_model", "budget", "tokens", "loss"])
    return frame.assign(n_once=12 * frame["d_model"] ** 2, n_unique=36 * frame["d_model"] ** 2)


def test_matched_runs_are_paired_seeds_averaged_and_the_rest_counted():
    runs = runs_of(
        [
            ("baseline", 2, 512, 1e18, 1.0e9, 3.00),
            ("baseline", 2, 512, 1e18, 1.0e9, 3.02),  # another seed
            ("baseline", 4, 512, 1e18, 1.0e9, 3.10),
            ("baseline", 4, 512, 2e18, 2.0e9, 2.90),
            ("mine", 2, 512, 1.02e18, 1.1e9, 2.96),  # the budget that was aimed at, nearly
            ("mine", 4, 512, 2e18, 2.2e9, 2.88),
            ("mine", 4, 640, 2e18, 1.6e9, 2.80),  # no partner: width
            ("mine", 8, 512, 2e18, 2.0e9, 2.80),  # no partner: r
            ("mine", 4, 512, 4e18, 4.0e9, 2.70),  # no partner: budget
        ]
    )
    pairs, unmatched = matched_pairs(runs, "mine", "baseline")
    assert unmatched == 3
    assert dict(zip(pairs["recurrences"], pairs["difference"], strict=True)) == pytest.approx({2: -0.05, 4: -0.02})
    gain = matched_gain(runs, "mine", "baseline")
    assert gain.overall.mean == pytest.approx(-0.035)
    assert gain.tokens_ratio == pytest.approx(1.1)
    assert gain.by_recurrences[2.0].pairs == 1
    assert np.isnan(gain.by_recurrences[2.0].se)
    assert gain.trend is None


def test_runs_that_do_not_say_what_they_cost_are_not_matched_by_cost():
    runs = runs_of([("baseline", 2, 512, np.nan, 1.0e9, 3.0), ("mine", 2, 512, np.nan, 1.0e9, 2.9)])
    assert matched_pairs(runs, "mine", "baseline")[1] == 1
    assert matched_gain(runs, "mine", "baseline").overall is None
    assert matched_gain(runs, "mine", "baseline", matching="tokens").overall.mean == pytest.approx(-0.1)


def test_at_equal_tokens_the_partner_is_interpolated_and_not_carried_far():
    def loss(tokens):
        return 1.8 + 900 * tokens**-0.4

    rows = [("baseline", 4, 512, budget, 1e-9 * budget, loss(1e-9 * budget)) for budget in (1e18, 2e18, 4e18)]
    rows += [("mine", 4, 512, budget, 1.3e-9 * budget, loss(1.3e-9 * budget) + 0.02) for budget in (1e18, 2e18, 4e18)]
    runs = runs_of(rows)
    same_budget, same_tokens = (matched_gain(runs, "mine", "baseline", matching=m) for m in ("budget", "tokens"))
    assert same_tokens.overall.mean == pytest.approx(0.02, abs=1e-9)
    assert (same_tokens.overall.pairs, same_tokens.unmatched) == (2, 1)  # the last lies beyond the baseline's tokens
    assert same_budget.overall.mean < same_tokens.overall.mean - 0.01
    assert same_budget.tokens_ratio == pytest.approx(1.3)


def test_intervals_of_matched_runs_allow_for_errors_that_cells_share():
    rng = np.random.default_rng(0)
    cells = np.repeat(np.arange(12), 5)
    inside = naive = 0
    for _ in range(400):
        values = 0.01 * rng.standard_normal(12)[cells] + 0.005 * rng.standard_normal(60)
        found = clustered_mean(values, cells)
        inside += found.q05 <= 0 <= found.q95
        naive += abs(values.mean()) <= 1.67 * values.std(ddof=1) / np.sqrt(60)
    assert 0.85 <= inside / 400 <= 0.95
    assert naive / 400 < 0.75


def test_the_shipped_case_studies_by_matched_runs():
    runs = load_runs("isodepth-recipes").runs
    lanes = matched_gain(runs, "hyperconnections", "baseline")
    assert [round(one.mean, 3) for one in lanes.by_recurrences.values()] == [-0.047, -0.043, -0.043]
    assert lanes.overall.p_lower > 0.999
    assert lanes.trend.q05 > 0  # the gain shrinks with compute
    cheaper, same = (matched_gain(runs, "truncated_bptt", "baseline", matching=m) for m in ("budget", "tokens"))
    assert cheaper.tokens_ratio > 1.25
    assert cheaper.overall.q95 < 0 < same.overall.q05  # better for its FLOPs, worse for its tokens


def test_p_that_one_beats_another_agrees_with_the_planted_truth(planted_fit):
    law, flops = make_law("additive"), 4.64e18

    def least(recipe, r):
        truth = {**TRUTH, **PLANTED.get(recipe, {})}
        axis = sizes_of(family_of(planted_fit, recipe=recipe), r, injection_in="once")
        draws = {name: np.array([value]) for name, value in truth.items()}
        return float(optimum(law, draws, axis, flops=flops, recurrences=r).loss[0])

    for a, b in (
        (("hyperconnections", 4.0), ("baseline", 4.0)),
        (("truncated_bptt", 8.0), ("hyperconnections", 8.0)),
        (("baseline", 1.0), ("baseline", 2.0)),
    ):
        found, other = beats(planted_fit, a=a, b=b, flops=flops), beats(planted_fit, a=b, b=a, flops=flops)
        true = least(*a) - least(*b)
        half = found["difference"]["q95"] - found["difference"]["q05"]
        assert abs(found["difference"]["mean"] - true) < 1.5 * half
        assert (found["p_curve"] > 0.99) == (true < 0)
        assert found["p_curve"] + other["p_curve"] == pytest.approx(1)
        assert found["p_run"] + other["p_run"] == pytest.approx(1)
        assert abs(found["p_run"] - 0.5) <= abs(found["p_curve"] - 0.5)  # single runs are less sure
    with pytest.raises(UsageError, match="itself"):
        beats(planted_fit, a=("baseline", 2.0), b=("baseline", 2.0), flops=flops)


def test_standings_hold_everything_against_the_plain_model_of_the_same_inference(planted_fit):
    found = {(one.contender.recipe, one.contender.recurrences): one for one in standings(planted_fit, 4.64e18)}
    assert len(found) == 10
    plain = found["baseline", 1.0]
    assert plain.plain is plain.same_recurrences is plain.same_inference is None
    family = family_of(planted_fit, recipe="baseline")
    for (recipe, r), one in found.items():
        if r > 1:
            assert (one.same_recurrences is None) == (recipe == "baseline")
            width = 64 * one.same_inference["width_scale"]
            cost = family.architecture(width, 1).inference_flops_per_token
            assert cost == pytest.approx(one.contender.inference_flops, rel=1e-3)
            # The plain model of that width lies on the same budget line, at or above its own best.
            assert one.same_inference["difference"]["mean"] <= one.plain["difference"]["mean"] + 1e-3
            assert one.same_inference["tokens"] * family.architecture(width, 1).flops_per_token == pytest.approx(
                4.64e18
            )
    # Truncation makes tokens cheaper to train, so it trains a wider model than the others on the same budget.
    assert found["truncated_bptt", 4.0].contender.width_scale > found["baseline", 4.0].contender.width_scale


def test_a_comparison_finds_what_was_planted_and_says_so(planted):
    structures = {"plain": {"law": "additive"}, "again": {"law": "additive", "seed": 1}}
    sampler = {key: value for key, value in SAMPLER.items() if key not in ("law", "draws")}
    found = compare_recipes(
        validate(planted, source="planted"), structures=structures, draws=SAMPLER["draws"], **sampler
    )  # fmt: skip
    answer = json.loads(json.dumps(found.as_dict()))
    assert answer["reading"]["hyperconnections"]["phi"]["reading"] == "higher"
    assert answer["reading"]["truncated_bptt"]["phi"]["reading"] == "lower"
    assert set(answer["reading"]["truncated_bptt"]["log_worth"]) == {"2", "4", "8"}
    assert [round(budget, -16) for budget in found.standings] == [4.64e18, 2.15e19]
    difference = answer["structures"]["plain"]["phi_difference"]["hyperconnections"]
    assert difference["q05"] < 0.30 < difference["q95"]
    tables = found.tables()
    assert len(found.sentences) >= len(tables)
    for (title, (header, rows)), sentence in zip(tables.items(), found.sentences, strict=False):
        assert rows
        widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
        assert sum(widths) + 2 * (len(widths) - 1) <= 80, title
        assert sentence.endswith(".")
    assert "is higher than that of baseline under every structure tried" in found.sentences[3]
    assert "4.64e+18" in found.sentences[len(tables) - 1]  # as far as the recipes were trained


def test_what_a_table_lacks_is_left_out_with_its_reason(planted):
    columns = ["recipe", "recurrences", "n_once", "n_shared", "n_injection", "tokens", "loss"]
    table = validate(planted[columns], source="counts")
    sampler = {key: value for key, value in SAMPLER.items() if key not in ("law", "draws")}
    found = compare_recipes(
        table, structures={"plain": {"law": "additive"}, "cells": {"law": "additive", "noise": "cells"}},
        draws=SAMPLER["draws"], **sampler,
    )  # fmt: skip
    assert not found.standings
    assert [bool(one.reason) for one in found.structures] == [False, True]
    assert any("architecture" in note for note in found.notes)
    assert any("budget" in note for note in found.notes)
    by_cost, by_tokens = found.matched[:2]
    assert by_cost.overall is None  # nothing says what a run cost
    assert by_tokens.overall.pairs > 0
    assert found.sentences
    json.dumps(found.as_dict())
    with pytest.raises(UsageError, match="recipes"):
        compare_recipes(load_runs("isodepth"))
    with pytest.raises(UsageError, match="budget"):
        compare_recipes(table, flops=-1.0)


def gain(matching, mean, trend):
    """Matched runs with a difference that changes with compute."""
    one = Estimate(mean=mean, se=0.001, q05=mean, q95=mean, p_lower=float(mean < 0), pairs=9, cells=9)
    step = replace(one, mean=trend, p_lower=float(trend < 0))
    return MatchedGain(
        recipe="mine", anchor="baseline", matching=matching, overall=one, trend=step, tokens_ratio=1.0,
        by_recurrences={}, unmatched=0,
    )  # fmt: skip


def test_each_matching_has_a_trend_of_its_own():
    budget, tokens = matched_sentence([gain("budget", -0.02, 0.0102), gain("tokens", 0.0225, 0.0035)]).split("; ")[:2]
    assert "training FLOPs, a difference that shrinks by 0.0102 with each step of compute (a factor 2.15)" in budget
    assert tokens.endswith("for the same tokens, a difference that grows by 0.0035 with each step of compute")


def test_where_g_flips_too_only_matched_losses_rank():
    flips = side_of({"a": {"mean": 0.1, "p_gt_0": 1.0}, "b": {"mean": -0.1, "p_gt_0": 0.0}})
    firm = side_of({"a": {"mean": 0.1, "p_gt_0": 1.0}, "b": {"mean": 0.1, "p_gt_0": 1.0}})
    gains = [gain("budget", -0.02, 0.01)]
    said = phi_sentence("mine", "baseline", flips, {"2": firm, "4": flips}, gains, [])
    assert "rank by the loss of matched runs only, since g(r) at r = 4 hangs" in said
    assert "by g(r) first" not in said
    assert "rank by them and by g(r) first" in phi_sentence("mine", "baseline", flips, {"2": firm}, gains, [])


def test_structures_that_did_not_converge_count_neither_way():
    def under(name, mean, converged):
        told = {"mean": mean, "q05": mean, "q95": mean}
        return Under(structure=name, cells=False, converged=converged, phi={"baseline": told})

    found = RecipeComparison(
        anchor="baseline", recipes=(), matched=(), standings={}, trained_to={}, notes=(),
        structures=(under("a", 0.4, True), under("b", 0.5, True), under("astray", 0.9, False)),
    )  # fmt: skip
    assert found.sentences[0] == "phi of baseline itself goes from 0.40 (a) to 0.50 (b) by structure."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda own: own.assign(backprop_recurrences=np.nan), "no backprop_recurrences for 2 of 3 runs, those of mine"),
        (lambda own: own.assign(shared_layers=8), "differ in recurrences x shared_layers 16 and 32"),
    ],
)
def test_what_keeps_runs_from_being_one_family_is_named(change, words):
    runs = load_runs("isodepth").runs
    plain, own = runs[runs["recurrences"] == 1][:1], runs[runs["recurrences"] == 4][:2].assign(recipe="mine")
    fitted = SimpleNamespace(runs=pd.concat([plain, change(own)]), choose_recipe=lambda recipe: "mine")
    with pytest.raises(DecisionError, match=words):
        family_of(fitted)


def test_sides_by_structure():
    def of(**chances):
        return side_of({name: {"mean": chance - 0.5, "p_gt_0": chance} for name, chance in chances.items()})

    assert of(a=0.97, b=0.99).reading == "higher"
    assert of(a=0.01, b=0.04).reading == "lower"
    assert of(a=0.5, b=0.9).reading == "undecided"
    assert of(a=0.97, b=0.0).reading == of(a=0.97, b=0.0, c=0.6).reading == "hangs on structure"
    assert of(a=0.01, b=0.6).reading == "lower or undecided"
    assert set(of(a=0.97, b=0.0, c=0.5).undecided) == {"c"}


@pytest.mark.slow
def test_the_sign_for_hyperconnections_hangs_on_structure_but_not_that_of_the_matched_runs():
    found = compare_recipes(load_runs("isodepth-recipes"), draws=500)
    assert found.phi_side("hyperconnections").reading == "hangs on structure"
    assert not found.phi_side("truncated_bptt").higher
    assert {r: found.worth_side("truncated_bptt", r).reading for r in ("2", "4", "8")} == dict.fromkeys("248", "lower")
    assert "coupled, cells" in found.phi_side("hyperconnections").lower
    assert "default" in found.phi_side("hyperconnections").higher
