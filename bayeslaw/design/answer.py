"""What a design says: the runs, how much each is expected to help, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.design.aims import Aim
from bayeslaw.design.candidates import Possible
from bayeslaw.design.detection import Detection

Array = NDArray[np.float64]

HARDLY = 0.05
"""The rest of the purse is called not worth it when it would take less than this share off what is left."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """Runs to train next.

    Parameters
    ----------
    aims : tuple of Aim
    purse : float
        FLOPs.
    considered : int
        Candidates that were looked at.
    runs : tuple of Possible
        In the order in which they are best trained.
    after : ndarray, shape (aim, run + 1)
        Measure of each aim (`Aim.measure`) now and after each run.
    alone : ndarray, shape (run,)
        What each run by itself would take off the sd, as a share; of several aims off their root mean square, of a
        regret off the spread of the losses that it hangs on.
    next : Possible or None
        The run of the greatest gain per FLOP: the one to train where the law is fitted again after each run.
    single : Possible or None
        The best single run for the purse; None where none helps.
    after_single : ndarray, shape (aim,)
    endless : tuple of (float or None)
        Sd of each aim after endless runs of every candidate; None for a regret.
    enough : int
        Runs after which the rest takes less than `HARDLY` off what is left.
    detection : Detection or None
    notes : tuple of str
    """

    aims: tuple[Aim, ...]
    purse: float
    considered: int
    runs: tuple[Possible, ...]
    after: Array
    alone: Array
    next: Possible | None
    single: Possible | None
    after_single: Array
    endless: tuple[float | None, ...]
    enough: int
    detection: Detection | None
    notes: tuple[str, ...]

    @property
    def flops(self) -> float:
        """Of all runs."""
        return float(sum(run.flops for run in self.runs))

    def as_dict(self) -> dict[str, Any]:
        """The answer of ``design --json``."""
        return {
            "about": [
                {
                    "quantity": aim.text, "measure": aim.measure, "now": float(path[0]),
                    "after": float(path[-1]), "after_best_single": float(single), "after_endless": floor,
                }
                for aim, path, single, floor in zip(
                    self.aims, self.after, self.after_single, self.endless, strict=True
                )
            ],
            "purse": self.purse,
            "flops": self.flops,
            "candidates": self.considered,
            "runs": [
                {
                    **run.as_dict(), "alone": float(self.alone[i]),
                    "after": {
                        aim.text: float(path[i + 1]) for aim, path in zip(self.aims, self.after, strict=True)
                    },
                }
                for i, run in enumerate(self.runs)
            ],
            "next": None if self.next is None else self.next.as_dict(),
            "best_single": None if self.single is None else self.single.as_dict(),
            "stop_after": self.enough,
            "detection": None if self.detection is None else self.detection.as_dict(),
            "notes": list(self.notes),
        }  # fmt: skip

    def sentences(self) -> list[str]:
        """What to do, in words."""
        if not self.runs:
            return ["No run is proposed."]
        out = []
        for aim, path, single, floor in zip(self.aims, self.after, self.after_single, self.endless, strict=True):
            these = "this run" if len(self.runs) == 1 else f"these {len(self.runs)} runs"
            text = (
                f"{aim.text}: {aim.measure} {path[0]:.3g} now, expected to be {path[-1]:.3g} after {these} of "
                f"{self.flops:.3g} FLOPs; the best single run would leave {single:.3g}"
            )
            if floor is not None and floor > path[-1] / 2:
                text += f", and endless runs of these candidates {floor:.3g}"
            out.append(f"{text}.")
        if not self.enough:
            out.append(f"Hardly worth it: all of them together take less than {100 * HARDLY:.0f} % off.")
        elif self.enough < len(self.runs):
            out.append(
                f"Stop after run {self.enough}: what comes after it takes less than {100 * HARDLY:.0f} % off what is "
                "then left."
            )
        if self.next is not None and self.enough:
            one = self.next
            out.append(
                f"If you fit again after each run, train {one.recipe} with r = {one.recurrences}, width {one.d_model} "
                f"and {one.tokens:.4g} tokens next: it takes the most off for each FLOP."
            )
        if self.detection is not None:
            out.append(str(self.detection))
        return out
