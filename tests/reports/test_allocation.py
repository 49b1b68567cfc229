"""The page of `bayeslaw allocate`."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from bayeslaw.allocate import allocate
from bayeslaw.constraints import Constraints
from bayeslaw.targets import target
from bayeslaw.tradeoffs import growth, pareto
from bayeslaw.version import __version__
from reports import allocation_drawing, allocation_figures, text
from reports.allocation import write_allocation

BUDGETS = (2.15e18, 2.15e19, 1e20)


@pytest.fixture(scope="module")
def made(isodepth_fit):
    return [allocate(isodepth_fit, flops=flops) for flops in BUDGETS]


@pytest.fixture(scope="module")
def front(isodepth_fit):
    return pareto(isodepth_fit, flops=BUDGETS[-1])


@pytest.fixture(scope="module")
def aim(isodepth_fit):
    return target(isodepth_fit, loss=2.3)


@pytest.fixture(scope="module")
def written(isodepth_fit, made, front, aim, tmp_path_factory):
    """The page with all its cards: its file and the cards by name."""
    path = tmp_path_factory.mktemp("allocation") / "page.html"
    cards = write_allocation(isodepth_fit, made, path, front=front, target=aim)
    return path, {card.name: card for card in cards}


@pytest.fixture
def write(tmp_path):
    """A function that writes a page and gives its cards by name, none of which may have failed."""

    def written(fit, made, **more):
        cards = write_allocation(fit, made, tmp_path / "page.html", **more)
        assert [card.failure for card in cards if card.failure is not None] == []
        return {card.name: card for card in cards}

    return written


def column(card, name):
    """A column of a card's table."""
    return [row[card.table.header.index(name)] for row in card.table.rows]


def number(shown):
    """A number that the page shows, without its suffix."""
    scale = {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3}
    value, *suffix = shown.replace(text.GAP, " ").split()
    return float(value) * scale[suffix[0]] if suffix else float(value)


def spans(card):
    """The intervals of a bar figure, by its label and group."""
    return {
        (label, trace.name): (x, x - minus, x + plus)
        for trace in card.figure.data
        for label, x, plus, minus in zip(
            trace.y, trace.x, trace.error_x.array, trace.error_x.arrayminus, strict=True
        )
    }  # fmt: skip


def test_every_card_is_made_and_drawn(written, read_page):
    path, cards = written
    names = ["target", "recommendation", "optimum", "regret", "pareto", "budgets", "made"]
    assert list(cards) == names
    assert {name: card.failure for name, card in cards.items() if card.failure is not None} == {}
    html = path.read_text(encoding="utf-8")
    drawn = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', html).group(1))
    assert set(drawn) == set(names) - {"made"}
    assert all(card.takeaway and card.how_to_read and card.table.rows for card in cards.values())
    assert set(names) <= set(read_page(html).ids)
    assert "default-src 'none'" in html


def test_the_page_says_what_the_command_says(written, made, aim, read_page):
    shown = read_page(written[0].read_text(encoding="utf-8")).texts
    for sentence in (*map(str, made), str(aim).split("\n")[0]):
        assert sentence in shown
    notes = [note for each in made for note in each.notes]
    assert any("extrapolation" in note for note in notes)
    assert all(any(note[1:] in words for words in shown) for note in notes), "the first letter is a capital there"


def test_a_range_is_spoken_of_by_its_ends(isodepth_fit, made, tmp_path, read_page):
    between = [replace(made[1], flops=flops) for flops in (3e18, 5e18)]
    write_allocation(isodepth_fit, [made[0], *between, made[-1]], tmp_path / "page.html")
    shown = read_page((tmp_path / "page.html").read_text(encoding="utf-8")).texts
    assert [sentence for sentence in shown if sentence.startswith("For ")] == [str(made[0]), str(made[-1])]
    assert "The tables have 2 more budgets between these." in shown


def test_trainable_runs_are_those_of_the_answer(written, made):
    card = written[1]["recommendation"]
    told = [row for each in made for row in each.as_dict()["recurrences"].values()]
    assert column(card, "width") == [str(row["trainable"]["d_model"]) for row in told]
    for name, key in (("unique parameters", "n_unique"), ("tokens", "tokens"), ("training FLOPs", "flops"),
                      ("inference FLOPs/token", "inference_flops")):  # fmt: skip
        np.testing.assert_allclose(
            [number(cell) for cell in column(card, name)], [row["trainable"][key] for row in told], rtol=6e-3
        )
    losses = [[float(value) for value in re.findall(r"[\d.]+", cell)] for cell in column(card, "loss (nats/token)")]
    wanted = [[row["trainable"]["loss"][key] for key in ("mean", "q05", "q95")] for row in told]
    np.testing.assert_allclose(losses, wanted, atol=5.1e-4)
    starred = [cell.endswith("★") for cell in column(card, "option")]
    assert starred == [option is each.recommended for each in made for option in each.options]
    assert column(card, "P(best)") == [text.probability(row["probability_best"], 4000) for row in told]


