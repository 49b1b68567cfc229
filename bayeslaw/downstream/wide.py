"""Scores of an evaluation table side by side: a column a task, and the mean of their axis."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from bayeslaw.errors import NoRunsError, RunTableError
from bayeslaw.evaluations import AXIS_MEAN


def require_columns(table: pd.DataFrame, names: Iterable[str]) -> None:
    """Make sure that an evaluation table has what is asked of it.

    Raises
    ------
    RunTableError
        Columns are missing.
    NoRunsError
        It has no row.
    """
    names = tuple(names)
    if missing := [name for name in names if name not in table]:
        raise RunTableError(f"evaluation table without {', '.join(missing)}", allowed=f"columns {', '.join(names)}")
    if table.empty:
        raise NoRunsError("evaluation table without rows", do="evaluate checkpoints first: bayeslaw eval RUN")


def side_by_side(rows: pd.DataFrame, *, index: str, score: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of the tasks of one axis with their standard errors, and where there are several tasks their plain mean.

    Parameters
    ----------
    rows : pandas.DataFrame
        Of one axis; each value of ``index`` and task once.
    index : str
        The column whose values become the rows.
    score : str
        ``task_loss`` or ``accuracy``.

    Returns
    -------
    value, se : pandas.DataFrame
        One column a task, and `AXIS_MEAN` first where there are several: the mean where all of them are known, else
        what the table itself has for it, with the standard error of independent tasks. NaN where not known.
    """
    value = rows.pivot(index=index, columns="task", values=score)
    error = f"{score}_se"
    se = rows.pivot(index=index, columns="task", values=error) if error in rows else value * float("nan")
    tasks = [task for task in value if task != AXIS_MEAN]
    if len(tasks) > 1:
        mean, mean_se = value[tasks].mean(axis=1, skipna=False), (se[tasks] ** 2).sum(axis=1, skipna=False) ** 0.5
        mean_se /= len(tasks)
        if AXIS_MEAN in value:
            mean, mean_se = mean.fillna(value.pop(AXIS_MEAN)), mean_se.fillna(se.pop(AXIS_MEAN))
        value.insert(0, AXIS_MEAN, mean)
        se.insert(0, AXIS_MEAN, mean_se)
    return value, se
