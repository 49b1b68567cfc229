"""The runs that can be trained next: whole batches at trainable widths, where the law was tried or nearly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayeslaw.architecture import WIDTH_UNIT, Architecture
from bayeslaw.errors import DecisionError, UsageError
from bayeslaw.family import Family
from bayeslaw.inputs import NEAR
from bayeslaw.origins import budget_levels
from bayeslaw.posterior import Fit
from bayeslaw.schema import STEP

WIDER = 1.4
"""Widths go so far beyond the largest trained one."""

ROUNDING = 1.01
"""Tokens per parameter may lie so far outside the trained ones: batches are whole."""

MOST = 600
"""Candidates that are looked at; where there are more, fewer widths are."""


@dataclass(frozen=True, kw_only=True)
class Possible:
    """A run that could be trained.

    Parameters
    ----------
    recipe : str
    architecture : Architecture
    tokens : int
    budget : float
        FLOPs aimed at.
    replicates : str or None
        The trained run that has the same configuration.
    seed : int
        One that no run of the same configuration had.
    """

    recipe: str
    architecture: Architecture
    tokens: int
    budget: float
    replicates: str | None
    seed: int

    @property
    def recurrences(self) -> int:
        """r."""
        return self.architecture.recurrences

    @property
    def d_model(self) -> int:
        """Width."""
        return int(self.architecture.d_model)

    @property
    def n_unique(self) -> int:
        """Unique parameters."""
        return round(self.architecture.n_unique)

    @property
    def flops(self) -> float:
        """Training FLOPs of its whole batches."""
        return float(self.tokens) * self.architecture.flops_per_token

    @property
    def cell(self) -> str:
        """The cell, named as `bayeslaw.inputs` names it."""
        return f"{self.recipe}/{self.budget:.4g}/r={self.recurrences:g}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "recipe": self.recipe, "recurrences": self.recurrences, "d_model": self.d_model,
            "width_scale": self.d_model / WIDTH_UNIT, "n_unique": self.n_unique, "tokens": self.tokens,
            "budget": self.budget, "flops": self.flops, "replicates": self.replicates, "seed": self.seed,
        }  # fmt: skip


def candidates(
    fit: Fit,
    families: Mapping[str, Family],
    *,
    recipes: Sequence[str],
    purse: float,
    recurrences: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    budgets: Sequence[float] | None = None,
) -> tuple[Possible, ...]:
    """Runs to choose from.

    Every recipe at every trained r, at widths from the smallest trained one to `WIDER` times the largest, at the
    trained budgets and one step beyond them, as far as the purse reaches and tokens per parameter lie within those
    trained for that r. At r = 1 all recipes are the same network, and its runs are the baseline's.

    Parameters
    ----------
    fit : Fit
    families : mapping of str to Family
        Of every recipe, and of the baseline (or the only recipe).
    recipes : sequence of str
    purse : float
        FLOPs.
    recurrences, widths, budgets : sequence, optional
        Only these. An r need not have been trained.

    Raises
    ------
    UsageError
        A value that cannot be trained.
    DecisionError
        None is left; says why.
    """
    anchor = fit.choose_recipe(None)
    levels = sorted(set(budgets or _budgets(fit)))
    loops = sorted(set(recurrences or (int(r) for r in fit.runs["recurrences"].unique() if r == int(r))))
    pairs = dict.fromkeys((anchor if r == 1 else recipe, r) for recipe in recipes for r in loops)
    trained = _trained(fit, anchor)
    thinning = 0
    while True:
        thinning += 1
        left: Counter[str] = Counter()
        found = []
        for recipe, r in pairs:
            family = families[recipe]
            per_parameter = fit.range_of("tokens_per_parameter", r)
            for width in sorted(set(widths or _widths(fit, family)[::thinning])):
                if width < 1 or width % family.width_step:
                    raise UsageError(f"--widths {width}", allowed=f"multiples of {family.width_step}, the head size")
                for budget in levels:
                    run = _possible(recipe, family, r, width, budget, trained)
                    if run.flops > purse:
                        left["would cost more than the purse"] += 1
                    elif not per_parameter[0] / ROUNDING <= run.tokens / run.n_unique <= per_parameter[1] * ROUNDING:
                        left["would see more or fewer tokens per parameter than were tried"] += 1
                    else:
                        found.append(run)
        if len(found) <= MOST or widths:
            break
    if not found:
        raise DecisionError(
            f"of {left.total()} runs none can be trained for a purse of {purse:.3g} FLOPs: "
            + "; ".join(f"{count} {reason}" for reason, count in left.items()),
            allowed=f"runs of {levels[0]:.3g} FLOPs or more, and tokens per parameter as they were trained",
            do="raise --purse, or give other --widths, --budgets or --recurrences",
        )
    return tuple(found)


def _possible(
    recipe: str, family: Family, r: int, width: int, budget: float, trained: Mapping[Any, list[dict[str, Any]]]
) -> Possible:
    member = family.architecture(width, r)
    tokens = member.tokens_for(budget, batch_tokens=family.batch_tokens)
    same = [row for row in trained.get((recipe, r, width), []) if _again(row, budget, tokens)]
    seeds = [int(row["seed"]) for row in same if row.get("seed") is not None and row["seed"] == row["seed"]]
    return Possible(
        recipe=recipe,
        architecture=member,
        tokens=tokens,
        budget=budget,
        replicates=str(same[0]["run_id"]) if same else None,
        seed=max(seeds, default=0) + 1 if same else 0,
    )


def _again(row: Mapping[str, Any], budget: float, tokens: int) -> bool:
    """Whether a trained run has the same aim, as `bayeslaw.inputs` sees it."""
    aimed = row.get("budget")
    if aimed is not None and aimed == aimed:
        return bool(np.isclose(aimed, budget, rtol=1e-6))
    return bool(1 / NEAR <= row["tokens"] / tokens <= NEAR)


def _trained(fit: Fit, anchor: str) -> dict[Any, list[dict[str, Any]]]:
    """The trained runs by recipe (at r = 1 the anchor), r and width."""
    names = ("recipe", "recurrences", "d_model", "tokens", "budget", "run_id", "seed")
    columns = [name for name in names if name in fit.runs]
    out: dict[Any, list[dict[str, Any]]] = {}
    for row in fit.runs[columns].to_dict("records"):
        recipe = anchor if row["recurrences"] == 1 else row["recipe"]
        out.setdefault((recipe, row["recurrences"], row["d_model"]), []).append({str(k): v for k, v in row.items()})
    return out


def _budgets(fit: Fit) -> list[float]:
    """The trained budgets, and one step beyond the largest."""
    flops = fit.runs["flops"].to_numpy(dtype=float)
    aimed = fit.runs["budget"].to_numpy(dtype=float) if "budget" in fit.runs else np.full(len(flops), np.nan)
    if np.isfinite(aimed).all():
        levels = sorted(set(aimed.tolist()))
    else:
        level = budget_levels(flops)
        levels = [float(np.exp(np.log(flops[level == each]).mean())) for each in range(level.max() + 1)]
    return [*levels, levels[-1] * STEP]


def _widths(fit: Fit, family: Family) -> list[int]:
    """Trainable widths, as far as widths were trained and somewhat beyond."""
    trained = fit.runs["d_model"].astype(float)
    most = int(WIDER * trained.max() // family.width_step)
    step = family.width_step
    return [step * n for n in range(max(1, int(trained.min() // step)), most + 1)]
