"""MuonH against its formulas, taken one matrix at a time, and what it promises of norms, state and wrong input."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from bayeslaw.errors import UsageError
from trainer import muon
from trainer.muon import POLAR_EXPRESS, MuonH, polar

# Tall, wide and square; three that share a batch, and a row and a column that do.
SHAPES = [(8, 8), (8, 32), (32, 8), (8, 32), (12, 20), (1, 5), (5, 1), (1, 1)]


def draw(shapes=SHAPES, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def parameters(matrices):
    return [nn.Parameter(matrix.clone()) for matrix in matrices]


def step(optimizer, params, seed, lr=None):
    """One step along the gradients of ``seed``."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] if lr is None else lr
    for p, gradient in zip(params, draw([p.shape for p in params], seed, params[0].dtype), strict=True):
        p.grad = gradient
    optimizer.step()


def by_the_formulas(w, gradients, rates):
    """The recipe as it is written, for one matrix."""
    c, m = w.norm(), torch.zeros_like(w)
    for g, lr in zip(gradients, rates, strict=True):
        m = 0.95 * m + 0.05 * g
        v = 0.05 * g + 0.95 * m
        x = v / (1.02 * v.norm() + 1e-6)
        for a, b, k in POLAR_EXPRESS:
            gram = x @ x.T if len(x) <= x.shape[1] else x.T @ x
            middle = b * gram + k * gram @ gram
            x = a * x + (middle @ x if len(x) <= x.shape[1] else x @ middle)
        w = w - lr * x * c / x.norm()
        w = w * c / w.norm()
    return w


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-7)])
def test_steps_are_those_of_the_formulas(dtype, close):
    start = draw(dtype=dtype)
    params = parameters(start)
    optimizer = MuonH(params, lr=0.1)
    rates = [0.1, 0.02, 0.3, 0.0, 0.01]
    for seed, lr in enumerate(rates, start=1):
        step(optimizer, params, seed, lr)
    gradients = [draw(seed=seed, dtype=torch.float64) for seed in range(1, len(rates) + 1)]
    for i, (p, w) in enumerate(zip(params, start, strict=True)):
        expected = by_the_formulas(w.double(), [g[i] for g in gradients], rates)
        assert (p - expected).norm() < close * expected.norm(), tuple(p.shape)


def test_every_matrix_keeps_its_norm():
    params = parameters(draw([*SHAPES, (96, 384), (384, 96)]))
    norms = [p.detach().double().norm().item() for p in params]
    optimizer = MuonH(params, lr=0.3)
    for seed in range(50):
        step(optimizer, params, seed)
        for p, norm in zip(params, norms, strict=True):
            assert p.detach().double().norm().item() == pytest.approx(norm, rel=1e-5)


def test_the_rate_is_the_relative_step():
    params = parameters(draw([(64, 64), (64, 256), (256, 64)], dtype=torch.float64))
    before = [p.detach().clone() for p in params]
    step(MuonH(params, lr=0.01), params, seed=1)
    for p, w, g in zip(params, before, draw([p.shape for p in params], 1, torch.float64), strict=True):
        c = w.norm()
        # A random gradient is nearly orthogonal to the matrix, so that going back to the sphere takes little away.
        assert (p.detach() - w).norm() / c == pytest.approx(0.01, rel=0.01)
        # Exactly: the step before that, found again from the direction alone, is lr c long.
        u = polar((g if len(g) <= g.shape[1] else g.T)[None])[0]
        u = u if u.shape == w.shape else u.T
        s = torch.linalg.lstsq(torch.stack((w.flatten(), u.flatten()), dim=1), p.detach().flatten()[:, None]).solution
        assert (s[1] / s[0]).abs().item() * u.norm() / c == pytest.approx(0.01, rel=1e-6)


def test_the_direction_is_the_polar_factor():
    v = torch.stack(draw([(16, 64)] * 3, seed=3))
    u, _, vt = torch.linalg.svd(v, full_matrices=False)
    x = polar(v)
    assert (torch.cosine_similarity(x.flatten(1), (u @ vt).flatten(1)) > 0.99).all()
    singular = torch.linalg.svdvals(x)
    assert ((singular > 0.85) & (singular < 1.15)).all()
    torch.testing.assert_close(polar(1000 * v), x, rtol=1e-3, atol=1e-3)


def test_zero_matrices_and_zero_gradients_stay_finite():
    still, zero, moved = parameters([*draw([(4, 9)]), torch.zeros(9, 4), *draw([(4, 9)], seed=1)])
    before = [p.detach().clone() for p in (still, zero, moved)]
    optimizer = MuonH([still, zero, moved], lr=0.1)
    for _ in range(3):
        still.grad, zero.grad, moved.grad = torch.zeros(4, 9), torch.ones(9, 4), torch.ones(4, 9)
        optimizer.step()
    assert torch.equal(still, before[0])
    assert torch.equal(zero, before[1])
    assert moved.isfinite().all()
    assert not torch.equal(moved, before[2])


def test_without_a_direction_nothing_is_rounded():
    params = parameters(draw([(4, 9)] * 50))
    optimizer = MuonH(params, lr=0.1, momentum=0.0)
    step(optimizer, params, seed=1)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(torch.equal(p, w) for p, w in zip(params, before, strict=True))


