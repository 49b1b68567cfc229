"""`bayeslaw fit`: sample the posterior of the law from the runs of a source, or make a point fit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from bayeslaw.cli.lists import Integer
from bayeslaw.cli.output import keep_input, note, print_json
from bayeslaw.errors import EXIT_DIAGNOSTICS, EXIT_OK, FitError, UsageError
from bayeslaw.files import require_writable

SAMPLER = {"draws": 1000, "tune": 1000, "chains": 4, "target_accept": 0.95}
"""Defaults of the flags that only sampling has."""

app = App(name="fit", help="Sample the posterior of the law from the runs of a source.")


@app.default
def fit(
    source: str,
    /,
    *,
    recipe: str | None = None,
    where: str | None = None,
    law: Literal["additive", "coupled", "chinchilla"] | None = None,
    map: Literal["power", "none", "full", "bounded", "log", "hill", "unrolled", "free"] | None = None,
    deviation: Literal["on", "off"] | None = None,
    drift: Literal["on", "off"] | None = None,
    noise: Literal["iid", "cells"] = "iid",
    outliers: Literal["gaussian", "student"] | None = None,
    error_scale: Literal["constant", "compute"] = "constant",
    pool: Annotated[list[str] | None, Parameter(negative="")] = None,
    pool_sensitivity: Annotated[bool, Parameter(negative="")] = False,
    point: Literal["huber", "ls"] | None = None,
    injection_in: Literal["once", "rec", "nowhere", "regression"] = "once",
    out: Path | None = None,
    draws: Integer = 1000,
    tune: Integer = 1000,
    chains: Integer = 4,
    target_accept: float = 0.95,
    seed: Integer = 0,
    allow_prior_dominated: Annotated[bool, Parameter(negative="")] = False,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Sample the posterior of the law from the runs of a source, or make a point fit.

    Without --law the model is the default one: the coupled law and the power map with a deviation for each r, Student
    errors, and a drift beyond the largest trained budget. A named law is fitted as it is, without deviation and drift
    and with Gaussian errors, but for what other flags say.

    Exit code 3 says that the sampler's diagnostics failed, or that a point fit ended at no optimum: the answer is shown
    but not to be relied on.

    Parameters
    ----------
    source
        A shipped data set's name, a CSV or Parquet file, mlflow:EXPERIMENT or a journal folder.
    recipe
        Fit this recipe only; the r = 1 runs serve every recipe.
    where
        Use only the runs for which this holds, such as "budget >= 1e18 and recurrences in (1, 4)".
    law
        The loss law: size and data terms added; coupled, (A N_eff^-alpha + B D^-beta)^k with k free; or a plain law for
        each architecture (recipe and r) by its own N.
    map
        What r recurrences are worth; default power (r^phi). unrolled counts r times all of N, free has an exponent for
        each r.
    deviation
        Whether log g(r) deviates from the map by a number of its own for each r; not with --map free.
    drift
        Whether log loss may drift away from the law beyond the largest trained budget; changes forecasts only.
    noise
        How errors of different runs relate: iid, or cells for an effect shared by each cell (recipe, budget, r). Rows
        of one training run always share one.
    outliers
        Error distribution on log loss: gaussian, or student (4 degrees of freedom) where single runs may be off.
    error_scale
        Whether the scale of the errors may change with compute.
    pool
        NAME=MODE or NAME=MODE:FACTOR: a parameter (E, A, B, alpha, beta, k, phi, ...) shared, partial or separate, by
        recipe (default), source or architecture; repeat the flag for several. By default the map's parameters are
        partial, all others shared.
    pool_sensitivity
        Fit again with other scales of partial pooling and without any, and show what changes.
    point
        A point fit (of the additive law, if none is named) instead of the posterior: Huber loss (delta .001) or least
        squares on log loss; without priors, known errors (loss_se) and group effects.
    injection_in
        Where the injection's parameters count: with N_once, with N_rec, nowhere, or by the published split (a line of N
        over 1 / r for each width).
    out
        Write the whole fit to this NetCDF file.
    draws
        Kept draws per chain.
    tune
        Warm-up draws per chain.
    chains
        Number of chains.
    seed
        Random seed.
    target_accept
        Acceptance rate that the step size aims at; nearer to 1 where there are divergences.
    allow_prior_dominated
        Go on with fewer runs than free parameters.
    tracking_uri
        MLflow store of an mlflow:EXPERIMENT source; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    json
        Print one JSON object.
    """
    started = time.perf_counter()
    settings: dict[str, Any] = {
        "law": law, "map": map, "deviation": _switch(deviation), "drift": _switch(drift), "noise": noise,
        "outliers": outliers, "error_scale": error_scale,
        "pooling": _pooling(pool or []), "injection_in": injection_in, "recipe": recipe, "draws": draws, "tune": tune,
        "chains": chains, "target_accept": target_accept, "seed": seed,
    }  # fmt: skip
    keep_input(out, source)
    if out is not None:
        _keep_other(out)
        require_writable(out, error=FitError)
    if point is not None:
        return _point(
            source, point, settings, where=where, tracking_uri=tracking_uri, out=out, sensitivity=pool_sensitivity,
            prior_dominated=allow_prior_dominated, json=json,
        )  # fmt: skip
    from bayeslaw.cli.answers import as_answer, show
    from bayeslaw.diagnostics import check
    from bayeslaw.fit import fit as sample
    from bayeslaw.runs import load_runs

    imported = time.perf_counter() - started
    table = load_runs(source, where=where, recipe=recipe, tracking_uri=tracking_uri)
    report_table(table)
    if pool_sensitivity:
        from bayeslaw.pooling import pooling_sensitivity, require_pooled

        require_pooled(table, **settings)
    result = sample(table, allow_prior_dominated=allow_prior_dominated, progress=note, **settings)
    for text in result.attrs["notes"][len(table.notes) :]:
        note(f"note: {text}")
    if out is not None:
        result.save(out)
        note(f"wrote {out}")
    verdict = check(result)
    sensitivity = None
    if pool_sensitivity:
        sensitivity = pooling_sensitivity(table, progress=note, allow_prior_dominated=allow_prior_dominated, **settings)
    if json:
        answer = as_answer(result, verdict)
        if sensitivity is not None:
            answer["pool_sensitivity"] = sensitivity.to_dict("records")
        answer["seconds"]["import"] += imported
        answer["seconds"]["total"] = time.perf_counter() - started
        print_json(answer)
    else:
        show(result, verdict, sensitivity)
    for message in verdict.messages:
        note(f"warning: {message}")
    return EXIT_OK if verdict.passed else EXIT_DIAGNOSTICS


