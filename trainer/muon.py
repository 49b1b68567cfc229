"""MuonH: Muon whose matrices keep their starting Frobenius norm, so that the rate is the relative step.

Of ``torch.optim.Muon`` only the momentum is this recipe's. Its orthogonalisation has one polynomial for all its steps,
divides by the norm itself, is bfloat16 on every device and takes one matrix at a time; its step knows no norm to keep.

Shapes: n matrices in a batch, each a rows by b columns with a <= b.

References
----------
arXiv 2604.21106, the optimiser of its recipe; arXiv 2505.16932, Polar Express.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from bayeslaw.errors import UsageError

# One odd quintic a step, X <- a X + (b A + c A^2) X with A = X X^T: each is the best for the singular values that the
# one before it leaves. The five take all from 1e-3 to 1 to within .15 of 1.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
# Rounding must not lift a singular value above 1, where the polynomials diverge.
MARGIN = 1.02
EPS = 1e-6
# A norm below this is rounding error, since the squares it was summed from leave float32's range: nothing is scaled
# up by more than its inverse, so that what is zero stays zero.
LEAST_NORM = 1e-18


class MuonH(torch.optim.Optimizer):
    """Muon on Frobenius spheres.

    With g the gradient, W_0 the matrix when first seen and c = |W_0|_F, one step is::

        m <- momentum m + (1 - momentum) g        v = momentum m + (1 - momentum) g
        U = X c / |X|_F, X the polar factor of v   W <- W - lr U, then W <- W c / |W|_F

    A matrix whose v is zero is left as it is, and a zero matrix stays zero. Where ``found_inf`` is a tensor above 0, as
    for torch's fused optimisers, a step changes nothing. A parameter's state is all tensors:
    ``momentum``, of its shape, and ``norm``, c [], float32.

    Parameters
    ----------
    params : iterable
        Matrices, or groups of them.
    lr : float
        Length of a step as a share of the matrix's norm, 0 or more. A group's ``lr`` may change at any time.
    momentum : float
        Share of the running mean of gradients that a step keeps, at least 0 and below 1.

    Raises
    ------
    UsageError
        For a parameter that is no matrix, or a rate or momentum out of range.
    """

    def __init__(self, params: ParamsT, *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.found_inf: Tensor | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take another group of matrices, checked as those given at the start."""
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1])
        except UsageError:
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every matrix that has a gradient.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients anew and returns the loss.

        Returns
        -------
        float or None
            The closure's loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for batch in _batches(p for p in group["params"] if p.grad is not None):
                self._move(batch, group["lr"], group["momentum"])
        return loss

    def _move(self, params: list[Tensor], lr: float, momentum: float) -> None:
        """One step of matrices that are of one shape once they lie wide."""
        states = [self._state(p) for p in params]
        gradients = [p.grad for p in params if p.grad is not None]
        momenta = [state["momentum"] for state in states]
        moves: Tensor | None = None
        if self.found_inf is not None:
            moves = self.found_inf == 0
            gradients = [torch.where(moves, g, m) for g, m in zip(gradients, momenta, strict=True)]  # m stays m
        torch._foreach_lerp_(momenta, gradients, 1 - momentum)
        v_nab = torch.stack(_wide(torch._foreach_lerp(gradients, momenta, momentum)))
        x_nab = polar(v_nab)

        wide = _wide(params)
        w_nab = torch.stack(wide)
        # A float64 matrix has its norm in float64 once a state dict was loaded: compute as if it always had.
        c_n11 = torch.stack([state["norm"] for state in states]).to(w_nab)[:, None, None]
        x_n11 = frobenius(x_nab).to(w_nab.dtype)
        moved_n11 = x_n11 > 0 if moves is None else (x_n11 > 0) & moves
        w_nab -= x_nab * torch.where(moved_n11, lr * c_n11 / x_n11.clamp_min(LEAST_NORM), 0.0)
        # Without a direction not even the rounding error of the norm is put right: the matrix stays bit for bit.
        w_nab *= torch.where(moved_n11, c_n11 / frobenius(w_nab).clamp_min(LEAST_NORM), 1.0)
        torch._foreach_copy_(wide, w_nab.unbind())

    def _state(self, p: Tensor) -> dict[str, Tensor]:
        """State of a parameter, made when it is first seen."""
        state: dict[str, Tensor] = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
            state["norm"] = frobenius(p).squeeze().float()
        return state


def polar(v_nab: Tensor) -> Tensor:
    """Polar factors, nearly: singular values above a thousandth of the norm come within .15 of 1.

    Parameters
    ----------
    v_nab : Tensor
        Wide matrices [n, a, b]; their scale is of no account until norms come near `EPS`, where all singular
        values shrink alike.

    Returns
    -------
    Tensor
        [n, a, b], on CUDA in bfloat16: the polynomials were chosen for its precision, and it is fastest there.
    """
    x_nab = v_nab / (MARGIN * frobenius(v_nab) + EPS)
    if x_nab.is_cuda and x_nab.dtype == torch.float32:
        x_nab = x_nab.bfloat16()
    for a, b, c in POLAR_EXPRESS:
        gram_naa = x_nab @ x_nab.mT
        x_nab = torch.baddbmm(x_nab, torch.baddbmm(gram_naa, gram_naa, gram_naa, beta=b, alpha=c), x_nab, beta=a)
    return x_nab


def frobenius(x_ab: Tensor) -> Tensor:
    """Frobenius norms [..., 1, 1] of matrices [..., a, b], in float32 at least.

    Row by row, because one long sum in float32 is wrong by 1e-4 on a CPU.
    """
    dtype = torch.promote_types(x_ab.dtype, torch.float32)
    rows_a1 = torch.linalg.vector_norm(x_ab, dim=-1, keepdim=True, dtype=dtype)
    norm_11: Tensor = torch.linalg.vector_norm(rows_a1, dim=-2, keepdim=True)
    return norm_11


def _wide(matrices: Iterable[Tensor]) -> list[Tensor]:
    """Views of the matrices, the tall ones transposed."""
    return [matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix for matrix in matrices]


def _batches(params: Iterable[Tensor]) -> list[list[Tensor]]:
    """Parameters by shape once wide, so that (4 d, d) and (d, 4 d) share a batch; by device and type as well."""
    batches: dict[tuple[object, ...], list[Tensor]] = {}
    for p in params:
        batches.setdefault((p.device, p.dtype, *sorted(p.shape)), []).append(p)
    return list(batches.values())


def _check(group: dict[str, Any]) -> None:
    """Refuse a group of parameters that MuonH cannot move."""
    if not group["lr"] >= 0:
        raise UsageError(f"lr = {group['lr']}", allowed="a learning rate, 0 or above")
    if not 0 <= group["momentum"] < 1:
        raise UsageError(f"momentum = {group['momentum']}", allowed="at least 0 and below 1")
    for p in group["params"]:
        if p.ndim != 2:
            raise UsageError(
                f"a parameter of shape {tuple(p.shape)}",
                allowed="matrices, two axes",
                do="give vectors and scalars to another optimiser, such as AdamW",
            )
