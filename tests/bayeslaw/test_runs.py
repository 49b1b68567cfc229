import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayeslaw
from bayeslaw.architecture import Architecture
from bayeslaw.datasets import load_dataset
from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.family import ISODEPTH
from bayeslaw.runs import RunTable, load_runs, validate

PLAIN = pd.DataFrame({"n": [1e7, 2e7, 4e7], "tokens": [1e9, 1e9, 2e9], "loss": [3.4, 3.2, 3.0]})
ARCHITECTURE = ["d_model", "prelude_layers", "shared_layers", "coda_layers", "recurrences", "injection"]
COUNTS = ["n_once", "n_shared", "n_injection", "n_unique"]


def published(*changes, rows=8, drop=()):
    """Rows of the shipped table, of which some cells are changed: (column, row, value)."""
    frame = load_dataset("isodepth").iloc[:rows].drop(columns=list(drop)).astype(object)
    for column, row, value in changes:
        frame.loc[row, column] = value
    return frame


def refused(frame, *named):
    with pytest.raises(RunTableError) as error:
        validate(frame, source="table")
    assert error.value.exit_code == 1
    for text in named:
        assert text in str(error.value)
    return error.value


# What the table completes


def test_a_plain_table():
    table = validate(PLAIN.assign(cluster=["a", "b", "c"]), source="plain.csv")
    runs = table.runs
    assert list(runs["run_id"]) == ["row-1", "row-2", "row-3"]
    assert (runs["recurrences"] == 1).all()
    assert list(runs["n_once"]) == list(runs["n_unique"]) == [10_000_000, 20_000_000, 40_000_000]
    assert (runs[["n_shared", "n_injection"]] == 0).all(axis=None)
    assert set(runs["recipe"]) == {"baseline"}
    assert set(runs["source"]) == {"plain.csv"}
    assert list(runs["cluster"]) == ["a", "b", "c"]
    assert "d_model" not in runs
    assert "flops" not in runs
    assert list(runs.index) == [0, 1, 2]
    assert list(validate(PLAIN.assign(d_model=64), source="t").runs["width_scale"]) == [1, 1, 1]


def test_counts_width_and_flops_come_from_the_architecture():
    full = load_dataset("isodepth-recipes")
    bare = full.drop(columns=[*COUNTS, "width_scale", "flops_per_token", "flops", "run_id", "source", "state"])
    runs = validate(bare, source="isodepth").runs
    for name in (*COUNTS, "width_scale", "flops_per_token", "flops", "run_id"):
        assert list(runs[name]) == list(full[name]), name
    assert runs["flops"].dtype == np.float64
    by_scale = validate(full.drop(columns=[*COUNTS, "d_model"]), source="isodepth").runs
    assert list(by_scale["d_model"]) == list(full["d_model"])
    assert list(by_scale["n_unique"]) == list(full["n_unique"])


def test_flops_beyond_int64():
    frame = load_dataset("isodepth").drop(columns="flops")
    flops = validate(frame, source="isodepth").runs["flops"]
    assert (flops > 0).all()
    assert (flops >= 2**63).sum() == 36
    assert flops.max() == pytest.approx(2.15e19, rel=1e-2)


def test_any_trainable_architecture_is_completed_as_it_counts_itself():
    rows = []
    for injection in ("linear", "additive", "passthrough", "hyperconnections"):
        for r in (1, 2, 4):
            design = Architecture(
                d_model=128, prelude_layers=1, shared_layers=2, coda_layers=1, recurrences=r, seq_len=64,
                vocab_size=512, injection=injection,
            )  # fmt: skip
            rows.append((design, {name: getattr(design, name) for name in (*ARCHITECTURE, "seq_len", "vocab_size")}))
    frame = pd.DataFrame([row | {"tokens": 1e6 + n, "loss": 4.0} for n, (_, row) in enumerate(rows)])
    runs = validate(frame, source="table").runs
    for (design, _), row in zip(rows, runs.to_dict("records"), strict=True):
        assert [row[name] for name in COUNTS] == [getattr(design, name) for name in COUNTS]
        assert row["flops_per_token"] == design.flops_per_token


