import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw.architecture import Architecture
from bayeslaw.datasets import load_dataset
from bayeslaw.errors import UsageError
from bayeslaw.family import ISODEPTH
from bayeslaw.splits import split_parameters

# N in millions for r = 1, 2, 4, 8 by width scale: arXiv 2604.21106, Table 6.
TABLE_6 = {
    6: "35.4 21.5 14.5 10.9",
    8: "62.9 38.3 25.7 19.4",
    10: "98.3 59.8 40.2 30.3",
    12: "141.6 86.1 57.8 43.7",
    14: "192.7 117.2 78.7 59.4",
    16: "251.7 153.1 102.8 77.6",
    18: "318.6 193.8 130.1 98.2",
    20: "393.3 239.2 160.6 121.3",
    24: "566.3 344.5 231.2 174.6",
    28: "770.8 468.9 314.7 237.7",
    34: "1136.5 691.4 464.1 350.4",
}

designs = st.builds(
    Architecture,
    d_model=st.integers(1, 40).map(lambda s: 64 * s),
    prelude_layers=st.integers(0, 4),
    shared_layers=st.integers(1, 16),
    coda_layers=st.integers(0, 4),
    recurrences=st.integers(1, 16),
    seq_len=st.integers(1, 4096),
    vocab_size=st.integers(1, 64_000),
    injection=st.sampled_from(["linear", "additive", "passthrough", "hyperconnections"]),
)


@pytest.mark.parametrize("scale", TABLE_6)
def test_unique_parameters_are_those_of_table_6(scale):
    counted = [f"{ISODEPTH.architecture(64 * scale, r).n_unique / 1e6:.1f}" for r in (1, 2, 4, 8)]
    assert " ".join(counted) == TABLE_6[scale]


def test_every_published_run_is_counted_exactly():
    runs = load_dataset("isodepth-recipes")
    assert len(runs) == 240
    for row in runs.itertuples():
        design = Architecture(
            d_model=row.d_model,
            prelude_layers=row.prelude_layers,
            shared_layers=row.shared_layers,
            coda_layers=row.coda_layers,
            recurrences=row.recurrences,
            seq_len=row.seq_len,
            vocab_size=row.vocab_size,
            injection=row.injection,
            backprop_recurrences=row.backprop_recurrences,
        )
        counts = (design.n_once, design.n_shared, design.n_injection, design.n_unique, design.flops_per_token)
        assert counts == (row.n_once, row.n_shared, row.n_injection, row.n_unique, row.flops_per_token), row.run_id
        assert design.tokens_for(row.budget, batch_tokens=2**18) == row.tokens, row.run_id


@given(designs)
def test_flops_of_an_untruncated_loop_follow_the_papers_formula(design):
    d, r = design.d_model, design.recurrences
    layers = design.effective_layers * (12 * d**2 + 2 * d)
    lanes = design.n_lane * d
    paper = 6 * (layers + r * design.n_injection + r * lanes) + 12 * design.effective_layers * d * design.seq_len
    assert design.flops_per_token == paper + 6 * d * design.vocab_size
    assert design.flops_per_token == 3 * design.forward_flops_per_token


@given(designs, st.data())
def test_detached_recurrences_cost_a_third(design, data):
    kept = data.draw(st.integers(1, design.recurrences))
    fields = {name: getattr(design, name) for name in design.__dataclass_fields__}
    truncated = Architecture(**{**fields, "backprop_recurrences": kept})
    assert truncated.forward_flops_per_token == design.forward_flops_per_token
    assert design.forward_flops_per_token < truncated.flops_per_token <= design.flops_per_token
    assert (truncated.flops_per_token == design.flops_per_token) == (kept == design.recurrences)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"d_model": 0}, "d_model"),
        ({"d_model": math.nan}, "d_model"),
        ({"recurrences": 0}, "recurrences"),
        ({"shared_layers": -1}, "shared_layers"),
        ({"coda_layers": -1}, "coda_layers"),
        ({"seq_len": math.inf}, "seq_len"),
        ({"injection": "cross"}, "cross"),
        ({"backprop_recurrences": 5}, "1 to 4"),
        ({"backprop_recurrences": 0}, "1 to 4"),
    ],
)
def test_impossible_architectures_are_refused_by_name(change, named):
    fields = {
        "d_model": 64,
        "prelude_layers": 1,
        "shared_layers": 2,
        "coda_layers": 1,
        "recurrences": 4,
        "seq_len": 128,
        "vocab_size": 512,
    }
    with pytest.raises(UsageError, match=named):
        Architecture(**{**fields, **change})


def test_a_plain_transformer_has_no_injection():
    design = ISODEPTH.architecture(640, 1)
    assert design.injection == "none"
    assert design.n_injection == 0
    assert design.effective_layers == 20


def test_the_family_trains_divisors_only():
    assert ISODEPTH.allowed_recurrences == (1, 2, 4, 8, 16)
    for r in (3, 0, 2.5, 32):
        with pytest.raises(UsageError, match=r"1, 2, 4, 8, 16 \(divisors of 16 layers\)"):
            ISODEPTH.architecture(640, r)
    assert ISODEPTH.architecture(640, 4.0).recurrences == 4


@pytest.mark.parametrize("budget", [0, -1e18, math.nan, math.inf])
def test_a_budget_that_buys_nothing_is_refused(budget):
    with pytest.raises(UsageError, match="FLOPs"):
        ISODEPTH.architecture(640, 1).tokens_for(budget)


def test_a_small_budget_buys_one_batch():
    assert ISODEPTH.architecture(640, 1).tokens_for(1.0, batch_tokens=2**18) == 2**18


def test_the_injections_convention_keeps_or_drops_its_parameters():
    assert split_parameters(10, 20, 3, injection_in="once") == (13, 20)
    assert split_parameters(10, 20, 3, injection_in="rec") == (10, 23)
    assert split_parameters(10, 20, 3, injection_in="nowhere") == (10, 20)
    with pytest.raises(UsageError, match="once, rec, nowhere"):
        split_parameters(10, 20, 3, injection_in="shared")
