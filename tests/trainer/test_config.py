"""What a config refuses, and what it says of the run before it runs."""

from __future__ import annotations

import re

import pytest

from bayeslaw.errors import UsageError
from bayeslaw.schema import COLUMNS
from trainer.config import BudgetError, TrainConfig
from trainer.execution import Execution


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"d_model": 20}, "d_model = 20 with head_size = 8\n  allowed: a multiple of head_size\n  next: .* 16"),
        ({"d_model": 3}, "the nearest is 8"),
        ({"head_size": 7, "d_model": 14}, "head_size = 7\n  allowed: an even number"),
        ({"batch_tokens": 100}, "batch_tokens = 100 with seq_len = 16.*\n.*\n.* 96"),
        ({"tokens": 1000}, "tokens = 1000 with batch_tokens = 128.*\n.*\n.* 1024"),
        ({"tokens": None}, "no target\n  allowed: one of budget"),
        ({"budget": 1e9}, "budget = 1000000000.0, tokens = 6144\n  allowed: one of budget"),
        ({"steps": 3}, "tokens = 6144, steps = 3\n  allowed: one of budget"),
        ({"tokens": None, "steps": 2.5}, "steps = 2.5\n  allowed: a whole number"),
        ({"tokens": None, "budget": float("nan")}, "budget = nan"),
        ({"tokens": None, "budget": -1e9}, "budget = -1"),
        ({"recurrences": 0}, "recurrences = 0\n  allowed: a whole number, 1 or more"),
        ({"recurrences": 2.5}, "recurrences = 2.5"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**63}, "below 2.63"),
        ({"vocab_size": 100}, "256 or more: a byte each, or the tokens of packed shards"),
        ({"validation_tokens": 8}, "at least one sequence, 16"),
        (
            {"injection": "adaptive"},
            "injection 'adaptive' with recurrences = 2\n  allowed: linear.*nearest is additive",
        ),
        ({"recurrences": 10**8}, "recurrences = 100000000 of 1 shared layers: 100,000,001 layers.*at most 10,000"),
        ({"injection": 3}, "injection = 3\n  allowed: a text"),
        ({"injection": "passthrough", "backprop_recurrences": 1}, "the prelude would get no gradient"),
        ({"rate_rule": "papr"}, "rate_rule 'papr'\n  allowed: paper, desk\n  next: the nearest is paper"),
        ({"lane_rate": "fast"}, "lane_rate = fast\n  allowed: a learning rate above 0"),
        ({"corpus": ""}, "corpus = ''"),
        ({"matrix_rate": 0.0}, "matrix_rate = 0.0"),
        ({"backprop_recurrences": 3}, "backprop_recurrences = 3\n  allowed: 1 to 2"),
        ({"recipe": "a/b"}, "recipe 'a/b'"),
        ({"tokens": None, "budget": 1e3}, "budget = 1000 .* less than one optimiser step, .*\n  allowed: .* or more"),
        ({"tokens": None, "budget": 1e30}, "budget = 1e.30 .* optimiser steps\n  allowed: at most 1e.09 steps"),
        ({"tokens": 128 * (10**9 + 1)}, "tokens = 128000000128 .*\n  allowed: .* 128000000000 tokens"),
    ],
)
def test_refused_with_value_and_what_is_allowed(fields, changes, named):
    with pytest.raises(UsageError, match=f"(?s){named}") as error:
        TrainConfig.of(**{**fields, **changes})
    assert error.value.exit_code == 2


def test_dict_and_back(fields):
    config = TrainConfig.of(**fields)
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["optimizer"]["matrix_rate"] > 0  # the default stands in the record
    assert TrainConfig.of(**{**fields, "head_size": None}) == TrainConfig.of(**{**fields, "head_size": 16})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"modle": {}}, "config field 'modle'.*nearest is model"),
        ({"model": {"d_modl": 8}, "target": {"steps": 1}}, "config field of model 'd_modl'.*nearest is d_model"),
        ({"model": {"d_model": 16, "tokens": 3}, "target": {}}, "config field of model 'tokens'"),
        ({"model": 3}, r"model = 3\n  allowed: a section \[model\]"),
        ({"model": {}, "target": {"steps": 1}}, "a config without d_model"),
        ({"model": {"d_model": 16}}, "no target"),
    ],
)
def test_sections_with_names_that_do_not_belong(config, named):
    with pytest.raises(UsageError, match=f"(?s){named}"):
        TrainConfig.from_dict(config)


def test_flat_names_that_do_not_exist(fields):
    with pytest.raises(UsageError, match="'batch_token'") as error:
        TrainConfig.of(**fields, batch_token=1)
    assert error.value.do == "the nearest is batch_tokens"


def test_the_three_targets_are_one(fields):
    by_tokens = TrainConfig.of(**fields)
    by_steps = TrainConfig.of(**{**fields, "tokens": None, "steps": 48})
    by_budget = TrainConfig.of(**{**fields, "tokens": None, "budget": by_tokens.row["budget"]})
    assert by_tokens.steps == by_steps.steps == by_budget.steps == 48
    assert by_tokens.rates == by_steps.rates == by_budget.rates