def test_an_architecture_is_made_once_however_many_runs_have_it(monkeypatch):
    made = []
    check = Architecture.__post_init__
    monkeypatch.setattr(Architecture, "__post_init__", lambda self: (made.append(self), check(self)))
    frame = pd.concat(
        [published(rows=4).assign(seed=seed, run_id=[f"{seed}/{n}" for n in range(4)]) for seed in range(9)]
    )
    assert len(validate(frame, source="t").runs) == 36
    assert len(made) == 4


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_the_lanes_of_hyperconnections_follow_from_the_count(lanes):
    design = Architecture(
        d_model=128, prelude_layers=1, shared_layers=2, coda_layers=1, recurrences=4, seq_len=64, vocab_size=512,
        injection="hyperconnections", lanes=lanes,
    )  # fmt: skip
    names = (*ARCHITECTURE, "seq_len", "vocab_size", "n_shared")
    row = {name: getattr(design, name) for name in names} | {"tokens": 1e6, "loss": 4.0}
    runs = validate(pd.DataFrame([row]), source="table").runs
    assert runs["flops_per_token"][0] == design.flops_per_token


def test_rows_without_an_architecture_stand_beside_rows_with_one():
    frame = published(("d_model", 1, None), ("width_scale", 1, None), ("n_once", 0, None), rows=2)
    runs = validate(frame, source="table").runs
    assert list(runs["n_once"]) == list(load_dataset("isodepth")["n_once"][:2])
    assert math.isnan(runs["d_model"][1])
    assert "N" in str(validate(frame, source="table"))


def test_run_ids_number_the_rows_where_designs_coincide():
    frame = published(rows=2, drop=["run_id"])
    assert list(validate(frame, source="t").runs["run_id"]) == ["baseline/1/6/4.64e+17", "baseline/1/8/4.64e+17"]
    replicates = pd.concat([frame.iloc[:1], frame.iloc[:1].assign(loss=2.9)])
    assert list(validate(replicates, source="t").runs["run_id"]) == ["row-1", "row-2"]
    seeds = pd.concat([frame.iloc[:1].assign(seed=1), frame.iloc[:1].assign(seed=2)])
    assert list(validate(seeds, source="t").runs["run_id"]) == ["baseline/1/6/4.64e+17/1", "baseline/1/6/4.64e+17/2"]


def test_other_columns_are_kept_as_numbers_or_texts():
    frame = PLAIN.assign(
        lr=["1e-3", "2e-3", None], note=["x", None, "z"], shard=["1", "2", "3"], tags=[[1], [2, 3], []]
    )
    runs = validate(frame, source="t").runs
    assert runs["lr"].dtype == np.float64
    assert runs["shard"].dtype == np.int64
    assert runs["note"].isna().sum() == 1
    assert list(runs["tags"]) == ["[1]", "[2, 3]", "[]"]


def test_losses_in_bits_become_nats():
    frame = PLAIN.assign(loss_unit=["bits/token", None, "nats/token"], loss_se=0.1)
    table = validate(frame, source="t")
    assert table.runs["loss"][0] == 3.4 * math.log(2)
    assert table.runs["loss_se"][0] == 0.1 * math.log(2)
    assert list(table.runs["loss"][1:]) == [3.2, 3.0]
    assert set(table.runs["loss_unit"]) == {"nats/token"}
    assert "1 losses were converted" in table.notes[0]
    refused(PLAIN.assign(loss_unit="bits/byte"), "loss_unit is 'bits/byte'", "nats/token or bits/token")


def test_the_frame_given_is_left_alone():
    frame = published()
    before = frame.copy()
    validate(frame, source="t")
    pd.testing.assert_frame_equal(frame, before)


# What the table leaves out


