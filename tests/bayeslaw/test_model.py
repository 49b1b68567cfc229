"""The model as it is sampled against the model as it is stated; the numpy likelihood against both; the priors."""

import numpy as np
import pymc as pm
import pytest

from bayeslaw import laplace, load_runs, model, sampling
from bayeslaw.coordinates import natural
from bayeslaw.inputs import inputs_of
from bayeslaw.likelihood import log_likelihood, named, predictive, sample_prior
from bayeslaw.priors import DEFAULT
from bayeslaw.spec import Spec
from bayeslaw.structure import structure_of

POINTS = 100

RICH = {
    "law": "coupled", "map": "bounded", "deviation": True, "outliers": "student", "error_scale": "compute",
    "pooling": {"E": "separate", "k": "partial", "scale": "shared"},
}  # fmt: skip
"""Nearly every part of the model at once."""


@pytest.fixture(scope="module")
def inputs():
    return inputs_of(load_runs("isodepth-recipes").runs, injection_in="once")


@pytest.fixture(scope="module")
def baseline():
    return inputs_of(load_runs("isodepth").runs, injection_in="once")


def points_of(structure, number=POINTS, seed=3):
    """Points of the parameter space, drawn from the prior."""
    return sample_prior(structure, DEFAULT, number, np.random.default_rng(seed))


def sampled_density(structure, inputs):
    """Log density of theta by the sampler's own compiled model, with the change of coordinates taken back."""
    start = laplace.start(structure, inputs, DEFAULT)
    packed = model.pack(structure, inputs, DEFAULT, start)
    density = sampling.compiled(structure, packed).log_density(packed)
    inverse = np.linalg.inv(start.chol)

    def of(theta):
        xi = structure.layout.to_local(theta)
        volume = natural(xi, structure.layout.cores, structure.layout.reference, np.empty_like(xi))
        return density(inverse @ (xi - start.mean))[0] - volume

    return of


def stated_values(structure, theta):
    """The stated model's free variables at theta."""
    values = {}
    for block in structure.blocks:
        own = theta[block.slice] if block.factor else theta[block.start]
        values[f"{block.name}_log__" if block.log else block.name] = own
    for name, at in structure.hyper.items():
        values[f"{name}_log__" if name.endswith("_spread") else name] = theta[at]
    for name, at in structure.scales.items():
        values[name if name == "sigma_slope" else f"{name}_log__"] = theta[at]
    return values


@pytest.mark.parametrize("settings", [{}, RICH], ids=["default", "rich"])
@pytest.mark.slow
def test_two_parametrisations_of_one_model_agree(inputs, settings):
    structure = structure_of(inputs, Spec(**settings), DEFAULT)
    ours = sampled_density(structure, inputs)
    stated = model.stated(structure, inputs, DEFAULT).compile_logp(mode="FAST_COMPILE")
    for theta in points_of(structure):
        assert ours(theta) == pytest.approx(float(stated(stated_values(structure, theta))), rel=1e-8, abs=1e-6)


def test_the_samplers_gradient_is_the_densitys(baseline):
    structure = structure_of(baseline, Spec(law="coupled", noise="cells"), DEFAULT)
    start = laplace.start(structure, baseline, DEFAULT)
    packed = model.pack(structure, baseline, DEFAULT, start)
    density = sampling.compiled(structure, packed).log_density(packed)
    rng = np.random.default_rng(0)
    for _ in range(10):
        z = rng.normal(size=structure.size)
        step = 1e-5 * np.eye(structure.size)
        slope = [(density(z + unit)[0] - density(z - unit)[0]) / 2e-5 for unit in step]
        np.testing.assert_allclose(density(z)[1], slope, rtol=1e-5, atol=1e-4)


