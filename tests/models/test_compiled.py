"""One graph for a network, compiled once and equal to the eager one."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.slow

VARIANTS = [
    ("none", 1, None, False),
    ("linear", 2, 1, True),
    ("additive", 2, 1, False),
    ("hyperconnections", 2, 1, True),
]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("injection", "recurrences", "kept", "again"), VARIANTS)
def test_compiled_networks_are_the_eager_ones(network, tokens, cross_entropy, injection, recurrences, kept, again):
    model = network(
        recurrences=recurrences,
        shared_layers=1,
        coda_layers=1,
        injection=injection,
        backprop_recurrences=kept,
        activation_checkpointing=again,
    )
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    batches = [tokens(), (tokens() + 1) % 40, (tokens() + 2) % 40]
    results = []
    for call in (model, compiled):
        for batch in batches:
            # After the first batch nothing may be compiled again.
            with torch._dynamo.config.patch(error_on_recompile=batch is not batches[0]):
                model.zero_grad()
                loss = cross_entropy(call(batch), batch)
                loss.backward()
            results.append((loss.detach(), {name: p.grad for name, p in model.named_parameters()}))
            model.zero_grad(set_to_none=True)
    for (loss, gradients), (loss_compiled, gradients_compiled) in zip(results[:3], results[3:], strict=True):
        torch.testing.assert_close(loss_compiled, loss)
        for name, gradient in gradients.items():
            assert (gradient is None) == (gradients_compiled[name] is None), name
            if gradient is not None:
                torch.testing.assert_close(gradients_compiled[name], gradient, rtol=1e-3, atol=1e-5)


def test_another_number_of_recurrences_is_another_graph_once(network, tokens):
    model = network(recurrences=2, shared_layers=1, coda_layers=1)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for T in (1, 2):
            torch.testing.assert_close(compiled(tokens(), recurrences=T), model(tokens(), recurrences=T))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for T in (2, 1, 2):
                torch.testing.assert_close(compiled(tokens(), recurrences=T), model(tokens(), recurrences=T))


def test_compiled_truncated_gradients_survive_autocast(network, tokens, cross_entropy):
    """Weights cast in a detached recurrence must not serve, without gradient, those that come after it."""
    model = network(recurrences=2, shared_layers=1, coda_layers=1, backprop_recurrences=1)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    gradients = []
    for call, bf16 in ((model, False), (compiled, True)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = cross_entropy(call(tokens()), tokens())
        loss.backward()
        gradients.append({name: parameter.grad.flatten() for name, parameter in model.named_parameters()})
        model.zero_grad(set_to_none=True)
    for name, exact in gradients[0].items():
        rounded = gradients[1][name]
        assert torch.cosine_similarity(rounded, exact, dim=0) > 0.99, name
        assert rounded.norm().item() == pytest.approx(exact.norm().item(), rel=0.1), name
