"""One journal into MLflow, record by record.

How many records have arrived is kept in the MLflow run's own tags, with the checksum of the last of them, and what is
sent twice is the same point to the store. So a delivery can stop anywhere and be taken up by anybody, any number of
times. What is sent for a record depends on the records up to it alone, not on when it is delivered.

A run that was resumed stays one MLflow run. Steps done again are sent where they came out differently; their readers
take the last point of a step.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslaw import schema
from bayeslaw.errors import JournalError
from bayeslaw.journal import Journal, read_journal, read_start
from trainer.entries import Entries, Entry, Point
from trainer.experiments import PARENT_TAG, SweepParent, experiment_id, milliseconds, runs_tagged
from trainer.rundir import STALE_SECONDS, earlier_attempts, one_at_a_time

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

BATCH_POINTS = 500
MOST_POINTS = 1000
"""MLflow refuses a batch of more."""

CONFIG_ARTIFACT = "config.json"
ENVIRONMENT_ARTIFACT = "environment.json"
CURVE_ARTIFACT = "curve.csv"

DIGEST_CHARACTERS = 36
"""MLflow refuses the digest of a data set that is longer."""

STATUS = {"finished": "FINISHED", "killed": "KILLED", "failed": "FAILED", "diverged": "FAILED", "running": "RUNNING"}
"""MLflow's status for each state."""


