"""Workers as the tasks of a Slurm job array, by submitit: each of them is requeued when its time is over.

submitit pickles what its jobs do, and what they return, into the folder of its logs; nothing else is pickled.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayeslaw import store
from bayeslaw.errors import BayeslawError, JournalError, UsageError
from bayeslaw.plan import read_plan
from trainer.checks import require_count
from trainer.launch import Order
from trainer.launch.local import Workers
from trainer.rundir import job_number
from trainer.sweep import require_read
from trainer.tracking import connect

FOLDER = "slurm"
HOLD_SECONDS = 600.0
"""How long a job that was told to end waits for that: one that ends by itself in its grace is not requeued."""

LOOK_SECONDS = 5.0
TIME_LIMITS = 1_000_000
"""How often a job may come to its time limit and be requeued: as often as it takes."""

OURS = {
    "array": "use --jobs",
    "nodes": "use --nodes",
    "partition": "use --partition",
    "time": "use --time-minutes",
    "output": "logs are in the folder slurm of --out",
}
"""Options of sbatch that the launch sets itself, and what says them."""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """The jobs to ask Slurm for.

    Parameters
    ----------
    partition : str, optional
        By default the cluster's own.
    time_minutes : int
        Time limit of a job; one that comes to it is saved and requeued.
    gpus : bool
        Whether the processes of a run have a GPU each.
    setup : sequence of str
        Shell lines run in every job before the worker.
    options : sequence of str
        Further options of sbatch, as KEY=VALUE, or KEY alone.

    Raises
    ------
    UsageError
        A number below 1, or an option that is none or is set otherwise.
    """

    partition: str | None = None
    time_minutes: int = 60
    gpus: bool = False
    setup: Sequence[str] = ()
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_count("time_minutes", self.time_minutes)
        for option in self.options:
            name = option.partition("=")[0]
            if not re.fullmatch("[a-z][a-z-]*", name) or "\n" in option:
                raise UsageError(f"--slurm {option!r}", allowed="KEY=VALUE, an option of sbatch by its long name")
            if name in OURS:
                raise UsageError(f"--slurm {option!r}", allowed="options without a flag of their own", do=OURS[name])

    def parameters(self, order: Order, jobs: int) -> dict[str, Any]:
        """What submitit is told."""
        further = (option.partition("=") for option in self.options)
        asked: dict[str, Any] = {
            "time": self.time_minutes,
            "nodes": order.nodes,
            "ntasks_per_node": 1,
            "array_parallelism": jobs,
            "stderr_to_stdout": True,
            "setup": list(self.setup) or None,
            "partition": self.partition,
            "gpus_per_node": order.processes // order.nodes if self.gpus else None,
            # the worker stands on the first node alone, and starts torchrun on all of them
            "srun_args": ["--overlap", "--nodes", "1", "--ntasks", "1"] if order.nodes > 1 else None,
            "additional_parameters": {name: value if equals else True for name, equals, value in further},
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Submitted:
    """Jobs that Slurm has taken.

    Parameters
    ----------
    jobs : tuple of str
        Their numbers, as squeue and scancel call them.
    folder : Path
        Where their logs are.
    """

    jobs: tuple[str, ...]
    folder: Path


class Work:
    """One worker, as submitit has a job do it."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._requeued = False

    def __call__(self) -> None:
        """Keep a worker at the plan until nothing is left to take."""
        self._workers = Workers(self._order, 1, lambda _: f"job {job_number()}", _say)
        try:
            self._workers.supervise()
        except SystemExit:
            if self._requeued:
                raise
            _say("told to end: the run is saved")
            time.sleep(HOLD_SECONDS)
            raise
        if self._workers.gave_up:
            raise BayeslawError("the worker gave up, its reason stands above")

    def checkpoint(self) -> Any:
        """Have the run saved; called by submitit at SIGUSR2, before it requeues the job for what is returned."""
        from submitit.helpers import DelayedSubmission

        self._requeued = True
        self._workers.stop()
        return DelayedSubmission(Work(self._order))


