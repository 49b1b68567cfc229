"""What Slurm is asked for; jobs themselves are in tests/services."""

from __future__ import annotations

import dataclasses
import os
import shlex

import pytest

from bayeslaw.errors import BayeslawError, JournalError, UsageError
from bayeslaw.plan import write_plan
from tests.trainer.standin import plan_of
from trainer.execution import Execution
from trainer.launch import Order, slurm, torchrun
from trainer.launch.slurm import Slurm, submit


@pytest.fixture
def order(tmp_path):
    write_plan(plan_of(2), tmp_path / "plan.json")
    return Order(plan=tmp_path / "plan.json", out=tmp_path / "out", tracked=True, execution=Execution(device="cpu"))


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A folder on PATH with an srun, and an sbatch that keeps what it is given."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(text):
        for name, does in (("srun", "true"), ("sbatch", text)):
            (folder / name).write_text(f"#!/bin/sh\n{does}\n")
            (folder / name).chmod(0o755)

    kept = tmp_path / "kept"
    put(f"cp $1 {kept}.sh; env > {kept}.env; echo Submitted batch job 17")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return put, kept


def given(kept):
    """The options that sbatch was given."""
    lines = kept.with_suffix(".sh").read_text().splitlines()
    words = [word for line in lines if line.startswith("#SBATCH") for word in shlex.split(line)[1:]]
    return {name: value for name, _, value in (word[2:].partition("=") for word in words)}


def test_what_sbatch_is_asked_for(order, sbatch):
    _, kept = sbatch
    options = ("account=lab", "exclusive", "signal=USR2@300")
    asked = Slurm(partition="long", time_minutes=90, gpus=True, setup=["module load cuda"], options=options)
    submitted = submit(order, asked, jobs=3)
    assert submitted.jobs == ("17_0", "17_1", "17_2")
    assert submitted.folder == order.out.absolute() / "slurm" / "001"
    found = given(kept)
    assert found["array"] == "0-2%3"
    assert (found["time"], found["partition"], found["account"]) == ("90", "long", "lab")
    assert (found["gpus-per-node"], found["nodes"], found["signal"], found["exclusive"]) == ("1", "1", "USR2@300", "")
    script = kept.with_suffix(".sh").read_text()
    assert "module load cuda" in script
    assert " -P -u -m submitit.core._submit" in script
    assert submit(order, asked, jobs=1).folder.name == "002"


def test_the_store_is_in_the_environment_alone(order, sbatch, monkeypatch):
    _, kept = sbatch
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    monkeypatch.setattr(slurm, "connect", lambda uri: None)
    submit(order, Slurm(), jobs=1, tracking_uri="http://me:secret@host")
    assert "MLFLOW_TRACKING_URI=http://me:secret@host" in kept.with_suffix(".env").read_text()
    assert "secret" not in kept.with_suffix(".sh").read_text()
    for pickled in (order.out / "slurm").rglob("*.pkl"):
        assert b"secret" not in pickled.read_bytes()
    assert os.environ["MLFLOW_TRACKING_URI"] == "sqlite:///other.db"


def test_a_store_that_is_away_is_a_warning(order, sbatch, capsys):
    submit(order, Slurm(), jobs=1, tracking_uri="http://me:secret@127.0.0.1:9")
    told = capsys.readouterr().err
    assert "warning: http://me:***@127.0.0.1:9" in told
    assert "secret" not in told


def test_jobs_that_slurm_refuses(order, sbatch):
    put, _ = sbatch
    put("echo sbatch: error: invalid partition specified: lng >&2; exit 1")
    with pytest.raises(BayeslawError, match=r"(?s)take the jobs: .*invalid partition specified: lng.*nothing was"):
        submit(order, Slurm(partition="lng"), jobs=2)


def test_a_folder_that_cannot_be_written(order, sbatch):
    order.out.touch()
    with pytest.raises(JournalError, match="choose another --out"):
        submit(order, Slurm(), jobs=1)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"time_minutes": 0}, "time_minutes = 0"),
        ({"options": ["Account=x"]}, "an option of sbatch by its long name"),
        ({"options": ["comment=a\n#SBATCH --uid=0"]}, "an option of sbatch"),
        ({"options": ["partition=x"]}, "use --partition"),
    ],
)
def test_jobs_that_cannot_be_meant(fields, match):
    with pytest.raises(UsageError, match=match):
        Slurm(**fields)


def test_a_job_whose_worker_cannot_work_fails(order, capfd):
    order.out.touch()  # no folder
    with pytest.raises(BayeslawError, match="gave up"):
        slurm.Work(order)()
    told = capfd.readouterr().err
    assert "cannot write the run directory" in told
    assert "gave up, its reason stands above" in told


def test_processes_of_one_node_and_of_several(order, tmp_path):
    alone = torchrun.command(dataclasses.replace(order, processes=2))
    assert alone[3:] == [
        "torch.distributed.run",
        "--standalone",
        *["--nproc-per-node", "2", "--module", "trainer.worker"],
    ]
    words = torchrun.command(dataclasses.replace(order, processes=8, nodes=2))
    assert words[:2] == ["srun", "--overlap"]
    assert words[words.index("--nproc-per-node") + 1] == "4"
    assert words[words.index("--nnodes") + 1] == words[words.index("--ntasks") + 1] == "2"
    parameters = Slurm().parameters(dataclasses.replace(order, processes=8, nodes=2), 1)
    assert parameters["srun_args"] == ["--overlap", "--nodes", "1", "--ntasks", "1"]
