"""One journal into MLflow, record by record.

How many records have arrived is kept in the MLflow run's own tags, and what is sent twice is the same point to the
store. So a delivery can stop anywhere and be taken up by anybody, any number of times. What is sent for a record
depends on the records up to it alone, not on when it is delivered.

A run that was resumed stays one MLflow run. Steps done again are sent where they came out differently; their readers
take the last point of a step.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslaw import schema
from bayeslaw.errors import JournalError, TrackingError
from bayeslaw.journal import Journal, read_journal
from trainer.rundir import earlier_attempts

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BATCH_POINTS = 500
CONFIG_ARTIFACT = "config.json"
CURVE_ARTIFACT = "curve.csv"

STATUS = {"finished": "FINISHED", "killed": "KILLED", "failed": "FAILED", "diverged": "FAILED"}
"""MLflow's status for each state that ends a run."""


class Delivery:
    """Brings the records of one journal to MLflow.

    Parameters
    ----------
    client : MlflowClient
    path : Path
        The journal file.
    uri : str
        The client's tracking URI; beside a sqlite database the artifacts are kept in ``mlartifacts``.
    """

    def __init__(self, client: MlflowClient, path: Path, uri: str) -> None:
        self._client = client
        self._path = path
        self._uri = uri
        self._run: Run | None = None
        self._delivered = 0

    @property
    def mlflow_run_id(self) -> str:
        """Id of the MLflow run, once something was delivered."""
        return str(self._run.info.run_id) if self._run else ""

    def push(self) -> tuple[Journal, int]:
        """Deliver what has not been delivered; the journal as read, and the number of records newly delivered."""
        from mlflow.entities import Metric

        journal = read_journal(self._path)
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            os.fsync(file.fileno())  # a record that MLflow has counted must not be lost: the next would pass for it
        if self._run is None:
            self._run = self._find_or_create(journal)
            self._delivered = int(self._run.data.tags.get(schema.TAG_DELIVERED, 0))
        before = self._delivered
        metrics: list[Metric] = []
        last: dict[tuple[str, int], str] = {}  # what MLflow has of each name and step
        for position, record in enumerate(journal.records, start=1):
            new = position > before
            if record["event"] == "metrics":
                when, step = _milliseconds(record["time"]), record["step"]
                for name, value in record["values"].items():
                    if last.get((name, step)) != repr(value):
                        last[name, step] = repr(value)
                        if new:
                            metrics.append(Metric(name, value, when, step))
                if len(metrics) >= BATCH_POINTS:
                    self._send(position, metrics)
                    metrics = []
            elif new:
                self._send(position - 1, metrics)
                metrics = []
                so_far = Journal(journal.path, journal.records[:position])
                if record["event"] == "start":
                    self._send_start(so_far)
                elif record["event"] == "resume":
                    self._send_resume(so_far)
                elif record["event"] == "end":
                    self._send_end(so_far)
        self._send(len(journal.records), metrics)
        return journal, self._delivered - before

    def _find_or_create(self, journal: Journal) -> Run:
        """The MLflow run of this attempt: same run_id, config and start. Earlier ones are closed."""
        start = journal.start
        experiment_id = self._experiment(start["study"])
        began = _milliseconds(start["time"])
        same_config = self._client.search_runs(
            [experiment_id], f"tags.`{schema.TAG_CONFIG_HASH}` = '{start['config_hash']}'"
        )
        attempts = {
            run.info.start_time: run for run in same_config if run.data.tags.get(schema.TAG_RUN_ID) == journal.run_id
        }
        for earlier in earlier_attempts(self._path.parent):
            with contextlib.suppress(JournalError):  # too damaged to have told MLflow of anything
                left = attempts.get(_milliseconds(read_journal(earlier).start["time"]))
                if left is not None and left.info.status == "RUNNING":
                    self._client.set_tag(left.info.run_id, schema.TAG_STATE, "killed")
                    self._client.set_terminated(left.info.run_id, "KILLED", began)
        tags = {
            schema.TAG_RUN_ID: journal.run_id,
            schema.TAG_CONFIG_HASH: start["config_hash"],
            schema.TAG_CODE_VERSION: start["versions"].get("bayeslaw", ""),
            schema.TAG_STATE: "running",
            schema.TAG_DELIVERED: "0",
        }
        return attempts.get(began) or self._client.create_run(
            experiment_id, start_time=began, tags=tags, run_name=journal.run_id
        )

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=_artifact_location(self._uri, name)))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)  # another process was quicker
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            raise TrackingError(f"the MLflow experiment {name!r} is deleted", do="restore it, or name another --study")
        return str(experiment.experiment_id)

    def _send(
        self, position: int, metrics: Sequence[Any] = (), *, params: Sequence[Any] = (), tags: Sequence[Any] = ()
    ) -> None:
        """Send a batch whose arrival means that the first ``position`` records are there."""
        from mlflow.entities import RunTag

        if position <= self._delivered:
            return
        tags = [*tags, RunTag(schema.TAG_DELIVERED, str(position))]
        self._client.log_batch(self.mlflow_run_id, metrics=metrics, params=params, tags=tags)
        self._delivered = position

    def _send_start(self, journal: Journal) -> None:
        from mlflow.entities import Param

        row = journal.start["row"]
        names = [name for name, column in schema.COLUMNS.items() if not column.result and name in row]
        config = json.dumps(journal.start["config"], indent=1, sort_keys=True)
        self._client.log_text(self.mlflow_run_id, config, CONFIG_ARTIFACT)
        self._send(1, params=[Param(name, _text(row[name])) for name in names if name != "state"])

    def _send_resume(self, journal: Journal) -> None:
        """A run that had ended goes on."""
        from mlflow.entities import RunTag

        if schema.TAG_ERROR in self._client.get_run(self.mlflow_run_id).data.tags:
            self._client.delete_tag(self.mlflow_run_id, schema.TAG_ERROR)
        self._client.update_run(self.mlflow_run_id, status="RUNNING")
        resumes = sum(record["event"] == "resume" for record in journal.records)
        tags = [RunTag(schema.TAG_STATE, "running"), RunTag(schema.TAG_RESUMES, str(resumes))]
        self._send(len(journal.records), tags=tags)

    def _send_end(self, journal: Journal) -> None:
        """Results, state, artifacts, status; the position last, so that an interrupted end is done again."""
        from mlflow.entities import Metric, RunTag

        end = journal.records[-1]
        when = _milliseconds(end["time"])
        # The highest step ever, though a resume may have gone back before it: MLflow takes the value of the last step.
        last_step = max((record["step"] for record in journal.records if record["event"] == "metrics"), default=0)
        results = [
            Metric(name, float(value), when, last_step)
            for name, value in end["row"].items()
            if name in schema.COLUMNS and schema.COLUMNS[name].result
        ]
        tags = [RunTag(schema.TAG_STATE, end["state"])]
        if end.get("error"):
            tags.append(RunTag(schema.TAG_ERROR, str(end["error"])[:2000]))
        self._client.log_batch(self.mlflow_run_id, metrics=results, tags=tags)
        self._client.log_text(self.mlflow_run_id, _curve(journal), CURVE_ARTIFACT)
        self._client.set_terminated(self.mlflow_run_id, STATUS[end["state"]], when)
        self._client.set_tag(self.mlflow_run_id, schema.TAG_DELIVERED, str(len(journal.records)))
        self._delivered = len(journal.records)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _text(value: Any) -> str:
    """A param's text: the same for 4 and 4.0, since MLflow refuses a param that comes back changed."""
    return repr(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)


def _curve(journal: Journal) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time", "step", "metric", "value"))
    for record in journal.metrics:
        writer.writerows((record["time"], record["step"], name, value) for name, value in record["values"].items())
    return text.getvalue()


def _artifact_location(uri: str, experiment: str) -> str | None:
    """Beside a sqlite database, since MLflow's own choice would be the working directory; otherwise MLflow's choice."""
    if not uri.startswith("sqlite:///"):
        return None
    folder = "".join(character if character.isalnum() or character in "-_." else "-" for character in experiment)
    return (Path(uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts" / folder).as_uri()