@pytest.mark.parametrize("scale", [1e-12, 1e-20, 1e-26, 1e-34, 1e-41])
def test_a_vanishing_gradient_moves_no_further_than_any_other(scale):
    """A dead matrix's momentum decays through the smallest floats, where squares are zero before the entries are."""
    params = parameters(draw())
    before = [p.detach().clone() for p in params]
    optimizer = MuonH(params, lr=0.1)
    for p in params:
        p.grad = torch.full_like(p, scale)
    optimizer.step()
    for p, w in zip(params, before, strict=True):
        # Back on the sphere at most the angle asin(lr) away, a chord a little longer than lr.
        assert (p - w).norm() <= 0.102 * w.norm()
        assert p.norm().item() == pytest.approx(w.norm().item(), rel=1e-5)


def test_parameters_without_a_gradient_are_skipped():
    params = parameters(draw([(3, 4), (3, 4)]))
    before = params[1].detach().clone()
    optimizer = MuonH(params, lr=0.1)
    params[0].grad = torch.ones(3, 4)
    optimizer.step()
    assert torch.equal(params[1], before)
    assert list(optimizer.state) == [params[0]]


def test_a_closure_computes_the_gradient_and_its_loss_comes_back():
    (p,) = parameters(draw([(3, 4)]))
    optimizer = MuonH([p], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss.item()

    before = closure()
    assert optimizer.step(closure) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_restored_optimizer_goes_on_bit_for_bit(dtype, tmp_path):
    params = parameters(draw(dtype=dtype))
    optimizer = MuonH(params, lr=0.1)
    for seed in range(3):
        step(optimizer, params, seed)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    others = parameters(params)
    restored = MuonH(others, lr=0.7, momentum=0.5)
    restored.load_state_dict(torch.load(tmp_path / "state.pt"))
    for seed in range(3, 6):
        step(optimizer, params, seed)
        step(restored, others, seed)
    for p, other in zip(params, others, strict=True):
        assert torch.equal(p, other)


def test_state_is_tensors():
    params = parameters(draw())
    optimizer = MuonH(params, lr=0.1)
    step(optimizer, params, seed=1)
    for p, w in zip(params, draw(), strict=True):
        state = optimizer.state[p]
        assert sorted(state) == ["momentum", "norm"]
        assert state["momentum"].shape == p.shape
        assert (state["norm"].shape, state["norm"].dtype) == ((), torch.float32)
        assert state["norm"].item() == pytest.approx(w.norm().item(), rel=1e-6)


def test_groups_change_nothing_but_rounding():
    together, apart, reversed_ = (parameters(draw()) for _ in range(3))
    optimizers = [
        MuonH(together, lr=0.1),
        MuonH([{"params": [p]} for p in apart], lr=0.1),
        MuonH(reversed_[::-1], lr=0.1),
    ]
    for seed in range(5):
        for optimizer, params in zip(optimizers, (together, apart, reversed_), strict=True):
            step(optimizer, params, seed)
    for ps in zip(together, apart, reversed_, strict=True):
        for p in ps[1:]:
            torch.testing.assert_close(p, ps[0], rtol=1e-4, atol=1e-5)


def test_tall_and_wide_matrices_share_a_batch(monkeypatch):
    batches = []
    monkeypatch.setattr(muon, "polar", lambda v_nab: batches.append(tuple(v_nab.shape)) or polar(v_nab))
    params = parameters(draw([(8, 8), (32, 8), (8, 32)] * 5))
    step(MuonH(params, lr=0.1), params, seed=1)
    assert batches == [(5, 8, 8), (10, 8, 32)]


def test_groups_have_their_own_rates():
    params = parameters(draw([(4, 8), (4, 8)]))
    before = [p.detach().clone() for p in params]
    optimizer = MuonH([{"params": [params[0]], "lr": 0.0}, {"params": [params[1]]}], lr=0.1)
    step(optimizer, params, seed=1)
    torch.testing.assert_close(params[0].detach(), before[0])
    assert (params[1] - before[1]).norm() > 0.05 * before[1].norm()


def test_two_runs_are_the_same():
    runs = []
    for _ in range(2):
        params = parameters(draw())
        optimizer = MuonH(params, lr=0.1)
        for seed in range(5):
            step(optimizer, params, seed)
        runs.append(params)
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def alone():
    """A process group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_it_can_be_sharded(alone):
    sharded, plain = parameters(draw()), parameters(draw())
    optimizers = ZeroRedundancyOptimizer(sharded, optimizer_class=MuonH, lr=0.1), MuonH(plain, lr=0.1)
    for seed, lr in enumerate([0.1, 0.02, 0.05]):
        step(optimizers[0], sharded, seed, lr)
        step(optimizers[1], plain, seed, lr)
    for p, other in zip(sharded, plain, strict=True):
        torch.testing.assert_close(p, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3,), {"lr": 0.1}, r"a parameter of shape \(3,\)"),
        ((2, 3, 4), {"lr": 0.1}, r"a parameter of shape \(2, 3, 4\)"),
        ((3, 4), {"lr": -0.1}, r"lr = -0\.1"),
        ((3, 4), {"lr": float("nan")}, r"lr = nan"),
        ((3, 4), {"lr": 0.1, "momentum": 1.0}, r"momentum = 1\.0"),
    ],
)
def test_wrong_input_is_refused(shape, options, message):
    with pytest.raises(UsageError, match=message):
        MuonH(parameters(draw([shape])), **options)


def test_a_refused_group_is_not_kept():
    params = parameters(draw([(3, 4), (3, 4)]))
    optimizer = MuonH(params[:1], lr=0.1)
    with pytest.raises(UsageError, match="lr"):
        optimizer.add_param_group({"params": params[1:], "lr": -1.0})
    assert len(optimizer.param_groups) == 1
