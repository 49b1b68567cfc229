import csv
from importlib import resources

import numpy as np
import pandas as pd
import pytest

from bayeslaw import datasets
from bayeslaw.runs import load_runs
from bayeslaw.schema import COLUMNS


def test_the_names():
    assert datasets.NAMES == ("isodepth", "isodepth-recipes", "desk", "desk-rates")
    assert len(datasets.load_dataset("isodepth")) == 116
    everything = datasets.load_dataset("isodepth-recipes")
    assert everything["recipe"].value_counts().to_dict() == {
        "baseline": 116,
        "hyperconnections": 63,
        "truncated_bptt": 61,
    }
    with pytest.raises(KeyError):
        datasets.load_dataset("other")


def test_added_columns():
    runs = datasets.load_dataset("isodepth-recipes")
    assert set(runs.columns) - set(COLUMNS) == {"read_from"}
    assert runs["run_id"].is_unique
    assert runs["run_id"][0] == "baseline/1/6/4.64e+17"
    assert (runs["shared_layers"] * runs["recurrences"] == 16).all()
    assert (runs["prelude_layers"] == 2).all()
    assert (runs["injection"][runs["recurrences"] == 1] == "none").all()
    looped = runs[runs["recurrences"] > 1]
    by_recipe = looped.groupby("recipe")["injection"].unique().map(list).to_dict()
    assert by_recipe == {
        "baseline": ["linear"],
        "truncated_bptt": ["linear"],
        "hyperconnections": ["hyperconnections"],
    }
    truncated = runs[runs["recipe"] == "truncated_bptt"]
    kept = truncated.groupby("recurrences")["backprop_recurrences"].unique().map(list).to_dict()
    assert kept == {2: [1], 4: [2], 8: [4]}
    full = runs[runs["recipe"] != "truncated_bptt"]
    assert (full["backprop_recurrences"] == full["recurrences"]).all()


def test_flops_do_not_overflow():
    runs = datasets.load_dataset("isodepth")
    exact = [int(tokens) * int(rate) for tokens, rate in zip(runs["tokens"], runs["flops_per_token"], strict=True)]
    assert sum(value >= 2**63 for value in exact) == 36
    assert runs["flops"].dtype == np.float64
    assert np.allclose(runs["flops"], [float(value) for value in exact], rtol=1e-15)
    assert (abs(runs["flops"] / runs["budget"] - 1) < 0.005).all()


def test_the_files_are_kept_to_the_digit():
    runs = datasets.load_dataset("isodepth-recipes")
    with (resources.files(datasets) / "isodepth_runs.csv").open(encoding="utf-8") as stream:
        for row, cells in zip(runs.to_dict("records"), csv.DictReader(stream), strict=True):
            assert all(
                row[name] == (cell if isinstance(row[name], str) else float(cell)) for name, cell in cells.items()
            )
    first = runs.iloc[0]
    assert (first["loss"], first["loss_se"], first["tokens"]) == (2.88369, 1e-05, 976748544)


def test_minima():
    minima = datasets.isodepth_minima()
    assert list(minima.columns) == ["recurrences", "budget", "n_unique_opt", "loss_opt"]
    assert len(minima) == 24
    first = minima.iloc[0]
    assert (first["n_unique_opt"], first["loss_opt"]) == (67800356.36570223, 2.8522911954991343)
    # A parabola's minimum is near the lowest loss measured in its cell.
    best = datasets.load_dataset("isodepth").groupby(["recurrences", "budget"])["loss"].min()
    joined = minima.set_index(["recurrences", "budget"])["loss_opt"]
    assert (joined - best).abs().max() < 0.004


def test_loaded_tables_are_frozen():
    table = load_runs("isodepth")
    assert table.data_hash == "8929e45778013b71"
    assert table.notes == ()
    assert table.excluded.empty
    everything = load_runs("isodepth-recipes")
    assert everything.data_hash != table.data_hash
    assert len(everything.runs) == 240
    assert (everything.runs["source"] == "isodepth").all()


@pytest.mark.parametrize("name", ["isodepth-recipes", "desk", "desk-rates"])
def test_a_loaded_table_has_the_vocabularys_kinds(name):
    runs = load_runs(name).runs
    for column in runs.columns:
        if column in COLUMNS:
            kind = COLUMNS[column].kind
            expected = {"text": pd.StringDtype(na_value=np.nan), "int": np.int64, "float": np.float64}[kind]
            assert runs[column].dtype == expected, column