def test_the_curve_of_the_recommendation_goes_through_it_and_lies_lowest_there(written, made):
    figure = written[1]["recommendation"].figure
    stars = [trace for trace in figure.data if trace.name == "recommended"]
    for star, each in zip(stars, made, strict=True):
        run = each.recommended.trainable
        assert (star.x[0], star.y[0]) == (run.n_unique, pytest.approx(each.as_dict()["recommended"]["loss"]["mean"]))
        curve = next(t for t in figure.data if t.xaxis == star.xaxis and t.mode == "lines" and t.name == "r\xa0=\xa01")
        assert curve.x[np.argmin(curve.y)] == run.n_unique
        assert curve.y.min() == pytest.approx(star.y[0], abs=1e-12)
        bar = next(t for t in figure.data if t.xaxis == star.xaxis and t.error_x.array is not None)
        told = each.as_dict()["recurrences"]["1"]["optimum"]["n_unique"]
        assert bar.x[0] - bar.error_x.arrayminus[0] == pytest.approx(told["q05"])
        assert bar.x[0] + bar.error_x.array[0] == pytest.approx(told["q95"])


def test_optima_and_probabilities_are_those_of_the_answer(written, made):
    card = written[1]["optimum"]
    rows = [(each, r, row) for each in made for r, row in each.as_dict()["recurrences"].items()]
    for cell, (_, _, row) in zip(column(card, "N* (parameters)"), rows, strict=True):
        ends = [number(part) for part in re.fullmatch(r".* \((.*) to (.*)\)", cell).groups()]
        assert ends == pytest.approx([row["optimum"]["n_unique"][key] for key in ("q05", "q95")], rel=6e-3)
    assert [float(cell) for cell in column(card, "loss* (nats)")] == pytest.approx(
        [row["optimum"]["loss"]["mean"] for *_, row in rows], abs=5.1e-5
    )
    bars = spans(card)
    for name, key in (("P(wider)", "p_wider"), ("P(fewer tokens per unrolled)", "p_fewer_tokens_per_unrolled"),
                      ("P(fewer tokens per unique)", "p_fewer_tokens_per_unique")):  # fmt: skip
        wanted = [(row["against_plain"] or {}).get(key) for *_, row in rows]
        assert column(card, name) == ["–" if one is None else text.probability(one, 4000) for one in wanted]
    for each, r, row in rows:
        if r != "1":
            told = row["against_plain"]["loss"]
            bar = bars[f"r\xa0=\xa0{r}", f"{text.flops(each.flops)} FLOPs"]
            assert bar == pytest.approx([told[key] for key in ("mean", "q05", "q95")])
    assert len(bars) == 9


def test_regret_is_that_of_the_answer_and_splits_by_what_is_true(written, made, isodepth_fit, write):
    card = written[1]["regret"]
    bars = spans(card)
    for each in made:
        r = each.recommended.recurrences
        assert bars[f"r\xa0=\xa0{r}", f"{text.flops(each.flops)} FLOPs"][0] == pytest.approx(each.expected_regret)
    # Where memory is short several r may be best: regrets given each truth average to the whole.
    tight = allocate(isodepth_fit, flops=2.15e19, constraints=Constraints(memory=4e8))
    chances = {option.recurrences: option.probability_best for option in tight.options}
    assert sum(chance > 0.01 for chance in chances.values()) > 1
    card = write(isodepth_fit, [tight])["regret"]
    named = [name for name in card.table.header if name.startswith("mean, if")]
    assert len(named) == sum(chance >= 0.01 for chance in chances.values())
    for row in card.table.rows:
        told = dict(zip(card.table.header, row, strict=True))
        whole = sum(chances[int(re.search(r"\d+", name).group())] * float(told[name]) for name in named)
        assert whole == pytest.approx(float(told["mean (nats/token)"]), abs=2e-4)
        assert float(told["5 %"]) <= float(told["50 %"]) <= float(told["95 %"])


