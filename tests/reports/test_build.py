"""The page: whole, offline, safe, and standing when one of its cards falls."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from bayeslaw import spec
from bayeslaw.allocate import allocate
from bayeslaw.errors import BayeslawError, UsageError
from bayeslaw.laws import MAPS
from bayeslaw.predict import law_loss
from bayeslaw.priors import Priors
from bayeslaw.schema import INJECTION_IN
from reports import cards, figures, record, worth
from reports.build import build_report, make_cards, make_report, write_report
from reports.study import Study

NAMES = ["worth", "iso-flop", "frontier", "criticism", "runs", "diagnostics", "record"]


@pytest.fixture(scope="module")
def isodepth_report(isodepth_fit):
    return make_report(isodepth_fit)


@pytest.fixture(scope="module")
def hostile_report(hostile_fit):
    return make_report(hostile_fit)


def failures(report):
    return {card.name: card.failure for card in report.cards if card.failure is not None}


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', html).group(1))


def test_every_card_is_there_and_none_failed(isodepth_report, read_page):
    page = read_page(isodepth_report.html)
    assert [card.name for card in isodepth_report.cards] == NAMES
    assert failures(isodepth_report) == {}
    for card in isodepth_report.cards:
        assert card.name in page.ids
        assert card.title in page.texts
        assert card.takeaway in page.texts
        assert card.how_to_read in page.texts
    for sentence in isodepth_report.verdict.findings + isodepth_report.verdict.advice:
        assert sentence in page.texts
    assert list(embedded(isodepth_report.html)) == ["worth", "iso-flop", "frontier"]


def test_several_recipes_have_decision_cards_of_their_own(hostile_report):
    assert [card.name for card in hostile_report.cards] == [
        "worth", "iso-flop-1", "iso-flop-2", "frontier-1", "frontier-2", "criticism", "runs", "diagnostics", "record",
    ]  # fmt: skip
    assert failures(hostile_report) == {}


def test_the_page_asks_nothing_of_the_network(isodepth_report, read_page):
    html = isodepth_report.html
    page = read_page(html)
    assert page.addresses
    assert all(address.startswith("#") for address in page.addresses)
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html
    assert len(html) < 8_000_000


def test_names_with_html_are_shown_as_text(hostile_report, hostile_fit, read_page):
    html = hostile_report.html
    page = read_page(html)
    assert page.tags.count("script") == 3  # the figures, plotly.js and the page's own
    assert "img" not in page.tags
    assert page.handlers == []
    for name in hostile_fit.runs["run_id"]:
        assert name in page.texts
    assert "<img" not in html[html.index("</head>") : html.index('id="figures"')]
    # plotly reads texts as HTML: what reaches it is escaped already.
    drawn = json.dumps(embedded(html))
    assert "&lt;img src=x onerror=alert(1)&gt;" in drawn
    assert "<img" not in drawn
    assert "</script>" not in drawn


def test_a_card_that_fails_leaves_the_rest_standing(isodepth_fit, monkeypatch, read_page):
    def broken(*arguments, **keywords):
        raise RuntimeError("<b>no pencil</b>")

    monkeypatch.setattr(figures, "phi", broken)
    report = make_report(isodepth_fit)
    page = read_page(report.html)
    assert failures(report) == {"worth": "RuntimeError: <b>no pencil</b>"}
    assert "RuntimeError: <b>no pencil</b>" in page.texts
    assert list(embedded(report.html)) == ["iso-flop", "frontier"]


def test_a_plain_table_says_what_its_decisions_need(plain_fit):
    report = make_report(plain_fit)
    assert set(failures(report)) == {"iso-flop", "frontier"}
    for reason in failures(report).values():
        assert "--family isodepth" in reason
        assert "--flops-rule 6nd" in reason


def test_a_plain_table_has_decisions_under_6nd(plain_fit):
    report = make_report(plain_fit, flops_rule="6nd")
    assert failures(report) == {}
    frontier = next(card for card in report.cards if card.name == "frontier")
    assert [row[0] for row in frontier.table.rows] == ["r = 1"]


def test_a_plain_table_has_decisions_in_a_named_family(plain_fit):
    report = make_report(plain_fit, family="isodepth")
    assert failures(report) == {}
    assert "record no FLOPs" in report.cards[1].takeaway


def test_looped_runs_under_6nd_are_refused_by_the_card(isodepth_fit):
    assert "use --family for looped models" in failures(make_report(isodepth_fit, flops_rule="6nd"))["frontier"]


@pytest.mark.parametrize(
    "options", [{"family": "nanogpt"}, {"flops_rule": "8nd"}, {"family": "isodepth", "flops_rule": "6nd"}]
)
def test_options_that_there_are_not_are_usage_errors(plain_fit, options):
    with pytest.raises(UsageError):
        build_report(plain_fit, **options)


def test_iso_flop_curves_are_the_law(isodepth_fit):
    study = Study(fit=isodepth_fit)
    figure = make_cards(study)[1].figure
    runs = isodepth_fit.runs
    run = runs[(runs["recurrences"] == 4) & (runs["budget"] == 1e19)].iloc[2]
    curve = next(
        trace for trace in figure.data
        if trace.mode == "lines" and trace.name == "1e+19" and trace.xaxis == "x3" and trace.line.width == 2
    )  # fmt: skip
    law = law_loss(
        isodepth_fit.law, study.thinned.draws(), float(run["n_once"] + run["n_injection"]), float(run["n_shared"]), 4,
        1e19 / run["flops_per_token"],
    ).mean()  # fmt: skip
    assert np.interp(np.log(run["n_unique"]), np.log(curve.x), curve.y) == pytest.approx(law, abs=2e-4)


def test_frontier_agrees_with_allocate(isodepth_fit, isodepth_report):
    figure = isodepth_report.cards[2].figure
    best = allocate(isodepth_fit, flops=float(isodepth_fit.runs["flops"].max()))
    curves = [trace for trace in figure.data if trace.mode == "lines+markers" and trace.yaxis == "y"]
    for option, curve in zip(best.options, curves, strict=True):
        place = int(np.argmin(np.abs(np.log(curve.x / best.flops))))
        assert curve.x[place] == pytest.approx(best.flops)
        assert curve.y[place] == pytest.approx(np.median(option.optimum.n_unique), rel=0.02)
    assert figure.data[0].x.max() == pytest.approx(10 * best.flops)


def test_every_axis_says_what_it_measures(isodepth_report):
    units = ("parameters", "tokens", "FLOPs", "nats/token", "phi", "recurrences", "unique blocks")
    for card in isodepth_report.cards:
        if card.figure is not None:
            axes = [*card.figure.select_xaxes(), *card.figure.select_yaxes()]
            assert all(any(unit in axis.title.text for unit in units) for axis in axes)


def test_a_long_run_table_is_cut_and_says_so(isodepth_fit):
    runs = isodepth_fit.runs.loc[isodepth_fit.runs.index.repeat(6)]
    table = cards.runs(Study(fit=dataclasses.replace(isodepth_fit, runs=runs))).table
    assert len(table.rows) == cards.MOST_RUNS
    assert table.note == f"The first 500 of {len(runs)} runs; the fit file holds all."


def test_a_single_run_makes_a_report(isodepth_fit):
    report = make_report(dataclasses.replace(isodepth_fit, runs=isodepth_fit.runs.iloc[[40]]))
    assert failures(report) == {}


def test_the_record_names_source_priors_and_what_was_left_out(isodepth_fit):
    tree = isodepth_fit.data.copy()
    attrs = isodepth_fit.attrs
    attrs["excluded"] = [{"run_id": "lost", "reason": "diverged"}]
    attrs["notes"] = ["two rows are replicates"]
    attrs["priors"]["phi"] |= {"sd": 0.1, "reason": "a reason of our own"}
    tree.attrs["record"] = json.dumps(attrs)
    rows = dict(record.record(Study(fit=dataclasses.replace(isodepth_fit, data=tree))).table.rows)
    assert rows["source"] == "isodepth"
    assert rows["data hash"] == attrs["data_hash"]
    assert rows["excluded: lost"] == "diverged"
    assert rows["note"] == "two rows are replicates"
    assert "published fits" in rows["prior of E"].lower()
    assert "A reason of our own" in rows["prior of phi"]
    for absent in ("k", "gain", "spread", "tau", "sigma_slope"):
        assert f"prior of {absent}" not in rows
    assert rows["prior of sigma"].startswith("scale of the errors of log loss: half-normal, scale 0.05. ")
    assert rows["law"].endswith(isodepth_fit.law.equation)
    assert rows["parameters"] == "E, A, B, alpha, beta, phi shared by all runs"


def test_the_record_has_words_for_all_that_a_fit_can_be():
    assert set(record.LAWS) == set(spec.LAWS)
    assert set(record.MAPS) == set(MAPS)
    assert set(record.NOISES) == set(spec.NOISES)
    assert set(record.OUTLIERS) == set(spec.OUTLIERS)
    assert set(record.ERROR_SCALES) == set(spec.ERROR_SCALES)
    assert set(record.POOLINGS) == set(spec.POOLINGS)
    assert set(record.CONVENTIONS) == set(INJECTION_IN)
    assert set(record.PRIOR_MEANING) == {field.name for field in dataclasses.fields(Priors)} - {"name"}
    assert set(worth.ASSUMPTIONS) == {name for name, kind in MAPS.items() if not kind((2.0,)).parameters}


def test_a_report_is_written_whole(isodepth_fit, tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    report = write_report(isodepth_fit, path, title="Our <loops>")
    assert path.read_text(encoding="utf-8") == report.html
    assert "<h1>Our &lt;loops&gt;</h1>" in report.html

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("reports.build.os.replace", full)
    with pytest.raises(BayeslawError, match="No space left"):
        write_report(isodepth_fit, path, title="another")
    assert path.read_text(encoding="utf-8") == report.html
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_an_unwritable_path_is_named(isodepth_fit, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BayeslawError) as raised:
        write_report(isodepth_fit, tmp_path / "file" / "report.html")
    assert raised.value.exit_code == 1
    assert str(tmp_path / "file" / "report.html") in str(raised.value)


def test_reports_know_nothing_of_trainer_and_command_line():
    code = (
        "import sys, reports.build; "
        "print([name for name in sys.modules if name.split('.')[0] in ('trainer', 'models', 'torch') "
        "or name.startswith('bayeslaw.cli')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
