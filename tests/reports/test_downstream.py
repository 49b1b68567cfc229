"""The page of `bayeslaw regimes`: its cards, names that are HTML, and what is not known."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw.downstream.effects import ComputeEffect
from bayeslaw.downstream.model import Diagnostics
from bayeslaw.downstream.priors import DEFAULT
from bayeslaw.downstream.regimes import AxisRegime, Curve, Regimes
from bayeslaw.downstream.seeds import More
from bayeslaw.downstream.table import EvaluationTable
from bayeslaw.downstream.verdicts import Estimate, Verdict
from reports.downstream import build_page, make_cards, write_downstream

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
TASKS = {"knowledge": ("triviaqa", SCRIPT), "math": ("svamp",), "primitives": ("induction", IMAGE)}


def estimate(mean, sd):
    return Estimate(mean=mean, sd=sd, q05=mean - 1.645 * sd, q25=mean - 0.674 * sd, q75=mean + 0.674 * sd,
                    q95=mean + 1.645 * sd)  # fmt: skip


def scores():
    """Two budgets, r = 1, 2, 4, two seeds, five r at test time; the task IMAGE rises beyond the trained r."""
    rng = np.random.default_rng(0)
    rows = []
    for budget, r, seed in np.ndindex(2, 3, 2):
        r = 2**r
        loss = 3 - 0.2 * budget + 0.03 * r + 0.01 * rng.standard_normal()
        for axis, tasks in TASKS.items():
            for task in tasks:
                for depth in (1, 2, 4, 8, 16):
                    score = 1.2 * loss + 0.3 * np.exp(-3 * depth / r) + 0.2 * (task == IMAGE and depth > r)
                    score += 0.02 * rng.standard_normal() * (depth == r)
                    rows.append(
                        {
                            "run_id": f"{IMAGE}{budget}/{r}/{seed}", "recipe": "baseline", "recurrences": float(r),
                            "d_model": 64, "seed": seed, "budget": 1e17 * 10.0**budget, "flops": 1e17 * 10.0**budget,
                            "loss": loss, "loss_se": 0.01, "step": 100, "axis": axis, "task": task, "shots": 5,
                            "test_recurrences": depth, "examples": 1000, "answer_tokens": 3456, "task_loss": score,
                            "task_loss_se": 0.02, "accuracy": np.exp(-score), "accuracy_se": 0.01,
                            "data_digest": "f" * 16, "architecture": f"r = {r}",
                        }
                    )  # fmt: skip
    return pd.DataFrame(rows)


def regime(axis, verdict, rows):
    own = rows[rows["axis"] == axis]
    grid = np.linspace(2.5, 3.1, 20)
    return AxisRegime(
        axis=axis,
        tasks=TASKS[axis],
        checkpoints=12,
        verdicts=tuple(
            Verdict(
                axis=axis, architecture=name, pooled=name == "looped", effect=estimate(0.03, 0.01), p_tracks=0.2,
                p_closes=0.1, p_behind=0.7, resolvable=0.025, power=0.6, verdict=verdict,
            )
            for name in ("looped", "r = 2", "r = 4")
        ),
        compute=tuple(
            ComputeEffect(axis=axis, architecture=name, budget=budget, effect=estimate(0.1 * (name == "r = 4"), 0.02))
            for name in ("r = 2", "r = 4")
            for budget in (None, 1e17, 1e18)
        ),
        more=More(
            effect=0.02, resolvable=0.025, copies=2, runs=36, flops=1e20, floor=0.01, examples=0.01
        ),
        noise={},
        slope=estimate(1.2, 0.1),
        curve=Curve(
            loss=grid, band=np.array([1.2 * grid - 0.05, 1.2 * grid, 1.2 * grid + 0.05]),
            points=own.groupby(["architecture", "run_id", "loss"], as_index=False)["task_loss"].mean(),
        ),
        diagnostics=Diagnostics(divergences=0, ess=1000.0, r_hat=1.001),
    )  # fmt: skip


@pytest.fixture(scope="module")
def found():
    rows = scores()
    trained = rows["test_recurrences"] == rows["recurrences"]
    main = rows[trained].reset_index(drop=True)
    table = EvaluationTable(
        rows=main, others=rows[~trained].reset_index(drop=True), source=IMAGE
    )  # fmt: skip
    verdicts = {"knowledge": "tracks validation loss", "math": "no signal", "primitives": "falls behind"}
    return Regimes(
        table=table, axes=tuple(regime(axis, verdict, main) for axis, verdict in verdicts.items()), delta=0.02,
        effect=0.02, priors=DEFAULT, notes=("a note",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def cards(found):
    return {card.name: card for card in make_cards(found, {"command": "bayeslaw regimes table.csv"})}


def test_every_card_is_made(cards):
    assert list(cards) == ["regimes", "compute", "curves", "more", "ranking", "saturation", "evaluated", "record"]
    assert [card.failure for card in cards.values()] == [None] * len(cards)
    drawn = [name for name, card in cards.items() if card.figure is not None]
    assert drawn == ["regimes", "compute", "curves", "ranking", "saturation"]
    assert all(card.how_to_read for card in cards.values())


def test_verdicts_by_axis(cards):
    card = cards["regimes"]
    assert card.takeaway == (
        "Tracks validation loss: parametric knowledge; no signal: math word problems; falls behind: reasoning "
        "primitives."
    )
    assert card.table.rows[0][:4] == (
        "parametric knowledge", "looped", "tracks validation loss", "+0.030 (+0.014 to +0.046)"
    )  # fmt: skip
    band = [shape for shape in card.figure.layout.shapes if shape.type == "rect"]
    assert [(shape.x0, shape.x1) for shape in band] == [(-0.02, 0.02)]


def test_matched_compute_names_the_axes_whose_intervals_leave_0(cards):
    card = cards["compute"]
    assert "lose on parametric knowledge (r = 4), math word problems (r = 4)" in card.takeaway
    assert "r = 2" not in card.takeaway
    assert [row[2] for row in card.table.rows[:3]] == ["mean over budgets", "1e+17", "1e+18"]


def test_the_ranking_tells_the_metrics_and_their_probabilities(cards):
    card = cards["ranking"]
    assert card.takeaway.startswith("Validation loss has the highest signal over noise")
    assert {trace.name for trace in card.figure.data} == {"loss", "accuracy"}
    assert len(card.table.rows) == 1 + 2 * (5 + 2)


def test_a_loss_that_rises_with_depth_is_joined_and_not_fitted(cards):
    card = cards["saturation"]
    findings = {(row[0], row[1]): row[2] for row in card.table.rows}
    assert "rises by" in findings[f"{IMAGE}0/2/0", IMAGE]
    assert findings[f"{IMAGE}1/4/0", "svamp"] == "follows the law"
    assert re.search(r"In \d+ the loss rises with T", card.takeaway)
    # The measured points of three architectures on three axes, whether or not a law goes through them.
    assert sum(trace.hovertext is not None for trace in card.figure.data) == 9


def test_what_was_evaluated(cards):
    rows = {row[1]: row for row in cards["evaluated"].table.rows}
    assert rows["svamp"] == ("math word problems", "svamp", "f" * 12, "5", "1,000", "3,456", "12", "1 to 16")


def test_a_card_that_fails_takes_no_other_down(found):
    spoiled = replace(found, table=replace(found.table, rows=found.table.rows.drop(columns="loss")))
    made = {card.name: card for card in make_cards(spoiled)}
    assert "without loss" in made["ranking"].failure
    assert made["regimes"].failure is None


def test_without_noise_nothing_is_ranked_and_without_other_depths_nothing_saturates(found):
    rows = found.table.rows.query("seed == 0").assign(loss_se=np.nan, task_loss_se=np.nan, accuracy_se=np.nan)
    made = make_cards(replace(found, table=replace(found.table, rows=rows, others=rows.iloc[:0])))
    cards = {card.name: card for card in made}
    assert cards["ranking"].takeaway == "No metric can be ranked: the noise is not known."
    assert cards["ranking"].figure is None
    assert "saturation" not in cards


def test_names_are_text_everywhere(found, cards, read_page):
    html = build_page(found, made={"command": IMAGE})
    page = read_page(html)
    assert "img" not in page.tags
    assert page.handlers == []
    assert page.addresses == [f"#{name}" for name in cards]
    assert page.tags.count("script") == 3
    figures = json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', html).group(1))
    assert IMAGE not in json.dumps(figures)
    assert "&lt;img" in json.dumps(figures)


def test_a_sampler_that_did_not_converge_leads_the_page(found, read_page):
    first = replace(found.axes[0], diagnostics=replace(found.axes[0].diagnostics, divergences=7))
    table = replace(found.table, others=found.table.others.iloc[:0])
    few = replace(found, axes=(first, *found.axes[1:]), table=table)
    texts = [text for text in read_page(build_page(few)).texts if text]
    doubt = next(place for place, text in enumerate(texts) if text.startswith("The sampler did not converge"))
    assert "knowledge: 7 divergences" in texts[doubt]
    assert doubt < texts.index(found.sentences[0]) < texts.index("A note.")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_drawn_in_a_browser(visit, drawn_in, found, cards, tmp_path, width):
    write_downstream(found, tmp_path / "page.html", made={"command": IMAGE})
    page = visit(tmp_path / "page.html", width=width)
    assert drawn_in(page) == [name for name, card in cards.items() if card.figure is not None]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("img").count() == 0
