"""The rows of an MLflow experiment, kept between queries: a query then fetches only what has changed.

One Parquet file an experiment, in ``$XDG_CACHE_HOME/bayeslaw/runs`` (``~/.cache/bayeslaw/runs``); it may be deleted at
any time. MLflow has no "changed since", so a query asks for the runs that deliveries of ours have told of lately (the
tag ``bayeslaw.updated``, newest first, until nothing is new), for those that began or ended lately, for those that
were running, and for the deleted ones. "Lately" reaches ten minutes back before the newest time known, for clocks that
differ. Then the number of runs is compared; where it differs, as after a run was restored, all is read anew. What this
cannot see is a run of another program that was changed after it had ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bayeslaw.errors import BayeslawError
from bayeslaw.files import written_whole
from bayeslaw.mlflow_rows import MlflowRow, from_json, rows_of, to_json
from bayeslaw.schema import TAG_UPDATED
from bayeslaw.store import public_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

SKEW = 10 * 60 * 1000
"""How far clocks of writers may differ, milliseconds."""

_FORMAT = 1
_SMALL_PAGE = 100
_ENDED = ("FINISHED", "FAILED", "KILLED")
_LABEL = b"bayeslaw"
_SQLITE = "sqlite:///"
_COUNTED = "SELECT stat FROM sqlite_stat1 WHERE tbl = 'tags'"
_WRITING = threading.Lock()

Rows = dict[str, MlflowRow]


@dataclass(frozen=True)
class CacheFile:
    """The file that the rows of one experiment are kept in.

    Parameters
    ----------
    uri : str
        The store's tracking URI, which is kept without its password.
    experiment_id : str
    created : int or None
        When the experiment was made, milliseconds: another one of the same id is another experiment.
    """

    uri: str
    experiment_id: str
    created: int | None

    @property
    def label(self) -> bytes:
        """What the file says of itself."""
        uri = self.uri
        if uri.startswith(_SQLITE):  # a relative path is another file in another folder
            uri = f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).absolute()}"
        return json.dumps([_FORMAT, public_uri(uri), self.experiment_id, self.created]).encode()

    @property
    def path(self) -> Path:
        """Where it is."""
        home = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"  # as the XDG specification has it
        return base / "bayeslaw" / "runs" / f"{hashlib.sha256(self.label).hexdigest()[:32]}.parquet"

    def load(self) -> Rows | None:
        """The rows, None where there are none.

        Raises
        ------
        ValueError
            The file is damaged or another one.
        """
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(self.path)
            if (table.schema.metadata or {}).get(_LABEL) != self.label:
                raise ValueError("it holds something else")
            return _by_id(from_json(table.column("row").to_pylist()))
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, RecursionError) as error:  # pyarrow's own derive from these
            raise ValueError(str(error)) from error

    def save(self, rows: Rows) -> None:
        """Write the rows, whole or not at all.

        Raises
        ------
        BayeslawError
            The file cannot be written.
        """
        import pyarrow as pa
        import pyarrow.parquet

        table = pa.table({"row": pa.array(map(to_json, rows.values()), pa.string())})
        table = table.replace_schema_metadata({_LABEL: self.label})
        with _WRITING, written_whole(self.path) as partial:
            pyarrow.parquet.write_table(table, partial, compression="zstd")
            partial.chmod(0o600)


def cached_rows(client: MlflowClient, uri: str, experiment: Experiment) -> tuple[list[MlflowRow], tuple[str, ...]]:
    """The rows of an experiment as they are now, and what to tell about the cache.

    A cache that is damaged, or cannot be written, costs time and nothing else.
    """
    file = CacheFile(uri, experiment.experiment_id, experiment.creation_time)
    notes: tuple[str, ...] = ()
    known = None
    try:
        known = file.load()
    except ValueError:
        notes = (f"the cache of these runs was damaged and is made anew: {file.path}",)
    if known and uri.startswith(_SQLITE):
        _count_tags(uri.removeprefix(_SQLITE), len(known))
    rows = known and _refreshed(client, experiment.experiment_id, known)
    rows = rows or all_rows(client, experiment.experiment_id)
    if rows != known:
        try:
            file.save(rows)
        except BayeslawError as error:
            notes = (f"these runs are not cached: {error.what}",)
    return list(rows.values()), notes


def all_rows(client: MlflowClient, experiment_id: str) -> Rows:
    """All rows of an experiment by their ids, oldest first."""
    rows = _read(client, experiment_id)
    if _are_all(client, experiment_id, len(rows)):
        return rows
    # Runs came or went between two pages.
    return _refreshed(client, experiment_id, rows) or _read(client, experiment_id)


def _read(client: MlflowClient, experiment_id: str) -> Rows:
    pages = rows_of(client, experiment_id, order_by=["attributes.start_time ASC"])  # new runs join the last page
    return _by_id(row for page in pages for row in page)


def _refreshed(client: MlflowClient, experiment_id: str, known: Rows) -> Rows | None:
    """The known rows with all that has changed since; None where runs are missing or too many all the same."""
    from mlflow.entities import ViewType

    for _ in range(2):  # runs that begin between the queries and the count are found the second time
        known = known | _changed(client, experiment_id, known)
        for page in rows_of(client, experiment_id, run_view_type=ViewType.DELETED_ONLY):
            gone = _by_id(page)
            known = {mlflow_id: row for mlflow_id, row in known.items() if mlflow_id not in gone}
        if _are_all(client, experiment_id, len(known)):
            return known
    return None


def _changed(client: MlflowClient, experiment_id: str, known: Rows) -> Rows:
    """The rows that may have changed."""
    latest = int(time.time() * 1000) + SKEW  # a later time is that of a clock that is wrong
    times = (row.newest for row in known.values())
    lately = max((when for when in times if when <= latest), default=0) - SKEW
    fresh: Rows = {}
    # Runs without the tag come last.
    for page in rows_of(client, experiment_id, size=_SMALL_PAGE, order_by=[f"tags.`{TAG_UPDATED}` DESC"]):
        fresh |= _by_id(page)
        if not page or ((page[-1].updated or 0) < lately and all(_is_known(row, known) for row in page)):
            break
    conditions = [
        f"attributes.start_time >= {lately}",
        f"attributes.end_time >= {lately}",
        "attributes.status = 'RUNNING'",
    ]
    running = [mlflow_id for mlflow_id, row in known.items() if row.status not in _ENDED and mlflow_id.isalnum()]
    if running:  # since then some may have been given an end of long ago
        conditions.append("attributes.run_id IN ({})".format(", ".join(f"'{mlflow_id}'" for mlflow_id in running)))
    for condition in conditions:
        for page in rows_of(client, experiment_id, filter_string=condition):
            fresh |= _by_id(page)
    return fresh


def _is_known(row: MlflowRow, known: Rows) -> bool:
    return row.mlflow_id in known and row.updated == known[row.mlflow_id].updated


def _are_all(client: MlflowClient, experiment_id: str, count: int) -> bool:
    """Whether an experiment has so many runs: there is one at the last place, and none behind it."""
    from mlflow.utils.search_utils import SearchUtils

    token = SearchUtils.create_page_token(count - 1).decode() if count > 1 else None
    page = client.search_runs([experiment_id], max_results=1, page_token=token)
    return len(page) == min(count, 1) and not page.token


def _count_tags(database: str, runs: int) -> None:
    """Tell sqlite how many tags there are: not knowing it, an order by a tag holds every tag against every run.

    For 10,000 runs that takes 5 s instead of .3 s. Where the database cannot be written it does.
    """
    with suppress(sqlite3.Error), closing(sqlite3.connect(database, timeout=1.0)) as connection:
        try:
            counted = [int(stat.split()[0]) for (stat,) in connection.execute(_COUNTED)]
        except sqlite3.OperationalError:  # nothing was ever counted
            counted = []
        if min(counted, default=0) < runs:
            connection.execute("PRAGMA analysis_limit=400")  # rows looked at: milliseconds, whatever the size
            connection.execute("ANALYZE tags")


def _by_id(rows: Iterable[MlflowRow]) -> Rows:
    return {row.mlflow_id: row for row in rows}
