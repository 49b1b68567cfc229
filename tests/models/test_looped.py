"""The network against what `Architecture` says of it, and the properties that its description promises."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bayeslaw.architecture import Architecture
from bayeslaw.errors import UsageError
from models.layers import Rotary
from models.looped import LoopedTransformer

SEQ_LEN = 12
VOCAB = 40


def architecture(d_model=16, recurrences=2, unrolled=8, **changes):
    return Architecture(
        d_model=d_model,
        prelude_layers=1,
        shared_layers=unrolled // recurrences,
        coda_layers=2,
        recurrences=recurrences,
        seq_len=SEQ_LEN,
        vocab_size=VOCAB,
        **changes,
    )


def tokens(sequences=2):
    return torch.randint(0, VOCAB, (sequences, SEQ_LEN), generator=torch.Generator().manual_seed(1))


def with_live_head(model):
    """At the start the head is almost 0 and every logit with it: give it a size that differences show in."""
    with torch.no_grad():
        model.head.normal_(generator=torch.Generator().manual_seed(2))
    return model


@pytest.mark.parametrize("d_model", [16, 24])
@pytest.mark.parametrize("recurrences", [1, 2, 4, 8])
def test_parameters_are_those_of_the_architecture(d_model, recurrences):
    asked = architecture(d_model, recurrences)
    model = LoopedTransformer(asked, head_size=8)
    counts = model.count()
    assert counts["once"] == asked.n_once
    assert counts["shared"] == asked.n_shared
    assert counts["injection"] == asked.n_injection == (2 * d_model**2 if recurrences > 1 else 0)
    assert counts["embedding"] == counts["head"] == VOCAB * d_model
    assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("d_model", [16, 32])
@pytest.mark.parametrize(("recurrences", "kept"), [(1, None), (2, None), (4, None), (8, None), (4, 2), (8, 1)])
def test_matmul_flops_are_those_of_the_architecture(d_model, recurrences, kept):
    """Forward and backward matmuls as torch counts them, in the convention of 6 N + 12 L d T + 6 d V.

    Each matmul costs twice its forward in the backward pass, the first ones too: their input, the normed embedding,
    is trained. Attention counts the full T x T. The norm gains, 2 d a layer, are in N but are no matmul; the three
    gains of the model and the embedding's lookup are in neither.
    """
    asked = architecture(d_model, recurrences, backprop_recurrences=kept)
    model = LoopedTransformer(asked, head_size=8)
    batch = tokens()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(batch).flatten(0, 1), batch.flatten()).backward()
    layer_passes = 3 * asked.effective_layers - 2 * (recurrences - (kept or recurrences)) * asked.shared_layers
    gains = 2 * (2 * d_model) * layer_passes
    assert counter.get_total_flops() == batch.numel() * (asked.flops_per_token - gains)


def test_every_recurrence_gives_the_same_at_the_start():
    """With W = [I | 0] each recurrence runs the block on e, so that one is as good as four."""
    once = with_live_head(LoopedTransformer(architecture(recurrences=1, unrolled=2), head_size=8))
    looped = LoopedTransformer(architecture(recurrences=4, unrolled=8), head_size=8, seed=5)
    missing, unexpected = looped.load_state_dict(once.state_dict(), strict=False)
    assert (missing, unexpected) == (["injection.weight"], [])
    with torch.no_grad():
        expected = once(tokens())
        torch.testing.assert_close(looped(tokens()), expected)
        assert expected.std() > 0.1
        looped.injection.weight += 0.1
        assert (looped(tokens()) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("recurrences", [1, 4])
def test_no_token_sees_those_after_it(recurrences):
    model = with_live_head(LoopedTransformer(architecture(recurrences=recurrences), head_size=8))
    batch = tokens(1)
    changed = batch.clone()
    changed[0, 7] = (changed[0, 7] + 1) % VOCAB
    with torch.no_grad():
        difference = (model(batch) - model(changed)).abs().amax(dim=-1)[0]
    assert (difference[:7] == 0).all()
    assert (difference[7:] > 1e-4).all()


def test_truncation_changes_gradients_and_nothing_else():
    batch = tokens()
    losses, gradients = [], []
    for kept in (4, 2):
        model = LoopedTransformer(architecture(recurrences=4, backprop_recurrences=kept), head_size=8)
        with torch.no_grad():
            model.injection.weight += 0.1  # at the start no recurrence reads the one before it
        loss = F.cross_entropy(with_live_head(model)(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        losses.append(loss.item())
        gradients.append(model.shared[0].mlp.up.weight.grad)
    assert losses[0] == losses[1]
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


def test_starting_values():
    model = LoopedTransformer(architecture(64, recurrences=2), head_size=16, seed=3)
    assert model.embedding.std().item() == pytest.approx(1, rel=0.05)
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
    again = LoopedTransformer(architecture(64, recurrences=2), head_size=16, seed=3)
    other = LoopedTransformer(architecture(64, recurrences=2), head_size=16, seed=4)
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert not torch.equal(model.embedding, other.embedding)


def test_the_state_leaves_every_recurrence_with_size_one():
    model = LoopedTransformer(architecture(recurrences=4), head_size=8)
    e = 30 * torch.randn(1, SEQ_LEN, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        h = model._recur(e, e, 0)
    torch.testing.assert_close(h.square().mean(dim=-1), torch.ones(1, SEQ_LEN), rtol=1e-4, atol=1e-4)


def test_logits_are_capped():
    model = LoopedTransformer(architecture(), head_size=8)
    with torch.no_grad():
        model.head.fill_(100)
        logits = model(tokens())
    assert logits.dtype == torch.float32
    assert logits.abs().max().item() == pytest.approx(15)


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


@pytest.mark.parametrize(
    ("changes", "head_size", "named"),
    [
        ({"injection": "none"}, 8, "passthrough for recurrences > 1"),
        ({}, 6, "d_model = 16 with head size 6"),
        ({}, 1, "multiple of an even head size"),
        ({"d_model": 16.5}, 8, "d_model = 16.5"),
    ],
)
def test_networks_that_cannot_be_built(changes, head_size, named):
    with pytest.raises(UsageError, match=named):
        LoopedTransformer(architecture(**changes), head_size=head_size)
