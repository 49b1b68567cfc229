"""The replay of a plan, held to cases that are known exactly."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
import subprocess
import sys

import pytest

from bayeslaw.cli import run, simulation
from bayeslaw.errors import EXIT_USAGE, UsageError
from bayeslaw.plan import Plan, PlannedRun
from trainer.cluster import Cluster, course
from trainer.replay import simulate

SAFE = {"mtbf_hours": math.inf, "checkpoint_seconds": 0.0}


def planned(*hours, **more):
    """A plan of runs that take so many device hours, and as many FLOPs at one FLOP per second."""
    runs = [PlannedRun({"n": n}, {"run_id": f"run/{n}", "flops": h * 3600.0, "hours": h}) for n, h in enumerate(hours)]
    return Plan("study", tuple(runs))


class Scripted(random.Random):
    """Draws that stand in a list: the time to the next failure, for each start of a run."""

    def __init__(self, times):
        super().__init__(0)
        self.times = iter(times)

    def expovariate(self, rate):
        return next(self.times)


def test_without_losses_it_is_list_scheduling():
    """By hand: one worker has 1 and 3, the other 2 and 4; the longest first 4, 1 and 3, 2."""
    found = simulate(planned(1, 2, 3, 4), gpus=2, **SAFE)
    assert (found.hours, found.busy_hours, found.longest_hours, found.lossless_hours) == (6, 5, 4, 6)
    assert found.utilisation == pytest.approx(10 / 12)
    assert (found.failures, found.redone_gpu_hours, found.wasted_flops) == (0, 0, 0)
    assert {one.name: one.hours for one in found.settings} == {
        "these settings": 6,
        "the longest runs first": 5,
        "2 GPUs a run": 5,
        "2 GPUs a run, the longest first": 5,
        "4 GPUs": 4,
        "nothing lost, nothing saved": 6,
    }


@pytest.mark.parametrize(
    ("hours", "more", "limit"),
    [
        ((1, 1, 1, 1), {"gpus": 2}, "the number of GPUs"),
        ((9, 1, 1, 1), {"gpus": 4}, "the longest run, 9 h"),
        ((*[1] * 24, 8), {"gpus": 4}, "the order"),
        ((24, 24, 24, 24), {"gpus": 4, "mtbf_hours": 1.0, "checkpoint_minutes": 120.0}, "losses"),
    ],
)
def test_what_limits(hours, more, limit):
    assert simulate(planned(*hours), **SAFE | more).limits.startswith(limit)


@pytest.mark.parametrize(("save", "restart"), [(0.0, 0.0), (120.0, 15.0)])
def test_one_run_takes_as_long_as_the_theory_says(save, restart):
    """A stretch of s hours that failures at a rate x interrupt takes (1 / x + restart)(exp(x s) - 1) hours on average.

    The run of 10.5 hours is five stretches of two hours with a save each, and a last one without.
    """
    rate = 1 / 3.0
    cluster = Cluster(
        gpus=4, gpus_per_run=4, mtbf_hours=4 / rate, checkpoint_minutes=120, checkpoint_seconds=save,
        restart_minutes=restart,
    )  # fmt: skip
    courses = [course([10.5], cluster, seed=seed) for seed in range(4000)]

    def stretch(hours):
        return (1 / rate + restart / 60) * math.expm1(rate * hours)

    expected = 5 * stretch(2 + save / 3600) + stretch(0.5)
    lengths = [one.hours for one in courses]
    error = statistics.stdev(lengths) / math.sqrt(len(lengths))
    assert abs(statistics.fmean(lengths) - expected) < 4 * error
    for one in courses:  # nothing is unaccounted for
        assert one.hours == pytest.approx(one.busy + one.down)
        assert one.busy == pytest.approx(10.5 + one.redone + one.saving)


def test_a_failure_costs_half_an_interval():
    cluster = Cluster(gpus=1, mtbf_hours=20.0, checkpoint_minutes=30, checkpoint_seconds=0)
    courses = [course([100.0], cluster, seed=seed) for seed in range(400)]
    failures = sum(one.failures for one in courses)
    # One loss is nearly uniform over the interval: its sd is .29 of it, and there are 2,000.
    assert sum(one.redone for one in courses) / failures == pytest.approx(
        0.25, abs=4 * 0.5 * 0.29 / math.sqrt(failures)
    )


def test_grace_loses_nothing_but_time():
    fields = {"gpus": 1, "mtbf_hours": math.inf, "preempt_hours": 2.0, "checkpoint_seconds": 30.0}
    gentle = course([20.0], Cluster(**fields), seed=1)
    rough = course([20.0], Cluster(**fields, grace=False), seed=1)
    assert gentle.preemptions > 3
    assert gentle.redone == 0 < rough.redone
    assert gentle.hours == pytest.approx(20 + gentle.saving + gentle.down)


def test_who_is_free_takes_up_the_run_of_one_that_failed(monkeypatch):
    """The first worker fails after half an hour and is away for long; the second, done with its own, takes it up."""
    monkeypatch.setattr("trainer.cluster.random.Random", lambda seed: Scripted([0.5, math.inf, math.inf]))
    cluster = Cluster(gpus=2, mtbf_hours=1.0, checkpoint_minutes=12, checkpoint_seconds=0, restart_minutes=6000)
    found = course([10.0, 1.0], cluster)
    assert found.hours == pytest.approx(1 + 10 - 0.4)  # two intervals of 12 minutes were saved
    assert found.redone == pytest.approx(0.1)
    assert (found.failures, found.peak) == (1, 2)


def test_the_best_interval_is_the_best_one():
    cluster = Cluster(gpus=1, mtbf_hours=8.0, checkpoint_seconds=60, restart_minutes=0)
    best = cluster.best_checkpoint_minutes
    assert best == pytest.approx(math.sqrt(2 * (1 / 60) * 8) * 60)

    def mean(factor):
        place = dataclasses.replace(cluster, checkpoint_minutes=best * factor)
        return statistics.fmean(course([50.0], place, seed=seed).hours for seed in range(300))

    assert mean(1) < min(mean(1 / 4), mean(4))


def test_more_failures_waste_more():
    wasted = [simulate(planned(*[5.0] * 40), gpus=8, mtbf_hours=hours).wasted_flops for hours in (1000.0, 100.0, 10.0)]
    assert wasted == sorted(wasted)
    assert wasted[0] < wasted[2]


def test_load_of_the_tracker():
    """Batches of 500 points, or one in ten seconds; the peak is that of the runs side by side."""
    many = simulate(planned(*[1.0] * 8), gpus=4, points_per_second=100.0, **SAFE).load
    assert (many.points, many.peak_points, many.couriers) == (400, 400, 4)
    assert many.batches == pytest.approx(4 * 100 / 500)
    few = simulate(planned(1.0, 3.0), gpus=2, points_per_second=2.0, **SAFE).load
    assert few.points == pytest.approx(2 * 4 / 3)
    assert (few.peak_points, few.peak_batches) == (4, pytest.approx(0.2))
    assert simulate(planned(1.0), gpus=1, points_per_second=0.0, **SAFE).load.server_share == 0
    assert 0 < few.server_share < many.server_share


def test_several_gpus_a_run_and_a_speed():
    found = simulate(planned(8.0), gpus=4, gpus_per_run=4, **SAFE)
    assert (found.hours, found.utilisation) == (2, 1)
    faster = simulate(planned(8.0), gpus=4, gpus_per_run=4, flops_per_second=2.0, **SAFE)
    assert faster.hours == 1  # the plan's hours are those of one FLOP per second


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"gpus": 0}, "1 <= gpus_per_run <= gpus"),
        ({"gpus": 2, "gpus_per_run": 3}, "1 <= gpus_per_run <= gpus"),
        ({"gpus": 1, "mtbf_hours": 0.0}, "mtbf_hours = 0.0"),
        ({"gpus": 1, "checkpoint_minutes": math.nan}, "checkpoint_minutes = nan"),
        ({"gpus": 1, "restart_minutes": -1.0}, "restart_minutes = -1.0"),
        ({"gpus": 1, "flops_per_second": 0.0}, "flops_per_second = 0.0"),
        ({"gpus": 1, "tries": 0}, "tries = 0"),
        ({"gpus": 1, "mtbf_hours": 0.01, "checkpoint_minutes": 10.0}, "next: try --checkpoint-minutes"),
    ],
)
def test_numbers_that_cannot_be_meant(fields, told):
    with pytest.raises(UsageError) as error:
        simulate(planned(1.0), **fields)
    assert told in str(error.value)


def test_a_plan_without_hours_asks_for_a_speed():
    plan = Plan("study", (PlannedRun({"n": 1}, {"run_id": "a", "flops": 3600.0}),))
    with pytest.raises(UsageError, match="--flops-per-second"):
        simulate(plan, gpus=1)
    assert simulate(plan, gpus=1, flops_per_second=1.0, **SAFE).hours == 1


def test_printed_and_json(capsys):
    flags = simulation.ReplayFlags(simulate=True, gpus=1000, mtbf_hours=200.0, preempt_hours=24.0, replay_seed=3)
    plan = planned(*[n / 100 for n in range(1, 1500)])
    assert simulation.print_replay(plan, flags, as_json=False) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "limited by" in printed
    assert simulation.print_replay(plan, flags, as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["cluster"]["gpus"] == 1000
    assert answer["failures"] > 0
    again = simulate(plan, gpus=1000, mtbf_hours=200.0, preempt_hours=24.0, seed=3)
    assert answer["hours"] == again.hours
    assert answer["hours"] != simulate(plan, gpus=1000, mtbf_hours=200.0, preempt_hours=24.0, seed=4).hours


def test_command(capsys):
    sizes = ["--budgets", "1e10,4e10", "--widths", "32", "--recurrences", "1,2", "--min-steps", "1"]
    asked = ["--simulate", "--gpus", "2", "--flops-per-second", "1e8"]
    assert run(["sweep", "plan", *sizes, *asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["runs"], answer["cluster"]["gpus"]) == (4, 2)
    assert answer["longest_hours"] == pytest.approx(4e10 / 1e8 / 3600, rel=0.05)
    assert run(["sweep", "plan", *sizes, "--gpus", "2"]) == EXIT_USAGE
    assert "--gpus without --simulate" in capsys.readouterr().err


def test_flags_that_belong_together():
    assert not simulation.asked(None)
    assert simulation.asked(simulation.ReplayFlags(simulate=True, gpus=8))
    with pytest.raises(UsageError, match="--mtbf-hours without --simulate"):
        simulation.asked(simulation.ReplayFlags(mtbf_hours=5.0))
    with pytest.raises(UsageError, match="--simulate without --gpus"):
        simulation.asked(simulation.ReplayFlags(simulate=True))


def test_needs_neither_torch_nor_mlflow():
    code = "import sys, trainer.replay; print(sorted({'torch', 'mlflow', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