def test_only_finished_runs_stay():
    frame = published(("state", 0, "failed"), ("state", 1, "RUNNING"), ("loss", 1, None), ("state", 2, "diverged"))
    frame.loc[2, "loss"] = math.nan
    table = validate(frame, source="t")
    assert len(table.runs) == 5
    assert list(table.runs.index) == list(range(5))
    reasons = dict(zip(table.excluded["run_id"], table.excluded["reason"], strict=True))
    assert reasons == {
        "baseline/1/6/4.64e+17": "state failed, loss 2.88369",
        "baseline/1/8/4.64e+17": "state running",
        "baseline/1/10/4.64e+17": "state diverged, loss nan",
    }


def test_nothing_finished():
    with pytest.raises(NoRunsError, match="state running") as error:
        validate(PLAIN.assign(state="running"), source="t")
    assert error.value.exit_code == 4
    refused(PLAIN.assign(state="done"), "state is done", "finished, running, failed, killed, diverged")


# What the table refuses


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("loss", "2.8 nats", "loss is '2.8 nats', not a number"),
        ("tokens", "1,000,000,000", "tokens is '1,000,000,000', not a number"),
        ("tokens", "1_000_000_000", "not a number"),
        ("recurrences", True, "recurrences is True, not a number"),
        ("loss", 0, "loss is 0"),
        ("loss", -2.8, "loss is -2.8"),
        ("loss", None, "loss is missing"),
        ("loss", "nan", "loss is nan"),
        ("tokens", None, "tokens is missing"),
        ("recurrences", "", "recurrences is missing"),
        ("loss", math.inf, "loss is inf, not finite"),
        ("loss", 1.797e308, "not finite"),
        ("budget", -math.inf, "budget is -inf, not finite"),
        ("recurrences", 0, "recurrences is 0: the shared block runs at least once"),
        ("recurrences", 0.5, "recurrences is 0.5"),
        ("n_once", 7.08, "n_once is 7.08, no whole number: are these millions?"),
        ("n_shared", -1, "n_shared is -1"),
        ("n_injection", -1, "0 or more"),
        ("tokens", 0.98, "are these billions?"),
        ("tokens", 976, "tokens is 976: are these billions?"),
        ("tokens", 0, "tokens is 0"),
        ("tokens", 1e17, "below 2^53"),
        ("d_model", 384.5, "d_model is 384.5, no whole number"),
        ("d_model", -384, "d_model is -384"),
        ("prelude_layers", -2, "prelude_layers is -2"),
        ("width_scale", 7, "width_scale is 7, which is not d_model / 64"),
        ("injection", "cross", "injection 'cross'"),
        ("backprop_recurrences", 3, "backprop_recurrences = 3"),
        ("n_unique", 35405953, "n_unique is 35405953"),
    ],
)
def test_a_bad_cell_is_named(column, value, named):
    error = refused(published((column, 3, value)), named, "row 3")
    assert error.allowed
    assert "row 1" not in str(error)


def test_counts_in_millions_are_recognised():
    error = refused(PLAIN.assign(n=[10, 20, 40]), "n is 10: are these millions?", "rows 0, 1, 2")
    assert "in full" in error.do
    refused(PLAIN.assign(n=[10.5, 20, 40]), "n is 10.5, no whole number: are these millions?", "row 0")
    counts = {"recurrences": 2, "n_once": 7, "n_shared": 14, "tokens": 1e9, "loss": 3.0}
    refused(pd.DataFrame([counts]), "n_once is 7: are these millions?")


def test_rows_are_listed_up_to_five():
    refused(published(*[("loss", row, -1.0) for row in range(8)]), "rows 0, 1, 2, 3, 4 and 3 more")


def test_missing_columns_are_named_with_the_nearest():
    error = refused(PLAIN.rename(columns={"loss": "val_loss"}), "lacks the column loss", "it has n, tokens, val_loss")
    assert error.do == "rename 'val_loss' to 'loss'"
    refused(PLAIN.rename(columns={"n": "N"}), "lacks the column n;", "rename 'N' to 'n'")
    error = refused(published(drop=[*COUNTS, "injection"]), "lacks the column n_once, n_shared")
    assert "d_model or width_scale" in error.allowed
    refused(published(drop=["recurrences"]), "lacks the column recurrences")
    refused(pd.DataFrame({"a": [1]}), "lacks the column n, tokens, loss")
    refused(PLAIN.assign(recurrences=1), "lacks the column n_once, n_shared")
    refused(PLAIN.assign(coda_layers=1), "lacks the column recurrences, n_once, n_shared")


