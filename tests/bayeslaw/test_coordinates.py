"""The local coordinates: one-to-one, of known volume, with the right gradients, and what they are called."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.coordinates import Layout, natural, natural_pullback, unwhitened, unwhitened_pullback


def layout(size, *cores, **offsets):
    reference = np.full(size, -1)
    for entry, of in offsets.items():
        reference[int(entry[1:])] = of
    return Layout(np.array(cores), reference)


LAYOUTS = {
    "additive": layout(6, (0, 1, 2, 3, 4, -1)),
    "coupled": layout(7, (0, 1, 2, 3, 4, 5)),
    "coupled, core out of order": layout(8, (6, 1, 7, 3, 0, 2)),
    "additive, two cores": layout(11, (0, 2, 4, 6, 8, -1), (1, 3, 5, 7, 9, -1)),
    "coupled, two cores": layout(13, (0, 2, 4, 6, 8, 10), (1, 3, 5, 7, 9, 11)),
    "coupled, offsets of E, size and k": layout(11, (0, 2, 4, 5, 6, 8), _1=0, _3=2, _9=8),
    "additive, offsets of alpha and beta": layout(10, (0, 1, 2, 3, 6, -1), _4=3, _5=3, _7=6),
}
unhurried = settings(deadline=None)  # a busy machine and a first compilation are no failures
every_layout = pytest.mark.parametrize("where", LAYOUTS.values(), ids=LAYOUTS.keys())


def vectors(where, reach=3.0):
    size = len(where.reference)
    return st.lists(st.floats(-reach, reach), min_size=size, max_size=size).map(np.array)


def jacobian(function, x, step=1e-5):
    """Rows of outputs, columns of inputs."""
    return np.stack([(function(x + step * e) - function(x - step * e)) / (2 * step) for e in np.eye(len(x))], axis=1)


def law_of(core):
    """The loss around the centre by log N and log D, from natural coordinates, written out."""
    E, size, data, a, b, k = np.exp(core)

    def loss(log_n, log_d):
        return E + (size ** (1 / k) * np.exp(-a / k * log_n) + data ** (1 / k) * np.exp(-b / k * log_d)) ** k

    return loss


@every_layout
@unhurried
@given(data=st.data())
def test_natural_to_local_and_back(where, data):
    # Back again a lost share costs digits: exp(3) in log k makes shares of exp(-6) to the 20th power.
    theta = data.draw(vectors(where, reach=1.5))
    np.testing.assert_allclose(where.from_local(where.to_local(theta)), theta, atol=1e-10)


@every_layout
@unhurried
@given(data=st.data())
def test_every_real_vector_is_a_law(where, data):
    xi = data.draw(vectors(where))
    np.testing.assert_allclose(where.to_local(where.from_local(xi)), xi, atol=1e-9)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_shares_of_nearly_nothing_neither_overflow_nor_vanish(sign):
    where = LAYOUTS["coupled"]
    xi = np.array([0.5, -1.0, -1.0, sign * 300.0, sign * 200.0, -0.5, 0.4])
    theta = where.from_local(xi)
    assert np.isfinite(theta).all()
    np.testing.assert_allclose(where.to_local(theta), xi, rtol=1e-9)


@every_layout
@unhurried
@given(data=st.data())
def test_the_log_volume_is_that_of_the_jacobian(where, data):
    xi = data.draw(vectors(where, reach=1.5))
    volume = natural(xi, where.cores, where.reference, np.empty_like(xi))
    sign, log_determinant = np.linalg.slogdet(jacobian(where.from_local, xi))
    assert sign != 0
    assert log_determinant == pytest.approx(volume, abs=1e-6)
    assert volume == pytest.approx(sum(xi[core[5]] for core in where.cores if core[5] >= 0), abs=1e-14)


@every_layout
@pytest.mark.parametrize("seed", range(5))
def test_the_pullback_is_the_gradient_of_what_lies_behind(where, seed):
    rng = np.random.default_rng(seed)
    p = len(where.reference)
    xi, curvature, gradient, by_volume = rng.normal(0, 1, p), rng.normal(0, 1, p), rng.normal(0, 1, p), rng.normal()

    def behind(xi):
        theta = np.empty_like(xi)
        volume = natural(xi, where.cores, where.reference, theta)
        return gradient @ theta + 0.5 * curvature @ theta**2 + by_volume * volume

    theta = where.from_local(xi)
    before = xi.copy(), (by_theta := gradient + curvature * theta).copy()
    pulled = natural_pullback(xi, where.cores, where.reference, by_theta, by_volume)
    numeric = jacobian(lambda x: np.array([behind(x)]), xi, step=1e-6)[0]
    np.testing.assert_allclose(pulled, numeric, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal((xi, by_theta), before)


@pytest.mark.parametrize("k", [1.0, 0.35, 1.8])
def test_local_coordinates_are_what_they_are_called(k):
    core = np.log([1.5, 0.7, 0.4, 0.2, 0.36, k])
    xi = LAYOUTS["coupled"].to_local(np.append(core, 0.46))
    loss, step = law_of(core), 1e-6
    size, data = 0.7 ** (1 / k), 0.4 ** (1 / k)
    assert math.exp(xi[0]) == pytest.approx(loss(0, 0), rel=1e-12)
    assert math.exp(xi[1]) == pytest.approx(-(loss(step, 0) - loss(-step, 0)) / (2 * step), rel=1e-8)
    assert math.exp(xi[2]) == pytest.approx(-(loss(0, step) - loss(0, -step)) / (2 * step), rel=1e-8)
    assert 1 / (1 + math.exp(-xi[3])) == pytest.approx(1.5 / loss(0, 0), rel=1e-12)
    assert 1 / (1 + math.exp(-xi[4])) == pytest.approx(size / (size + data), rel=1e-12)
    assert math.exp(xi[5]) == pytest.approx(k, rel=1e-12)
    assert xi[6] == 0.46


def test_the_additive_law_has_the_local_coordinates_of_the_coupled_one_at_k_of_one():
    core = np.log([1.5, 0.7, 0.4, 0.2, 0.36])
    additive = LAYOUTS["additive"].to_local(np.append(core, 0.46))
    coupled = LAYOUTS["coupled"].to_local(np.array([*core, 0.0, 0.46]))
    np.testing.assert_array_equal(additive, np.delete(coupled, 5))


def test_each_core_has_its_own_local_coordinates():
    where, rng = LAYOUTS["coupled, two cores"], np.random.default_rng(2)
    theta = rng.normal(0, 0.5, 13)
    xi = where.to_local(theta)
    for core in where.cores:
        alone = LAYOUTS["coupled"].to_local(np.append(theta[core], 0.0))
        np.testing.assert_array_equal(xi[core], alone[:6])
    assert xi[12] == theta[12]


def test_offsets_are_differences_from_their_reference_in_natural_coordinates():
    where, rng = LAYOUTS["coupled, offsets of E, size and k"], np.random.default_rng(2)
    theta = rng.normal(0, 0.5, 11)
    xi = where.to_local(theta)
    for entry, of in ((1, 0), (3, 2), (9, 8)):
        assert xi[entry] == theta[entry] - theta[of]
    for entry in (7, 10):
        assert xi[entry] == theta[entry]
    core = where.cores[0]
    np.testing.assert_array_equal(xi[core], LAYOUTS["coupled"].to_local(np.append(theta[core], 0.0))[:6])


def test_going_there_and_back_changes_no_argument():
    where, theta = LAYOUTS["coupled, offsets of E, size and k"], np.linspace(-1, 1, 11)
    given_theta = theta.copy()
    xi = where.to_local(theta)
    given_xi = xi.copy()
    where.from_local(xi)
    np.testing.assert_array_equal(theta, given_theta)
    np.testing.assert_array_equal(xi, given_xi)


@pytest.mark.parametrize("beyond", [0, 3], ids=["whitening alone", "with more data behind it"])
def test_whitened_vectors_are_scaled_and_moved_and_gradients_come_back(beyond):
    rng = np.random.default_rng(4)
    mean, chol, z, gradient = (
        rng.normal(size=5),
        np.tril(rng.normal(size=(5, 5))),
        rng.normal(size=5),
        rng.normal(size=5),
    )
    packed = np.concatenate([mean, chol.ravel(), rng.normal(size=beyond)])
    np.testing.assert_allclose(unwhitened(z, packed), mean + chol @ z, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(unwhitened_pullback(gradient, packed), chol.T @ gradient, rtol=1e-13, atol=1e-14)
    numeric = jacobian(lambda z: np.array([gradient @ unwhitened(z, packed)]), z)[0]
    np.testing.assert_allclose(unwhitened_pullback(gradient, packed), numeric, rtol=1e-8, atol=1e-9)
