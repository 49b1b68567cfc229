"""The journal of a run in training: begun or gone on with, followed into MLflow, ended however the run ends."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bayeslaw.journal import FILE_NAME, Journal, JournalWriter
from bayeslaw.plan import config_hash
from bayeslaw.version import versions
from trainer import checkpoint, rundir
from trainer.distributed import World
from trainer.hardware import device_name
from trainer.run import STOPPED, Run
from trainer.tracking import Tracking


def begun(
    run: Run,
    study: str,
    sweep: Mapping[str, Any] | None,
    tracking: Tracking | None,
    there: Journal | None,
    point: checkpoint.Checkpoint | None,
    tell: Callable[[str], None],
) -> Writer:
    """The writer of a run that begins, or goes on.

    Parameters
    ----------
    run : Run
    study : str
        MLflow experiment.
    sweep : mapping, optional
        The plan, see `bayeslaw.journal`.
    tracking : Tracking, optional
    there : Journal, optional
        The run's journal where it can be gone on with.
    point : Checkpoint, optional
        What the run goes on from.
    tell : callable
        Told what the person should know.

    Raises
    ------
    JournalError
        The journal cannot be written.
    """
    run_dir = run.folder.parent
    if point is None:
        before, now = rundir.trained_on(run_dir), run.config.data.corpus_digest
        if kept := rundir.set_aside(run_dir, FILE_NAME, checkpoint.FOLDER):
            why = "nothing there to go on from; what was there"
            if before not in (None, now):
                why = f"what was there was trained on another state of the corpus (digest {before}, now {now}) and"
            tell(f"begins anew: {why} is kept as {', '.join(kept)}")
        return Writer(run, study, sweep, tracking, fresh=True, resumed=False)
    whole = there is not None
    if there is None:
        kept = rundir.set_aside(run_dir, FILE_NAME)
        whole = bool(kept) and rundir.begin_from(run_dir / kept[0], run_dir / FILE_NAME, run.facts["config_hash"])
        where = f", kept as {kept[0]}" if kept else ""
        then = "goes on after its last whole line" if whole else "begins here, the curve up to now is not in it"
        tell(f"its journal is lost or damaged{where}; a new one {then}")
    tell(f"goes on after step {point.step} of {run.config.steps}")
    return Writer(run, study, sweep, tracking, fresh=not whole, resumed=True)


class Silent:
    """What a process does that does not write."""

    state = "failed"

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...

    def record(self, step: int, values: dict[str, float]) -> None:
        """Leave the point of the curve to the one that writes."""

    def sync(self) -> None:
        """Leave the disk alone."""


class Writer(Silent):
    """Writes the journal of a run and has it followed, from its start or resume record to its end record."""

    def __init__(
        self,
        run: Run,
        study: str,
        sweep: Mapping[str, Any] | None,
        tracking: Tracking | None,
        *,
        fresh: bool,
        resumed: bool,
    ) -> None:
        self._run = run
        run_dir = run.folder.parent
        self._journal = JournalWriter(run_dir)
        self._tracking = tracking
        if tracking:
            tracking.follow(self._journal.path)
        config, device = run.config, device_row(run.world)
        if fresh:
            self._journal.start(
                study=study,
                config=config.to_dict(),
                config_hash=config_hash(config.to_dict()),
                versions=code_versions(),
                row=config.row | device,
                environment=environment(),
                sweep=sweep,
            )
        if resumed:
            self._journal.resume(step=run.steps_done, versions=code_versions(), row=device)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        text = None
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.state, text = STOPPED, f"stopped by {_signal(error)}"
        elif error is not None:
            self.state, text = "failed", rundir.reason(error)
        with contextlib.closing(self._journal):
            self._journal.end(state=self.state, row=self._run.row, error=text)
        if self._tracking:
            self._tracking.flush()

    def record(self, step: int, values: dict[str, float]) -> None:
        """Write a point of the curve."""
        self._journal.metrics(step, values)

    def sync(self) -> None:
        """Bring the journal to the disk, and on its way to MLflow."""
        self._journal.sync()
        if self._tracking:
            self._tracking.flush()


def _signal(error: KeyboardInterrupt | SystemExit) -> str:
    """What asked a run to stop, as `trainer.signals.stopped` gave it."""
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    code = error.code if isinstance(error.code, int) else 0
    return signal.Signals(code - 128).name if code > 128 else "its process"


def code_versions() -> dict[str, str]:
    """Versions of what trains."""
    return versions("torch")


def environment() -> dict[str, Any]:
    """What the journal keeps of where a run is trained, besides the versions that matter."""
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    return {"cpus": os.cpu_count(), "cuda": torch.version.cuda, "packages": dict(sorted(installed.items()))}


def device_row(world: World) -> dict[str, Any]:
    """Run-table columns of where a run is trained."""
    return {"device": device_name(world.device), "device_count": world.size}
