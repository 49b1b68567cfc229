"""The page in a real browser without a network."""

import time

import pytest

from reports.build import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def files(isodepth_fit, hostile_fit, plain_fit, with_map, tmp_path_factory):
    """Reports by name: their file and their cards."""
    folder = tmp_path_factory.mktemp("reports")
    fits = {"isodepth": isodepth_fit, "hostile": hostile_fit, "plain": plain_fit, "free": with_map("free")}
    return {
        name: (folder / f"{name}.html", write_report(fit, folder / f"{name}.html").cards) for name, fit in fits.items()
    }


def until(page, condition):
    """Wait for a condition; playwright's own wait evaluates text in the page, which the page's policy forbids."""
    end = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["isodepth", "hostile", "plain"])
def test_every_figure_is_drawn_and_the_page_fits(visit, drawn_in, files, name, width, scheme):
    path, cards = files[name]
    page = visit(path, width=width, scheme=scheme)
    assert drawn_in(page) == [card.name for card in cards if card.figure is not None]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    # No drawing is wider than its card, and each keeps a legible height.
    boxes = page.eval_on_selector_all(
        ".figure",
        "all => all.map(e => [e, e.querySelector('svg.main-svg')].map(x => x.getBoundingClientRect()))"
        ".map(([card, drawing]) => [drawing.width - card.width, drawing.height])",
    )
    assert all(excess <= 1 and height >= 250 for excess, height in boxes)


def test_a_curve_of_worth_is_drawn_where_phi_is_no_one_number(visit, files):
    page = visit(files["free"][0], width=390)
    assert page.locator(".figure[data-figure=worth] .legendtext").all_text_contents() == ["prior, 90\xa0%", "trained r"]
    assert page.locator(".figure[data-figure=worth] .points path").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_names_with_html_are_text_in_the_figures_too(visit, files):
    page = visit(files["hostile"][0])
    assert page.locator("img").count() == 0
    assert page.get_by_text("<img src=x onerror=alert(1)>", exact=True).count() >= 1
    legend = page.locator(".figure[data-figure=worth] .legendtext").all_text_contents()
    assert legend == ["prior", "baseline", "</script><script>alert(1)</script>"]


def test_a_run_shows_its_name_under_the_pointer(visit, files):
    page = visit(files["hostile"][0])
    point = page.locator(".figure[data-figure=iso-flop-1] .points path").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hover = page.locator(".figure[data-figure=iso-flop-1] .hoverlayer text")
    hover.first.wait_for()
    assert "<img src=x onerror=alert(1)>" in hover.first.text_content()


def test_figures_follow_the_colour_scheme(visit, files):
    page = visit(files["isodepth"][0])
    ink = "getComputedStyle(document.querySelector('.figure .xtick text')).fill"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    until(page, f"{ink} !== '{light}'")
    assert page.evaluate(ink) == page.evaluate("getComputedStyle(document.body).color")


def test_panels_stack_when_the_page_gets_narrow(visit, files):
    page = visit(files["isodepth"][0])
    height = "document.querySelector('[data-figure=frontier] svg.main-svg').getBoundingClientRect().height"
    wide = page.evaluate(height)
    page.set_viewport_size({"width": 390, "height": 900})
    until(page, f"{height} > {wide} * 1.5")
    until(page, "document.documentElement.scrollWidth <= window.innerWidth")
    until(
        page, "[...document.querySelectorAll('svg.main-svg')].every(e => e.getBoundingClientRect().right <= innerWidth)"
    )


def test_a_figure_that_is_not_shown_stops_no_other(visit, files):
    page = visit(files["isodepth"][0])
    page.evaluate("document.querySelector('.figure').style.display = 'none'")
    page.set_viewport_size({"width": 800, "height": 900})
    until(
        page,
        "[...document.querySelectorAll('.figure')].slice(1).every("
        "e => e.querySelector('svg.main-svg').getBoundingClientRect().width === e.clientWidth)",
    )
