"""r = 1 against a plain transformer of 20 layers, built from torch's own modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEAD = 32, 8
NAMES = {
    "norm1.weight": "attention_norm.gain",
    "norm2.weight": "mlp_norm.gain",
    "q.weight": "attention.query.weight",
    "k.weight": "attention.key.weight",
    "v.weight": "attention.value.weight",
    "o.weight": "attention.out.weight",
    "up.weight": "mlp.up.weight",
    "down.weight": "mlp.down.weight",
}


def rotated(x):
    """Each pair (x_i, x_{i + k/2}) is a complex number, turned by -position x frequency_i."""
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[-2]), 10_000.0 ** -(torch.arange(half) / half))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), -angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.norm_head = nn.RMSNorm(HEAD, eps=1e-6, elementwise_affine=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (WIDTH // HEAD, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.norm_head(rotated(q)), self.norm_head(rotated(k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.norm2(x))) ** 2)


class Plain(nn.Module):
    """Embedding, norm, 18 layers, norm, 2 layers, norm, head; logits capped at 15."""

    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(20))
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(3))
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.norms[0](self.embedding(tokens))
        for layer in self.layers[:18]:
            x = layer(x)
        x = self.norms[1](x)
        for layer in self.layers[18:]:
            x = layer(x)
        return 15 * torch.tanh(self.head(self.norms[2](x)) / 15)


def pairs(plain, model):
    """Parameters of the plain transformer, each with the network's."""
    ours = dict(model.named_parameters())
    yield plain.embedding.weight, ours.pop("embedding")
    yield plain.head.weight, ours.pop("head")
    for norm, name in zip(plain.norms, ("embedding_norm", "recurrence_norm", "final_norm"), strict=True):
        yield norm.weight, ours.pop(f"{name}.gain")
    for i, layer in enumerate(plain.layers):
        place = f"prelude.{i}" if i < 2 else f"shared.{i - 2}" if i < 18 else f"coda.{i - 18}"
        for name, parameter in layer.named_parameters():
            yield parameter, ours.pop(f"{place}.{NAMES[name]}")
    assert not ours


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-5), (torch.float64, 1e-6)])
def test_one_recurrence_is_a_plain_transformer(network, tokens, cross_entropy, dtype, tolerance):
    """Same logits, same gradients; positions are tables in float32, and float64 agrees to their rounding."""
    model = network(
        d_model=WIDTH, recurrences=1, prelude_layers=2, shared_layers=16, coda_layers=2, injection="linear"
    ).to(dtype)
    plain = Plain(model.architecture.vocab_size).to(dtype)
    with torch.no_grad():
        for theirs, ours in pairs(plain, model):
            theirs.copy_(ours)
    batch = tokens()
    logits, expected = model(batch), plain(batch)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    cross_entropy(logits, batch).backward()
    cross_entropy(expected, batch).backward()
    for theirs, ours in pairs(plain, model):
        assert (theirs.grad - ours.grad).norm() <= tolerance * theirs.grad.norm()
        assert theirs.grad.count_nonzero()