def submit(order: Order, slurm: Slurm, *, jobs: int, tracking_uri: str | None = None) -> Submitted:
    """Have Slurm start so many workers; each delivers its journals itself.

    Parameters
    ----------
    order : Order
    slurm : Slurm
    jobs : int
        Tasks of the array.
    tracking_uri : str, optional
        MLflow store, given to the jobs by their environment alone.

    Raises
    ------
    BayeslawError
        submitit or Slurm is not here, or refuses the jobs: nothing is submitted.
    UsageError
        A corpus that cannot be downloaded.
    JournalError
        The plan cannot be used, or the output folder not be written.
    """
    require_count("jobs", jobs)
    plan = read_plan(order.plan)
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise BayeslawError(
            "submitit is not installed", do="pip install 'bayeslaw[cluster]', or leave out --executor slurm"
        ) from error
    if not (shutil.which("sbatch") and shutil.which("srun")):
        raise BayeslawError("no sbatch on this machine", do="submit from a login node, or leave out --executor slurm")
    require_read(plan)
    parameters = slurm.parameters(order, jobs) | {"job_name": f"bayeslaw-{plan.sweep}"}
    order = replace(order, plan=order.plan.absolute(), out=order.out.absolute())  # wherever the jobs begin
    folder = _fresh(order.out / FOLDER)
    executor = submitit.SlurmExecutor(folder, max_num_timeout=TIME_LIMITS, python=f"{shlex.quote(sys.executable)} -P")
    try:
        with _store_named(tracking_uri):
            executor.update_parameters(**parameters)
            with executor.batch():
                submitted = [executor.submit(Work(order)) for _ in range(jobs)]
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:  # submitit's own are RuntimeErrors
        shutil.rmtree(folder, ignore_errors=True)
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BayeslawError(
            f"Slurm does not take the jobs: {lines[-1] if lines else error}",
            do="see `sinfo` for partitions and limits, and give options with --slurm KEY=VALUE; nothing was submitted",
        ) from error
    return Submitted(tuple(str(job.job_id) for job in submitted), folder)


def wait(submitted: Submitted) -> None:
    """Wait until Slurm has none of the jobs any more, waiting or running.

    Raises
    ------
    BayeslawError
        Slurm does not answer for a minute.
    """
    silent = 0
    while True:
        asked = ["squeue", "--noheader", "--format", "%i", "--jobs", ",".join(submitted.jobs)]
        answer = subprocess.run(asked, capture_output=True, text=True)
        silent = 0 if answer.returncode == 0 or "Invalid job id" in answer.stderr else silent + 1
        if silent == 0 and not answer.stdout.strip():
            return
        if silent * LOOK_SECONDS > 60:
            raise BayeslawError(
                f"Slurm does not answer: {answer.stderr.strip()}",
                do="the jobs go on; `bayeslaw sweep status PLAN --out DIR` says where their runs stand",
            )
        time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def _store_named(uri: str | None) -> Iterator[None]:
    """Have the jobs' environment name the store, which is made first: many at once would each try to make it."""
    if uri is None:
        yield
        return
    try:
        connect(uri)
    except BayeslawError as error:
        _say(f"warning: {store.public_uri(uri)}: {error.what}; journals are kept for `bayeslaw runs sync DIR`")
    before = os.environ.get(store.URI_VARIABLE)
    os.environ[store.URI_VARIABLE] = uri
    try:
        yield
    finally:
        if before is None:
            del os.environ[store.URI_VARIABLE]
        else:
            os.environ[store.URI_VARIABLE] = before


def _fresh(above: Path) -> Path:
    """A new folder: a cluster whose job numbers begin anew would give the results of old ones."""
    number = 1
    try:
        while True:
            with contextlib.suppress(FileExistsError):
                folder = above / f"{number:03d}"
                folder.mkdir(parents=True)
                return folder
            number += 1
    except OSError as error:
        raise JournalError(f"cannot write {above}: {error.strerror}", do="choose another --out") from error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
