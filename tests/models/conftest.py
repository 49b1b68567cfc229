"""Tiny networks, and the loop written out a second time from paper.md for the tests to hold the network to.

One thread: these networks are too small to gain from more, and more wait for each other on a busy machine.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bayeslaw.architecture import Architecture
from models.looped import LoopedTransformer

torch.set_num_threads(1)

SEQ_LEN = 12
VOCAB = 40


def _architecture(d_model=16, recurrences=2, unrolled=8, **changes):
    fields = {"prelude_layers": 1, "shared_layers": unrolled // recurrences, "coda_layers": 2}
    fields |= {"seq_len": SEQ_LEN, "vocab_size": VOCAB} | changes
    return Architecture(d_model=d_model, recurrences=recurrences, **fields)


def _stir(model):
    """Take the parameters from starting values that hide differences: head almost 0, gains 1, injection [I | 0]."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        model.head.normal_(generator=generator)
        for name, parameter in model.named_parameters():
            if name.endswith("gain") or name.startswith("injection"):
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def _network(stirred=True, head_size=8, seed=0, activation_checkpointing=False, **fields):
    model = LoopedTransformer(
        _architecture(**fields), head_size=head_size, seed=seed, activation_checkpointing=activation_checkpointing
    )
    return _stir(model) if stirred else model


def _tokens(sequences=2, length=SEQ_LEN):
    return torch.randint(0, VOCAB, (sequences, length), generator=torch.Generator().manual_seed(1))


def _cross_entropy(logits_BTV, tokens_BT):
    return F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten())


def _unrolled(model, tokens_BT, held=None):
    """Logits and the last detached state, by the formulas of the paper; ``held`` takes the place of that state."""
    architecture, own = model.architecture, model.injection
    injection, recurrences = architecture.injection, architecture.recurrences

    def through(blocks, x):
        for block in blocks:
            x = block(x, model.rotary)
        return x

    e = through(model.prelude, model.embedding_norm(model.embedding[tokens_BT]))
    if injection == "additive":
        h = torch.zeros_like(e)
    elif injection == "hyperconnections":
        h = torch.stack([e] * architecture.lanes)
    else:
        h = e
    detached = recurrences - architecture.backprop_recurrences
    last = None
    for t in range(recurrences):
        if injection == "linear":
            u = torch.cat((e, h), dim=-1) @ own.weight.T
        elif injection == "additive":
            u = h + e
        elif injection == "hyperconnections":
            u = torch.einsum("k,kbtd->btd", own.alpha[t], h)
        else:
            u = h
        s = model.recurrence_norm(through(model.shared, u))
        if injection == "hyperconnections":
            s = torch.einsum("kj,jbtd->kbtd", own.mixing[t], h) + torch.einsum("k,btd->kbtd", own.beta[t], s)
        h = s
        if t < detached:
            h = h.detach()
        if t == detached - 1:
            last = h = h if held is None else held
    read = h.sum(dim=0) if injection == "hyperconnections" else h
    logits = F.linear(model.final_norm(through(model.coda, read)), model.head)
    return 15 * torch.tanh(logits / 15), last


@pytest.fixture(scope="session")
def architecture():
    """Makes an architecture: 1 layer before and 2 after 8 unrolled ones."""
    return _architecture


@pytest.fixture(scope="session")
def network():
    """Makes a network of such an architecture, by default with stirred parameters."""
    return _network


@pytest.fixture(scope="session")
def tokens():
    """Makes a batch of tokens."""
    return _tokens


@pytest.fixture(scope="session")
def cross_entropy():
    """Loss of logits on tokens."""
    return _cross_entropy


@pytest.fixture(scope="session")
def unrolled():
    """The loop written out."""
    return _unrolled
