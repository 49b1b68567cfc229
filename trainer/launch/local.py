"""Workers as processes of this machine, several to a GPU if need be: who dies is replaced, nobody is left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping

from bayeslaw.errors import UsageError
from bayeslaw.journal import FILE_NAME
from bayeslaw.plan import read_plan
from trainer.attempts import recorded
from trainer.checks import require_count
from trainer.launch import Order
from trainer.rundir import run_directory
from trainer.signals import Signals, stopped
from trainer.standing import RUNNING, left, standings
from trainer.sweep import BUSY, RunOutcome, require_device, require_read
from trainer.tracking import Tracking

POLL_SECONDS = 0.1
FLUSH_SECONDS = 10.0
LAST_SECONDS = 5.0
"""That a worker has, once it is to stop at once, before it is killed."""


def launch(
    order: Order, *, jobs: int, tracking_uri: str | None = None, tell: Callable[[str], None]
) -> list[RunOutcome]:
    """Have a plan worked through by several workers on this machine.

    The first Ctrl-C, SIGTERM or SIGHUP has every worker save and stop, a second one stops them at once.

    Parameters
    ----------
    order : Order
    jobs : int
        Workers at a time.
    tracking_uri : str, optional
        MLflow store that one process for all of them delivers the journals to.
    tell : callable
        Told, a line at a time, what becomes of the workers; what becomes of runs they tell on stderr.

    Returns
    -------
    One outcome for each planned run, in the plan's order.

    Raises
    ------
    UsageError
        No worker, more GPUs for a run than there are, or a corpus that cannot be downloaded.
    JournalError
        The plan cannot be used.
    KeyboardInterrupt, SystemExit
        Ctrl-C or a signal; every run in training is saved.
    """
    require_count("jobs", jobs)
    plan = read_plan(order.plan)
    require_read(plan)
    before = attempts_before(order)
    workers = Workers(order, jobs, lambda number: f"worker {number}", tell)
    with Tracking(tracking_uri) if tracking_uri else contextlib.nullcontext() as tracking:
        if tracking:
            tracking.follow(*(run_directory(order.out, run.run_id) / FILE_NAME for run in plan.runs))
        workers.supervise(tracking.flush if tracking else None)
    return outcomes(order, before)


def outcomes(order: Order, before: Mapping[str, int]) -> list[RunOutcome]:
    """What became of every run of the plan, by its files.

    ``before`` are its attempts before the launch.
    """
    return [
        RunOutcome(
            each.run_id,
            BUSY if each.state == RUNNING else each.state,
            each.row,
            each.run_dir,
            trained=each.attempts > before[each.run_id],
            seconds=each.seconds,
            error=each.error,
        )
        for each in standings(read_plan(order.plan), order.out, retries=order.retries)
    ]


def attempts_before(order: Order) -> dict[str, int]:
    """How often each run of the plan was tried until now."""
    return {each.run_id: each.attempts for each in standings(read_plan(order.plan), order.out)}


class Workers:
    """Workers of a launch on this machine.

    Parameters
    ----------
    order : Order
    jobs : int
        How many.
    name : callable
        The name of each, by its number from 1.
    tell : callable
        As for `launch`.

    Raises
    ------
    UsageError
        A run takes more GPUs than there are.
    """

    def __init__(self, order: Order, jobs: int, name: Callable[[int], str], tell: Callable[[str], None]) -> None:
        self._order, self._plan, self._jobs, self._name, self._tell = order, read_plan(order.plan), jobs, name, tell
        self._gpus = visible_gpus(order)
        self._alive: dict[int, subprocess.Popen[bytes]] = {}
        self._vacant: list[int] = []  # numbers of those that died and are not replaced yet
        self._look_at = 0.0
        self.gave_up = 0
        """Workers that said why they cannot go on, or died before they began."""

    def supervise(self, flush: Callable[[], None] | None = None) -> None:
        """Start the workers, replace those that die while something is left, and wait for the others.

        ``flush`` is called now and then: it has what delivers replaced where that died.
        """
        asked = False
        flushed = time.monotonic()
        with Signals() as signals:
            try:
                for number in range(1, self._jobs + 1):
                    self._start(number)
                while self._alive or self._vacant:
                    time.sleep(POLL_SECONDS)
                    if flush and time.monotonic() - flushed >= FLUSH_SECONDS:
                        flush()
                        flushed = time.monotonic()
                    if signals.requested is not None and not asked:
                        asked = True
                        self._tell("stopping: every worker finishes its step and saves; once more stops at once")
                        self._ask()
                    for number, worker in list(self._alive.items()):
                        if worker.poll() is not None:
                            del self._alive[number]
                            if not asked:
                                self._ended(number, worker)
                    if asked:
                        self._vacant.clear()
                    elif self._vacant and time.monotonic() >= self._look_at:
                        self._fill()
            finally:
                self._end()
        if asked:
            self._tell("stopped, every run in training is saved; the same command goes on with them")
            raise stopped(signals.requested)

    def _start(self, number: int) -> None:
        here = self._order.processes // self._order.nodes
        cores = int(os.environ.get("SLURM_CPUS_PER_TASK", 0)) or len(os.sched_getaffinity(0))
        threads = max(1, cores // (self._jobs * here))
        env = {"OMP_NUM_THREADS": str(threads)} | os.environ
        if self._gpus:
            own = [self._gpus[((number - 1) * here + place) % len(self._gpus)] for place in range(here)]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        self._alive[number] = subprocess.Popen(
            self._order.command(self._name(number)),
            stdin=subprocess.PIPE,  # held open as long as it is to work
            env=env,
            start_new_session=True,  # Ctrl-C is for this process, which passes it on once
        )

    def _ended(self, number: int, worker: subprocess.Popen[bytes]) -> None:
        """Replace a worker that died; one that ended had nothing left to take, or said why it cannot go on."""
        code = worker.returncode
        if code == 0:
            return
        if 0 < code < 128:
            self._tell(f"{self._name(number)} gave up, its reason stands above; the others go on")
            self.gave_up += 1
            return
        died = f"{self._name(number)} (process {worker.pid}) was ended by signal {-code if code < 0 else code - 128}"
        begun = any(
            event.get("pid") == worker.pid
            for run in self._plan.runs
            for event in recorded(run_directory(self._order.out, run.run_id))
        )
        if not begun:
            self._tell(f"{died} before it began a run, and is not replaced")
            self.gave_up += 1
        else:
            self._tell(f"{died}; another takes its place, and its run goes on from its last checkpoint")
            self._vacant.append(number)
            self._look_at = 0.0

    def _fill(self) -> None:
        """Replace a worker that died once something is left to take; a run that several train ends after its worker."""
        begun = time.monotonic()
        stands = standings(self._plan, self._order.out, retries=self._order.retries)
        if left(stands):
            self._start(self._vacant.pop())
        elif not self._alive and not any(each.state == RUNNING and not each.by_sweep for each in stands):
            self._vacant.clear()
        done = time.monotonic()
        self._look_at = done + max(1.0, 20 * (done - begun))  # a look reads every journal

    def stop(self) -> None:
        """Have every worker save and stop, and wait until all have; may be called by a handler of signals."""
        self._ask()
        for worker in self._alive.values():
            with contextlib.suppress(ChildProcessError):
                # Popen's own wait would wait for a lock that the interrupted code may hold.
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)

    def _ask(self) -> None:
        """Have every worker save and stop."""
        for worker in self._alive.values():
            assert worker.stdin is not None
            with contextlib.suppress(OSError):
                worker.stdin.close()

    def _end(self) -> None:
        """Have no worker live on."""
        self._ask()
        for worker in self._alive.values():
            worker.terminate()
        deadline = time.monotonic() + LAST_SECONDS
        for worker in self._alive.values():
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self._alive.clear()


def visible_gpus(order: Order) -> list[str]:
    """The GPUs that workers share, as CUDA_VISIBLE_DEVICES names them; none where runs are trained on the CPU.

    Raises
    ------
    UsageError
        A run takes more than there are.
    """
    if order.execution.device == "cpu":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        gpus = [name for name in named.split(",") if name]
    else:
        import torch

        gpus = [str(number) for number in range(torch.cuda.device_count())]
    here = order.processes // order.nodes
    require_device(order.execution, bool(gpus))
    if gpus and here > len(gpus):
        raise UsageError(
            f"{here} GPUs of this machine for a run, and it shows {len(gpus)}",
            allowed=f"1 to {len(gpus)}",
            do="take fewer, or train with --device cpu",
        )
    return gpus
