"""How the prelude's output enters each recurrence, at the start and after it."""

from __future__ import annotations

import pytest
import torch

from bayeslaw.errors import UsageError

LOOPED = ("linear", "additive", "passthrough", "hyperconnections")


def record(model, batch, **how):
    """u(t), s(t) of every recurrence, and what the coda reads."""
    u, s, read = [], [], []
    hooks = [
        model.shared[0].register_forward_pre_hook(lambda _, given: u.append(given[0])),
        model.recurrence_norm.register_forward_hook(lambda _, __, out: s.append(out)),
        model.coda[0].register_forward_pre_hook(lambda _, given: read.append(given[0])),
    ]
    with torch.no_grad():
        model(batch, **how)
    for hook in hooks:
        hook.remove()
    return u, s, read[0]


def prelude_output(model, batch):
    e = model.embedding_norm(model.embedding[batch])
    for block in model.prelude:
        e = block(e, model.rotary)
    return e.detach()


@pytest.mark.parametrize("bf16", [False, True])
def test_every_recurrence_gives_the_same_at_the_start(network, tokens, bf16):
    """With W = [I | 0] each recurrence runs the block on e, in no precision but that of e: bit for bit the same."""
    model = network(recurrences=4, stirred=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        model.head.normal_(generator=torch.Generator().manual_seed(2))
        once, *more = (model(tokens(), recurrences=T) for T in (1, 2, 4, 8))
        assert once.std() > 0.1
        for logits in more:
            assert torch.equal(logits, once)
        model.injection.weight += 0.1
        assert (model(tokens(), recurrences=2) - model(tokens(), recurrences=1)).abs().max() > 1e-3


def test_a_looped_network_starts_as_the_plain_one_of_its_blocks(network, tokens):
    plain = network(recurrences=1, unrolled=2, stirred=False)
    with torch.no_grad():
        plain.head.normal_(generator=torch.Generator().manual_seed(2))
    looped = network(recurrences=4, unrolled=8, seed=5, stirred=False)
    missing, unexpected = looped.load_state_dict(plain.state_dict(), strict=False)
    assert (missing, unexpected) == (["injection.weight"], [])
    with torch.no_grad():
        assert torch.equal(looped(tokens()), plain(tokens()))


def test_linear_reads_the_prelude_then_the_state(network, tokens):
    model, d = network(recurrences=2), 16
    u, s, read = record(model, tokens())
    e = prelude_output(model, tokens())
    weight = model.injection.weight.detach()
    for got, h in zip(u, (e, s[0]), strict=True):
        torch.testing.assert_close(got, e @ weight[:, :d].T + h @ weight[:, d:].T)
    assert torch.equal(read, s[1])


def test_additive_starts_from_zeros(network, tokens):
    model = network(recurrences=3, unrolled=6, injection="additive")
    u, s, read = record(model, tokens())
    e = prelude_output(model, tokens())
    for got, h in zip(u, (0 * e, s[0], s[1]), strict=True):
        assert torch.equal(got, e + h)
    assert torch.equal(read, s[2])


def test_passthrough_reads_the_prelude_once(network, tokens):
    model = network(recurrences=3, unrolled=6, injection="passthrough")
    u, s, read = record(model, tokens())
    for got, expected in zip((*u, read), (prelude_output(model, tokens()), *s), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_lanes_start_as_documented(network, lanes):
    model = network(recurrences=5, unrolled=5, injection="hyperconnections", lanes=lanes, stirred=False)
    for t in range(5):
        assert model.injection.alpha[t].tolist() == [float(t % lanes == j) for j in range(lanes)]
        assert torch.equal(model.injection.mixing[t], torch.eye(lanes))
        assert model.injection.beta[t].tolist() == [1.0] * lanes


@pytest.mark.parametrize("lanes", [2, 3])
def test_lanes_at_the_start_sum_what_came_before(network, tokens, lanes):
    """u(t) = e + s(0) + ... + s(t - 1); the coda reads K (e + s(0) + ... + s(r - 1))."""
    model = network(recurrences=4, unrolled=4, injection="hyperconnections", lanes=lanes, stirred=False)
    u, s, read = record(model, tokens())
    total = prelude_output(model, tokens())
    for got, output in zip(u, s, strict=True):
        torch.testing.assert_close(got, total)
        total = total + output
    torch.testing.assert_close(read, lanes * total)


def test_lanes_at_the_start_are_a_plain_loop_in_the_first_recurrence_only(network, tokens):
    loop = network(recurrences=4, injection="passthrough", stirred=False)
    lanes = network(recurrences=4, injection="hyperconnections", stirred=False)
    lanes.load_state_dict(loop.state_dict(), strict=False)
    (u, s, _), (u_loop, s_loop, _) = record(lanes, tokens()), record(loop, tokens())
    assert torch.equal(u[0], u_loop[0])
    assert torch.equal(s[0], s_loop[0])
    assert (u[1] - u_loop[1]).abs().max() > 0.1


def test_each_recurrence_uses_its_own_lane_parameters(network, tokens):
    """alpha reads, M mixes by rows, beta writes: by hand, on parameters that are no starting values."""
    model = network(recurrences=3, unrolled=3, injection="hyperconnections", lanes=3)
    u, s, read = record(model, tokens())
    own = model.injection
    lanes = [prelude_output(model, tokens())] * 3
    with torch.no_grad():
        for t in range(3):
            torch.testing.assert_close(u[t], sum(own.alpha[t, j] * lanes[j] for j in range(3)))
            lanes = [sum(own.mixing[t, i, j] * lanes[j] for j in range(3)) + own.beta[t, i] * s[t] for i in range(3)]
    torch.testing.assert_close(read, sum(lanes), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("injection", LOOPED)
def test_all_variants_are_the_loop_of_the_paper(network, tokens, unrolled, injection):
    model = network(recurrences=4, injection=injection, lanes=3)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()), unrolled(model, tokens())[0])


@pytest.mark.parametrize("injection", ["none", *LOOPED])
def test_the_residual_is_never_rounded(monkeypatch, network, tokens, injection):
    """Under autocast the matmuls run in bfloat16; what enters and leaves blocks, lanes and logits in float32."""
    model = network(recurrences=1 if injection == "none" else 4, injection=injection)
    residuals, products = [], []
    for block in (*model.prelude, *model.shared, *model.coda):
        block.register_forward_hook(lambda _, given, out: residuals.extend((given[0], out)))
        block.attention.query.register_forward_hook(lambda _, __, out: products.append(out))
        block.mlp.down.register_forward_hook(lambda _, __, out: products.append(out))
    model.recurrence_norm.register_forward_hook(lambda _, __, out: residuals.append(out))
    for name in ("start", "enter", "leave", "read"):
        call = getattr(model.injection, name)
        monkeypatch.setattr(
            model.injection, name, lambda *given, call=call: residuals.append(call(*given)) or residuals[-1]
        )
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens())
    assert logits.dtype == torch.float32
    assert {x.dtype for x in residuals} == {torch.float32}
    assert {x.dtype for x in products} == {torch.bfloat16}
    # Float32 by its type, and also by its values: rounded ones would survive a trip through bfloat16.
    assert all((x != x.bfloat16()).float().mean() > 0.9 for x in residuals if x.count_nonzero())


