"""How the prelude's output e enters each recurrence: the map (e, h) -> u that the shared block is run on.

References
----------
arXiv 2604.21106, section "Architecture", injection.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayeslaw.errors import UsageError


class NoInjection(nn.Module):
    """u = h: the plain transformer, whose single pass starts at h = e."""

    def forward(self, e_BTd: Tensor, h_BTd: Tensor) -> Tensor:
        """Return the state as it is."""
        return h_BTd


class LinearInjection(nn.Module):
    """u = W [e ; h] with W in R^{d x 2d}, started at [I | 0].

    Parameters
    ----------
    width : int
        d.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 2 * width))

    def reset(self) -> None:
        """Set W = [I | 0]: at the start every recurrence reads the prelude's output and nothing else."""
        nn.init.eye_(self.weight)

    def forward(self, e_BTd: Tensor, h_BTd: Tensor) -> Tensor:
        """Mix the prelude's output and the state; two [B, T, d] to one."""
        return F.linear(torch.cat((e_BTd, h_BTd), dim=-1), self.weight)


def make_injection(kind: str, width: int) -> NoInjection | LinearInjection:
    """The injection module called ``kind``.

    Raises
    ------
    UsageError
        There is no such module.
    """
    if kind == "none":
        return NoInjection()
    if kind == "linear":
        return LinearInjection(width)
    raise UsageError(
        f"injection {kind!r} cannot be trained",
        allowed="linear, or none with recurrences = 1",
        do="train with --injection linear",
    )
