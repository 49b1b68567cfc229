"""What limits a training step at each size: how its time divides over its parts, and how near it comes to the speed of
one large matrix product on the same device.

On a GPU the sizes are the published ones, else those of the study `desk` on one thread. Eager, for a compiled graph has
no parts. Writes benchmarks/results/breakdown.json, or breakdown-gpu.json.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from trainer import learner as learning
from trainer.config import TrainConfig
from trainer.distributed import World, join
from trainer.execution import Execution
from trainer.hardware import device_name
from trainer.learner import Learner
from trainer.presets import PRESETS

RESULTS = Path(__file__).parent / "results"
PARTS = ("products", "attention", "head and loss", "optimiser", "all else")
STEPS = 5


def part(event: FunctionEvent) -> str:
    """The part that an operation belongs to, by its name and by what called it."""
    at: FunctionEvent | None = event
    while at is not None:
        if at.name.startswith("Optimizer.step"):
            return "optimiser"
        if "_MeanLoss" in at.name:
            return "head and loss"
        if "scaled_dot_product" in at.name:
            return "attention"
        at = at.cpu_parent
    return "products" if event.name in ("aten::mm", "aten::addmm", "aten::bmm") else "all else"


def best_flops(world: World) -> float:
    """FLOPs per second of one large product, in the precision of training."""
    n, dtype = (8192, torch.bfloat16) if world.device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(n, n, device=world.device, dtype=dtype)
    best = float("inf")
    for _ in range(10):
        begun = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - begun)
    return 2 * n**3 / best


def measure(world: World, fields: dict[str, Any]) -> dict[str, Any]:
    config = TrainConfig.of(**fields)
    learner = Learner(config, Execution(device=world.device.type, compile="off"), world)
    shape = config.optimizer.batch_tokens // config.model.seq_len, config.model.seq_len + 1
    batch = torch.randint(config.model.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    on_gpu = world.device.type == "cuda"
    for number in range(3):
        learner.step(number, batch).loss  # noqa: B018
    begun = time.perf_counter()
    for number in range(STEPS):
        learner.step(number, batch).loss  # noqa: B018
    seconds = (time.perf_counter() - begun) / STEPS
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        for number in range(STEPS):
            learner.step(number, batch).loss  # noqa: B018
    times: dict[str, float] = defaultdict(float)
    operations = 0
    for event in seen.events() or ():
        times[part(event)] += event.self_device_time_total if on_gpu else event.self_cpu_time_total
        operations += event.name.startswith("aten::")
    whole = sum(times.values())
    return {
        "d_model": config.model.d_model,
        "recurrences": config.model.recurrences,
        "tokens_per_second": round(config.optimizer.batch_tokens / seconds),
        "flops_per_second": float(
            f"{config.optimizer.batch_tokens * config.architecture.flops_per_token / seconds:.3g}"
        ),
        "operations_a_step": operations // STEPS,
        "shares": {name: round(times[name] / whole, 3) for name in PARTS},
    }


def main() -> None:
    world = join("auto")
    on_gpu = world.device.type == "cuda"
    if on_gpu:
        sizes = [(640, 1), (640, 4), (1280, 4)]
        shared = PRESETS["paper"].fields | {"corpus": "stdlib", "validation_tokens": 2**16}
        layers = PRESETS["paper"].unrolled_layers
    else:
        learning.ALL_THREADS = 1
        torch.set_num_threads(1)
        sizes = [(d, r) for d in (16, 32, 64, 80, 128) for r in (1, 4)]
        shared, layers = PRESETS["desk"].fields, PRESETS["desk"].unrolled_layers
    best = best_flops(world)
    rows = []
    for d_model, r in sizes:
        fields = {**shared, "d_model": d_model, "recurrences": r, "shared_layers": layers // r, "steps": 1000}
        row = measure(world, fields)
        row["of_one_large_product"] = round(row["flops_per_second"] / best, 3)
        rows.append(row)
        print(row, flush=True)
    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": device_name(world.device),
        "machine": f"{torch.get_num_threads()} thread(s) of {os.cpu_count()} cores, {platform.machine()}",
        "torch": torch.__version__,
        "one_large_product_flops_per_second": float(f"{best:.3g}"),
        "rows": rows,
    }
    (RESULTS / ("breakdown-gpu.json" if on_gpu else "breakdown.json")).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
