"""Querying 10,000 runs of 80 keys in MLflow: `load_runs`, first and again, against `mlflow.search_runs`; time, memory.

Writes the runs into a new sqlite store as a delivery leaves them (the shipped grid, repeated with other seeds and
losses; 27 params, 35 metrics, 18 tags each; `bayeslaw.updated` spread over ten days), then asks for all of them in
processes of their own, which take turns: `mlflow.search_runs` (pandas), `load_runs` without anything cached, and
`load_runs` twice again, with nothing to fetch and after 20 runs changed. Time is that of the call, imports and
connection apart; memory is the process's peak, in all and above what it held before the call. Writes
benchmarks/results/runs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "results" / "runs.json"
RUNS, CHANGED = 10_000, 20
DAY = 86_400_000
START = 1_760_000_000_000
STUDY = "study"
CURVES = (
    *("train/loss", "val/loss", "val/loss_se", "train/gradient_norm", "train/flops", "train/skipped_steps"),
    *("train/tokens_per_second", "train/mfu"),
    *(f"train/learning_rate/{kind}" for kind in ("matrix", "embedding", "head", "gain", "lane")),
    *(f"train/state_rms/{number}" for number in range(1, 9)),
    *(f"system/{name}" for name in ("cpu", "memory", "disk", "network", "gpu", "gpu_memory", "power")),
)
SETTINGS = ("optimizer", "warmup", "decay", "batch_tokens", "rate_rule", "clip")


def fill(database: Path, count: int) -> None:
    """An MLflow store with so many runs of 80 keys, written by SQL: 800,000 keys by the client would take an hour."""
    from bayeslaw import store
    from bayeslaw.datasets import load_dataset
    from bayeslaw.schema import COLUMNS

    uri = f"sqlite:///{database}"
    client = store.connect(uri, create=True)
    experiment = client.create_experiment(STUDY, artifact_location=(database.parent / "artifacts").as_uri())
    table = load_dataset("isodepth").drop(columns=["source", "state", "read_from"]).to_dict("records")
    rows: dict[str, list[tuple[Any, ...]]] = {"runs": [], "params": [], "tags": [], "latest_metrics": []}
    for number in range(count):
        row = table[number % len(table)] | {"seed": number // len(table), "device": "cpu", "device_count": 1}
        row["run_id"] += f"/{row['seed']}"
        row["loss"] *= 1 + 1e-6 * number
        row |= {"tokens_per_second": 1e5 + number, "peak_memory": 1e9, "epochs": 0.5}
        uuid, begun = f"{number:032x}", START + 10 * DAY * number // count
        params = {name: str(value) for name, value in row.items() if not COLUMNS[name].result}
        params |= {name: f"{name} {number % 3}" for name in SETTINGS}
        metrics = {name: float(value) for name, value in row.items() if COLUMNS[name].result}
        metrics |= dict.fromkeys(CURVES, 3.0)
        tags = {
            "bayeslaw.run_id": row["run_id"],
            "bayeslaw.state": "finished",
            "bayeslaw.config_hash": f"{number:016x}",
            "bayeslaw.code_version": "0.5.0",
            "bayeslaw.delivered": "200",
            "bayeslaw.resumes": "0",
            "bayeslaw.recipe": row["recipe"],
            "bayeslaw.budget": str(row["budget"]),
            "bayeslaw.host": f"node{number % 8}",
            "bayeslaw.heartbeat": str(begun + DAY // 24),
            "bayeslaw.updated": str(begun + DAY // 24),
            "bayeslaw.sweep": "0123456789abcdef",
            "mlflow.parentRunId": "f" * 32,
            "mlflow.runName": row["run_id"],
            "mlflow.user": "somebody",
            "mlflow.source.name": "bayeslaw",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": f"{number % 7:040x}",
        }
        assert len(params) + len(metrics) + len(tags) == 80
        rows["runs"].append((uuid, row["run_id"], begun, begun + DAY // 24, experiment))
        rows["params"] += [(name, text, uuid) for name, text in params.items()]
        rows["tags"] += [(name, text, uuid) for name, text in tags.items()]
        rows["latest_metrics"] += [(name, value, begun, 100, False, uuid) for name, value in metrics.items()]
    connection = sqlite3.connect(database)
    with connection:
        connection.executemany(
            "insert into runs (run_uuid, name, source_type, user_id, status, start_time, end_time, lifecycle_stage, "
            "experiment_id, artifact_uri) "
            "values (?, ?, 'LOCAL', 'somebody', 'FINISHED', ?, ?, 'active', ?, 'file:/none')",
            rows["runs"],
        )
        connection.executemany("insert into params (key, value, run_uuid) values (?, ?, ?)", rows["params"])
        connection.executemany("insert into tags (key, value, run_uuid) values (?, ?, ?)", rows["tags"])
        connection.executemany(
            "insert into latest_metrics (key, value, timestamp, step, is_nan, run_uuid) values (?, ?, ?, ?, ?, ?)",
            rows["latest_metrics"],
        )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def change(database: Path, count: int) -> None:
    """Let something new be told of some runs, as a delivery does."""
    now = str(int(time.time() * 1000))
    with sqlite3.connect(database) as connection:
        for number in range(0, count * 100, 100):
            uuid = f"{number:032x}"
            connection.execute("update tags set value = ? where key = 'bayeslaw.updated' and run_uuid = ?", (now, uuid))


def peak() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(kind: str, uri: str) -> dict[str, Any]:
    """One query in this process."""
    from bayeslaw import store

    store.connect(uri)
    import mlflow

    from bayeslaw.runs import load_runs

    mlflow.set_tracking_uri(uri)
    load_runs("isodepth")  # what a first use of pandas and pyarrow loads belongs to none of the queries
    import pyarrow.parquet  # noqa: F401

    before = peak()
    begun = time.perf_counter()
    if kind == "search_runs":
        found = len(mlflow.search_runs(experiment_names=[STUDY], max_results=10 * RUNS))
    else:
        found = len(load_runs(f"mlflow:{STUDY}", tracking_uri=uri).runs)
    seconds = time.perf_counter() - begun
    return {"runs": found, "seconds": seconds, "peak": peak(), "above": peak() - before}


def run(kind: str, database: Path, caches: Path) -> dict[str, Any]:
    """One query in a process of its own."""
    command = [sys.executable, __file__, "--one", kind, f"sqlite:///{database}"]
    environment = os.environ | {"XDG_CACHE_HOME": str(caches)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(*given.one)))
        return
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("search_runs", "first", "again", "changed")}
    with tempfile.TemporaryDirectory() as place:
        database = Path(place, "mlflow.db")
        fill(database, RUNS)
        for number in range(given.rounds):
            caches = Path(place, f"caches-{number}")
            found["search_runs"].append(run("search_runs", database, caches))
            found["first"].append(run("first", database, caches))
            found["again"].append(run("again", database, caches))
            change(database, CHANGED)
            found["changed"].append(run("changed", database, caches))
    assert all(result["runs"] == RUNS for results in found.values() for result in results)

    def middle(kind: str, name: str) -> float:
        return statistics.median(result[name] for result in found[kind])

    def over(name: str) -> float:
        return round(middle("first", name) / middle("search_runs", name), 3)

    import mlflow
    import pandas as pd

    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "mlflow": mlflow.__version__, "pandas": pd.__version__},
        "load_average": round(os.getloadavg()[0], 1),
        "command": "OMP_NUM_THREADS=1 python benchmarks/runs.py",
        "runs": f"{RUNS} of 80 keys, sqlite; medians of {given.rounds} rounds",
        "first_over_search_runs_seconds": over("seconds"),
        "first_over_search_runs_peak": over("peak"),
        "first_over_search_runs_peak_above_imports": over("above"),
        "again_seconds": round(middle("again", "seconds"), 2),
        f"{CHANGED}_changed_seconds": round(middle("changed", "seconds"), 2),
        "queries": {
            kind: {
                "seconds": round(middle(kind, "seconds"), 2),
                "peak_mb": round(middle(kind, "peak") / 2**20),
                "peak_above_imports_mb": round(middle(kind, "above") / 2**20),
            }
            for kind in found
        },
    }
    OUT.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