def test_the_front_starts_at_its_best_and_hides_only_what_is_far_off(written, front):
    card = written[1]["pareto"]
    best = min(run.loss.mean() for run in front)
    near = [run for run in front if run.loss.mean() <= best + 0.5]
    assert len(near) < len(front)
    assert len(card.table.rows) == len(near)
    assert card.table.note.startswith(f"{len(front) - len(near)} smaller models")
    assert column(card, "width") == [str(run.d_model) for run in reversed(near)]
    assert column(card, "above the least").count("–") == 1
    points = [(x, y) for t in card.figure.data if t.xaxis == "x2" and t.name for x, y in zip(t.x, t.y, strict=True)]
    wanted = sorted((run.inference_flops, run.loss.mean()) for run in near)
    np.testing.assert_allclose(sorted(points), wanted, rtol=1e-9)


def test_growth_has_its_exponents_and_shades_what_was_never_trained(written, made, isodepth_fit):
    card = written[1]["budgets"]
    for row, told in zip(card.table.rows, growth(made), strict=True):
        for cell, key in zip(row[1:3], ("n_unique", "tokens"), strict=True):
            shown = [float(value) for value in re.findall(r"[\d.]+", cell)]
            assert shown == pytest.approx([told[key][name] for name in ("mean", "q05", "q95")], abs=5.1e-4)
    assert card.table.rows[0][3:] == ("–", "–")
    shades = [(shape.x0, shape.x1) for shape in card.figure.layout.shapes if shape.type == "rect"]
    assert shades == [(isodepth_fit.runs["flops"].max(), BUDGETS[-1])] * 3
    assert "1 of the 3 budgets lies outside" in card.takeaway


def test_a_target_shows_how_likely_each_budget_reaches_it(written, aim, isodepth_fit, write):
    card = written[1]["target"]
    told = aim.as_dict()
    assert f"{told['E']['mean']:.3f}" in card.takeaway
    assert column(card, "P(reachable)") == [
        text.probability(row["probability_reachable"], 4000) for row in told["routes"]
    ]
    for cell, row in zip(column(card, "least FLOPs, of the draws that reach it"), told["routes"], strict=True):
        ends = [float(end) for end in re.fullmatch(r".* \((.*) to (.*)\)", cell).groups()]
        assert ends == pytest.approx([row["flops"]["q05"], row["flops"]["q95"]], rel=6e-3)
    for trace, route in zip(card.figure.data, aim.routes, strict=True):
        middle = np.median(route.flops)
        assert np.interp(middle, trace.x, trace.y) == pytest.approx(0.5, abs=0.05)
        assert np.all(np.diff(trace.y) >= 0)
    # A loss that hardly any draw reaches has no recommendation, and its page stands.
    low = target(isodepth_fit, loss=1.3)
    assert low.recommended is None
    cards = write(isodepth_fit, [], target=low)
    assert list(cards) == ["target", "made"]


@pytest.mark.parametrize(
    "constraints",
    [Constraints(memory=4e8), Constraints(data_tokens=2e9, epochs=2), Constraints(d_model=1280, lifetime_tokens=1e9)],
    ids=["memory", "data", "width"],
)
def test_constraints_hold_along_every_curve(isodepth_fit, write, constraints):
    made = allocate(isodepth_fit, flops=2.15e19, constraints=constraints)
    cards = write(isodepth_fit, [made], front=pareto(isodepth_fit, flops=2.15e19, constraints=constraints))
    given = dict(cards["made"].table.rows)["constraints"]
    assert all(name in given for name in made.as_dict()["constraints"])
    curves = [t for t in cards["recommendation"].figure.data if t.name and t.name.startswith("r\xa0")]
    assert len(curves) == 4
    if constraints.memory is not None:
        assert max(curve.x.max() for curve in curves) <= 2e8
        assert "bytes (bfloat16)" in cards["recommendation"].table.header
    if constraints.data_tokens is not None:
        assert max(run.tokens for run in made.candidates) <= 4e9
    if constraints.d_model is not None:  # one point each, with a bar instead of a band
        assert [len(curve.x) for curve in curves] == [1] * 4
        assert all(curve.error_y.array is not None for curve in curves)


def test_a_plain_table_has_no_widths_and_nothing_to_compare(plain_fit, write):
    made = [allocate(plain_fit, flops=flops, flops_rule="6nd") for flops in (1e20, 1e21)]
    cards = write(plain_fit, made, front=pareto(plain_fit, flops=1e21, flops_rule="6nd"))
    assert column(cards["recommendation"], "width") == ["–", "–"]
    assert cards["optimum"].title == "Where the optimum lies"
    assert cards["optimum"].figure is None
    assert cards["optimum"].table.header[-1] == "loss* (nats)"
    assert dict(cards["made"].table.rows)["FLOPs"] == "6 N D"
    assert {trace.yaxis for trace in cards["budgets"].figure.data} == {"y", "y2"}


