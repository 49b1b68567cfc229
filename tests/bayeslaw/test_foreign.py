"""Tables of other programs become run tables by a map of columns that is taken apart, never evaluated."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.foreign import column_map, import_table
from bayeslaw.runs import load_runs, save_table

WANDB = """\
"Name","State","Created","n","step","val/loss","train/loss"
"a","finished","2026-01-01","10000000","2000","3.4","3.5"
"b","crashed","2026-01-01","10000000","1000","3.9","3.8"
"c","finished","2026-01-01","20000000","2000","NaN","3.1"
"d","running","2026-01-01","20000000","500","",""
"e","finished","2026-01-01","40000000","4000","3.0","3.0"
"f","finished","2026-01-01","40000000","4000","","3.0"
"g","killed","2026-01-01","40000000","4000","Infinity","3.0"
"""
MAP = {"loss": "val/loss", "tokens": "step * 524288", "recipe": "'baseline'"}


def write(path, text=WANDB):
    path.write_text(text)
    return path


def test_an_export_of_weights_and_biases(tmp_path):
    runs, table = import_table(write(tmp_path / "w.csv"), columns=MAP)
    assert list(runs["run_id"]) == list("abcdefg")
    assert list(runs["state"]) == ["finished", "killed", "diverged", "running", "finished", "failed", "killed"]
    assert list(table.runs["run_id"]) == ["a", "e"]
    assert list(table.runs["tokens"]) == [2000 * 524288, 4000 * 524288]
    assert list(table.runs["loss"]) == [3.4, 3.0]
    assert set(table.runs["recipe"]) == {"baseline"}
    assert list(table.excluded["run_id"]) == ["b", "c", "d", "f", "g"]
    assert "Created" not in runs
    for name in ("t.csv", "t.parquet"):
        save_table(runs, tmp_path / name)
        again = load_runs(tmp_path / name)
        assert again.data_hash == table.data_hash
        assert list(again.excluded["run_id"]) == list(table.excluded["run_id"])


def test_parquet_gives_the_same(tmp_path):
    _, expected = import_table(write(tmp_path / "w.csv"), columns=MAP)
    frame = pd.read_csv(tmp_path / "w.csv")
    frame.to_parquet(tmp_path / "w.parquet")
    _, table = import_table(tmp_path / "w.parquet", columns=MAP)
    assert table.data_hash == expected.data_hash
    assert list(table.excluded["run_id"]) == list(expected.excluded["run_id"])


@pytest.mark.parametrize(
    ("origin", "values"),
    [
        ("a", [1, 2]),
        ("a * 2.5", [2.5, 5]),
        ("a*1e3", [1000, 2000]),
        ("a * b", [7, 8]),  # a column of that name goes first
        ("a * b * 10", [70, 80]),
        ("'a'", ["x", "y"]),
        ("3", [3, 3]),
        ("2e9", [2_000_000_000] * 2),
        (5, [5, 5]),
        ("  a", [9, 9]),
    ],
)
def test_origins(tmp_path, origin, values):
    frame = pd.DataFrame(
        {"a": [1, 2], "a * b": [7, 8], "'a'": ["x", "y"], "  a": [9, 9], "n": 10**7, "loss": [3.0, 2.9]}
    )
    frame.assign(tokens=10**9).to_parquet(tmp_path / "t.parquet")
    runs, _ = import_table(tmp_path / "t.parquet", columns={"given": origin})
    assert list(runs["given"]) == values


def test_texts_in_quotes_are_texts_whatever_they_hold(tmp_path):
    nasty = "__import__('os').system('touch pwned') <b> \x1b[31m; DROP TABLE runs; --"
    _, table = import_table(write(tmp_path / "w.csv"), columns=MAP | {"recipe": f'"{nasty}"'})
    assert set(table.runs["recipe"]) == {nasty}
    _, table = import_table(write(tmp_path / "w.csv"), columns=MAP | {"recipe": "'2'"})
    assert set(table.runs["recipe"]) == {"2"}


@pytest.mark.parametrize(
    "origin",
    ["__import__('os')", "step ** 2", "step + 1", "step * step", "step * ", "* 2", "step * 1_000", "lambda: 0"],
)
def test_nothing_is_evaluated(tmp_path, origin):
    with pytest.raises(UsageError, match="has no column") as error:
        import_table(write(tmp_path / "w.csv"), columns=MAP | {"tokens": origin})
    assert "a column * number" in error.value.allowed


def test_what_is_missing_is_named_with_the_nearest_columns_and_an_example(tmp_path):
    with pytest.raises(RunTableError) as error:
        import_table(write(tmp_path / "w.csv"))
    assert error.value.what.endswith("gives tokens, loss; the nearest of its columns: loss: 'val/loss', 'train/loss'")
    assert error.value.do == 'say which column it is, such as --column tokens="COLUMN" --column loss="val/loss"'
    with pytest.raises(RunTableError, match=r"nothing in .* gives n_once, n_shared"):
        import_table(write(tmp_path / "w.csv"), columns=MAP | {"recurrences": "2"})
    with pytest.raises(UsageError, match="no column 'vall/loss', did you mean 'val/loss'"):
        import_table(write(tmp_path / "w.csv"), columns={"loss": "vall/loss"})


def test_a_file_without_any_mapped_column(tmp_path):
    path = write(tmp_path / "t.csv", "x,y\n1,2\n")
    with pytest.raises(RunTableError, match="gives n, tokens, loss"):
        import_table(path)
    with pytest.raises(RunTableError, match="more than one column x"):
        import_table(write(tmp_path / "t.csv", "x,x\n1,2\n"))
    with pytest.raises(NoRunsError, match="no finished run"):
        import_table(write(tmp_path / "t.csv", "n,tokens,loss,state\n1e7,1e9,3,failed\n"))


def test_bad_values_name_the_line(tmp_path):
    text = WANDB.replace('"4000","3.0"', '"4k","3.0"')
    with pytest.raises(RunTableError, match=r"w\.csv, line 6: step is '4k', not a number"):
        import_table(write(tmp_path / "w.csv", text), columns=MAP)
    with pytest.raises(RunTableError, match="line 3: the state is broken") as error:
        import_table(write(tmp_path / "w.csv", WANDB.replace("crashed", "broken")), columns=MAP)
    assert "crashed" in error.value.allowed
    with pytest.raises(RunTableError, match="line 6: loss is 'low', not a number"):
        import_table(write(tmp_path / "w.csv", WANDB.replace('"4000","3.0"', '"4000","low"')), columns=MAP)


def test_files_that_are_none(tmp_path):
    with pytest.raises(UsageError, match="no file"):
        import_table(tmp_path / "w.csv")
    with pytest.raises(UsageError, match="neither CSV nor Parquet"):
        import_table(write(tmp_path / "w.json"))


def test_the_columns_of_the_run_table_need_no_map(tmp_path):
    frame = load_runs("isodepth").runs.drop(columns=["source", "read_from"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    _, table = import_table(tmp_path / "t.csv")
    assert table.data_hash == load_runs("isodepth").data_hash
    assert not table.runs["loss"].map(math.isnan).any()


def test_maps_of_flags_and_files(tmp_path):
    file = write(tmp_path / "map.toml", "loss = \"val/loss\"\ntokens = 'step * 2'\nrecipe = \"'a = b'\"\nseed = 3\n")
    assert column_map(["loss = train/loss", "x='p=q'"], file) == {
        "loss": "train/loss", "tokens": "step * 2", "recipe": "'a = b'", "seed": 3, "x": "'p=q'",
    }  # fmt: skip
    for flag in ("loss", "loss=", "=val"):
        with pytest.raises(UsageError):
            import_table(write(tmp_path / "w.csv"), columns=column_map([flag]))
    for text in ("loss = [1]", "loss = true", "loss", "[a]\nb = 1"):
        with pytest.raises(UsageError, match=r"--columns .*map\.toml"):
            column_map([], write(tmp_path / "map.toml", text))
    with pytest.raises(UsageError, match=r"none\.toml"):
        column_map([], tmp_path / "none.toml")
    with pytest.raises(UsageError, match="column name 'a b'"):
        import_table(write(tmp_path / "w.csv"), columns=MAP | {"a b": "n"})
