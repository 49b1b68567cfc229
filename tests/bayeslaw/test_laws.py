"""The common suite of the recurrence maps, one run of it for every map in the registry, and the laws that use them.

A new map is tested by being registered in `maps.MAPS` and given parameter values in `EXAMPLES`.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayeslaw import law, laws, maps
from bayeslaw.errors import UsageError


@dataclass(frozen=True)
class Example:
    """Parameter values of a map, under which its worth rises with r (or is 1 throughout)."""

    values: tuple[tuple[float, ...], ...]
    levels: tuple[float, ...] = ()
    bound: float | None = None
    """Worth that the first values do not exceed, None without one."""


EXAMPLES = {
    "power": Example(((0.459,), (0.05,), (1.3,))),
    "none": Example(((),), bound=1.0),
    "full": Example(((),)),
    "unrolled": Example(((),)),
    "bounded": Example(((2.0, 3.0), (0.4, 12.0), (9.0, 1.5)), bound=3.0),
    "log": Example(((0.7,), (0.05,), (3.0,))),
    "hill": Example(((2.0, 4.0), (0.3, 0.5), (11.0, 20.0)), bound=3.0),
    "free": Example(((0.33, 0.47, 0.44), (0.9, 0.6, 0.5), (0.1, 0.2, 0.9)), levels=(2.0, 4.0, 8.0)),
}
R = np.array([1.0, 1.2, 2.0, 2.7, 4.0, 5.5, 8.0, 11.0, 23.0])
BETWEEN = np.array([1.2, 2.7, 5.5, 11.0, 23.0])
"""Recurrences at which no map has a kink."""

unhurried = settings(deadline=None)  # a busy machine and a first compilation are no failures
every_map = pytest.mark.parametrize("name", list(maps.MAPS))


def example_of(name):
    if name not in EXAMPLES:
        pytest.fail(f"the map {name!r} is registered in maps.MAPS without an entry in EXAMPLES of this file: add one")
    return EXAMPLES[name]


def cases(name):
    """The map, and its example values, one after the other."""
    example = example_of(name)
    for values in example.values:
        yield maps.MAPS[name](example.levels), values


def example_law(terms, name):
    example = example_of(name)
    built = laws.make_law(terms, name, levels=example.levels)
    own = dict(zip(built.map.parameters, example.values[0], strict=True))
    core = {"E": 1.56773, "A": 28.027, "B": 915.82, "alpha": 0.19924, "beta": 0.36863}
    return built, {**core, **({"k": 0.6} if built.coupled else {}), **own}


def central(function, at, step=1e-6):
    return (function(at + step) - function(at - step)) / (2 * step)


def moved(values, i, value):
    return [value if j == i else other for j, other in enumerate(values)]


@every_map
def test_a_map_is_registered_under_its_name_with_an_example_for_its_parameters(name):
    for recurrence_map, values in cases(name):
        assert recurrence_map.name == name
        assert len(recurrence_map.parameters) == len(recurrence_map.positive) == len(values)
        assert "r" in recurrence_map.equation


def test_examples_are_of_maps_that_exist():
    assert set(EXAMPLES) <= set(maps.MAPS), "EXAMPLES names maps that maps.MAPS lacks"


@every_map
def test_one_recurrence_is_worth_one_block(name):
    for recurrence_map, values in cases(name):
        assert recurrence_map.worth(1.0, values) == 1.0
        assert recurrence_map.log_worth(1, values) == 0.0


@every_map
def test_worth_is_the_exponential_of_its_logarithm(name):
    for recurrence_map, values in cases(name):
        np.testing.assert_allclose(
            np.log(recurrence_map.worth(R, values)), recurrence_map.log_worth(R, values), atol=1e-14
        )


@every_map
def test_worth_rises_with_recurrences(name):
    for recurrence_map, values in cases(name):
        steps = np.diff(recurrence_map.worth(np.linspace(1, 25, 200), values))
        assert (steps == 0).all() if example_of(name).bound == 1.0 else (steps > 0).all()


@every_map
def test_whole_and_fractional_recurrences_and_scalars_agree_with_arrays(name):
    for recurrence_map, values in cases(name):
        worth = recurrence_map.worth(R, values)
        assert worth.shape == R.shape
        for r, expected in zip(R.tolist(), worth, strict=True):
            assert recurrence_map.worth(r, values) == pytest.approx(expected, rel=1e-14)
        assert recurrence_map.worth(4, values) == recurrence_map.worth(4.0, values)


@every_map
def test_gradient_agrees_with_finite_differences(name):
    for recurrence_map, values in cases(name):
        gradient = recurrence_map.gradient(R, values)
        assert len(gradient) == len(values)
        for i, by_value in enumerate(gradient):
            numeric = central(lambda x, i=i: recurrence_map.log_worth(R, moved(values, i, x)), values[i])  # noqa: B023
            np.testing.assert_allclose(by_value, numeric, rtol=1e-7, atol=1e-9)


@every_map
def test_elasticity_agrees_with_finite_differences(name):
    for recurrence_map, values in cases(name):
        numeric = central(lambda x: recurrence_map.log_worth(np.exp(x), values), np.log(BETWEEN))  # noqa: B023
        np.testing.assert_allclose(recurrence_map.elasticity(BETWEEN, values), numeric, rtol=1e-7, atol=1e-9)


@every_map
def test_pytensor_agrees_in_value_and_derivative(name):
    pytensor = pytest.importorskip("pytensor")
    pt = pytensor.tensor
    example = example_of(name)
    recurrence_map = maps.MAPS[name](example.levels)
    symbols = [pt.dscalar(parameter) for parameter in recurrence_map.parameters]
    graph = recurrence_map.log_worth(R, symbols, xp=pt)
    derivatives = [pytensor.gradient.jacobian(graph, symbol) for symbol in symbols]
    compiled = pytensor.function(symbols, [graph, *derivatives], mode="FAST_COMPILE")
    for values in example.values:
        log_worth, *gradient = compiled(*values)
        np.testing.assert_allclose(log_worth, recurrence_map.log_worth(R, values), rtol=1e-13, atol=1e-15)
        for automatic, by_hand in zip(gradient, recurrence_map.gradient(R, values), strict=True):
            np.testing.assert_allclose(automatic, by_hand, rtol=1e-12, atol=1e-14)


@every_map
def test_inverse_gives_back_the_recurrences(name):
    for recurrence_map, values in cases(name):
        if example_of(name).bound == 1.0:
            assert recurrence_map.inverse(1.0, values) == 1.0
            continue
        np.testing.assert_allclose(recurrence_map.inverse(recurrence_map.worth(R, values), values), R, rtol=1e-7)
        assert recurrence_map.inverse(1.0, values) == 1.0


@every_map
def test_a_worth_below_one_has_no_recurrences(name):
    for recurrence_map, values in cases(name):
        assert np.isnan(recurrence_map.inverse(np.array([0.2, 0.999]), values)).all()


@pytest.mark.filterwarnings("error")
@every_map
def test_a_worth_of_nothing_or_less_has_no_recurrences_and_warns_of_nothing(name):
    for recurrence_map, values in cases(name):
        assert np.isnan(recurrence_map.inverse(np.array([0.0, -1.0]), values)).all()


@every_map
def test_no_recurrences_reach_a_worth_beyond_the_bound(name):
    example = example_of(name)
    recurrence_map = maps.MAPS[name](example.levels)
    values = example.values[0]
    if example.bound is None:
        assert np.isfinite(recurrence_map.inverse(3.0, values))
        return
    beyond = np.array([example.bound * (1 + 1e-12), example.bound + 0.1, 1e6])
    np.testing.assert_array_equal(recurrence_map.inverse(beyond, values), np.inf)
    assert (recurrence_map.worth(np.array([10.0, 100.0, 1e6]), values) <= example.bound * (1 + 1e-15)).all()


@every_map
@pytest.mark.parametrize("what", ["log_worth", "worth", "elasticity", "inverse", "gradient"])
def test_draws_broadcast_against_designs(name, what):
    example = example_of(name)
    recurrence_map = maps.MAPS[name](example.levels)
    draws = [np.array(column)[:, None] for column in zip(*example.values, strict=True)]
    at = np.array([1.0, 1.1, 1.25]) if what == "inverse" else BETWEEN
    method = getattr(recurrence_map, what)
    together = method(at, draws)
    one_by_one = [method(at, values) for values in example.values]
    pairs = (
        zip(together, zip(*one_by_one, strict=True), strict=True) if what == "gradient" else [(together, one_by_one)]
    )
    for many, single in pairs:
        assert many.shape == ((len(example.values), len(at)) if draws else at.shape)
        np.testing.assert_allclose(many, np.stack(single) if draws else single[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["bounded", "hill"])
def test_endless_recurrence_is_worth_one_and_the_gain(name):
    for recurrence_map, values in cases(name):
        assert recurrence_map.worth(1e12, values) == pytest.approx(1 + values[0], rel=1e-9)
        assert recurrence_map.inverse(1 + values[0] * (1 + 1e-12), values) == np.inf


def test_half_of_the_hill_gain_comes_after_half_further_recurrences():
    assert maps.Hill().worth(1 + 4.0, (2.0, 4.0)) == pytest.approx(2.0, rel=1e-14)


def test_the_bounded_map_gains_all_but_one_part_in_e_after_scale_further_recurrences():
    assert maps.Bounded().worth(1 + 3.0, (2.0, 3.0)) == pytest.approx(3 - 2 / np.e, rel=1e-14)


def test_the_log_map_gains_its_slope_for_every_factor_of_e():
    assert maps.Logarithmic().worth(np.e**2, (0.7,)) == pytest.approx(2.4, rel=1e-14)


def test_a_power_of_zero_or_one_is_the_map_without_parameters():
    np.testing.assert_array_equal(maps.Power().worth(R, (0.0,)), maps.Nothing().worth(R, ()))
    np.testing.assert_allclose(maps.Power().worth(R, (1.0,)), maps.Full().worth(R, ()), rtol=1e-15)
    worths = np.array([0.5, 1.0, 2.0])
    np.testing.assert_array_equal(maps.Power().inverse(worths, (0.0,)), maps.Nothing().inverse(worths, ()))


@pytest.mark.parametrize("phi", [-0.3, 0.0, 0.459, 1.2])
def test_free_exponents_that_are_equal_are_the_power_map(phi):
    free, power = maps.Free((2.0, 4.0, 8.0)), maps.Power()
    np.testing.assert_allclose(free.log_worth(R, [phi] * 3), power.log_worth(R, [phi]), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(free.elasticity(R, [phi] * 3), power.elasticity(R, [phi]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(sum(free.gradient(R, [phi] * 3)), power.gradient(R, [phi])[0], rtol=1e-13, atol=1e-15)
    worths = np.array([1.0, 1.3, 2.0, 4.0])
    np.testing.assert_allclose(free.inverse(worths, [phi] * 3), power.inverse(worths, [phi]), rtol=1e-12)


def test_the_free_map_has_its_exponents_at_the_levels_and_is_linear_between_them():
    free, values = maps.Free((2.0, 8.0)), (0.3, 0.5)
    np.testing.assert_allclose(free.worth(np.array([2.0, 8.0]), values), [2**0.3, 8**0.5], rtol=1e-14)
    middle = (free.log_worth(2.0, values) + free.log_worth(8.0, values)) / 2
    assert free.log_worth(4.0, values) == pytest.approx(middle, rel=1e-14)
    beyond = 2 * free.log_worth(8.0, values) - free.log_worth(4.0, values)
    assert free.log_worth(16.0, values) == pytest.approx(beyond, rel=1e-14)
    last = (0.5 * np.log(8) - 0.3 * np.log(2)) / np.log(4)
    np.testing.assert_allclose(free.elasticity(np.array([1.0, 2.0, 8.0, 9.0]), values), [0.3, 0.3, last, last])
    assert free.parameters == ("phi_2", "phi_8")


@unhurried
@given(st.lists(st.floats(-0.2, 1.2), min_size=3, max_size=3), st.sampled_from([1.3, 2.0, 3.0, 4.0, 6.0, 8.0]))
def test_the_free_inverse_is_the_least_recurrence_of_a_worth_that_is_reached(values, r):
    free = maps.Free((2.0, 4.0, 8.0))
    worth = free.worth(r, values)
    heights = [0.0, *(phi * np.log(level) for phi, level in zip(values, free.levels, strict=True))]
    assume(worth > 1 + 1e-6)
    assume(min(abs(np.diff(heights))) > 1e-3)  # where it is flat, rounding chooses
    least = free.inverse(worth, values)
    assert least <= r * (1 + 1e-6)
    assert free.log_worth(least, values) == pytest.approx(np.log(worth), abs=1e-9)


def test_the_free_inverse_reaches_the_peak_of_a_map_that_falls_again():
    free, rng = maps.Free((2.0, 4.0, 8.0)), np.random.default_rng(1)
    for _ in range(200):
        values = [rng.uniform(0.3, 1.0), rng.uniform(0.7, 1.0), rng.uniform(-0.1, 0.3)]
        peak = 2.0 if free.worth(2.0, values) > free.worth(4.0, values) else 4.0
        assert free.inverse(free.worth(peak, values), values) == pytest.approx(peak, rel=1e-9)


@unhurried
@given(st.floats(1e5, 1e10), st.floats(1e5, 1e10), st.floats(1, 64))
def test_only_the_unrolled_map_repeats_what_runs_once(n_once, n_rec, r):
    for name in maps.MAPS:
        built, parameters = example_law("additive", name)
        n_eff = built.effective_parameters(n_once, n_rec, r, parameters)
        worth = built.map.worth(r, built.map_values(parameters))
        if name == "unrolled":
            assert n_eff == pytest.approx(r * (n_once + n_rec), rel=1e-12)
        else:
            assert n_eff == pytest.approx(n_once + worth * n_rec, rel=1e-12)


every_law = pytest.mark.parametrize(
    ("terms", "name"),
    [*((terms, name) for terms in ("additive", "coupled") for name in maps.MAPS), ("chinchilla", "none")],
)


@every_law
def test_a_law_names_its_parameters_in_order(terms, name):
    built, parameters = example_law(terms, name)
    assert built.parameters == tuple(parameters)
    assert built.parameters[:5] == laws.CORE
    assert ("k" in built.parameters) == built.coupled == (terms == "coupled")
    assert built.map_values(parameters) == list(example_of(name).values[0])


@every_law
def test_a_law_reads_as_its_equation(terms, name):
    built, _ = example_law(terms, name)
    assert built.equation.startswith("L = E + ")
    assert ("^k" in built.equation) == built.coupled
    assert ("each architecture" in built.equation) == (terms == "chinchilla")
    if terms != "chinchilla":
        assert built.map.equation in built.equation
        assert ("g(r) N_rec" in built.equation) != built.map.unrolls_once


@every_law
def test_more_of_anything_lowers_the_loss_and_never_below_the_irreducible_one(terms, name):
    built, parameters = example_law(terms, name)
    rng = np.random.default_rng(3)
    n_once, n_rec, tokens = (10 ** rng.uniform(low, high, 200) for low, high in ((5, 10), (5, 10), (8, 12)))
    r = rng.uniform(1, 20, 200)
    loss = built.loss(n_once, n_rec, r, tokens, parameters)
    assert (built.loss(2 * n_once, n_rec, r, tokens, parameters) < loss).all()
    assert (built.loss(n_once, 2 * n_rec, r, tokens, parameters) < loss).all()
    assert (built.loss(n_once, n_rec, r, 2 * tokens, parameters) < loss).all()
    more_r = built.loss(n_once, n_rec, 2 * r, tokens, parameters)
    assert (more_r == loss).all() if example_of(name).bound == 1.0 else (more_r < loss).all()
    assert (loss > parameters["E"]).all()


@every_law
def test_a_law_agrees_with_the_plain_equations(terms, name):
    built, parameters = example_law(terms, name)
    worth = built.map.worth(4.0, built.map_values(parameters))
    n_eff = law.effective_parameters(7e6 * (4 if name == "unrolled" else 1), 1.4e7, worth)
    k = 0.6 if terms == "coupled" else 1
    expected = law.loss(n_eff, 1e9, **{part: parameters[part] for part in laws.CORE}, k=k)
    assert built.loss(7e6, 1.4e7, 4.0, 1e9, parameters) == pytest.approx(expected, rel=1e-14)


@every_map
def test_a_coupling_exponent_of_one_is_the_additive_law(name):
    additive, parameters = example_law("additive", name)
    coupled, _ = example_law("coupled", name)
    together = coupled.loss(7e6, 1.4e7, R, 1e9, {**parameters, "k": 1.0})
    np.testing.assert_array_equal(together, additive.loss(7e6, 1.4e7, R, 1e9, parameters))


@every_law
def test_xarray_draws_broadcast_against_designs_by_name(terms, name):
    built, parameters = example_law(terms, name)
    draws = {key: xr.DataArray([value, 1.1 * value], dims="draw") for key, value in parameters.items()}
    r = xr.DataArray(R, dims="design")
    loss = built.loss(7e6, 1.4e7, r, 1e9, draws)
    assert dict(loss.sizes) == {"draw": 2, "design": len(R)}
    second = {key: 1.1 * value for key, value in parameters.items()}
    for draw, values in enumerate((parameters, second)):
        expected = built.loss(7e6, 1.4e7, R, 1e9, values)
        np.testing.assert_allclose(loss.isel(draw=draw).transpose("design").values, expected, rtol=1e-12)


@every_law
def test_size_for_is_the_inverse_of_the_loss(terms, name):
    built, parameters = example_law(terms, name)
    n_eff, tokens = np.geomspace(1e5, 1e11, 13)[:, None], np.geomspace(1e8, 1e12, 5)
    loss = built.loss(n_eff, 0.0, 1.0, tokens, parameters)
    size = built.size_for(loss, tokens, parameters)
    assert size.shape == loss.shape
    np.testing.assert_allclose(size, np.broadcast_to(n_eff, size.shape), rtol=1e-6)


@pytest.mark.filterwarnings("error")
@every_law
def test_no_size_reaches_a_loss_of_the_data_term_or_less(terms, name):
    built, parameters = example_law(terms, name)
    data = law.data_term(1e9, B=parameters["B"], beta=parameters["beta"]) ** parameters.get("k", 1)
    reach = parameters["E"] + data
    loss = np.array([-1.0, 0.0, parameters["E"] - 0.1, parameters["E"], parameters["E"] + 0.5 * data, reach - 1e-9])
    np.testing.assert_array_equal(built.size_for(loss, 1e9, parameters), np.inf)
    assert built.size_for(parameters["E"], 1e9, parameters) == np.inf
    assert np.isfinite(built.size_for(reach + 1e-3, 1e9, parameters))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("terms", ["additive", "coupled"])
def test_a_size_too_large_for_a_float_is_infinite_and_warns_of_nothing(terms):
    built, parameters = example_law(terms, "none")
    parameters |= {"alpha": 0.01}
    data = law.data_term(1e9, B=parameters["B"], beta=parameters["beta"]) ** parameters.get("k", 1)
    assert built.size_for(parameters["E"] + data + 1e-4, 1e9, parameters) == np.inf


def test_an_unknown_law_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match="law = 'linear'") as error:
        laws.make_law("linear")
    assert all(name in error.value.allowed for name in laws.TERMS)


def test_an_unknown_map_is_answered_with_the_known_ones():
    with pytest.raises(UsageError, match="map = 'sqrt'") as error:
        laws.make_law("coupled", "sqrt")
    assert all(name in error.value.allowed for name in maps.MAPS)


@pytest.mark.parametrize("name", [name for name in maps.MAPS if name != "none"])
def test_the_chinchilla_law_refuses_a_map(name):
    with pytest.raises(UsageError, match=f"--law chinchilla with --map {name}") as error:
        laws.make_law("chinchilla", name)
    assert error.value.allowed
    assert "--law additive" in error.value.do


def test_maps_by_default_and_levels_only_where_they_are_parameters():
    assert laws.make_law("coupled").map == maps.Power()
    assert laws.make_law("additive", levels=(2.0, 4.0)).map == maps.Power()
    assert laws.make_law("chinchilla").map == maps.Nothing()
    assert laws.make_law("coupled", "free", levels=(8.0, 2.0, 4.0)).map == maps.Free((2.0, 4.0, 8.0))


def test_a_free_map_of_a_table_without_looped_runs_is_no_crash():
    try:
        built = laws.make_law("additive", "free")
    except UsageError:
        return
    assert built.map.worth(1.0, []) == 1.0
