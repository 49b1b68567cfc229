"""Models of known truth are told apart, and checks alarm, as benchmarks/selection.py measures it: a small part."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "selection.py"
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def selection():
    spec = importlib.util.spec_from_file_location("selection_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(selection):
    return selection.Models()


@pytest.fixture(scope="module")
def coupled(selection, models):
    return selection.truth(models, "coupled", k=selection.K)


def row(preferred, **over_truth):
    return {"preferred": preferred, "over_truth": over_truth}


def test_rates_tell_right_undecided_and_wrong_apart(selection):
    rates = selection.ranking_rates(
        "hill",
        [
            row("hill", power=[-9.0, 2.0], log=[-30.0, 5.0]),
            row("power", power=[-3.0, 2.0], log=[-30.0, 5.0]),
            row("power", power=[9.0, 2.0], log=[-30.0, 5.0]),
            row("power", power=[2.0, 0.5], log=[-30.0, 5.0]),
        ],
    )
    assert rates["first"] == 0.25
    assert rates["preferred"] == {"hill": 1, "power": 3}
    alone, besides = rates["over_2_se"], rates["over_2_se_and_4"]
    assert (alone["right"], alone["undecided"], alone["wrong"]) == (0.25, 0.25, 0.5)
    assert (besides["right"], besides["undecided"], besides["wrong"]) == (0.25, 0.5, 0.25)
    assert (alone["declared_better"], besides["declared_better"]) == ({"power": 2}, {"power": 1})


def test_rates_of_checks_count_data_sets_and_cards(selection):
    warned = [[], ["optimum", "offsets"], ["predictive"], ["optimum"]]
    rates = selection.check_rates("coupled", [{"warnings": names, "failed": []} for names in warned])
    assert (rates["any"], rates["any_but_predictive"], rates["curvature_or_lack_of_fit"]) == (0.75, 0.5, 0.0)
    assert rates["by_card"] == {"optimum": 2, "offsets": 1, "predictive": 1}


def test_a_stopped_run_goes_on_where_it_was(selection, tmp_path):
    path = tmp_path / "selection.json"
    record = selection.Record(path)
    for seed in (0, 2):
        record.add("laws", "coupled", seed, row("coupled", additive=[-50.0, 9.0]))
    again = selection.Record(path)
    assert again.missing("laws", "coupled", 4) == [1, 3]
    assert again.missing("laws", "additive", 2) == [0, 1]


@SLOW
def test_the_true_law_is_preferred_though_the_larger_one_holds_it(selection, models, coupled):
    additive = selection.truth(models, "additive").assign(sigma=coupled["sigma"])
    for true, parameters in (("coupled", coupled), ("additive", additive)):
        rows = [
            selection.ranked(models, ("additive", "coupled"), true, selection.drawn(models[true], parameters, seed))
            for seed in (1001, 1002, 1003)
        ]
        assert [each["preferred"] for each in rows] == [true] * 3


@SLOW
def test_a_recurrence_worth_nothing_is_found(selection, models, coupled):
    parameters = selection.truth(models, "none", k=selection.K).assign(sigma=coupled["sigma"])
    drawn = selection.drawn(models["none"], parameters, 1001)
    found = selection.ranked(models, ("power", "none"), "none", drawn)
    assert found["preferred"] == "none"
    drawn = selection.drawn(models["coupled"], coupled, 1001)
    found = selection.ranked(models, ("power", "none"), "power", drawn)
    assert found["preferred"] == "power"
    assert found["over_truth"]["none"][0] < -50


@SLOW
def test_checks_are_silent_on_the_fitted_law_and_find_the_additive_misfit(selection, models, coupled):
    inputs = [selection.drawn(models["coupled"], coupled, seed) for seed in (1001, 1002)]
    for seed, drawn in enumerate(inputs):
        silent = selection.checked(models["coupled"], drawn, seed)
        assert silent["warnings"] == []
        assert silent["failed"] == []
        assert "curvature" in selection.checked(models["additive"], drawn, seed)["warnings"]
