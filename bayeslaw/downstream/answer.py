"""What is found of every axis, as tables, sentences and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeslaw.downstream.effects import ComputeEffect
from bayeslaw.downstream.model import Diagnostics
from bayeslaw.downstream.priors import RegimePriors
from bayeslaw.downstream.seeds import More
from bayeslaw.downstream.table import EvaluationTable
from bayeslaw.downstream.verdicts import BEHIND, CLOSES, NO_SIGNAL, TRACKS, UNDECIDED, Estimate, Verdict
from bayeslaw.evaluations import AXES

Array = NDArray[np.float64]
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True, eq=False)
class Curve:
    """The curve of one axis at r = 1, and its checkpoints.

    Parameters
    ----------
    loss : ndarray, shape (grid,)
        Validation loss, nats per token.
    band : ndarray, shape (3, grid)
        5 % quantile, mean and 95 % quantile of the mean task loss at r = 1.
    points : DataFrame
        ``run_id, architecture, loss, task_loss``: checkpoints with all tasks, or with the axis's mean.
    """

    loss: Array
    band: Array
    points: pd.DataFrame


@dataclass(frozen=True, eq=False, kw_only=True)
class AxisRegime:
    """What is found of one axis.

    Parameters
    ----------
    axis : str
    tasks : tuple of str
    checkpoints : int
    verdicts : tuple of Verdict
        Of the looped architectures of each recipe together, then of each architecture.
    compute : tuple of ComputeEffect
        At matched compute.
    more : More
        What would tell a stated effect.
    noise : dict of str to Estimate
        omega, sigma and rho, see `bayeslaw.downstream.model`.
    slope : Estimate
        Mean slope of the tasks at the mean validation loss.
    curve : Curve
    diagnostics : Diagnostics
    """

    axis: str
    tasks: tuple[str, ...]
    checkpoints: int
    verdicts: tuple[Verdict, ...]
    compute: tuple[ComputeEffect, ...]
    more: More
    noise: Mapping[str, Estimate]
    slope: Estimate
    curve: Curve
    diagnostics: Diagnostics

    @property
    def main(self) -> tuple[Verdict, ...]:
        """The verdict on each recipe: of its looped architectures together, or of the only one."""
        return tuple(verdict for verdict in self.verdicts if verdict.pooled) or self.verdicts[:1]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Regimes:
    """Regimes of all axes; prints as sentences and tables of at most 80 columns.

    Parameters
    ----------
    table : EvaluationTable
    axes : tuple of AxisRegime
    delta : float
        Effects below it are none to speak of, nats per token.
    effect : float
        The effect that `AxisRegime.more` is about, nats per token.
    priors : RegimePriors
    notes : tuple of str
        What is left out, and what the numbers rest on.
    """

    table: EvaluationTable
    axes: tuple[AxisRegime, ...]
    delta: float
    effect: float
    priors: RegimePriors
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the sampler can be trusted on every axis."""
        return all(one.diagnostics.passed for one in self.axes)

    @property
    def messages(self) -> tuple[str, ...]:
        """What is wrong with the sampler, by axis."""
        return tuple(
            f"{one.axis}: {d.divergences} divergences, least effective sample size {d.ess:.0f}, R-hat {d.r_hat:.3f}"
            for one in self.axes
            if not (d := one.diagnostics).passed
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a person reads first."""
        return tuple(_sentence(one, verdict, self.delta) for one in self.axes for verdict in one.main)

    def tables(self) -> dict[str, Table]:
        """Title to (header, rows), all texts."""
        verdicts: list[tuple[str, ...]] = []
        compute: list[tuple[str, ...]] = []
        noise: list[tuple[str, ...]] = []
        for one in self.axes:
            verdicts += [
                (one.axis, v.architecture, v.effect.text, f"{v.p_tracks:.2f}", f"{v.p_closes:.2f}", f"{v.p_behind:.2f}",
                 f"{v.resolvable:.3f}")
                for v in one.verdicts
            ]  # fmt: skip
            compute += [
                (one.axis, c.architecture, f"{c.budget:.3g}" if c.budget else "all", c.effect.text) for c in one.compute
            ]
            scales = (f"{one.noise[name].mean:.3f}" for name in ("omega", "sigma", "rho"))
            noise.append((one.axis, str(len(one.tasks)), str(one.checkpoints), f"{one.slope.mean:.2f}", *scales))
        return {
            "effect at matched validation loss (nats, 90 %), less r = 1": (
                ("axis", "looped", "effect", "tracks", "closes", "behind", "least"), verdicts,
            ),
            "effect at matched compute (nats, 90 %), less r = 1": (("axis", "looped", "FLOPs", "effect"), compute),
            "what it rests on: slope, and noise of a checkpoint, of a task, of r": (
                ("axis", "tasks", "checkpoints", "slope", "omega", "sigma", "rho"), noise,
            ),
        }  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """All of it, for ``--json``."""
        return {
            "source": self.table.source,
            "data_hash": self.table.data_hash,
            "delta": self.delta,
            "effect": self.effect,
            "axes": [
                {
                    "axis": one.axis, "tasks": one.tasks, "checkpoints": one.checkpoints,
                    "matched_loss": [asdict(verdict) for verdict in one.verdicts],
                    "matched_compute": [asdict(effect) for effect in one.compute],
                    "more_seeds": asdict(one.more), "slope": asdict(one.slope),
                    "noise": {name: asdict(value) for name, value in one.noise.items()},
                    "diagnostics": asdict(one.diagnostics) | {"passed": one.diagnostics.passed},
                }
                for one in self.axes
            ],
            "sentences": self.sentences,
            "notes": self.notes,
            "passed": self.passed,
        }  # fmt: skip


_SAID = {
    TRACKS: "tracks validation loss ({who} within {delta:g} nats of r = 1 at matched validation loss)",
    CLOSES: "closes the gap ({who} more than {delta:g} nats below r = 1 at matched validation loss)",
    BEHIND: "falls behind ({who} more than {delta:g} nats above r = 1 at matched validation loss)",
    NO_SIGNAL: "no signal ({who}; these runs could not tell an effect of {delta:g} nats)",
    UNDECIDED: "undecided ({who} on either side of {delta:g} nats)",
}


def _sentence(one: AxisRegime, verdict: Verdict, delta: float) -> str:
    """One axis in words: verdict, effect, and what would tell more."""
    who = f"{verdict.architecture} models together" if verdict.pooled else verdict.architecture
    what = _SAID[verdict.verdict].format(who=who, delta=delta)
    text = (
        f"{AXES[one.axis].capitalize()}: {what}. Effect {verdict.effect.text}; P(tracks) {verdict.p_tracks:.2f}, "
        f"P(closes) {verdict.p_closes:.2f}, P(behind) {verdict.p_behind:.2f}."
    )
    return text if verdict.verdict in (TRACKS, CLOSES, BEHIND) else f"{text} {one.more.sentence}"
