"""`bayeslaw fit`: sample the posterior of the law from the runs of a source."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from bayeslaw.cli.output import keep_input, note, print_json, print_table
from bayeslaw.errors import EXIT_DIAGNOSTICS, EXIT_OK, FitError
from bayeslaw.files import require_writable

if TYPE_CHECKING:
    from bayeslaw.diagnostics import CheckResult
    from bayeslaw.fit import Fit

app = App(name="fit", help="Sample the posterior of the law from the runs of a source.")

SUMMARY = ("mean", "sd", "q05", "q50", "q95", "ess_bulk", "ess_tail", "r_hat")


@app.default
def fit(
    source: str,
    /,
    *,
    recipe: str | None = None,
    where: str | None = None,
    law: Literal["additive"] = "additive",
    noise: Literal["iid"] = "iid",
    outliers: Literal["gaussian", "student"] = "gaussian",
    injection_in: Literal["once", "rec", "nowhere"] = "once",
    out: Path | None = None,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    target_accept: float = 0.95,
    seed: int = 0,
    allow_prior_dominated: Annotated[bool, Parameter(negative="")] = False,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Sample the posterior of the law from the runs of a source.

    Exit code 3 says that the sampler's diagnostics failed: the answer is shown but not to be relied on.

    Parameters
    ----------
    source
        A shipped data set's name, a CSV or Parquet file, mlflow:EXPERIMENT or a journal folder.
    recipe
        Fit this recipe only; the r = 1 runs serve every recipe.
    where
        Use only the runs for which this holds, such as "budget >= 1e18 and recurrences in (1, 4)".
    law
        The loss law.
    noise
        How errors of different runs relate.
    outliers
        Error distribution on log loss: gaussian, or student (4 degrees of freedom) where single runs may be off.
    injection_in
        Where the injection's parameters count: with N_once, with N_rec, or nowhere.
    out
        Write the whole fit to this NetCDF file.
    draws, tune, chains, seed
        Kept and warm-up draws per chain, number of chains, random seed.
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
    from bayeslaw.diagnostics import check
    from bayeslaw.fit import fit as sample
    from bayeslaw.runs import load_runs

    imported = time.perf_counter() - started
    keep_input(out, source)
    if out is not None:
        require_writable(out, error=FitError)
    table = load_runs(source, where=where, recipe=recipe, tracking_uri=tracking_uri)
    report_table(table)
    result = sample(
        table, law=law, noise=noise, outliers=outliers, injection_in=injection_in, recipe=recipe, draws=draws,
        tune=tune, chains=chains, target_accept=target_accept, seed=seed, allow_prior_dominated=allow_prior_dominated,
        progress=note,
    )  # fmt: skip
    if out is not None:
        result.save(out)
        note(f"wrote {out}")
    verdict = check(result)
    if json:
        answer = as_answer(result, verdict)
        answer["seconds"]["import"] += imported
        answer["seconds"]["total"] = time.perf_counter() - started
        print_json(answer)
    else:
        show(result, verdict)
    for message in verdict.messages:
        note(f"warning: {message}")
    return EXIT_OK if verdict.passed else EXIT_DIAGNOSTICS


def report_table(table: Any) -> None:
    """Tell on stderr what the run table holds, leaves out and warns of."""
    note(f"{len(table.runs)} runs from {table.source}")
    if len(table.excluded):
        reasons = table.excluded["reason"].value_counts()
        note("; ".join(f"left out {count}: {reason}" for reason, count in reasons.items()))
    for text in table.notes:
        note(f"note: {text}")


def as_answer(result: Fit, verdict: CheckResult) -> dict[str, Any]:
    """The object that ``fit --json`` prints."""
    from bayeslaw.diagnostics import phi_differences

    rows = {str(name): {key: row[key] for key in SUMMARY} for name, row in verdict.parameters.iterrows()}
    by_recipe = {recipe: rows[f"phi[{recipe}]"] for recipe in result.recipes}
    several = len(by_recipe) > 1
    names = ["alpha", "beta", "E", "A", "B", "sigma", "size", "data"]
    if several:
        names += ["phi_mean", "phi_spread"]
    record = result.attrs
    answer = {
        "source": record["source"],
        "n_runs": len(result.runs),
        "law": result.spec.law,
        "noise": result.spec.noise,
        "outliers": result.spec.outliers,
        "injection_in": result.spec.injection_in,
        "parameters": {
            "phi": by_recipe if several else by_recipe[result.recipes[0]],
            **{name: rows[name] for name in names},
        },
        "diagnostics": verdict.as_dict(),
        "data_hash": record["data_hash"],
        "excluded": record["excluded"],
        "versions": record["versions"],
        "seconds": record["seconds"],
    }
    if several:
        answer["phi_difference"] = phi_differences(result)
    return answer


def show(result: Fit, verdict: CheckResult) -> None:
    """Print the posterior as a table for people."""
    from bayeslaw.diagnostics import phi_differences

    law_rows = verdict.parameters.drop(index=[n for n in ("size", "data") if n in verdict.parameters.index])
    print_table(
        ("", "mean", "sd", "5 %", "50 %", "95 %", "ESS", "R-hat"),
        (
            (str(name), *(f"{row[key]:.4g}" for key in SUMMARY[:5]), f"{row['ess_bulk']:.0f}", f"{row['r_hat']:.3f}")
            for name, row in law_rows.iterrows()
        ),
    )
    for recipe in result.recipes:
        draws = result.draws(recipe)["phi"]
        label = f" ({recipe})" if len(result.recipes) > 1 else ""
        print(f"phi{label}: P(< 1) = {(draws < 1).mean():.3f}, P(> 0) = {(draws > 0).mean():.3f}")
    for recipe, row in phi_differences(result).items():
        span = f"{row['q05']:+.3f} to {row['q95']:+.3f}"
        print(f"phi ({recipe}) less that of the baseline: {row['mean']:+.3f} ({span}), P(> 0) = {row['p_gt_0']:.3f}")
