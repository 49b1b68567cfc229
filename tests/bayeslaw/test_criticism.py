"""Criticism of a fit: what is said first, what leans on the prior, on single runs and on structure."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from bayeslaw.checks import criticism, structures
from bayeslaw.checks.cards import CheckCard
from bayeslaw.checks.criticism import automatic_checks, criticise, model_of, priors_of, unsampled_checks
from bayeslaw.checks.influence import influence, joint_log_likelihood, log_prior, power_scaling, vector
from bayeslaw.checks.predictive import predictive_check
from bayeslaw.diagnostics import check
from bayeslaw.fit import fit
from bayeslaw.likelihood import named
from bayeslaw.priors import DEFAULT
from bayeslaw.schema import BASELINE


@pytest.fixture(scope="module")
def found(isodepth_fit):
    return criticise(isodepth_fit, refit=False)


@pytest.fixture(scope="module")
def plain(plain_table):
    return fit(plain_table, law="additive", draws=250, tune=300, chains=2)


def cards(found):
    return {card.name: card for card in found}


def test_the_additive_laws_misfit_leads_the_verdict(found):
    assert found.headline.startswith("The additive law does not describe these runs")
    assert "times the variance that the cells' own parabolas leave" in found.findings[0]
    assert found.findings[1].startswith("Within cells log loss curves 1.7")
    assert found.advice[0].startswith("Use the default model")
    weights = [card.weight for card in sorted(found.cards, key=lambda card: -card.weight) if card.warns]
    assert weights == sorted(weights, reverse=True)
    assert all(sentence in found.verdict for sentence in (found.headline, *found.findings))


def test_every_card_answers_or_says_why_not(found):
    assert len({card.name for card in found.cards}) == len(found.cards) == 13
    for card in found.cards:
        assert card.verdict in ("ok", "warning", "not applicable"), card.reading
        assert card.reading
        assert card.warns == (card.verdict == "warning")
        if card.warns:
            assert card.advice
        if card.verdict != "not applicable":
            assert np.isfinite(card.value)
            assert all(len(row) == len(card.header) for row in card.rows)
    answer = json.loads(json.dumps(found.as_dict()))
    assert {"name", "verdict", "value", "threshold", "advice", "reading"} <= set(answer["cards"][0])
    assert answer["phi"] == []


def test_one_check_that_fails_says_so_and_kills_nothing(isodepth_fit, monkeypatch):
    def broken(*arguments, **settings):
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("bayeslaw.checks.misfit.optimum", broken)
    monkeypatch.setattr(criticism.influence, "influence", broken)
    found = criticise(isodepth_fit, refit=False)
    failed = {card.name: card.reading for card in found.cards if card.verdict == "failed"}
    assert failed == dict.fromkeys(("optimum", "influence"), "ZeroDivisionError: nothing to divide by")
    assert "could not be made" in found.verdict
    assert cards(found.cards)["curvature"].warns


def test_the_automatic_checks_need_no_compiler(isodepth_fit, monkeypatch):
    monkeypatch.setattr("bayeslaw.sampling.compiled", None)
    assert len(automatic_checks(isodepth_fit)) == 9


def test_the_vector_is_found_back_from_names(isodepth_fit):
    inputs, structure, priors = model_of(isodepth_fit)
    theta = vector(isodepth_fit.posterior, structure)
    again = named(theta[None], structure, inputs)
    for name in again.data_vars:
        np.testing.assert_allclose(again[name].values.ravel(), isodepth_fit.posterior[name].values.ravel(), rtol=1e-10)
    pointwise = isodepth_fit.data["log_likelihood"]["log_loss"].sum("run").values.ravel()
    np.testing.assert_allclose(joint_log_likelihood(theta[:20], structure, inputs), pointwise[:20], atol=1e-8)
    row, shifted = theta[:1], theta[:1].copy()
    at = structure.block("E").start
    shifted[0, at] = DEFAULT.E.mu + 2 * DEFAULT.E.sd
    row[0, at] = DEFAULT.E.mu
    assert (log_prior(row, structure, priors) - log_prior(shifted, structure, priors))[0] == pytest.approx(2.0)


def test_priors_come_back_from_the_record():
    assert priors_of(json.loads(json.dumps(DEFAULT.as_dict()))) == DEFAULT


def test_a_prior_that_decides_is_named(plain):
    """Plain runs say nothing about phi."""
    found = cards(unsampled_checks(plain, check(plain)))
    assert found["prior"].warns
    assert "phi" in found["prior"].reading
    assert {row[0]: row[-1] for row in found["prior"].rows}[f"phi[{BASELINE}]"] == "carried by the prior"
    assert {row[0]: row[-1] for row in found["prior"].rows}["E"] == "identified by the data"
    power = {row[0]: row[1:] for row in found["power-scaling"].rows}
    assert float(power["phi"][0]) > 0.05 > float(power["phi"][1])
    assert power["phi"][2] == "strong prior or weak data"


def test_the_data_decide_on_isodepth(found):
    power = cards(found.cards)["power-scaling"]
    assert power.verdict == "ok"
    assert all(float(row[2]) > 0.05 for row in power.rows if row[0] == "phi")


def test_importance_sampling_agrees_with_leaving_the_run_out(isodepth_fit):
    card = influence(isodepth_fit, "")
    top = isodepth_fit.runs["run_id"].tolist().index(card.rows[0][0])
    kept = isodepth_fit.runs.drop(index=top).reset_index(drop=True)
    without = fit(kept, law="additive", draws=500, tune=500, chains=4)
    whole = isodepth_fit.draws()["phi"]
    moved = (without.draws()["phi"].mean() - whole.mean()) / whole.std()
    assert moved == pytest.approx(card.arrays["moved"][top], abs=0.1)
    assert abs(moved) > 0.1


def test_a_run_that_carries_the_answer_is_named(isodepth_fit):
    """Draws of phi tied to one run's likelihood: leaving it out moves phi."""
    tree = isodepth_fit.data.copy()
    likelihood = tree["log_likelihood"]["log_loss"].values
    rng = np.random.default_rng(0)
    phi = tree["posterior"]["phi"]
    pull = rng.standard_normal(phi.shape)
    likelihood[..., 7] = -0.9 * pull[..., 0]
    tree["log_likelihood"] = xr.DataTree(tree["log_likelihood"].to_dataset().assign(
        log_loss=tree["log_likelihood"]["log_loss"].copy(data=likelihood)))  # fmt: skip
    tree["posterior"] = tree["posterior"].assign(phi=phi.copy(data=0.45 + 0.01 * pull))
    card = influence(replace(isodepth_fit, data=tree), "")
    assert card.warns
    assert str(isodepth_fit.runs["run_id"][7]) in card.reading
    assert card.value == pytest.approx(0.9, abs=0.2)


