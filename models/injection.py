"""How the prelude's output e and the state h make the input u of each recurrence, and what becomes of its output s.

Every injection answers four questions: the state before the first recurrence (``start``), the block's input
(``enter``), the state after the block and its norm gave s (``leave``), and what the coda reads of the last state
(``read``). Recurrences count t = 0, 1, ... from the first. The state is never rounded: under autocast too it stays in
float32, as the residual of every block does, so that no arm of a comparison pays for a precision that another does not.

References
----------
arXiv 2604.21106, section "Architecture", injection.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayeslaw.architecture import Architecture


class Passthrough(nn.Module):
    """u = h, h(0) = e: the plain transformer when there is one recurrence; e is never injected again."""

    def start(self, e_BTd: Tensor) -> Tensor:
        """The state before the first recurrence."""
        return e_BTd

    def enter(self, e_BTd: Tensor, h_BTd: Tensor, t: int) -> Tensor:
        """The block's input in recurrence t."""
        return h_BTd

    def leave(self, h_BTd: Tensor, s_BTd: Tensor, t: int) -> Tensor:
        """The state after recurrence t, whose block and norm gave s."""
        return s_BTd

    def read(self, h_BTd: Tensor) -> Tensor:
        """What the coda reads."""
        return h_BTd

    @torch.no_grad()
    def reset(self) -> None:
        """Set the starting values of the parameters."""


class AdditiveInjection(Passthrough):
    """u = h + e, h(0) = 0."""

    def start(self, e_BTd: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(e_BTd)

    def enter(self, e_BTd: Tensor, h_BTd: Tensor, t: int) -> Tensor:
        """h + e."""
        return h_BTd + e_BTd


class LinearInjection(Passthrough):
    """u = W [e ; h] with W in R^{d x 2d}, started at [I | 0]; h(0) = e.

    The product runs in float32 under autocast (on a GPU in TF32, if the process allows it): in bfloat16 it would round
    the state once a recurrence.

    Parameters
    ----------
    width : int
        d.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 2 * width))
        self.reset()

    def enter(self, e_BTd: Tensor, h_BTd: Tensor, t: int) -> Tensor:
        """W [e ; h]."""
        with torch.autocast(e_BTd.device.type, enabled=False):
            return F.linear(torch.cat((e_BTd, h_BTd), dim=-1), self.weight)

    @torch.no_grad()
    def reset(self) -> None:
        """Set W = [I | 0]: at the start every recurrence reads the prelude's output and nothing else."""
        nn.init.eye_(self.weight)


class HyperConnections(Passthrough):
    """K residual lanes: u = sum_j alpha_j lane_j; lane_i <- sum_j M_ij lane_j + beta_i s; alpha, M, beta of each t.

    Started at alpha(t) = e_{t mod K}, M = I, beta = 1 on lanes that are copies of e, a recurrence reads e plus all
    earlier outputs: u(t) = e + s(0) + ... + s(t - 1), and the coda K (e + s(0) + ... + s(r - 1)). That is no plain
    loop, whose recurrences read only the output before them; the first recurrence, u = e, is the same.

    Parameters
    ----------
    recurrences : int
        r; each recurrence has its own K^2 + 2 K parameters.
    lanes : int
        K.
    """

    def __init__(self, recurrences: int, lanes: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(recurrences, lanes))
        self.mixing = nn.Parameter(torch.empty(recurrences, lanes, lanes))
        self.beta = nn.Parameter(torch.empty(recurrences, lanes))
        self.reset()

    def start(self, e_BTd: Tensor) -> Tensor:
        """K copies of e, [K, B, T, d]."""
        return e_BTd.expand(self.alpha.shape[1], *e_BTd.shape)

    def enter(self, e_BTd: Tensor, h_KBTd: Tensor, t: int) -> Tensor:
        """The lanes' sum weighted by alpha(t)."""
        # Products and sums of whole lanes instead of a matmul: they stay in float32 and fuse when compiled.
        return (_over_lanes(self.alpha[t]) * h_KBTd).sum(dim=0)

    def leave(self, h_KBTd: Tensor, s_BTd: Tensor, t: int) -> Tensor:
        """M(t) lanes + beta(t) s."""
        mixed_KBTd = (_over_lanes(self.mixing[t]) * h_KBTd).sum(dim=1)
        return mixed_KBTd + _over_lanes(self.beta[t]) * s_BTd

    def read(self, h_KBTd: Tensor) -> Tensor:
        """The sum of the lanes."""
        return h_KBTd.sum(dim=0)

    @torch.no_grad()
    def reset(self) -> None:
        """Set alpha(t) = e_{t mod K}, M = I, beta = 1."""
        recurrences, lanes = self.alpha.shape
        eye = torch.eye(lanes)
        self.alpha.copy_(eye[torch.arange(recurrences) % lanes])
        self.mixing.copy_(eye.expand(recurrences, lanes, lanes))
        self.beta.fill_(1.0)


def _over_lanes(weights: Tensor) -> Tensor:
    """Weights [...] as [..., 1, 1, 1], to be multiplied with lanes [..., B, T, d]."""
    return weights[..., None, None, None]


def make_injection(architecture: Architecture) -> Passthrough:
    """The injection module of an architecture."""
    if architecture.injection == "linear":
        return LinearInjection(int(architecture.d_model))
    if architecture.injection == "additive":
        return AdditiveInjection()
    if architecture.injection == "hyperconnections":
        return HyperConnections(architecture.recurrences, architecture.lanes)
    return Passthrough()
