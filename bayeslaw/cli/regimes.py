"""`bayeslaw regimes`: task losses against validation loss, and what looping changes beyond it."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from bayeslaw.cli.compare import WIDTH, titled
from bayeslaw.cli.lists import Integer, Texts
from bayeslaw.cli.output import note, own, print_json, printable, require_page
from bayeslaw.errors import EXIT_DIAGNOSTICS, EXIT_OK, BayeslawError, UsageError
from bayeslaw.evaluations import MOST_NATS
from bayeslaw.version import __version__

TITLES = {
    "ranking": "how well metrics tell architectures apart at a budget",
    "saturation": "loss over r at test time, L_inf + Z exp(-z T / r)",
}

app = App(name="regimes", help="Say on which axes looping loses or gains beyond its validation loss.")


@app.default
def regimes(
    source: str,
    /,
    *,
    delta: float | None = None,
    effect: float | None = None,
    where: str | None = None,
    axes: Annotated[list[str] | None, Texts] = None,
    out: Path | None = None,
    draws: Integer = 1000,
    seed: Integer = 0,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Say on which axes looping loses or gains beyond its validation loss, and what the evaluations could tell.

    Task losses are modelled as monotone curves of validation loss, one an axis's task, with an effect of every looped
    architecture. An axis tracks validation loss where the effect is within delta, closes the gap where it is below
    -delta, falls behind where it is above delta, each from a probability of .95 on; else there is no signal where the
    data could not have told an effect of delta, or it is undecided.

    Parameters
    ----------
    source
        isodepth-downstream, a CSV or Parquet file of an evaluation table, a run directory or a folder of them, or
        mlflow:EXPERIMENT.
    delta
        Effects below it are none to speak of, in nats per token; default 0.02.
    effect
        Say what it would take for this effect to show, in nats per token; default delta.
    where
        Use only the rows for which this holds, such as "budget >= 1e18".
    axes
        Axes to analyse, such as knowledge,reading; default all that there are.
    out
        Write the result as one HTML page that opens without a network.
    draws
        Kept draws per chain.
    seed
        Random seed.
    tracking_uri
        MLflow store of an mlflow:EXPERIMENT source.
    json
        Print one JSON object.
    """
    require_page(out, source)
    for name, value in (("delta", delta), ("effect", effect)):
        if value is not None and not 0 < value <= MOST_NATS:
            raise UsageError(f"--{name} {value:g}", allowed=f"nats per token, above 0 to {MOST_NATS:g}, such as 0.02")
    if draws < 100:
        raise UsageError(f"--draws {draws}", allowed="a whole number, 100 or more")
    from bayeslaw.downstream.regimes import regimes as analysed
    from bayeslaw.downstream.table import load_evaluations
    from bayeslaw.downstream.verdicts import DELTA

    table = load_evaluations(source, where=where, tracking_uri=tracking_uri)
    note(str(table))
    found = analysed(
        table, delta=DELTA if delta is None else delta, effect=effect, axes=axes, draws=draws, seed=seed, progress=note
    )
    for text in found.notes:
        note(f"note: {text}")
    for text in found.messages:
        note(f"warning: {text}")
    if out is not None:
        made = {
            "command": _command(
                source, delta=delta, effect=effect, where=where, axes=axes, out=out, draws=draws, seed=seed,
                tracking_uri=tracking_uri,
            ),
            "data": str(table), "seed": str(seed), "draws": f"{draws} a chain", "version": f"bayeslaw {__version__}",
        }  # fmt: skip
        own("reports.downstream").write_downstream(found, out, made=made)
        note(f"wrote {out}")
    further = _further(table)
    if json:
        print_json(found.as_dict() | {"seed": seed} | {name: each.as_dict() for name, each in further.items()})
    else:
        _show(found)
        for name, each in further.items():
            print(f"\n{TITLES[name]}\n{each}")
    return EXIT_OK if found.passed else EXIT_DIAGNOSTICS


def _further(table: Any) -> dict[str, Any]:
    """How well metrics tell architectures apart; how losses go with r at test time, where there are several."""
    import pandas as pd

    from bayeslaw.downstream.discrimination import metric_ranking
    from bayeslaw.downstream.saturation import saturation

    every = pd.concat([table.rows, table.others], ignore_index=True)
    made: dict[str, Any] = {}
    for name, make in (("ranking", lambda: metric_ranking(table.rows)), ("saturation", lambda: saturation(every))):
        if name == "saturation" and table.others.empty:
            continue
        try:
            made[name] = make()
        except BayeslawError as error:
            note(f"no {name}: {error}")
    return made


def _show(found: Any) -> None:
    """Sentences first, then the tables."""
    for sentence in found.sentences:
        print(textwrap.fill(printable(sentence), WIDTH, break_long_words=False, break_on_hyphens=False))
    print()
    for title, (header, rows) in found.tables().items():
        titled(title, header, rows)


def _command(source: str, **flags: Any) -> str:
    """The command line that gives the same page again; what was not given is left out."""
    words = ["bayeslaw", "regimes", source]
    for name, value in flags.items():
        if value is not None:
            said = ",".join(value) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", said]
    return shlex.join(words)
