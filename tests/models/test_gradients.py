"""Gradients of every variant against finite differences and against the loop written out; what checkpointing keeps."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOPED = ("linear", "additive", "passthrough", "hyperconnections")
TRUNCATIONS = [(2, 1), (4, 3), (4, 2), (4, 1)]


def gradients(loss, model):
    """Gradients by name; None for parameters that the loss does not depend on."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def groups(model):
    """Parameters by what they do."""
    found = {}
    for name, parameter in model.named_parameters():
        root = name.split(".")[0]
        found.setdefault("gains" if name.endswith("gain") else root, []).append((name, parameter))
    return found


@pytest.mark.parametrize("activation_checkpointing", [False, True])
@pytest.mark.parametrize("kept", [3, 2, 1])
@pytest.mark.parametrize("injection", ["none", *LOOPED])
def test_gradients_are_those_of_finite_differences(
    network, tokens, cross_entropy, unrolled, injection, kept, activation_checkpointing
):
    """Truncation makes the state that leaves the detached recurrences a constant: the differences hold it so."""
    recurrences = 1 if injection == "none" else 3
    fields = {"shared_layers": 1, "coda_layers": 1, "backprop_recurrences": min(kept, recurrences)}
    model = network(
        recurrences=recurrences,
        injection=injection,
        activation_checkpointing=activation_checkpointing,
        **fields,
    ).double()
    batch = tokens()
    with torch.no_grad():
        held = unrolled(model, batch)[1]
    assert (held is None) == (injection == "none" or kept == 3)
    gradient = gradients(cross_entropy(model(batch), batch), model)
    generator = torch.Generator().manual_seed(3)
    step = 1e-5
    for group, members in groups(model).items():
        for _ in range(2):
            direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for _, p in members]
            slope = sum(
                (gradient[name] * along).sum().item()
                for (name, _), along in zip(members, direction, strict=True)
                if gradient[name] is not None
            )
            losses = []
            with torch.no_grad():
                for shift in (step, -2 * step, step):  # the last one leads back
                    for (_, parameter), along in zip(members, direction, strict=True):
                        parameter += shift * along
                    losses.append(cross_entropy(unrolled(model, batch, held)[0], batch).item())
            assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-5, abs=1e-7), group


@pytest.mark.parametrize("activation_checkpointing", [False, True])
@pytest.mark.parametrize(("recurrences", "kept"), TRUNCATIONS)
@pytest.mark.parametrize("injection", LOOPED)
def test_truncated_gradients_are_those_of_detached_states(
    network, tokens, cross_entropy, unrolled, injection, recurrences, kept, activation_checkpointing
):
    fields = {"recurrences": recurrences, "injection": injection, "lanes": 3}
    model = network(backprop_recurrences=kept, activation_checkpointing=activation_checkpointing, **fields)
    whole, batch = network(**fields), tokens()
    loss, whole_loss = cross_entropy(model(batch), batch), cross_entropy(whole(batch), batch)
    assert loss.item() == whole_loss.item()

    got, untruncated = gradients(loss, model), gradients(whole_loss, whole)
    expected = gradients(cross_entropy(unrolled(model, batch)[0], batch), model)
    for name, gradient in expected.items():
        torch.testing.assert_close(
            got[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name} {text}"
        )
    shared = "shared.0.mlp.up.weight"
    assert (got[shared] - untruncated[shared]).abs().max() > 1e-4

    prelude = [name for name in got if name.startswith(("embedding", "prelude"))]
    assert len(prelude) == 10
    for name, gradient in got.items():
        assert (gradient is None) == (model.architecture.prelude_detached and name in prelude), name
    assert model.architecture.prelude_detached == (injection in ("passthrough", "hyperconnections"))
    assert all(gradient.count_nonzero() for gradient in untruncated.values())


@pytest.mark.parametrize(("kept", "T", "kept_then"), [(3, 2, 2), (2, 3, 2), (2, 6, 2), (4, 6, 6)])
@pytest.mark.parametrize("injection", ["linear", "additive", "passthrough"])
def test_at_another_number_of_recurrences_the_last_ones_are_kept(
    network, tokens, cross_entropy, unrolled, injection, kept, T, kept_then
):
    """As many as in training; all of them where training truncates nothing."""
    fields = {"injection": injection, "shared_layers": 2}
    model, batch = network(recurrences=4, backprop_recurrences=kept, **fields), tokens()
    got = gradients(cross_entropy(model(batch, recurrences=T), batch), model)
    same = network(recurrences=T, backprop_recurrences=kept_then, **fields)  # of the same parameters
    expected = gradients(cross_entropy(unrolled(same, batch)[0], batch), same)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)


