"""The saturating law over test-time recurrences: planted parameters, rising losses, too few points."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bayeslaw.downstream.saturation import NUMBERS, TOLERANCE, saturation
from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.evaluations import AXIS_MEAN

DEPTHS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def scored(*, limit=2.0, fall=1.5, rate=3.0, r=4.0, depths=DEPTHS, scatter=0.0, se=np.nan, run="x", task="a", rng=None):
    """Rows of one series that follows the law, and scatters about it."""
    loss = limit + fall * np.exp(-rate * depths / r)
    loss += scatter * (rng or np.random.default_rng(0)).standard_normal(len(depths))
    return pd.DataFrame(
        {
            "run_id": run, "recurrences": r, "test_recurrences": depths, "axis": "math", "task": task,
            "task_loss": loss, "task_loss_se": se,
        }
    )  # fmt: skip


def test_a_law_without_scatter_is_found():
    (series,) = saturation(scored()).series
    true = {"limit": 2.0, "fall": 1.5, "rate": 3.0, "gain": 1.5 * np.exp(-3), "reach": 4 / 3 * np.log(150)}
    assert set(true) == set(NUMBERS)
    for name, value in true.items():
        assert np.median(series.draws[name]) == pytest.approx(value, rel=0.02)
    assert series.note == ""
    assert series.curve(DEPTHS).mean(axis=0) == pytest.approx(series.loss, abs=1e-3)
    # From that T on the law is within the tolerance.
    assert series.curve(np.array([true["reach"]])).mean() - 2.0 == pytest.approx(TOLERANCE, rel=0.1)


@pytest.mark.parametrize("depths", [DEPTHS[:4], np.array([1.0, 2, 3, 4, 6, 8, 12, 16])])
def test_intervals_hold_planted_parameters(depths):
    rng = np.random.default_rng(len(depths))
    tables, truths = [], []
    for place in range(150):
        rate, fall = rng.uniform(1, 6), np.exp(rng.uniform(np.log(0.3), np.log(3)))
        tables.append(scored(fall=fall, rate=rate, depths=depths, scatter=0.002, run=str(place), rng=rng))
        truths.append({"limit": 2.0, "fall": fall, "rate": rate, "gain": fall * np.exp(-rate)})
    found = saturation(pd.concat(tables)).series
    fitted = [(series, truth) for series, truth in zip(found, truths, strict=True) if series.draws]
    assert len(fitted) > 140
    low, high = stats.binom.interval(0.999, len(fitted), 0.9)
    for name in truths[0]:
        held = sum(
            lower < truth[name] < upper
            for series, truth in fitted
            for lower, upper in [np.quantile(series.draws[name], [0.05, 0.95])]
        )
        assert low <= held <= high, name


def test_sampling_error_of_the_examples_widens_the_limit_alone():
    exact, sampled = (saturation(scored(scatter=0.001, se=se)).series[0].draws for se in (np.nan, 0.1))
    width = {name: (np.std(exact[name]), np.std(sampled[name])) for name in NUMBERS}
    assert width["limit"][1] == pytest.approx(0.1, rel=0.1)
    assert width["limit"][0] < 0.02
    for name in ("fall", "rate", "gain", "reach"):
        assert width[name][0] == width[name][1]


def test_a_loss_that_rises_beyond_the_trained_depth_is_said_and_not_smoothed():
    table = scored()
    table["task_loss"] = [3.0, 2.2, 2.0, 2.3, 2.9]
    table = pd.concat([table, scored(task="b")])
    found = saturation(table)
    series = {each.task: each for each in found.series}
    assert not series["a"].draws
    assert "rises by 0.900 nats from T = 4 to T = 16 (trained with r = 4)" in series["a"].note
    assert "lowest at T = 4" in series["a"].note
    assert series["b"].draws
    assert found.table.set_index("task").loc["a", list(NUMBERS)].isna().all()
    assert "rises by 0.900" in " ".join(str(found).split())


def test_a_rise_within_the_sampling_error_is_none():
    table = scored(se=0.02)
    table.loc[4, "task_loss"] += 0.03
    assert saturation(table).series[0].draws
    assert not saturation(table.assign(task_loss_se=np.nan)).series[0].draws


def test_a_flat_series_has_nothing_to_saturate():
    (series,) = saturation(scored(fall=0.005, rate=1.0)).series
    assert not series.draws
    assert "nothing to saturate" in series.note


def test_a_rate_that_the_depths_do_not_tell_is_said():
    (series,) = saturation(scored(rate=0.05)).series
    assert "do not tell z" in series.note


def test_a_fall_of_another_form_is_said():
    table = scored()
    table["task_loss"] = [3.0, 2.98, 2.96, 2.1, 2.09]
    (series,) = saturation(table).series
    assert "not of this form" in series.note


def test_few_depths_are_refused_or_said():
    short = scored(depths=DEPTHS[:3], task="b")
    with pytest.raises(UsageError, match=r"at most 3 different r at test time[\s\S]*4 or more[\s\S]*--recurrences"):
        saturation(short)
    series = {each.task: each for each in saturation(pd.concat([scored(), short])).series}
    assert series["b"].note == "3 different r at test time, 4 are needed."
    # The mean of the axis is of the T that both tasks have.
    assert len(series[AXIS_MEAN].test) == 3


def test_the_mean_of_an_axis_is_a_series_of_its_own():
    found = saturation(pd.concat([scored(limit=2.0, se=0.03), scored(limit=1.0, task="b", se=0.04)]))
    mean = next(each for each in found.series if each.task == AXIS_MEAN)
    assert np.median(mean.draws["limit"]) == pytest.approx(1.5, abs=0.01)
    assert mean.common_se == pytest.approx(0.025)


def test_every_checkpoint_has_its_own_series_and_the_text_fits_a_terminal():
    table = pd.concat([scored(run=f"{'run' * 40}{place}", task="t" * 50).assign(step=place) for place in range(3)])
    found = saturation(table)
    assert len(found.series) == 3
    assert max(map(len, str(found).split("\n"))) <= 80
    assert found.as_dict()["series"][0]["points"] == 5


def test_wrong_tables_are_refused():
    with pytest.raises(RunTableError, match="without test_recurrences"):
        saturation(scored().drop(columns="test_recurrences"))
    with pytest.raises(NoRunsError, match="without rows"):
        saturation(scored().iloc[:0])