def test_a_named_family_has_to_be_named_to_the_page(plain_fit, tmp_path, write):
    made = [allocate(plain_fit, flops=1e20, family="isodepth", recurrences=[1])]
    assert "isodepth" in dict(write(plain_fit, made, family="isodepth")["made"].table.rows)["family"]
    cards = write_allocation(plain_fit, made, tmp_path / "page.html")
    assert [card.name for card in cards if card.failure is not None] == ["recommendation"]


def test_device_hours_alone_are_called_so(isodepth_fit, write):
    runs = isodepth_fit.runs
    timed = replace(isodepth_fit, runs=runs.assign(tokens_per_second=4e14 / runs["flops_per_token"], device="one"))
    made = allocate(timed, constraints=Constraints(gpu_hours=10))
    cards = write(timed, [made])
    assert cards["recommendation"].takeaway.startswith("At 10 device hours")
    curve = next(t for t in cards["recommendation"].figure.data if t.mode == "lines" and t.name == "r\xa0=\xa01")
    assert curve.y.min() == pytest.approx(made.recommended.trainable.loss.mean(), abs=1e-12)
    # Of hours and FLOPs together, FLOPs are the budget, even where the run takes all of them.
    both = replace(made, in_flops=True)
    assert write(timed, [both])["recommendation"].takeaway.startswith(f"At {text.flops(made.flops)} FLOPs")


def test_an_upper_quantile_is_named(isodepth_fit, write):
    cards = write(isodepth_fit, [allocate(isodepth_fit, flops=1e19, objective="quantile", quantile=0.9)])
    assert "by the objective (0.9 quantile)" in cards["recommendation"].table.note
    assert dict(cards["made"].table.rows)["objective"] == "0.9 quantile"


def test_several_recipes_have_a_panel_each_and_their_names_are_text(hostile_fit, write, tmp_path):
    made = [allocate(hostile_fit, flops=flops) for flops in (1e19, 1e20)]
    cards = write(hostile_fit, made, front=pareto(hostile_fit, flops=1e20))
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in html
    panels = cards["recommendation"].figure
    assert len({trace.xaxis for trace in panels.data}) == 4
    # The model without a loop is in every panel.
    for axis in {trace.xaxis for trace in panels.data}:
        assert {t.name for t in panels.data if t.xaxis == axis and t.mode == "lines"} >= {"r\xa0=\xa01", "r\xa0=\xa02"}
    told = {
        (each.flops, recipe, int(r)): row["probability_best"]
        for each in made
        for recipe, rows in each.as_dict()["recipes"].items()
        for r, row in rows.items()
    }
    assert column(cards["recommendation"], "P(best)") == [text.probability(share, 200) for share in told.values()]


def test_a_card_that_fails_takes_no_other_down(isodepth_fit, made, tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no way")

    monkeypatch.setattr(allocation_figures, "growth", broken)
    cards = {card.name: card for card in write_allocation(isodepth_fit, made, tmp_path / "page.html")}
    assert cards["budgets"].failure == "ValueError: no way"
    assert sum(card.failure is not None for card in cards.values()) == 1


def test_the_page_ends_with_what_it_rests_on(written, isodepth_fit, made):
    rows = dict(written[1]["made"].table.rows)
    assert rows["data hash"] == isodepth_fit.attrs["data_hash"]
    assert rows["version"] == __version__
    assert rows["constraints"] == "none"
    assert rows["objective"] == "mean"
    assert rows["location noise"] == str(made[0].location)
    assert "law additive" in rows["fit"]


def test_a_failing_fit_is_doubted_first(hostile_fit, tmp_path, read_page):
    write_allocation(hostile_fit, [allocate(hostile_fit, flops=1e19)], tmp_path / "page.html")
    shown = " ".join(read_page((tmp_path / "page.html").read_text(encoding="utf-8")).texts)
    assert "Do not rely on this fit yet" in shown


@pytest.mark.parametrize(("low", "high"), [(3.9e8, 3.95e8), (1e8, 4e8), (5e7, 4e9), (1e18, 1e30)])
def test_axes_have_a_few_labels_that_say_all(low, high):
    axis = allocation_drawing.log_axis(low, high, text.flops)
    assert 1 <= len(axis["tickvals"]) <= allocation_drawing.MOST_TICKS
    assert all(0.9 * low <= value <= 1.1 * high for value in axis["tickvals"])
    assert [float(label) for label in axis["ticktext"]] == pytest.approx(axis["tickvals"], rel=5e-3)


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_is_drawn_and_fits_without_a_network(written, visit, drawn_in, width, scheme):
    path, cards = written
    page = visit(path, width=width, scheme=scheme)
    assert drawn_in(page) == [name for name, card in cards.items() if card.figure is not None]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
