"""Columns that can be computed from others: widths, counts, names and FLOPs; what is also given is compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.architecture import WIDTH_UNIT, Architecture
from bayeslaw.errors import RunTableError, UsageError
from bayeslaw.rows import Rows
from bayeslaw.schema import COUNTS, PARTITION, run_name

_DESIGN = (
    *("recurrences", "d_model", "prelude_layers", "shared_layers", "coda_layers", "injection", "backprop_recurrences"),
    *("seq_len", "vocab_size", "n_shared"),
)
"""Columns that make an architecture; n_shared tells the lanes of hyperconnections."""


def completed(rows: Rows, runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """What can be computed, computed; what is both given and computed, compared."""
    runs = _with_width(rows, runs.copy())
    designs = _architectures(rows, runs)
    for name in COUNTS:
        counts = {id(design): math.nan if design is None else float(getattr(design, name)) for design in designs}
        computed = np.array([counts[id(design)] for design in designs])
        given = runs[name].to_numpy() if name in runs else np.full(len(runs), np.nan)
        wrong = ~np.isnan(given) & ~np.isnan(computed) & (given != computed)
        if wrong.any():
            first = int(wrong.argmax())
            reason = _convention(name, given[first], designs[first])
            rows.refuse(
                name,
                wrong,
                f"is {{}}, but its architecture has {computed[first]:.0f} ({reason})",
                allowed="embedding and head left out, norm gains included, the shared block once, the injection apart",
                do=f"correct {name}, or leave it out: it is computed; if the network is built otherwise, leave out "
                f"{', '.join(PARTITION)}",
            )
        runs[name] = np.where(np.isnan(given), computed, given)
    runs["n_injection"] = runs["n_injection"].fillna(0.0)
    total = (runs["n_once"] + runs["n_shared"] + runs["n_injection"]).to_numpy()
    unique = runs["n_unique"].to_numpy()
    wrong = ~np.isnan(unique) & ~np.isnan(total) & (unique != total)
    problem = "is {}, not the sum of n_once, n_shared and n_injection"
    rows.refuse("n_unique", wrong, problem, do="correct one of them; an injection's parameters are n_injection")
    runs["n_unique"] = np.where(np.isnan(unique), total, unique)
    runs["run_id"] = _run_ids(runs)
    return _with_flops(rows, runs, designs)


def _with_width(rows: Rows, runs: pd.DataFrame) -> pd.DataFrame:
    """d_model and width_scale from each other."""
    if not {"d_model", "width_scale"} & set(runs):
        return runs
    width = runs.get("d_model", pd.Series(np.nan, index=runs.index))
    scale = runs.get("width_scale", pd.Series(np.nan, index=runs.index))
    wrong = width.notna() & scale.notna() & ~np.isclose(width, WIDTH_UNIT * scale, rtol=1e-3)
    rows.refuse("width_scale", wrong.to_numpy(), "is {}, which is not d_model / 64", do="leave one of the two out")
    width = width.fillna(WIDTH_UNIT * scale)
    rows.refuse("width_scale", (width % 1 > 0).to_numpy(), "is {}: 64 times it is no whole width")
    return runs.assign(d_model=width, width_scale=scale.fillna(width / WIDTH_UNIT))


def _architectures(rows: Rows, runs: pd.DataFrame) -> list[Architecture | None]:
    """The architecture of each row; one object for all rows that have it."""
    values = [runs[name].tolist() if name in runs else [math.nan] * len(runs) for name in _DESIGN]
    made: dict[tuple[str, ...], Architecture | None] = {}
    designs = []
    for index, cells in enumerate(zip(*values, strict=True)):
        key = tuple(map(repr, cells))  # a missing value equals no other, its text does
        if key not in made:
            made[key] = _architecture(rows, index, dict(zip(_DESIGN, cells, strict=True)))
        designs.append(made[key])
    return designs


def _architecture(rows: Rows, index: int, row: Mapping[Any, Any]) -> Architecture | None:
    """The architecture of a row, None where it is not known. Unknown context and vocabulary become 1 each."""
    r = row.get("recurrences", math.nan)
    names = ("d_model", "prelude_layers", "shared_layers", "coda_layers")
    if any(pd.isna(row.get(name, math.nan)) for name in names) or pd.isna(r) or r != int(r):
        return None
    injection = row.get("injection", math.nan)
    if pd.isna(injection):
        if r > 1:
            return None
        injection = "none"
    kept = row.get("backprop_recurrences", math.nan)
    d, *layers = (int(row[name]) for name in names)
    seq_len, vocab_size = (row.get(name, math.nan) for name in ("seq_len", "vocab_size"))
    lanes = 2
    if injection == "hyperconnections" and r > 1:
        # K lanes add r (K^2 + 2 K) = r ((K + 1)^2 - 1) parameters to the shared block: any whole K is a network.
        extra = (row.get("n_shared", math.nan) - layers[1] * (12 * d**2 + 2 * d)) / r
        if extra >= 3 and math.sqrt(extra + 1) % 1 == 0:
            lanes = int(math.sqrt(extra + 1)) - 1
    try:
        return Architecture(
            d_model=d,
            prelude_layers=layers[0],
            shared_layers=layers[1],
            coda_layers=layers[2],
            recurrences=int(r),
            seq_len=1 if math.isnan(seq_len) else int(seq_len),
            vocab_size=1 if math.isnan(vocab_size) else int(vocab_size),
            injection=str(injection),
            backprop_recurrences=None if math.isnan(kept) else int(kept),
            lanes=lanes,
        )
    except UsageError as error:
        bad = np.arange(len(rows.labels)) == index
        raise RunTableError(f"{rows.source}, {rows.at(bad)}: {error.what}", allowed=error.allowed) from error


def _convention(name: str, given: float, design: Architecture | None) -> str:
    """The counting convention that would explain a count."""
    assert design is not None
    d, r = design.d_model, design.recurrences
    layers = {
        "n_once": design.prelude_layers + design.coda_layers,
        "n_shared": design.shared_layers,
        "n_injection": 0,
        "n_unique": design.prelude_layers + design.shared_layers + design.coda_layers,
    }[name]
    model_norms = 3 * d if name in ("n_once", "n_unique") else 0
    counted = getattr(design, name)
    embedding = d * design.vocab_size
    changes = {
        "embedding included": embedding,
        "embedding and head included": 2 * embedding,
        "injection included": design.n_injection if name in ("n_once", "n_shared") else 0,
        "injection left out": -design.n_injection if name in ("n_injection", "n_unique") else 0,
        "the shared block counted once for each recurrence": (r - 1) * design.n_shared,
    }
    norms = {"": 0, "norms left out": -(layers * 2 * d + model_norms), "model norms left out": -model_norms}
    for norm, less in norms.items():
        for change, more in {"": 0, **changes}.items():
            if counted + less + more == given:
                return f"{' and '.join(filter(None, (change, norm)))}?"
    if counted and abs(given / counted - 1) < 0.005:
        return "rounded?"
    return "no counting convention known here explains the difference"


def _run_ids(runs: pd.DataFrame) -> list[str]:
    """The given run_ids; the others named by their design, or row-1, row-2, ... where designs coincide."""
    given = runs["run_id"] if "run_id" in runs else pd.Series([None] * len(runs))
    if given.notna().all():
        return list(given)
    names = [f"row-{number}" for number in range(1, len(runs) + 1)]
    design = ["recipe", "recurrences", "width_scale", "budget"]
    if set(design) <= set(runs) and runs[design].notna().all(axis=None):
        seeds = runs["seed"] if "seed" in runs else pd.Series([math.nan] * len(runs))
        columns = zip(*(runs[name] for name in design), seeds, strict=True)
        by_design = [run_name(a, r, s, c, None if pd.isna(seed) else int(seed)) for a, r, s, c, seed in columns]
        names = by_design if len(set(by_design)) == len(by_design) else names
    return [name if pd.isna(run_id) else run_id for run_id, name in zip(given, names, strict=True)]


def _with_flops(
    rows: Rows, runs: pd.DataFrame, designs: list[Architecture | None]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """flops_per_token and flops completed; notes where what is given differs from what is computed."""
    unknown = pd.Series(np.nan, index=runs.index)
    rates = {id(design): math.nan if design is None else float(design.flops_per_token) for design in designs}
    own = pd.Series([rates[id(design)] for design in designs], index=runs.index)
    own = own.where(runs.get("seq_len", unknown).notna() & runs.get("vocab_size", unknown).notna())
    tokens, rate, flops = runs["tokens"], runs.get("flops_per_token", unknown), runs.get("flops", unknown)
    notes = _difference(rows, rate, own, "flops_per_token differs from that of the architecture")
    # In float64: the product passes the largest int64 at 9.2e18 FLOPs.
    rate = rate.fillna(own).fillna(flops / tokens)
    notes += _difference(rows, flops, tokens * rate, "flops differs from tokens x flops_per_token")
    completed = {"flops_per_token": rate, "flops": flops.fillna(tokens * rate)}
    return runs.assign(**{name: values for name, values in completed.items() if values.notna().any()}), notes


def _difference(rows: Rows, given: pd.Series[float], computed: pd.Series[float], problem: str) -> tuple[str, ...]:
    off = (given / computed - 1).abs()
    wrong = (off > 1e-3).to_numpy()
    return (f"{problem} by up to {off.max():.1%} ({rows.at(wrong)})",) if wrong.any() else ()