def test_lane_parameters_of_detached_recurrences_get_no_gradient(network, tokens, cross_entropy):
    model = network(recurrences=4, backprop_recurrences=3, injection="hyperconnections")
    cross_entropy(model(tokens()), tokens()).backward()
    for parameter in model.injection.parameters():
        moved = parameter.grad.flatten(1).count_nonzero(dim=1) > 0
        assert moved.tolist() == [False, True, True, True]


@pytest.mark.parametrize("injection", LOOPED)
def test_truncated_gradients_survive_autocast(network, tokens, cross_entropy, unrolled, injection):
    """Autocast keeps the weights it cast; those cast without gradient must not serve the recurrences with one."""
    model, batch = network(recurrences=4, backprop_recurrences=2, injection=injection), tokens()
    exact = gradients(cross_entropy(unrolled(model, batch)[0], batch), model)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = gradients(cross_entropy(model(batch), batch), model)
    for name, gradient in exact.items():
        if gradient is None:
            assert rounded[name] is None
        else:
            # bfloat16 keeps 8 bits: the directions agree, and lost recurrences would turn them.
            assert torch.cosine_similarity(rounded[name].flatten(), gradient.flatten(), dim=0) > 0.99, name
            assert rounded[name].norm().item() == pytest.approx(gradient.norm().item(), rel=0.1), name


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kept", [4, 2])
@pytest.mark.parametrize("injection", LOOPED)
def test_checkpointing_changes_no_bit(network, tokens, cross_entropy, injection, kept, autocast):
    batch, results = tokens(), []
    for again in (False, True):
        model = network(recurrences=4, injection=injection, backprop_recurrences=kept, activation_checkpointing=again)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = cross_entropy(model(batch), batch)
        results.append({"loss": loss.detach()} | gradients(loss, model))
    for name, plain in results[0].items():
        assert plain is results[1][name] is None or torch.equal(plain, results[1][name]), name


class Held(TorchDispatchMode):
    """Bytes of the tensors made under it that something still holds, views of parameters aside."""

    def __init__(self, model):
        super().__init__()
        self._own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self._storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                reference = StorageWeakRef(storage)
                self._storages[reference.cdata] = (reference, storage.nbytes())
        return out

    def bytes(self):
        return sum(
            size
            for place, (reference, size) in self._storages.items()
            if place not in self._own and not reference.expired()
        )


@pytest.mark.parametrize(("injection", "lanes"), [("linear", 1), ("additive", 1), ("hyperconnections", 3)])
def test_checkpointing_keeps_one_state_a_recurrence(network, tokens, cross_entropy, injection, lanes):
    """Between forward and backward; without it, every recurrence keeps the activations of all its layers."""

    def held(recurrences, shared_layers, again):
        model = network(
            recurrences=recurrences,
            shared_layers=shared_layers,
            injection=injection,
            lanes=lanes,
            activation_checkpointing=again,
        )
        with Held(model) as tensors:
            loss = cross_entropy(model(tokens()), tokens())
        assert loss.requires_grad
        return tensors.bytes()

    small = tokens().numel() * 16 * 4  # bytes of [B, T, d]
    kept = {r: held(r, 2, True) for r in (2, 4, 8)}
    assert kept[4] - kept[2] == 2 * lanes * small
    assert kept[8] - kept[4] == 4 * lanes * small
    assert held(4, 6, True) == kept[4]

    whole = {r: held(r, 2, False) for r in (2, 4, 8)}
    assert whole[2] > kept[2]
    assert whole[8] - whole[4] == pytest.approx(2 * (whole[4] - whole[2]))
    assert whole[4] - whole[2] > 2 * 2 * 12 * small  # 2 recurrences, 2 layers, a dozen activations each
    assert held(4, 6, False) - whole[4] > 4 * 4 * 12 * small


def test_detached_recurrences_keep_nothing(network, tokens, cross_entropy):
    def held(recurrences):
        model = network(recurrences=recurrences, shared_layers=2, backprop_recurrences=2)
        with Held(model) as tensors:
            loss = cross_entropy(model(tokens()), tokens())
        assert loss.requires_grad
        return tensors.bytes()

    assert held(8) == held(4) == held(3)