def test_the_name_tells_apart_what_is_not_the_same(fields):
    name = TrainConfig.of(**fields).run_id
    for changes in ({"matrix_rate": 0.01}, {"prelude_layers": 0, "coda_layers": 1}, {"continues": "a@1:0"}):
        assert TrainConfig.of(**{**fields, **changes}).run_id != name
    for same in ({"backprop_recurrences": 2}, {"lanes": 3}, {"corpus_digest": "0" * 16}):
        assert TrainConfig.of(**{**fields, **same}).run_id == name
    plain = {**fields, "recurrences": 1}
    assert TrainConfig.of(**plain, injection="additive").run_id == TrainConfig.of(**plain).run_id


def test_rates_at_and_off_the_reference_point():
    """By hand, from the formulas of the recipe."""
    at = {"d_model": 640, "batch_tokens": 2**18, "seq_len": 2048, "rate_rule": "paper", "head_size": 128}
    base = {"matrix": 0.014, "embedding": 0.3, "head": 0.004, "gain": 0.005, "lane": 0.01}
    tokens = 2**18 * 3751
    rates = TrainConfig.of(**at, tokens=tokens).rates
    assert rates["matrix"] == pytest.approx(0.014 * (tokens / 983.3e6) ** -0.32, rel=1e-12)
    assert {kind: rate for kind, rate in rates.items() if kind != "matrix"} == {
        kind: rate for kind, rate in base.items() if kind != "matrix"
    }
    looped = TrainConfig.of(**at, recurrences=4, shared_layers=1, tokens=tokens).rates
    assert looped["matrix"] == pytest.approx(0.014 * (tokens / 1016.1e6) ** -0.32, rel=1e-12)
    far = TrainConfig.of(**{**at, "d_model": 2560, "batch_tokens": 2**19}, tokens=2 * tokens).rates
    assert far["matrix"] == pytest.approx(0.014 * 2**0.558 * (2 * tokens / 983.3e6) ** -0.32, rel=1e-12)
    assert far["head"] == pytest.approx(0.004 * 2**0.558 / 2, rel=1e-12)
    assert far["embedding"] == pytest.approx(0.3 * 2**0.558 / 2, rel=1e-12)
    assert far["gain"] == pytest.approx(0.0025, rel=1e-12)
    assert far["lane"] == pytest.approx(0.005, rel=1e-12)
    own = TrainConfig.of(**at, tokens=tokens, matrix_rate=0.028).rates
    assert own["matrix"] == pytest.approx(2 * rates["matrix"], rel=1e-12)


def test_the_budget_becomes_whole_batches(fields):
    config = TrainConfig.of(**{**fields, "tokens": None, "budget": 1e8})
    assert config.train_tokens % config.optimizer.batch_tokens == 0
    spent = config.train_tokens * config.architecture.flops_per_token
    assert abs(spent - 1e8) <= config.optimizer.batch_tokens * config.architecture.flops_per_token / 2
    assert re.fullmatch(r"baseline/2/0.25/1e\+08/0/[0-9a-f]{8}", config.run_id)
    assert config.row["budget"] == 1e8
    assert TrainConfig.of(**fields).row["budget"] == fields["tokens"] * config.row["flops_per_token"]


def test_the_least_and_the_largest_run(fields):
    step = TrainConfig.of(**{**fields, "tokens": 128}).row["budget"]
    assert TrainConfig.of(**{**fields, "tokens": None, "budget": step}).steps == 1
    with pytest.raises(BudgetError) as error:
        TrainConfig.of(**{**fields, "tokens": None, "budget": 0.99 * step})
    assert error.value.allowed == f"{step!r} FLOPs or more"  # can be typed back as it stands
    assert TrainConfig.of(**{**fields, "tokens": 128 * 10**9}).steps == 10**9


def test_the_row_is_of_the_run_table(fields):
    row = TrainConfig.of(**fields).row
    assert set(row) < set(COLUMNS)
    assert not any(COLUMNS[name].result for name in row)
    assert row["n_unique"] == row["n_once"] + row["n_shared"] + row["n_injection"]
    assert all(isinstance(row[name], int) for name in row if name.startswith("n_"))
    plain = TrainConfig.of(**{**fields, "recurrences": 1}).row
    assert (plain["injection"], plain["n_injection"], plain["backprop_recurrences"]) == ("none", 0, 1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"device": "gpu"}, "device = 'gpu'\n  allowed: auto, cpu, cuda"),
        ({"precision": "float16"}, "precision = 'float16'.*nearest is bfloat16"),
        ({"compile": True}, "compile = True\n  allowed: auto, on, off"),
        ({"micro_batch": 0}, "micro_batch = 0"),
        ({"keep": 0}, "keep = 0\n  allowed: a whole number, 1 or more"),
        ({"checkpoint_every": -1}, "checkpoint_every = -1"),
        ({"checkpoint_minutes": 0}, "checkpoint_minutes = 0"),
        ({"activation_checkpointing": "yes"}, "activation_checkpointing = 'yes'\n  allowed: true or false"),
    ],
)
def test_executions_that_are_none(changes, named):
    with pytest.raises(UsageError, match=f"(?s){named}"):
        Execution(**changes)
