"""Decoding with cached keys and values against the full pass."""

from __future__ import annotations

import pytest
import torch

from bayeslaw.errors import UsageError
from models.layers import Cache

LOOPED = ("linear", "additive", "passthrough", "hyperconnections")
SEQ_LEN = 12


def decoded(model, batch, chunks, **how):
    """Logits of a batch that comes in chunks."""
    cache, logits, end = Cache(SEQ_LEN), [], 0
    for chunk in chunks:
        logits.append(model(batch[:, end : end + chunk], cache=cache, **how))
        end += chunk
        assert cache.length == end
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("chunks", [[1] * 12, [12], [5, 1, 4, 2]])
@pytest.mark.parametrize("recurrences", [2, 4, 8])
@pytest.mark.parametrize("injection", ["none", *LOOPED])
def test_cached_decoding_is_the_full_pass(network, tokens, injection, recurrences, chunks, dtype, tolerance):
    if injection == "none":
        recurrences = 1
    model = network(recurrences=recurrences, injection=injection).to(dtype)
    with torch.no_grad():
        logits = model(tokens())
        got = decoded(model, tokens(), chunks)
    assert got.dtype == dtype
    assert logits.std() > 0.1
    torch.testing.assert_close(got, logits, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("injection", LOOPED)
def test_cached_decoding_runs_other_recurrences_too(network, tokens, injection, T):
    model = network(recurrences=4, injection=injection)
    with torch.inference_mode():
        got = decoded(model, tokens(), [3] * 4, recurrences=T)
        torch.testing.assert_close(got, model(tokens(), recurrences=T), rtol=1e-5, atol=1e-4)


def test_cached_decoding_is_in_the_precision_of_the_full_pass(network, tokens):
    model = network(recurrences=4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits, got = model(tokens()), decoded(model, tokens(), [1] * 12)
    assert got.dtype == torch.float32
    assert (got - logits).abs().mean() < 0.02 * logits.abs().mean()


def test_a_network_that_checkpoints_fills_the_cache_with_gradients_on(network, tokens):
    model = network(recurrences=2, activation_checkpointing=True)
    torch.testing.assert_close(decoded(model, tokens(), [4] * 3), model(tokens()), rtol=1e-5, atol=1e-4)


def test_logits_decoded_do_not_depend_on_what_comes_after(network, tokens):
    model, cache = network(recurrences=2), Cache(SEQ_LEN)
    with torch.no_grad():
        first = model(tokens()[:, :4], cache=cache).clone()
        model(tokens()[:, 4:], cache=cache)
        torch.testing.assert_close(first, model(tokens())[:, :4], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("before", "more", "room", "named"),
    [
        (0, 13, 20, "13 tokens\n  allowed: 12 tokens in all"),
        (11, 2, 20, "2 tokens after 11 in the cache\n  allowed: 12 tokens in all"),
        (12, 1, 20, "1 tokens after 12 in the cache\n  allowed: 12 tokens in all"),
        (4, 4, 6, "4 tokens after 4 in the cache\n  allowed: 6 tokens in all"),
    ],
)
def test_tokens_beyond_the_context_are_refused(network, tokens, before, more, room, named):
    """Rotary tables and cache end there, and slices past their end would broadcast instead of fail."""
    model, cache = network(recurrences=2), Cache(room)
    with torch.no_grad():
        if before:
            model(tokens(length=before), cache=cache)
        with pytest.raises(UsageError, match=named):
            model(tokens(length=more), cache=cache)


def test_sequences_beyond_the_context_are_refused(network, tokens):
    with pytest.raises(UsageError, match="13 tokens\n  allowed: 12 tokens in all"):
        network()(tokens(length=13))


@pytest.mark.parametrize("later", [1, 3])
def test_a_cache_serves_one_number_of_recurrences(network, tokens, later):
    model, cache = network(recurrences=2), Cache(SEQ_LEN)
    with torch.no_grad():
        model(tokens()[:, :4], cache=cache, recurrences=2)
        with pytest.raises(UsageError, match="the same recurrences for all tokens of a cache"):
            model(tokens()[:, 4:], cache=cache, recurrences=later)
