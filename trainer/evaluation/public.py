"""Public tasks: definitions in lm-eval's format and any other task of its registry, built by lm-eval itself.

Their data come from the hub, from its cache, or from a folder: ``DIR/<task>/<split>.jsonl`` or ``.parquet``, splits as
the definition names them, rows as they are on the hub. `fetch` makes such a folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bayeslaw.errors import BayeslawError, DataError, UsageError
from bayeslaw.files import written_whole
from trainer.checks import require_count
from trainer.evaluation.catalogue import PUBLIC, Definition, definition_of, folder_name
from trainer.evaluation.sources import Splits, quiet
from trainer.evaluation.tasks import Example, Task

SEED_STRIDE = 2**32
"""Between the seeds of two runs' first examples: more than a data set has examples."""


def public_task(
    name: str,
    *,
    shots: int | None = None,
    examples: int | None = None,
    seed: int = 0,
    data: Path | None = None,
    offline: bool = False,
    known: Iterable[str] = (),
) -> Task:
    """A public task with its examples.

    Parameters
    ----------
    name : str
        One of `PUBLIC`, or a task of lm-eval's registry with one right answer.
    shots : int, optional
        Examples before the question, by default as the definition says. Each example's are drawn for it alone.
    examples : int, optional
        Examples at most, by default as the definition says. A subset is drawn, in the data's order; a smaller one is
        part of a larger.
    seed : int
        Of the subset and of the shots.
    data : Path, optional
        The folder to take the data from; without it the hub.
    offline : bool
        Take the hub's data from its cache, without any attempt at the network.
    known : iterable of str
        Other names that could have been meant, for the message about an unknown one.

    Raises
    ------
    UsageError
        No such task, a task that cannot be scored, more shots than there are examples, or lm-eval is not installed.
    DataError
        The data are not there, damaged, or do not fit the task.
    """
    for what, value, least in (("shots", shots, 0), ("examples", examples, 1), ("seed", seed, 0)):
        if value is not None:
            require_count(what, value, least)
    with quiet():
        definition = definition_of(name, known)
        splits = definition.splits(data, offline=offline)
        try:
            with _compiled_once():
                return _task(definition, splits, shots=shots, examples=examples, seed=seed)
        except BayeslawError:
            raise
        except Exception as error:  # the library and a task's own functions raise anything on rows that do not fit
            raise DataError(
                f"the data of {name} from {splits.source} do not fit the task: {type(error).__name__}: {error}",
                allowed=f"rows as on the hub: {definition.hub}; these have {', '.join(splits.columns)}",
                do="name the columns as the message asks, or fetch the data with `bayeslaw data tasks`",
            ) from error


def fetch(names: Iterable[str], out: Path, *, offline: bool = False, known: Iterable[str] = ()) -> list[Path]:
    """Write the splits that tasks use as ``out/<task>/<split>.jsonl``, each file whole or not at all.

    Parameters
    ----------
    names : iterable of str
        See `public_task`.
    out : Path
        The folder that ``data`` of `public_task` takes.
    offline : bool
        Take the data from the hub's cache, without any attempt at the network.
    known : iterable of str
        See `public_task`.

    Returns
    -------
    The files written.

    Raises
    ------
    UsageError
        As `public_task`.
    DataError
        The data cannot be had or hold what JSON cannot, or a file cannot be written.
    """
    written = []
    with quiet():
        for definition in [definition_of(name, known) for name in names]:
            splits = definition.splits(None, offline=offline)
            definition.built(splits)
            for split, rows in splits.items():
                path = out / folder_name(definition.name) / f"{split}.jsonl"
                with written_whole(path, error=DataError) as partial, partial.open("w") as file:
                    file.writelines(_lines(rows, f"{definition.name}, {split}"))
                written.append(path)
    return written


def _lines(rows: Iterable[Mapping[str, Any]], place: str) -> Iterator[str]:
    for number, row in enumerate(rows):
        try:
            yield json.dumps(row) + "\n"
        except TypeError as error:
            raise DataError(
                f"{place}: row {number} holds what JSON cannot: {error}",
                do="save the split as Parquet (datasets.Dataset.to_parquet) in the task's folder",
            ) from error


