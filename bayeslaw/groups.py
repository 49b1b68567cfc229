"""Which effects of groups of runs a fit has."""

from __future__ import annotations

import numpy as np

from bayeslaw.errors import FitError
from bayeslaw.inputs import Inputs
from bayeslaw.spec import Spec


def group_effects(inputs: Inputs, spec: Spec) -> tuple[str, ...]:
    """Levels of group effects, lowest first: "run" where a training run has several rows, "cell" where asked for.

    Raises
    ------
    FitError
        Cells cannot be told from the table, or not from the runs in them; or two levels under Student errors.
    """
    effects = ["run"] if len(inputs.run.levels) < len(inputs.loss) else []
    if spec.noise == "cells":
        if inputs.cell is None:
            raise FitError(
                "--noise cells needs the budget of every run, and this table lacks it", allowed="iid",
                do="add the column budget, or leave --noise out",
            )  # fmt: skip
        if len(inputs.cell.levels) == len(inputs.run.levels):
            raise FitError(
                "--noise cells with one run in every cell (recipe, budget, r)", allowed="iid",
                do="leave --noise out: cell effects and errors cannot be told apart",
            )  # fmt: skip
        pairs = np.unique(np.column_stack([inputs.run.index, inputs.cell.index]), axis=0)
        if len(pairs) > len(inputs.run.levels):
            crossed = inputs.run.levels[int(pairs[np.flatnonzero(np.diff(pairs[:, 0]) == 0)[0], 0])]
            raise FitError(
                f"training run {crossed} has rows in several cells (recipe, budget, r)",
                allowed="rows of one training run share recipe, budget and r",
                do="give its checkpoints one budget, or leave --noise out",
            )
        effects.append("cell")
    if spec.outliers == "student" and len(effects) > 1:
        raise FitError(
            "student errors with both run and cell effects", allowed="one of the two effects",
            do="use --outliers gaussian, or keep one row for each training run",
        )  # fmt: skip
    return tuple(effects)
