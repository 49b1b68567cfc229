"""What a config refuses, and what it says of the run before it runs."""

from __future__ import annotations

import pytest

from bayeslaw.errors import UsageError
from bayeslaw.schema import COLUMNS
from trainer.config import BudgetError, TrainConfig


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"d_model": 20}, "d_model = 20 with head_size = 8\n  allowed: a multiple of head_size\n  next: .* 16"),
        ({"d_model": 3}, "the nearest is 8"),
        ({"head_size": 7, "d_model": 14}, "head_size = 7\n  allowed: an even number"),
        ({"batch_tokens": 100}, "batch_tokens = 100 with seq_len = 16.*\n.*\n.* 96"),
        ({"tokens": 1000}, "tokens = 1000 with batch_tokens = 128.*\n.*\n.* 1024"),
        ({"tokens": None}, "budget = None, tokens = None\n  allowed: one of the two"),
        ({"budget": 1e9}, "allowed: one of the two"),
        ({"tokens": None, "budget": float("nan")}, "budget = nan"),
        ({"tokens": None, "budget": -1e9}, "budget = -1"),
        ({"recurrences": 0}, "recurrences = 0\n  allowed: a whole number, 1 or more"),
        ({"recurrences": 2.5}, "recurrences = 2.5"),
        ({"seed": -1}, "seed = -1"),
        ({"vocab_size": 100}, "256 or more: tokens are bytes"),
        ({"validation_tokens": 8}, "at least one sequence, 16"),
        ({"injection": "additive"}, "injection 'additive' with recurrences = 2\n  allowed: linear"),
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
        TrainConfig(**{**fields, **changes})
    assert error.value.exit_code == 2


def test_dict_and_back(fields):
    config = TrainConfig(**fields)
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["matrix_rate"] > 0  # what is applied stands in the record
    with pytest.raises(UsageError, match="'batch_token'") as error:
        TrainConfig.from_dict({**fields, "batch_token": 1})
    assert error.value.do == "the nearest is batch_tokens"
    with pytest.raises(UsageError, match="without d_model, seq_len"):
        TrainConfig.from_dict({name: fields[name] for name in fields if name not in ("d_model", "seq_len")})


def test_the_budget_becomes_whole_batches(fields):
    config = TrainConfig(**{**fields, "tokens": None, "budget": 1e8})
    assert config.train_tokens % config.batch_tokens == 0
    spent = config.train_tokens * config.architecture.flops_per_token
    assert abs(spent - 1e8) <= config.batch_tokens * config.architecture.flops_per_token / 2
    assert config.run_id == "baseline/2/0.25/1e+08/0"
    assert config.row["budget"] == 1e8
    assert TrainConfig(**fields).row["budget"] == fields["tokens"] * config.row["flops_per_token"]


def test_the_least_and_the_largest_run(fields):
    step = TrainConfig(**{**fields, "tokens": 128}).row["budget"]
    assert TrainConfig(**{**fields, "tokens": None, "budget": step}).steps == 1
    with pytest.raises(BudgetError) as error:
        TrainConfig(**{**fields, "tokens": None, "budget": 0.99 * step})
    assert error.value.allowed == f"{step!r} FLOPs or more"  # can be typed back as it stands
    assert TrainConfig(**{**fields, "tokens": 128 * 10**9}).steps == 10**9


def test_the_row_is_of_the_run_table(fields):
    row = TrainConfig(**fields).row
    assert set(row) < set(COLUMNS)
    assert not any(COLUMNS[name].result for name in row)
    assert row["n_unique"] == row["n_once"] + row["n_shared"] + row["n_injection"]
    assert all(isinstance(row[name], int) for name in row if name.startswith("n_"))
    plain = TrainConfig(**{**fields, "recurrences": 1}).row
    assert (plain["injection"], plain["n_injection"], plain["backprop_recurrences"]) == ("none", 0, 1)
