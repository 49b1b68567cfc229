"""Forecasts by the public package simple-scaling-laws, for benchmarks/default_model.py.

Run by an interpreter that has that package: `python public_fitter.py FOLDER`. FOLDER holds train.csv (group, n, tokens,
loss) and points.csv (group, n, tokens); draws of a new run's loss at the points, from one fit a group, go to LAW.npy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
from simple_scaling_laws import fit

LAWS = ("separable-power", "skaling-joint-power")
TARGET = "test_loss__nats"


def table(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns as the package names them; every run is one trained model with one evaluation."""
    named = frame.rename({"n": "model_size__n", "tokens": "dataset_size__tokens"})
    named = named.rename({"loss": TARGET}) if "loss" in named.columns else named
    return named.with_columns(pl.int_range(pl.len()).cast(pl.String).alias("training_run_id")).drop("group")


def main(folder: Path) -> None:
    train, points = (pl.read_csv(folder / f"{name}.csv") for name in ("train", "points"))
    for law in LAWS:
        out = None
        for group in points["group"].unique(maintain_order=True):
            rows = (points["group"] == group).to_numpy()
            model = fit(table(train.filter(pl.col("group") == group)), law=law, n_draws=2000, seed=0)
            at = model.fitting_predictors(model.prepare_points(table(points.filter(pl.col("group") == group))))
            draws = model.target_draws(TARGET, at, kind="new-run", rng=np.random.default_rng(0))
            out = np.empty((len(draws), len(points))) if out is None else out
            out[:, rows] = draws
        np.save(folder / f"{law}.npy", out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
