"""Own runs joined with the shipped baseline, and the reasons to doubt that they compare."""

from dataclasses import replace

import pandas as pd
import pytest

from bayeslaw import load_runs
from bayeslaw.compare.against import joined
from bayeslaw.errors import NoRunsError, RunTableError, UsageError
from bayeslaw.runs import RunTable, validate

PLAIN = ["recurrences", "n_once", "n_shared", "n_injection", "tokens", "loss"]


@pytest.fixture(scope="module")
def baseline() -> RunTable:
    return load_runs("isodepth")


@pytest.fixture(scope="module")
def lanes() -> pd.DataFrame:
    return load_runs("isodepth-recipes", where="recipe == 'hyperconnections' and budget >= 4e18").runs


def own(frame, source="desk.csv"):
    return validate(frame, source=source)


def test_runs_without_a_recipe_are_called_by_their_source(baseline, lanes):
    both = joined(own(lanes[PLAIN]), baseline)
    assert both.own == ("desk",)
    assert set(both.table.runs["recipe"]) == {"baseline", "desk"}
    assert len(both.table.runs) == 116 + len(lanes)
    assert both.table.source == "desk.csv against isodepth"
    assert any("called 'desk' here" in note for note in both.table.notes)
    assert (both.table.runs.loc[both.table.runs["recipe"] == "baseline", "source"] == "isodepth").all()
    assert joined(own(lanes[PLAIN], "baseline.csv"), baseline).own == ("baseline (own)",)


def test_named_recipes_keep_their_names_and_run_ids_stay_unique(baseline, lanes):
    named = lanes[PLAIN].assign(recipe="mine", run_id=baseline.runs["run_id"].to_numpy()[: len(lanes)])
    both = joined(own(named), baseline)
    assert both.own == ("mine",)
    assert both.table.runs["run_id"].is_unique
    assert both.table.runs["run_id"].str.startswith("desk:").sum() == len(lanes)


def test_the_baselines_own_runs_count_once(baseline):
    whole = load_runs("isodepth-recipes")
    both = joined(whole, baseline)
    assert len(both.table.runs) == len(whole.runs)
    assert both.own == ("hyperconnections", "truncated_bptt")
    assert both.doubts == ()
    assert any(note.startswith("116 runs of isodepth-recipes are those of isodepth") for note in both.table.notes)
    with pytest.raises(NoRunsError, match="nothing to compare"):
        joined(baseline, baseline)


def test_what_is_taken_on_trust_is_said(baseline, lanes):
    said = " ".join(joined(own(lanes[PLAIN]), baseline).doubts)
    assert "does not tell its vocabulary" in said
    assert "no run at r = 1: those of isodepth serve" in said
    assert "does not record FLOPs" in said
    deeper = lanes.assign(
        source="desk", tokens=lanes["tokens"] * 10, flops=lanes["flops"] * 10, budget=lanes["budget"] * 10, seq_len=4096
    )
    said = " ".join(joined(RunTable(deeper, "desk.csv", baseline.excluded, ()), baseline).doubts)
    assert "another context length (4096) than isodepth (2048)" in said
    assert f"of {len(lanes)} runs of desk.csv were trained with fewer or more FLOPs" in said
    assert "vocabulary" not in said


@pytest.mark.parametrize(("factor", "told"), [(1.0, None), (1.001, None), (1.03, "3.0 % above"), (0.96, "4.1 % below")])
def test_an_offset_at_r_1_is_found(baseline, lanes, factor, told):
    anchor = baseline.runs[baseline.runs["recurrences"] == 1][PLAIN]
    runs = pd.concat([lanes[PLAIN], anchor.assign(loss=1.0001 * factor * anchor["loss"])], ignore_index=True)
    said = " ".join(joined(own(runs), baseline).doubts)
    if told is None:
        assert "% above" not in said
        assert "% below" not in said
    else:
        assert float(told.split()[0]) == pytest.approx(float(said.split(" lie ")[1].split()[0]), abs=0.2)
        assert told.split("% ")[1] in said


def test_losses_of_other_tokens_are_refused(baseline, lanes):
    other = replace(
        own(lanes[PLAIN].assign(recipe="bytes")), runs=lanes.assign(recipe="bytes", vocab_size=256, loss=1.0)
    )
    with pytest.raises(RunTableError, match="vocabulary of 256, isodepth one of 32064"):
        joined(other, baseline)


def test_what_cannot_be_compared(baseline, lanes):
    anchor = baseline.runs[baseline.runs["recurrences"] == 1][PLAIN]
    with pytest.raises(NoRunsError, match="no looped run besides"):
        joined(own(anchor.assign(loss=anchor["loss"] + 0.01)), baseline)
    with pytest.raises(UsageError, match="no recipe 'baseline'"):
        joined(own(lanes[PLAIN]), own(lanes[PLAIN].assign(recipe="other"), "theirs.csv"))
