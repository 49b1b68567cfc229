"""Learning rates: the peak rate of each kind of parameter at a reference point, and how it moves to another run.

The rule is that of the recipe of arXiv 2604.21106: the matrices' rate follows batch B and horizon D, those of embedding
and head follow batch and width d, those of norm gains and lanes the width alone.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("matrix", "embedding", "head", "gain", "lane")
"""Kinds of parameters. Matrices are moved by MuonH, whose rate is the relative step, all others by AdamW."""


@dataclass(frozen=True, kw_only=True)
class RateRule:
    """Peak rates at a reference point and the exponents of their transfer.

    Parameters
    ----------
    matrix, embedding, head, gain, lane : float
        Peak rate of each kind at the reference point.
    batch_tokens, d_model : float
        Batch B in tokens and width d of the reference point.
    tokens, tokens_looped : float
        Horizon D of the reference point, for r = 1 and for r > 1.
    batch_exponent, tokens_exponent, width_exponent : float
        Powers of B, D and d.
    """

    matrix: float
    embedding: float
    head: float
    gain: float
    lane: float
    batch_tokens: float
    d_model: float
    tokens: float
    tokens_looped: float
    batch_exponent: float = 0.558
    tokens_exponent: float = -0.32
    width_exponent: float = -0.5

    def factors(self, *, d_model: float, recurrences: int, batch_tokens: float, tokens: float) -> dict[str, float]:
        """What each kind's rate is multiplied with at another point.

        Parameters
        ----------
        d_model, recurrences : width and r
        batch_tokens, tokens : B and D, tokens
        """
        reference = self.tokens if recurrences == 1 else self.tokens_looped
        batch = (batch_tokens / self.batch_tokens) ** self.batch_exponent
        horizon = (tokens / reference) ** self.tokens_exponent
        width = (d_model / self.d_model) ** self.width_exponent
        return {
            "matrix": batch * horizon,
            "embedding": batch * width,
            "head": batch * width,
            "gain": width,
            "lane": width,
        }


RULES = {
    "paper": RateRule(
        matrix=0.014,
        embedding=0.3,
        head=0.004,
        gain=0.005,
        lane=0.01,
        batch_tokens=2**18,
        d_model=640,
        tokens=983.3e6,
        tokens_looped=1016.1e6,
    ),
    "desk": RateRule(
        matrix=0.02,
        embedding=0.06,
        head=0.03,
        gain=0.012,
        lane=0.01,
        batch_tokens=1024,
        d_model=64,
        tokens=2**18,
        tokens_looped=2**18,
    ),
}
"""``paper``: the recipe's own. ``desk``: measured on byte-level models of width 64 (benchmarks/rates.py), moved by the
same exponents."""
