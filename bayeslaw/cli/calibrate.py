"""`bayeslaw calibrate`: try a model's posterior on data simulated from the model itself."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from bayeslaw.cli.fit import report_table
from bayeslaw.cli.lists import Integer
from bayeslaw.cli.output import note, own, print_json, print_table
from bayeslaw.errors import EXIT_DIAGNOSTICS, EXIT_OK

WIDTH = 80

PAGE, SUMMARY = "calibration.html", "summary.json"

app = App(name="calibrate", help="Try a model's posterior on data simulated from the model itself.")


@app.default
def calibrate(
    source: str = "isodepth",
    /,
    *,
    simulations: Integer = 1000,
    recipe: str | None = None,
    where: str | None = None,
    law: Literal["additive", "coupled", "chinchilla"] | None = None,
    map: Literal["power", "none", "full", "bounded", "log", "hill", "unrolled", "free"] | None = None,
    deviation: Literal["on", "off"] | None = None,
    noise: Literal["iid", "cells"] = "iid",
    outliers: Literal["gaussian", "student"] | None = None,
    error_scale: Literal["constant", "compute"] = "constant",
    injection_in: Literal["once", "rec", "nowhere", "regression"] = "once",
    out: Path | None = None,
    jobs: Integer = 1,
    draws: Integer = 700,
    tune: Integer = 300,
    chains: Integer = 2,
    target_accept: float = 0.98,
    seed: Integer = 0,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Try a model's posterior on data simulated from the model itself.

    Each simulation draws parameters from the prior and losses of all runs of the design from the model, samples the
    posterior of these losses, and notes where the truth lies in it. Over many simulations a 90 % interval must hold the
    truth 90 times in a hundred, and the truth's ranks must be uniform: of the parameters (a and b are the exponents of
    single terms, k alpha and k beta), and of g(r), of L*, the least loss for 1e20 FLOPs, and of N*, the best size for
    1e19 FLOPs, both of the law alone in the published iso-depth family. The drift beyond the largest budget is no part
    of it: it comes on top of forecasts.

    Exit code 3 says that some quantity is not calibrated; a calibrated one fails each of its four checks with a
    probability of .003.

    Parameters
    ----------
    source
        The design, whose losses do not matter: a shipped data set's name, a CSV or Parquet file, mlflow:EXPERIMENT or a
        journal folder.
    simulations
        How many, 10 or more; 1000 tell a coverage to .01-.02 (standard error), and fewer than 200 show gross errors
        only.
    recipe
        The design's runs of this recipe only, with the r = 1 runs that serve it.
    where
        Only the runs for which this holds, such as "budget >= 1e18".
    law
        The loss law; without it the default model, as in `bayeslaw fit`.
    map
        What r recurrences are worth; default power.
    deviation
        Whether log g(r) deviates from the map by a number of its own for each r.
    noise
        How errors of different runs relate.
    outliers
        Error distribution on log loss.
    error_scale
        Whether the scale of the errors may change with compute.
    injection_in
        Where the injection's parameters count, see `bayeslaw fit`.
    out
        Keep every simulation in this folder, with summary.json and calibration.html. Run again after an interruption,
        or with more --simulations, it goes on from there.
    jobs
        Processes.
    draws
        Kept draws per chain.
    tune
        Warm-up draws per chain.
    chains
        Number of chains.
    target_accept
        Acceptance rate that the step size aims at.
    seed
        Random seed; with the number of a simulation it decides all draws.
    tracking_uri
        MLflow store of an mlflow:EXPERIMENT source.
    json
        Print one JSON object.
    """
    from bayeslaw.calibration.simulations import simulations_of
    from bayeslaw.calibration.trials import Calibration, summed
    from bayeslaw.runs import load_runs
    from bayeslaw.spec import Spec

    spec = Spec.of(
        law=law, map=map, deviation=None if deviation is None else deviation == "on", noise=noise, outliers=outliers,
        error_scale=error_scale, injection_in=injection_in, recipe=recipe, draws=draws, tune=tune, chains=chains,
        target_accept=target_accept, seed=seed,
    )  # fmt: skip
    table = load_runs(source, where=where, recipe=recipe, tracking_uri=tracking_uri)
    report_table(table)
    calibration = Calibration.of(table, spec)
    records = simulations_of(calibration, simulations, out=out, jobs=jobs, progress=note)
    result = summed(calibration.settings, records)
    if out is not None:
        _write(result, out)
        note(f"wrote {out / PAGE}")
    if json:
        print_json(result.as_dict())
    else:
        show(result)
    return EXIT_OK if result.passed else EXIT_DIAGNOSTICS


def _write(result: Any, out: Path) -> None:
    """The summary and the page of a finished calibration."""
    import json

    from bayeslaw.cli.output import plain
    from bayeslaw.errors import FitError
    from bayeslaw.files import written_whole
    from bayeslaw.schema import SCHEMA_VERSION

    answer = plain({"schema_version": SCHEMA_VERSION, **result.as_dict()})
    with written_whole(out / SUMMARY, error=FitError) as partial:
        partial.write_text(json.dumps(answer, indent=1) + "\n")
    own("reports.calibration").write_calibration(result, out / PAGE)


def show(result: Any) -> None:
    """Print a calibration as a table and sentences for people."""
    bands = [f"{part.low:.2f}-{part.high:.2f}" for part in next(iter(result.quantities.values())).coverage]
    rows = [
        (
            quantity.name, *(f"{part.share:.3f}" for part in quantity.coverage), f"{quantity.p:.3f}",
            "ok" if quantity.passed else f"off: {', '.join(quantity.faults)}",
        )
        for quantity in result.quantities.values()
    ]  # fmt: skip
    print_table(
        ("truths held by", "50 %", "80 %", "90 %", "p of ranks", ""), [*rows, ("allowed", *bands, ">= .003", "")]
    )
    for sentence in result.sentences:
        print("\n".join(textwrap.wrap(sentence, WIDTH, break_long_words=False, break_on_hyphens=False)))
