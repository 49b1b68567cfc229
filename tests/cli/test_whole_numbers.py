"""Whole numbers as people type them: exactly what was typed, or refused; never rounded."""

from __future__ import annotations

import re

import pytest

from bayeslaw.cli import VERBS, build_app, run

LISTS = ["sweep plan --widths", "sweep plan --seeds", "allocate fit.nc --flops 1e19 --recurrences"]
FLAGS = [
    "train --recurrences", "train --seed", "train --steps", "train --tokens", "train --batch-tokens", "train --keep",
    "sweep plan --min-steps", "sweep plan --unrolled-layers",
    "sweep run plan.json --out out --limit", "generate run --tokens", "generate run --top-k", "generate run --seed",
    "generate run --recurrences", "fit isodepth --draws", "fit isodepth --seed", "demo --seed",
    *LISTS,
]  # fmt: skip


@pytest.mark.parametrize("value", ["1.5", "0.6", "1e-3", "nan", "inf", "many", "1e999999999", "1e-999999999"])
@pytest.mark.parametrize("flag", FLAGS)
def test_fractions_are_refused(flag, value, capsys):
    assert run([*flag.split(), value]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    name = flag.split()[-1]
    allowed = "whole numbers, as 1,2,4 or 1 2 4" if flag in LISTS else "a whole number, such as 4 or 1e3"
    assert printed.err == f"error: {name} {value!r}\n  allowed: {allowed}\n"


def arguments(words):
    """What a command would be called with."""
    _, bound, _ = build_app().parse_args(words, exit_on_error=False)
    return bound.arguments


@pytest.mark.parametrize(
    ("typed", "value"),
    [("1e3", 1000), ("47e9", 47_000_000_000), ("4.0", 4), ("1.5e1", 15), ("-2", -2), ("9007199254740993", 2**53 + 1)],
)
def test_whole_numbers_are_taken_exactly(typed, value):
    def same(found):
        return found == value and isinstance(found, int)

    assert same(arguments(["train", f"--steps={typed}"])["target"].steps)
    assert same(arguments(["train", f"--seed={typed}"])["seed"])
    assert same(arguments(["generate", "run", f"--tokens={typed}"])["tokens"])
    assert same(arguments(["fit", "isodepth", f"--draws={typed}"])["draws"])
    assert arguments(["sweep", "plan", f"--widths={typed},{typed}"])["widths"] == [value, value]


def test_no_flag_of_any_verb_is_rounded():
    """Every flag of whole numbers has our converter: cyclopts alone would round."""
    seen = 0
    for words in [[verb] for verb in VERBS] + [["sweep", "plan"], ["sweep", "run"], ["runs", "sync"]]:
        _, apps, _ = build_app().parse_commands(words)
        if apps[-1].default_command is None:
            continue
        for argument in apps[-1].assemble_argument_collection():
            if re.search(r"\bint\b", str(argument.hint)):
                seen += 1
                assert argument.parameter.converter is not None, (words, argument.name)
    assert seen > 25
