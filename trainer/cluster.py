"""A cluster on which runs fail and are preempted, and the course that a sweep takes on it.

Workers take runs in plan order, as `bayeslaw sweep run` has them do: a worker that is free takes the first run that
nobody trains; one that finds none ends. A run of K GPUs fails at K times the rate of one GPU, and is resumed from its
last checkpoint by the worker that failed, once that has been started again, or by another that is free before it.

A loss ends one run: that a node may hold several is not played.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from bayeslaw.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What the runs are trained on.

    Parameters
    ----------
    gpus : int
        GPUs in all.
    gpus_per_run : int
        GPUs of one run, whose speed is taken to grow in proportion.
    flops_per_second : float, optional
        What one GPU gets done in training; without it the plan's expected device hours decide.
    mtbf_hours : float
        Mean time between failures of one GPU and its share of the node. The default is that of a published training:
        419 unexpected interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, table 5).
    preempt_hours : float
        Mean time until a running worker is preempted.
    grace : bool
        A preempted worker has the time to save its state.
    checkpoint_minutes, checkpoint_seconds : float
        Training between two checkpoints, and how long it stands still for one.
    restart_minutes : float
        From the end of a worker to its first step after the restart.
    points_per_second : float
        Metric points that a run in training records.
    """

    gpus: int
    gpus_per_run: int = 1
    flops_per_second: float | None = None
    mtbf_hours: float = 50_700.0
    preempt_hours: float = math.inf
    grace: bool = True
    checkpoint_minutes: float = 10.0
    checkpoint_seconds: float = 5.0
    restart_minutes: float = 5.0
    points_per_second: float = 1.0

    def __post_init__(self) -> None:
        if self.gpus < 1 or not 1 <= self.gpus_per_run <= self.gpus:
            raise UsageError(
                f"gpus = {self.gpus}, gpus_per_run = {self.gpus_per_run}", allowed="1 <= gpus_per_run <= gpus"
            )
        above = ("mtbf_hours", "preempt_hours", "checkpoint_minutes")
        for name in (*above, "checkpoint_seconds", "restart_minutes", "points_per_second"):
            value = getattr(self, name)
            if not (value > 0 if name in above else 0 <= value < math.inf):
                raise UsageError(f"{name} = {value}", allowed="a number above 0" if name in above else "0 or more")
        if self.flops_per_second is not None and not 0 < self.flops_per_second < math.inf:
            raise UsageError(f"flops_per_second = {self.flops_per_second}", allowed="a number above 0")

    def require_progress(self, hours: Sequence[float]) -> None:
        """Make sure that runs of so many hours get from one checkpoint to the next.

        Raises
        ------
        UsageError
            Fewer than one stretch in 20 would come to its end: the runs would hardly ever finish.
        """
        stretch = min(self.checkpoint_minutes / 60, max(hours)) + self.checkpoint_seconds / 3600
        if stretch * self._losses_per_hour > math.log(20):
            between = 1 / self._losses_per_hour
            raise UsageError(
                f"{stretch:.3g} h from checkpoint to checkpoint where a run is lost every {between:.3g} h",
                allowed="several checkpoints in the mean time between losses",
                do=f"try --checkpoint-minutes {min(self.best_checkpoint_minutes or math.inf, 60 * between):.2g}",
            )

    @property
    def _losses_per_hour(self) -> float:
        """Of a running worker, those that cost steps."""
        return self.gpus_per_run / self.mtbf_hours + (0.0 if self.grace else 1 / self.preempt_hours)

    @property
    def workers(self) -> int:
        """Runs trained side by side at most."""
        return self.gpus // self.gpus_per_run

    @property
    def best_checkpoint_minutes(self) -> float:
        """The interval that wastes least: sqrt(2 x seconds of a save x mean time between losses) (Young 1974)."""
        lost = self._losses_per_hour
        return math.sqrt(2 * self.checkpoint_seconds / 3600 / lost) * 60 if lost > 0 else math.inf


@dataclass(frozen=True)
class Course:
    """One course that the sweep may take.

    Parameters
    ----------
    hours : float
        Makespan: from the first step of the first run to the last of the last.
    busy : float
        Worker hours from a worker's start of a run to its end or loss.
    redone, saving, down : float
        Worker hours of steps that were lost, of saves, and of waiting for a restart.
    failures, preemptions : int
    peak : int
        Most runs in training at a time.
    """

    hours: float
    busy: float
    redone: float
    saving: float
    down: float
    failures: int
    preemptions: int
    peak: int


def course(hours: Sequence[float], cluster: Cluster, *, workers: int | None = None, seed: int = 0) -> Course:
    """One course of runs of so many hours, taken in this order.

    Parameters
    ----------
    hours : sequence of float
        Hours of each run, without losses and saves.
    cluster : Cluster
    workers : int, optional
        The cluster's by default.
    seed : int
        Of the failures and preemptions.
    """
    draw = random.Random(seed)
    interval, save = cluster.checkpoint_minutes / 60, cluster.checkpoint_seconds / 3600
    restart = cluster.restart_minutes / 60
    rates = (cluster.gpus_per_run / cluster.mtbf_hours, 1 / cluster.preempt_hours)
    left = list(hours)
    waiting = list(range(len(hours)))  # a heap: the first in plan order on top
    events = [(0.0, worker) for worker in range(min(workers or cluster.workers, len(hours)))]  # when each is free
    ends: list[tuple[float, float]] = []  # of every stretch of training
    released: list[tuple[float, int]] = []  # runs that a loss gives back, at its time
    busy = redone = saving = down = 0.0
    counts = [0, 0]
    while events:
        now, worker = heapq.heappop(events)
        while released and released[0][0] <= now:
            heapq.heappush(waiting, heapq.heappop(released)[1])
        if not waiting:
            continue
        run = heapq.heappop(waiting)
        saves = max(math.ceil(left[run] / interval - 1e-9) - 1, 0)
        whole = left[run] + saves * save
        strikes = [draw.expovariate(rate) if rate > 0 else math.inf for rate in rates]
        until = min(strikes)
        if until >= whole:
            ends.append((now, now + whole))
            busy, saving, left[run] = busy + whole, saving + saves * save, 0.0
            heapq.heappush(events, (now + whole, worker))
            continue
        kind = strikes.index(until)
        counts[kind] += 1
        kept = int(until / (interval + save))  # intervals whose save is done
        trained = min(until - kept * (interval + save), interval)  # since the last save; the rest went into the next
        graceful = kind == 1 and cluster.grace
        lost = 0.0 if graceful else trained
        left[run] -= kept * interval + trained - lost
        busy, redone, down = busy + until, redone + lost, down + restart
        saving += until - kept * interval - trained
        ends.append((now, now + until))
        heapq.heappush(released, (now + until, run))
        heapq.heappush(events, (now + until + restart, worker))
    last = max(end for _, end in ends)
    return Course(last, busy, redone, saving, down, counts[0], counts[1], _most_at_once(ends))


def _most_at_once(stretches: Sequence[tuple[float, float]]) -> int:
    changes = sorted([(begin, 1) for begin, _ in stretches] + [(end, -1) for _, end in stretches])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
