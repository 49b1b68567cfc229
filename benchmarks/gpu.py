"""One short run of each variant of the paper's width 640 on one GPU: bfloat16, compiled, does the loss fall, how fast.

Needs torch and safetensors alone. Writes benchmarks/results/gpu.json, or the file named by --out.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from trainer.config import TrainConfig
from trainer.data import Batches, load_corpus
from trainer.distributed import join
from trainer.execution import Execution
from trainer.hardware import device_name, peak_flops, peak_memory, restart_peak_memory
from trainer.learner import Learner
from trainer.presets import PRESETS, recipe_fields

OUT = Path(__file__).parent / "results" / "gpu.json"
VARIANTS = [("baseline", r) for r in (1, 2, 4, 8)] + [
    ("truncated_bptt", 4), ("hyperconnections", 4), ("additive", 4), ("passthrough", 4),
]  # fmt: skip


def measure(recipe: str, recurrences: int, steps: int, compiled: str) -> dict[str, object]:
    fields = {**PRESETS["paper"].fields, **recipe_fields(recipe, recurrences)}
    config = TrainConfig.of(
        **fields | {"corpus": "stdlib", "validation_tokens": 2**16, "log_every": 1},
        d_model=640, recurrences=recurrences, shared_layers=16 // recurrences, steps=200,
    )  # fmt: skip
    world = join("cuda")
    batches = Batches(load_corpus("stdlib").train, config.model.seq_len, 2**18 // config.model.seq_len, 0)
    learner = Learner(config, Execution(device="cuda", compile=compiled), world)
    restart_peak_memory(world.device)
    losses, begun = [], time.perf_counter()
    for number in range(steps):
        if number == 2:
            first, begun = time.perf_counter() - begun, time.perf_counter()
        losses.append(learner.step(number, torch.from_numpy(batches.at(number))).loss)
    torch.cuda.synchronize()
    speed = (steps - 2) * 2**18 / (time.perf_counter() - begun)
    best = peak_flops(world.device)
    return {
        "recipe": recipe, "r": recurrences, "compile": compiled, "sequences_at_once": learner.at_once,
        "tokens_per_second": round(speed), "first_two_steps_seconds": round(first, 1),
        "mfu": best and round(speed * config.architecture.flops_per_token / best, 3),
        "peak_gb": round((peak_memory(world.device) or 0) / 2**30, 1), "losses": [round(loss, 3) for loss in losses],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--compile", default="on")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    device = device_name(torch.device("cuda", 0))
    rows: list[dict[str, object]] = []
    for recipe, r in VARIANTS:
        try:
            rows.append(measure(recipe, r, given.steps, given.compile))
        except Exception as error:  # one variant that fails must not cost the others
            rows.append({"recipe": recipe, "r": r, "error": f"{type(error).__name__}: {error}"[:500]})
        print(rows[-1], flush=True)
        torch.cuda.empty_cache()
        record = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "device": device, "torch": torch.__version__}
        given.out.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
