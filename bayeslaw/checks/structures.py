"""The same runs under every structure and convention that a careful person would try: what an answer hangs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslaw.checks.cards import OK, WARNING, CheckCard, NotApplicableError
from bayeslaw.diagnostics import check
from bayeslaw.errors import BayeslawError
from bayeslaw.fit import fit as sample
from bayeslaw.posterior import Fit
from bayeslaw.predict import interval
from bayeslaw.runs import RunTable
from bayeslaw.schema import INJECTION_IN
from bayeslaw.spec import STRUCTURES, Spec
from bayeslaw.worth import worth

Array = NDArray[np.float64]

SPREAD = 0.1
"""Difference of phi between structures, or between ways of counting, from which on an answer needs its context."""

CERTAIN = 0.995
"""A probability from here on is told as certain."""

TITLE = "The answer under each structure and way of counting"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one recipe's recurrences are worth under one structure and convention.

    Parameters
    ----------
    structure, injection_in, recipe : str
    by : str
        "fit" for the fit in hand, "structure" or "convention" for what was changed about it.
    phi : ndarray, shape (sample,), or None
        None where the map has no phi.
    worth : ndarray, shape (sample,), or None
        g at the largest r.
    recurrences : float
        That r.
    converged : bool
    reason : str
        Why there is no answer; empty where there is one.
    """

    structure: str
    injection_in: str
    recipe: str
    by: str
    phi: Array | None = None
    worth: Array | None = None
    recurrences: float = 1.0
    converged: bool = False
    reason: str = ""

    @property
    def answer(self) -> Array | None:
        """phi, or the average exponent log g / log r at the largest r."""
        if self.phi is not None or self.worth is None:
            return self.phi
        return np.log(self.worth) / np.log(self.recurrences)  # type: ignore[no-any-return]

    def texts(self) -> tuple[str, ...]:
        """Structure, convention, recipe, then the answer: mean, 90 % interval, P(< 1), P(> 0); dashes without one."""
        if self.answer is None:
            return (self.structure, self.injection_in, self.recipe, *("–",) * 5)
        summary = interval(self.answer)
        return (
            self.structure, self.injection_in, self.recipe, *(f"{summary[key]:.3f}" for key in ("mean", "q05", "q95")),
            f"{(self.answer < 1).mean():.3f}", f"{(self.answer > 0).mean():.3f}",
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        out = {key: value for key, value in asdict(self).items() if key not in ("phi", "worth")}
        out["phi"] = None if self.phi is None else interval(self.phi)
        out["p_lt_1"] = None if self.answer is None else float((self.answer < 1).mean())
        out["p_gt_0"] = None if self.answer is None else float((self.answer > 0).mean())
        out["worth"] = None if self.worth is None else interval(self.worth)
        return out


def refits(fit: Fit, *, progress: Callable[[str], None] = lambda message: None) -> tuple[Row, ...]:
    """The fit's runs under `STRUCTURES`, by its own convention, and under its own structure by every convention.

    Parameters
    ----------
    fit : Fit
    progress : callable
        Told in a few words what is being done.

    Returns
    -------
    tuple of Row, the fit's own first; what a table cannot have is there with its reason.
    """
    table = RunTable(
        runs=fit.runs, source=fit.attrs["source"], excluded=fit.runs.iloc[:0][["run_id"]].assign(reason=""), notes=(),
        where=fit.attrs["where"],
    )  # fmt: skip
    sampler = {name: getattr(fit.spec, name) for name in ("recipe", "draws", "tune", "chains", "target_accept", "seed")}
    chosen = {
        name: {**settings, "injection_in": fit.spec.injection_in, **sampler} for name, settings in STRUCTURES.items()
    }
    same = (name for name in chosen if replace(Spec.of(**chosen[name]), drift=fit.spec.drift) == fit.spec)
    title = next(same, "this fit")
    rows = list(_rows(fit, title, "fit"))
    for name, settings in chosen.items():
        if name != title:
            progress(f"structure: {name}")
            rows += _refit(fit, table, name, "structure", settings)
    own = {key: value for key, value in asdict(fit.spec).items() if value is not None}
    for convention in _conventions(fit):
        progress(f"injection counted in: {convention}")
        rows += _refit(fit, table, title, "convention", {**own, "drift": False, "injection_in": convention})
    return tuple(rows)


def _conventions(fit: Fit) -> Iterator[str]:
    """The other conventions, where the runs can be counted by them and a count changes."""
    if fit.spec.law == "chinchilla" or not (fit.runs["n_injection"] > 0).any():
        return
    for convention in INJECTION_IN:
        wide = "d_model" in fit.runs and fit.runs["d_model"].notna().all()
        if convention != fit.spec.injection_in and (wide or convention != "regression"):
            yield convention


def _refit(fit: Fit, table: RunTable, name: str, by: str, settings: dict[str, Any]) -> Iterator[Row]:
    # Nobody forecasts with these fits: their drift would cost time and change nothing.
    settings = {**settings, **({"drift": False} if "law" not in settings else {})}
    try:
        yield from _rows(sample(table, allow_prior_dominated=True, **settings), name, by)
    except BayeslawError as error:
        for recipe in fit.recipes:
            yield Row(
                structure=name, injection_in=settings["injection_in"], recipe=recipe, by=by,
                reason=str(error).split("\n", maxsplit=1)[0],
            )  # fmt: skip


def _rows(fit: Fit, name: str, by: str) -> Iterator[Row]:
    converged = check(fit).passed
    for recipe in fit.recipes:
        of_r = worth(fit, recipe=recipe)
        top = max(of_r) if of_r else 1.0
        yield Row(
            structure=name,
            injection_in=fit.spec.injection_in,
            recipe=recipe,
            by=by,
            phi=fit.draws(recipe, names=["phi"])["phi"] if "phi" in fit.law.parameters else None,
            worth=of_r.get(top),
            recurrences=top,
            converged=converged,
        )


def structures_card(rows: tuple[Row, ...]) -> CheckCard:
    """The table with its reading in one line, from what `refits` gives."""
    told = [row for row in rows if row.answer is not None]
    if not any(row.by == "structure" for row in told) or not any(row.recurrences > 1 for row in told):
        raise NotApplicableError("these runs say nothing about recurrence under any structure")
    recipes = list(dict.fromkeys(row.recipe for row in told))
    parts, spreads, signs = [], [], []
    for recipe in recipes:
        own = [row for row in told if row.recipe == recipe]
        ranges = {by: [float(np.mean(_answer(row))) for row in own if row.by in ("fit", by)] for by in
                  ("structure", "convention")}  # fmt: skip
        whose = f"{recipe}: " if len(recipes) > 1 else ""
        name = "phi" if any(row.phi is not None for row in own) else "log g / log r"
        part = f"{whose}{name} is {min(ranges['structure']):.2f} to {max(ranges['structure']):.2f} by structure"
        if len(ranges["convention"]) > 1:
            part += f" and {min(ranges['convention']):.2f} to {max(ranges['convention']):.2f} by counting"
        parts.append(f"{part}; {_sides(own)}")
        spreads.append(max(np.ptp(values) for values in ranges.values()))
        signs.append(_crosses(own))
    spread = max(spreads)
    failed = [row for row in told if not row.converged]
    skipped = list(dict.fromkeys(f"{row.structure} left out: {row.reason}" for row in rows if row.reason))
    reading = "; ".join([*parts, *skipped])
    if failed:
        names = dict.fromkeys(f"{row.structure}, {row.injection_in}" for row in failed)
        reading += f"; the sampler did not converge for {', '.join(names)}"
    warns = bool(spread > SPREAD or any(signs))
    return CheckCard(
        name="structures",
        title=TITLE,
        verdict=WARNING if warns else OK,
        value=float(spread),
        threshold=SPREAD,
        weight=float(spread / SPREAD),
        reading=reading,
        advice="never quote one interval of phi without its structure; rank by matched loss and by g(r) first"
        if warns
        else "",
        header=(
            "structure",
            "injection in",
            "recipe",
            "phi",
            "5 %",
            "95 %",
            "P(< 1)",
            "P(> 0)",
            "g(r)",
            "r",
            "converged",
        ),
        rows=tuple(_texts(row) for row in rows),
        arrays={
            "labels": [f"{row.structure}{'' if row.by == 'structure' else ', ' + row.injection_in}" for row in told],
            "recipes": [row.recipe for row in told],
            "quantiles": np.array([np.quantile(_answer(row), [0.05, 0.5, 0.95]) for row in told]),
        },
    )


def _answer(row: Row) -> Array:
    answer = row.answer
    assert answer is not None
    return answer


def _sides(rows: list[Row]) -> str:
    """On which side of 1 and of 0 the answers lie."""
    told = []
    for side, shares in (
        ("under 1", [float((_answer(row) < 1).mean()) for row in rows]),
        ("above 0", [float((_answer(row) > 0).mean()) for row in rows]),
    ):
        if min(shares) >= CERTAIN:
            told.append(f"all are {side}")
        elif max(shares) <= 1 - CERTAIN:
            told.append(f"none is {side}")
        else:
            told.append(f"P({side}) is {min(shares):.2f} to {max(shares):.2f}")
    return " and ".join(told)


def _crosses(rows: list[Row]) -> bool:
    """Whether structures disagree about the side of 0 or of 1 by their means."""
    means = [float(_answer(row).mean()) for row in rows]
    return any(min(means) < edge < max(means) for edge in (0.0, 1.0))


def _texts(row: Row) -> tuple[str, ...]:
    """A row of the card's table."""
    worth = "–" if row.worth is None else f"{row.worth.mean():.3f}"
    state = row.reason or ("no exponent" if row.answer is None else "yes" if row.converged else "no")
    return (*row.texts(), worth, f"{row.recurrences:g}", state)
