"""The posterior: known answers, agreement between seeds, what a saved fit holds, what is refused."""

import contextlib
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from bayeslaw import law, load_runs
from bayeslaw.diagnostics import check, phi_differences
from bayeslaw.errors import FitError, UsageError
from bayeslaw.fit import fit
from bayeslaw.posterior import Fit
from bayeslaw.simulate import simulate

TRUTH = {"E": 1.6, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37, "phi": 0.3}


def test_isodepth_posterior(isodepth_fit):
    """The published fit of the same runs has phi .459, alpha .199, beta .369."""
    verdict = check(isodepth_fit)
    mean = verdict.parameters["mean"]
    assert 0.45 <= mean["phi[baseline]"] <= 0.48
    assert 0.18 <= mean["alpha"] <= 0.23
    assert 0.33 <= mean["beta"] <= 0.40
    assert verdict.passed
    assert verdict.max_r_hat < 1.01
    assert verdict.min_ess_bulk > 1000
    assert verdict.divergences == 0
    assert verdict.not_identified == ()


def test_another_seed_agrees_within_monte_carlo_error(isodepth_fit):
    other = fit("isodepth", law="additive", noise="iid", outliers="gaussian", injection_in="once", seed=11)
    for name, row in check(isodepth_fit).parameters.iterrows():
        again = check(other).parameters.loc[name]
        error = np.hypot(row["sd"] / np.sqrt(row["ess_bulk"]), again["sd"] / np.sqrt(again["ess_bulk"]))
        assert abs(row["mean"] - again["mean"]) < 3 * error, name


def test_injection_in_the_shared_block_lowers_phi():
    counted = fit("isodepth", law="additive", noise="iid", outliers="gaussian", injection_in="rec")
    assert 0.42 <= counted.draws()["phi"].mean() <= 0.45


@pytest.mark.slow
def test_known_truth_of_several_recipes_is_recovered():
    design = load_runs("isodepth-recipes").runs
    phi = {"baseline": 0.3, "truncated_bptt": 0.1, "hyperconnections": 0.7}
    by_recipe = {recipe: {"phi": value} for recipe, value in phi.items()}
    runs = simulate(design, parameters=TRUTH, sigma=0.004, seed=2, by_recipe=by_recipe)
    posterior = fit(runs, law="additive", outliers="student")
    verdict = check(posterior)
    assert verdict.passed
    assert posterior.recipes[0] == "baseline"
    rows = verdict.parameters
    for recipe, value in phi.items():
        row = rows.loc[f"phi[{recipe}]"]
        assert abs(row["mean"] - value) < 4 * row["sd"]
    for name in ("E", "A", "B", "alpha", "beta"):
        assert abs(rows.loc[name, "mean"] - TRUTH[name]) < 4 * rows.loc[name, "sd"]
    differences = phi_differences(posterior)
    assert set(differences) == {"truncated_bptt", "hyperconnections"}
    assert differences["truncated_bptt"]["p_gt_0"] < 0.05
    assert differences["hyperconnections"]["p_gt_0"] > 0.95


def test_one_recipe_is_anchored_by_the_baselines_unlooped_runs(isodepth_fit):
    table = load_runs("isodepth-recipes", recipe="truncated_bptt")
    assert set(table.runs["recipe"]) == {"baseline", "truncated_bptt"}
    assert set(table.runs.loc[table.runs["recipe"] == "baseline", "recurrences"]) == {1.0}
    posterior = fit(table, law="additive", recipe="truncated_bptt")
    assert posterior.recipes == ("truncated_bptt",)
    assert posterior.draws()["phi"].mean() < isodepth_fit.draws()["phi"].mean()


def test_plain_table_recovers_its_law_and_says_phi_is_the_priors(plain_fit):
    verdict = check(plain_fit)
    assert verdict.passed
    for name, value in {"E": 1.7, "alpha": 0.34, "beta": 0.28}.items():
        row = verdict.parameters.loc[name]
        assert abs(row["mean"] - value) < 4 * row["sd"], name
    assert verdict.not_identified == ("phi[baseline]",)
    assert "phi[baseline]" in verdict.messages[-1]


def test_groups_and_record(isodepth_fit):
    groups = set(isodepth_fit.data.children)
    assert groups >= {
        "posterior", "prior", "log_likelihood", "posterior_predictive", "observed_data", "constant_data",
        "sample_stats",
    }  # fmt: skip
    record = isodepth_fit.attrs
    assert record["data_hash"] == load_runs("isodepth").data_hash
    assert record["spec"]["injection_in"] == "once"
    assert {"pymc", "arviz", "bayeslaw"} <= set(record["versions"])
    run_ids = isodepth_fit.data["log_likelihood"]["run"].to_numpy()
    assert list(run_ids) == list(isodepth_fit.runs["run_id"])


