"""Run tables that ship with the package; README.md beside them tells source, licence and oddities."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.schema import run_name

STUDIES = {"desk": "desk_runs.csv", "desk-rates": "desk_rates.csv"}
"""Studies trained with this package, and their tables; their journals ship too, see `bayeslaw.datasets.journals`."""

NAMES = ("isodepth", "isodepth-recipes", *STUDIES)
"""Shipped run tables: the baseline of arXiv 2604.21106 (116 runs), its three recipes (240 runs), and `STUDIES`."""

EVALUATIONS = ("isodepth-downstream", "desk-downstream")
"""Shipped evaluation tables: the task losses of arXiv 2604.21106, and of 30 runs trained with this package."""

_EFFECTIVE_BLOCK_LAYERS = 16  # recurrences x shared_layers, the same for every run
_CONSTANTS: dict[str, Any] = {
    "source": "isodepth",
    "state": "finished",
    "prelude_layers": 2,
    "coda_layers": 2,
    "seq_len": 2048,
    "vocab_size": 32064,
}


def load_dataset(name: str) -> pd.DataFrame:
    """A shipped run table.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Returns
    -------
    DataFrame, one row a run: the columns of `bayeslaw.schema.COLUMNS` (loss and loss_se in nats per token), and
    ``read_from`` (isodepth) or ``rate_factor`` (desk-rates).

    Raises
    ------
    KeyError
        No shipped table has that name.
    """
    if name not in NAMES:
        raise KeyError(name)
    if name in STUDIES:
        return _read(STUDIES[name]).assign(source=name, state="finished")
    runs = _read("isodepth_runs.csv")
    if name == "isodepth":
        runs = runs[runs["recipe"] == "baseline"].reset_index(drop=True)
    r = runs["recurrences"]
    truncated = runs["recipe"] == "truncated_bptt"
    lanes = runs["recipe"] == "hyperconnections"
    keys = zip(runs["recipe"], r, runs["width_scale"], runs["budget"], strict=True)
    # int64 would overflow: 2.15e19 FLOPs are above 2^63.
    flops = runs["tokens"].astype(np.float64) * runs["flops_per_token"].astype(np.float64)
    return runs.assign(
        **_CONSTANTS,
        run_id=[run_name(*key) for key in keys],
        shared_layers=_EFFECTIVE_BLOCK_LAYERS // r,
        injection=np.select([r == 1, lanes], ["none", "hyperconnections"], "linear"),
        backprop_recurrences=np.where(truncated, -(-r // 2), r),
        flops=flops,
    )


def load_evaluation_set(name: str) -> pd.DataFrame:
    """A shipped evaluation table.

    Parameters
    ----------
    name : str
        One of `EVALUATIONS`.

    Returns
    -------
    DataFrame, one row a checkpoint and task: those of `bayeslaw.evaluations.EVALUATION_COLUMNS` that are known, losses
    in nats per token.

    Raises
    ------
    KeyError
        No shipped table has that name.
    """
    if name not in EVALUATIONS:
        raise KeyError(name)
    if name == "desk-downstream":
        return _read("desk_downstream.csv").assign(source=name)
    rows = _read("isodepth_downstream.csv")
    runs = load_dataset("isodepth")
    lowest = runs.sort_values("loss").drop_duplicates(["recurrences", "budget"])  # the checkpoints, as it is assumed
    pair = runs[runs["width_scale"] == 34].assign(budget=rows["budget"].max(), loss=np.nan, tokens=np.nan)
    pair["run_id"] = [
        run_name("baseline", r, 34, budget) for r, budget in zip(pair["recurrences"], pair["budget"], strict=True)
    ]
    known = pd.concat([lowest, pair])[
        ["run_id", "source", "recipe", "recurrences", "width_scale", "d_model", "budget", "n_unique", "flops_per_token",
         "tokens", "loss"]
    ]  # fmt: skip
    table = rows.merge(known, on=["recurrences", "budget"], suffixes=("", "_of_run"), validate="many_to_one")
    for column in ("tokens", "loss"):
        table[column] = table[column].fillna(table.pop(f"{column}_of_run"))
    table["flops"] = table["tokens"] * table.pop("flops_per_token").astype(np.float64)
    return table.assign(test_recurrences=table["recurrences"])


def isodepth_minima() -> pd.DataFrame:
    """The 24 published compute-optimal points of the baseline grid.

    Returns
    -------
    DataFrame with ``recurrences``, ``budget`` (FLOPs), ``n_unique_opt`` (parameters) and ``loss_opt`` (nats per token):
    the minimum of a parabola in log N for each (recurrences, budget).
    """
    return _read("isodepth_minima.csv")


def _read(file: str) -> pd.DataFrame:
    with (resources.files(__name__) / file).open("r", encoding="utf-8") as stream:
        return pd.read_csv(stream)
