"""The verdict says what is known, and says first what is not."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw.allocate import allocate
from reports import text
from reports.study import Study
from reports.verdict import verdict


def read(sentences):
    return " ".join(sentences).replace(text.GAP, " ")


def test_an_identified_phi_is_stated_without_doubts(isodepth_fit):
    said = verdict(Study(fit=isodepth_fit))
    phi = isodepth_fit.draws()["phi"]
    low, high = np.quantile(phi, [0.05, 0.95])
    findings = read(said.findings)
    assert said.doubts == ()
    assert findings.startswith("A recurrence is worth something, but less than a unique block")
    assert f"phi = {phi.mean():.3f} (90 % interval {low:.3f} to {high:.3f})" in findings
    assert "P(phi < 1) > 0.999" in findings
    assert "P(phi > 0) > 0.999" in findings
    assert f"run twice is worth {np.mean(2**phi):.3f}" in findings
    assert f"one run 8 times {np.mean(8**phi):.3f}" in findings


def test_the_advice_is_that_of_allocate_at_the_largest_budget(isodepth_fit):
    advice = read(verdict(Study(fit=isodepth_fit)).advice)
    best = allocate(isodepth_fit, flops=float(isodepth_fit.runs["flops"].max())).recommended
    assert f"train r = {best.recurrences}, width {best.trainable.d_model}" in advice
    assert f"expected loss {best.trainable.loss.mean():.4f}" in advice


def test_a_phi_that_is_the_prior_again_is_called_not_identified(with_phi):
    said = verdict(Study(fit=with_phi(0.5, 0.49)))
    assert "do not identify phi" in said.doubts[0]
    assert read(said.findings).endswith("hardly more than the prior.")
    assert "unique blocks" not in read(said.findings)


def test_a_wide_phi_is_called_rough(with_phi):
    said = verdict(Study(fit=with_phi(0.5, 0.2)))
    assert "known only roughly: its 90 % interval spans 0.6" in said.doubts[0]


@pytest.mark.parametrize(
    ("mean", "meaning"),
    [
        (1.3, "A recurrence is worth at least a unique block"),
        (-0.4, "A recurrence is worth nothing, or does harm"),
        (0.95, "Whether a recurrence is worth less than a unique block stays open"),
        (0.05, "Whether a recurrence is worth anything stays open"),
    ],
)
def test_the_meaning_follows_the_posterior(with_phi, mean, meaning):
    assert read(verdict(Study(fit=with_phi(mean, 0.1))).findings).startswith(meaning)


def test_failed_diagnostics_come_first(isodepth_fit):
    tree = isodepth_fit.data.copy()
    stats = tree["sample_stats"].to_dataset()
    tree["sample_stats"] = tree["sample_stats"].assign(
        diverging=stats["diverging"].copy(data=stats["diverging"] | True)
    )
    said = verdict(Study(fit=replace(isodepth_fit, data=tree)))
    assert said.doubts[0].startswith("Do not rely on these numbers yet")
    assert f"{stats['diverging'].size} divergences" in said.doubts[0]


def test_runs_without_a_loop_say_nothing_about_phi(plain_fit):
    said = verdict(Study(fit=plain_fit))
    assert "No run repeats a block" in said.doubts[0]
    assert said.findings == ()
    assert "--flops-rule 6nd" in read(said.advice)


def test_a_size_that_is_hardly_known_or_far_from_all_runs_is_a_doubt(isodepth_fit):
    runs = isodepth_fit.runs[isodepth_fit.runs["n_unique"] < 2e8]
    few = replace(isodepth_fit, runs=runs.assign(flops=1e22))
    assert any("times larger than the largest that was trained" in doubt for doubt in verdict(Study(fit=few)).doubts)
    tree = isodepth_fit.data.copy()
    alpha = tree["posterior"].to_dataset()["alpha"]
    tree["posterior"] = tree["posterior"].assign(alpha=alpha * np.random.default_rng(0).uniform(0.5, 2, alpha.shape))
    vague = read(verdict(Study(fit=replace(isodepth_fit, data=tree))).doubts)
    assert "The best size for the largest trained budget is hardly known" in vague


def test_every_recipe_is_judged_and_a_shared_recommendation_said_once(hostile_fit):
    said = verdict(Study(fit=hostile_fit))
    for recipe in hostile_fit.recipes:
        assert sum(sentence.startswith(f"{recipe}: phi = ") for sentence in said.findings) == 1
        assert sum(sentence.startswith(f"{recipe}: r = ") for sentence in said.advice) == 1
    assert "effective sample size" in said.doubts[0]


def test_a_fit_that_cannot_be_judged_says_why(isodepth_fit, monkeypatch):
    monkeypatch.setattr("reports.study.check", lambda fit: 1 / 0)
    said = verdict(Study(fit=isodepth_fit))
    assert said.doubts == ("The fit could not be judged: ZeroDivisionError: division by zero",)
    assert said.advice
