"""Tables that mislead their users: what is said of them."""

import numpy as np
import pandas as pd
import pytest

from bayeslaw import law, load_runs
from bayeslaw.diagnostics import check
from bayeslaw.errors import FitError, RunTableError
from bayeslaw.fit import fit
from bayeslaw.inputs import inputs_of


@pytest.fixture(scope="module")
def runs():
    return load_runs("isodepth").runs


@pytest.fixture(scope="module")
def student_fit():
    return fit("isodepth", law="additive", outliers="student")


def plain(n, tokens, *, seed=0, sigma=0.003):
    """A plain table of Hoffmann's constants."""
    curve = law.loss(n, tokens, E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
    return pd.DataFrame(
        {"n": n, "tokens": tokens, "loss": curve * np.exp(np.random.default_rng(seed).normal(0, sigma, len(n)))}
    )


@pytest.mark.slow
def test_collinear_design():
    """D = 20 N leaves the two exponents to the prior, and says so."""
    n = 1e8 * 2.0 ** np.arange(8)
    verdict = check(fit(plain(n, 20 * n), law="additive"))
    assert verdict.passed
    assert any({"alpha", "beta"} <= set(group.split(", ")) for group in verdict.confounded)
    assert any("do not tell apart" in message for message in verdict.messages)
    crossed, tokens = (grid.ravel() for grid in np.meshgrid(n, 20 * n))
    assert check(fit(plain(crossed, tokens), law="additive")).confounded == ()


def test_one_r_only(runs):
    verdict = check(fit(runs[runs["recurrences"] == 4], law="additive"))
    assert verdict.not_identified == ("phi[baseline]",)
    assert "the prior carries the answer" in verdict.messages[-1]


def test_one_budget_only(runs):
    verdict = check(fit(runs[runs["budget"] == 2.15e18], law="additive"))
    assert verdict.passed
    assert "beta" in verdict.not_identified


def test_three_runs(runs):
    with pytest.raises(FitError, match="3 runs for 7 free parameters"):
        fit(runs[:3], law="additive")
    posterior = fit(runs[:3], law="additive", allow_prior_dominated=True)
    verdict = check(posterior)
    assert verdict.passed
    assert {"alpha", "beta", "phi[baseline]"} <= set(verdict.not_identified)
    assert any("fewer runs than free parameters" in note for note in posterior.attrs["notes"])


def test_equal_losses(runs):
    verdict = check(fit(runs.assign(loss=2.5), law="additive"))
    assert verdict.passed
    assert {"alpha", "beta", "phi[baseline]"} <= set(verdict.not_identified)


def test_an_outlier_under_student_errors(runs, student_fit):
    """One run off by .15 nats moves phi by less than one posterior sd; under normal errors its interval widens."""
    spoiled = runs.copy()
    spoiled.loc[60, "loss"] += 0.15
    moved = fit(spoiled, law="additive", outliers="student")
    before, after = student_fit.posterior["phi"], moved.posterior["phi"]
    assert abs(float(after.mean() - before.mean())) < float(before.std())
    normal = fit(spoiled, law="additive").posterior["phi"]
    assert float(normal.std()) > 1.4 * float(after.std())


@pytest.mark.slow
@pytest.mark.parametrize("marked", [True, False])
def test_repeated_checkpoints_count_as_one_run(runs, isodepth_fit, marked):
    """Four checkpoints of each run, with or without their run's name: no narrower than one row a run."""
    rng = np.random.default_rng(1)
    rows = []
    for step in range(4):
        tokens = (runs["tokens"] * (1 - 0.002 * step)).round().astype("int64")
        noisy = runs["loss"] * np.exp(rng.normal(0, 2e-4, len(runs)))
        rows.append(
            runs.assign(
                run_id=runs["run_id"] + f"/step{step}", training_run=runs["run_id"], tokens=tokens, loss=noisy,
                flops=tokens * runs["flops_per_token"],
            )
        )  # fmt: skip
    table = pd.concat(rows, ignore_index=True)
    posterior = fit(table if marked else table.drop(columns="training_run"), law="additive")
    assert check(posterior).passed
    phi = posterior.posterior["phi"]
    assert float(phi.std()) > 0.95 * float(isodepth_fit.posterior["phi"].std())
    assert abs(float(phi.mean() - isodepth_fit.posterior["phi"].mean())) < float(phi.std())
    assert any("share an effect (tau_run)" in note for note in posterior.attrs["notes"])
    assert float(posterior.posterior["tau_run"].mean()) > 5 * float(posterior.posterior["sigma"].mean())


def test_checkpoints_without_budgets_are_known_by_their_tokens(runs, isodepth_fit):
    """Neither budget nor training_run: rows of one configuration within 10 % of tokens are one aim."""
    rows = []
    for step in range(3):
        tokens = (runs["tokens"] * (1 - 0.03 * step)).round().astype("int64")
        rows.append(runs.assign(run_id=runs["run_id"] + f"/{step}", tokens=tokens).drop(columns=["budget", "flops"]))
    inputs = inputs_of(load_runs(pd.concat(rows, ignore_index=True)).runs, injection_in="once")
    assert len(inputs.run.levels) == len(runs)
    assert set(np.bincount(inputs.run.index)) == {3}
    grid = inputs_of(load_runs(runs.drop(columns="budget")).runs, injection_in="once")
    assert len(grid.run.levels) == len(runs)


def test_a_training_run_of_two_kinds_is_refused(runs):
    mixed = runs.assign(training_run=[f"t{i // 3}" for i in range(len(runs))])
    with pytest.raises(RunTableError, match="training_run"):
        load_runs(mixed)


def test_a_negative_known_error_is_refused(runs):
    with pytest.raises(RunTableError, match="loss_se"):
        load_runs(runs.assign(loss_se=-0.01))


def test_bits_are_converted_and_other_units_refused(runs):
    bits = load_runs(runs.assign(loss=runs["loss"] / np.log(2), loss_unit="bits/token"))
    np.testing.assert_allclose(bits.runs["loss"], runs["loss"], rtol=1e-12)
    assert any("converted" in note for note in bits.notes)
    with pytest.raises(RunTableError, match="loss_unit"):
        load_runs(runs.assign(loss_unit="nats/byte"))


def test_repeated_data_is_flagged(runs):
    table = load_runs(runs.assign(epochs=4.0))
    assert any("more than once" in note for note in table.notes)


def test_cells_need_budgets_and_several_runs_each(runs):
    with pytest.raises(FitError, match="needs the budget of every run"):
        fit(runs.drop(columns="budget"), noise="cells")
    lonely = runs.groupby(["budget", "recurrences"]).head(1)
    with pytest.raises(FitError, match="one run in every cell"):
        fit(lonely, noise="cells")


def test_student_errors_with_two_levels_of_effects_are_refused(runs):
    doubled = pd.concat([runs, runs.assign(run_id=runs["run_id"] + "/again", loss=runs["loss"] * 1.0001)])
    with pytest.raises(FitError, match="both run and cell effects"):
        fit(doubled.reset_index(drop=True), noise="cells", outliers="student")
