"""Reports of every law, map, noise and sharing say what that fit tells, and no more."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from bayeslaw.datasets import load_dataset
from bayeslaw.laws import MAPS
from bayeslaw.worth import elasticity, worth
from reports import text
from reports.build import make_report
from reports.record import sharing
from reports.study import Study
from reports.verdict import verdict
from reports.worth import ASSUMPTIONS
from reports.worth import worth as worth_body

MEASURING = [name for name in MAPS if name not in ("power", *ASSUMPTIONS)]


def read(sentences):
    return " ".join(sentences).replace(text.GAP, " ")


def whole(fit, **options):
    """The report, none of whose cards failed, and its cards by name."""
    report = make_report(fit, **options)
    assert {card.name: card.failure for card in report.cards if card.failure} == {}
    return report, {card.name: card for card in report.cards}


def rows(card):
    return dict(card.table.rows)


@pytest.fixture(scope="module")
def coupled(quick):
    return quick("isodepth", law="coupled", map="bounded", noise="cells")


@pytest.fixture(scope="module")
def chinchilla(quick):
    return quick("isodepth", law="chinchilla")


@pytest.fixture(scope="module")
def plain_chinchilla(plain_fit, changed):
    """The plain fit as its only architecture's own law."""
    core = {
        name: (lambda data, name=name: data[name].expand_dims(architecture=["baseline/r=1"], axis=-1))
        for name in ("E", "size", "data", "A", "B", "alpha", "beta")
    }
    return changed(plain_fit, ["phi"], {"law": "chinchilla"}, **core)


def test_a_coupled_bounded_fit_with_cells(coupled):
    report, cards = whole(coupled)
    said = read(report.verdict.findings)
    eight = worth(coupled)[8.0]
    assert said.startswith("Up to r = 8, a recurrence is worth less than a unique block: a block run 8 times is worth")
    assert f"is worth {eight.mean():.2f} (90 % {np.quantile(eight, 0.05):.2f} to" in said
    assert "P(exponent < 1) > 0.9" in said
    assert "P(exponent > 0)" not in said
    assert "That it is worth something is the bounded map's own assumption." in said
    table = cards["worth"].table
    assert [row[0] for row in table.rows] == ["2", "4", "8"]
    assert table.header[1:4] == ("g(r), unique blocks", "log g / log r", "d log g / d log r")
    growth = elasticity(coupled)[4.0]
    assert table.rows[1][3] == text.mean_and_range(growth, "")
    record = rows(cards["record"])
    assert record["law"].endswith(coupled.law.equation)
    assert record["recurrence map"].startswith("bounded")
    assert "tau_cell" in record["noise"]
    assert record["parameters"] == "E, A, B, alpha, beta, k, gain, scale shared by all runs"
    for name in ("k", "gain", "scale", "tau"):
        assert coupled.attrs["priors"][name]["reason"][1:] in record[f"prior of {name}"]
    for name in ("phi", "half", "slope", "spread", "sigma_slope"):
        assert f"prior of {name}" not in record


def test_laws_for_each_architecture(chinchilla):
    report, cards = whole(chinchilla)
    assert "assumes nothing about recurrences and gives no worth of one" in read(report.verdict.findings)
    assert "phi" not in read((*report.verdict.findings, *report.verdict.doubts))
    assert "<h1>The loss law: isodepth</h1>" in report.html
    assert [row[0] for row in cards["worth"].table.rows] == [f"baseline/r={r}" for r in (1, 2, 4, 8)]
    assert rows(cards["record"])["parameters"] == "E, A, B, alpha, beta separate by architecture"
    assert "recurrence map" not in rows(cards["record"])
    assert any(row[0] == "E[baseline/r=8]" for row in cards["diagnostics"].table.rows)
    # The curves of a panel are its own architecture's.
    study = Study(fit=chinchilla)
    own = study.thinned.draws("baseline", recurrences=8)
    curve = next(
        trace
        for trace in cards["iso-flop"].figure.data
        if trace.xaxis == "x4" and trace.mode == "lines" and trace.line.width == 2
    )
    assert (curve.y > own["E"].mean()).all()
    assert "lie within 0.00" in cards["iso-flop"].takeaway


