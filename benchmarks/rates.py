"""Rates of the rule ``desk``: validation loss at its reference point under each rate times a factor, one at a time.

Writes benchmarks/results/rates.json. It takes about 20 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from bayeslaw.version import versions
from trainer.config import TrainConfig
from trainer.loop import train
from trainer.rates import KINDS, RULES

RULE = RULES["desk"]
RESULT = Path(__file__).parent / "results" / "rates.json"


def config(recurrences: int, injection: str) -> TrainConfig:
    """The reference point."""
    return TrainConfig.of(
        d_model=int(RULE.d_model),
        recurrences=recurrences,
        shared_layers=4 // recurrences,
        injection=injection,
        batch_tokens=int(RULE.batch_tokens),
        tokens=int(RULE.tokens),
        seq_len=64,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--factors", default=".35,1,3")
    factors = [float(text) for text in parser.parse_args().factors.split(",")]
    arms = [(1, "none"), (4, "linear"), (4, "hyperconnections")]
    losses: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for factor in factors:
                for r, injection in arms:
                    if kind == "lane" and injection != "hyperconnections":
                        continue
                    at = config(r, "linear" if r == 1 else injection)
                    rate = f"{kind}_rate"
                    at = replace(at, optimizer=replace(at.optimizer, **{rate: factor * getattr(at.optimizer, rate)}))
                    row = train(at, Path(folder) / f"{kind}{factor}{injection}", quiet=True).row
                    losses.setdefault(f"r={r} {injection}", {})[f"{kind} x {factor:g}"] = round(row["loss"], 4)
                    print(r, injection, kind, factor, row["loss"], round(row["tokens_per_second"]), flush=True)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions("torch"),
        "threads": torch.get_num_threads(),
        "reference": {name: getattr(RULE, name) for name in (*KINDS, "d_model", "batch_tokens", "tokens")},
        "losses": losses,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
