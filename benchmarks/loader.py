"""The loader of packed shards against the trainer on this CPU, and what it takes of memory, for 1 and 32 shards.

Packs random documents, decodes them, and measures in processes of their own, which take turns: the loader alone (every
row of the training part once, in the order of an epoch) and the trainer on the same rows (a network of six layers, 16
wide, on a vocabulary of 512: faster than any that one would train on such data); the memory that is the process's own
(RssAnon) before and after all rows were read; and a step of the trainer with batches made ahead and without. Writes
benchmarks/results/loader.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

OUT = Path(__file__).parent / "results" / "loader.json"
SEQ_LEN, SEQUENCES, ROWS_PER_SHARD, VOCABULARY = 256, 16, 4000, 512
SHARDS = (1, 32)


def anonymous() -> int:
    """Bytes of this process's own memory."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


def made(folder: Path, shards: int) -> Path:
    """A folder of so many shards of random ids, as the packer writes them."""
    from trainer.data.writer import ShardWriter

    folder.mkdir()
    draw = np.random.default_rng(0)
    for split, rows in (("train", shards * ROWS_PER_SHARD), ("val", 64)):
        writer = ShardWriter(folder, split, SEQ_LEN + 1, np.dtype("<u2"), ROWS_PER_SHARD)
        for _ in range(rows):
            ids = draw.integers(2, VOCABULARY, SEQ_LEN + 1).astype("<u2")
            ids[0] = 1
            writer.add(ids)
        writer.close()
        meta = {"row_capacity": SEQ_LEN + 1, "seq_len": SEQ_LEN, "vocab_size": VOCABULARY, "bos_token_id": 1}
        (folder / f"meta_{split}.json").write_text(json.dumps(meta | {"total_rows": rows, "split": split}))
    return folder


def loading(folder: str) -> dict[str, float]:
    """Tokens per second of the loader, the first step with its epoch's permutation counted, and own memory."""
    from trainer.data.batches import Batches
    from trainer.data.corpora import load_corpus

    rows = load_corpus(folder).train
    before = anonymous()
    batches = Batches(rows, SEQ_LEN, SEQUENCES, 0)
    steps = len(rows) // SEQUENCES
    begun = time.perf_counter()
    for step in range(steps):
        batches.at(step)
    seconds = time.perf_counter() - begun
    speed = steps * SEQUENCES * SEQ_LEN / seconds
    return {"tokens_per_second": speed, "anonymous_before": before, "anonymous": anonymous()}


def training(folder: str) -> dict[str, float]:
    """Tokens per second of the trainer on the same rows, with batches made ahead and without."""
    import torch

    from trainer.config import TrainConfig
    from trainer.data.ahead import Ahead
    from trainer.data.batches import Batches
    from trainer.data.corpora import load_corpus
    from trainer.distributed import join
    from trainer.execution import Execution
    from trainer.learner import Learner

    config = TrainConfig.of(d_model=16, recurrences=1, corpus=folder, batch_tokens=SEQUENCES * SEQ_LEN, steps=1000)
    world = join("cpu")
    batches = Batches(load_corpus(folder).train, SEQ_LEN, SEQUENCES, 0)
    learner = Learner(config, Execution(), world)
    found: dict[str, list[float]] = {"ahead": [], "in_turn": []}
    with Ahead(batches, world, 0, 1000) as ahead:
        for number in range(10):
            for kind in found:
                begun = time.perf_counter()
                batch = ahead.take() if kind == "ahead" else torch.from_numpy(batches.at(number))
                learner.step(number, batch)
                if number >= 2:
                    found[kind].append(time.perf_counter() - begun)
    seconds = {kind: statistics.median(times) for kind, times in found.items()}
    return {
        "tokens_per_second": SEQUENCES * SEQ_LEN / seconds["ahead"],
        "ahead_over_in_turn": seconds["ahead"] / seconds["in_turn"],
    }


def run(kind: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", kind, str(folder)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.one:
        kind, folder = given.one
        print(json.dumps({"loading": loading, "training": training}[kind](folder)))
        return
    with tempfile.TemporaryDirectory() as place:
        folders = {shards: made(Path(place, str(shards)), shards) for shards in SHARDS}
        decoded = {}
        for shards, folder in folders.items():
            begun = time.perf_counter()
            run("loading", folder)
            decoded[shards] = time.perf_counter() - begun
        found: dict[str, list[dict[str, float]]] = {"training": [], **{str(shards): [] for shards in SHARDS}}
        for _ in range(given.rounds):
            for shards, folder in folders.items():
                found[str(shards)].append(run("loading", folder))
            found["training"].append(run("training", folders[1]))
        size = sum(path.stat().st_size for path in folders[32].glob(".rows/train-*.ids"))

    def middle(kind: str, name: str) -> float:
        return statistics.median(one[name] for one in found[kind])

    trainer = middle("training", "tokens_per_second")
    import pyarrow
    import torch

    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "pyarrow": pyarrow.__version__}
        | {"torch": torch.__version__},
        "command": "OMP_NUM_THREADS=1 python benchmarks/loader.py",
        "rows": f"{ROWS_PER_SHARD} of {SEQ_LEN} tokens a shard, batches of {SEQUENCES}, vocabulary {VOCABULARY}",
        "trainer_tokens_per_second": round(trainer),
        "ahead_over_in_turn_seconds": round(middle("training", "ahead_over_in_turn"), 3),
        "raw_mb_of_32_shards": round(size / 2**20, 1),
        "loader": [
            {
                "shards": shards,
                "tokens_per_second": round(middle(str(shards), "tokens_per_second")),
                "over_trainer": round(middle(str(shards), "tokens_per_second") / trainer),
                "anonymous_mb_before": round(middle(str(shards), "anonymous_before") / 2**20, 1),
                "anonymous_mb": round(middle(str(shards), "anonymous") / 2**20, 1),
                "first_use_seconds": round(decoded[shards], 1),
            }
            for shards in SHARDS
        ],
    }
    OUT.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
