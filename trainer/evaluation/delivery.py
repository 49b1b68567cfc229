"""The evaluations of a run into its MLflow run; doing it again changes nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bayeslaw import schema
from bayeslaw.evaluations import FOLDER, Evaluation, evaluations_of, key_of
from trainer.experiments import milliseconds

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACTS = FOLDER
"""Folder of the run's artifacts that holds a JSON file for each evaluation."""


def deliver_evaluations(client: MlflowClient, mlflow_run_id: str, run_dir: Path) -> int:
    """Bring a run's evaluations to MLflow: their metrics, the data they are of, and each whole as an artifact.

    Parameters
    ----------
    client : MlflowClient
    mlflow_run_id : str
        The run there.
    run_dir : Path
        The run's directory.

    Returns
    -------
    How many were sent: all where one is new, none where all have arrived before.

    Raises
    ------
    DataError
        One of them is damaged.
    """
    evaluations = evaluations_of(run_dir)
    mark = key_of([(each.key, each.time) for each in evaluations])
    if not evaluations or client.get_run(mlflow_run_id).data.tags.get(schema.TAG_EVALUATIONS) == mark:
        return 0
    from mlflow.entities import Metric, RunTag

    for each in evaluations:
        when, step = milliseconds(each.time), each.checkpoint["step"]
        _log_data(client, mlflow_run_id, each)
        client.log_text(mlflow_run_id, json.dumps(each.as_dict(), indent=1), f"{ARTIFACTS}/{each.file_name}")
        metrics = [Metric(name, value, when, step) for name, value in each.metrics.items()]
        client.log_batch(mlflow_run_id, metrics=metrics)
    now = str(milliseconds(time.time()))  # last: what was cut short is sent again
    tags = [RunTag(schema.TAG_EVALUATIONS, mark), RunTag(schema.TAG_UPDATED, now)]
    client.log_batch(mlflow_run_id, tags=tags)
    return len(evaluations)


def _log_data(client: MlflowClient, mlflow_run_id: str, evaluation: Evaluation) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    task = evaluation.task
    dataset = Dataset(task["name"], task["digest"], "evaluation", json.dumps({"source": task["source"]}))
    client.log_inputs(mlflow_run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])])