def test_posterior_predictive_covers_the_runs(isodepth_fit):
    drawn = isodepth_fit.data["posterior_predictive"]["log_loss"].values.reshape(-1, 116)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    observed = isodepth_fit.data["observed_data"]["log_loss"].values
    assert 0.8 < np.mean((observed > low) & (observed < high)) < 0.99


def test_saved_fit_comes_back_whole(isodepth_fit, isodepth_file):
    again = Fit.load(isodepth_file)
    assert again.spec == isodepth_fit.spec
    assert again.attrs == isodepth_fit.attrs
    for name, group in isodepth_fit.data.children.items():
        assert group.to_dataset().equals(again.data[name].to_dataset()), name
    assert again.runs.dtypes.to_dict() == isodepth_fit.runs.dtypes.to_dict()
    assert again.runs.equals(isodepth_fit.runs)


def test_a_fit_that_cannot_be_written_leaves_nothing(isodepth_fit, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FitError, match="cannot write"):
        isodepth_fit.save(tmp_path / "file" / "fit.nc")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("content", [None, b"", b"not a fit", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_what_is_no_fit_is_refused(tmp_path, content):
    path = tmp_path / "fit.nc"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FitError, match=r"bayeslaw fit SOURCE --out fit.nc"):
        Fit.load(path)


def test_a_damaged_fit_file_is_refused(isodepth_file, tmp_path):
    """Bytes flipped anywhere, or a group lost: refused, or read as it was, never a stray error."""
    import random

    import h5py

    whole = isodepth_file.read_bytes()
    draw = random.Random(1)
    path = tmp_path / "fit.nc"
    for _ in range(8):
        damaged = bytearray(whole)
        for _ in range(200):
            damaged[draw.randrange(len(damaged))] ^= 0xFF
        path.write_bytes(damaged)
        with contextlib.suppress(FitError):
            Fit.load(path)
    path.write_bytes(whole)
    with h5py.File(path, "a") as file:
        del file["posterior"]
    with pytest.raises(FitError, match="no group posterior"):
        Fit.load(path)


def test_fewer_runs_than_parameters(plain_table):
    with pytest.raises(FitError, match="3 runs for 7 free parameters"):
        fit(plain_table[:3], law="additive")
    allowed = fit(plain_table[:3], law="additive", allow_prior_dominated=True)
    assert set(check(allowed).not_identified) >= {"alpha", "beta", "phi[baseline]"}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"law": "cubic"}, "allowed: additive, coupled, chinchilla"),
        ({"map": "cubic"}, "allowed: power, none, full"),
        ({"law": "chinchilla", "map": "power"}, "leave --map out"),
        ({"noise": "red"}, "allowed: iid, cells"),
        ({"pooling": {"E": "sometimes"}}, "MODE one of shared, partial, separate"),
        ({"pooling": {"E": "partial:colour"}}, "FACTOR one of recipe, source, architecture"),
        ({"pooling": {"gain": "shared"}}, "no such parameter"),
        ({"law": "chinchilla", "pooling": {"E": "shared"}}, "no pooling"),
        ({"flavour": "vanilla"}, "no setting flavour"),
        ({"outliers": "cauchy"}, "allowed: gaussian, student"),
        ({"injection_in": "twice"}, "allowed: once, rec, nowhere, regression"),
        ({"draws": 3}, "draws = 3"),
        ({"recipe": "nope"}, "nope"),
    ],
)
def test_settings_that_cannot_be_meant(setting, text):
    with pytest.raises(UsageError, match=text):
        fit("isodepth", **setting)


def test_weak_tables_pass_the_diagnostics():
    """Collinear tokens = 20 n: a ridge that the first try does not sample well enough, and the second does."""
    n = np.geomspace(3e7, 3e9, 12).round()
    curve = law.loss(n, 20 * n, E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)
    curve *= np.exp(np.random.default_rng(1).normal(0, 0.003, 12))
    told: list[str] = []
    posterior = fit(pd.DataFrame({"n": n, "tokens": 20 * n, "loss": curve}), law="additive", progress=told.append)
    assert any("sampling again" in text for text in told)
    assert check(posterior).passed
    assert posterior.posterior.sizes["draw"] == posterior.spec.draws


def test_unknown_recipe_of_a_fit(isodepth_fit):
    with pytest.raises(UsageError, match="allowed: baseline"):
        isodepth_fit.draws("nope")


@pytest.mark.slow
def test_ctrl_c_while_sampling_ends_with_130_and_writes_nothing(tmp_path):
    """A signal sent once sampling has begun must not pass for a finished sample."""
    import signal

    out = tmp_path / "fit.nc"
    command = [sys.executable, "-m", "bayeslaw", "fit", "isodepth", "--draws", "400000", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("sampling"):
            break
    time.sleep(1.0)
    assert process.poll() is None, "sampling ended before the signal"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert not list(tmp_path.iterdir())
