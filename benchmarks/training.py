"""Training speed and memory on this CPU, side by side: the trainer (eager, compiled, with activation checkpointing)
and the same model and recipe written plainly (benchmarks/plain.py), for r = 1, 2, 4, 8.

Every measurement is a process of its own; the variants of an r take turns, so that a busy machine is busy for all.
Writes benchmarks/results/training.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

OUT = Path(__file__).parent / "results" / "training.json"
VARIANTS = ("plain", "eager", "compiled", "checkpointed")
RECURRENCES = (1, 2, 4, 8)


def measure(variant: str, recurrences: int, d_model: int, steps: int) -> None:
    """Print tokens per second, peak memory and last loss of one variant."""
    import torch

    from trainer.config import TrainConfig
    from trainer.data import Batches, load_corpus
    from trainer.distributed import join
    from trainer.execution import Execution
    from trainer.hardware import peak_memory, restart_peak_memory
    from trainer.learner import Learner

    config = TrainConfig.of(
        d_model=d_model, head_size=32, recurrences=recurrences, prelude_layers=1, shared_layers=8 // recurrences,
        coda_layers=1, seq_len=256, batch_tokens=4096, steps=1000,
    )  # fmt: skip
    world = join("cpu")
    batches = Batches(load_corpus("stdlib").train, 256, 16, 0)
    if variant == "plain":
        from plain import PlainLearner

        plain = PlainLearner(config)
        step = plain.step
    else:
        execution = Execution(
            compile="on" if variant == "compiled" else "off", activation_checkpointing=variant == "checkpointed"
        )
        learner = Learner(config, execution, world)
        step = lambda number, batch: learner.step(number, batch).loss  # noqa: E731
    begun = time.perf_counter()
    for number in range(2):
        step(number, torch.from_numpy(batches.at(number)))
    first = time.perf_counter() - begun
    restart_peak_memory(world.device)
    begun = time.perf_counter()
    for number in range(2, 2 + steps):
        loss = step(number, torch.from_numpy(batches.at(number)))
    seconds = time.perf_counter() - begun
    speed = steps * 4096 / seconds
    print(
        json.dumps(
            {"tokens_per_second": speed, "peak_memory": peak_memory(world.device), "loss": loss, "first_seconds": first}
        )
    )


def run(variant: str, recurrences: int, d_model: int, steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", variant, str(recurrences), str(d_model), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.one:
        variant, *numbers = given.one
        measure(variant, *map(int, numbers))
        return
    rows = []
    for r in RECURRENCES:
        found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
        for _ in range(given.rounds):
            for variant in VARIANTS:
                found[variant].append(run(variant, r, given.d_model, given.steps))
        for variant in VARIANTS:
            speeds = [one["tokens_per_second"] for one in found[variant]]
            ratios = [s / p["tokens_per_second"] for s, p in zip(speeds, found["plain"], strict=True)]
            rows.append(
                {
                    "r": r,
                    "variant": variant,
                    "tokens_per_second": round(statistics.median(speeds)),
                    "speed_over_plain": round(statistics.median(ratios), 2),
                    "peak_mb": round(min(one["peak_memory"] for one in found[variant]) / 2**20),
                    "first_two_steps_seconds": round(min(one["first_seconds"] for one in found[variant]), 1),
                }
            )
            print(rows[-1], flush=True)
    import torch

    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, {platform.machine()}",
        "torch": torch.__version__,
        "network": f"10 effective layers, d = {given.d_model}, context 256, 4096 tokens a step",
        "rows": rows,
    }
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
