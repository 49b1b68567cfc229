"""The command that starts the processes of one run: torchrun, on this machine or on all nodes of a job."""

from __future__ import annotations

import socket
import sys

from trainer.launch import Order


def command(order: Order) -> list[str]:
    """All but what the module is told."""
    each = ["--nproc-per-node", str(order.processes // order.nodes), "--module", order.module]
    start = [sys.executable, "-P", "-m", "torch.distributed.run"]
    if order.nodes == 1:
        return [*start, "--standalone", *each]
    nodes = str(order.nodes)
    meeting = ["--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{socket.gethostname()}:{_free_port()}"]
    # The worker is a step of the job on its first node; this is another one, on all nodes, beside it.
    step = ["srun", "--overlap", "--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node", "1", "--kill-on-bad-exit=0"]
    return [*step, *UNTOUCHED, *start, *meeting, *each]


UNTOUCHED = ["sh", "-c", "trap '' USR2; exec \"$@\"", "sh"]
"""What makes a step deaf to the signal that Slurm sends to all steps of a job, and that only the launcher takes."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port
