"""Training speed on one GPU at the published sizes: tokens per second, memory, what a step waits for, and kernels.

Needs torch and safetensors alone; liger-kernel and torchao are measured where they are installed. Every row is written
as soon as it is known, to benchmarks/results/gpu.json or the file named by --out. ``--rehearse`` runs all of it at a
toy size on whatever device there is and writes nothing by itself: a rehearsal, no measurement.

The aims are 15 % above the speed of the base paper's code on the same GPU (H200, torch 2.11, 2^18 tokens a step): its
418,000, 398,000 and 158,700 tokens/s at s = 10 r = 4, s = 10 r = 1 and s = 20 r = 4, and at most its 43.6 GB.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from models.head import capped, mean_loss
from trainer.config import TrainConfig
from trainer.distributed import World, join
from trainer.execution import Execution
from trainer.hardware import device_name, peak_flops, peak_memory, restart_peak_memory
from trainer.learner import Learner, Step
from trainer.presets import PRESETS, recipe_fields

OUT = Path(__file__).parent / "results" / "gpu.json"
SCALES = [
    *((10, "baseline", r, None) for r in (1, 2, 4, 8)),
    (10, "baseline", 4, 32),
    (20, "baseline", 4, 16),
    (10, "truncated_bptt", 4, None),
    (10, "hyperconnections", 4, None),
]
"""Width scale, recipe, r, sequences of a pass (None: as the trainer chooses)."""
AIMS = {(10, 4): 480_000, (10, 1): 460_000, (20, 4): 183_000}
AIM_GB = 43.6
SLOWER_BY = 0.03
"""What r = 8 may lose to r = 1 beyond its FLOPs."""


def config(scale: int, recipe: str, r: int, small: bool) -> TrainConfig:
    fields = PRESETS["paper"].fields | {"corpus": "stdlib", "validation_tokens": 2**16, "steps": 1000}
    if small:
        fields |= {"seq_len": 32, "batch_tokens": 256, "vocab_size": 300, "validation_tokens": 32, "head_size": 16}
    width = 4 * scale if small else 64 * scale
    layers = {"d_model": width - width % fields["head_size"] or 16, "shared_layers": 16 // r}
    return TrainConfig.of(**fields | recipe_fields(recipe, r) | layers | {"recurrences": r, "recipe": recipe})


def batches(of: TrainConfig, device: torch.device, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = of.optimizer.batch_tokens // of.model.seq_len, of.model.seq_len + 1
    made = [torch.randint(of.model.vocab_size, shape, generator=generator) for _ in range(number)]
    return [batch.pin_memory() if device.type == "cuda" else batch for batch in made]


def waited(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def speed(
    world: World, scale: int, recipe: str, r: int, at_once: int | None, *, steps: int, compiled: str, small: bool
) -> dict[str, Any]:
    """Tokens per second of a run's steps, read as a run reads them: every ten."""
    of = config(scale, recipe, r, small)
    execution = Execution(device=world.device.type, compile=compiled, micro_batch=None if small else at_once)
    learner = Learner(of, execution, world)
    ahead = batches(of, world.device, 4)
    begun = time.perf_counter()
    for number in range(3):
        learner.step(number, ahead[number % 4])
    waited(world.device)
    first, syncs = time.perf_counter() - begun, "none"
    if world.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            learner.step(3, ahead[3])
        except RuntimeError as error:
            syncs = str(error)[:300]
        torch.cuda.set_sync_debug_mode("default")
    restart_peak_memory(world.device)
    waited(world.device)
    taken: list[Step] = []
    begun = time.perf_counter()
    for number in range(steps):
        taken.append(learner.step(4 + number, ahead[number % 4]))
        if len(taken) == 10 or number == steps - 1:
            Step.settle(taken)
            loss = taken[-1].loss
            taken = []
    waited(world.device)
    found = steps * of.optimizer.batch_tokens / (time.perf_counter() - begun)
    best = peak_flops(world.device)
    flops = float(of.architecture.flops_per_token)
    return {
        "s": scale, "recipe": recipe, "r": r, "sequences_at_once": learner.at_once, "compile": compiled,
        "tokens_per_second": round(found), "aim": AIMS.get((scale, r)) if recipe == "baseline" else None,
        "flops_per_token": flops, "mfu": best and round(found * flops / best, 3),
        "peak_gb": round((peak_memory(world.device) or 0) / 1e9, 1), "host_waits_in_a_step": syncs,
        "first_three_steps_seconds": round(first, 1), "last_loss": round(loss, 3),
    }  # fmt: skip


