"""`bayeslaw compare`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bayeslaw import load_runs
from bayeslaw.cli import run
from bayeslaw.cli.compare import show
from bayeslaw.version import __version__

SCRIPT = "</script><script>alert(1)</script>"
PLAIN = ["recurrences", "n_once", "n_shared", "n_injection", "tokens", "loss"]
QUICK = ["--draws", "400", "--leave", "none"]


@pytest.fixture(scope="module")
def found():
    """Two models of the published runs, with long names."""
    from bayeslaw.compare.models import compare_models

    models = {"additive": {"law": "additive"}, "coupled, bounded, student": {"law": "coupled"}}
    table = load_runs("isodepth", where="budget >= 2e18")
    return compare_models(table, models, leave=["budget"], draws=400, tune=300, chains=2)


def test_json_page_and_progress(tmp_path, capsys):
    page = tmp_path / "new" / "page.html"
    where = ["--where", "budget >= 2e18"]
    assert run(["compare", "isodepth", *where, "--laws", "additive", *QUICK, "--json", "--out", str(page)]) == 0
    caught = capsys.readouterr()
    answer = json.loads(caught.out)
    assert {"models", "preferred", "verdict", "recipes"} <= set(answer)
    assert answer["recipes"] == {}
    assert answer["preferred"] == "default"
    assert [model["name"] for model in answer["models"]] == ["default", "additive"]
    for model in answer["models"]:
        assert {"name", "elpd", "elpd_diff", "se_diff", "weight"} <= set(model)
        assert set(model["forward"]) == {"rmse", "log_density", "crps", "cover50", "cover90"}
        assert model["leave_cell"] is None
    assert answer["models"][0]["forward"]["log_density"] > answer["models"][1]["forward"]["log_density"]
    assert "additive (1 of 2): sampling" in caught.err
    assert f"wrote {page}" in caught.err
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert "default is preferred" in html
    for text in (
        "How this was made",
        "bayeslaw compare isodepth --laws additive --where",
        "--seed 0",
        answer["data_hash"],
        __version__,
    ):
        assert text in html


def test_tables_fit_a_terminal(found, capsys):
    show(found)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert next(line for line in lines if line.startswith("model ")).split() == [
        "model", "elpd", "diff", "se", "weight", "free", "high", "k",
    ]  # fmt: skip
    assert sum(line.startswith("coupled, bounded, student  ") for line in lines) == 3
    assert any(line.startswith("Preferred: coupled, bounded, student") for line in lines)


@pytest.fixture(scope="module")
def recipes():
    """A comparison of one recipe with the baseline, invented."""
    from bayeslaw.compare.matched import Estimate, MatchedGain
    from bayeslaw.compare.recipes import RecipeComparison, Under

    one = Estimate(mean=-0.04, se=0.002, q05=-0.044, q95=-0.036, p_lower=1.0, pairs=9, cells=3)
    single = Estimate(mean=-0.03, se=float("nan"), q05=float("nan"), q95=float("nan"), p_lower=1.0, pairs=1, cells=1)
    gains = [
        MatchedGain(
            recipe=f"lanes {SCRIPT}", anchor="baseline", matching=matching, overall=one, trend=None, tokens_ratio=1.0,
            by_recurrences={2.0: one, 4.0: single}, unmatched=0,
        )
        for matching in ("budget", "tokens")
    ]  # fmt: skip
    told = {"mean": 0.2, "q05": 0.1, "q95": 0.3}
    names = ("baseline", f"lanes {SCRIPT}")
    under = Under(
        structure="default", cells=False, converged=True, phi=dict.fromkeys(names, told),
        log_worth={name: {"2": told} for name in names}, phi_difference={names[1]: {**told, "p_gt_0": 0.99}},
        log_worth_difference={names[1]: {"2": {**told, "p_gt_0": 0.99}}},
    )  # fmt: skip
    return RecipeComparison(
        anchor="baseline", recipes=names[1:], matched=tuple(gains), structures=(under,), standings={},
        trained_to=dict.fromkeys(names, 1e19), notes=(),
    )  # fmt: skip


def test_tables_of_recipes_fit_too(found, recipes, capsys):
    show(found, recipes)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Matched runs of lanes" in " ".join(lines)


def test_the_first_column_of_a_wide_table_becomes_headings(capsys):
    from bayeslaw.cli.compare import titled

    rows = [("first " * 6, "a", "1" * 40), ("", "b", "2"), ("second", "c", "3")]
    titled("of what", ("group", "row", "value"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["row", "first", "a", "b", "second", "c"]
    assert lines[1].startswith("  row")
    assert max(map(len, lines)) <= 80
    titled("of what", ("group", "row", "value"), [("short", "a", "1")])
    assert capsys.readouterr().out.splitlines()[1:] == ["group  row  value", "short    a      1", ""]


def test_the_page_is_whole_and_harmless(found, recipes):
    from bayeslaw.compare.matched import MATCHINGS
    from reports.comparison import comparison_page, make_cards

    html = comparison_page(found, recipes, doubts=["no vocabulary"], title=f"Mine {SCRIPT}")
    assert SCRIPT not in html
    assert "No vocabulary" in html
    assert recipes.sentences[0].split("<")[0] in html
    cards = {card.name: card for card in make_cards(found, recipes)}
    assert list(cards) == ["matched-1", "recurrence-2", "recurrence-3", "loo", "forward", "groups"]
    assert [trace.name for trace in cards["matched-1"].figure.data] == [f"same {what}" for what in MATCHINGS.values()]
    assert list(cards["matched-1"].figure.data[0].x) == [-0.04, -0.04, -0.03]
    assert list(cards["matched-1"].figure.data[0].error_x.array) == pytest.approx([0.004, 0.004, 0])
    assert list(cards["recurrence-3"].figure.data[0].x) == [0.2]
    assert [cards[name].takeaway for name in list(cards)[:3]] == list(recipes.sentences)[:3]
    assert {name: card.failure for name, card in cards.items()} == dict.fromkeys(cards)
    head = html.split("<nav")[0]
    assert head.count('<p class="finding">') <= 4
    assert "Preferred: " in head
    assert "itself goes from" not in head
    for name in ("loo", "forward", "groups"):
        card = cards[name]
        assert {row[0] for row in card.table.rows} == set(found.names)
        assert card.takeaway
        assert card.how_to_read
        axes = [*card.figure.select_xaxes(), *card.figure.select_yaxes()]
        assert all(axis.title.text for axis in axes)
    points = cards["loo"].figure.data[0]
    assert list(points.y) == list(found.names)
    assert list(points.x) == found.ranking.table["elpd_diff"].tolist()
    # Without budgets enough the forecast says why, and takes nothing else down.
    few = replace(found, splits=(), models={k: replace(m, forecasts=()) for k, m in found.models.items()})
    cards = {card.name: card for card in make_cards(replace(few, notes=("no forward chaining: too few budgets",)))}
    assert list(cards) == ["loo", "forward"]
    assert "too few budgets" in cards["forward"].failure
    assert cards["loo"].failure is None


def test_recipes_lead_where_there_are_several(found, recipes, monkeypatch, tmp_path, capsys):
    """The join, the models for recipes, and what is handed on."""
    asked = {}

    def compare_recipes(table, *, flops, **settings):
        asked.update(flops=flops, recipes=set(table.runs["recipe"]), convention=settings["injection_in"])
        return recipes

    def compare_models(table, models, **settings):
        asked.update(models=list(models), **settings)
        return found

    monkeypatch.setattr("bayeslaw.compare.recipes.compare_recipes", compare_recipes)
    monkeypatch.setattr("bayeslaw.compare.models.compare_models", compare_models)
    mine = tmp_path / "mine.csv"
    load_runs("isodepth-recipes", where="recipe == 'hyperconnections'").runs[PLAIN].to_csv(mine, index=False)
    command = ["compare", str(mine), "--against", "isodepth", "--flops", "1e19", "--json"]
    assert run(command) == 0
    caught = capsys.readouterr()
    answer = json.loads(caught.out)
    assert answer["recipes"]["anchor"] == "baseline"
    assert asked["flops"] == 1e19
    assert asked["convention"] == "once"
    assert asked["recipes"] == {"baseline", "mine"}
    assert asked["models"] == ["additive", "coupled", "default"]
    assert list(asked["leave"]) == []
    assert len(answer["doubts"]) == 3
    assert "warning: " in caught.err
    assert "'mine' here" in caught.err
    assert run([*command[:-3], "--leave", "cell", "--maps", "power,bounded"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("matched runs: loss of lanes")
    assert "Matched runs of lanes" in out
    assert list(asked["leave"]) == ["cell"]
    assert asked["models"] == ["additive", "additive, bounded", "coupled", "coupled, bounded", "default"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--laws", "linear"], ("--laws linear", "additive, coupled, chinchilla")),
        (["--maps", "power,powr"], ("--maps powr", "bounded")),
        (["--flops", "-1e19"], ("--flops -1e+19", "above 0")),
        (["--flops", "nan"], ("--flops nan",)),
        (["--flops", "1e19"], ("one recipe", "--against")),
        (["--leave", "row"], ("--leave row", "cell, budget")),
        (["--leave", "none,cell"], ("--leave none,cell",)),
        (["--out", "page.nc"], ("page.html",)),
        (["--draws", "10"], ("draws = 10",)),
        (["--recipe", "mine"], ("no recipe 'mine'",)),
    ],
)
def test_what_cannot_be_meant(flags, words, capsys):
    assert run(["compare", "isodepth", *flags]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert "sampling" not in caught.err
    for word in words:
        assert word in caught.err


def test_help_names_every_group_that_is_allowed(capsys, found, monkeypatch):
    assert run(["compare", "--help"]) == 0
    helped = " ".join(capsys.readouterr().out.replace("│", " ").split())
    asked = []
    monkeypatch.setattr(
        "bayeslaw.compare.models.compare_models", lambda *_, leave, **__: asked.append(tuple(leave)) or found
    )
    assert run(["compare", "isodepth", "--leave", "row"]) == 2
    assert "cell, budget, both, or none" in capsys.readouterr().err
    assert "budget, both, or none" in helped
    for leave, groups in (("both", ("cell", "budget")), ("none", ()), ("cell,budget", ("cell", "budget"))):
        assert run(["compare", "isodepth", "--leave", leave, "--json"]) == 0
        assert asked[-1] == groups


def test_recipes_without_a_baseline_are_said(found, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("bayeslaw.compare.models.compare_models", lambda *_, **__: found)
    table = tmp_path / "others.csv"
    runs = load_runs("isodepth-recipes", where="recurrences > 1 and recipe != 'baseline'").runs
    runs[[*PLAIN, "recipe"]].to_csv(table, index=False)
    assert run(["compare", str(table), "--json"]) == 0
    caught = capsys.readouterr()
    assert json.loads(caught.out)["recipes"] == {}
    assert "none of the recipes is called 'baseline'" in caught.err


def test_tables_that_cannot_be_compared(tmp_path, capsys):
    one = tmp_path / "one.csv"
    load_runs("isodepth").runs[PLAIN][:1].to_csv(one, index=False)
    assert run(["compare", str(one)]) == 1
    assert "too few runs for any model" in capsys.readouterr().err
    empty = tmp_path / "empty.csv"
    empty.write_text(",".join(PLAIN) + "\n")
    assert run(["compare", str(empty)]) == 1
    assert "no rows" in capsys.readouterr().err
    assert run(["compare", "isodepth", "--against", "isodepth"]) == 4
    assert "nothing to compare" in capsys.readouterr().err
    assert run(["compare", "isodepth", "--where", "budget > 1e30"]) == 4
    assert run(["compare", str(one), "--out", str(one)]) == 2
    (tmp_path / "file").write_text("in the way")
    assert run(["compare", "isodepth", "--out", str(tmp_path / "file" / "page.html")]) == 1
    assert "sampling" not in capsys.readouterr().err
