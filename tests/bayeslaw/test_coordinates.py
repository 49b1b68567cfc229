import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw.coordinates import from_local, to_local

vectors = st.lists(st.floats(-4, 4), min_size=7, max_size=7).map(np.array)


@given(vectors)
def test_round_trip(theta):
    np.testing.assert_allclose(from_local(to_local(theta, xp=np), xp=np), theta, atol=1e-10)


@given(vectors)
def test_every_real_vector_is_a_law(xi):
    theta = from_local(xi, xp=np)
    np.testing.assert_allclose(to_local(theta, xp=np), xi, atol=1e-9)


@given(st.lists(st.floats(-2, 2), min_size=7, max_size=7).map(np.array))
def test_the_map_keeps_volume(theta):
    step = 1e-6
    jacobian = np.array(
        [(to_local(theta + step * e, xp=np) - to_local(theta - step * e, xp=np)) / (2 * step) for e in np.eye(7)]
    )
    assert abs(np.linalg.det(jacobian)) == pytest.approx(1.0, abs=1e-5)


def test_local_coordinates_are_what_they_are_called():
    E, size, data, alpha, beta = 1.5, 0.7, 0.4, 0.2, 0.36
    xi = to_local(np.append(np.log([E, size, data, alpha, beta]), 0.46), xp=np)

    def loss(log_n, log_d):
        return E + size * np.exp(-alpha * log_n) + data * np.exp(-beta * log_d)

    step = 1e-6
    assert np.exp(xi[0]) == pytest.approx(loss(0, 0))
    assert np.exp(xi[1]) == pytest.approx(-(loss(step, 0) - loss(-step, 0)) / (2 * step), rel=1e-6)
    assert np.exp(xi[2]) == pytest.approx(-(loss(0, step) - loss(0, -step)) / (2 * step), rel=1e-6)
    assert 1 / (1 + np.exp(-xi[3])) == pytest.approx(E / loss(0, 0))
    assert xi[5] == 0.46
