"""The head and its loss: capped logits and cross-entropy, some tokens at a time, so that logits of all never exist.

Shapes: N tokens, d width, V vocabulary.

The gradients are made with the loss, while a piece's logits are at hand, and scaled in the backward pass: nothing of
size N x V is kept or computed twice. A cap bounds every logit, so that exponentials need no maximum taken off first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LOGIT_CAP = 15.0
"""Logits are LOGIT_CAP tanh(z / LOGIT_CAP)."""

PIECE_BYTES = {"cpu": 2**20, "cuda": 2**29}
"""Bytes of a piece's logits: on a CPU what its cache holds, on a GPU what keeps its multiprocessors busy."""


def capped(z_NV: Tensor) -> Tensor:
    """Logits [..., V] within +-`LOGIT_CAP`, in float32 at least."""
    return LOGIT_CAP * torch.tanh(_exact(z_NV) / LOGIT_CAP)


def mean_loss(h_Nd: Tensor, head_Vd: Tensor, targets_N: Tensor) -> Tensor:
    """Mean cross-entropy of the targets under the head's capped logits [], nats per token.

    Parameters
    ----------
    h_Nd : tensor [N, d]
        What the head reads.
    head_Vd : tensor [V, d]
        Its weight. The product runs in autocast's precision, all else in float32 at least.
    targets_N : tensor of int64 [N]
        The token that comes next.
    """
    loss: Tensor = _MeanLoss.apply(h_Nd, head_Vd, targets_N)
    return loss


@torch.no_grad()
def token_losses(h_Nd: Tensor, head_Vd: Tensor, targets_N: Tensor) -> Tensor:
    """Cross-entropy of each target [N], nats, without gradients; parameters as for `mean_loss`."""
    h_Nd, head_Vd = _cast(h_Nd, head_Vd)
    pieces = zip(_pieces(h_Nd, head_Vd), _pieces(targets_N, head_Vd), strict=True)
    return torch.cat([_losses(_tanh(h_nd, head_Vd), targets_n)[0] for h_nd, targets_n in pieces])


@torch.no_grad()
def token_scores(h_Nd: Tensor, head_Vd: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each target [N], nats, and whether it is the likeliest [N]; parameters as for `mean_loss`."""
    h_Nd, head_Vd = _cast(h_Nd, head_Vd)
    losses, likeliest = [], []
    for h_nd, targets_n in zip(_pieces(h_Nd, head_Vd), _pieces(targets_N, head_Vd), strict=True):
        t_nV = _tanh(h_nd, head_Vd)
        losses.append(_losses(t_nV, targets_n)[0])
        likeliest.append(t_nV.argmax(dim=1) == targets_n)
    return torch.cat(losses), torch.cat(likeliest)


class _MeanLoss(torch.autograd.Function):
    """`mean_loss` with its gradients."""

    @staticmethod
    def forward(ctx: Any, h_Nd: Tensor, head_Vd: Tensor, targets_N: Tensor) -> Tensor:
        tokens = h_Nd.shape[0]
        h, head = _cast(h_Nd, head_Vd)
        grads_h = []
        grad_head_Vd = torch.zeros_like(head_Vd)
        loss = grad_head_Vd.new_zeros(())
        for h_nd, targets_n in zip(_pieces(h, head), _pieces(targets_N, head), strict=True):
            t_nV = _tanh(h_nd, head)
            losses_n, e_nV, sum_n1 = _losses(t_nV, targets_n)
            loss += losses_n.sum()
            # d loss / d z = (p - 1[target]) (1 - tanh^2), of the mean over all tokens.
            p_nV = e_nV.div_(sum_n1 * tokens)
            p_nV.scatter_add_(1, targets_n[:, None], p_nV.new_full((1, 1), -1 / tokens).expand(len(targets_n), 1))
            dz_nV = p_nV.addcmul_(p_nV, t_nV.square_(), value=-1).to(h.dtype)
            grads_h.append(dz_nV @ head)
            grad_head_Vd += dz_nV.mT @ h_nd
        ctx.save_for_backward(torch.cat(grads_h).to(h_Nd.dtype), grad_head_Vd)
        return loss / tokens

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_h_Nd, grad_head_Vd = ctx.saved_tensors
        return grad * grad_h_Nd, grad * grad_head_Vd, None


def _cast(h_Nd: Tensor, head_Vd: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the precision of the product."""
    device = h_Nd.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        return h_Nd.to(dtype), head_Vd.to(dtype)
    return h_Nd, head_Vd


def _pieces(x_N: Tensor, head_Vd: Tensor) -> tuple[Tensor, ...]:
    """Tokens in pieces whose logits take `PIECE_BYTES`."""
    tokens = PIECE_BYTES.get(head_Vd.device.type, PIECE_BYTES["cpu"]) // (4 * head_Vd.shape[0])
    return torch.split(x_N, max(1, tokens))


def _tanh(h_nd: Tensor, head_Vd: Tensor) -> Tensor:
    """tanh(z / LOGIT_CAP) of logits z [n, V]."""
    return _exact(h_nd @ head_Vd.mT).div_(LOGIT_CAP).tanh_()


def _exact(z_NV: Tensor) -> Tensor:
    """In float32 at least."""
    return z_NV.to(torch.promote_types(z_NV.dtype, torch.float32))


def _losses(t_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [n]; exp(logit - LOGIT_CAP), at least e^-30, [n, V]; its sum [n, 1]."""
    e_nV = torch.add(t_nV.new_tensor(-LOGIT_CAP), t_nV, alpha=LOGIT_CAP).exp_()
    sum_n1 = e_nV.sum(dim=1, keepdim=True)
    picked_n1 = t_nV.gather(1, targets_n[:, None])
    return (sum_n1.log() + LOGIT_CAP * (1 - picked_n1)).squeeze(1), e_nV, sum_n1