def _switch(value: str | None) -> bool | None:
    """What on, off or nothing means."""
    return None if value is None else value == "on"


def _keep_other(out: Path) -> None:
    """Make sure that the fit takes the place of no file but a fit."""
    if out.is_file() and out.stat().st_size and not out.read_bytes()[:8].startswith(b"\x89HDF"):
        raise UsageError(
            f"--out {out} exists and is no fit", allowed="a new name, or that of an older fit", do="rename it"
        )
    if out.suffix.lower() in (".csv", ".parquet"):
        raise UsageError(
            f"--out {out}: a fit is a NetCDF file", allowed="a name such as fit.nc", do="choose another --out"
        )


def _pooling(texts: list[str]) -> dict[str, str]:
    """The pooling that ``--pool NAME=MODE`` flags mean."""
    for text in texts:
        if text.count("=") != 1 or text.startswith("="):
            raise UsageError(f"--pool {text}", allowed="NAME=MODE or NAME=MODE:FACTOR, such as E=separate:source")
    pooling = dict(text.split("=") for text in texts)
    if len(pooling) < len(texts):
        raise UsageError(f"--pool names a parameter twice: {', '.join(texts)}", allowed="each parameter once")
    return pooling


def _point(
    source: str, loss: str, settings: dict[str, Any], *, where: str | None, tracking_uri: str | None, out: Path | None,
    sensitivity: bool, prior_dominated: bool, json: bool,
) -> int:  # fmt: skip
    """A point fit: no posterior, no file."""
    posterior_only = {
        "--noise": settings["noise"] != "iid",
        "--outliers": settings["outliers"] == "student",
        "--deviation": bool(settings["deviation"]),
        "--drift": bool(settings["drift"]),
        "--error-scale": settings["error_scale"] != "constant",
        "--pool": bool(settings["pooling"]),
        "--out": out is not None,
        "--pool-sensitivity": sensitivity,
        "--allow-prior-dominated": prior_dominated,
        **{f"--{name}".replace("_", "-"): settings[name] != default for name, default in SAMPLER.items()},
    }
    if given := [flag for flag, present in posterior_only.items() if present]:
        raise UsageError(
            f"--point {loss} with {', '.join(given)}",
            allowed="--law, --map, --recipe, --where, --injection-in, --seed, --json",
            do="leave --point out: these are settings of the posterior",
        )  # fmt: skip
    from bayeslaw.point.fit import Status, point_fit
    from bayeslaw.runs import load_runs

    table = load_runs(source, where=where, recipe=settings["recipe"], tracking_uri=tracking_uri)
    report_table(table)
    chosen = {name: settings[name] for name in ("map", "injection_in", "recipe", "seed")}
    chosen["law"] = settings["law"] or "additive"
    result = point_fit(table, loss=loss, **chosen)
    if json:
        print_json(result.as_dict())
    else:
        print(result)
    for message in result.messages[len(table.notes) :]:
        note(f"warning: {message}")
    return EXIT_DIAGNOSTICS if result.status is Status.NOT_OPTIMUM else EXIT_OK


def report_table(table: Any) -> None:
    """Tell on stderr what the run table holds, leaves out and warns of."""
    note(f"{len(table.runs)} runs from {table.source}")
    if len(table.excluded):
        reasons = table.excluded["reason"].value_counts()
        note("; ".join(f"left out {count}: {reason}" for reason, count in reasons.items()))
    for text in table.notes:
        note(f"note: {text}")
