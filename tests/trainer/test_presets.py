"""The published grid by rule, recipes, presets, and the layers that make a config."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from importlib.resources import files

import pytest

from bayeslaw.cli import flags, run
from bayeslaw.errors import CheckpointError, UsageError
from trainer.config import FIELDS, SECTIONS, TrainConfig
from trainer.data import FINEWEB_EDU, load_corpus
from trainer.execution import Execution
from trainer.layering import layered, read_toml, recorded_config
from trainer.planning import plan_preset
from trainer.presets import PRESETS, RECIPES, preset, recipe_fields, shared_layers

COUNTS = ("n_unique", "n_once", "n_shared", "n_injection", "tokens", "flops_per_token")

TABLE_6 = """
6 35.4 21.5 14.5 10.9
8 62.9 38.3 25.7 19.4
10 98.3 59.8 40.2 30.3
12 141.6 86.1 57.8 43.7
14 192.7 117.2 78.7 59.4
16 251.7 153.1 102.8 77.6
18 318.6 193.8 130.1 98.2
20 393.3 239.2 160.6 121.3
24 566.3 344.5 231.2 174.6
28 770.8 468.9 314.7 237.7
34 1136.5 691.4 464.1 350.4
"""
"""arXiv 2604.21106, Table 6: s, then N in millions for r = 1, 2, 4, 8."""


def cell(row):
    return row["recipe"], int(row["recurrences"]), float(row["width_scale"]), float(row["budget"])


@pytest.fixture(scope="module")
def paper():
    return plan_preset("paper", study="paper")


def test_the_paper_preset_is_the_published_table(paper):
    with (files("bayeslaw.datasets") / "isodepth_runs.csv").open(encoding="utf-8") as file:
        published = {cell(row): [float(row[name]) for name in COUNTS] for row in csv.DictReader(file)}
    planned = {cell(r.row): [r.row[name] for name in COUNTS] for r in paper.runs}
    assert len(paper.runs) == len(published) == 240
    assert planned == published
    assert all(r.config["data"]["corpus_digest"] is None for r in paper.runs)


def test_n_of_table_6_to_the_digit():
    lines = [line.split() for line in TABLE_6.strip().splitlines()]
    assert len(lines) == 11
    for scale, *sizes in lines:
        for r, size in zip((1, 2, 4, 8), sizes, strict=True):
            config = layered(preset("paper"), {"d_model": 64 * int(scale), "recurrences": r, "steps": 1})
            assert f"{config.architecture.n_unique / 1e6:.1f}" == size


def test_matrix_rates_are_the_published_ones(paper):
    configs = [TrainConfig.from_dict(r.config) for r in paper.runs if r.row["recipe"] == "baseline"]
    rates = [config.rates["matrix"] for config in configs]
    assert len(rates) == 116
    assert f"{min(rates):.4f}" == "0.0072"
    assert f"{max(rates):.4f}" == "0.0202"


def test_the_two_runs_outside_the_grid():
    plan = plan_preset("paper-47b", study="x")
    assert [(r.row["recurrences"], r.row["width_scale"]) for r in plan.runs] == [(1, 34), (4, 34)]
    assert {r.row["tokens"] for r in plan.runs} == {round(47e9 / 2**19) * 2**19}
    assert {r.config["optimizer"]["batch_tokens"] for r in plan.runs} == {2**19}
    shorter = layered(preset("paper-47b"), {"recurrences": 4, "steps": 10})
    assert (shorter.steps, shorter.target.tokens, shorter.model.shared_layers) == (10, None, 4)


def test_the_desk_grid():
    plan = plan_preset("desk", study="desk")
    budgets = sorted({r.row["budget"] for r in plan.runs})
    assert budgets[-1] == 8 * budgets[0]
    cells, seeds = {}, {}
    for r in plan.runs:
        cell = r.row["recipe"], r.row["recurrences"], r.row["budget"]
        cells.setdefault(cell, []).append(r.row["d_model"]) if r.row["seed"] == 0 else None
        seeds.setdefault((*cell, r.row["d_model"]), []).append(r.row["seed"])
        assert r.row["recurrences"] * r.row["shared_layers"] == 4
        assert r.row["tokens"] < len(load_corpus("stdlib").train)
    assert {key[:2] for key in cells} == {("baseline", 1)} | {
        (recipe, r) for recipe in ("baseline", "truncated_bptt", "hyperconnections") for r in (2, 4)
    }
    assert all(len(set(widths)) == len(widths) == 4 for widths in cells.values())
    assert sorted(map(len, seeds.values())) == [1] * (len(seeds) - 10) + [3] * 10


def test_the_mistuned_runs_are_those_of_a_replicated_cell():
    tuned = {
        (r.row["recipe"], r.row["recurrences"], r.row["seed"]): r
        for r in plan_preset("desk", study="x").runs
        if (r.row["d_model"], r.row["budget"]) == (32, 8e11)
    }
    plan = plan_preset("desk-rates", study="x")
    assert len(plan.runs) == 2 * len(tuned) == 42
    for r in plan.runs:
        same = tuned[r.row["recipe"], r.row["recurrences"], r.row["seed"]]
        ours, theirs = (TrainConfig.from_dict(run.config) for run in (r, same))
        factor = ours.rates["matrix"] / theirs.rates["matrix"]
        assert factor in (0.5, 2.0)
        rate = theirs.optimizer.matrix_rate * factor
        assert dataclasses.replace(theirs, optimizer=dataclasses.replace(theirs.optimizer, matrix_rate=rate)) == ours


def test_seeds_take_the_place_of_a_preset_s_own():
    part = {"recipes": ("baseline",), "recurrences": (4,), "budgets": (8e11,), "widths": (32,), "study": "x"}
    assert [r.row["seed"] for r in plan_preset("desk", **part).runs] == [0, 1, 2]
    assert [r.row["seed"] for r in plan_preset("desk", seeds=(7,), **part).runs] == [7]


def test_recipes():
    assert {name: recipe_fields(name, 1) for name in RECIPES} == {name: {} for name in RECIPES}
    assert recipe_fields("a-label", 4) == {}
    assert recipe_fields("truncated_bptt", 8) == {"injection": "linear", "backprop_recurrences": 4}
    assert recipe_fields("truncated_bptt", 3)["backprop_recurrences"] == 2
    for name in RECIPES:
        model = layered(None, {"d_model": 32, "recurrences": 4, "recipe": name, "steps": 1}).model
        assert model.injection == {"truncated_bptt": "linear", "baseline": "linear"}.get(name, name)
        plain = layered(None, {"d_model": 32, "recipe": name, "steps": 1})
        assert plain.model == layered(None, {"d_model": 32, "steps": 1}).model
    own = {"d_model": 32, "recurrences": 4, "recipe": "hyperconnections", "lanes": 3, "steps": 1}
    assert layered(None, own).model.lanes == 3


def test_the_later_layer_wins():
    file = {"d_model": 32, "recurrences": 2, "tokens": 4096, "seed": 3, "recipe": "additive"}
    config = layered(preset("desk"), file, {"recurrences": 4, "budget": 1e12, "seed": None, "shared_layers": 2})
    assert (config.seed, config.model.recurrences, config.model.shared_layers) == (3, 4, 2)
    assert (config.target.tokens, config.target.budget) == (None, 1e12)
    assert (config.model.injection, config.model.seq_len) == ("additive", 128)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ({"recurrences": 3}, "recurrences = 3 with 16 unrolled layers\n  allowed: 1, 2, 4, 8, 16 .*the nearest is 2"),
        ({"recurrences": 0}, "recurrences = 0"),
        ({"recurrences": "4"}, "recurrences"),
        ({"recipe": 4}, "recipe = 4"),
        ({"d_model": 200}, "d_model = 200 with head_size = 128.*the nearest is 256"),
        ({"head_sise": 8}, "config field 'head_sise'.*the nearest is head_size"),
        ({"rate_rule": "papr"}, "the nearest is paper"),
        ({"budget": 1e18, "steps": 3}, "budget = 1e\\+18, steps = 3"),
        ({"steps": None}, "no target"),
    ],
)
def test_layers_that_cannot_be_meant(layer, named):
    with pytest.raises(UsageError, match=re.compile(named, re.DOTALL)):
        layered(preset("paper"), {"d_model": 256, "steps": None if "budget" in layer else 1} | layer)


def test_unknown_presets_and_partitions():
    with pytest.raises(
        UsageError,
        match="preset 'papr'\n  allowed: paper, paper-47b, desk, desk-rates, desk-probes\n  next: the nearest is paper",
    ):
        preset("papr")
    with pytest.raises(UsageError, match="recurrences = 5 with 4 unrolled layers"):
        shared_layers(4, 5)


def test_the_packed_corpus_is_not_here():
    with pytest.raises(UsageError, match=r"not on this machine\n  allowed: stdlib.*\n  next: name another --corpus"):
        load_corpus(FINEWEB_EDU)


def test_a_toml_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'recipe = "additive"\nseed = 2\n[model]\nd_model = 32\n[target]\nsteps = 3\n[execution]\ndevice = "cpu"\n'
    )
    fields, execution = read_toml(path)
    assert fields == {"recipe": "additive", "seed": 2, "d_model": 32, "steps": 3}
    assert execution == {"device": "cpu"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a = [", r"no TOML: .*line 1"),
        ("seed = 1\n[model", r"no TOML: .*line 2"),
        ("recipy = 'x'", "field 'recipy'.*the nearest is recipe"),
        ("d_model = 32", r"d_model outside of its section\n  allowed: \[model\]"),
        ("[modl]\nd_model = 3", r"the nearest is \[model\]"),
        ("[model]\nd_modell = 3", r"field of \[model\] 'd_modell'.*the nearest is d_model"),
        ("[execution]\ndevise = 'cpu'", r"field of \[execution\] 'devise'.*the nearest is device"),
        ("model = 3", r"allowed: a section \[model\]"),
        ("continues = 'x@3:0'", "field 'continues'"),
    ],
)
def test_toml_files_that_cannot_be_meant(tmp_path, text, named):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.compile(f"{path}.*{named}", re.DOTALL)):
        read_toml(path)


def test_toml_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*absent\.toml"):
        read_toml(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no text"):
        read_toml(tmp_path / "binary.toml")


@pytest.mark.parametrize("facts", [{}, {"config": 3}, {"config": {"model": {"d_modell": 3}}}])
def test_a_checkpoint_without_a_config_of_ours(tmp_path, facts):
    with pytest.raises(CheckpointError, match="holds"):
        recorded_config(facts, tmp_path)


def test_every_field_has_a_flag_that_tells_its_default():
    """A flag's help says the default that a field has."""
    kinds = [*SECTIONS.values(), TrainConfig, Execution]
    defaults = {field.name: field.default for kind in kinds for field in dataclasses.fields(kind)}
    sections = (flags.TargetFlags, flags.SizeFlags, flags.ModelFlags, flags.OptimizerFlags, flags.DataFlags)
    there = {field.name for kind in sections for field in dataclasses.fields(kind)}
    assert there == {*FIELDS, "width_scale"} - {"recipe", "seed", "continues"}
    execution = {field.name for field in dataclasses.fields(flags.ExecutionFlags)}
    assert execution == {field.name for field in dataclasses.fields(Execution)}
    told = 0
    for kind in (*sections, flags.ExecutionFlags):
        for name, text in re.findall(r"^    (\w+)\n((?:        .*\n)+)", kind.__doc__, re.MULTILINE):
            default = re.search(r"([\w.]+)\s+by\s+default", text)
            if default and default[1] not in ("all", "own"):
                assert str(defaults[name]).removesuffix(".0") == default[1], name
                told += 1
    assert told >= 15


def test_every_preset_is_planned_from_the_command_line(capsys):
    for name, each in PRESETS.items():
        assert run(["sweep", "plan", "--preset", name, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert len(answer["runs"]) == len(each.cells)
        assert answer["study"] == name
        assert {"recipe", "recurrences", "width_scale", "budget", *COUNTS} <= set(answer["runs"][0])