class Delivery:
    """Brings the records of one journal to MLflow.

    Several processes may deliver one journal: they take turns, and what one of them sends again changes nothing.

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
        self._entries = Entries(path)
        self._waiting: deque[Entry] = deque()
        self._run: Run | None = None
        self._parent: SweepParent | None = None
        self.records = 0
        """Records that MLflow has."""
        self.state = ""
        """The state that MLflow has been told, empty before the first delivery."""

    @property
    def mlflow_run_id(self) -> str:
        """Id of the MLflow run, once something was delivered."""
        return str(self._run.info.run_id) if self._run else ""

    def pending(self) -> int:
        """Read on; the points that wait, or at least a batch where a record waits that should go at once.

        Raises
        ------
        JournalError
            The journal cannot be read, or is damaged.
        """
        self._waiting += self._entries.read()
        points = sum(len(entry.points) for entry in self._waiting)
        return points if all(entry.is_curve for entry in self._waiting) else max(points, BATCH_POINTS)

    def push(self) -> int:
        """Deliver what has not been delivered; the number of records newly delivered.

        Raises
        ------
        JournalError
            The journal cannot be read, or is damaged.
        """
        self._waiting += self._entries.read()
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            os.fsync(file.fileno())  # a record that MLflow has counted must not be lost: the next would pass for it
        with one_at_a_time(self._path.parent / "delivery"):
            if self._run is None and self._waiting:
                start = read_start(self._path)
                self._run = self._find_or_create(start)
                self._skip_delivered(self._run.data.tags)
            before = self.records
            while self._waiting:
                self._deliver(self._next())
            return self.records - before

    def mark_killed(self, when: float) -> None:
        """Say that the run, whose journal has no end, has ended; a resume takes that back.

        Parameters
        ----------
        when : float
            Its last sign of life, in seconds since 1970.
        """
        if self.state == "running":
            end_as_killed(self._client, self.mlflow_run_id, milliseconds(when))
            self.state = "killed"
            self._tell_sweep(milliseconds(when))

    def beat(self) -> None:
        """Tell MLflow that the run is alive."""
        if self.state == "running":
            self._log(tags={schema.TAG_HEARTBEAT: str(milliseconds(time.time()))})

    def heartbeat(self) -> float:
        """The last sign of life that MLflow knows, in seconds since 1970."""
        tags = self._client.get_run(self.mlflow_run_id).data.tags
        return int(tags.get(schema.TAG_HEARTBEAT, 0)) / 1000

    def _next(self) -> list[Entry]:
        """The next entries that go together: some points, or one other record."""
        if not self._waiting[0].is_curve:
            return [self._waiting[0]]
        together: list[Entry] = []
        points = 0
        for entry in self._waiting:
            points += len(entry.points)
            if not entry.is_curve or (together and points > MOST_POINTS):
                break
            together.append(entry)
            if points >= BATCH_POINTS:
                break
        return together

    def _deliver(self, entries: list[Entry]) -> None:
        """Send entries; they wait no longer when that has succeeded."""
        last = entries[-1]
        if last.is_curve:
            points = [point for entry in entries for point in entry.points]
            self._log(points=points, tags=_arrived(last))
        else:
            {"start": self._on_start, "resume": self._on_resume, "end": self._on_end}[last.record["event"]](last)
        for _ in entries:
            self._waiting.popleft()
        self.records = last.number

    def _find_or_create(self, start: dict[str, Any]) -> Run:
        """The MLflow run of this attempt: same run_id, config and start. Earlier ones are closed."""
        run_id, config_hash, began = start["row"]["run_id"], start["config_hash"], milliseconds(start["time"])
        experiment = experiment_id(self._client, start["study"], self._uri)
        same = runs_tagged(self._client, experiment, schema.TAG_CONFIG_HASH, config_hash)
        attempts = [run for run in same if run.data.tags.get(schema.TAG_RUN_ID) == run_id]
        self._close_earlier(attempts, began)
        tags = {
            schema.TAG_RUN_ID: run_id,
            schema.TAG_CONFIG_HASH: config_hash,
            schema.TAG_CODE_VERSION: start["versions"].get("bayeslaw", ""),
            schema.TAG_STATE: "running",
            schema.TAG_RECIPE: start["row"].get("recipe", schema.BASELINE),
        }
        if "budget" in start["row"]:
            tags[schema.TAG_BUDGET] = param_text(start["row"]["budget"])
        if isinstance(sweep := start.get("sweep"), dict):
            folder = self._path.parent.parent.parent
            self._parent = SweepParent(
                self._client, experiment, sweep["plan"], began=began, runs=sweep["runs"], folder=folder
            )
            tags |= {schema.TAG_SWEEP: sweep["plan"], PARENT_TAG: self._parent.run_id}
        there = next((run for run in attempts if run.info.start_time == began), None)
        return there or self._client.create_run(experiment, start_time=began, tags=tags, run_name=run_id)

    def _close_earlier(self, attempts: Sequence[Run], began: int) -> None:
        """Close attempts that this one took the place of: those kept beside it, and those that have gone silent."""
        kept = set()
        for earlier in earlier_attempts(self._path.parent):
            with contextlib.suppress(JournalError):  # too damaged to have told MLflow of anything
                kept.add(milliseconds(read_start(earlier)["time"]))
        for run in attempts:
            silent = time.time() - int(run.data.tags.get(schema.TAG_HEARTBEAT, 0)) / 1000 > STALE_SECONDS
            before = run.info.start_time < began and run.info.status == STATUS["running"]
            if before and (run.info.start_time in kept or silent):
                end_as_killed(self._client, run.info.run_id, began)

    def _skip_delivered(self, tags: dict[str, str]) -> None:
        """Let what MLflow has of this journal wait no longer; all of it goes again where it had other records.

        Of a journal with fewer records than it was told of, those with newer ones had a part taken away since; one
        without is an old copy.
        """
        number, _, _ = mark = tags.get(schema.TAG_DELIVERED, "0").partition(" ")
        last = next((entry for entry in self._waiting if entry.number == int(number)), None)
        if last is not None and last.mark != "".join(mark):
            return
        newest = milliseconds(self._waiting[-1].record["time"])
        if last is None and newest > int(tags.get(schema.TAG_HEARTBEAT, 0)) and int(number):
            return
        while self._waiting and self._waiting[0].number <= int(number):
            self._waiting.popleft()
        self.records, self.state = int(number), tags.get(schema.TAG_STATE, "running") if int(number) else ""

    def _log(
        self, *, points: Sequence[Point] = (), params: dict[str, str] | None = None, tags: dict[str, str] | None = None
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now = {schema.TAG_UPDATED: str(milliseconds(time.time()))}
        metrics = [Metric(point.name, point.value, point.when, point.step) for point in points]
        for place in range(0, max(len(metrics), 1), MOST_POINTS):
            whole = place + MOST_POINTS >= len(metrics)
            self._client.log_batch(
                self.mlflow_run_id,
                metrics=metrics[place : place + MOST_POINTS],
                params=[Param(*item) for item in (params or {}).items()],
                tags=[RunTag(*item) for item in (now | (tags or {} if whole else {})).items()],
            )

    def _on_start(self, entry: Entry) -> None:
        start = entry.record
        row, run_id = start["row"], self.mlflow_run_id
        names = [name for name, column in schema.COLUMNS.items() if not column.result and name in row]
        self._client.log_text(run_id, _json(start["config"]), CONFIG_ARTIFACT)
        environment = {"versions": start["versions"], "host": start.get("host", ""), **start.get("environment", {})}
        self._client.log_text(run_id, _json(environment), ENVIRONMENT_ARTIFACT)
        data = start["config"].get("data")
        if isinstance(data, dict) and data.get("corpus_digest"):
            self._log_data(str(data["corpus"]), str(data["corpus_digest"]))
        params = {name: param_text(row[name]) for name in names if name != "state"}
        self._log(params=params, tags={schema.TAG_HOST: str(start.get("host", ""))} | _arrived(entry))
        self.state = "running"
        self._tell_sweep(milliseconds(start["time"]))

    def _log_data(self, corpus: str, digest: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"corpus": corpus})
        dataset = Dataset(corpus, digest[:DIGEST_CHARACTERS], "corpus", source)
        tags = [InputTag("mlflow.data.context", "training")]
        self._client.log_inputs(self.mlflow_run_id, [DatasetInput(dataset, tags)])

    def _on_resume(self, entry: Entry) -> None:
        """A run that had ended goes on."""
        if schema.TAG_ERROR in self._client.get_run(self.mlflow_run_id).data.tags:
            self._client.delete_tag(self.mlflow_run_id, schema.TAG_ERROR)
        self._client.update_run(self.mlflow_run_id, status=STATUS["running"])
        tags = {schema.TAG_STATE: "running", schema.TAG_RESUMES: str(entry.resumes)}
        if "host" in entry.record:
            tags[schema.TAG_HOST] = str(entry.record["host"])
        self._log(tags=tags | _arrived(entry))
        self.state = "running"
        self._tell_sweep(milliseconds(entry.record["time"]))

    def _on_end(self, entry: Entry) -> None:
        """Results, state, artifacts, status; the position last, so that an interrupted end is done again."""
        end = entry.record
        tags = {schema.TAG_STATE: end["state"]}
        if end.get("error"):
            tags[schema.TAG_ERROR] = str(end["error"])[:2000]
        self._log(points=entry.points, tags=tags)
        journal = read_journal(self._path)
        curve = curve_text(Journal(self._path, journal.records[: entry.number]))
        self._client.log_text(self.mlflow_run_id, curve, CURVE_ARTIFACT)
        self._client.set_terminated(self.mlflow_run_id, STATUS[end["state"]], milliseconds(end["time"]))
        self._log(tags=_arrived(entry))
        self.state = end["state"]
        self._tell_sweep(milliseconds(end["time"]))

    def _tell_sweep(self, when: int) -> None:
        if self._parent:
            self._parent.tell(when)


def end_as_killed(client: MlflowClient, run_id: str, when: int) -> None:
    """Say that a run ended at ``when``, in milliseconds since 1970, without saying so itself."""
    from mlflow.entities import RunTag

    client.set_terminated(run_id, STATUS["killed"], when)
    tags = [RunTag(schema.TAG_STATE, "killed"), RunTag(schema.TAG_UPDATED, str(milliseconds(time.time())))]
    client.log_batch(run_id, tags=tags)  # last: who asks what has changed must not miss the status


def _arrived(entry: Entry) -> dict[str, str]:
    """Tags that say: everything up to this entry is there."""
    return {schema.TAG_DELIVERED: entry.mark, schema.TAG_HEARTBEAT: str(milliseconds(entry.record["time"]))}


def _json(content: object) -> str:
    return json.dumps(content, indent=1, sort_keys=True)


def param_text(value: Any) -> str:
    """A param's text: the same for 4 and 4.0, since MLflow refuses a param that comes back changed."""
    return repr(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)


def curve_text(journal: Journal) -> str:
    """The curve as an artifact: CSV with one line a point that counts."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("time", "step", "metric", "value"))
    for record in journal.metrics:
        writer.writerows((record["time"], record["step"], name, value) for name, value in record["values"].items())
    return text.getvalue()
