"""The verbs of ``bayeslaw sweep`` that look at a sweep and say what becomes of its runs."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bayeslaw.cli import flags
from bayeslaw.cli.output import note, own, print_json, printable, table_lines
from bayeslaw.errors import UsageError
from bayeslaw.plan import Plan, read_plan

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.standing import Standing

LOOK_SECONDS = 2.0
HEADER = ("run", "state", "step", "loss", "left")
Names = Annotated[list[str] | None, Parameter(name="RUN", negative="")]


def status(
    plan: Path,
    /,
    *,
    out: Path,
    watch: Annotated[bool, Parameter(negative="")] = False,
    as_json: flags.Json = False,
) -> None:
    """Say where every run of a plan stands, by the files in the output folder, wherever the workers are.

    Parameters
    ----------
    plan
        File written by `bayeslaw sweep plan --out`.
    out
        Output folder of the sweep.
    watch
        Look again and again until nothing is left to train.
    as_json
        Print one JSON object.
    """
    planned = read_plan(plan)
    _require_folder(out)
    standing = own("trainer.standing")

    def look() -> list[Standing]:
        stands: list[Standing] = standing.standings(planned, out)
        return stands

    if as_json:
        print_json(_answer(planned, look()))
        return
    from rich.console import Console

    console = Console()
    if watch and console.is_terminal:
        _live(console, planned, look)
    elif watch:
        _lines(planned, look)
    else:
        stands = look()
        if console.is_terminal:
            console.print(table(stands))
        else:
            print("\n".join(table_lines(HEADER, map(_cells, stands))))
        print("\n".join(_summary(planned, stands, plan, out)))


def retry(plan: Path, runs: Names = None, /, *, out: Path, as_json: flags.Json = False) -> None:
    """Have runs tried again that failed, were given up or cancelled; `bayeslaw sweep run` then takes them.

    Parameters
    ----------
    plan
        File written by `bayeslaw sweep plan --out`.
    runs
        Names of runs; by default all that failed, were given up or cancelled.
    out
        Output folder of the sweep.
    as_json
        Print one JSON object.
    """
    _require_folder(out)
    done = own("trainer.marks").retry(read_plan(plan), out, runs or ())
    _tell(done, as_json, bool(runs), f"`{command('run', plan, out)}`, unless workers are at it")


def cancel(plan: Path, runs: Names = None, /, *, out: Path, as_json: flags.Json = False) -> None:
    """Have runs not trained; those in training are saved and stopped, and their workers go on with others.

    Parameters
    ----------
    plan
        File written by `bayeslaw sweep plan --out`.
    runs
        Names of runs; by default all that have not come to their end.
    out
        Output folder of the sweep.
    as_json
        Print one JSON object.
    """
    _require_folder(out)
    done = own("trainer.marks").cancel(read_plan(plan), out, runs or ())
    _tell(done, as_json, bool(runs), f"`{command('retry', plan, out)}` takes that back; checkpoints are kept")


def command(verb: str, plan: Path, out: Path) -> str:
    """The command that does something with a sweep, as it can be pasted."""
    return printable(f"bayeslaw sweep {verb} {shlex.quote(str(plan))} --out {shlex.quote(str(out))}")


def _require_folder(out: Path) -> None:
    if not out.is_dir():
        raise UsageError(f"there is no folder {out}", do="name the --out of `bayeslaw sweep run`, or begin with that")


def _tell(marked: Sequence[Any], as_json: bool, were_named: bool, then: str) -> None:
    """Print what was done, and of the runs that were named also why nothing was."""
    if as_json:
        print_json({"runs": [dataclasses.asdict(each) for each in marked]})
        return
    for each in marked:
        if each.done or were_named:
            print(printable(f"{each.run_id}: {each.text}"))
    done = sum(each.done for each in marked)
    print(f"{done} of {len(marked)} runs" + ("" if done else f"; {marked[0].text}"))
    if done:
        note(f"next: {then}")


def _answer(plan: Plan, stands: Sequence[Standing]) -> dict[str, Any]:
    done, left, speed = _flops(plan, stands)
    return {
        "study": plan.study,
        "sweep": plan.sweep,
        "counts": _counts(stands),
        "flops_done": done,
        "flops_left": left,
        "eta": left / speed if speed else None,
        "runs": [each.as_dict() for each in stands],
    }


def _counts(stands: Iterable[Standing]) -> dict[str, int]:
    found = Counter(each.state for each in stands)
    return {state: found.get(state, 0) for state in own("trainer.standing").STATES}


def _flops(plan: Plan, stands: Sequence[Standing]) -> tuple[float, float, float]:
    """FLOPs done, FLOPs of what will still be trained, and FLOPs a second of what is being trained."""
    coming = (*own("trainer.standing").LEFT, "running")
    done = left = speed = 0.0
    for run, each in zip(plan.runs, stands, strict=True):
        spent = run.row["flops"] * (1.0 if each.state == "finished" else min(1.0, each.step / max(1, each.steps)))
        done += spent
        left += run.row["flops"] - spent if each.state in coming else 0.0
        speed += each.flops_per_second or 0.0
    return done, left, speed


def _cells(each: Standing) -> tuple[str, ...]:
    return (
        each.run_id,
        each.state,
        f"{each.step}/{each.steps}",
        "-" if each.loss is None else f"{each.loss:.4f}",
        "-" if each.eta is None else _duration(each.eta),
    )


def _summary(plan: Plan, stands: Sequence[Standing], file: Path | None = None, out: Path | None = None) -> list[str]:
    """What the table comes to, why runs failed, and the one command to go on."""
    counts = {state: count for state, count in _counts(stands).items() if count}
    done, left, speed = _flops(plan, stands)
    lines = [f"{len(stands)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())]
    lines.append(
        f"{done:.4g} FLOPs done, {left:.4g} left" + (f", about {_duration(left / speed)} to go" if speed else "")
    )
    for each in stands:
        if each.error and each.state in ("failed", "given up", "stale"):
            lines.append(printable(f"{each.run_id}: {each.state}, {each.attempts} tried: {each.error}"))
    if file and out and not counts.get("running"):
        if any(counts.get(state) for state in own("trainer.standing").LEFT):
            lines.append(f"next: `{command('run', file, out)}`; what is finished stays, what was begun goes on")
        elif counts.get("given up"):
            lines.append(f"next: `{command('retry', file, out)}` once the cause is mended")
        elif counts.get("cancelled"):
            lines.append(f"next: `{command('retry', file, out)}` arms what was cancelled")
    return lines


def table(stands: Sequence[Standing]) -> Table:
    """The runs as a terminal of 80 columns shows them."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(HEADER[0], overflow="fold")
    for name in HEADER[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for each in stands:
        table.add_row(*map(printable, _cells(each)))
    return table


def _live(console: Any, plan: Plan, look: Callable[[], list[Standing]]) -> None:
    """Show the table anew until nothing is left; of more runs than fit, those at work first."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False) as live:
        while True:
            stands = look()
            order = {state: place for place, state in enumerate(own("trainer.standing").STATES)}
            summary = _summary(plan, stands)
            room = max(3, console.height - len(summary) - 3)
            shown = sorted(stands, key=lambda each: order[each.state])[:room]
            live.update(Group(table(shown), Text("\n".join(summary))), refresh=True)
            if not _going(stands):
                return
            time.sleep(LOOK_SECONDS)


def _lines(plan: Plan, look: Callable[[], list[Standing]]) -> None:
    """Print a line when a run comes to stand elsewhere, until nothing is left."""
    before: dict[str, str] = {}
    while True:
        stands = look()
        for each in stands:
            if before.get(each.run_id) != each.state:
                print(printable(f"{each.run_id}: {each.state}, step {each.step}/{each.steps}"), flush=True)
        before = {each.run_id: each.state for each in stands}
        if not _going(stands):
            print("\n".join(_summary(plan, stands)))
            return
        time.sleep(LOOK_SECONDS)


def _going(stands: Iterable[Standing]) -> bool:
    return any(each.state in (*own("trainer.standing").LEFT, "running") for each in stands)


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(min(max(0.0, seconds), 1e9))))
