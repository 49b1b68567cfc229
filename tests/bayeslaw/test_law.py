import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw import law

# The free fit of arXiv 2604.21106.
PUBLISHED = {"E": 1.56773, "A": 28.027, "B": 915.82, "alpha": 0.19924, "beta": 0.36863, "phi": 0.459}

counts = st.floats(1e4, 1e12)
recurrences = st.floats(1, 64)


@given(counts, counts, recurrences, counts)
def test_floats_and_arrays_agree(n_once, n_rec, r, tokens):
    one = law.loss(n_once, n_rec, r, tokens, **PUBLISHED)
    many = law.loss(np.array([n_once]), np.array([n_rec]), np.array([r]), np.array([tokens]), **PUBLISHED)
    assert many.shape == (1,)
    assert many[0] == pytest.approx(one, rel=1e-14)


@given(counts, counts, recurrences)
def test_limits_of_the_recurrence_exponent(n_once, n_rec, r):
    assert law.effective_parameters(n_once, n_rec, r, 1.0) == n_once + r * n_rec
    assert law.effective_parameters(n_once, n_rec, r, 0.0) == n_once + n_rec
    assert law.effective_parameters(n_once, n_rec, 1.0, PUBLISHED["phi"]) == n_once + n_rec


@given(counts, counts, recurrences, counts)
def test_more_of_anything_lowers_the_loss(n_once, n_rec, r, tokens):
    loss = law.loss(n_once, n_rec, r, tokens, **PUBLISHED)
    assert law.loss(2 * n_once, n_rec, r, tokens, **PUBLISHED) < loss
    assert law.loss(n_once, n_rec, 2 * r, tokens, **PUBLISHED) <= loss
    assert law.loss(n_once, n_rec, r, 2 * tokens, **PUBLISHED) < loss
    assert loss > PUBLISHED["E"]


def test_xarray_broadcasts_by_name():
    n_rec = xr.DataArray([1e7, 2e7, 3e7], dims="design")
    phi = xr.DataArray([0.3, 0.5], dims="draw")
    loss = law.loss(5e6, n_rec, 4, 1e9, **{**PUBLISHED, "phi": phi})
    assert dict(loss.sizes) == {"draw": 2, "design": 3}
    expected = law.loss(5e6, 2e7, 4, 1e9, **{**PUBLISHED, "phi": 0.5})
    assert loss.sel(draw=1, design=1).item() == pytest.approx(expected, rel=1e-14)


def test_pytensor_agrees():
    pt = pytest.importorskip("pytensor.tensor")
    names = ("n_once", "n_rec", "r", "tokens")
    values = [np.array([7e6, 2e7]), np.array([1.4e7, 8e6]), np.array([2.0, 8.0]), np.array([9.7e8, 2e9])]
    symbols = [pt.dvector(name) for name in names]
    built = law.loss(*symbols, **PUBLISHED).eval(dict(zip(symbols, values, strict=True)), mode="FAST_COMPILE")
    np.testing.assert_allclose(built, law.loss(*values, **PUBLISHED), rtol=1e-12)


def test_the_published_law_and_its_own_forecast_outside_the_grid():
    # arXiv 2604.21106 at s = 34 and D = 47e9: the law predicts 2.114 (r = 1) and 2.162 (r = 4).
    d = 34 * 64
    layer = 12 * d**2
    plain = law.loss(4 * layer, 16 * layer, 1, 47e9, **PUBLISHED)
    looped = law.loss(4 * layer, 4 * layer + 2 * d**2, 4, 47e9, **PUBLISHED)
    assert plain == pytest.approx(2.114, abs=1e-3)
    assert looped == pytest.approx(2.162, abs=3e-3)


def test_the_equivalence_example():
    # N_eff(r = 4) / N(1) = (4 + 4^phi 4) / 20 = .58, arXiv 2604.21106.
    assert law.effective_parameters(4, 4, 4, PUBLISHED["phi"]) / 20 == pytest.approx(0.58, abs=0.005)
