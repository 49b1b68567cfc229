"""`fit` samples the posterior of the law from a run table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.drift import draw_drift
from bayeslaw.errors import FitError, UsageError
from bayeslaw.inputs import Inputs, inputs_of
from bayeslaw.likelihood import log_likelihood, named, predictive, sample_prior
from bayeslaw.posterior import Fit
from bayeslaw.priors import DEFAULT, Priors
from bayeslaw.runs import RunTable, load_runs
from bayeslaw.schema import SCHEMA_VERSION
from bayeslaw.spec import Spec
from bayeslaw.structure import LEAST_ERROR, Structure, free_parameters, structure_of
from bayeslaw.version import versions

PRIOR_DRAWS = 2000


def fit(
    source: RunTable | pd.DataFrame | str | Path,
    *,
    priors: Priors = DEFAULT,
    allow_prior_dominated: bool = False,
    progress: Callable[[str], None] = lambda message: None,
    **settings: Any,
) -> Fit:
    """Sample the posterior of the law.

    A process that has fitted a table fits the next one of the same structure without compiling.

    Parameters
    ----------
    source : RunTable, DataFrame, str or Path
        A run table, or what `bayeslaw.load_runs` reads one from.
    priors : Priors
    allow_prior_dominated : bool
        Go on with fewer runs than free parameters; the prior then carries the answer.
    progress : callable
        Told in a few words what is being done.
    **settings
        Of the `Spec`, filled up by `Spec.of`: law, map, deviation, drift, noise, outliers, error_scale, pooling,
        injection_in, recipe, draws, tune, chains, target_accept, seed.

    Returns
    -------
    Fit

    Raises
    ------
    UsageError
        A setting cannot be meant.
    FitError
        Fewer runs than free parameters, or the table lacks what a setting needs.
    """
    unknown = sorted(set(settings) - {field.name for field in fields(Spec)})
    if unknown:
        raise UsageError(f"fit has no setting {', '.join(unknown)}", allowed=", ".join(f.name for f in fields(Spec)))
    spec = Spec.of(**settings)
    table = source if isinstance(source, RunTable) else load_runs(source, recipe=spec.recipe)
    inputs = inputs_of(table.runs, injection_in=spec.counted_in)
    structure = structure_of(inputs, spec, priors)
    free = free_parameters(structure.blocks)
    rows = len(inputs.run.levels)
    if rows < free and not allow_prior_dominated:
        raise FitError(
            f"{rows} runs for {free} free parameters",
            allowed=f"{free} runs or more",
            do="add runs, or pass --allow-prior-dominated to see what the prior makes of them",
        )

    seconds: dict[str, float] = {}
    last = time.perf_counter()

    def timed(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[stage] = now - last
        last = now

    progress("loading PyMC")
    from bayeslaw import sampling

    timed("import")
    sampled = sampling.sample(structure, inputs, priors, spec, progress=progress, timed=timed)

    rng = np.random.default_rng(spec.seed)
    posterior = named(sampled["posterior"].to_dataset()["theta"].values, structure, inputs)
    prior = named(sample_prior(structure, priors, PRIOR_DRAWS, rng)[None], structure, inputs)
    groups = {
        "posterior": posterior,
        "prior": prior,
        "sample_stats": sampled["sample_stats"].to_dataset()[["diverging", "depth", "n_steps", "energy", "step_size"]],
        "log_likelihood": log_likelihood(posterior, structure, inputs),
        "posterior_predictive": predictive(posterior, structure, inputs, rng),
        "prior_predictive": predictive(prior, structure, inputs, rng),
        "observed_data": xr.Dataset({"log_loss": ("run", inputs.log_loss)}),
        "constant_data": xr.Dataset(
            {name: ("run", getattr(inputs, name)) for name in ("n_once", "n_rec", "recurrences", "tokens", "recipe")}
        ).rename(recipe="recipe_index"),
    }
    timed("predictive")
    edge: dict[str, Any] = {}
    if spec.drift:
        from bayeslaw.origins import origins

        progress("learning the drift beyond the largest budget from rolling origins")
        found = origins(structure, inputs, priors, seed=spec.seed)
        groups["drift"] = draw_drift(
            found, priors, np.unique(inputs.recurrences), chains=spec.chains, draws=spec.draws, seed=spec.seed
        )
        edge = {"edge": float(inputs.flops.max()), "origins": [origin.as_dict() for origin in found]}
        timed("drift")
    ids = table.runs["run_id"].astype(str).to_numpy(dtype=object)
    groups = {name: group.assign_coords(run=ids) if "run" in group.dims else group for name, group in groups.items()}
    record = {
        "schema_version": SCHEMA_VERSION,
        "source": table.source,
        "where": table.where,
        "data_hash": table.data_hash,
        "spec": asdict(spec),
        "recipes": inputs.recipes,
        "map_levels": structure.law.map.levels,
        "effects": structure.effects,
        "drift": edge,
        "priors": priors.as_dict(),
        "centre": {
            **dict(zip(("n_eff", "tokens"), inputs.centre, strict=True)),
            "flops": float(np.exp(np.log(inputs.flops).mean())),
        },
        "versions": versions("numpy", "pandas", "xarray", "pymc", "pytensor", "nutpie", "numba", "arviz"),
        "seconds": seconds,
        "excluded": table.excluded.to_dict("records"),
        "notes": [*table.notes, *_notes(structure, inputs)],
    }
    tree = xr.DataTree.from_dict(groups)
    tree.attrs["record"] = json.dumps(record)
    return Fit(data=tree, runs=table.runs, spec=spec)


def _notes(structure: Structure, inputs: Inputs) -> list[str]:
    """What a fit decided by itself."""
    notes = []
    if "run" in structure.effects:
        sizes = np.bincount(inputs.run.index)
        several = sizes[sizes > 1]
        notes.append(
            f"{several.sum()} rows belong to {len(several)} training runs or configurations with several rows each: "
            "they share an effect (tau_run) and are not counted as independent"
        )
    if structure.resolution == LEAST_ERROR:
        notes.append(
            "fewer runs than free parameters: the prior carries the answer, and errors of log loss are taken to be at "
            f"least {LEAST_ERROR:g}"
        )
    return notes