def test_predictive_p_values_see_what_the_fit_does_not_repeat(isodepth_fit):
    inputs, structure, _ = model_of(isodepth_fit)
    drawn = isodepth_fit.data["posterior_predictive"]["log_loss"]
    for chosen in (0, 500):
        own = replace(inputs, loss=np.exp(drawn.values[0, chosen]))
        assert predictive_check(isodepth_fit.posterior, drawn, structure, own).verdict == "ok"
    moved = np.exp(inputs.log_loss + 0.05 * (np.arange(116) == 30))
    outlier = predictive_check(isodepth_fit.posterior, drawn, structure, replace(inputs, loss=moved))
    assert outlier.warns
    assert "largest residual" in outlier.reading
    assert "(row 31)" in outlier.reading
    ids = [f"run-{i}" for i in range(116)]
    named_one = predictive_check(isodepth_fit.posterior, drawn, structure, replace(inputs, loss=moved), ids=ids)
    assert "measured (run-30)" in named_one.reading
    assert 0 < outlier.value < 0.01
    assert "--outliers student" in outlier.advice
    inputs_cells = np.exp(drawn.values[0, 0] + 0.006 * np.random.default_rng(0).standard_normal(24)[inputs.cell.index])
    shared = predictive_check(isodepth_fit.posterior, drawn, structure, replace(inputs, loss=inputs_cells))
    assert "correlation of residuals within cells" in shared.reading


def rows_of(means, by="structure", **settings):
    rng = np.random.default_rng(1)
    return tuple(
        structures.Row(
            structure=f"s{i}", injection_in="once", recipe="baseline", by="fit" if i == 0 else by, recurrences=8.0,
            phi=rng.normal(mean, 0.02, 400), worth=8 ** rng.normal(mean, 0.02, 400), converged=True, **settings,
        )
        for i, mean in enumerate(means)
    )  # fmt: skip


