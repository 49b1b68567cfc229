"""Twenty tries of every fault that a sweep may meet, and what was lost: benchmarks/results/faults.json.

A sweep of three runs on two workers goes on, feeding a tracking server on PostgreSQL, while something is broken; see
tests/services/faults.py for what is done and counted. A stand-in for torch writes the journals, and three tries are of
real runs. Needs PostgreSQL (apt-get install postgresql), and to fill a disk the right to mount one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.services.faults import FAULTS, Losses, Site, tried, tried_for_real

OUT = Path(__file__).parent / "results" / "faults.json"
REAL = ("trainer killed", "server killed", "PostgreSQL stopped and started")


def one_site(fault: str, numbers: list[int], real: bool) -> None:
    """Try with a server of its own; prints one JSON line a try."""
    with tempfile.TemporaryDirectory() as name:
        site = Site(Path(name))
        try:
            for number in numbers:
                folder = Path(name) / f"{number}"
                folder.mkdir()
                begun = time.monotonic()
                losses = tried_for_real(fault, number, site, folder) if real else tried(fault, number, site, folder)
                took = round(time.monotonic() - begun, 1)
                print(json.dumps(dataclasses.asdict(losses) | {"number": number, "seconds": took}), flush=True)
        finally:
            site.close()


def tries(fault: str, count: int, sites: int, *, real: bool = False) -> dict:
    """So many tries, shared by several sites side by side."""
    shares = [list(range(count))[place::sites] for place in range(sites)]
    command = [sys.executable, __file__, "--one", fault, "1" if real else ""]
    processes = [
        subprocess.Popen([*command, json.dumps(share)], stdout=subprocess.PIPE, text=True) for share in shares if share
    ]
    told = [json.loads(line) for process in processes for line in process.communicate()[0].splitlines()]
    losses = sum((Losses(**{f.name: one[f.name] for f in dataclasses.fields(Losses)}) for one in told), Losses())
    return {
        "fault": fault + (", real run" if real else ""),
        "tries": count,
        "tries_that_broke": count - len(told),
        **dataclasses.asdict(losses),
        "seconds_a_try": round(sum(one["seconds"] for one in told) / max(len(told), 1), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--sites", type=int, default=2, help="servers side by side")
    parser.add_argument("--only", choices=FAULTS, help="this fault alone; the other rows stay as they were found")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        fault, real, numbers = given.one
        one_site(fault, json.loads(numbers), bool(real))
        return
    table = []
    if given.only:
        row = tries(given.only, given.tries, given.sites)
        table = [row if each["fault"] == given.only else each for each in json.loads(OUT.read_text())["faults"]]
    else:
        for fault in FAULTS:
            table.append(tries(fault, given.tries, given.sites))
            print(table[-1], flush=True)
        for fault in REAL:
            table.append(tries(fault, 1, 1, real=True))
            print(table[-1], flush=True)
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("mlflow", "psycopg")}},
        "command": f"python benchmarks/faults.py --tries {given.tries} --sites {given.sites}",
        "faults": table,
    }
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    names = ("fault", "tries", "tries_that_broke", *(each.name for each in dataclasses.fields(Losses)))
    for row in table:
        print("  ".join(f"{row[name]}" for name in names))


if __name__ == "__main__":
    main()
