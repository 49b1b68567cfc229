"""Comparison of models: names, parts of a table, what simulated truths are found to be, the verdict in words."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bayeslaw import load_runs
from bayeslaw.compare.comparison import Comparison, Model
from bayeslaw.compare.models import chosen_models, compare_models, complexity, default_models, name_of, settings_of
from bayeslaw.compare.parts import BUDGET, CELL, FORWARD, Split, levels_of, splits_of
from bayeslaw.compare.readings import held_by_intervals, verdict
from bayeslaw.errors import FitError, UsageError
from bayeslaw.holdout import Candidate
from bayeslaw.inputs import inputs_of
from bayeslaw.maps import MAPS
from bayeslaw.runs import validate
from bayeslaw.scores import Forecast, Scores
from bayeslaw.simulate import simulate
from bayeslaw.spec import Spec

ADDITIVE = {"E": 1.6, "A": 28.0, "B": 900.0, "alpha": 0.2, "beta": 0.37, "phi": 0.45}
QUICK = {"draws": 400, "tune": 300, "chains": 2}


def drawn(*, where=None, each):
    """Runs of the published design, a few of each cell, with losses from the additive law."""
    design = load_runs("isodepth", where=where).runs
    design = design[design.groupby(["recurrences", "budget"]).cumcount() < each].reset_index(drop=True)
    return validate(simulate(design, parameters=ADDITIVE, sigma=0.002, seed=1), source="simulated")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("default", {}),
        ("additive", {"law": "additive"}),
        ("coupled, bounded", {"law": "coupled", "map": "bounded"}),
        ("coupled, bounded, student", {"law": "coupled", "map": "bounded", "outliers": "student"}),
        ("coupled, power, cells", {"law": "coupled", "map": "power", "noise": "cells"}),
        (
            "additive, hill, student, deviation, drift",
            {"law": "additive", "map": "hill", "outliers": "student", "deviation": True, "drift": True},
        ),
        ("chinchilla", {"law": "chinchilla"}),
    ],
)
def test_a_name_says_all_settings(name, settings):
    assert settings_of(name) == settings
    assert name_of(settings) == name
    Spec.of(**settings)


def test_power_goes_without_saying_only_alone():
    assert name_of({"law": "coupled", "map": "power"}) == "coupled"
    assert name_of({"law": "coupled", "outliers": "student"}) == "coupled, power, student"
    assert Spec.of(**settings_of("coupled, power, student")) == Spec.of(law="coupled", map="power", outliers="student")


@pytest.mark.parametrize(
    ("name", "word"), [("linear", "linear"), ("coupled, powr", "powr"), ("default, hill", "default")]
)
def test_a_name_that_means_nothing(name, word):
    with pytest.raises(UsageError, match=word):
        settings_of(name)


def test_which_models_are_compared():
    assert list(default_models(looped=False)) == ["additive", "coupled", "default"]
    assert list(default_models(looped=True, recipes=True)) == ["additive", "coupled", "default"]
    assert {"coupled, hill, student", "coupled, power, student"} <= set(default_models(looped=True))
    assert list(chosen_models(["additive"], ["power", "hill"])) == ["additive", "additive, hill", "default"]
    assert list(chosen_models(["chinchilla", "coupled"], ["free"])) == ["chinchilla", "coupled, free", "default"]
    assert len(chosen_models(None, list(MAPS))) == 2 * len(MAPS) + 1
    with pytest.raises(UsageError, match="--maps powr"):
        chosen_models(None, ["powr"])
    with pytest.raises(UsageError, match="--laws linear"):
        chosen_models(["linear"], None)


def test_complexity_counts_what_is_free():
    table = load_runs("isodepth")
    counted = {
        name: complexity(Candidate.of(table, Spec.of(**settings_of(name))).structure)
        for name in (
            "additive", "coupled", "additive, none", "coupled, bounded", "coupled, free", "default",
            "coupled, power, cells", "chinchilla",
        )
    }  # fmt: skip
    # E, A, B, alpha, beta, phi and sigma; k; one for the spread of deviations; one for tau_cell; five for each r.
    assert counted == {
        "additive": 7, "coupled": 8, "additive, none": 6, "coupled, bounded": 9, "coupled, free": 10, "default": 9,
        "coupled, power, cells": 9, "chinchilla": 21,
    }  # fmt: skip
    recipes = Candidate.of(load_runs("isodepth-recipes"), Spec.of(law="additive")).structure
    assert complexity(recipes) == 10, "a phi for each of three recipes, and their spread"


@pytest.fixture(scope="module")
def grid():
    table = load_runs("isodepth")
    inputs = inputs_of(table.runs, injection_in="once")
    return inputs, levels_of(table, inputs)


def test_parts_of_the_published_grid(grid):
    inputs, level = grid
    splits, notes = splits_of(inputs, level)
    assert notes == ()
    counts = {kind: sum(split.kind == kind for split in splits) for kind in (CELL, BUDGET, FORWARD)}
    assert counts == {CELL: 24, BUDGET: 6, FORWARD: 3}
    for split in splits:
        assert not (split.trained & split.held).any()
        assert (split.trained | split.held).all()
        assert len(split.cells) == split.held.sum()
    for kind in (CELL, BUDGET):
        assert sum(split.held.astype(int) for split in splits if split.kind == kind).tolist() == [1] * 116
    (main,) = (split for split in splits if split.main)
    np.testing.assert_array_equal(main.held, level >= 4)
    assert main.trained_to == inputs.flops[level < 4].max()
    assert len(np.unique(main.cells)) == 8
    assert {split.kind for split in splits_of(inputs, level, leave=())[0]} == {FORWARD}


def test_no_model_is_asked_about_an_r_that_it_has_not_seen(grid):
    inputs, level = grid
    # r = 8 at the second budget only, r = 4 not below the fifth.
    kept = ((inputs.recurrences < 8) | (level == 1)) & ((inputs.recurrences != 4) | (level >= 4))
    part, lower = inputs.subset(kept), level[kept]
    splits, notes = splits_of(part, lower)
    held = [set(zip(part.recurrences[s.held].tolist(), lower[s.held].tolist(), strict=True)) for s in splits]
    assert {(8.0, 1)} not in held
    assert any("not left out" in note for note in notes)
    for split in splits:
        assert set(part.recurrences[split.held]) <= set(part.recurrences[split.trained])
    main = next(split for split in splits if split.main)
    assert set(part.recurrences[main.held]) == {1.0, 2.0}


def test_with_a_group_go_the_other_rows_of_its_training_runs(grid):
    inputs, level = grid
    index = inputs.run.index.copy()
    first, second = (np.flatnonzero((level == b) & (inputs.recurrences == 1))[0] for b in (0, 1))
    index[second] = index[first]
    joint = replace(inputs, run=replace(inputs.run, index=index))
    splits, _ = splits_of(joint, level, leave=[CELL])
    (one,) = (split for split in splits if split.kind == CELL and split.held[first])
    assert not one.trained[second]
    assert not one.held[second]


def test_too_few_budgets_or_runs_are_said(grid):
    inputs, level = grid
    low = level < 3
    splits, notes = splits_of(inputs.subset(low), level[low])
    assert FORWARD not in {split.kind for split in splits}
    assert any("4 budgets or more, and these have 3" in note for note in notes)
    splits, notes = splits_of(inputs, level, needed=int((level < 4).sum()) + 1)
    assert not any(split.main for split in splits)
    assert any("lower two thirds" in note for note in notes)


def test_budgets_are_the_aimed_ones_or_those_that_flops_show():
    table = load_runs("isodepth")
    inputs = inputs_of(table.runs, injection_in="once")
    bare = replace(table, runs=table.runs.drop(columns="budget"))
    np.testing.assert_array_equal(levels_of(table, inputs), levels_of(bare, inputs))
    assert levels_of(table, inputs).max() == 5


@pytest.fixture(scope="module")
def published():
    models = {name: settings_of(name) for name in ("additive", "coupled")}
    return compare_models(load_runs("isodepth"), models, leave=[BUDGET], **QUICK)


@pytest.mark.slow
def test_the_coupled_law_is_preferred_on_the_published_runs(published):
    """By every measure: it bends where the additive law does not."""
    assert published.preferred == "coupled"
    assert published.names == ("coupled", "additive")
    assert published.ranking.tied == ("coupled",)
    for kind in (BUDGET, FORWARD):
        assert published.differences(kind)["additive"].distinguished
        best, worst = (published.scores(name, kind) for name in published.names)
        assert best.rmse < worst.rmse
        assert best.crps < worst.crps
        assert best.log_density > worst.log_density
    assert published.scores("additive", FORWARD).cover90 < 0.6 < published.scores("coupled", FORWARD).cover90
    assert not any("disagree" in sentence for sentence in verdict(published))


def test_the_answer_for_json(published):
    answer = published.as_dict()
    first = answer["models"][0]
    assert {"name", "elpd", "elpd_diff", "se_diff", "weight", "forward"} <= set(first)
    assert set(first["forward"]) == {"rmse", "log_density", "crps", "cover50", "cover90"}
    assert [origin["runs"] for origin in first["by_origin"]] == [60, 36, 16]
    assert first["leave_cell"] is None
    assert first["leave_budget"]["runs"] == 116
    assert sum(model["weight"] for model in answer["models"]) == pytest.approx(1)
    assert answer["models"][1]["distinguished"]
    # The main forecast is one of the origins.
    told = {k: v for k, v in first["by_origin"][1].items() if k not in ("trained_to", "runs")}
    assert told == first["forward"]


@pytest.mark.slow
def test_the_simpler_law_wins_where_the_truth_is_simple():
    models = {n: settings_of(n) for n in ("additive", "coupled")}
    found = compare_models(drawn(each=4), models, leave=(), **QUICK)
    assert found.preferred == "additive"
    assert set(found.ranking.tied) == {"additive", "coupled"}
    assert any(s.startswith("Not distinguishable here") for s in verdict(found))


def test_models_without_runs_enough_are_left_out():
    models = {name: settings_of(name) for name in ("additive", "chinchilla")}
    few = drawn(where="budget in (1e18, 2.15e18)", each=2)
    found = compare_models(few, models, leave=(), **QUICK)
    assert found.names == ("additive",)
    assert any(note.startswith("chinchilla is left out: 16 runs for 21") for note in found.notes)
    assert found.main is None
    assert found.as_dict()["models"][0]["forward"] is None
    assert verdict(found)[0].startswith("additive is the only model")
    one = replace(few, runs=few.runs[:1])
    with pytest.raises(FitError, match="too few runs for any model"):
        compare_models(one, models, **QUICK)


def test_what_cannot_be_meant():
    table = load_runs("isodepth")
    with pytest.raises(UsageError, match="leave row"):
        compare_models(table, default_models(looped=True), leave=["row"])
    with pytest.raises(UsageError, match="no setting draw"):
        compare_models(table, default_models(looped=True), draw=3)
    with pytest.raises(UsageError, match="no model"):
        compare_models(table, {})


RUNS, CELLS = 40, np.repeat(np.arange(8), 5)
WAVE = np.tile([1.0, -1.0], RUNS // 2)


def invented(loo, ahead, *, passed=True, high=0, levels=3):
    """A comparison of models with these densities: of each run left out, and of each run forecast."""
    split = Split(
        kind=FORWARD, trained=np.zeros(RUNS, bool), held=np.ones(RUNS, bool), trained_to=1e19, cells=CELLS, main=True,
        levels=levels,
    )  # fmt: skip
    models = {}
    for place, name in enumerate(loo):
        forecast = Forecast(
            loss=np.full(RUNS, 2.5),
            draws=np.full((50, RUNS), 2.5),
            log_density=np.broadcast_to(ahead[name], RUNS) + 0.0,
        )
        k = np.full(RUNS, 0.2)
        k[:high] = 0.9
        measured = SimpleNamespace(elpd_i=np.asarray(loo[name], dtype=float), pareto_k=k)
        models[name] = Model(name=name, complexity=9 - place, passed=passed, loo=measured, forecasts=(forecast,))
    return Comparison(source="x", n_runs=RUNS, models=models, splits=(split,), notes=())


@pytest.fixture
def no_stacking(monkeypatch):
    """Weights need whole PSIS results, which invented models do not have."""
    import arviz_stats
    import pandas as pd

    monkeypatch.setattr(
        arviz_stats, "compare", lambda models, **_: pd.DataFrame({"weight": dict.fromkeys(models, 1 / len(models))})
    )


@pytest.mark.usefixtures("no_stacking")
def test_cells_that_win_between_the_runs_and_lose_beyond_them():
    found = invented(
        {"cells": 3.4 + 0.1 * WAVE, "smooth": np.full(RUNS, 3.0)}, {"cells": 2.0 + 0.2 * WAVE, "smooth": 3.0}
    )
    said = " ".join(verdict(found))
    assert found.preferred == "cells"
    assert "Interpolation and forecast disagree: cells" in said
    assert "take smooth; that rests on 40 runs at 3 budgets" in said
    assert "smooth does best by log density" in said
    assert "In the forecast worse, beyond the scatter between its cells: cells (-1.00" in said


@pytest.mark.usefixtures("no_stacking")
@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ({"levels": 1}, "That rests on 40 runs at 1 budget: too little"),
        ({"passed": False}, "stays open: smooth; and cells did not converge"),
    ],
)
def test_no_model_is_recommended_on_little(flaw, words):
    found = invented(
        {"cells": 3.4 + 0.1 * WAVE, "smooth": np.full(RUNS, 3.0)}, {"cells": 2.0 + 0.2 * WAVE, "smooth": 3.0}, **flaw
    )
    said = " ".join(verdict(found))
    assert "take smooth" not in said
    assert words in said


@pytest.mark.usefixtures("no_stacking")
def test_a_model_that_is_nearer_by_rmse_is_named():
    found = invented({"a": np.full(RUNS, 3.0), "b": 2.8 + 0.01 * WAVE}, {"a": 3.0, "b": 2.9})
    (worse,) = found.models["a"].forecasts
    nearer = replace(found.models["a"], forecasts=(replace(worse, draws=worse.draws + 0.01),))
    said = verdict(replace(found, models={**found.models, "a": nearer}))
    assert any("a does best by log density" in sentence for sentence in said)
    assert any(sentence.startswith("By RMSE") and "b does best: 0.0000" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("inside", "words"), [(40, "100 % of them: wider than needed (cautious)"), (36, "90 % of them"), (30, "too narrow")]
)
def test_intervals_that_hold_too_many_are_no_better(inside, words):
    scores = Scores(runs=40, rmse=0.01, log_density=3.0, crps=0.01, cover50=0.5, cover90=inside / 40)
    assert held_by_intervals(scores).endswith(words)


@pytest.mark.usefixtures("no_stacking")
def test_ties_are_called_ties():
    found = invented(
        {"rich": 3.01 + 0.1 * WAVE, "simple": np.full(RUNS, 3.0)}, {"rich": 3.0 + 0.1 * WAVE, "simple": 3.0}
    )
    said = verdict(found)
    assert said[0].startswith("Preferred: simple, the simplest of 2 models that these runs do not tell apart")
    assert said[1] == "Not distinguishable here: rich (the best); and simple (-0.4 ± 0.6)."
    assert any(s.startswith("In the forecast not distinguishable") for s in said)
    assert not any("worse" in s.lower() for s in said)


@pytest.mark.usefixtures("no_stacking")
def test_the_worse_and_doubtful_fits_are_named():
    found = invented({"a": np.full(RUNS, 3.0), "b": 2.8 + 0.01 * WAVE}, {"a": 3.0, "b": 3.0}, passed=False, high=3)
    said = " ".join(verdict(found))
    assert "Worse than a by more than 2 standard errors and 4 in all: b (-8.0 ± 0.1)" in said
    assert "Pareto k above 0.7): a 3; and b 3." in said
    assert "The sampler did not converge for a; and b" in said


@pytest.mark.usefixtures("no_stacking")
def test_maps_are_held_against_power():
    names = ("coupled, power, student", "coupled, hill, student", "additive", "additive, free")
    loo = dict(zip(names, (np.full(RUNS, 3.0), 3.1 + 0.1 * WAVE, np.full(RUNS, 2.0), 1.9 - 0.1 * WAVE), strict=True))
    said = " ".join(verdict(invented(loo, dict.fromkeys(names, 3.0))))
    assert "Maps against power, all else as in coupled, power, student, in elpd: hill +4.0 ± 0.6." in said
    assert "Maps against power, all else as in additive, in elpd: free -4.0 ± 0.6." in said


@pytest.mark.usefixtures("no_stacking")
def test_runs_that_miss_together_count_as_one():
    """The error of a forecast's difference is that of cell means, and few cells need more than two of them."""
    by_cell = np.array([0.3, -0.5, 0.1, -0.9, -0.2, 0.4, -0.7, -0.1])
    found = invented({"a": np.full(RUNS, 3.0), "b": np.full(RUNS, 2.9)}, {"a": 3.0, "b": 3.0 + by_cell[CELLS]})
    difference = found.differences(FORWARD)["b"]
    assert difference.mean == pytest.approx(by_cell.mean())
    assert difference.se == pytest.approx(by_cell.std(ddof=1) / np.sqrt(8))
    assert replace(difference, mean=-2.2 * difference.se).distinguished is False
    assert replace(difference, mean=-2.6 * difference.se).distinguished is True
    assert replace(difference, mean=-2.2 * difference.se, cells=500).distinguished is True
    assert replace(difference, cells=1, se=float("nan")).distinguished is False
