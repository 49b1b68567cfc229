"""Real sweeps on a real Slurm of one node: jobs that are cancelled, requeued and preempted, and every run once."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayeslaw.cli import run
from bayeslaw.journal import read_journal
from bayeslaw.plan import Plan, read_plan
from bayeslaw.runs import load_runs
from tests.services.slurm import Cluster, until
from trainer.attempts import recorded
from trainer.rundir import run_directory
from trainer.standing import standings

pytestmark = [pytest.mark.service, pytest.mark.slow]

PATIENCE = 240.0


@pytest.fixture
def sweep(tmp_path, store_uri, monkeypatch, capsys):
    """Plans runs of a tiny network, each of so many steps, and submits workers for them."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store_uri)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    draw = random.Random(0)
    (tmp_path / "words.txt").write_text(" ".join(draw.choice(("loop", "until", "the", "state")) for _ in range(9000)))
    return Sweep(tmp_path, capsys)


class Sweep:
    def __init__(self, folder: Path, capsys) -> None:
        self.file, self.out, self._corpus, self._capsys = (
            folder / "plan.json",
            folder / "out",
            folder / "words.txt",
            capsys,
        )

    def plan(self, widths: str, budgets: str) -> Plan:
        words = f"sweep plan --budgets {budgets} --widths {widths} --recurrences 2 --unrolled-layers 2 --head-size 8"
        more = f"--seq-len 16 --batch-tokens 128 --validation-tokens 640 --study tiny --corpus {self._corpus}"
        assert run([*words.split(), *more.split(), "--out", str(self.file)]) == 0
        return read_plan(self.file)

    def submit(self, jobs: int, *more: str) -> list[str]:
        self._capsys.readouterr()
        words = f"sweep run {self.file} --out {self.out} --executor slurm --jobs {jobs} --partition low --device cpu"
        execution = "--compile off --checkpoint-every 20 --json"
        assert run([*words.split(), *execution.split(), *more]) == 0
        answer = json.loads(self._capsys.readouterr().out)
        self.logs = self.out / "slurm"
        return answer.get("jobs", [])

    @contextlib.contextmanager
    def logs_shown(self) -> Iterator[None]:
        """Show the jobs' logs where something is not as it should be."""
        try:
            yield
        except BaseException:
            for log in sorted(self.logs.rglob("*.out")):
                print(f"--- {log.name}\n{log.read_text()}")
            raise

    def begun(self, count: int, step: int = 1) -> bool:
        return (
            sum(each.state == "running" and each.step >= step for each in standings(read_plan(self.file), self.out))
            >= count
        )

    def events(self, run_id: str) -> list[dict]:
        return recorded(run_directory(self.out, run_id))


def assert_each_once(sweep: Sweep, plan: Plan) -> None:
    """Every run came to one end, and its curve has every point once."""
    for planned in plan.runs:
        journal = read_journal(run_directory(sweep.out, planned.run_id))
        events = [record["event"] for record in journal.records]
        assert journal.state == "finished"
        assert events.count("start") == 1
        ends = [event["state"] for event in sweep.events(planned.run_id) if event["event"] == "end"]
        assert ends.count("finished") == 1
        assert ends[-1] == "finished"
        steps = [record["step"] for record in journal.metrics if "train/loss" in record["values"]]
        assert steps == sorted(set(steps))


def test_six_runs_with_a_job_cancelled_and_one_requeued(slurm: Cluster, sweep: Sweep):
    plan = sweep.plan("16 24 32", "6e9 12e9")
    assert len(plan.runs) == 6
    first, second = sweep.submit(2, "--time-minutes", "10")
    with sweep.logs_shown():
        until(lambda: sweep.begun(2, step=20), "two at work", PATIENCE)
        slurm.scontrol("requeue", first)
        slurm.scancel(second)
        until(lambda: not slurm.queued(), "done", PATIENCE)
        assert slurm.job(second)["JobState"] == "CANCELLED"
        assert slurm.job(first)["JobState"] == "COMPLETED"
        assert int(slurm.job(first)["Restarts"]) == 1
        assert_each_once(sweep, plan)
        tracked = load_runs("mlflow:tiny")
        assert len(tracked.runs) == 6
        assert tracked.data_hash == load_runs(str(sweep.out)).data_hash
    assert run(["sweep", "run", str(sweep.file), "--out", str(sweep.out), "--executor", "slurm"]) == 0
    assert not slurm.queued()


def assert_gone_on_with(sweep: Sweep, plan: Plan) -> None:
    """The one run of the plan was saved when it was told to, not at the checkpoint before, and gone on with there."""
    assert_each_once(sweep, plan)
    (run_id,) = (planned.run_id for planned in plan.runs)
    ends = [event for event in sweep.events(run_id) if event["event"] == "end"]
    assert [event["state"] for event in ends] == ["killed", "finished"]
    journal = read_journal(run_directory(sweep.out, run_id))
    assert [record["step"] for record in journal.records if record["event"] == "resume"] == [ends[0]["step"]]
    assert standings(plan, sweep.out)[0].failures == 0


def test_a_run_on_two_nodes(two_nodes: Cluster, sweep: Sweep):
    plan = sweep.plan("16", "3e9")
    (job,) = sweep.submit(1, "--gpus-per-run", "2", "--nodes", "2")
    with sweep.logs_shown():
        until(lambda: sweep.begun(1, step=10), "at work", PATIENCE)
        two_nodes.scancel("--signal", "USR2", job)  # as at a time limit
        until(lambda: not two_nodes.queued(), "done", PATIENCE)
        assert int(two_nodes.job(job)["Restarts"]) == 1
        assert_gone_on_with(sweep, plan)
        assert read_journal(run_directory(sweep.out, plan.runs[0].run_id)).row["device_count"] == 2


def test_a_preempted_job_is_saved_requeued_and_gone_on_with(slurm: Cluster, sweep: Sweep):
    plan = sweep.plan("32", "60e9")
    (job,) = sweep.submit(1, "--time-minutes", "10")
    with sweep.logs_shown():
        until(lambda: sweep.begun(1, step=20), "at work", PATIENCE)
        slurm.sbatch("--partition", "high", "--exclusive", "--output", "/dev/null", "--wrap", "sleep 1")
        until(lambda: not slurm.queued(), "done", PATIENCE)
        assert int(slurm.job(job)["Restarts"]) == 1
        assert_gone_on_with(sweep, plan)
