"""The compiled kernels against the plain equations, scipy's densities, brute-force integrals and finite differences."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from bayeslaw import densities, kernels, laws, ops

NU = 4.0
N0, D0 = 1.1e8, 2.3e9


def gradient_of(function, x, step=1e-6):
    """Central differences of a scalar function of a vector, steps relative to its entries."""
    out = np.empty(len(x))
    for i in range(len(x)):
        move = np.zeros(len(x))
        move[i] = step * (abs(x[i]) or 1.0)
        out[i] = (function(x + move) - function(x - move)) / (2 * move[i])
    return out


# The law.


def mean_of(core, core_of, log_g, g_of, n_once, n_rec, log_d):
    mean, partial = np.empty(len(n_once)), np.empty((len(n_once), kernels.N_PARTIAL))
    kernels.law_mean(core, core_of, log_g, g_of, n_once, n_rec, log_d, mean, partial)
    return mean, partial


def core_row(parameters):
    k = parameters.get("k", 1.0)
    size = (parameters["A"] * N0 ** -parameters["alpha"]) ** k
    data = (parameters["B"] * D0 ** -parameters["beta"]) ** k
    return np.log([parameters["E"], size, data, k * parameters["alpha"], k * parameters["beta"], k])


def random_parameters(terms, rng):
    alpha, beta = rng.uniform(0.1, 0.5, 2)
    A, B = rng.uniform(0.2, 2, 2) * (N0**alpha, D0**beta)
    own = {"E": rng.uniform(0.5, 2), "A": A, "B": B, "alpha": alpha, "beta": beta, "phi": rng.uniform(-0.2, 1.2)}
    return own | ({"k": rng.uniform(0.2, 2)} if terms == "coupled" else {})


def random_runs(rng, n=60):
    n_once, n_rec = N0 * 10 ** rng.uniform(-1.5, 1.5, (2, n))
    return n_once, n_rec, rng.choice([1.0, 2.0, 4.0, 8.0], n), D0 * 10 ** rng.uniform(-1.5, 1.5, n)


@pytest.mark.parametrize("terms", ["additive", "coupled"])
@pytest.mark.parametrize("seed", range(5))
def test_the_mean_is_the_log_of_the_law(terms, seed):
    rng = np.random.default_rng(seed)
    law, cases = laws.make_law(terms), [random_parameters(terms, rng) for _ in range(3)]
    n_once, n_rec, r, tokens = random_runs(rng)
    core_of = rng.integers(0, 3, len(r))
    levels, g_of = np.unique(r, return_inverse=True)
    log_g = np.array([case["phi"] * np.log(levels) for case in cases])
    mean, _ = mean_of(
        np.array([core_row(case) for case in cases]), core_of, log_g.ravel(), core_of * len(levels) + g_of,
        n_once / N0, n_rec / N0, np.log(tokens / D0),
    )  # fmt: skip
    expected = [law.loss(*run, cases[c]) for *run, c in zip(n_once, n_rec, r, tokens, core_of, strict=True)]
    np.testing.assert_allclose(mean, np.log(expected), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("terms", ["additive", "coupled"])
@pytest.mark.parametrize("seed", range(5))
def test_partial_derivatives_of_the_mean_agree_with_finite_differences(terms, seed):
    rng = np.random.default_rng(seed)
    n_once, n_rec, r, tokens = random_runs(rng)
    core = core_row(random_parameters(terms, rng))[None, :]
    log_g = 0.4 * np.log(r)
    each, data = np.arange(len(r)), (n_once / N0, n_rec / N0, np.log(tokens / D0))
    _, partial = mean_of(core, 0 * each, log_g, each, *data)
    step = 1e-6
    for j in range(kernels.N_CORE):
        move = step * np.eye(kernels.N_CORE)[j]
        above, below = (mean_of(core + sign * move, 0 * each, log_g, each, *data)[0] for sign in (1, -1))
        np.testing.assert_allclose(partial[:, j], (above - below) / (2 * step), rtol=1e-6, atol=1e-9)
    above, below = (mean_of(core, 0 * each, log_g + sign * step, each, *data)[0] for sign in (1, -1))
    np.testing.assert_allclose(partial[:, 6], (above - below) / (2 * step), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "core",
    [(0.3, 900, -900, -1, -1, -5), (0.3, -900, 900, -1, -1, -5), (900, 0, 0, 0, 0, 0), (-900, 0, 0, 0, 0, 0)],
    ids=["size alone", "data alone", "irreducible loss alone", "no irreducible loss"],
)
def test_the_mean_of_a_law_with_one_term_neither_overflows_nor_vanishes(core):
    one, zero = np.ones(1), np.zeros(1, np.int64)
    mean, partial = mean_of(np.array([core], float), zero, np.zeros(1), zero, 0.4 * one, 0.6 * one, 0 * one)
    assert mean[0] == pytest.approx(900 if 900 in core else math.log(2), rel=1e-12)
    assert np.isfinite(partial).all()
    assert partial[0, :3].sum() == pytest.approx(1.0, rel=1e-12)


# Normal errors.


def gaussian_of(z, v, groups, sizes, tau):
    gz, gv, gtau = np.full(len(z), np.nan), np.full(len(z), np.nan), np.full(len(sizes), np.nan)
    total = densities.gaussian(z, v, groups, sizes, tau, gz, gv, gtau)
    return total, gz, gv, gtau


def nested(depth, rng):
    """Residuals, variances, groups of each level by the level below, group of each run at each level, tau."""
    n, run_of, cell_of = 14, np.repeat(np.arange(6), [1, 3, 2, 4, 1, 3]), np.array([0, 2, 1, 2, 0, 2])
    run_of = rng.permutation(run_of)
    groups, sizes = np.zeros((depth, n), np.int64), np.array([6, 3][:depth], np.int64)
    by_run = [run_of, cell_of[run_of]][:depth]
    if depth > 0:
        groups[0] = run_of
    if depth > 1:
        groups[1, :6] = cell_of
    return rng.normal(0, 0.01, n), rng.uniform(0.5, 2, n) * 4e-5, groups, sizes, by_run, rng.uniform(0.002, 0.02, depth)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_normal_errors_with_nested_effects_have_the_density_of_their_covariance(depth, seed):
    z, v, groups, sizes, by_run, tau = nested(depth, np.random.default_rng(seed))
    covariance = np.diag(v) + sum(t**2 * (of[:, None] == of) for of, t in zip(by_run, tau, strict=True))
    expected = stats.multivariate_normal(np.zeros(len(z)), covariance).logpdf(z)
    assert gaussian_of(z, v, groups, sizes, tau)[0] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_normal_errors_agree_with_finite_differences(depth, seed):
    z, v, groups, sizes, _, tau = nested(depth, np.random.default_rng(seed))
    _, gz, gv, gtau = gaussian_of(z, v, groups, sizes, tau)
    for gradient, numeric in (
        (gz, gradient_of(lambda x: gaussian_of(x, v, groups, sizes, tau)[0], z)),
        (gv, gradient_of(lambda x: gaussian_of(z, x, groups, sizes, tau)[0], v)),
        (gtau, gradient_of(lambda x: gaussian_of(z, v, groups, sizes, x)[0], tau)),
    ):
        np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-6 * max(1, *abs(numeric), 0))


def test_effects_without_spread_are_no_effects():
    z, v, groups, sizes, _, _ = nested(2, np.random.default_rng(0))
    total, gz, gv, gtau = gaussian_of(z, v, groups, sizes, np.zeros(2))
    alone = gaussian_of(z, v, np.zeros((0, len(z)), np.int64), np.zeros(0, np.int64), np.zeros(0))
    assert total == pytest.approx(alone[0], rel=1e-12)
    np.testing.assert_allclose(gz, alone[1], rtol=1e-10)
    np.testing.assert_allclose(gv, alone[2], rtol=1e-9)
    np.testing.assert_array_equal(gtau, 0.0)


# Student errors.


def student_of(z, v, nu=NU):
    gz, gv = np.full(len(z), np.nan), np.full(len(z), np.nan)
    return densities.student(z, v, nu, gz, gv), gz, gv


def grouped_of(z, v, group, tau, nu=NU):
    gz, gv, gtau = np.full(len(z), np.nan), np.full(len(z), np.nan), np.full(1, np.nan)
    return densities.student_grouped(z, v, nu, group, tau, gz, gv, gtau), gz, gv, gtau


def integral_of(z, v, tau, nu=NU):
    """Log of the integral over one group's effect, by Gauss-Legendre on panels cut at every scale of the integrand."""
    scale = np.sqrt(v)
    widths = 2.0 ** np.arange(-4, 8)
    own = [z, *(z + sign * width * scale for width in widths for sign in (-1, 1))]
    normal = tau * np.linspace(-12, 12, 49)
    edges = np.unique(np.clip(np.concatenate([*own, normal]), -12 * tau, 12 * tau))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(edges)[:, None] / 2
    u = (edges[:-1, None] + half + half * nodes).ravel()
    log_f = stats.norm.logpdf(u, 0, tau)
    for z_i, s_i in zip(z, scale, strict=True):
        log_f += stats.t.logpdf((z_i - u) / s_i, nu) - math.log(s_i)
    return logsumexp(log_f, b=(half * weights).ravel())


