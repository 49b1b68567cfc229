"""The page of `bayeslaw check`, and its card in the ordinary report."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from bayeslaw.checks.cards import CheckCard
from bayeslaw.checks.criticism import criticise
from bayeslaw.checks.structures import Row, structures_card
from bayeslaw.version import __version__
from reports import checks
from reports.build import make_report
from reports.criticism import make_cards, write_criticism


@pytest.fixture(scope="module")
def found(isodepth_fit):
    return criticise(isodepth_fit, refit=False)


@pytest.fixture(scope="module")
def html(isodepth_fit, found, tmp_path_factory):
    path = tmp_path_factory.mktemp("check") / "check.html"
    write_criticism(isodepth_fit, found, path)
    return path.read_text(encoding="utf-8")


def test_every_check_has_its_card_its_figure_and_what_to_do(found, html, read_page):
    page = read_page(html)
    shown = " ".join(page.texts)
    for card in found.cards:
        assert card.name in page.ids
        assert card.title in page.texts
        if card.warns:
            assert card.advice[1:] in shown
    drawn = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', html).group(1))
    assert set(drawn) == {card.name for card in found.cards if card.verdict != "not applicable"}
    assert found.headline in page.texts
    assert "default-src 'none'" in html


def test_warnings_stand_first_and_what_cannot_be_asked_last(found):
    made = make_cards(found)
    warned = {card.name for card in found.cards if card.warns}
    names = [card.name for card in made]
    assert set(names[: len(warned)]) == warned
    assert names[-1] == "drift"
    assert made[0].takeaway.startswith("Warning.")
    assert made[-1].takeaway.startswith("Not asked of this fit")
    assert all(card.failure is None for card in made)


def test_only_what_is_drawn_has_a_caption(found):
    for card in make_cards(found):
        assert bool(card.how_to_read) == (card.figure is not None), card.name


def test_the_page_ends_with_how_it_was_made(isodepth_fit, html):
    made = html[html.index('id="made"') :]
    for told in (isodepth_fit.attrs["data_hash"], __version__, "none (--structures off)", "116 fitted"):
        assert told in made


def test_a_check_that_failed_is_shown_as_failed(found):
    broken = CheckCard(name="optimum", title="Best size", verdict="failed", reading="ValueError: no way")
    made = make_cards(replace(found, cards=(broken,)))
    assert "no way" in made[0].failure


def test_names_of_recipes_are_shown_as_text(hostile_fit, tmp_path):
    found = criticise(hostile_fit, refit=False)
    path = tmp_path / "check.html"
    cards = write_criticism(hostile_fit, found, path)
    assert {card.name: card.failure for card in cards if card.failure is not None} == {}
    html = path.read_text(encoding="utf-8")
    assert "<script>alert" not in html
    assert "<img" not in html


def test_the_figure_of_the_structures_has_a_bar_for_each():
    rng = np.random.default_rng(0)
    rows = tuple(
        Row(structure=name, injection_in="once", recipe="baseline", by=by, recurrences=4.0,
            phi=rng.normal(mean, 0.02, 300), worth=4 ** rng.normal(mean, 0.02, 300), converged=True)
        for name, by, mean in (("a", "fit", 0.4), ("b", "structure", 0.6))
    )  # fmt: skip
    drawn = checks.figure(structures_card(rows))
    (bars,) = drawn.data
    assert list(bars.y) == ["a, once", "b"]
    np.testing.assert_allclose(bars.x, [0.4, 0.6], atol=0.01)


def test_the_ordinary_report_says_what_speaks_against_the_fit(isodepth_fit):
    card = next(card for card in make_report(isodepth_fit).cards if card.name == "criticism")
    assert card.failure is None
    assert "does not describe these runs" in card.takeaway
    assert {row[0]: row[1] for row in card.table.rows}["Curvature of loss over size within cells"] == "warning"
