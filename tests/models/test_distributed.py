"""A shared block that runs several times, some of them detached or computed twice, on two processes."""

from __future__ import annotations

import copy
import os
from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.slow

WORLD = 2
WRAPPERS = ("ddp", "fsdp kept", "fsdp resharded")
INJECTIONS = ("linear", "additive", "passthrough", "hyperconnections")
VARIANTS = list(product(WRAPPERS, INJECTIONS))


def wrap(wrapper, model):
    """The model in DDP, or each block and then the whole in FSDP, gathered once a pass or once a recurrence."""
    if wrapper == "ddp":
        # A prelude that no kept recurrence reads has no gradient: DDP has to be told.
        return DistributedDataParallel(model, find_unused_parameters=model.architecture.prelude_detached)
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in (*model.prelude, *model.shared, *model.coda):
        fully_shard(block, mesh=mesh, reshard_after_forward=wrapper == "fsdp resharded")
    return fully_shard(model, mesh=mesh)


def gradients_of(wrapped, model, batch):
    """Whole gradients by name."""
    for _ in range(2):  # a second time: what the first one leaves behind must not be in its way
        model.zero_grad()
        F.cross_entropy(wrapped(batch).flatten(0, 1), batch.flatten()).backward()
    return {
        name: parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        for name, parameter in model.named_parameters()
    }


def worker(rank, folder, models, batch):
    """Gradients of one half of the batch a process, averaged over both; the first process writes them to a file."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    found = {}
    for wrapper, injection in VARIANTS:
        model = copy.deepcopy(models[injection])  # what comes from the parent is shared memory
        found[wrapper, injection] = gradients_of(wrap(wrapper, model), model, batch.chunk(WORLD)[rank])
    if rank == 0:
        torch.save(found, f"{folder}/gradients.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def models(network):
    truncated = {"recurrences": 4, "backprop_recurrences": 2, "activation_checkpointing": True}
    return {injection: network(injection=injection, **truncated) for injection in INJECTIONS}


@pytest.fixture(scope="module")
def found(tmp_path_factory, models, tokens):
    """Gradients of all variants from two processes, started once: their imports take longer than their work."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(worker, (folder, models, tokens(4)), nprocs=WORLD)
    return torch.load(folder / "gradients.pt")


@pytest.mark.parametrize(("wrapper", "injection"), VARIANTS)
def test_two_processes_have_the_gradients_of_one(models, tokens, found, wrapper, injection):
    model = models[injection]
    for name, expected in gradients_of(model, model, tokens(4)).items():
        got = found[wrapper, injection][name]
        if expected is None:
            assert got is None or not got.count_nonzero(), name
        else:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)