@contextlib.contextmanager
def _compiled_once() -> Iterator[None]:
    """Each template is compiled once and not, as lm-eval does, whenever it is filled: tens of times as fast."""
    from lm_eval import utils  # type: ignore[import-untyped]

    environment = utils.env
    environment.from_string = functools.cache(environment.from_string)
    try:
        yield
    finally:
        del environment.from_string  # the class's own is there again


def _task(definition: Definition, splits: Splits, *, shots: int | None, examples: int | None, seed: int) -> Task:
    import lm_eval

    inner = definition.built(splits)
    public = PUBLIC.get(definition.name)
    shots = (inner.config.num_fewshot or 0) if shots is None else shots
    examples = public.examples if examples is None and public else examples
    _require_one_answer(inner, definition.name)
    _require_shots(inner, shots)
    rows = inner.eval_docs
    places = list(range(len(rows)))
    if examples is not None and examples < len(places):
        random.Random(seed).shuffle(places)
        places = sorted(places[:examples])
    turns = _recorded_turns(inner)
    made = []
    for place in places:
        inner.set_fewshot_seed(seed * SEED_STRIDE + place)
        made.append(_example(inner, rows[place], shots, turns))
    return Task(
        name=folder_name(definition.name),
        axis=public.axis if public else "other",
        shots=shots,
        examples=tuple(made),
        source=splits.source,
        settings={
            "seed": seed,
            "definition": public.version if public else f"lm-eval {lm_eval.__version__}",
        },
    )


def _require_one_answer(inner: Any, name: str) -> None:
    """Refuse tasks whose examples are not one context with one right answer."""
    if inner.multiple_input or inner.multiple_target:
        what = "has a context for each choice" if inner.multiple_input else "has several right answers"
        raise UsageError(f"the task {name} {what}", allowed="one context, and one right answer")


def _require_shots(inner: Any, shots: int) -> None:
    if not shots:
        return
    own = inner.fewshot_cfg.split == inner.config.test_split and inner.fewshot_cfg.sampler == "default"
    most = len(inner.sampler.df) - own  # the question itself is no shot
    if shots > most:
        raise UsageError(f"shots = {shots}", allowed=f"at most {most}, what there is to draw from", do="ask for fewer")


def _recorded_turns(inner: Any) -> list[str]:
    """A list to which lm-eval's object from now on adds the text of each turn that it makes."""
    turns: list[str] = []
    build: Callable[..., Any] = inner.build_qa_turn

    def recorded(**given: Any) -> Any:
        messages = build(**given)
        turns.append(_text(messages))
        return messages

    inner.build_qa_turn = recorded
    return turns


def _text(messages: Iterable[Any]) -> str:
    return "".join(message.to_text() for message in messages)


def _example(inner: Any, row: Mapping[str, Any], shots: int, turns: list[str]) -> Example:
    """An example as lm-eval words it, each shot a part of its context."""
    turns.clear()
    prefix = inner.doc_to_prefix(row)
    whole = inner.fewshot_context(row, num_fewshot=shots, gen_prefix=prefix)
    parts = tuple(turns)
    description = whole.removesuffix("".join(parts))
    context = (description, *parts) if description else parts
    gold = inner.doc_to_target(row)
    if isinstance(gold, list):
        raise DataError("an example has several right answers", allowed="one", do="leave the task out")
    if inner.OUTPUT_TYPE == "generate_until":
        choices = inner.doc_to_choice(row) if inner.config.doc_to_choice else None
        answer = gold if choices else str(gold)
        delimiter = inner.config.target_delimiter
        # The question with its answer, worded as a shot, is the question followed by the answer.
        answered = inner.build_qa_turn(
            q=inner.doc_to_text(row), c=choices, a=answer, gen_prefix=prefix, tgt_delim=delimiter, few_delim=""
        )
        return Example(context, (_text(answered).removeprefix(parts[-1]),))
    requests = inner.construct_requests(doc=row, ctx=whole, metadata=("", 0, 1))
    if inner.OUTPUT_TYPE == "loglikelihood":
        return Example(context, (requests.args[1],))
    if isinstance(gold, str):
        gold = inner.doc_to_choice(row).index(gold)
    return Example(context, tuple(request.args[1] for request in requests), gold)
