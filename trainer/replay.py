"""A plan replayed on many GPUs with failures and preemptions: how long it takes, what is lost, what limits it.

Without torch: replaying a plan needs no GPU, and none of what trains on one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bayeslaw.errors import UsageError
from bayeslaw.plan import Plan
from trainer.cluster import Cluster, Course, course
from trainer.courier import FLUSH_SECONDS
from trainer.delivery import BATCH_POINTS

SERVER_BATCH_SECONDS = 0.0093
SERVER_POINT_SECONDS = 8.8e-5
"""What a batch costs `bayeslaw server`, and each point in it: 98 batches of ten points a second and 18.8 of 500, on
PostgreSQL, two cores for server, database and clients together (`benchmarks/results/load.json`)."""
COURIER_BYTES = 130e6
"""Memory of a courier, of the same place."""
BUSY = 0.9
"""Where GPUs are at planned work for so much of the makespan, nothing but more of them makes it much shorter."""


@dataclass(frozen=True)
class Load:
    """What the tracking server has to take.

    Parameters
    ----------
    points, batches : float
        A second, on average.
    peak_points, peak_batches : float
        A second, while most runs are in training.
    server_share : float
        Of the time of the server that was measured, at the peak: above 1 it falls behind, and what it has not taken
        waits in the journals.
    couriers : int
        Processes that deliver, at most: one for each run in training.
    courier_bytes : float
        Their memory, all machines together.
    """

    points: float
    batches: float
    peak_points: float
    peak_batches: float
    server_share: float
    couriers: int
    courier_bytes: float


@dataclass(frozen=True)
class Setting:
    """The same plan with one setting changed.

    Parameters
    ----------
    name : str
        The change.
    hours : float
        Mean makespan.
    redone_gpu_hours : float
        Mean GPU hours of steps done again.
    """

    name: str
    hours: float
    redone_gpu_hours: float


@dataclass(frozen=True)
class Replay:
    """What becomes of a plan on a cluster, averaged over the tries.

    Parameters
    ----------
    runs, tries : int
    flops : float
        Planned training FLOPs.
    cluster : Cluster
    hours, low_hours, high_hours : float
        Makespan: mean, least and most.
    busy_hours : float
        Makespan if all GPUs were at work to the end and nothing was lost.
    ideal_hours : float
        No order of the runs is faster: the above, or the longest run where that is longer.
    lossless_hours : float
        Makespan in plan order if nothing was lost and nothing saved.
    longest_hours : float
        The longest run.
    utilisation : float
        Share of all GPU hours up to the makespan that planned steps take.
    redone_gpu_hours, saving_gpu_hours, down_gpu_hours : float
        GPU hours of steps done again, of saves, of waiting for restarts.
    wasted_flops : float
        FLOPs of steps done again.
    failures, preemptions : float
    load : Load
    settings : tuple of Setting
        What these and other settings give.
    """

    runs: int
    tries: int
    flops: float
    cluster: Cluster
    hours: float
    low_hours: float
    high_hours: float
    busy_hours: float
    ideal_hours: float
    lossless_hours: float
    longest_hours: float
    utilisation: float
    redone_gpu_hours: float
    saving_gpu_hours: float
    down_gpu_hours: float
    wasted_flops: float
    failures: float
    preemptions: float
    load: Load
    settings: tuple[Setting, ...]

    @property
    def limits(self) -> str:
        """What makes the makespan longest, and which setting moves it."""
        if self.busy_hours >= BUSY * self.hours:
            return "the number of GPUs, which are at work nearly all the time"
        parts = {
            f"the longest run, {_hours(self.longest_hours)}; more GPUs a run": self.ideal_hours - self.busy_hours,
            "the order, long runs begin late; the longest first": self.lossless_hours - self.ideal_hours,
            "losses; checkpoints at the best interval": self.hours - self.lossless_hours,
        }
        return max(parts, key=lambda name: parts[name])

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        best = self.cluster.best_checkpoint_minutes
        return dataclasses.asdict(self) | {"limits": self.limits, "best_checkpoint_minutes": best}

    def __str__(self) -> str:
        cluster, load = self.cluster, self.load
        best = cluster.best_checkpoint_minutes
        advice = f"; least waste at {best:.3g}" if math.isfinite(best) else ""
        behind = ": it falls behind" if load.server_share > 1 else ""
        lines = [
            f"{self.runs} runs, {self.flops:.4g} FLOPs, on {cluster.gpus} GPUs, {cluster.gpus_per_run} a run; "
            f"{self.tries} tries",
            f"makespan           {_hours(self.hours)}  ({_hours(self.low_hours)} to {_hours(self.high_hours)})",
            f"  all GPUs busy    {_hours(self.busy_hours)}",
            f"  longest run      {_hours(self.longest_hours)}",
            f"  plan order       {_hours(self.lossless_hours)}  if nothing is lost",
            f"GPUs at work       {self.utilisation:.1%}",
            f"failures           {self.failures:.4g}, and {self.preemptions:.4g} preemptions",
            f"steps done again   {self.redone_gpu_hours:.4g} GPU h, {self.wasted_flops:.3g} FLOPs"
            f" ({self.wasted_flops / self.flops:.2%})",
            f"saves, restarts    {self.saving_gpu_hours:.4g} and {self.down_gpu_hours:.4g} GPU h",
            f"checkpoints        every {cluster.checkpoint_minutes:.4g} minutes{advice}",
            f"tracker            {load.points:.4g} points/s in {load.batches:.3g} batches/s, "
            f"at most {load.peak_points:.4g} in {load.peak_batches:.3g}",
            f"                   {load.server_share:.0%} of what the server measured takes{behind}",
            f"couriers           {load.couriers}, {load.courier_bytes / 1e9:.3g} GB",
            f"limited by         {self.limits}",
            "",
            f"{'with':<44}{'makespan':>12}{'GPU h done again':>20}",
            *(f"{one.name:<44}{_hours(one.hours):>12}{one.redone_gpu_hours:>20.4g}" for one in self.settings),
        ]
        return "\n".join(lines)


MOST_HOURS = 100_000.0
"""Of one run: eleven years."""


def simulate(plan: Plan, *, tries: int = 10, seed: int = 0, **cluster: Any) -> Replay:
    """Replay a plan.

    Parameters
    ----------
    plan : Plan
        Its rows' ``flops``, and ``hours`` (device hours) where no speed is given.
    tries : int
        Courses to average over, each with its own failures.
    seed : int
    **cluster
        Fields of `trainer.cluster.Cluster`.

    Raises
    ------
    UsageError
        A number that cannot be meant, or nothing says how long a run takes.
    """
    if tries < 1:
        raise UsageError(f"tries = {tries}", allowed="1 or more")
    place = Cluster(**cluster)
    hours = run_hours(plan, place)
    if max(hours) > MOST_HOURS:
        raise UsageError(
            f"a run of {max(hours):.3g} hours",
            allowed=f"up to {MOST_HOURS:g}",
            do="name --flops-per-second in FLOPs, what one GPU gets done: 2e14, not 200",
        )
    place.require_progress(hours)
    courses = [course(hours, place, seed=seed + number) for number in range(tries)]
    lengths = [one.hours for one in courses]
    work, gpus = sum(hours), place.gpus_per_run
    lossless = course(hours, _without_losses(place)).hours
    busy = work / (place.gpus / gpus)
    redone = _mean(courses, "redone")
    return Replay(
        runs=len(hours),
        tries=tries,
        flops=plan.flops,
        cluster=place,
        hours=statistics.fmean(lengths),
        low_hours=min(lengths),
        high_hours=max(lengths),
        busy_hours=busy,
        ideal_hours=max(busy, *hours),
        lossless_hours=lossless,
        longest_hours=max(hours),
        utilisation=statistics.fmean(work * gpus / (place.gpus * length) for length in lengths),
        redone_gpu_hours=redone * gpus,
        saving_gpu_hours=_mean(courses, "saving") * gpus,
        down_gpu_hours=_mean(courses, "down") * gpus,
        wasted_flops=redone / work * plan.flops,
        failures=_mean(courses, "failures"),
        preemptions=_mean(courses, "preemptions"),
        load=_load(courses, place),
        settings=(
            _setting("these settings", courses, place),
            *(
                _setting(name, [course(order, other, seed=seed + number) for number in range(tries)], other)
                for name, order, other in _changed(hours, place)
            ),
            Setting("nothing lost, nothing saved", lossless, 0.0),
        ),
    )


def run_hours(plan: Plan, cluster: Cluster) -> list[float]:
    """Hours that each run takes a worker without losses and saves, in plan order.

    Raises
    ------
    UsageError
        Neither a speed nor the plan says how long a run takes.
    """
    if cluster.flops_per_second is not None:
        speed = cluster.flops_per_second * cluster.gpus_per_run * 3600
        return [float(run.row["flops"]) / speed for run in plan.runs]
    hours = [run.row.get("hours") for run in plan.runs]
    if any(value is None for value in hours):
        raise UsageError(
            "the plan does not say how long its runs take",
            allowed="--flops-per-second, what one GPU gets done (2e14 for a GPU whose best is 1e15, at 20 % of it)",
            do="name it, or plan with --speed SOURCE, runs whose speed was measured",
        )
    return [float(value) / cluster.gpus_per_run for value in hours if value is not None]


def _changed(hours: Sequence[float], cluster: Cluster) -> Iterator[tuple[str, list[float], Cluster]]:
    """One thing changed at a time: what, the runs' hours in order, the cluster."""
    yield "the longest runs first", sorted(hours, reverse=True), cluster
    more = 2 * cluster.gpus_per_run
    if more <= cluster.gpus:
        wider, halves = dataclasses.replace(cluster, gpus_per_run=more), [value / 2 for value in hours]
        yield f"{more} GPUs a run", halves, wider
        yield f"{more} GPUs a run, the longest first", sorted(halves, reverse=True), wider
    yield f"{2 * cluster.gpus} GPUs", list(hours), dataclasses.replace(cluster, gpus=2 * cluster.gpus)
    best = cluster.best_checkpoint_minutes
    if math.isfinite(best) and best > 0:
        saved = dataclasses.replace(cluster, checkpoint_minutes=best)
        yield f"checkpoints every {best:.3g} minutes", list(hours), saved