def test_the_reading_of_the_structures_is_computed_from_them():
    card = structures.structures_card(rows_of([0.46, 0.60, 0.5]))
    assert card.warns
    assert card.reading == "phi is 0.46 to 0.60 by structure; all are under 1 and all are above 0"
    calm = structures.structures_card(rows_of([0.46, 0.48]))
    assert calm.verdict == "ok"
    across = structures.structures_card(rows_of([0.02, -0.02]))
    assert across.warns
    assert "P(above 0) is" in across.reading


def test_a_structure_that_a_table_cannot_have_is_left_out_with_its_reason(isodepth_fit, monkeypatch):
    monkeypatch.setattr(
        structures, "STRUCTURES", {"additive, independent": {"law": "additive"}, "coupled, cells": {"law": "coupled",
        "noise": "cells"}},
    )  # fmt: skip
    runs = isodepth_fit.runs
    alone = runs.groupby(["recurrences", "budget"]).head(1).reset_index(drop=True)
    small = replace(isodepth_fit, runs=alone)
    rows = structures.refits(small)
    reasons = [row for row in rows if row.reason]
    assert [row.structure for row in reasons] == ["coupled, cells"]
    assert "one run in every cell" in reasons[0].reason
    assert reasons[0].answer is None
    assert [row.injection_in for row in rows if row.by == "convention"] == ["rec", "nowhere", "regression"]
    card = None
    with pytest.raises(Exception, match="under any structure"):
        card = structures.structures_card(rows)
    assert card is None


@pytest.mark.slow
def test_phi_by_structure_and_by_counting(isodepth_fit):
    """.46 with independent errors, .54 and .60 with cells; less where the injection counts in the shared block."""
    found = criticise(isodepth_fit)
    phi = {(row.structure, row.injection_in): row for row in found.phi}
    mean = {key: float(row.phi.mean()) for key, row in phi.items()}
    assert mean["additive, independent", "once"] == pytest.approx(0.465, abs=0.01)
    assert mean["coupled, independent", "once"] == pytest.approx(0.457, abs=0.01)
    assert mean["coupled, cells", "once"] == pytest.approx(0.544, abs=0.02)
    assert mean["additive, cells", "once"] == pytest.approx(0.603, abs=0.02)
    assert mean["additive, independent", "rec"] < mean["additive, independent", "once"]
    assert mean["additive, independent", "rec"] < mean["additive, independent", "nowhere"]
    assert all(row.converged for row in found.phi)
    card = cards(found.cards)["structures"]
    assert card.warns
    assert "all are under 1 and all are above 0" in card.reading


def test_a_law_without_loops_has_no_structures_card(plain):
    found = cards(criticise(plain).cards)
    assert found["structures"].verdict == "not applicable"


def verdicts(**given):
    """Cards of the checks that need budget lines, and one that does not, ok but for what is given."""
    names = (*criticism.BY_CELLS, "influence")
    return tuple(
        CheckCard(name=name, title="", verdict=given.get(name.replace("-", "_"), "ok"), reading="so") for name in names
    )


def test_a_calm_fit_is_told_so(isodepth_fit):
    told = criticism.headline(isodepth_fit, verdicts(), check(isodepth_fit))
    assert told == "Nothing speaks against the additive law: 6 checks, no warning."


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"influence": "warning"}, "The additive law describes the shape of these runs, but for what follows"),
        ({"lack_of_fit": "warning"}, "The additive law bends over size and budget as these runs do, but misses them"),
        ({"curvature": "warning", "optimum": "warning"}, "The additive law does not describe these runs"),
        ({"curvature": "warning", "lack_of_fit": "warning"}, "Of 6 checks 2 speak against the additive law."),
        ({"offsets": "not applicable"}, "Nothing speaks against the additive law: 5 checks, no warning; offsets could"),
        ({"lack_of_fit": "failed", "influence": "warning"}, "Of 5 checks 1 speaks against the additive law; lack-of"),
        (
            {"curvature": "not applicable", "optimum": "not applicable"},
            "Nothing is known about the shape of the additive law: 2 checks could not be made (curvature, optimum); of "
            "the 4 others none warns.",
        ),
    ],
)
def test_the_headline_says_no_more_than_was_checked(isodepth_fit, given, start):
    assert criticism.headline(isodepth_fit, verdicts(**given), check(isodepth_fit)).startswith(start)


