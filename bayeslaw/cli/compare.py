"""`bayeslaw compare`: laws, recurrence maps and recipes side by side."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from bayeslaw.cli.fit import report_table
from bayeslaw.cli.lists import Integer, Texts
from bayeslaw.cli.output import note, own, print_json, printable, require_page, table_lines
from bayeslaw.errors import UsageError
from bayeslaw.schema import BASELINE
from bayeslaw.version import __version__

WIDTH = 80

app = App(name="compare", help="Hold laws, recurrence maps and recipes side by side.")


@app.default
def compare(
    source: str,
    /,
    *,
    against: str | None = None,
    laws: Annotated[list[str] | None, Texts] = None,
    maps: Annotated[list[str] | None, Texts] = None,
    recipe: str | None = None,
    where: str | None = None,
    injection_in: Literal["once", "rec", "nowhere", "regression"] = "once",
    flops: float | None = None,
    leave: Annotated[list[str] | None, Texts] = None,
    out: Path | None = None,
    draws: Integer = 1000,
    seed: Integer = 0,
    tracking_uri: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Hold laws, recurrence maps and recipes side by side.

    Models are judged by how well they predict runs that they have not seen: each run from all the others (PSIS-LOO),
    groups of runs left out in turn, and the runs of higher budgets from those of lower ones. Recipes are judged by runs
    that differ in nothing else, and by what a recurrence is worth under several models.

    Without --laws and --maps the models are the additive law, the coupled law, the default model, and the maps power,
    bounded, hill and free under the coupled law with Student errors; where there are several recipes the first three.

    Parameters
    ----------
    source
        A shipped data set's name, a CSV or Parquet file, mlflow:EXPERIMENT or a journal folder.
    against
        Compare your recipes with the baseline of this source, such as isodepth, the shipped one. Without an r = 1 run
        of your own its r = 1 runs serve.
    laws
        Laws to compare (additive, coupled, chinchilla), each with every map; default additive and coupled.
    maps
        Recurrence maps to compare (power, none, full, bounded, log, hill, unrolled, free); default power.
    recipe
        Use this recipe only, with the r = 1 runs that serve it.
    where
        Use only the runs for which this holds, such as "budget >= 1e18".
    injection_in
        Where the injection's parameters count, see `bayeslaw fit`.
    flops
        Training budget in FLOPs at which recipes are compared, each at its own best; default the largest trained one.
    leave
        Groups left out in turn: cell (recipe, budget and r), budget, both, or none. Default both for one recipe and
        none for several.
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
    _check(flops, leave, out, source)
    from bayeslaw.compare.models import chosen_models, compare_models, default_models
    from bayeslaw.compare.parts import LEAVE
    from bayeslaw.runs import load_runs

    wanted = chosen_models(laws, maps) if laws or maps else None
    table = load_runs(source, where=where, recipe=recipe, tracking_uri=tracking_uri)
    doubts: tuple[str, ...] = ()
    if against is not None:
        from bayeslaw.compare.against import joined

        both = joined(table, load_runs(against))
        table, doubts = both.table, both.doubts
    report_table(table)
    for text in doubts:
        note(f"warning: {text}")
    looped = table.runs[table.runs["recurrences"] > 1]
    several = bool(looped["recipe"].nunique() > 1)
    if flops is not None and not several:
        raise UsageError(
            f"--flops {flops:g} with one recipe", allowed="a table of several recipes, or --against",
            do="leave --flops out; `bayeslaw allocate` recommends for a budget",
        )  # fmt: skip
    if several and BASELINE not in set(looped["recipe"]):
        note(
            f"note: none of the recipes is called {BASELINE!r}, so they are not compared: give one that name, or add "
            "the shipped one by --against isodepth"
        )
        several = False
    if wanted is None:
        wanted = default_models(looped=not looped.empty, recipes=several)
        if looped.empty:
            note("note: no run loops, so the maps all say the same and are left out")
    chosen = leave or (["none"] if several else ["both"])
    groups = {"both": LEAVE, "none": ()}.get(chosen[0], tuple(chosen))
    found = compare_models(
        table, wanted, leave=groups, progress=note, injection_in=injection_in, draws=draws, seed=seed
    )  # fmt: skip
    for text in found.notes:
        note(f"note: {text}")
    recipes = None
    if several:
        from bayeslaw.compare.recipes import compare_recipes

        recipes = compare_recipes(
            table, flops=flops, draws=draws, seed=seed, injection_in=injection_in, progress=note
        )  # fmt: skip
    if out is not None:
        made = {
            "command": _command(
                source, against=against, laws=laws, maps=maps, recipe=recipe, where=where, injection_in=injection_in,
                flops=flops, leave=leave, out=out, draws=draws, seed=seed, tracking_uri=tracking_uri,
            ),
            "data": f"{len(table.runs)} runs of {table.source}",
            "data hash": table.data_hash,
            "seed": str(seed),
            "draws": f"{draws} a chain of every fit to all runs",
            "injection": injection_in,
            "version": f"bayeslaw {__version__}",
        }  # fmt: skip
        own("reports.comparison").write_comparison(found, out, recipes, doubts=doubts, made=made)
        note(f"wrote {out}")
    if json:
        from bayeslaw.compare.readings import verdict

        answer = {
            **found.as_dict(),
            "verdict": list(verdict(found)),
            "data_hash": table.data_hash,
            "seed": seed,
            "doubts": doubts,
        }
        print_json({**answer, "recipes": recipes.as_dict() if recipes else {}})
        return
    show(found, recipes)


def _command(source: str, **flags: Any) -> str:
    """The command line that gives the same page again; what was not given is left out."""
    words = ["bayeslaw", "compare", source]
    for name, value in flags.items():
        if value is not None:
            said = ",".join(value) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", said]
    return shlex.join(words)


def _check(flops: float | None, leave: list[str] | None, out: Path | None, source: str) -> None:
    """Refuse what cannot be meant before anything is read or sampled."""
    if flops is not None and not 0 < flops < float("inf"):
        raise UsageError(f"--flops {flops:g}", allowed="a number above 0, such as 1e19")
    alone = leave and len(leave) == 1 and leave[0] in ("both", "none")
    if leave and not alone and not set(leave) <= {"cell", "budget"}:
        raise UsageError(f"--leave {','.join(leave)}", allowed="cell, budget, both, or none")
    require_page(out, source)


def show(found: Any, recipes: Any = None) -> None:
    """Print a comparison as tables and sentences for people."""
    from bayeslaw.compare.readings import verdict

    if recipes is not None:
        for name, (header, rows) in recipes.tables().items():
            titled(name, header, rows)
        _say(recipes.sentences)
        print()
    titled(
        "each run predicted from the others (PSIS-LOO)", ("model", "elpd", "diff", "se", "weight", "free", "high k"),
        (
            (name, f"{row['elpd']:.1f}", f"{row['elpd_diff']:.1f}", f"{row['se_diff']:.1f}",
             f"{row['weight']:.2f}", f"{row['complexity']:.0f}", f"{row['high_pareto_k']:.0f}")
            for name, row in found.ranks.items()
        ),
    )  # fmt: skip
    for kind, title in (
        ("forward", "higher budgets forecast from the lower two thirds"), ("cell", "one cell left out"),
        ("budget", "one budget left out"),
    ):  # fmt: skip
        if differences := found.differences(kind):
            scores = {name: found.scores(name, kind) for name in found.names}
            titled(
                title, ("model", "RMSE", "log dens", "CRPS", "in 50%", "in 90%", "diff", "se"),
                (
                    (name, f"{s.rmse:.4f}", f"{s.log_density:.2f}", f"{s.crps:.4f}", f"{s.cover50:.2f}",
                     f"{s.cover90:.2f}", f"{differences[name].mean:.2f}", f"{differences[name].se:.2f}")
                    for name, s in sorted(scores.items(), key=lambda item: -differences[item[0]].mean)
                ),
            )  # fmt: skip
    _say(verdict(found))


def titled(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table below its title; of one that is too wide the first column as headings of their own."""
    _say([title])
    rows = list(rows)
    lines = table_lines(header, rows)
    if max(map(len, lines)) > WIDTH:
        head, *rest = table_lines(header[1:], [row[1:] for row in rows])
        lines = [f"  {head}"]
        for row, line in zip(rows, rest, strict=True):
            lines += [printable(row[0])] if row[0] else []
            lines.append(f"  {line}")
    print("\n".join(lines))
    print()


def _say(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print("\n".join(textwrap.wrap(printable(sentence), WIDTH, break_long_words=False, break_on_hyphens=False)))
