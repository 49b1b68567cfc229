"""Closed-form counts and FLOPs of `Architecture` against the real network."""

from __future__ import annotations

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

LOOPED = ("linear", "additive", "passthrough", "hyperconnections")
VARIANTS = [("none", 1, None, 2)] + [
    (injection, recurrences, kept, 2)
    for injection in LOOPED
    for recurrences, kept in [(2, None), (2, 1), (4, None), (4, 3), (4, 1), (8, None), (8, 4), (8, 1)]
]
VARIANTS += [("hyperconnections", 4, kept, lanes) for kept in (None, 2) for lanes in (1, 3)]


@pytest.mark.parametrize("d_model", [16, 24])
@pytest.mark.parametrize(("injection", "recurrences", "kept", "lanes"), VARIANTS)
def test_parameters_are_those_of_the_architecture(architecture, network, d_model, injection, recurrences, kept, lanes):
    fields = {"injection": injection, "recurrences": recurrences, "backprop_recurrences": kept, "lanes": lanes}
    asked, model = architecture(d_model, **fields), network(d_model=d_model, **fields)
    counts = model.count()
    assert counts["once"] == asked.n_once == 3 * (12 * d_model**2 + 2 * d_model) + 3 * d_model
    lane_parameters = recurrences * (lanes**2 + 2 * lanes) if injection == "hyperconnections" else 0
    assert counts["shared"] == asked.n_shared == 8 // recurrences * (12 * d_model**2 + 2 * d_model) + lane_parameters
    assert counts["injection"] == asked.n_injection == (2 * d_model**2 if injection == "linear" else 0)
    assert counts["embedding"] == counts["head"] == asked.vocab_size * d_model
    assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert asked.n_unique == counts["once"] + counts["shared"] + counts["injection"]


def test_one_recurrence_has_no_injection(network):
    for injection in LOOPED:
        model = network(recurrences=1, injection=injection)
        assert model.architecture.injection == "none"
        assert list(model.injection.parameters()) == []


@pytest.mark.parametrize(("injection", "recurrences", "kept", "lanes"), VARIANTS)
def test_matmul_flops_are_those_of_the_architecture(
    architecture, network, tokens, cross_entropy, injection, recurrences, kept, lanes
):
    """Forward and backward matmuls as torch counts them, to the last one.

    Each matmul costs twice its forward in the backward pass, the first ones and those after a detached state too: their
    input, normed with a trained gain, needs its gradient. Detached recurrences, and a prelude that only they read, cost
    one forward pass. Attention counts the full T x T. What the architecture has beyond matmuls is written out here: the
    norm gains, 2 d a layer, are in N; the lanes' mixing, 2 (K^2 + 2 K) d a recurrence, is elementwise. The three gains
    of the model and the embedding's lookup are in neither count.
    """
    fields = {"injection": injection, "recurrences": recurrences, "backprop_recurrences": kept, "lanes": lanes}
    asked, model, batch = architecture(24, **fields), network(d_model=24, **fields), tokens()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        cross_entropy(model(batch), batch).backward()
    detached = 0 if kept is None else recurrences - kept
    once = detached * asked.shared_layers
    if detached and injection in ("passthrough", "hyperconnections"):
        once += asked.prelude_layers
    gains = 2 * (2 * 24) * (3 * asked.effective_layers - 2 * once)
    mixing = 0
    if injection == "hyperconnections":
        mixing = 2 * (lanes**2 + 2 * lanes) * 24 * (3 * recurrences - 2 * detached)
    assert counter.get_total_flops() == batch.numel() * (asked.flops_per_token - gains - mixing)


@pytest.mark.parametrize(("injection", "recurrences", "kept", "lanes"), VARIANTS)
def test_forward_matmul_flops_are_those_of_the_architecture(
    architecture, network, tokens, injection, recurrences, kept, lanes
):
    fields = {"injection": injection, "recurrences": recurrences, "backprop_recurrences": kept, "lanes": lanes}
    asked, model, batch = architecture(24, **fields), network(d_model=24, **fields), tokens()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch)
    mixing = recurrences * (lanes**2 + 2 * lanes) if injection == "hyperconnections" else 0
    rest = 2 * (2 * 24) * asked.effective_layers + 2 * mixing * 24
    assert counter.get_total_flops() == batch.numel() * (asked.forward_flops_per_token - rest)


def test_activation_checkpointing_runs_each_recurrence_forward_once_more(network, tokens, cross_entropy):
    """The counts leave this pass out: they price what is computed, and this computes nothing new."""
    flops, batch = [], tokens()
    for again in (False, True):
        model = network(d_model=24, recurrences=4, activation_checkpointing=again)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            cross_entropy(model(batch), batch).backward()
        flops.append(counter.get_total_flops())
    recurrence = 2 * (2 * 24**2) + 2 * (2 * 12 * 24**2 + 4 * 24 * 12)  # injection and two layers
    assert flops[1] - flops[0] == batch.numel() * 4 * recurrence