def loops(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much slower each r is than r = 1 at s = 10, against what its FLOPs alone would cost."""
    plain = {row["r"]: row for row in rows if (row["s"], row["recipe"]) == (10, "baseline") and "error" not in row}
    if 1 not in plain:
        return []
    one = plain.pop(1)
    return [
        {
            "r": r,
            "speed_over_r1": round(row["tokens_per_second"] / one["tokens_per_second"], 3),
            "flops_alone": round(one["flops_per_token"] / row["flops_per_token"], 3),
            "at_least": round((1 - SLOWER_BY) * one["flops_per_token"] / row["flops_per_token"], 3),
        }
        for r, row in plain.items()
    ]


def timed(work: Callable[[], Any], device: torch.device, times: int = 10) -> float:
    """Milliseconds of one call."""
    for _ in range(3):
        work()
    waited(device)
    begun = time.perf_counter()
    for _ in range(times):
        work()
    waited(device)
    return 1e3 * (time.perf_counter() - begun) / times


def heads(world: World, small: bool) -> dict[str, Any]:
    """The head and its loss, forward and backward, at s = 10: all logits at once, in pieces, Liger's fused kernel."""
    tokens, width, vocabulary = (256, 32, 300) if small else (2**16, 640, 32_064)
    device = world.device
    h_Nd = torch.randn(tokens, width, device=device, requires_grad=True)
    head_Vd = (1e-2 * torch.randn(vocabulary, width, device=device)).requires_grad_()
    targets_N = torch.randint(vocabulary, (tokens,), device=device)

    def done(loss_of: Callable[..., Any]) -> Callable[[], Any]:
        def work() -> Any:
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(h_Nd, head_Vd, targets_N)
            return loss, *torch.autograd.grad(loss, (h_Nd, head_Vd))

        return work

    ways: dict[str, Callable[..., Any]] = {
        "all logits": lambda h, w, y: F.cross_entropy(capped(F.linear(h, w)), y),
        "in pieces": mean_loss,
    }
    if device.type == "cuda":
        ways |= {f"{name}, compiled": torch.compile(way, fullgraph=True) for name, way in ways.items()}
        if find_spec("liger_kernel"):
            from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

            liger = LigerFusedLinearCrossEntropyLoss(softcap=15.0)
            ways["liger"] = lambda h, w, y: liger(w.bfloat16(), h.bfloat16(), y)
    exact = done(ways["in pieces"])()
    rows = {}
    for name, way in ways.items():
        restart_peak_memory(device)
        try:
            found = done(way)()
            with torch.no_grad():
                off = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True)]
            peak = round((peak_memory(device) or 0) / 1e9, 2)
            rows[name] = {"ms": round(timed(done(way), device), 2), "peak_gb": peak, "off": off}
        except Exception as error:
            rows[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return rows


def matmuls(world: World, small: bool) -> dict[str, Any]:
    """The MLP's first product at s = 10 and 20, forward and backward: bfloat16 against torchao's float8."""
    rows: dict[str, Any] = {}
    for width in (64,) if small else (640, 1280):
        x = torch.randn(256 if small else 2**16, width, device=world.device, dtype=torch.bfloat16, requires_grad=True)
        linear = torch.nn.Linear(width, 4 * width, bias=False, device=world.device, dtype=torch.bfloat16)
        ways = {"bfloat16": linear}
        if world.device.type == "cuda" and find_spec("torchao"):
            from torchao.float8 import convert_to_float8_training

            eight = torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width, bias=False, device=world.device, dtype=torch.bfloat16)
            )
            ways["float8"] = torch.compile(convert_to_float8_training(eight))
        for name, way in ways.items():
            rows[f"{name}, d = {width}"] = round(timed(lambda way=way, x=x: way(x).sum().backward(), world.device), 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", default="on", choices=("on", "off"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args()
    small = given.rehearse
    world = join("auto" if small else "cuda")
    out = given.out or (None if small else OUT)
    record: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": device_name(world.device),
        "torch": torch.__version__,
        "rehearsal": small,
        "speed": [],
    }

    def keep() -> None:
        record["loops"] = loops(record["speed"])
        if out is not None:
            out.write_text(json.dumps(record, indent=1) + "\n")

    for scale, recipe, r, at_once in SCALES:
        try:
            row = speed(world, scale, recipe, r, at_once, steps=given.steps, compiled=given.compile, small=small)
        except Exception as error:  # one variant that fails must not cost the others
            row = {"s": scale, "recipe": recipe, "r": r, "error": f"{type(error).__name__}: {error}"[:500]}
        record["speed"].append(row)
        print(json.dumps(row), flush=True)
        keep()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
    for name, measure in (("heads", heads), ("matmuls", matmuls)):
        record[name] = measure(world, small)
        print(name, json.dumps(record[name]), flush=True)
        keep()
    print("loops", json.dumps(record["loops"]))


if __name__ == "__main__":
    main()