def test_a_plain_law_of_plain_runs(plain_chinchilla):
    report, cards = whole(plain_chinchilla, flops_rule="6nd")
    sentence = "No run repeats a block (r = 1 throughout): this is a plain law of N and D"
    assert sentence in read(report.verdict.findings)
    assert cards["worth"].takeaway.startswith(sentence)
    assert not any("prior's" in doubt for doubt in report.verdict.doubts)
    assert [row[0] for row in cards["worth"].table.rows] == ["baseline/r=1"]


def test_the_published_split_reaches_every_card(quick):
    runs = load_dataset("isodepth")
    fit = quick(runs[runs["budget"] <= 1e18], injection_in="regression")
    report, cards = whole(fit)
    assert "phi = 0." in read(report.verdict.findings)
    assert "line of N over 1 / r" in rows(cards["record"])["injection"]
    assert "lie within 0.00" in cards["iso-flop"].takeaway


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_maps_that_measure_nothing_say_what_they_assume(with_map, name):
    fit = with_map(name)
    study = Study(fit=fit)
    findings = read(verdict(study).findings)
    assert findings.startswith("This fit does not measure what a recurrence is worth")
    assert f"“{name}” assumes that {ASSUMPTIONS[name]} ({fit.law.map.equation})" in findings
    assert worth_body(study).takeaway == findings
    assert worth_body(study).figure is None


def test_a_map_without_parameters_has_all_other_cards(with_map):
    report, cards = whole(with_map("none"))
    assert "phi" not in read((*report.verdict.findings, *report.verdict.doubts, cards["record"].takeaway))
    assert "prior of phi" not in rows(cards["record"])


@pytest.mark.parametrize("name", MEASURING)
def test_maps_are_judged_by_their_average_exponent(with_map, name):
    fit = with_map(name)
    study = Study(fit=fit)
    exponent = np.log(worth(fit)[8.0]) / np.log(8)
    said = read(verdict(study).findings)
    assert said.startswith("Up to r = 8, a recurrence is worth ")
    assert read([f"an average exponent of {text.mean_and_range(exponent, '90 % interval ')}"]) in said
    assert ("map's own assumption" in said) == (name != "free")
    assert ("P(exponent > 0) > 0.999" in said) == (name == "free")
    body = worth_body(study)
    assert [row[0] for row in body.table.rows] == ["2", "4", "8"]
    points = next(trace for trace in body.figure.data if trace.mode == "markers")
    assert points.x.tolist() == [2, 4, 8]
    assert points.y == pytest.approx([np.median(draws) for draws in worth(fit).values()])


def test_an_r_that_says_otherwise_is_named(with_map):
    said = read(verdict(Study(fit=with_map("free", phi_2=lambda data: data["phi"] - 0.8))).findings)
    assert said.startswith("Up to r = 8, a recurrence is worth something, but less than a unique block")
    assert "Up to r = 2 it is otherwise: a recurrence is worth nothing, or does harm" in said


def test_an_exponent_that_is_the_prior_again_is_called_not_identified(isodepth_fit, with_map):
    prior = isodepth_fit.data["prior"]["phi"].values.ravel()

    def drawn(data):
        many = np.random.default_rng(0).choice(prior, data["phi"].size)
        return data["phi"].copy(data=many.reshape(data["phi"].shape))

    said = verdict(Study(fit=with_map("free", phi_8=drawn)))
    assert "The data do not identify the average exponent of a recurrence" in said.doubts[0]
    assert read(said.findings).startswith("What a recurrence is worth is not known from these runs")
    assert read(said.findings).endswith("hardly more than the prior.")


