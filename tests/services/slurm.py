"""A Slurm of the tests' own on this machine: munged, slurmctld and slurmd under a temporary folder, on free ports.

Without accounting: what has become of a job is asked of slurmctld, which remembers it for an hour.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
PATIENCE = 60.0

CONFIGURATION = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=512
ReturnToService=2
MpiDefault=none
MinJobAge=3600
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=sched_interval=2,sched_min_interval=100000,bf_interval=2,batch_sched_delay=0
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=10 MaxTime=INFINITE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
"""


class Cluster:
    """Nodes of two CPUs with the partitions low, which is preempted with ten seconds of grace, and high.

    Several nodes are several slurmd of this machine.
    """

    def __init__(self, nodes: int = 1) -> None:
        self._nodes = [f"n{number + 1}" for number in range(nodes)]
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        munge = self.folder / "munge"
        for made in (munge, self.folder / "state"):
            made.mkdir(mode=0o755)
        self.folder.chmod(0o755)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        host = socket.gethostname().split(".")[0]
        place = f"NodeHostname={host} NodeAddr=127.0.0.1"
        lines = [f"NodeName={name} {place} Port={_free_port()} CPUs=2 RealMemory=8192" for name in self._nodes]
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(
            CONFIGURATION.format(host=host, folder=self.folder, controller=_free_port(), nodes="\n".join(lines))
        )
        self.environment = os.environ | {"SLURM_CONF": str(self.configuration)}
        self.start()

    def start(self) -> None:
        """Start the daemons, and wait until the nodes are idle."""
        munge = self.folder / "munge"
        places = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._do("munged", "--force", *(f"--{name}={munge / file}" for name, file in places.items()))
        self._do("slurmctld")
        for name in self._nodes:
            self._do("slurmd", "-N", name)
        until(lambda: self._do("sinfo", "--noheader", "--Node", "--partition", "low", "--format", "%T").split()
              == ["idle"] * len(self._nodes), "idle")  # fmt: skip

    def stop(self) -> None:
        """End the daemons, and what they started."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self._do("scancel", "--user", "root")
            until(lambda: not self.queued(), "empty")
        daemons = [*(f"slurmd-{name}.pid" for name in self._nodes), "slurmctld.pid"]
        for file, number in (*((file, "KILL") for file in daemons), ("munge/pid", "TERM")):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.folder / file).read_text()), getattr(signal, f"SIG{number}"))
        until(lambda: not (self.folder / "munge" / "pid").exists(), "gone")  # it leaves its seed behind at the very end
        shutil.rmtree(self.folder, ignore_errors=True)

    def scontrol(self, *words: str) -> str:
        """What ``scontrol`` answers."""
        return self._do("scontrol", *words)

    def scancel(self, *words: str) -> None:
        """Have jobs cancelled."""
        self._do("scancel", *words)

    def sbatch(self, *words: str) -> None:
        """Submit a job."""
        self._do("sbatch", *words)

    def job(self, job: str) -> dict[str, str]:
        """What slurmctld knows of a job."""
        answer = self.scontrol("show", "job", "--oneliner", job)
        return dict(re.findall(r"(\w+)=(\S*)", answer.splitlines()[0]))

    def queued(self) -> list[str]:
        """Jobs that wait or run."""
        return self._do("squeue", "--noheader", "--array", "--format", "%i").split()

    def _do(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise subprocess.SubprocessError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


def until(true, what: str, patience: float = PATIENCE) -> None:
    """Wait for something."""
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"never {what}"
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _named(nodes: int) -> Iterator[Cluster]:
    """A cluster that SLURM_CONF names."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("slurmctld and slurmd are started as root")
    cluster = Cluster(nodes)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.configuration)
    try:
        yield cluster
    finally:
        cluster.stop()
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


@pytest.fixture
def slurm() -> Iterator[Cluster]:
    """A cluster of one node."""
    with _named(1) as cluster:
        yield cluster


@pytest.fixture
def two_nodes() -> Iterator[Cluster]:
    """A cluster of two."""
    with _named(2) as cluster:
        yield cluster
