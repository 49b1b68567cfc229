"""``bayeslaw eval``: score trained models on tasks."""

from __future__ import annotations

import csv
import math
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from bayeslaw.cli import flags
from bayeslaw.cli.lists import Integer, Integers, OptionalInteger, Texts
from bayeslaw.cli.output import note, own, print_json, print_table, require_page
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK, CheckpointError, TrackingError, UsageError
from bayeslaw.evaluations import EVALUATION_COLUMNS
from bayeslaw.files import require_writable, written_whole
from bayeslaw.journal import FILE_NAME

app = App(name="eval", help="Score trained models on tasks, and keep the scores with their runs.")

LINE_SECONDS = 10.0


@app.default
def evaluate(
    *runs: Path,
    tasks: Annotated[list[str] | None, Texts] = None,
    recurrences: Annotated[list[int] | None, Integers] = None,
    examples: OptionalInteger = None,
    shots: OptionalInteger = None,
    difficulty: OptionalInteger = None,
    seed: Integer = 0,
    data: Path | None = None,
    offline: bool = False,
    held_out: bool = True,
    tokenizer: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    pass_tokens: OptionalInteger = None,
    again: Annotated[bool, Parameter(negative="")] = False,
    table: Path | None = None,
    verdict: Annotated[bool, Parameter(negative="")] = False,
    out: Path | None = None,
    tracking_uri: str | None = None,
    as_json: flags.Json = False,
) -> int:
    """Score trained models on tasks: loss per token of the right answers, and accuracy beside it.

    What was scored before is read, not scored again. Results are kept in the folder `evaluations` of each run, and
    delivered to MLflow with the run.

    Parameters
    ----------
    runs
        Run directories (the newest checkpoint of each), checkpoints, or folders of runs.
    tasks
        probes (the default; made here), public (those of the paper, through lm-eval), or names of tasks: one or more.
    recurrences
        How often the shared block runs, one or more; as in training by default. More than in training is allowed.
    examples
        Examples of each task at most; as many as the task has by default, of a probe 1000.
    shots
        Examples shown before each question; the task's own number by default.
    difficulty
        Of probes; the probe's own by default.
    seed
        Of the examples of probes, and of what is drawn of public tasks.
    data
        Folder with the data of public tasks, as `bayeslaw data tasks` writes it; without it they come from the hub.
    offline
        Take data of the hub from its cache, and never ask the network.
    held_out
        Score the held-out text of the run's corpus, too.
    tokenizer
        bytes, a tokenizer.json or a NAME[@REVISION] of the hub, where the corpus is not here to say it.
    device
        cpu, cuda or auto.
    precision
        float32, bfloat16 or auto: bfloat16 on a GPU.
    pass_tokens
        Tokens of one forward pass; fewer take less memory.
    again
        Score once more what was scored before.
    table
        Write the scores to this CSV file, a row each, for `bayeslaw regimes` and others.
    verdict
        Say afterwards what the scores of a folder of runs show of the effect of r, as `bayeslaw regimes` does.
    out
        With --verdict: write its page to this file.
    tracking_uri
        MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.
    as_json
        Print one JSON object.
    """
    if not runs:
        raise UsageError("no run to evaluate", allowed="run directories, checkpoints, or folders of runs")
    if out is not None and not verdict:
        raise UsageError("--out without --verdict", do="add --verdict, or leave --out out")
    if verdict and len(runs) > 1:
        raise UsageError(
            f"--verdict with {len(runs)} paths",
            allowed="one folder that holds all runs",
            do="name the folder above them",
        )
    require_page(out, *runs)
    if table is not None:
        if table.suffix.lower() != ".csv":
            raise UsageError(f"--table {table}", allowed="a name such as scores.csv")
        require_writable(table)
    module = own("trainer.evaluate")
    chosen = own("trainer.evaluation.choice").tasks_named(
        tasks or ["probes"],
        examples=examples,
        shots=shots,
        difficulty=difficulty,
        seed=seed,
        data=data,
        offline=offline,
    )
    paths = module.runs_below(runs)
    outcomes: list[Any] = []
    damaged = 0
    for number, path in enumerate(paths, start=1):
        try:
            evaluator = module.Evaluator(
                path, tokenizer=tokenizer, device=device, precision=precision, pass_tokens=pass_tokens
            )
        except CheckpointError as error:
            if len(paths) == 1:
                raise
            note(f"[{number}/{len(paths)}] {error}")
            damaged += 1
            continue
        label = f"[{number}/{len(paths)}] {evaluator.run_id}"
        most = module.most_recurrences(evaluator.architecture)
        allowed = _allowed(evaluator, recurrences, most, alone=len(paths) == 1)
        if not allowed:
            continue
        found = []
        told = _told(label)
        for outcome in evaluator.evaluate(chosen, recurrences=allowed, held_out=held_out, again=again, told=told):
            found.append(outcome)
            if outcome.problem:
                note(f"{label}: {outcome.task}: {outcome.problem}")
        outcomes += found
        if not as_json:
            _print(evaluator, [each for each in found if each.evaluation is not None])
        _deliver(evaluator.run_dir, tracking_uri)
    _remarks(outcomes)
    failed = [each for each in outcomes if each.problem]
    made = sum(each.made for each in outcomes)
    note(f"{made} scored, {len(outcomes) - made - len(failed)} scored before, {len(failed)} failed")
    if damaged:
        note(f"{damaged} runs have no checkpoint that can be read")
    if table is not None:
        _write_table(table, [each.evaluation for each in outcomes if each.evaluation is not None])
    if as_json and not verdict:
        print_json({"evaluations": [_plain(each) for each in outcomes]})
    if verdict and not (failed or damaged):
        from bayeslaw.cli.regimes import regimes

        return regimes(str(runs[0]), out=out, json=as_json)
    return EXIT_FAILURE if failed or damaged else EXIT_OK