def test_effects_integrated_by_kernel_and_by_the_stated_model_agree(baseline):
    structure = structure_of(baseline, Spec(law="coupled", noise="cells"), DEFAULT)
    ours = sampled_density(structure, baseline)
    stated = model.stated(structure, baseline, DEFAULT, integrated=True).compile_logp(mode="FAST_COMPILE")
    for theta in points_of(structure):
        assert ours(theta) == pytest.approx(float(stated(stated_values(structure, theta))), rel=1e-8, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("outliers", ["gaussian", "student"])
def test_integrated_effects_are_those_of_explicit_latents(outliers):
    """Log of the average over latent effects, by brute force, of the stated model's explicit density, for one cell."""
    runs = load_runs("isodepth", where="budget == 2.15e18 and recurrences == 4").runs
    inputs = inputs_of(runs, injection_in="once")
    structure = structure_of(inputs, Spec(noise="cells", outliers=outliers), DEFAULT)
    ours = sampled_density(structure, inputs)
    explicit = model.stated(structure, inputs, DEFAULT)
    stated = explicit.compile_logp(mode="FAST_COMPILE")
    effects = np.linspace(-8, 8, 1601)
    near = laplace.start(structure, inputs, DEFAULT)
    rng = np.random.default_rng(5)
    for _ in range(4):
        theta = structure.layout.from_local(near.mean + 0.3 * near.chol @ rng.normal(size=structure.size))
        values = stated_values(structure, theta)
        logs = np.array([float(stated({**values, "cell_effect": [effect]})) for effect in effects])
        brute = np.log(np.exp(logs - logs.max()).sum() * (effects[1] - effects[0])) + logs.max()
        assert ours(theta) == pytest.approx(brute, abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("outliers", ["gaussian", "student"])
def test_posteriors_with_integrated_and_explicit_effects_are_the_same(baseline, outliers):
    from bayeslaw.fit import fit

    ours = fit("isodepth", law="coupled", noise="cells", outliers=outliers, draws=2000)
    structure = structure_of(baseline, Spec(law="coupled", noise="cells", outliers=outliers), DEFAULT)
    with model.stated(structure, baseline, DEFAULT):
        explicit = pm.sample(draws=2000, tune=2000, random_seed=1, progressbar=False, target_accept=0.95)
    import arviz_stats as azs

    names = ["E", "k", "phi", "sigma", "tau_cell"]
    both = [draws[names].squeeze(drop=True) for draws in (ours.posterior, explicit["posterior"].to_dataset())]
    for prob in (0.05, 0.25, 0.5, 0.75, 0.95):  # quantiles: the standard deviation of E is made by a few far draws
        values = [draws.quantile(prob) for draws in both]
        errors = [azs.mcse(draws, method="quantile", prob=prob) for draws in both]
        for name in names:
            error = np.hypot(*(float(each[name]) for each in errors))
            assert abs(float(values[0][name]) - float(values[1][name])) < 4 * error, (name, prob)


@pytest.mark.parametrize("settings", [{}, RICH], ids=["default", "rich"])
def test_the_numpy_likelihood_is_the_models(inputs, settings):
    structure = structure_of(inputs, Spec(**settings), DEFAULT)
    stated = model.stated(structure, inputs, DEFAULT)
    density = stated.compile_fn(stated.logp(vars=stated["log_loss"], sum=False), mode="FAST_COMPILE")
    points = points_of(structure, 10)
    ours = log_likelihood(named(points[None], structure, inputs), structure, inputs)["log_loss"].values[0]
    for theta, mine in zip(points, ours, strict=True):
        values = {name: value for name, value in stated_values(structure, theta).items() if "mean" not in name}
        (theirs,) = density({name: value for name, value in values.items() if "spread" not in name})
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("outliers", ["gaussian", "student"])
def test_leave_one_out_densities_under_cell_effects(baseline, outliers):
    """p(y_i | the rest) is the ratio of the joint density with and without run i."""
    structure = structure_of(baseline, Spec(noise="cells", outliers=outliers), DEFAULT)
    near = laplace.start(structure, baseline, DEFAULT)
    theta = structure.layout.from_local(near.mean)
    pointwise = log_likelihood(named(theta[None, None], structure, baseline), structure, baseline)["log_loss"].values
    whole = sampled_density(structure, baseline)(theta)
    table = load_runs("isodepth").runs
    centre = baseline.centre
    for i in (0, 37, 115):
        rest = inputs_of(table.drop(index=i).reset_index(drop=True), injection_in="once")
        rest.__dict__["centre"] = centre  # the law's coordinates are those of the whole table
        assert pointwise[0, 0, i] == pytest.approx(whole - sampled_density(structure, rest)(theta), abs=1e-6)


def test_pymc_draws_the_priors_as_stated(inputs):
    structure = structure_of(inputs, Spec(), DEFAULT)
    stated = model.stated(structure, inputs, DEFAULT)
    names = ["E", "alpha", "phi", "sigma", "phi_spread"]
    theirs = dict(
        zip(names, pm.draw([stated[name] for name in names], 4000, random_seed=1, mode="FAST_COMPILE"), strict=True)
    )
    ours = named(points_of(structure, 4000)[None], structure, inputs)
    for name in names:
        mine = ours[name].values[0]
        assert np.quantile(theirs[name], [0.1, 0.5, 0.9], axis=0) == pytest.approx(
            np.quantile(mine, [0.1, 0.5, 0.9], axis=0), rel=0.1, abs=0.03
        ), name
    for name in ("E", "alpha"):
        prior = DEFAULT.of(name)
        assert np.quantile(theirs[name], [0.05, 0.5, 0.95]) == pytest.approx(
            [prior.quantile(q) for q in (0.05, 0.5, 0.95)], rel=0.08
        )


@pytest.mark.parametrize("law", ["additive", "coupled"])
def test_the_prior_covers_published_and_tiny_runs(inputs, law):
    """Prior predictive: losses of large runs and of byte-level desk runs lie inside, absurd ones are rare."""
    structure = structure_of(inputs, Spec(law=law), DEFAULT)
    prior = named(points_of(structure, 2000)[None], structure, inputs)
    losses = np.exp(predictive(prior, structure, inputs, np.random.default_rng(0))["log_loss"].values)
    low, high = np.quantile(losses, [0.02, 0.98])
    assert low < 1.2
    assert high > 5.0
    assert np.mean(losses > 25) < 0.01
    phi = prior["phi"].values
    assert 0.08 < np.mean(phi < 0) < 0.3
    assert 0.08 < np.mean(phi > 1) < 0.3


def test_the_start_is_near_the_published_values(inputs):
    """The three recipes' phi near the point estimates of the literature's procedure."""
    structure = structure_of(inputs, Spec(), DEFAULT)
    phi = structure.block("phi")
    by_recipe = dict(zip(inputs.recipes, laplace.start(structure, inputs, DEFAULT).mean[phi.slice], strict=True))
    assert by_recipe["baseline"] == pytest.approx(0.46, abs=0.04)
    assert by_recipe["truncated_bptt"] < by_recipe["baseline"] < by_recipe["hyperconnections"]
