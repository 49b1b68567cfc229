"""The head's loss in pieces against torch's own cross-entropy of all logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from models import head
from models.head import LOGIT_CAP, capped, mean_loss, token_losses


def given(tokens=37, width=6, vocabulary=11, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    h_Nd = torch.randn(tokens, width, generator=generator, dtype=dtype) * scale
    head_Vd = torch.randn(vocabulary, width, generator=generator, dtype=dtype)
    targets_N = torch.randint(vocabulary, (tokens,), generator=generator)
    return h_Nd.requires_grad_(), head_Vd.requires_grad_(), targets_N


def whole(h_Nd, head_Vd, targets_N):
    return F.cross_entropy(capped(F.linear(h_Nd, head_Vd)), targets_N)


def gradients(loss, *inputs):
    return torch.autograd.grad(3 * loss, inputs)  # a factor that the backward pass must carry


@pytest.fixture(params=[1, 5, 37, 1000])
def pieces(request, monkeypatch):
    """Tokens of a piece."""
    monkeypatch.setitem(head.PIECE_BYTES, "cpu", 4 * 11 * request.param)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_loss_and_gradients_are_those_of_all_logits(pieces, scale):
    h_Nd, head_Vd, targets_N = given(scale=scale)
    expected = whole(h_Nd, head_Vd, targets_N)
    found = mean_loss(h_Nd, head_Vd, targets_N)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    for one, other in zip(gradients(found, h_Nd, head_Vd), gradients(expected, h_Nd, head_Vd), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_losses_of_tokens(pieces):
    h_Nd, head_Vd, targets_N = given()
    expected = F.cross_entropy(capped(F.linear(h_Nd, head_Vd)), targets_N, reduction="none")
    found = token_losses(h_Nd, head_Vd, targets_N)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert not found.requires_grad


def test_logits_at_the_cap_are_no_overflow():
    """A token whose logits are all at the cap: the loss is the two caps apart, and its gradient is zero."""
    h_Nd = torch.full((2, 1), 1e6, requires_grad=True)
    head_Vd = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = mean_loss(h_Nd, head_Vd, torch.tensor([1, 1]))
    assert loss.item() == pytest.approx(2 * LOGIT_CAP)
    assert all((gradient == 0).all() for gradient in gradients(loss, h_Nd, head_Vd))


def test_autocast_rounds_the_product_alone(pieces):
    h_Nd, head_Vd, targets_N = given(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = mean_loss(h_Nd, head_Vd, targets_N), whole(h_Nd, head_Vd, targets_N)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    for one, other in zip(gradients(found, h_Nd, head_Vd), gradients(expected, h_Nd, head_Vd), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


def test_what_is_no_number_is_one_in_the_loss():
    h_Nd, head_Vd, targets_N = given()
    with torch.no_grad():
        h_Nd[3, 2] = float("nan")
    assert mean_loss(h_Nd, head_Vd, targets_N).isnan()


def test_memory_does_not_grow_with_tokens_times_vocabulary():
    """What a backward pass keeps is of the size of its inputs, and so is all that is made on the way but a piece."""
    h_Nd, head_Vd, targets_N = given(tokens=4096, width=4, vocabulary=4096, dtype=torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        mean_loss(h_Nd, head_Vd, targets_N)
    assert sum(kept) == h_Nd.numel() + head_Vd.numel()
    with torch.profiler.profile(profile_memory=True) as profile:
        mean_loss(h_Nd, head_Vd, targets_N)
    largest = max(event.cpu_memory_usage for event in profile.events() if event.name.startswith("aten::"))
    assert largest <= max(head.PIECE_BYTES["cpu"], 4 * h_Nd.numel())
