"""A map with a deviation for each r: between the trained r, at them and beyond; what a spec means by on and off."""

import numpy as np
import pytest

from bayeslaw import load_runs
from bayeslaw.deviation import Deviating
from bayeslaw.errors import UsageError
from bayeslaw.inputs import inputs_of
from bayeslaw.laws import make_law
from bayeslaw.maps import MAPS
from bayeslaw.priors import DEFAULT
from bayeslaw.spec import DEFAULT_MODEL, Spec
from bayeslaw.structure import free_parameters, structure_of

VALUES = {
    "power": [0.4],
    "none": [],
    "full": [],
    "bounded": [2.0, 3.0],
    "log": [0.7],
    "hill": [3.0, 4.0],
    "unrolled": [],
}
LEVELS = (2.0, 4.0, 8.0)
U = [0.1, -0.05, 0.2]


@pytest.fixture(params=sorted(VALUES))
def deviating(request):
    return Deviating(LEVELS, MAPS[request.param]()), VALUES[request.param]


def test_log_worth_is_the_maps_plus_a_broken_line(deviating):
    law_map, own = deviating
    base = law_map.map
    for r, u in zip(LEVELS, U, strict=True):
        assert law_map.log_worth(r, [*own, *U]) == pytest.approx(base.log_worth(r, own) + u)
    assert law_map.log_worth(1.0, [*own, *U]) == pytest.approx(0.0)
    assert law_map.log_worth(np.sqrt(8.0), [*own, *U]) - base.log_worth(np.sqrt(8.0), own) == pytest.approx(0.025)
    assert law_map.log_worth(50.0, [*own, *U]) - base.log_worth(50.0, own) == pytest.approx(0.2)
    assert law_map.name == base.name
    assert law_map.unrolls_once == base.unrolls_once
    assert len(law_map.positive) == len(law_map.parameters) == len(own) + 3


def test_gradient_and_elasticity_are_derivatives(deviating):
    law_map, own = deviating
    values, r = np.array([*own, *U]), np.array([1.0, 1.3, 2.0, 3.0, 8.0, 20.0])
    for j, slope in enumerate(law_map.gradient(r, list(values))):
        step = 1e-6 * np.eye(len(values))[j]
        numeric = (law_map.log_worth(r, list(values + step)) - law_map.log_worth(r, list(values - step))) / 2e-6
        np.testing.assert_allclose(slope, numeric, atol=1e-7)
    inner, step = np.array([1.3, 3.0, 6.0, 20.0]), 1e-6
    numeric = (
        law_map.log_worth(inner * np.exp(step), values) - law_map.log_worth(inner * np.exp(-step), values)
    ) / 2e-6
    np.testing.assert_allclose(law_map.elasticity(inner, values), numeric, atol=1e-6)
    before = law_map.log_worth(8.0, values) - law_map.log_worth(8.0 * np.exp(-1e-6), values)
    assert law_map.elasticity(8.0, values) == pytest.approx(before / 1e-6, abs=1e-5)


@pytest.mark.parametrize("name", ["power", "bounded", "log", "hill"])
def test_inverse_finds_the_least_r(name):
    law_map, values = Deviating(LEVELS, MAPS[name]()), [*VALUES[name], *U]
    r = np.array([1.4, 2.0, 3.0])
    np.testing.assert_allclose(law_map.inverse(law_map.worth(r, values), values), r, rtol=1e-6)
    assert np.isnan(law_map.inverse(0.5, values))
    if name == "bounded":
        assert law_map.inverse(1e3, values) == np.inf
    draws = [np.array([value, value]) for value in values]
    assert law_map.inverse(law_map.worth(2.0, draws), draws).shape == (2,)


def test_what_settings_mean():
    assert {name: getattr(Spec.of(), name) for name in DEFAULT_MODEL} == dict(DEFAULT_MODEL)
    plain = Spec.of(law="additive")
    assert (plain.map, plain.deviation, plain.drift, plain.noise, plain.outliers) == (
        None,
        False,
        False,
        "iid",
        "gaussian",
    )
    assert plain == Spec.of(law="additive", map=None, deviation=None, drift=None, outliers=None)
    assert Spec.of(law="coupled", deviation=True).deviation
    assert not Spec.of(deviation=False).deviation
    assert Spec.of(outliers="gaussian").deviation
    assert not Spec.of(map="free").deviation
    for settings in ({"map": "free", "deviation": True}, {"law": "chinchilla", "deviation": True}):
        with pytest.raises(UsageError, match="leave --deviation out"):
            Spec.of(**settings)


def test_deviations_share_one_spread_and_count_for_no_runs():
    inputs = inputs_of(load_runs("isodepth-recipes").runs, injection_in="once")
    with_it, without = (structure_of(inputs, Spec(deviation=on), DEFAULT) for on in (True, False))
    assert with_it.size == without.size + 3 * 3 + 1
    assert free_parameters(with_it.blocks) == free_parameters(without.blocks)
    assert with_it.hyper.keys() - without.hyper.keys() == {"deviation_spread"}
    with pytest.raises(UsageError, match="has no such parameter"):
        structure_of(inputs, Spec(deviation=True, pooling={"deviation_2": "shared"}), DEFAULT)


def test_a_table_that_never_loops_has_none():
    assert make_law("coupled", deviation=True).map.parameters == ("phi",)
    runs = load_runs("isodepth").runs.query("recurrences == 1")
    structure = structure_of(inputs_of(runs, injection_in="once"), Spec.of(), DEFAULT)
    assert structure.hyper == {}
