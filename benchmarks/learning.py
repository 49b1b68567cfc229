"""How the arms learn at one small fixed config: validation loss over three seeds, as it comes out.

Five arms at r = 4 and the plain transformer of the same depth, all with the same tokens and the rates of the
rule ``desk``. Intervals are 95 % t intervals of the mean over seeds. Writes benchmarks/results/learning.json.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy import stats

from bayeslaw.version import versions
from trainer.config import TrainConfig
from trainer.loop import train
from trainer.presets import recipe_fields

OUT = Path(__file__).parent / "results" / "learning.json"
SEEDS = (0, 1, 2)
TOKENS = 2**18
ARMS = {
    "plain, r = 1": ("baseline", 1),
    "linear": ("baseline", 4),
    "additive": ("additive", 4),
    "hyperconnections": ("hyperconnections", 4),
    "truncated BPTT": ("truncated_bptt", 4),
    "passthrough": ("passthrough", 4),
}


def config(recipe: str, recurrences: int, seed: int) -> TrainConfig:
    return TrainConfig.of(
        recipe=recipe, recurrences=recurrences, shared_layers=8 // recurrences, **recipe_fields(recipe, recurrences),
        d_model=64, seq_len=64, batch_tokens=1024, tokens=TOKENS, seed=seed, log_every=64,
    )  # fmt: skip


def interval(values: np.ndarray) -> list[float]:
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return [round(float(values.mean() + sign * half), 4) for sign in (-1, 1)]


def main() -> None:
    losses: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for arm, (recipe, r) in ARMS.items():
            rows = [train(config(recipe, r, seed), Path(folder), quiet=True).row for seed in SEEDS]
            losses[arm] = np.array([row.get("loss", np.nan) for row in rows])
            print(arm, losses[arm].round(4), interval(losses[arm]), flush=True)
    rows = [
        {
            "arm": arm,
            "losses": found.round(4).tolist(),
            "mean": round(float(found.mean()), 4),
            "interval95": interval(found),
            "less_linear": round(float((found - losses["linear"]).mean()), 4),
            "less_linear_interval95": interval(found - losses["linear"]) if arm != "linear" else [0.0, 0.0],
        }
        for arm, found in losses.items()
    ]
    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, cpu",
        "versions": versions("torch"),
        "config": f"width 64, 1 + 8 + 1 effective layers, context 64, {TOKENS} tokens of stdlib bytes, batch 1024",
        "rows": rows,
    }
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
