"""The properties that the network's description promises, whatever the injection."""

from __future__ import annotations

import math

import pytest
import torch

from bayeslaw.errors import UsageError
from models.layers import Rotary
from models.looped import LoopedTransformer

SEQ_LEN, VOCAB = 12, 40
INJECTIONS = ("none", "linear", "additive", "passthrough", "hyperconnections")


@pytest.mark.parametrize("injection", INJECTIONS)
def test_no_token_sees_those_after_it(network, tokens, injection):
    model = network(recurrences=1 if injection == "none" else 4, injection=injection)
    batch = tokens(1)
    changed = batch.clone()
    changed[0, 7] = (changed[0, 7] + 1) % VOCAB
    with torch.no_grad():
        difference = (model(batch) - model(changed)).abs().amax(dim=-1)[0]
    assert (difference[:7] == 0).all()
    assert (difference[7:] > 1e-4).all()


def test_starting_values(network):
    model = network(d_model=64, head_size=16, seed=3, stirred=False)
    assert model.embedding.std().item() == pytest.approx(1, rel=0.05)
    assert torch.equal(model.embedding, model.embedding.bfloat16().float())
    assert model.head.std().item() == pytest.approx(1e-3, rel=0.05)
    for block in (*model.prelude, *model.shared, *model.coda):
        matrices = [module.weight for module in block.modules() if hasattr(module, "weight")]
        assert len(matrices) == 6
        for weight in matrices:
            assert weight.std().item() == pytest.approx(weight.shape[1] ** -0.5, rel=0.05)
            assert weight.abs().max().item() <= math.sqrt(3 / weight.shape[1])
    assert torch.equal(model.injection.weight, torch.eye(64, 128))
    gains = [parameter for name, parameter in model.named_parameters() if name.endswith("gain")]
    assert len(gains) == 2 * 7 + 3
    assert all((gain == 1).all() for gain in gains)


def test_starting_values_follow_from_the_seed(network):
    one, again, other = (network(seed=seed, stirred=False) for seed in (3, 3, 4))
    assert all(map(torch.equal, one.parameters(), again.parameters()))
    assert not torch.equal(one.embedding, other.embedding)
    other.reset(3)
    assert all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("injection", INJECTIONS)
def test_blocks_start_alike_under_every_injection(network, injection):
    """Arms of a comparison that share a depth partition start from the same matrices."""
    common = dict(network(stirred=False, injection="additive").named_parameters())
    other = (
        network(stirred=False, recurrences=2, injection=injection)
        if injection != "none"
        else network(stirred=False, recurrences=1, unrolled=4)
    )
    own = dict(other.named_parameters())
    assert set(common) <= set(own)
    assert all(torch.equal(common[name], own[name]) for name in common)


@pytest.mark.parametrize("injection", INJECTIONS)
def test_every_parameter_has_one_part(network, injection):
    model = network(recurrences=1 if injection == "none" else 2, injection=injection)
    parts = {name: part for part, name, _ in model.parameters_by_part()}
    assert list(parts) == [name for name, _ in model.named_parameters()]
    assert parts["embedding"] == "embedding"
    assert parts["head"] == "head"
    assert parts["embedding_norm.gain"] == parts["recurrence_norm.gain"] == parts["final_norm.gain"] == "once"
    own = {part for name, part in parts.items() if name.startswith("injection")}
    assert own == {"linear": {"injection"}, "hyperconnections": {"shared"}}.get(injection, set())


def test_the_state_leaves_every_recurrence_with_size_one(network):
    model = network(recurrences=4, stirred=False)
    e = 30 * torch.randn(1, SEQ_LEN, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        h = model._recur(e, e, 0)
    torch.testing.assert_close(h.square().mean(dim=-1), torch.ones(1, SEQ_LEN), rtol=1e-4, atol=1e-4)


def test_logits_are_capped(network, tokens):
    model = network()
    with torch.no_grad():
        model.head.fill_(100)
        logits = model(tokens())
    assert logits.dtype == torch.float32
    assert logits.abs().max().item() == pytest.approx(15)


def test_a_network_in_float64_gives_logits_in_float64(network, tokens):
    assert network().double()(tokens()).dtype == torch.float64


def test_positions_rotate_by_halves():
    rotary = Rotary(4, 10)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 1, 10, 4)
    y = rotary(x)[0, 0]
    for place in (0, 1, 9):
        slow, fast = place * 10_000**-0.5, float(place)
        expected = [
            math.cos(fast) + 3 * math.sin(fast),
            2 * math.cos(slow) + 4 * math.sin(slow),
            -math.sin(fast) + 3 * math.cos(fast),
            -2 * math.sin(slow) + 4 * math.cos(slow),
        ]
        torch.testing.assert_close(y[place], torch.tensor(expected))
        assert torch.equal(rotary(x[..., :1, :], place)[0, 0, 0], y[place])


@pytest.mark.parametrize(
    ("changes", "head_size", "named"),
    [
        ({"injection": "none"}, 8, "passthrough for recurrences > 1"),
        ({}, 6, "d_model = 16 with head size 6"),
        ({}, 1, "multiple of an even head size"),
        ({"d_model": 16.5}, 8, "d_model = 16.5"),
    ],
)
def test_networks_that_cannot_be_built(architecture, changes, head_size, named):
    with pytest.raises(UsageError, match=named):
        LoopedTransformer(architecture(**changes), head_size=head_size)
