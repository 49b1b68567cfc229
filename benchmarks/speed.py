"""Training speed on a CPU, this trainer against earlier states of it, side by side: what each change gained.

Every state is a checkout of its commit in a process of its own with one thread; they take turns at the same steps of
the same data, so that a busy machine is busy for all. Speed is by the CPU time of the process, of which a shared
machine takes least; the ratio is of the fastest turns. The losses after those steps are compared too. Writes
benchmarks/results/speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "results" / "speed.json"
ROOT = Path(__file__).parent.parent
STATES = (
    ("before", "e7b8910", "off"),
    ("head's loss in pieces", "HEAD", "off"),
    ("and compiled", "HEAD", "on"),
    ("before, compiled", "e7b8910", "on"),
)
"""Name, commit, compilation. Eager code has changed in the head alone since the first one."""
SIZES = [
    {"d_model": 16, "recurrences": 4},
    {"d_model": 32, "recurrences": 1},
    {"d_model": 32, "recurrences": 4},
    {"d_model": 64, "recurrences": 1},
    {"d_model": 64, "recurrences": 4},
    {"d_model": 64, "recurrences": 4, "injection": "hyperconnections"},
    {"d_model": 64, "recurrences": 4, "backprop_recurrences": 2},
    {"d_model": 64, "recurrences": 4, "vocab_size": 4096},
    {"d_model": 128, "recurrences": 4, "head_size": 32, "seq_len": 256, "batch_tokens": 4096},
]
STEPS = 6
"""Of a turn."""

SERVER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
import trainer.learner
from trainer.config import TrainConfig
from trainer.distributed import join
from trainer.execution import Execution
assert trainer.learner.__file__.startswith(sys.argv[1]), trainer.learner.__file__
trainer.learner.ALL_THREADS = 1
world, made = join("cpu"), {}
print("ready", flush=True)
for line in sys.stdin:
    fields, steps = json.loads(line)
    key = json.dumps(fields)
    if key not in made:
        config = TrainConfig.of(**fields)
        generator = torch.Generator().manual_seed(0)
        shape = config.optimizer.batch_tokens // config.model.seq_len, config.model.seq_len + 1
        values = config.model.vocab_size
        batches = [(torch.rand(shape, generator=generator) ** 3 * values).long() for _ in range(100)]
        made[key] = [trainer.learner.Learner(config, Execution(compile=sys.argv[2]), world), batches, 0]
    learner, batches, done = made[key]
    best = float("inf")
    for _ in range(steps):
        begun = time.process_time()
        loss = learner.step(done, batches[done]).loss
        best, done = min(best, time.process_time() - begun), done + 1
    made[key][2] = done
    print(json.dumps([best, loss]), flush=True)
"""


def checkout(commit: str, folder: Path) -> Path:
    """The tree of a commit; HEAD is this checkout as it is."""
    if commit == "HEAD":
        return ROOT
    path = folder / commit
    if not path.exists():
        path.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(path)], input=archive, check=True)
    return path


def started(code: Path, compiled: str, **environment: str) -> subprocess.Popen[str]:
    """A process that has loaded the trainer of a checkout."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(code), compiled],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert server.stdout
    assert server.stdout.readline() == "ready\n"
    return server


def ended(server: subprocess.Popen[str]) -> None:
    assert server.stdin
    server.stdin.close()
    server.wait()


def first_steps(cache: str) -> dict[str, float]:
    """Seconds of the first step at d = 64, r = 4: eager, compiled with an empty cache, and in a second process."""
    fields = {"head_size": 16, "seq_len": 128, "batch_tokens": 2048, "steps": 1000, "d_model": 64, "recurrences": 4}
    seconds = {}
    for name, compiled in (("eager", "off"), ("compiled", "on"), ("compiled before", "on")):
        server = started(ROOT, compiled, TORCHINDUCTOR_CACHE_DIR=cache)
        begun = time.perf_counter()
        asked(server, fields | {"shared_layers": 1}, 1)
        seconds[name] = round(time.perf_counter() - begun, 1)
        ended(server)
    print(seconds, flush=True)
    return seconds


def asked(server: subprocess.Popen[str], fields: dict[str, Any], steps: int = STEPS) -> tuple[float, float]:
    """Seconds of the fastest step of a turn, and the loss before its last step."""
    assert server.stdin
    assert server.stdout
    server.stdin.write(json.dumps([fields, steps]) + "\n")
    server.stdin.flush()
    seconds, loss = json.loads(server.stdout.readline())
    return seconds, loss


def looped(compiled: str, turns: int) -> list[dict[str, float]]:
    """How fast r = 2, 4, 8 are against r = 1 of the same width and depth, and what their FLOPs alone would cost."""
    from trainer.config import TrainConfig

    sizes = {
        r: {"d_model": 128, "head_size": 32, "seq_len": 256, "batch_tokens": 2048, "steps": 1000}
        | {"recurrences": r, "shared_layers": 8 // r}
        for r in (1, 2, 4, 8)
    }
    servers = {r: started(ROOT, compiled) for r in sizes}
    for r, fields in sizes.items():
        asked(servers[r], fields, 3)
    found = [{r: asked(servers[r], fields)[0] for r, fields in sizes.items()} for _ in range(turns)]
    for server in servers.values():
        ended(server)
    fastest = {r: min(turn[r] for turn in found) for r in sizes}
    flops = {r: float(TrainConfig.of(**fields).architecture.flops_per_token) for r, fields in sizes.items()}
    rows = [
        {"r": r, "speed_over_r1": round(fastest[1] / fastest[r], 3), "flops_alone": round(flops[1] / flops[r], 3)}
        for r in (2, 4, 8)
    ]
    print(rows, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    import torch

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        first = first_steps(str(Path(folder) / "cache"))
        servers = [started(checkout(commit, Path(folder)), compiled) for _, commit, compiled in STATES]
        for size in SIZES:
            fields = {"head_size": 16, "seq_len": 128, "batch_tokens": 2048, "steps": 1000, **size}
            fields["shared_layers"] = 4 // fields["recurrences"]
            for server in servers:
                asked(server, fields, 3)
            found = [[asked(server, fields) for server in servers] for _ in range(turns)]
            fastest = [min(turn[k][0] for turn in found) for k in range(len(servers))]
            row: dict[str, Any] = {**size, "tokens_per_second_before": round(fields["batch_tokens"] / fastest[0])}
            for k, (name, _, _) in enumerate(STATES[1:], start=1):
                off = abs(found[-1][k][1] - found[-1][0][1])
                row[name] = {"times_as_fast": round(fastest[0] / fastest[k], 2), "loss_off": float(f"{off:.1e}")}
            rows.append(row)
            print(row, flush=True)
        for server in servers:
            ended(server)
    loops = {name: looped(compiled, turns) for name, compiled in (("eager", "off"), ("compiled", "on"))}
    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"1 thread of {os.cpu_count()} cores, {platform.machine()}",
        "torch": torch.__version__,
        "states": [dict(zip(("name", "commit", "compile"), state, strict=True)) for state in STATES],
        "steps_compared": 3 + turns * STEPS,
        "rows": rows,
        "first_step_seconds": first,
        "loops": loops,
    }
    OUT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
