"""Where the rows of public tasks come from: a folder, the hub, or the hub's cache."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bayeslaw.errors import DataError

SUFFIXES = (".jsonl", ".parquet")


class Splits(dict[str, Any]):
    """Splits of a data set by name, each loaded when it is first asked for.

    Parameters
    ----------
    load : callable
        Split -> `datasets.Dataset`.
    source : str
        Where they come from: nothing of where that lies.
    """

    def __init__(self, load: Callable[[str], Any], *, source: str) -> None:
        super().__init__()
        self._load = load
        self.source = source

    def __missing__(self, split: str) -> Any:
        rows = self[split] = self._load(split)
        return rows

    @property
    def columns(self) -> list[str]:
        """Names of the columns of what is loaded."""
        return sorted({name for rows in self.values() for name in rows.column_names})


def folder_split(data: Path, task: str, split: str) -> Any:
    """A split from ``data/task/split.jsonl`` or ``.parquet``, in memory, without the hub's cache.

    Raises
    ------
    DataError
        It is not there, damaged, or empty.
    """
    import datasets  # type: ignore[import-untyped]
    import pyarrow as pa

    files = [data / task / f"{split}{suffix}" for suffix in SUFFIXES]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        if not data.is_dir():
            raise DataError(
                f"no folder {data}", allowed="the folder that `bayeslaw data tasks` wrote", do="check --data"
            )
        raise DataError(
            f"{data} has no data for the task {task}: there is no {task}/{split}.jsonl",
            allowed=f"{data}/{task}/{split}.jsonl or .parquet",
            do=f"get them on a machine that reaches the hub: bayeslaw data tasks {task} --out DIR, then --data DIR",
        )
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            rows = datasets.Dataset(pq.read_table(path))
        else:
            rows = datasets.Dataset.from_list(list(_lines(path)))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}", do="get the file again") from error
    if not len(rows):
        raise DataError(f"{path} holds no row", allowed="a row for each example", do="get the file again")
    return rows


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    fields: list[str] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}:{number} is no JSON: {error}", allowed="one JSON object a line", do="get the file again"
                ) from error
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number} is no JSON object", allowed="one JSON object a line")
            fields = fields or sorted(row)
            if sorted(row) != fields:
                raise DataError(
                    f"{path}:{number} has the fields {', '.join(sorted(row))}",
                    allowed=f"those of the first row: {', '.join(fields)}",
                )
            yield row


def hub_split(config: Mapping[str, Any], task: str, split: str, *, offline: bool) -> Any:
    """A split of a data set of the hub, which is kept in the hub's own cache.

    Parameters
    ----------
    config : dict
        ``dataset_path``, ``dataset_name`` and ``dataset_kwargs`` of a definition.
    task : str
        For messages.
    split : str
    offline : bool
        Only look into the cache.

    Raises
    ------
    DataError
        It cannot be had, for whatever reason.
    """
    import datasets

    given = dict(config.get("dataset_kwargs") or {})
    given.pop("trust_remote_code", None)  # code of strangers is never run
    name, part = config["dataset_path"], config.get("dataset_name")
    try:
        with _offline() if offline else contextlib.nullcontext():
            rows = datasets.load_dataset(name, part, split=split, **given)
    except Exception as error:  # the hub's client raises errors of many kinds, and all of them mean this
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        where = "the hub's cache here" if offline else "the hub"
        raise DataError(
            f"the data of {task} ({name}, split {split}) cannot be had from {where}: {reason}",
            do=f"get them on a machine that reaches the hub: bayeslaw data tasks {task} --out DIR, then --data DIR",
        ) from error
    if not len(rows):
        raise DataError(f"the data of {task} ({name}, split {split}) hold no row")
    return rows


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """As under HF_HUB_OFFLINE=1, which the hub's client looks at when it is imported."""
    import datasets
    from huggingface_hub import constants

    places: tuple[Any, ...] = (datasets.config, constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of `datasets`, of lm-eval's log only errors."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    bars = None
    with contextlib.suppress(ImportError):
        import datasets

        bars = None if datasets.are_progress_bars_disabled() else datasets
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        log.setLevel(level)
        if bars is not None:
            bars.enable_progress_bars()