@pytest.mark.parametrize("injection", ["linear", "additive", "passthrough"])
def test_a_loop_runs_for_another_number_of_recurrences(network, tokens, injection):
    model = network(recurrences=2, injection=injection)
    with torch.no_grad():
        logits = {T: model(tokens(), recurrences=T) for T in (1, 2, 3, 5)}
        assert torch.equal(logits[2], model(tokens()))
    for T in (1, 3, 5):
        assert (logits[T] - logits[2]).abs().max() > 1e-3
    u, _, _ = record(model, tokens(), recurrences=5)
    assert len(u) == 5


def test_lanes_run_for_fewer_recurrences_and_refuse_more(network, tokens):
    model = network(recurrences=4, injection="hyperconnections")
    with torch.no_grad():
        logits = [model(tokens(), recurrences=T) for T in (1, 2, 3, 4)]
    assert all((a - logits[-1]).abs().max() > 1e-3 for a in logits[:-1])
    with pytest.raises(UsageError, match=r"recurrences = 5 .* trained with 4\n  allowed: 1 to 4; hyperconnections"):
        model(tokens(), recurrences=5)


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_plain_transformer_does_not_loop(network, tokens, wrong):
    model = network(recurrences=1)
    with torch.no_grad():
        assert torch.equal(model(tokens(), recurrences=1), model(tokens()))
    with pytest.raises(UsageError, match=f"recurrences = {wrong} "):
        model(tokens(), recurrences=wrong)


@pytest.mark.parametrize("injection", LOOPED)
def test_no_loop_runs_zero_times(network, tokens, injection):
    with pytest.raises(UsageError, match="recurrences = 0 "):
        network(recurrences=2, injection=injection)(tokens(), recurrences=0)