def test_empty_tables():
    refused(pd.DataFrame(), "has no rows")
    refused(PLAIN.iloc[:0], "has no rows")


def test_columns_named_twice():
    refused(pd.concat([PLAIN, PLAIN[["loss"]]], axis="columns"), "more than one column loss")


def test_duplicates_and_replicates():
    frame = published(rows=3)
    twice = pd.concat([frame, frame.iloc[:1].assign(loss=2.9)], ignore_index=True)
    refused(twice, "rows 0, 3", "run_id is baseline/1/6/4.64e+17 in each")
    renamed = pd.concat([frame, frame.iloc[:1].assign(run_id="copy")], ignore_index=True)
    refused(renamed, "rows 0, 3", "the same run", "seed")
    seeds = pd.concat([frame.assign(seed=1), frame.iloc[:1].assign(run_id="copy", seed=2)], ignore_index=True)
    table = validate(seeds, source="t")
    assert table.notes == ("1 designs were trained more than once (2 runs, replicates)",)
    refused(pd.concat([PLAIN, PLAIN.iloc[1:2]], ignore_index=True), "rows 1, 3", "the same run")


@pytest.mark.parametrize(
    ("column", "change", "convention"),
    [
        ("n_unique", lambda d: 640 * 32064, "embedding included?"),
        ("n_unique", lambda d: 2 * 640 * 32064, "embedding and head included?"),
        ("n_once", lambda d: 640 * 32064 - 4 * 2 * 640 - 3 * 640, "embedding included and norms left out?"),
        ("n_once", lambda d: -3 * 640, "model norms left out?"),
        ("n_shared", lambda d: -4 * 2 * 640, "norms left out?"),
        ("n_shared", lambda d: 2 * 640**2, "injection included?"),
        ("n_injection", lambda d: -2 * 640**2, "injection left out?"),
        ("n_unique", lambda d: 3 * d.n_shared, "the shared block counted once for each recurrence?"),
        ("n_once", lambda d: 160, "rounded?"),
        ("n_once", lambda d: 3 * 10**6, "no counting convention known here"),
    ],
)
def test_a_count_that_the_architecture_contradicts_names_its_convention(column, change, convention):
    design = ISODEPTH.architecture(640, 4)
    frame = load_dataset("isodepth").query("d_model == 640 and recurrences == 4 and budget == 1e18")
    frame = frame.assign(**{column: getattr(design, column) + change(design)})
    error = refused(frame, column, f"its architecture has {getattr(design, column)}", convention)
    assert f"correct {column}, or leave it out" in error.do


def test_a_sum_that_does_not_add_up():
    frame = published(drop=["d_model", "width_scale"])
    frame["n_unique"] += 1
    refused(frame, "n_unique is 35405953, not the sum of n_once, n_shared and n_injection")


# Notes


def test_flops_that_differ_are_noted():
    table = validate(published(("flops_per_token", 0, 6 * 35405952), drop=["flops"]), source="t")
    assert table.notes == ("flops_per_token differs from that of the architecture by up to 55.3% (row 0)",)
    table = validate(published(("flops", 1, 5e17)), source="t")
    assert table.notes == ("flops differs from tokens x flops_per_token by up to 7.8% (row 1)",)


def test_losses_worse_than_guessing_are_told():
    runs = load_runs("isodepth").runs
    runs.loc[7, "loss"] = 1e9
    (note,) = load_runs(runs).notes
    assert "1 runs have a loss above log(vocab_size), worse than guessing" in note
    assert str(runs["run_id"][7]) in note


