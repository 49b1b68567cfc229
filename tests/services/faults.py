"""Faults, one try at a time: a sweep of three runs goes on while something is broken; what was lost in the end?

What a person would do is done: the same command again until nothing is left, then `bayeslaw runs sync`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from bayeslaw import schema, store
from bayeslaw.journal import FILE_NAME, JournalTail, find_journals, read_journal, read_start
from bayeslaw.plan import Plan, write_plan
from bayeslaw.server import Server, Settings
from tests.services.journalling import plan_of
from tests.services.postgres import Postgres
from tests.services.serving import free_port
from trainer import attempts
from trainer.entries import Entries
from trainer.planning import plan_grid
from trainer.rundir import alive, earlier_attempts
from trainer.standing import standings
from trainer.tracking import sync

RUNS, JOBS = 3, 2
MODULE = "tests.services.journalling"
LONG_OUTAGE, OUTAGE = 60.0, 5.0


@dataclass(frozen=True)
class Losses:
    """What a try cost; all zero when nothing did.

    Parameters
    ----------
    points_lost, points_doubled : int
        Of journals against the database, each with its step, time and bits; a step of a metric that is there twice.
    runs_lost : int
        Planned, and not finished in the end.
    runs_twice : int
        Finished more than once, two workers at one run, or two runs in MLflow for one config.
    states_wrong : int
        Runs and sweeps whose state in MLflow is not what it was, in the end and, where processes died, before anybody
        went on.
    """

    points_lost: int = 0
    points_doubled: int = 0
    runs_lost: int = 0
    runs_twice: int = 0
    states_wrong: int = 0

    def __add__(self, other: Losses) -> Losses:
        return Losses(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class Site:
    """A PostgreSQL and a tracking server, which can be broken and mended.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.postgres = Postgres()
        self.settings = Settings(store=self.postgres.uri, artifacts=folder / "mlartifacts", port=free_port())
        self.server = Server(self.settings)
        self.server.start()

    @property
    def uri(self) -> str:
        return self.server.uri

    def kill_server(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.stop()

    def start_server(self) -> None:
        self.server = Server(self.settings)
        self.server.start()

    def close(self) -> None:
        self.server.stop()
        self.postgres.remove()


class Sweep:
    """One sweep that is tried.

    Parameters
    ----------
    site : Site
    folder : Path
    plan : Plan
    module : str
        What a worker runs.
    """

    def __init__(self, site: Site, folder: Path, plan: Plan, module: str = MODULE) -> None:
        self.site, self.plan, self.module = site, plan, module
        self.out = folder / "out"
        self.path = folder / "plan.json"
        write_plan(plan, self.path)
        self.environment = os.environ | {
            "MLFLOW_TRACKING_URI": site.uri,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "OMP_NUM_THREADS": "1",
        }

    @contextmanager
    def launched(self) -> Iterator[subprocess.Popen]:
        """A launch; waited for at the end."""
        command = [sys.executable, "-m", MODULE, str(self.path), str(self.out), self.module, str(JOBS)]
        with open(self.out.parent / "log", "ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            yield process
            process.wait(timeout=180)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def begun(self, points: int = 1) -> None:
        """Wait until some run has so many records."""
        deadline = time.monotonic() + 60
        while not any(len(JournalTail(path).read()) > points for path in find_journals(self.out)):
            assert time.monotonic() < deadline, (self.out.parent / "log").read_text()
            time.sleep(0.05)

    def children(self, parent: int, word: str) -> list[int]:
        """Processes below a launch whose command has a word."""
        found = []
        for child in _children(parent):
            if word in Path(f"/proc/{child}/cmdline").read_text():
                found.append(child)
            found += self.children(child, word)
        return found

    def finish(self) -> None:
        """The same command again until nothing is left, then what brings the rest to MLflow."""
        for _ in range(5):
            if all(each.state == "finished" for each in standings(self.plan, self.out)):
                break
            with self.launched():
                pass
        results = sync(self.out, tracking_uri=self.site.uri)
        assert [result.error for result in results] == [None] * len(results)

    def states(self) -> dict[str, list[tuple[str, str]]]:
        """Status and state in MLflow by run, the sweep itself as the empty name."""
        client = store.connect(self.site.uri)
        experiment = client.get_experiment_by_name(self.plan.study)
        found: dict[str, list[tuple[str, str]]] = {}
        for run in client.search_runs([experiment.experiment_id]) if experiment else ():
            tags = run.data.tags
            found.setdefault(tags.get(schema.TAG_RUN_ID, ""), []).append((run.info.status, tags[schema.TAG_STATE]))
        return found

    def not_told_dead(self) -> int:
        """Runs that were begun and nobody is at, but MLflow knows nothing of, or takes for running."""
        dead = [path.parent for path in find_journals(self.out) if not alive(path.parent)]
        told = self.states()
        known = [told.get(read_start(run_dir / FILE_NAME)["row"]["run_id"], []) for run_dir in dead]
        return sum(not statuses or any(status == "RUNNING" for status, _ in statuses) for statuses in known)

    def losses(self) -> Losses:
        """What the journals and the plan say against what the database has."""
        rows = self.site.postgres.query(
            "SELECT r.name, m.key, m.step, m.timestamp, m.value FROM metrics m JOIN runs r USING (run_uuid)"
            f" JOIN experiments e USING (experiment_id) WHERE e.name = '{self.plan.study}'"
        )
        there = Counter((name, key, int(step), int(when), value) for name, key, step, when, value in rows)
        # An attempt that was killed before its first checkpoint is kept, and is a run of its own in MLflow.
        earlier = [path for run in standings(self.plan, self.out) for path in earlier_attempts(run.run_dir)]
        journals = [read_journal(path) for path in (*find_journals(self.out), *earlier)]
        wanted = Counter(
            (journal.run_id, point.name, point.step, point.when, point.value)
            for journal in journals
            for entry in Entries(journal.path).read()
            for point in entry.points
        )
        steps = Counter((name, key, step) for name, key, step, _, _ in there if key.startswith("train/"))
        again = sum(count - 1 for count in steps.values()) if self.module == MODULE else 0
        finished = Counter(
            journal.run_id
            for journal in journals
            for record in journal.records
            if record["event"] == "end" and record["state"] == "finished"
        )
        states = self.states()
        twice = sum(count - 1 for count in finished.values())
        twice += abs(sum(map(len, states.values())) - len(states) - len(earlier))
        twice += sum(map(_overlapping, (attempts.recorded(run.run_dir) for run in standings(self.plan, self.out))))
        return Losses(
            points_lost=sum((wanted - there).values()),
            points_doubled=sum((there - wanted).values()) + again,
            runs_lost=sum(each.state != "finished" for each in standings(self.plan, self.out)),
            runs_twice=twice,
            states_wrong=sum(
                found.count(("FINISHED", "finished")) != 1 or found.count(("KILLED", "killed")) != len(found) - 1
                for found in states.values()
            ),
        )


def _children(parent: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _overlapping(events: list[dict]) -> int:
    """Attempts that began while the one before, whose end was recorded, went on."""
    begun: int | None = None
    count = 0
    for event in events:
        if event["event"] == "begin":
            count += begun is not None and Path(f"/proc/{begun}").exists() and begun != event["pid"]
            begun = event["pid"]
        elif event["event"] == "end":
            begun = None
    return count


def trainer_killed(sweep: Sweep, dice: random.Random, number: int) -> Losses:
    """One worker by every second try; else the launch with all workers, by every second of those what delivers too."""
    early = Losses()
    with sweep.launched() as launch:
        sweep.begun(dice.randrange(1, 40))
        if number % 2:
            os.kill(dice.choice(sweep.children(launch.pid, sweep.module)), signal.SIGKILL)
        else:
            victims = [launch.pid, *sweep.children(launch.pid, sweep.module)]
            if number % 4 == 0:
                victims += sweep.children(launch.pid, "trainer.courier")
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
    if number % 2 == 0:
        if number % 4 == 0:
            sync(sweep.out, tracking_uri=sweep.site.uri)
        deadline = time.monotonic() + 20
        while (wrong := sweep.not_told_dead()) and time.monotonic() < deadline:
            time.sleep(0.5)
        early = Losses(states_wrong=wrong)
    return early


def server_killed(sweep: Sweep, dice: random.Random, number: int) -> Losses:
    """Nineteen outages of 5 s and one of 60 s."""
    with sweep.launched():
        sweep.begun(dice.randrange(1, 40))
        sweep.site.kill_server()
        time.sleep(LONG_OUTAGE if number == 19 else OUTAGE)
        sweep.site.start_server()
    return Losses()


def database_restarted(sweep: Sweep, dice: random.Random, number: int) -> Losses:
    """Stopped, every third time as by a crash, and started again."""
    with sweep.launched():
        sweep.begun(dice.randrange(1, 40))
        (sweep.site.postgres.kill if number % 3 == 0 else sweep.site.postgres.stop)()
        time.sleep(dice.uniform(0.5, OUTAGE))
        sweep.site.postgres.start()
    return Losses()


def disk_full(sweep: Sweep, dice: random.Random, number: int) -> Losses:
    """The output folder is a file system of its own that something else fills, until somebody tidies up."""
    sweep.out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", sweep.out], check=True)
    filler = sweep.out / "filler"
    try:
        with sweep.launched():
            sweep.begun(dice.randrange(1, 40))
            with suppress(OSError), open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(b"0" * 512)
            deadline = time.monotonic() + 30
            while "No space left" not in (log := (sweep.out.parent / "log").read_text()):
                assert time.monotonic() < deadline, log
                time.sleep(0.1)
            time.sleep(dice.uniform(0.0, 1.0))
            filler.unlink()
        sweep.finish()
        losses = sweep.losses()
    finally:
        subprocess.run(["umount", "-l", sweep.out], check=True)
    return losses


def two_launchers(sweep: Sweep, dice: random.Random, number: int) -> Losses:
    """Two launches of one plan, up to a second apart."""
    with sweep.launched():
        time.sleep(dice.uniform(0.0, 1.0))
        with sweep.launched():
            pass
    return Losses()


def clock_jumps(sweep: Sweep, dice: random.Random, number: int) -> Losses:
    """The clock of every process jumps by up to a day, there and back again; a worker is killed in between."""
    clock = sweep.out.parent / "clock"
    clock.write_text("0")
    sweep.environment |= {
        "PYTHONPATH": f"{Path(__file__).parent / 'clock'}:{sweep.environment['PYTHONPATH']}",
        "BAYESLAW_CLOCK": str(clock),
    }
    with sweep.launched() as launch:
        sweep.begun(dice.randrange(1, 20))
        clock.write_text(str(dice.uniform(-86400, 86400)))
        time.sleep(dice.uniform(0.2, 1.0))
        if workers := sweep.children(launch.pid, sweep.module):
            os.kill(dice.choice(workers), signal.SIGKILL)
        time.sleep(dice.uniform(0.2, 1.0))
        clock.write_text("0")
    return Losses()


def line_cut_off(sweep: Sweep, dice: random.Random, number: int) -> Losses:
    """All is killed, and the last line of every journal without an end is a part of one."""
    with sweep.launched() as launch:
        sweep.begun(dice.randrange(1, 40))
        processes = [launch.pid, *sweep.children(launch.pid, sweep.module)]
        processes += sweep.children(launch.pid, "trainer.courier")
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    for path in find_journals(sweep.out):
        content = path.read_bytes()
        if b'"event": "end"' not in content:
            last = len(content.splitlines(keepends=True)[-1])
            if content.count(b"\n") > 1:
                os.truncate(path, len(content) - dice.randrange(1, last))
    return Losses()


FAULTS: dict[str, Callable[[Sweep, random.Random, int], Losses]] = {
    "trainer killed": trainer_killed,
    "server killed": server_killed,
    "PostgreSQL stopped and started": database_restarted,
    "disk full": disk_full,
    "two launchers": two_launchers,
    "clock jumps": clock_jumps,
    "last line cut off": line_cut_off,
}


def tried(fault: str, number: int, site: Site, folder: Path) -> Losses:
    """One try of a fault on three runs of the stand-in.

    Parameters
    ----------
    fault : str
        One of `FAULTS`.
    number : int
        Of the try, which seeds it.
    site : Site
    folder : Path
        Empty.
    """
    study = f"{fault.replace(' ', '-')}-{number}"
    return _tried(fault, number, Sweep(site, folder, plan_of(RUNS, study)))


def tried_for_real(fault: str, number: int, site: Site, folder: Path) -> Losses:
    """One try on a real run, trained by torch."""
    plan = plan_grid(
        study=f"real-{fault.replace(' ', '-')}-{number}",
        budgets=[2e10],
        widths=[24],
        recurrences=[2],
        prelude_layers=1,
        unrolled_layers=4,
        coda_layers=1,
        seq_len=32,
        batch_tokens=256,
        head_size=12,
        corpus="stdlib",
        validation_tokens=8192,
        log_every=5,
    )
    return _tried(fault, number, Sweep(site, folder, plan, module="trainer.worker"))


def _tried(fault: str, number: int, sweep: Sweep) -> Losses:
    dice = random.Random(json.dumps([fault, number]))
    losses = FAULTS[fault](sweep, dice, number)
    if fault == "disk full":  # counted before its file system goes
        return losses
    sweep.finish()
    return losses + sweep.losses()
