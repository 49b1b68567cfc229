"""Ranking of metrics by signal over noise: planted ratios, the order of metrics, and what cannot be measured."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bayeslaw.downstream.discrimination import EXAMPLES, SEEDS, VALIDATION_LOSS, metric_ranking
from bayeslaw.downstream.spread import Cells, posterior
from bayeslaw.errors import NoRunsError, RunTableError

NOISE = 0.02


def evaluated(snr, *, budgets=4, architectures=4, seeds=2, se=0.01, rng=None):
    """An evaluation table of metrics with planted ratios; ``snr`` names them: the validation loss, axis/task."""
    rng = rng or np.random.default_rng(0)
    shape = (budgets, architectures)
    level = {name: ratio * NOISE * rng.standard_normal(shape) for name, ratio in snr.items()}
    rows = []
    for b, a, s in np.ndindex(*shape, seeds):
        scores = {name: 3 - 0.2 * b + g[b, a] + NOISE * rng.standard_normal() for name, g in level.items()}
        run = {
            "run_id": f"{b}/{a}/{s}", "recipe": "baseline", "recurrences": 2.0**a, "d_model": 64, "seed": s,
            "budget": 1e17 * 10.0**b, "loss": scores.pop(VALIDATION_LOSS), "loss_se": se,
        }  # fmt: skip
        for name, score in scores.items():
            axis, task = name.split("/")
            rows.append({**run, "axis": axis, "task": task, "task_loss": score, "task_loss_se": se})
    return pd.DataFrame(rows)


def cells_of(y):
    """Of values of shape (budget, architecture, seed)."""
    budgets, architectures, seeds = y.shape
    return Cells(
        level=np.repeat(np.arange(budgets), architectures), mean=y.mean(-1).ravel(),
        scale=np.full(budgets * architectures, 1 / seeds),
        squares=float(((y - y.mean(-1, keepdims=True)) ** 2).sum()), freedom=budgets * architectures * (seeds - 1),
    )  # fmt: skip


def test_intervals_hold_planted_ratios():
    rng = np.random.default_rng(3)
    below = []
    for place in range(240):
        budgets, architectures, seeds = [(1, 4, 2), (2, 3, 2), (4, 4, 2), (3, 4, 3)][place % 4]
        g = np.exp(rng.uniform(np.log(0.5), np.log(10))) * NOISE * rng.standard_normal((budgets, architectures))
        signal, noise, _ = posterior(cells_of(g[..., None] + NOISE * rng.standard_normal((*g.shape, seeds))), rng=rng)
        apart = ((g - g.mean(axis=1, keepdims=True)) ** 2).sum() / (budgets * (architectures - 1))
        below.append((signal / noise < np.sqrt(apart) / NOISE).mean())
    held = int(sum(0.05 < share < 0.95 for share in below))
    low, high = stats.binom.interval(0.998, len(below), 0.9)
    assert low <= held <= high
    assert stats.kstest(below, "uniform").pvalue > 1e-3


def test_the_posterior_is_that_of_a_long_monte_carlo():
    """Weighted draws of (tau, v) from the prior, by the density of the data itself."""
    rng = np.random.default_rng(5)
    y = np.array([[[0.0, 0.3], [1.0, 1.2], [2.5, 2.1]], [[0.4, 0.1], [0.2, 0.9], [1.4, 1.9]]])
    tau, v = rng.uniform(0, 8, 40_000), np.exp(rng.uniform(np.log(0.03), np.log(6), 40_000))
    log_weight = np.zeros(len(tau))
    # Differences from the first value of a budget are free of mu, and hold all else.
    same = np.kron(np.eye(3), np.ones((2, 2)))
    contrast = np.hstack([-np.ones((5, 1)), np.eye(5)])
    for budget in y:
        seen = contrast @ budget.ravel()
        covariance = contrast @ (tau[:, None, None] ** 2 * same + v[:, None, None] ** 2 * np.eye(6)) @ contrast.T
        log_weight -= 0.5 * (
            np.linalg.slogdet(covariance)[1] + seen @ np.linalg.solve(covariance, seen[:, None])[..., 0].T
        )
    weight = np.exp(log_weight - log_weight.max())
    _, noise, _ = posterior(cells_of(y), rng=rng)
    order = np.argsort(v)
    direct = np.interp([0.05, 0.5, 0.95], np.cumsum(weight[order]) / weight.sum(), v[order])
    assert np.quantile(noise, [0.05, 0.5, 0.95]) == pytest.approx(direct, rel=0.05)


def test_the_chance_of_the_same_order_is_what_repeated_experiments_show():
    rng = np.random.default_rng(6)
    g = np.array([[0.0, 0.5, 2.0, 2.2]])
    many = g[..., None] + rng.standard_normal((1, 4, 4000))
    _, _, order = posterior(cells_of(many), rng=rng)
    pairs = [(a, b) for a in range(4) for b in range(a)]
    agree = np.mean([
        np.sign(many[0, a, :2000] - many[0, b, :2000]) == np.sign(many[0, a, 2000:] - many[0, b, 2000:])
        for a, b in pairs
    ])  # fmt: skip
    assert order.mean() == pytest.approx(agree, abs=0.02)


def test_well_separated_metrics_come_in_their_order():
    found = metric_ranking(evaluated({"math/b": 2.0, VALIDATION_LOSS: 8.0, "reading/a": 30.0, "math/c": 0.2}))
    names = [name for name in found.table["metric"] if "axis" not in name]
    assert names == ["a, loss", VALIDATION_LOSS, "b, loss", "c, loss"]
    rows = found.table.set_index("metric")
    assert found.noise_from == SEEDS
    assert rows.loc["a, loss", "p_better"] > 0.95 > 0.05 > rows.loc["b, loss", "p_better"]
    assert np.isnan(rows.loc[VALIDATION_LOSS, "p_better"])
    assert rows["p_best"].sum() == pytest.approx(1)
    assert rows.loc["a, loss", "same_order"] > rows.loc["b, loss", "same_order"] > rows.loc["c, loss", "same_order"]
    # One task alone is its axis.
    assert "math axis, loss" in rows.index
    assert "reading axis, loss" not in rows.index


def test_a_scale_or_a_sign_changes_no_ratio():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0})
    table["accuracy"] = 0.5 - 0.1 * table["task_loss"]
    rows = metric_ranking(table).table.set_index("metric")
    for column in ("snr", "snr_q05", "snr_q95", "same_order"):
        assert rows.loc["a, accuracy", column] == pytest.approx(rows.loc["a, loss", column], rel=0.06)


def test_the_best_width_of_each_architecture_stands_for_it_and_all_widths_tell_the_noise():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0}, seeds=1)
    wide = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0}, seeds=3, rng=np.random.default_rng(8))
    wide = wide.assign(run_id="wide " + wide["run_id"], d_model=128, loss=wide["loss"] + 5, task_loss=9.0)
    wide["task_loss"] += NOISE * np.random.default_rng(9).standard_normal(len(wide))
    rows = metric_ranking(pd.concat([table, wide])).table.set_index("metric")
    assert rows.loc["a, loss", "seed_differences"] == 4 * 4 * 2
    assert rows.loc["a, loss", "noise"] == pytest.approx(NOISE, rel=0.3)
    assert 1.5 < rows.loc["a, loss", "snr"] < 6


def test_examples_are_the_noise_where_no_seed_was_repeated():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0}, seeds=1, se=NOISE)
    found = metric_ranking(table)
    assert found.noise_from == EXAMPLES
    assert "another seed" in str(found)
    rows = found.table.set_index("metric")
    assert rows.loc["a, loss", "noise"] == pytest.approx(NOISE)
    assert 1.5 < rows.loc["a, loss", "snr"] < 6


def test_nothing_is_measurable_without_seeds_and_errors():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0}, seeds=1, se=np.nan)
    found = metric_ranking(table)
    assert found.measured.empty
    assert set(found.table["reason"]) == {"neither other seeds nor standard errors"}
    assert found.table[["snr", "rank", "p_best"]].isna().all(axis=None)
    shown = " ".join(str(found).split())
    assert "Not measurable (neither other seeds nor standard errors): validation loss; a, loss." in shown
    assert "Noise" not in shown


def test_one_metric_that_cannot_be_measured_leaves_the_others():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0, "reading/b": 3.0})
    table["accuracy"] = np.where(table["task"] == "a", 0.0, np.nan)
    table.loc[(table["task"] == "b") & (table["seed"] > 0), "task_loss"] = np.nan
    reasons = metric_ranking(table).table.set_index("metric")["reason"]
    assert reasons.to_dict() == {
        VALIDATION_LOSS: "", "a, loss": "", "a, accuracy": "its seeds do not differ",
        "b, loss": "no design was evaluated with two seeds",
    }  # fmt: skip


def test_two_architectures_at_one_budget_are_too_few():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0}, budgets=1, architectures=2)
    assert metric_ranking(table).table["reason"].str.contains("fewer than three architectures").all()


def test_other_depths_and_earlier_steps_are_no_seeds():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0}).assign(step=100)
    table["test_recurrences"] = table["recurrences"]
    other = table.assign(test_recurrences=table["recurrences"] + 1, task_loss=9.0)
    early = table.assign(step=50, task_loss=9.0, loss=9.0)
    again = metric_ranking(pd.concat([other, early, table]))
    pd.testing.assert_frame_equal(again.table, metric_ranking(table).table)


def test_the_axis_mean_has_the_error_of_independent_tasks():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0, "math/b": 3.0}, se=0.01)
    rows = metric_ranking(table).table.set_index("metric")
    assert rows.loc["math axis, loss", "example_se"] == pytest.approx(0.01 / np.sqrt(2))


def test_the_held_out_text_is_the_validation_loss_and_no_other_metric():
    table = evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0, "validation/held_out": 3.0})
    assert set(metric_ranking(table).table["metric"]) == {VALIDATION_LOSS, "a, loss"}


def test_the_printed_table_fits_a_terminal():
    table = evaluated({VALIDATION_LOSS: 3.0, f"math/{'long' * 20}": 3.0, "reading/\x1b[31mred": 1.0})
    lines = str(metric_ranking(table)).split("\n")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda t: t.drop(columns=["task_loss", "loss"]), RunTableError, "without loss, task_loss"),
        (lambda t: t.iloc[:0], NoRunsError, "without rows"),
        (lambda t: t.assign(recurrences=1.0), RunTableError, "no budget at which two architectures"),
        (lambda t: pd.concat([t, t]), RunTableError, "task a stands twice for 0/0/0"),
        (lambda t: t.assign(test_recurrences=16), NoRunsError, "no evaluation at the trained r"),
        (lambda t: t.drop(columns="budget"), RunTableError, "without a budget"),
    ],
)
def test_wrong_tables_are_refused(spoil, error, words):
    with pytest.raises(error, match=words):
        metric_ranking(spoil(evaluated({VALIDATION_LOSS: 3.0, "math/a": 3.0})))