def test_repeated_data_is_noted():
    table = validate(PLAIN.assign(epochs=[1, 4, 2.5]), source="t")
    assert "2 runs saw their data more than once (up to 4 epochs)" in table.notes[0]
    table = load_runs(PLAIN.assign(epochs=[1, 4, 2.5]), where="epochs == 1")
    assert table.notes == ()


# Selection


def test_where_and_recipe():
    table = load_runs("isodepth", where="recurrences in (2,4) and budget >= 1e18 and recipe == 'baseline'")
    assert len(table.runs) == 50
    assert list(table.runs.index) == list(range(50))
    with pytest.raises(NoRunsError, match="matches --where") as error:
        load_runs("isodepth", where="recurrences == 3")
    assert error.value.exit_code == 4
    with pytest.raises(UsageError, match="did you mean truncated_bptt"):
        load_runs("isodepth-recipes", recipe="truncated-bptt")
    with pytest.raises(NoRunsError, match="truncated_bptt"):
        load_runs("isodepth-recipes", recipe="truncated_bptt", where="recurrences == 16 or recipe == 'baseline'")


def test_a_recipe_without_plain_runs_is_anchored_by_the_baselines():
    table = load_runs("isodepth-recipes", recipe="truncated_bptt")
    assert table.runs["recipe"].value_counts().to_dict() == {"truncated_bptt": 61, "baseline": 29}
    assert set(table.runs["recurrences"][table.runs["recipe"] == "baseline"]) == {1.0}
    assert "29 r = 1 runs of baseline serve as the anchor of truncated_bptt, 9 of them" in table.notes[0]
    low = load_runs("isodepth-recipes", recipe="truncated_bptt", where="budget <= 4.64e18")
    assert len(low.runs) == 81
    baseline = load_runs("isodepth-recipes", recipe="baseline")
    assert baseline.data_hash == load_runs("isodepth").data_hash
    assert baseline.notes == ()
    looped = load_runs("isodepth-recipes", recipe="truncated_bptt", where="recurrences > 1")
    assert len(looped.runs) == 61
    assert "no r = 1 runs" in looped.notes[0]


# Identity and printing


def test_the_hash_ignores_row_order_and_other_columns():
    frame = load_dataset("isodepth")
    expected = validate(frame, source="a").data_hash
    assert len(expected) == 16
    int(expected, 16)
    shuffled = frame.sample(frac=1, random_state=1).assign(note="x", tokens_per_second=5.0)
    assert validate(shuffled, source="b").data_hash == expected
    assert validate(frame.assign(loss_se=0.5), source="a").data_hash != expected
    assert validate(PLAIN, source="a").data_hash == validate(PLAIN.iloc[::-1], source="a").data_hash


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["n", "tokens", "loss"]), st.integers(0, 2))
def test_the_hash_sees_every_number(column, row):
    changed = PLAIN.copy()
    changed.loc[row, column] *= 2
    assert validate(changed, source="t").data_hash != validate(PLAIN, source="t").data_hash


def test_the_hash_sees_recipe_and_run_id():
    base = validate(PLAIN, source="t").data_hash
    assert validate(PLAIN.assign(recipe=["baseline", "baseline", "other"]), source="t").data_hash != base
    assert validate(PLAIN.assign(run_id=["a", "b", "c"]), source="t").data_hash != base


def test_prints_as_a_narrow_table():
    frame = published(("run_id", 0, "a-very-long-name/" * 5 + "the-end"))
    text = str(validate(frame, source="table"))
    lines = text.splitlines()
    assert lines[1].split() == ["run_id", "r", "d", "tokens", "flops", "loss"]
    assert len(lines) == 10
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[0] == "a-very-long-n..ng-name/the-end"
    assert repr(validate(PLAIN, source="t")) == str(validate(PLAIN, source="t"))
    assert str(validate(PLAIN, source="t")).splitlines()[2].split() == ["row-1", "1", "1e+07", "1e+09", "-", "3.4000"]


def test_public_names():
    assert bayeslaw.RunTable is RunTable
    assert bayeslaw.load_runs is load_runs
