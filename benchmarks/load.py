"""Many trainers at once against one tracking server on PostgreSQL: is every point there, and what does a step pay?

Starts PostgreSQL and `bayeslaw server`, then simulated trainers: processes without torch whose steps sleep a fixed time
and record points as training does (journal, and every ten seconds what a checkpoint asks for), each followed by a
courier of its own. Measured: the time of the training thread in journal and tracking as a share of a step, by the wall;
points in the database against the journals, each with its run, name, step and value; what server and couriers complain
of; how long after the last step everything was there. With --capacity instead: batches and points a second that the
server takes, for several numbers of worker processes; --connections KEPT MORE gives each of them other database
connections than `bayeslaw server` does (MLflow by itself: 5 10). Each writes its part of benchmarks/results/load.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayeslaw.journal import JournalWriter, find_journals, read_journal
from bayeslaw.server import Server, Settings
from bayeslaw.server.settings import CONNECTIONS, WORKERS
from tests.services.postgres import Postgres

OUT = Path(__file__).parent / "results" / "load.json"
NAMES = ("train/loss", "train/gradient_norm", "train/flops", "train/tokens_per_second", "train/learning_rate/matrix")
CHECKPOINT_SECONDS = 10.0


def trainer(folder: Path, number: int, seconds: float, step_seconds: float, uri: str, begin: float) -> None:
    """One simulated trainer; prints what its thread spent, in JSON."""
    from trainer.tracking import Tracking

    tracking = Tracking(uri)
    writer = JournalWriter(folder / "runs" / f"run-{number}")
    tracking.follow(writer.path)
    row = {"run_id": f"load/{number}", "recipe": "baseline", "recurrences": 1.0}
    writer.start(study="load", config={"n": number}, config_hash=f"{number:016x}", versions={}, row=row)
    time.sleep(max(0.0, begin - time.time()))
    spent, longest = 0.0, 0.0
    checkpoint = time.monotonic() + CHECKPOINT_SECONDS
    steps = round(seconds / step_seconds)
    for step in range(1, steps + 1):
        time.sleep(step_seconds)  # the work of a step
        values = {name: step + 0.1 * place for place, name in enumerate(NAMES)}
        before = time.perf_counter()
        writer.metrics(step, values)
        if time.monotonic() >= checkpoint:
            writer.sync()
            tracking.flush()
            checkpoint = time.monotonic() + CHECKPOINT_SECONDS
        took = time.perf_counter() - before
        spent, longest = spent + took, max(longest, took)
    writer.end(state="finished", row={"loss": 1.0, "tokens": 1, "flops": 1.0})
    writer.close()
    ended = time.time()
    tracking.close()
    print(json.dumps({"share": spent / (steps * step_seconds), "longest": longest, "ended": ended}))


@contextlib.contextmanager
def serving(place: Path, complaints: list[str], **settings: int):
    """A PostgreSQL and a tracking server on it."""
    cluster = Postgres()
    try:
        with Server(
            Settings(store=cluster.uri, artifacts=place / "mlartifacts", port=5099, **settings), tell=complaints.append
        ) as server:
            yield cluster, server
    finally:
        cluster.remove()


def load(trainers: int, seconds: float, step_seconds: float) -> dict:
    with tempfile.TemporaryDirectory() as name:
        place, complaints = Path(name), []
        with serving(place, complaints) as (cluster, server):
            begin = time.time() + 2 + 0.1 * trainers
            command = [sys.executable, __file__, "--trainer", name]
            given = [str(seconds), str(step_seconds), server.uri, str(begin)]
            processes = [
                subprocess.Popen([*command, str(n), *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for n in range(trainers)
            ]
            biggest, watching = [0], threading.Event()
            watcher = threading.Thread(target=watch, args=([process.pid for process in processes], biggest, watching))
            watcher.start()
            said = [process.communicate() for process in processes]
            done = time.time()
            watching.set()
            watcher.join()
            told = [json.loads(out) for out, _ in said]
            wanted, there = in_journals(place), in_database(cluster)
            (states,) = cluster.query("SELECT count(*) FROM runs WHERE status = 'FINISHED'")
    shares = [one["share"] for one in told]
    return {
        "trainers": trainers,
        "workers": WORKERS,
        "connections_per_worker": f"{CONNECTIONS}, and as many for a rush",
        "seconds": seconds,
        "step_ms": step_seconds * 1e3,
        "points": sum(wanted.values()),
        "missing": sum((wanted - there).values()),
        "doubled_or_foreign": sum((there - wanted).values()),
        "runs_finished": states[0],
        "share_of_step_mean": round(statistics.fmean(shares), 5),
        "share_of_step_worst_trainer": round(max(shares), 5),
        "longest_call_ms": round(1e3 * max(one["longest"] for one in told), 1),
        "drain_seconds": round(done - max(one["ended"] for one in told), 1),
        "courier_mb_at_most": round(biggest[0] / 2**20),
        "warnings_of_couriers": sum(error.count("warning:") for _, error in said),
        "lines_of_server": len(complaints),
        "first_lines": [*complaints[:3], *[error.splitlines()[0] for _, error in said if error][:3]],
    }


def watch(parents: list[int], biggest: list[int], ended: threading.Event) -> None:
    """Note the largest memory (proportional share) of a child of these processes."""
    while not ended.wait(2.0):
        for parent in parents:
            with contextlib.suppress(OSError, IndexError, ValueError):
                child = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0]
                lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
                (size,) = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
                biggest[0] = max(biggest[0], size * 1024)


def in_journals(place: Path) -> Counter:
    """Every point: run, name, step, value."""
    return Counter(
        (journal.run_id, name, record["step"], value)
        for journal in map(read_journal, find_journals(place))
        for record in journal.metrics
        for name, value in record["values"].items()
    )


def in_database(cluster: Postgres) -> Counter:
    """Every point of the curves in the database."""
    rows = cluster.query(
        "SELECT r.name, m.key, m.step, m.value FROM metrics m JOIN runs r USING (run_uuid) WHERE m.key LIKE 'train/%'"
    )
    return Counter((name, key, int(step), value) for name, key, step, value in rows)


def capacity(workers: int, seconds: float, clients: int) -> dict:
    """Requests and points a second, with batches of 500 points and of ten, from so many clients at once."""
    with tempfile.TemporaryDirectory() as name:
        complaints: list[str] = []
        with serving(Path(name), complaints, workers=workers) as (_, server):
            found = {"workers": workers, "clients": clients}
            for points in (10, 500):
                command = [sys.executable, __file__, "--client", server.uri, str(points), str(seconds)]
                processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(clients)]
                told = [json.loads(process.communicate()[0]) for process in processes]
                rate = sum(one["batches"] / one["seconds"] for one in told)
                found |= {
                    f"batches_per_second_of_{points}": round(rate, 1),
                    f"points_per_second_of_{points}": round(rate * points),
                    f"refused_of_{points}": sum(one["refused"] for one in told),
                }
            memory = subprocess.run(["ps", "-o", "rss=", "-g", str(server.pid)], capture_output=True, text=True).stdout
            found["server_mb"] = round(sum(map(int, memory.split())) / 1024)
    return found | {"lines_of_server": len(complaints), "first_lines": complaints[:2]}


def client(uri: str, points: int, seconds: float) -> None:
    """Send batches as fast as they are taken; by plain HTTP, so that the clients cost little beside the server."""
    import http.client
    import urllib.parse

    parts = urllib.parse.urlsplit(uri)
    refused = 0

    def post(path: str, body: dict) -> dict | None:
        nonlocal refused
        try:
            kind = {"Content-Type": "application/json"}
            connection.request("POST", f"/api/2.0/mlflow/{path}", json.dumps(body), kind)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 200:
                return json.loads(content)
        except OSError:  # no answer in time
            connection.close()
        refused += 1
        return None

    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    while (made := post("runs/create", {"experiment_id": "0"})) is None:
        pass
    run_id = made["run"]["info"]["run_id"]
    batches = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        names = [NAMES[place % len(NAMES)] for place in range(points)]
        metrics = [
            {"key": key, "value": place, "timestamp": 1, "step": batches * points + place}
            for place, key in enumerate(names)
        ]
        batches += post("runs/log-batch", {"run_id": run_id, "metrics": metrics}) is not None
    print(json.dumps({"batches": batches, "refused": refused, "seconds": time.perf_counter() - begun}))


def record(part: str, found: object, command: str) -> None:
    import mlflow
    import psycopg

    there = json.loads(OUT.read_text()) if OUT.exists() else {}
    there[part] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores shared by server, database, trainers and couriers, {platform.machine()}",
        "versions": {"python": platform.python_version(), "mlflow": mlflow.__version__, "psycopg": psycopg.__version__},
        "command": command,
        "found": found,
    }
    OUT.write_text(json.dumps(there, indent=1) + "\n")
    print(json.dumps(there[part], indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-ms", type=float, default=50.0, help="one step, of five points")
    parser.add_argument("--capacity", action="store_true")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--connections", type=int, nargs=2)
    parser.add_argument("--trainer", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # PostgreSQL is to end with us
    if given.trainer:
        folder, number, seconds, step, uri, begin = given.trainer
        trainer(Path(folder), int(number), float(seconds), float(step), uri, float(begin))
    elif given.client:
        client(given.client[0], int(given.client[1]), float(given.client[2]))
    elif given.capacity:
        command = f"--capacity --seconds {given.seconds:g} --clients {given.clients}"
        command += f" --workers {' '.join(map(str, given.workers))}"
        if given.connections:
            kept, more = map(str, given.connections)
            os.environ |= {"MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": kept, "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": more}
            command += f" --connections {kept} {more}"
        found = [capacity(workers, given.seconds, given.clients) for workers in given.workers]
        part = f"capacity_{given.clients}_clients" + ("_other_connections" if given.connections else "")
        record(part, found, f"python benchmarks/load.py {command}")
    else:
        found = load(given.trainers, given.seconds, given.step_ms / 1e3)
        command = f"--trainers {given.trainers} --seconds {given.seconds:g} --step-ms {given.step_ms:g}"
        record("load", found, f"python benchmarks/load.py {command}")


if __name__ == "__main__":
    main()
