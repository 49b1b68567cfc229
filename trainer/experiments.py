"""Where runs stand in MLflow: the experiment of a study, and the parent run of a sweep."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslaw import schema
from bayeslaw.errors import JournalError, TrackingError
from trainer.rundir import SETTLED, one_at_a_time

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARENT_TAG = "mlflow.parentRunId"


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """The id of the experiment of a study, which is made where it is missing.

    Raises
    ------
    TrackingError
        It was deleted.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifact_location(uri, name)))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process was quicker
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise TrackingError(f"the MLflow experiment {name!r} is deleted", do="restore it, or name another --study")
    return str(experiment.experiment_id)


def runs_tagged(client: MlflowClient, experiment: str, tag: str, value: str, more: str = "") -> list[Run]:
    """The runs of an experiment with this value of a tag, the earliest first.

    Raises
    ------
    JournalError
        The value, which a journal holds, is none that bayeslaw writes: a filter must not be made of it.
    """
    if not value.replace(" ", "").isalnum():
        raise JournalError(f"{tag} = {value!r} is no hash", do="train the run again: its journal is foreign or damaged")
    found: list[Run] = []
    token = None
    while True:
        page = client.search_runs(
            [experiment], f"tags.`{tag}` = '{value}'{more}", order_by=["attributes.start_time ASC"], page_token=token
        )
        found.extend(page)
        token = page.token
        if not token:
            return found


def milliseconds(seconds: float) -> int:
    """Seconds since 1970 as MLflow counts them."""
    return int(seconds * 1000)


class SweepParent:
    """The run that stands for a sweep: the parent of its runs.

    It is running while any of them is, finished when all that were planned have come to their end, else killed.

    Parameters
    ----------
    client : MlflowClient
    experiment : str
        Id of the experiment.
    sweep : str
        First digits of the plan's hash.
    began : int
        Milliseconds since 1970, for a parent that must be made.
    runs : int, optional
        How many are planned, for a parent that must be made.
    folder : Path, optional
        Output folder of the sweep, whose processes take turns there.
    """

    def __init__(
        self,
        client: MlflowClient,
        experiment: str,
        sweep: str,
        *,
        began: int,
        runs: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._client = client
        self._experiment = experiment
        self._sweep = sweep
        self._folder = folder
        with self._turn():
            there = runs_tagged(client, experiment, schema.TAG_SWEEP, sweep)
            parents = [run for run in there if schema.TAG_RUN_ID not in run.data.tags]
            self.run_id = parents[0].info.run_id if parents else self._made(began, runs)
            self._planned = int(parents[0].data.tags.get(schema.TAG_PLANNED, 0)) if parents else runs

    def _turn(self) -> contextlib.AbstractContextManager[None]:
        return one_at_a_time(self._folder / f"sweep-{self._sweep}.lock") if self._folder else contextlib.nullcontext()

    def _made(self, began: int, runs: int) -> str:
        tags = {schema.TAG_SWEEP: self._sweep, schema.TAG_STATE: "running", schema.TAG_PLANNED: str(runs)}
        name = f"sweep {self._sweep}"
        return str(self._client.create_run(self._experiment, start_time=began, tags=tags, run_name=name).info.run_id)

    def tell(self, when: int) -> None:
        """Let the parent's status follow those of the runs, after one of them began, went on or ended at ``when``."""
        with self._turn():
            more = " and attributes.status = 'RUNNING'"
            running: list[Any] = runs_tagged(self._client, self._experiment, schema.TAG_SWEEP, self._sweep, more)
            ids = {run.info.run_id for run in running}
            others = bool(ids - {self.run_id})
            if others and self.run_id not in ids:
                self._client.update_run(self.run_id, status="RUNNING")
                self._client.set_tag(self.run_id, schema.TAG_STATE, "running")
            elif not others:
                whole = len(self._settled()) >= self._planned
                self._client.set_terminated(self.run_id, "FINISHED" if whole else "KILLED", when)
                self._client.set_tag(self.run_id, schema.TAG_STATE, "finished" if whole else "killed")

    def _settled(self) -> set[str]:
        """Names of the runs that have come to their end."""
        found = runs_tagged(self._client, self._experiment, schema.TAG_SWEEP, self._sweep)
        tags = [run.data.tags for run in found if schema.TAG_RUN_ID in run.data.tags]
        return {each[schema.TAG_RUN_ID] for each in tags if each[schema.TAG_STATE] in SETTLED}


def _artifact_location(uri: str, experiment: str) -> str | None:
    """Beside a sqlite database, since MLflow's own choice would be the working directory; otherwise MLflow's choice."""
    if not uri.startswith("sqlite:///"):
        return None
    folder = "".join(character if character.isalnum() or character in "-_." else "-" for character in experiment)
    return (Path(uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts" / folder).as_uri()