def groups_of(sizes, tau, rng, sigma):
    """Residuals of groups of these sizes, their variances, their groups."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    z = tau * rng.normal(size=len(sizes))[group] + sigma * rng.standard_t(NU, len(group))
    return z, sigma**2 * rng.uniform(0.7, 1.5, len(group)), group


def integrals_of(z, v, group, tau):
    return sum(integral_of(z[group == g], v[group == g], tau) for g in np.unique(group))


TAUS = [1e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05]
SIZES = (1, 5, 2, 1, 8, 3)


@pytest.mark.parametrize("nu", [3.0, 4.0, 30.0])
def test_student_errors_have_their_density(nu):
    rng = np.random.default_rng(0)
    z, v = 0.01 * rng.standard_t(nu, 20), rng.uniform(0.5, 2, 20) * 1e-4
    z[3] = 0.15
    total, gz, gv = student_of(z, v, nu)
    assert total == pytest.approx(stats.t.logpdf(z, nu, scale=np.sqrt(v)).sum(), rel=1e-12)
    np.testing.assert_allclose(gz, gradient_of(lambda x: student_of(x, v, nu)[0], z), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(gv, gradient_of(lambda x: student_of(z, x, nu)[0], v), rtol=1e-5, atol=1e-2)


def test_the_brute_force_integral_finds_a_density_that_is_known():
    # Student errors with very many degrees of freedom are normal.
    z, v, tau = np.array([0.01, 0.03, -0.01]), np.array([1e-4, 2e-4, 1e-4]), 0.02
    expected = stats.multivariate_normal(np.zeros(3), np.diag(v) + tau**2).logpdf(z)
    assert integral_of(z, v, tau, nu=1e7) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("sigma", [0.002, 0.005, 0.02])
def test_student_errors_with_group_effects_have_the_integrated_density(sigma, tau):
    z, v, group = groups_of(SIZES, tau, np.random.default_rng(1), sigma)
    assert grouped_of(z, v, group, tau)[0] == pytest.approx(integrals_of(z, v, group, tau), abs=1e-3)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_an_outlier_in_a_group_leaves_the_integral_exact(size, tau):
    for seed in range(3):
        z, v, group = groups_of((size,), tau, np.random.default_rng(seed), 0.005)
        z[0] += 0.15
        assert grouped_of(z, v, group, tau)[0] == pytest.approx(integral_of(z, v, tau), abs=1e-3)


@pytest.mark.parametrize("tau", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_group_that_falls_into_two_leaves_the_integral_exact(size, tau):
    z, v, group = groups_of((size,), 0.0, np.random.default_rng(2), 0.005)
    z[: size // 2] += 0.1
    assert grouped_of(z, v, group, tau)[0] == pytest.approx(integral_of(z, v, tau), abs=1e-3)


@pytest.mark.parametrize("outlier", [0.0, 0.15], ids=["plain", "with an outlier"])
@pytest.mark.parametrize("tau", [1e-4, 1e-3, 5e-3, 0.02, 0.05])
def test_gradients_of_student_errors_with_group_effects_are_those_of_the_integral(tau, outlier):
    z, v, group = groups_of((1, 4, 2), tau, np.random.default_rng(3), 0.005)
    z[2] += outlier
    _, gz, gv, gtau = grouped_of(z, v, group, tau)
    for gradient, numeric in (
        (gz, gradient_of(lambda x: integrals_of(x, v, group, tau), z, 1e-4)),
        (gv, gradient_of(lambda x: integrals_of(z, x, group, tau), v, 1e-4)),
        (gtau, gradient_of(lambda x: integrals_of(z, v, group, x[0]), np.array([tau]), 1e-4)),
    ):
        np.testing.assert_allclose(gradient, numeric, rtol=2e-3, atol=2e-3 * max(abs(numeric)))


@pytest.mark.parametrize("tau", [1e-4, 1e-3, 5e-3, 0.02])
def test_gradients_of_student_errors_with_group_effects_are_those_of_the_quadrature(tau):
    z, v, group = groups_of((1, 4, 2), tau, np.random.default_rng(4), 0.005)
    _, gz, gv, gtau = grouped_of(z, v, group, tau)
    for gradient, numeric in (
        (gz, gradient_of(lambda x: grouped_of(x, v, group, tau)[0], z, 1e-4)),
        (gv, gradient_of(lambda x: grouped_of(z, x, group, tau)[0], v, 1e-4)),
        (gtau, gradient_of(lambda x: grouped_of(z, v, group, x[0])[0], np.array([tau]), 1e-4)),
    ):
        np.testing.assert_allclose(gradient, numeric, rtol=2e-3, atol=2e-3 * max(abs(numeric)))


def test_groups_are_independent_of_one_another():
    z, v, group = groups_of(SIZES, 0.01, np.random.default_rng(5), 0.005)
    together = grouped_of(z, v, group, 0.01)
    alone = [grouped_of(z[group == g], v[group == g], 0 * group[group == g], 0.01) for g in np.unique(group)]
    assert together[0] == pytest.approx(sum(part[0] for part in alone), rel=1e-12)
    np.testing.assert_allclose(together[1], np.concatenate([part[1] for part in alone]), rtol=1e-10)
    np.testing.assert_allclose(together[2], np.concatenate([part[2] for part in alone]), rtol=1e-10)
    assert together[3][0] == pytest.approx(sum(part[3][0] for part in alone), rel=1e-10)


def test_group_effects_without_spread_leave_student_errors():
    z, v, group = groups_of(SIZES, 0.0, np.random.default_rng(6), 0.005)
    z[2] = 0.15
    total, gz, gv, gtau = grouped_of(z, v, group, 1e-7)
    alone = student_of(z, v)
    assert total == pytest.approx(alone[0], abs=1e-4)
    np.testing.assert_allclose(gz, alone[1], rtol=1e-3, atol=1e-3 * max(abs(alone[1])))
    np.testing.assert_allclose(gv, alone[2], rtol=1e-3, atol=1e-3 * max(abs(alone[2])))
    assert abs(gtau[0] * 1e-7) < 1e-4


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_member_given_the_others_is_a_ratio_of_integrals(size):
    rng = np.random.default_rng(7)
    z, v, tau = 0.01 * rng.standard_t(NU, (3, size)), rng.uniform(2e-5, 6e-5, (3, size)), np.array([0.001, 0.005, 0.01])
    given_others = densities.student_given_others(z, v, NU, tau)
    assert given_others.shape == (3, size)
    for s in range(3):
        for i in range(size):
            left = np.arange(size) != i
            others = integral_of(z[s, left], v[s, left], tau[s]) if size > 1 else 0.0
            assert given_others[s, i] == pytest.approx(integral_of(z[s], v[s], tau[s]) - others, abs=1e-3)


# The prior.


def prior_of(theta, mu, sd, kinds):
    gradient = np.full(len(theta), np.nan)
    return densities.log_prior(theta, mu, sd, kinds, gradient), gradient


def mixed_prior():
    """Two normal entries, a half-normal one, three pooled around the first with the second as log spread."""
    kinds = np.full((6, 3), -1)
    kinds[:2, 0], kinds[2, 0] = densities.NORMAL, densities.HALF_NORMAL
    kinds[3:] = densities.POOLED, 0, 1
    return np.array([0.5, -1.9, 0.0, 0.0, 0.0, 0.0]), np.array([0.4, 0.7, 0.05, 1.0, 1.0, 1.0]), kinds


@pytest.mark.parametrize("seed", range(4))
def test_the_prior_is_that_of_its_distributions(seed):
    mu, sd, kinds = mixed_prior()
    rng = np.random.default_rng(seed)
    theta = np.concatenate([rng.normal(mu[:2], sd[:2]), [math.log(abs(rng.normal(0, 0.05)))], rng.normal(0.5, 0.2, 3)])
    expected = (
        stats.norm.logpdf(theta[:2], mu[:2], sd[:2]).sum()
        + stats.halfnorm.logpdf(math.exp(theta[2]), scale=0.05)
        + theta[2]  # the density of the logarithm
        + stats.norm.logpdf(theta[3:], theta[0], math.exp(theta[1])).sum()
    )
    total, gradient = prior_of(theta, mu, sd, kinds)
    assert total == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        gradient, gradient_of(lambda x: prior_of(x, mu, sd, kinds)[0], theta), rtol=1e-6, atol=1e-7
    )


def test_the_half_normal_prior_of_a_logarithm_has_mass_one():
    kinds, theta = np.array([[densities.HALF_NORMAL, -1, -1]]), np.linspace(-25, 2, 4001)
    density = [math.exp(prior_of(np.array([x]), np.zeros(1), np.array([0.05]), kinds)[0]) for x in theta]
    assert np.trapezoid(density, theta) == pytest.approx(1.0, abs=1e-6)


# All of it, as the sampler calls it.

LAYERS = {
    "gaussian": (),
    "student": (),
    "gaussian, runs": (6,),
    "gaussian, runs in cells": (6, 3),
    "student_grouped": (6,),
}


@cache
def operation(errors):
    return ops.LogDensity(errors)


def problem(case, *, sloped, seed=0):
    """Inputs of `ops.LogDensity` for two cores (one with k = 1), five worths, 14 runs, and its parts in plain numpy."""
    rng = np.random.default_rng(seed)
    layers, n = LAYERS[case], 14
    cores = np.array([[0, 1, 2, 3, 4, 5], [6, 1, 7, 3, 4, -1]])
    scales = np.array([8, 9 if sloped else -1, *(10 + level for level in range(len(layers)))])
    theta = np.log([1.5, 0.6, 0.5, 0.3, 0.35, 0.6, 1.3, 0.45, 0.008, 1.0, *(0.006,) * len(layers)])
    theta[9] = 0.2
    theta += rng.normal(0, 0.05, len(theta))
    log_g = rng.normal(0.3, 0.2, 5)
    run_of = np.repeat(np.arange(6), [1, 3, 2, 4, 1, 3])
    cell_of = np.array([0, 2, 1, 2, 0, 2])[run_of]
    runs = np.column_stack(
        [
            rng.integers(0, 2, n), rng.integers(0, 5, n), rng.uniform(0.1, 2, n), rng.uniform(0.1, 2, n),
            rng.normal(0, 1, n), np.zeros(n), rng.uniform(0, 2e-5, n), rng.normal(0, 1, n),
            run_of if layers else np.zeros(n), cell_of if len(layers) > 1 else np.zeros(n),
        ]
    )  # fmt: skip
    kinds = np.full((len(theta), 3), -1)
    kinds[:, 0] = densities.NORMAL
    kinds[[8, *scales[2:]], 0] = densities.HALF_NORMAL
    kinds[7] = densities.POOLED, 2, 6
    mu, sd = rng.normal(0, 0.3, len(theta)), rng.uniform(0.3, 1, len(theta))
    core = np.array([[theta[at] if at >= 0 else 0.0 for at in row] for row in cores])
    mean, _ = mean_of(core, runs[:, 0].astype(int), log_g, runs[:, 1].astype(int), runs[:, 2], runs[:, 3], runs[:, 4])
    z = rng.normal(0, 0.01, n)
    runs[:, 5] = mean + z
    own = np.exp(2 * (theta[8] + (theta[9] * runs[:, 7] if sloped else 0.0)))
    packed = np.concatenate([rng.normal(size=len(theta) * (len(theta) + 1)), mu, sd, runs.ravel()])
    return SimpleNamespace(
        op=operation(case.split(",")[0]), theta=theta, log_g=log_g, data=(packed, kinds, cores, scales),
        z=z, v=own + runs[:, 6], groups=[run_of, cell_of][: len(layers)],
        tau=np.exp(theta[scales[2:]]), prior=(mu, sd, kinds),
    )  # fmt: skip


every_error = pytest.mark.parametrize("case", list(LAYERS))


@pytest.mark.parametrize("sloped", [False, True], ids=["one scale", "scale by compute"])
@every_error
def test_the_log_density_is_prior_and_errors_of_the_residuals(case, sloped):
    p = problem(case, sloped=sloped)
    total, _, _ = p.op.function(p.theta, p.log_g, *p.data)
    if case == "student":
        errors = stats.t.logpdf(p.z, ops.STUDENT_NU, scale=np.sqrt(p.v)).sum()
    elif case == "student_grouped":
        errors = integrals_of(p.z, p.v, p.groups[0], p.tau[0])
    else:
        covariance = np.diag(p.v) + sum(t**2 * (of[:, None] == of) for of, t in zip(p.groups, p.tau, strict=True))
        errors = stats.multivariate_normal(np.zeros(len(p.z)), covariance).logpdf(p.z)
    assert total.item() == pytest.approx(
        prior_of(p.theta, *p.prior)[0] + errors, abs=1e-3 if "grouped" in case else 1e-9
    )


@pytest.mark.parametrize("sloped", [False, True], ids=["one scale", "scale by compute"])
@every_error
def test_gradients_of_the_log_density_agree_with_finite_differences(case, sloped):
    p = problem(case, sloped=sloped, seed=1)
    _, gtheta, glog_g = p.op.function(p.theta, p.log_g, *p.data)
    numeric = gradient_of(lambda x: p.op.function(x, p.log_g, *p.data)[0].item(), p.theta, 1e-5)
    loose = 1e-3 if case == "student_grouped" else 1e-6
    np.testing.assert_allclose(gtheta, numeric, rtol=loose, atol=loose * max(abs(numeric)))
    numeric = gradient_of(lambda x: p.op.function(p.theta, x, *p.data)[0].item(), p.log_g, 1e-5)
    assert np.any(numeric)
    np.testing.assert_allclose(glog_g, numeric, rtol=loose, atol=loose * max(abs(numeric)))


def test_performing_the_operation_stores_what_its_function_returns():
    p = problem("gaussian, runs", sloped=True)
    storage = [[None], [None], [None]]
    p.op.perform(None, [p.theta, p.log_g, *p.data], storage)
    for (stored,), returned in zip(storage, p.op.function(p.theta, p.log_g, *p.data), strict=True):
        np.testing.assert_array_equal(stored, returned)