@pytest.mark.parametrize("given", [{}, {"influence": "warning"}, {"lack_of_fit": "warning"}])
def test_a_fit_that_was_not_sampled_well_is_not_praised(isodepth_fit, given):
    poor = replace(check(isodepth_fit), passed=False, messages=("Do not rely on this fit yet: it is poor",))
    told = criticism.headline(isodepth_fit, verdicts(**given), poor)
    assert told.startswith("Do not rely on this fit yet")
    assert not [praise for praise in ("describes", "Nothing speaks", "as these runs do") if praise in told]


def test_without_budgets_nothing_is_known_about_the_shape(isodepth_fit):
    """The runs whose curvature is 1.75 times the additive law's must not be called well described."""
    runs = isodepth_fit.runs.drop(columns=["budget", "flops", "flops_per_token"])
    found = criticise(replace(isodepth_fit, runs=runs), refit=False)
    assert found.headline.startswith("Nothing is known about the shape of the additive law: 5 checks could not be made")
    assert all(name in found.headline for name in criticism.BY_CELLS)
    assert found.advice[0].startswith("Record budgets or FLOPs")
    told = cards(found.cards)
    for name in criticism.BY_CELLS:
        assert "neither a budget nor FLOPs" in told[name].reading
    for name in ("exponent-drift", "residuals-budget"):
        assert "6 N D" in told[name].reading
    assert "nan" not in found.verdict


def test_a_budget_or_flops_alone_show_the_shape(isodepth_fit):
    for known, lost in (("budget", "flops"), ("flops", "budget")):
        bare = replace(isodepth_fit, runs=isodepth_fit.runs.drop(columns=[lost, "flops_per_token"]))
        told = cards(automatic_checks(bare))
        assert told["curvature"].warns, known
        assert "24 of 24 cells" in told["curvature"].reading
        assert not [card.name for card in told.values() if "6 N D" in card.reading]


def test_where_the_other_structures_are_is_said(isodepth_fit, found, monkeypatch):
    told = cards(found.cards)["within-between"].advice
    assert "default model" in told  # a coupled law is told where to look
    monkeypatch.setattr("bayeslaw.checks.within.advice", lambda structure, otherwise: otherwise)
    assert "run `bayeslaw check` with --structures on" in cards(automatic_checks(isodepth_fit))["within-between"].advice
    rows = rows_of([0.46, 0.60])
    monkeypatch.setattr(structures, "refits", lambda fit, *, progress: rows)
    whole = cards(criticise(isodepth_fit).cards)["within-between"].advice
    assert whole.endswith("see the answer under each structure")


def test_groups_that_only_the_prior_tells_apart_stay_groups(isodepth_fit):
    carried = replace(check(isodepth_fit), not_identified=("phi",), confounded=("alpha, beta", "B, beta"))
    told = cards(unsampled_checks(isodepth_fit, carried))["prior"].reading
    assert told == "the prior carries phi; only the prior tells apart the members of (alpha, beta) and of (B, beta)"


@pytest.mark.slow
def test_answers_of_power_scaling_have_effects_integrated_out():
    """With effects of cells the pointwise densities do not add up to the joint one."""
    grouped = fit("isodepth", law="additive", noise="cells", draws=150, tune=250, chains=2)
    inputs, structure, priors = model_of(grouped)
    theta = vector(grouped.posterior, structure)[:3]
    from scipy.stats import multivariate_normal

    parameters = named(theta[None], structure, inputs)
    from bayeslaw.likelihood import error_variance, predicted_log_loss

    law = predicted_log_loss(parameters, structure, inputs).values[0]
    variance = error_variance(parameters, structure, inputs)[0]
    member = inputs.cell.index[:, None] == inputs.cell.index[None, :]
    for i, value in enumerate(joint_log_likelihood(theta, structure, inputs)):
        covariance = np.diag(variance[i]) + float(parameters["tau_cell"][0, i]) ** 2 * member
        assert value == pytest.approx(multivariate_normal(law[i], covariance).logpdf(inputs.log_loss), abs=1e-6)
    card = power_scaling(grouped, structure, inputs, priors, "")
    assert [row[0] for row in card.rows] == ["phi", "g(4)", "E"]
