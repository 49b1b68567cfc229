"""The equations: values that are known, limits, and one formula for floats, numpy, xarray and pytensor."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import law

# The free fit of arXiv 2604.21106; its phi is .459.
PUBLISHED = {"E": 1.56773, "A": 28.027, "B": 915.82, "alpha": 0.19924, "beta": 0.36863}
PHI = 0.459
COUPLED = {**PUBLISHED, "k": 0.6}

unhurried = settings(deadline=None)  # a busy machine and a first compilation are no failures
counts = st.floats(1e4, 1e12)
recurrences = st.floats(1, 64)
each_law = pytest.mark.parametrize("parameters", [PUBLISHED, COUPLED], ids=["additive", "coupled"])


def published_loss(n_once, n_rec, r, tokens, **changes):
    n_eff = law.effective_parameters(n_once, n_rec, r ** changes.pop("phi", PHI))
    return law.loss(n_eff, tokens, **{**PUBLISHED, **changes})


@each_law
def test_the_loss_is_what_the_equation_says(parameters):
    k = parameters.get("k", 1)
    terms = 28.027 * 1e8**-0.19924 + 915.82 * 2e9**-0.36863
    assert law.loss(1e8, 2e9, **parameters) == pytest.approx(1.56773 + terms**k, rel=1e-14)


def test_the_terms_are_those_of_the_loss():
    size = law.size_term(3e7, A=28.0, alpha=0.2)
    data = law.data_term(4e9, B=900.0, beta=0.37)
    assert size == pytest.approx(28 / 3e7**0.2, rel=1e-14)
    assert data == pytest.approx(900 / 4e9**0.37, rel=1e-14)
    both = law.loss(3e7, 4e9, E=1.5, A=28.0, B=900.0, alpha=0.2, beta=0.37, k=0.7)
    assert both == pytest.approx(1.5 + (size + data) ** 0.7, rel=1e-14)


@each_law
@unhurried
@given(n_eff=counts, tokens=counts)
def test_floats_and_arrays_agree(parameters, n_eff, tokens):
    many = law.loss(np.array([n_eff]), np.array([tokens]), **parameters)
    assert many.shape == (1,)
    assert many[0] == pytest.approx(law.loss(n_eff, tokens, **parameters), rel=1e-14)


@unhurried
@given(n_eff=counts, tokens=counts)
def test_a_coupling_exponent_of_one_is_the_additive_law(n_eff, tokens):
    assert law.loss(n_eff, tokens, **PUBLISHED, k=1) == law.loss(n_eff, tokens, **PUBLISHED)


@each_law
@unhurried
@given(n_eff=counts, tokens=counts)
def test_more_parameters_or_tokens_lower_the_loss_towards_its_bound(parameters, n_eff, tokens):
    loss = law.loss(n_eff, tokens, **parameters)
    assert law.loss(2 * n_eff, tokens, **parameters) < loss
    assert law.loss(n_eff, 2 * tokens, **parameters) < loss
    assert loss > parameters["E"]


@each_law
def test_without_end_only_the_irreducible_loss_and_the_other_term_remain(parameters):
    k = parameters.get("k", 1)
    data_alone = parameters["E"] + law.data_term(1e9, B=parameters["B"], beta=parameters["beta"]) ** k
    size_alone = parameters["E"] + law.size_term(1e8, A=parameters["A"], alpha=parameters["alpha"]) ** k
    assert law.loss(np.inf, 1e9, **parameters) == pytest.approx(data_alone, rel=1e-14)
    assert law.loss(1e8, np.inf, **parameters) == pytest.approx(size_alone, rel=1e-14)
    assert law.loss(np.inf, np.inf, **parameters) == parameters["E"]


@unhurried
@given(counts, counts, recurrences)
def test_effective_parameters_between_worthless_and_whole_blocks(n_once, n_rec, r):
    assert law.effective_parameters(n_once, n_rec, r) == n_once + r * n_rec
    assert law.effective_parameters(n_once, n_rec, 1.0) == n_once + n_rec
    partly = law.effective_parameters(n_once, n_rec, r**PHI)
    assert n_once + n_rec <= partly <= n_once + r * n_rec


@each_law
def test_xarray_broadcasts_by_name(parameters):
    n_eff = xr.DataArray([1e7, 2e7, 3e7], dims="design")
    alpha = xr.DataArray([0.19, 0.21], dims="draw")
    loss = law.loss(n_eff, 1e9, **{**parameters, "alpha": alpha})
    assert dict(loss.sizes) == {"draw": 2, "design": 3}
    expected = law.loss(2e7, 1e9, **{**parameters, "alpha": 0.21})
    assert loss.sel(draw=1, design=1).item() == pytest.approx(expected, rel=1e-14)


@each_law
def test_pytensor_agrees(parameters):
    pt = pytest.importorskip("pytensor.tensor")
    values = [np.array([7e6, 2e7]), np.array([1.4e7, 8e6]), np.array([1.4, 2.6]), np.array([9.7e8, 2e9])]
    symbols = [pt.dvector(name) for name in ("n_once", "n_rec", "worth", "tokens")]
    graph = law.loss(law.effective_parameters(*symbols[:3]), symbols[3], **parameters)
    built = graph.eval(dict(zip(symbols, values, strict=True)), mode="FAST_COMPILE")
    expected = law.loss(law.effective_parameters(*values[:3]), values[3], **parameters)
    np.testing.assert_allclose(built, expected, rtol=1e-12)


def test_the_published_law_and_its_own_forecast_outside_the_grid():
    # arXiv 2604.21106 at s = 34 and D = 47e9: the law predicts 2.114 (r = 1) and 2.162 (r = 4).
    d = 34 * 64
    layer = 12 * d**2
    plain = published_loss(4 * layer, 16 * layer, 1, 47e9)
    looped = published_loss(4 * layer, 4 * layer + 2 * d**2, 4, 47e9)
    assert plain == pytest.approx(2.114, abs=1e-3)
    assert looped == pytest.approx(2.162, abs=3e-3)
    assert published_loss(4 * layer, 4 * layer, 4, 47e9, phi=1.0) == pytest.approx(plain, rel=1e-14)


def test_the_equivalence_example():
    # N_eff(r = 4) / N(1) = (4 + 4^phi 4) / 20 = .58, arXiv 2604.21106.
    assert law.effective_parameters(4, 4, 4**PHI) / 20 == pytest.approx(0.58, abs=0.005)
