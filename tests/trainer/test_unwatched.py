"""Steps that a device decides on by itself, as one GPU does: the host reads them only at points of the curve."""

from __future__ import annotations

import math

import pytest
import torch

from bayeslaw.schema import METRIC_SKIPPED
from tests.trainer.watching import ALONE, curve, only_journal
from trainer import checkpoint, loop
from trainer.config import TrainConfig
from trainer.execution import Execution
from trainer.learner import Learner, Step
from trainer.muon import MuonH
from trainer.run import PATIENCE


@pytest.fixture
def unwatched(monkeypatch):
    """Learners that do not wait, and how often their steps were read."""
    made, settle, reads = Learner.__init__, Step.settle, []

    def init(self, *arguments):
        made(self, *arguments)
        self.waits = False

    def settling(steps):
        reads.append(len(steps))
        settle(steps)

    def use():
        monkeypatch.setattr(Learner, "__init__", init)
        monkeypatch.setattr(Step, "settle", staticmethod(settling))
        return reads

    return use


def spoil(monkeypatch, *numbers):
    """Make the gradients of these steps infinite, their loss a number."""
    step, at = Learner.step, []

    def stepping(self, number, own_BS, **asked):
        at[:] = [number]
        return step(self, number, own_BS, **asked)

    backward = Learner._backward

    def spoilt(self, *arguments):
        loss = backward(self, *arguments)
        if at[0] in numbers:
            next(iter(self.model.parameters())).grad.fill_(math.inf)
        return loss

    monkeypatch.setattr(Learner, "step", stepping)
    monkeypatch.setattr(Learner, "_backward", spoilt)


def trained(fields, out, **execution):
    result = loop.train(TrainConfig.of(**fields), out, quiet=True, execution=Execution(**execution))
    journal = only_journal(out)
    curves = [(r["step"], {k: v for k, v in r["values"].items() if "per_second" not in k}) for r in journal.metrics]
    point = checkpoint.read(result.run_dir)
    return result, curves, {part: point.tensors(part) for part in point.parts}


@pytest.mark.parametrize("spoilt", [(), (3, 20, 21)], ids=["clean", "spoilt"])
def test_the_same_run_bit_for_bit(fields, tmp_path, monkeypatch, unwatched, spoilt):
    fields = fields | {"injection": "hyperconnections"}  # every kind of parameter
    spoil(monkeypatch, *spoilt)
    watched = trained(fields, tmp_path / "watched", checkpoint_every=15)
    reads = unwatched()
    result, curves, parts = trained(fields, tmp_path / "unwatched", checkpoint_every=15)
    assert result.skipped == watched[0].skipped == len(spoilt)
    assert curves == watched[1]
    assert [values[METRIC_SKIPPED] for _, values in curves if METRIC_SKIPPED in values][-1] == len(spoilt)
    for part, tensors in parts.items():
        assert tensors.keys() == watched[2][part].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, watched[2][part][name]), name
    # 48 steps; read at 1, every 12 and every 15.
    assert reads == [1, 11, 3, 9, 6, 6, 9, 3]


def test_a_run_that_diverges_is_noticed_at_the_next_point(fields, tmp_path, monkeypatch, unwatched):
    spoil(monkeypatch, *range(14, 14 + PATIENCE))
    unwatched()
    result = loop.train(TrainConfig.of(**fields), tmp_path, quiet=True)
    assert (result.state, result.skipped) == ("diverged", PATIENCE)
    journal = only_journal(tmp_path)
    assert [record["step"] for record in journal.metrics][-1] == 24
    assert curve(journal, METRIC_SKIPPED)[-1] == PATIENCE


def test_optimisers_that_are_told_to_skip_change_nothing(fields):
    config = TrainConfig.of(**fields | {"injection": "hyperconnections"})
    learner = Learner(config, Execution(), ALONE)
    batch = torch.zeros(8, 17, dtype=torch.int64)
    learner.step(0, batch)
    before = {part: {n: t.clone() for n, t in ts.items()} for part, ts in learner.parts().items()}
    for parameter in learner.model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    learner.optimizers.step(1.0, skip=torch.tensor(True))
    for part, tensors in learner.parts().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, before[part][name]), name
    for parameter in learner.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    learner.optimizers.step(1.0, skip=torch.tensor(False))
    assert all((t != before["model"][n]).any() for n, t in learner.parts()["model"].items())


def test_a_first_step_that_is_skipped_leaves_no_trace():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 5))
    same = torch.nn.Parameter(weight.detach().clone())
    told, plain = MuonH([weight], lr=0.1), MuonH([same], lr=0.1)
    weight.grad = torch.full_like(weight, math.nan)
    told.found_inf = torch.tensor(1.0)
    told.step()
    assert torch.equal(weight, same)
    told.found_inf = torch.tensor(0.0)
    weight.grad = same.grad = torch.randn(3, 5)
    told.step()
    plain.step()
    assert torch.equal(weight, same)


def test_no_step_waits_for_the_device(fields, monkeypatch):
    """Nothing in a step reads a tensor on the host."""
    learner = Learner(TrainConfig.of(**fields), Execution(), ALONE)
    learner.waits = False
    batch = torch.zeros(8, 17, dtype=torch.int64)
    learner.step(0, batch)  # the first makes the optimisers' state
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: pytest.fail(f"a step reads by {name}"))
    learner.step(1, batch)
