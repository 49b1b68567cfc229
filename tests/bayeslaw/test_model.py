"""The PyMC model against itself in other coordinates, its priors as stated, its likelihood against the numpy one."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from bayeslaw import load_runs
from bayeslaw.coordinates import to_local
from bayeslaw.inputs import inputs_of
from bayeslaw.likelihood import log_likelihood, natural_parameters, predictive
from bayeslaw.model import build
from bayeslaw.point import penalised
from bayeslaw.priors import DEFAULT, sample_prior


@pytest.fixture(scope="module")
def inputs():
    return inputs_of(load_runs("isodepth-recipes").runs, injection_in="once")


@pytest.fixture(scope="module")
def whitening(inputs):
    return penalised(inputs, DEFAULT)


@pytest.fixture(scope="module")
def points(inputs):
    """A hundred points of the parameter space, drawn from the prior."""
    return sample_prior(DEFAULT, 100, len(inputs.recipes), np.random.default_rng(3))


def evaluate(model, name, points, transform):
    """Joint log density of a model at given values of its variables."""
    density = model.compile_logp(mode="FAST_COMPILE")
    out = []
    for i in range(100):
        value = {"phi_mean": points["phi_mean"][i], "phi_spread_log__": np.log(points["phi_spread"][i])}
        out.append(density({**value, "sigma_log__": np.log(points["sigma"][i]), name: transform(points["theta"][i])}))
    return np.array(out)


@pytest.mark.parametrize("outliers", ["gaussian", "student"])
def test_two_parametrisations_of_one_model_agree(inputs, whitening, points, outliers):
    plain = evaluate(build(inputs, DEFAULT, outliers=outliers, whitening=None), "theta", points, lambda theta: theta)
    inverse = np.linalg.inv(whitening.chol)
    white = evaluate(
        build(inputs, DEFAULT, outliers=outliers, whitening=whitening),
        "theta_whitened__",
        points,
        lambda theta: inverse @ (to_local(theta, xp=np) - whitening.mean),
    )
    constant = np.log(np.diag(whitening.chol)).sum()
    np.testing.assert_allclose(white, plain + constant, rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("outliers", ["gaussian", "student"])
def test_the_numpy_likelihood_is_the_models(inputs, points, outliers):
    model = build(inputs, DEFAULT, outliers=outliers, whitening=None)
    density = model.compile_fn(model.logp(vars=model["log_loss"], sum=False), mode="FAST_COMPILE")
    drawn = {name: (("chain", "draw", "p")[: value.ndim + 1], value[None]) for name, value in points.items()}
    ours = log_likelihood(natural_parameters(xr.Dataset(drawn), inputs), inputs, outliers)["log_loss"].values[0]
    for i in range(10):
        (theirs,) = density({"theta": points["theta"][i], "sigma_log__": np.log(points["sigma"][i])})
        np.testing.assert_allclose(ours[i], theirs, rtol=1e-7, atol=1e-7)


def test_pymc_draws_the_priors_as_stated(inputs, whitening):
    """The change of coordinates leaves the prior alone: PyMC's own draws have the stated quantiles."""
    model = build(inputs, DEFAULT, outliers="gaussian", whitening=whitening)
    theta, sigma = pm.draw([model["theta"], model["sigma"]], draws=4000, random_seed=1, mode="FAST_COMPILE")
    ours = sample_prior(DEFAULT, 4000, len(inputs.recipes), np.random.default_rng(2))
    for i, prior in enumerate(DEFAULT.law):
        assert np.quantile(np.exp(theta[:, i]), [0.05, 0.5, 0.95]) == pytest.approx(
            [prior.quantile(q) for q in (0.05, 0.5, 0.95)], rel=0.08
        )
    for theirs, mine in (
        (theta[:, 5], ours["theta"][:, 5]),
        (theta[:, 7], ours["theta"][:, 7]),
        (sigma, ours["sigma"]),
    ):
        assert np.quantile(theirs, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(mine, [0.1, 0.5, 0.9]), abs=0.05)


def test_the_prior_covers_published_and_tiny_runs(inputs):
    """Prior predictive: losses of large runs and of byte-level desk runs lie inside, absurd ones are rare."""
    rng = np.random.default_rng(0)
    drawn = sample_prior(DEFAULT, 2000, len(inputs.recipes), rng)
    raw = {name: (("chain", "draw", "p")[: value.ndim + 1], value[None]) for name, value in drawn.items()}
    prior = natural_parameters(xr.Dataset(raw), inputs)
    losses = np.exp(predictive(prior, inputs, "gaussian", rng)["log_loss"].values)
    low, high = np.quantile(losses, [0.02, 0.98])
    assert low < 1.2
    assert high > 5.0
    assert np.mean(losses > 25) < 0.01
    phi = prior["phi"].values
    assert 0.08 < np.mean(phi < 0) < 0.3
    assert 0.08 < np.mean(phi > 1) < 0.3


def test_penalised_fit_finds_the_published_values(inputs, whitening):
    """The three recipes' phi near the point estimates of the literature's procedure."""
    by_recipe = dict(zip(inputs.recipes, whitening.mean[5:], strict=True))
    assert by_recipe["baseline"] == pytest.approx(0.46, abs=0.04)
    assert by_recipe["truncated_bptt"] < by_recipe["baseline"] < by_recipe["hyperconnections"]