def test_a_worth_that_all_recipes_share_is_told_once(hostile_fit, changed):
    fit = changed(
        hostile_fit, spec={"pooling": {"phi": "shared"}}, phi=lambda data: data["phi"].isel(recipe=0, drop=True)
    )
    study = Study(fit=fit)
    assert [row[0] for row in worth_body(study).table.rows] == ["all recipes"]
    assert read(verdict(study).findings).count("phi = ") == 1
    assert sharing(fit) == ["E, A, B, alpha, beta, phi shared by all runs"]


def test_recipes_with_laws_of_their_own_have_runs_of_their_own(hostile_fit, changed):
    other = hostile_fit.recipes[1]
    runs = hostile_fit.runs
    assert Study(fit=hostile_fit).rows_of(other).sum() == ((runs["recipe"] == other) | (runs["recurrences"] == 1)).sum()
    apart = changed(
        hostile_fit, spec={"pooling": {"E": "separate"}},
        E=lambda data: data["E"] * xr.ones_like(data["recipe"], dtype=float),
    )  # fmt: skip
    assert Study(fit=apart).rows_of(other).tolist() == (runs["recipe"] == other).tolist()
    assert sharing(apart)[:2] == ["E separate by recipe", "A, B, alpha, beta shared by all runs"]
    assert sharing(apart)[2] == "phi partially pooled by recipe"


def by(factor, levels):
    """A function that spreads E over the levels of a factor."""
    return lambda data: data["E"].expand_dims({factor: levels}, axis=-1) * np.linspace(1, 1.1, len(levels))


def test_recurrences_are_told_of_where_a_recipe_has_several_sources(isodepth_fit, changed):
    fit = changed(isodepth_fit, spec={"pooling": {"E": "separate:source"}}, E=by("source", ["isodepth", "other"]))
    fit = replace(fit, runs=fit.runs.assign(source=np.where(fit.runs.index % 2, "isodepth", "other")))
    report = make_report(fit)
    assert read(report.verdict.findings).startswith("A recurrence is worth something, but less than a unique block")
    assert "No recommendation: parameters of this fit differ by source" in read(report.verdict.advice)
    assert {card.name for card in report.cards if card.failure} == {"iso-flop", "frontier"}


def test_a_phi_of_each_architecture_is_that_of_its_r(isodepth_fit, changed):
    levels = [f"baseline/r={r}" for r in (1, 2, 4, 8)]
    fit = changed(
        isodepth_fit, spec={"pooling": {"phi": "separate:architecture"}},
        phi=lambda data: data["phi"].isel(recipe=0, drop=True).expand_dims(architecture=levels, axis=-1)
        + xr.DataArray([0.5, 0, 0.1, 0.2], dims="architecture"),
    )  # fmt: skip
    blocks = Study(fit=fit).worths["baseline"].blocks
    phi = isodepth_fit.draws()["phi"]
    for r, more in ((2.0, 0), (4.0, 0.1), (8.0, 0.2)):
        assert blocks[r] == pytest.approx(r ** (phi + more))
    assert make_report(fit).cards[0].failure is None


@pytest.mark.slow
def test_free_exponents_of_three_recipes(quick):
    fit = quick("isodepth-recipes", map="free")
    report, cards = whole(fit)
    assert len(cards["worth"].table.rows) == 9
    assert "Up to r = 2 it is otherwise" in read(report.verdict.findings)
    assert "phi_2, phi_4, phi_8 partially pooled by recipe" in rows(cards["record"])["parameters"]
    assert "prior of spread" in rows(cards["record"])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"map": "none"}, {"map": "unrolled"}, {"map": "hill", "error_scale": "compute"}])
def test_further_settings_make_whole_reports(quick, settings):
    fit = quick("isodepth", **settings)
    _, cards = whole(fit)
    assert ("prior of sigma_slope" in rows(cards["record"])) == ("error_scale" in settings)


@pytest.mark.slow
def test_architectures_of_several_recipes_and_plain_runs(quick, plain_table):
    _, cards = whole(quick("isodepth-recipes", law="chinchilla"))
    assert len(cards["worth"].table.rows) == 10
    whole(quick(plain_table, law="chinchilla"), flops_rule="6nd")