def _allowed(evaluator: Any, asked: list[int] | None, most: int, *, alone: bool) -> list[int]:
    """Those of the recurrences asked for that the network can be run with."""
    trained = int(evaluator.row["recurrences"])
    if asked is None:
        return [trained]
    left = [r for r in asked if not 1 <= r <= most]
    if left:
        what = f"recurrences = {', '.join(map(str, left))} of {evaluator.run_id}, trained with {trained}"
        allowed = f"1 to {most}" if most > 1 else "1: a network trained without loops has nothing to loop"
        if alone or min(left) < 1:
            raise UsageError(what, allowed=allowed)
        note(f"left out: {what} (allowed: {allowed})")
    kept = [r for r in dict.fromkeys(asked) if 1 <= r <= most]
    if more := [r for r in kept if r > trained]:
        note(
            f"{evaluator.run_id} was trained with r = {trained}: r = {', '.join(map(str, more))} is beyond its training"
        )
    return kept


def _told(label: str) -> Callable[[str, int, int], None]:
    """Says how far a task is, every few seconds."""
    shown = begun = time.monotonic()
    of = ""

    def told(task: str, done: int, total: int) -> None:
        nonlocal shown, begun, of
        now = time.monotonic()
        if task != of:
            of, begun, shown = task, now, now
        if now - shown >= LINE_SECONDS and done < total:
            shown = now
            left = (now - begun) / done * (total - done)
            print(f"{label}: {task} {done:,}/{total:,}, {left:.0f} s left", file=sys.stderr, flush=True)

    return told


def _remarks(outcomes: Sequence[Any]) -> None:
    """Say what was cut or left out of what was scored now."""
    cut: Counter[str] = Counter()
    left: Counter[tuple[str, str]] = Counter()
    made = [each for each in outcomes if each.made]
    for each in made:
        cut[each.task] += each.evaluation.results.shortened
        for why, count in each.evaluation.results.left_out.items():
            left[each.task, why] += count
    if said := ", ".join(f"{task} ({count:,} times)" for task, count in cut.items() if count):
        text = f"contexts were cut to fit the network's, the oldest shots first, so there were fewer shots: {said}"
        note(textwrap.fill(text, 80, subsequent_indent="  "))
    for (task, why), count in left.items():
        note(f"{task}: examples left out {count:,} times: {why}")


def _print(evaluator: Any, outcomes: Sequence[Any]) -> None:
    """The scores of a run, where there are any."""
    if not outcomes:
        return
    print(f"{evaluator.run_id}, step {evaluator.step:,}")
    rows = []
    for each in outcomes:
        results = each.evaluation.results
        error = f"{results.loss_se:.4f}" if math.isfinite(results.loss_se) else "-"
        rows.append(
            (
                f"{each.evaluation.task['axis']}/{each.task}",
                str(each.recurrences),
                f"{results.loss:.4f} +- {error}",
                f"{results.accuracy:.3f}",
                f"{results.examples:,}",
            )
        )
    print_table(("task", "r", "nats/token", "accuracy", "examples"), rows)
    print()


def _write_table(path: Path, evaluations: Sequence[Any]) -> None:
    """Evaluations as CSV, the columns in the order of their definition."""
    rows = [
        {name: "" if value != value else value for name, value in each.table_row.items()}  # NaN: not known
        for each in evaluations
    ]
    columns = [name for name in EVALUATION_COLUMNS if any(name in row for row in rows)]
    with written_whole(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    note(f"wrote {path}, {len(rows)} rows")


def _plain(outcome: Any) -> dict[str, Any]:
    row = outcome.evaluation.table_row if outcome.evaluation else {"task": outcome.task}
    about = {"run_dir": str(outcome.run_dir), "made": outcome.made, "problem": outcome.problem}
    return about | {"test_recurrences": outcome.recurrences} | row


def _deliver(run_dir: Path, tracking_uri: str | None) -> None:
    """Bring the run with its evaluations to MLflow, where it has a journal and there is a store."""
    if not (run_dir / FILE_NAME).is_file():
        return
    try:
        problem = own("trainer.tracking").sync(run_dir, tracking_uri=tracking_uri)[0].error
    except TrackingError as error:
        problem = str(error)
    if problem:
        note(f"not delivered to MLflow: {problem}\n  next: `bayeslaw runs sync {run_dir}`")
