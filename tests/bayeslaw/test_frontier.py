"""Sizes, budget lines and the optimum along them, against the architecture and a brute-force search."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw import ISODEPTH
from bayeslaw.errors import DecisionError
from bayeslaw.family import Family
from bayeslaw.frontier import flops_limit, optima, optimum
from bayeslaw.laws import make_law
from bayeslaw.lines import NOTHING, Limit, budget_line
from bayeslaw.predict import law_loss
from bayeslaw.sizes import along, plain_sizes, size_at, sizes_of

LANES = Family(
    name="lanes", prelude_layers=1, unrolled_layers=12, coda_layers=3, width_step=64, seq_len=512, vocab_size=5000,
    batch_tokens=1024, injection="hyperconnections", backprop_fraction=0.5,
)  # fmt: skip

COUPLED = make_law("coupled")


def draws_of(rng, count, law=COUPLED):
    """Plausible and odd parameters."""
    out = {
        "E": rng.uniform(1.0, 1.8, count), "alpha": rng.uniform(0.1, 0.8, count), "beta": rng.uniform(0.1, 0.9, count),
        "k": np.exp(rng.normal(-0.5, 0.4, count)), "phi": rng.uniform(-0.3, 1.4, count),
    }  # fmt: skip
    out["A"] = rng.uniform(0.2, 3, count) * 1e8 ** out["alpha"]
    out["B"] = rng.uniform(0.2, 3, count) * 2e9 ** out["beta"]
    return {name: out[name] for name in law.parameters}


def searched(law, draws, sizes, line, recurrences, points=20_001):
    """Least loss and its size along a line, by looking at many sizes."""
    size = np.geomspace(line.smallest, line.largest, points)
    tokens = np.maximum(line.tokens(size), 1e-6)
    curve = law_loss(law, draws, along(sizes.n_once, size), along(sizes.n_rec, size), recurrences, tokens)
    return curve.min(axis=1), size[curve.argmin(axis=1)]


@pytest.mark.parametrize("family", [ISODEPTH, LANES], ids=["isodepth", "lanes"])
@pytest.mark.parametrize("recurrences", [1, 2, 4])
@pytest.mark.parametrize("injection_in", ["once", "rec", "nowhere", "regression"])
def test_counts_are_quadratics_of_the_width(family, recurrences, injection_in):
    trained = (1.0, 2.0, 4.0)
    sizes = sizes_of(family, recurrences, injection_in=injection_in, trained=trained)
    for width in (64, 640, 6144, 100_000):
        member = family.architecture(width, recurrences)
        n_once, n_rec = family.split(width, recurrences, injection_in=injection_in, trained=trained)
        assert along(sizes.n_once, width) == pytest.approx(n_once, rel=1e-9)
        assert along(sizes.n_rec, width) == pytest.approx(n_rec, rel=1e-9)
        assert along(sizes.n_unique, width) == pytest.approx(member.n_unique, rel=1e-12)
        assert along(sizes.flops_per_token, width) == pytest.approx(member.flops_per_token, rel=1e-12)
        assert along(sizes.inference_flops, width) == pytest.approx(member.inference_flops_per_token, rel=1e-12)


def test_size_at_is_the_inverse_of_along():
    for coefficients in ([0.0, 6.0, 0.0], [5.0, 2.0, 3.0], [0.0, 0.0, 2.0]):
        size = np.geomspace(1, 1e6, 7)
        assert size_at(np.array(coefficients), along(np.array(coefficients), size)) == pytest.approx(size, rel=1e-12)
    assert size_at(np.array([5.0, 1.0, 1.0]), 4.0) == 0
    assert size_at(np.array([5.0, 0.0, 0.0]), 6.0) == np.inf


@given(st.floats(1, 1e5))
def test_the_nearest_width_is_trainable_and_nearest_on_a_log_scale(width):
    nearest = sizes_of(ISODEPTH, 1, injection_in="once").nearest(width)
    assert nearest >= ISODEPTH.width_step
    assert nearest % ISODEPTH.width_step == 0
    for other in (nearest - ISODEPTH.width_step, nearest + ISODEPTH.width_step):
        if other > 0:
            assert abs(math.log(nearest / width)) <= abs(math.log(other / width)) + 1e-12


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8, 16]), st.floats(16, 24), st.sampled_from([0.0, 1e8, 1e11]),
    st.one_of(st.none(), st.floats(7, 11)), st.booleans(),
)  # fmt: skip
def test_optima_within_any_limits_are_those_of_a_search(seed, recurrences, log_flops, generated, log_data, hours):
    """Additive and coupled, with lifetime inference, data and device time, wherever the optimum then lies."""
    rng = np.random.default_rng(seed)
    sizes = sizes_of(ISODEPTH, recurrences, injection_in="once")
    flops = 10.0**log_flops
    limits = [flops_limit(sizes, flops, generated=generated)]
    if log_data is not None:
        limits.append(Limit(name="data", amount=10**log_data, unit="tokens", cost=np.array([1.0, 0, 0]), fixed=NOTHING))
    if hours:
        cost = sizes.flops_per_token / 3e14 + np.array([2e-6, 0, 0])
        amount = flops / 3e14 * rng.uniform(0.3, 3)
        limits.append(Limit(name="device time", amount=amount, unit="seconds", cost=cost, fixed=NOTHING))
    try:
        line = budget_line(sizes, limits)
    except DecisionError:
        assert min(limit.tokens(sizes.smallest) for limit in limits) < sizes.batch_tokens
        return
    draws = draws_of(rng, 6)
    size, tokens, loss = (each[:, 0] for each in optima(COUPLED, draws, sizes, [line], recurrences=recurrences))
    least, where = searched(COUPLED, draws, sizes, line, recurrences)
    assert (loss <= least * (1 + 1e-9)).all()
    assert loss == pytest.approx(least, rel=1e-4), "the search is coarse where one limit takes over from another"
    assert tokens == pytest.approx(line.tokens(size), rel=1e-6)
    steep = np.abs(np.log(size / where)) > 2e-2
    assert not (steep & (least - loss > 1e-7)).any()


def test_many_lines_at_once_are_as_each_alone():
    sizes = sizes_of(ISODEPTH, 4, injection_in="once")
    draws = draws_of(np.random.default_rng(1), 300)
    budgets = np.geomspace(1e17, 1e23, 80)
    lines = [budget_line(sizes, [flops_limit(sizes, flops)], largest=9000) for flops in budgets]
    together = optima(COUPLED, draws, sizes, lines, recurrences=4)  # enough for threads
    for place in (0, 40, 79):
        alone = optima(COUPLED, draws, sizes, [lines[place]], recurrences=4)
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(one[:, place], other[:, 0], rtol=1e-8)


def test_every_law_and_map_has_its_optimum():
    from bayeslaw.maps import MAPS

    rng = np.random.default_rng(2)
    sizes = sizes_of(ISODEPTH, 2, injection_in="once")
    line = budget_line(sizes, [flops_limit(sizes, 1e19)])
    for terms in ("additive", "coupled"):
        for name in MAPS:
            law = make_law(terms, name, levels=(2.0, 4.0) if name == "free" else ())
            draws = draws_of(rng, 5, COUPLED)
            draws |= {own: rng.uniform(0.2, 0.9, 5) for own in law.map.parameters}
            best = optimum(law, draws, sizes, line, recurrences=2)
            least, _ = searched(law, draws, sizes, line, 2)
            assert best.loss == pytest.approx(least, rel=1e-6), (terms, name)


def test_ends_of_a_line_are_told_apart():
    sizes = plain_sizes()
    draws = {
        "E": np.ones(2),
        "A": np.array([1e3, 1e-9]),
        "B": np.array([1e-9, 1e3]),
        "alpha": np.full(2, 0.3),
        "beta": np.full(2, 0.3),
    }
    best = optimum(make_law("additive"), draws | {"phi": np.zeros(2)}, sizes, flops=1e18, recurrences=1)
    assert (best.at_largest, best.at_smallest, best.at_edge) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize(
    ("limits", "smallest", "said"),
    [
        (
            ["flops"],
            0.0,
            "budget of 1e\\+13 FLOPs: width 128 takes 2.914e\\+13 for a step of 262144 tokens, 2.91 times",
        ),
        (["data"], 0.0, "data of 1e\\+05 tokens: width 128 takes 2.621e\\+05"),
        (["flops", "data"], 0.0, "budget of 1e\\+13 FLOPs: .*; data of 1e\\+05 tokens"),
        (["data"], 640.0, "width 640"),
    ],
)
def test_a_limit_that_leaves_nothing_says_how_much_it_lacks(limits, smallest, said):
    sizes = sizes_of(ISODEPTH, 1, injection_in="once")
    found = {
        "flops": flops_limit(sizes, 1e13),
        "data": Limit(name="data", amount=1e5, unit="tokens", cost=np.array([1.0, 0, 0]), fixed=NOTHING),
    }
    with pytest.raises(DecisionError, match=said):
        budget_line(sizes, [found[name] for name in limits], smallest=smallest)


def test_whole_tokens_never_exceed_what_there_is():
    sizes = sizes_of(ISODEPTH, 1, injection_in="once")
    data = Limit(name="data", amount=2**18 * 7.9, unit="tokens", cost=np.array([1.0, 0, 0]), fixed=NOTHING)
    assert budget_line(sizes, [data], largest=256).whole_tokens(128, 2**18) == 7 * 2**18
    aimed = flops_limit(sizes, 7.9 * 2**18 * float(along(sizes.flops_per_token, 128)))
    assert budget_line(sizes, [aimed]).whole_tokens(128, 2**18) == 7 * 2**18
    exact = flops_limit(sizes, 8 * 2**18 * float(along(sizes.flops_per_token, 128)))
    assert budget_line(sizes, [exact]).whole_tokens(128, 2**18) == 8 * 2**18


def test_a_limit_of_exactly_one_step_bounds_no_size():
    sizes = sizes_of(ISODEPTH, 1, injection_in="once")
    data = Limit(name="data", amount=2.0**18, unit="tokens", cost=np.array([1.0, 0, 0]), fixed=NOTHING)
    assert data.largest(2.0**18) == np.inf
    assert data.largest(2.0**18 + 1) == 0
    assert budget_line(sizes, [flops_limit(sizes, 1e19), data]).largest > 10_000


def test_time_grows_no_faster_than_draws_and_budgets():
    """The same work in larger tables; ratios only."""
    import time

    sizes = sizes_of(ISODEPTH, 4, injection_in="once")

    def seconds(count, budgets):
        draws = draws_of(np.random.default_rng(0), count)
        lines = [budget_line(sizes, [flops_limit(sizes, flops)]) for flops in np.geomspace(1e17, 1e23, budgets)]
        optima(COUPLED, draws, sizes, lines, recurrences=4)
        times = []
        for _ in range(3):
            began = time.process_time()  # of all threads, whatever else the machine does
            optima(COUPLED, draws, sizes, lines, recurrences=4)
            times.append(time.process_time() - began)
        return min(times)

    base = seconds(2000, 50)
    assert seconds(16_000, 50) < 8 * 2.5 * base
    assert seconds(2000, 400) < 8 * 2.5 * base
