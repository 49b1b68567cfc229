"""Runs of an MLflow experiment as plain rows, read page by page: of each run only what a run table can use is kept."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayeslaw.schema import COLUMNS, TAG_PREFIX, TAG_UPDATED

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE = 1000
PARENT_TAG = "mlflow.parentRunId"


@dataclass(frozen=True, slots=True)
class MlflowRow:
    """One run of MLflow.

    Parameters
    ----------
    mlflow_id : str
    status : str
        RUNNING, SCHEDULED, FINISHED, FAILED or KILLED.
    start, end : int or None
        Milliseconds since 1970.
    params : dict of str to str
        All but those that bear the name of a result: a param "loss" would name the loss function.
    metrics : dict of str to float
        Last values of the metrics that are results in the run table.
    tags : dict of str to str
        Those of bayeslaw, and the parent's id.
    """

    mlflow_id: str
    status: str
    start: int | None
    end: int | None
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]

    @property
    def updated(self) -> int | None:
        """When MLflow was last told of the run by a delivery of ours, None where it never was; milliseconds."""
        return self.time(TAG_UPDATED)

    def time(self, tag: str) -> int | None:
        """A tag that holds milliseconds since 1970, None where it holds anything else."""
        text = self.tags.get(tag, "")
        return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None

    @property
    def newest(self) -> int:
        """The latest time that the run bears, milliseconds."""
        return max(self.updated or 0, self.end or 0, self.start or 0)


def row_of(run: Run) -> MlflowRow:
    """The row of a run as the client gives it."""
    info, data = run.info, run.data
    return MlflowRow(
        mlflow_id=info.run_id,
        status=info.status,
        start=info.start_time,
        end=info.end_time,
        params={sys.intern(name): text for name, text in data.params.items() if not is_result(name)},
        metrics={sys.intern(name): float(value) for name, value in data.metrics.items() if is_result(name)},
        tags={
            sys.intern(name): text
            for name, text in data.tags.items()
            if name.startswith(TAG_PREFIX) or name == PARENT_TAG
        },
    )


def rows_of(client: MlflowClient, experiment_id: str, *, size: int = PAGE, **query: Any) -> Iterator[list[MlflowRow]]:
    """Pages of the rows that a query gives; of the client's own objects one page at a time is held.

    Parameters
    ----------
    client : MlflowClient
    experiment_id : str
    size : int
        Runs a page.
    **query
        ``filter_string``, ``order_by``, ``run_view_type`` of ``MlflowClient.search_runs``. None of them ever holds
        text that a user gave.
    """
    token = None
    while True:
        with _collecting_once():
            page = client.search_runs([experiment_id], max_results=size, page_token=token, **query)
            token = page.token
            rows = list(map(row_of, page))
            del page
        yield rows
        if not token:
            return


def is_result(name: str) -> bool:
    """Whether MLflow holds a run-table column of that name as a metric."""
    return name in COLUMNS and COLUMNS[name].result


def to_json(row: MlflowRow) -> str:
    """The row as one line of JSON; NaN and infinities as Python writes them."""
    return json.dumps([getattr(row, name) for name in MlflowRow.__slots__], separators=(",", ":"))


def from_json(lines: Iterable[str]) -> list[MlflowRow]:
    """The rows of lines that `to_json` wrote.

    Raises
    ------
    ValueError
        They are none.
    """
    with _collecting_once():
        rows = json.loads("[" + ",".join(lines) + "]")  # at once: equal names then are one text in memory
        try:
            made = [MlflowRow(*row) for row in rows]
        except TypeError as error:
            raise ValueError(f"no row of a run: {error}") from error
    if not all(_whole(row) for row in made):
        raise ValueError("a row that is none of a run")
    return made


def _whole(row: MlflowRow) -> bool:
    """Whether the parts of a row are what they are called."""
    times = all(when is None or type(when) is int for when in (row.start, row.end))
    named = isinstance(row.mlflow_id, str) and isinstance(row.status, str)
    mappings = all(isinstance(part, dict) for part in (row.params, row.metrics, row.tags))
    return (
        times
        and named
        and mappings
        and all(isinstance(text, str) for part in (row.params, row.tags) for text in part.values())
        and all(type(value) is float for value in row.metrics.values())
    )


@contextmanager
def _collecting_once() -> Iterator[None]:
    """Let the garbage of the block be collected once, at its end.

    A page of runs is 100,000 objects and more. They start the collector hundreds of times, over all that the process
    holds, which takes longer than the query.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()