def _setting(name: str, courses: Sequence[Course], cluster: Cluster) -> Setting:
    return Setting(name, _mean(courses, "hours"), _mean(courses, "redone") * cluster.gpus_per_run)


def _without_losses(cluster: Cluster) -> Cluster:
    return dataclasses.replace(cluster, mtbf_hours=math.inf, preempt_hours=math.inf, checkpoint_seconds=0.0)


def _load(courses: Sequence[Course], cluster: Cluster) -> Load:
    points = cluster.points_per_second
    batches = max(points / BATCH_POINTS, 1 / FLUSH_SECONDS) if points else 0.0
    running = statistics.fmean(one.busy / one.hours for one in courses)
    peak = max(one.peak for one in courses)
    taken = points * SERVER_POINT_SECONDS + batches * SERVER_BATCH_SECONDS
    return Load(
        points=running * points,
        batches=running * batches,
        peak_points=peak * points,
        peak_batches=peak * batches,
        server_share=peak * taken,
        couriers=peak,
        courier_bytes=peak * COURIER_BYTES,
    )


def _mean(courses: Sequence[Course], name: str) -> float:
    return statistics.fmean(getattr(one, name) for one in courses)


def _hours(hours: float) -> str:
    return f"{hours:.4g} h" if hours >= 1 else f"{hours * 60:.3g} min"
