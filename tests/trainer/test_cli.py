"""`bayeslaw train` and `bayeslaw sweep` as a user types them."""

from __future__ import annotations

import json
import re

import pytest
import torch

from bayeslaw.cli import run
from bayeslaw.journal import find_journals, read_journal
from bayeslaw.plan import read_plan
from bayeslaw.runs import load_runs
from trainer.config import TrainConfig
from trainer.learner import Learner
from trainer.rundir import claimed, run_directory


@pytest.fixture(autouse=True)
def _store_in_the_environment(monkeypatch, store_uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store_uri)


def command(verb, flags, **changes):
    """The typed words: verb, then every flag with its value or values; None leaves a flag out."""
    words = verb.split()
    for name, value in (flags | changes).items():
        if value is not None:
            words += ["--" + name.replace("_", "-"), *str(value).split()]
    return words


@pytest.fixture
def flags(corpus, tmp_path):
    """Flags of a run of 48 steps."""
    return {
        "width_scale": 0.25, "recurrences": 2, "shared_layers": 1, "coda_layers": 0, "head_size": 8, "seq_len": 16,
        "batch_tokens": 128, "tokens": 6144, "corpus": corpus, "validation_tokens": 640, "out": tmp_path / "out",
        "study": "typed",
    }  # fmt: skip


@pytest.fixture
def plan_flags(flags, tmp_path):
    """Flags of a plan of two runs."""
    own = {"budgets": "1e9 2e9", "widths": 24, "unrolled_layers": 2, "out": tmp_path / "plan.json"}
    return {name: flags[name] for name in flags if name not in ("width_scale", "shared_layers", "tokens")} | own


def test_train_tracked(flags, store_uri, capsys, tmp_path):
    assert run([*command("train", flags), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema_version"] == 1
    (path,) = find_journals(tmp_path / "out")
    assert str(path.parent) == answer["run_dir"]
    assert answer["run"] == read_journal(path).row
    assert answer["run"]["d_model"] == 16
    tracked = load_runs("mlflow:typed", tracking_uri=store_uri)
    assert list(tracked.runs["loss"]) == [answer["run"]["loss"]]


@pytest.mark.slow
def test_train_while_the_store_is_away_then_again(flags, capfd):
    flags |= {"tracking_uri": "http://127.0.0.1:9"}
    assert run(command("train", flags)) == 0
    printed = capfd.readouterr()
    assert "nats/token" in printed.out
    assert "bayeslaw runs sync" in printed.err
    assert run(command("train", flags)) == 0
    again = capfd.readouterr()
    assert again.out == printed.out
    assert "trained before" in again.err


def test_a_run_that_diverges_exits_1(flags, capsys):
    assert run(command("train", flags, gain_rate=1e38)) == 1
    printed = capsys.readouterr()
    assert "diverged" in printed.out
    assert re.search("skipped steps +5, loss or gradient was no number", printed.out)
    assert "no number any more" in printed.err
    assert re.search(r"next: train with lower learning rates: --matrix-rate .*--gain-rate \(now 1e\+38\)", printed.err)
    assert "smaller budget" not in printed.err


@pytest.mark.slow
def test_a_loss_of_one_sequence_has_no_standard_error(flags, capsys):
    assert run(command("train", flags, validation_tokens=16)) == 0
    assert re.search(r"loss +\d\.\d{4} nats/token", capsys.readouterr().out)
    assert run(command("train", flags)) == 0
    assert re.search(r"loss +\d\.\d{4} \+- 0\.\d{4} nats/token", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"d_model": 16}, "--d-model 16 and --width-scale 0.25"),
        ({"width_scale": None}, "a config without d_model"),
        ({"width_scale": 0.3}, "the nearest is --d-model 19"),
        ({"width_scale": "inf"}, "--width-scale inf"),
        ({"head_size": 6}, "the nearest is 18"),
        ({"corpus": "stdlb"}, "the nearest is stdlib"),
        ({"seq_len": 1024, "batch_tokens": 1024, "validation_tokens": 10240}, "held-out tokens"),
        ({"budget": 1e9}, "one of budget (FLOPs), tokens, steps"),
        ({"tokens": None}, "no target"),
        ({"head_size": 5}, "head_size = 5"),
        ({"preset": "papr"}, "the nearest is paper"),
        ({"preset": "desk", "recurrences": 3, "shared_layers": None}, "the nearest is 2"),
        ({"rate_rule": "papr"}, "the nearest is paper"),
        ({"injection": "lineer"}, "the nearest is linear"),
        ({"device": "cpuu"}, "the nearest is cpu"),
        ({"precision": "float16"}, "precision = 'float16'"),
        ({"config": "absent.toml"}, "cannot read absent.toml"),
        ({"corpus_digest": "0" * 16}, "0000000000000000, as when the run was planned"),
        ({"corpus": "KristianS7/prepacked-fineweb-edu-llama2-32K-T2048"}, "not on this machine"),
        ({"recurences": 2}, "--recurrences"),
        ({"tokens": "many"}, "--tokens 'many'\n  allowed: a whole number"),
        pytest.param(
            {"device": "cuda"},
            "for 1 process of this machine, which has 0 GPUs",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_flags_that_cannot_be_meant(flags, capsys, changes, named):
    assert run(command("train", flags, **changes)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert named in printed.err


def test_presets_file_and_flags(flags, tmp_path, capsys):
    """The preset's fields, then the recipe's, then the file's, then the flags'."""
    (tmp_path / "run.toml").write_text(
        'recipe = "additive"\nseed = 5\n[model]\nd_model = 32\nseq_len = 16\n[data]\nvalidation_tokens = 1280\n'
        "[target]\ntokens = 999\n[execution]\ncheckpoint_every = 2\nkeep = 3\n"
    )
    kept = ("corpus", "out", "study", "recurrences", "batch_tokens")
    typed = {name: flags[name] for name in kept} | {"preset": "desk", "config": tmp_path / "run.toml"}
    assert run([*command("train", typed, steps=4, seed=6, keep=1), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    row = answer["run"]
    assert (row["recipe"], row["injection"], row["seed"]) == ("additive", "additive", 6)
    assert (row["d_model"], row["shared_layers"], row["seq_len"], row["tokens"]) == (32, 2, 16, 512)
    config = TrainConfig.from_dict(read_journal(find_journals(tmp_path / "out")[0]).start["config"])
    assert (config.data.validation_tokens, config.model.coda_layers) == (1280, 1)
    assert answer["checkpoint"].endswith("step-000000004")
    assert len(list(run_directory(tmp_path / "out", row["run_id"]).glob("checkpoints/step-*"))) == 1


@pytest.mark.parametrize("written", ['"16"', "16.0", "true"])
def test_what_is_no_whole_number_is_shown_as_what_it_is(tmp_path, capsys, written):
    (tmp_path / "run.toml").write_text(f"[model]\nd_model = {written}\n[target]\nsteps = 1\n")
    assert run(["train", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 2
    shown = {'"16"': "'16'", "true": "True"}.get(written, written)
    assert f"d_model = {shown}\n  allowed: a whole number" in capsys.readouterr().err


def test_continue_from(flags, tmp_path, capsys):
    assert run([*command("train", flags), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    typed = {"continue_from": first["run_dir"], "out": tmp_path / "out", "tokens": 2 * 6144}
    assert run([*command("train", typed), "--json"]) == 0
    longer = json.loads(capsys.readouterr().out)["run"]
    assert longer["tokens"] == 2 * first["run"]["tokens"]
    assert longer["d_model"] == 16
    for changes, named in (
        ({"seed": 3, "preset": "desk", "d_model": 16}, "--preset, --seed, --d-model with --continue-from"),
        ({"tokens": None}, "no target"),
        ({"tokens": 1280}, "a target of 10 steps"),
    ):
        assert run(command("train", typed, **changes)) == 2
        told = capsys.readouterr().err
        assert all(word in told for word in named.split(" with ")[0].split(", ")), told
    assert run(command("train", typed, continue_from=tmp_path / "absent")) == 1
    assert "no checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_a_label_that_is_nearly_a_recipe(flags, plan_flags, capsys):
    doubt = "warning: the recipe 'truncated_bpt' is only a label and sets nothing; the nearest is truncated_bptt"
    assert run(command("sweep plan", plan_flags, recipes="truncated_bpt")) == 0
    assert doubt in capsys.readouterr().err
    assert run(command("train", flags, recipe="truncated_bpt")) == 0
    assert doubt in capsys.readouterr().err
    assert run(command("train", flags, recipe="my-label")) == 0
    assert "label" not in capsys.readouterr().err


@pytest.mark.slow
def test_of_several_processes_one_speaks(flags, monkeypatch, capsys):
    """Results and notes come from rank 0; here a second process finds the run finished."""
    assert run(command("train", flags)) == 0
    capsys.readouterr()
    monkeypatch.setenv("RANK", "1")
    assert run(command("train", flags)) == 0
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_plans_of_presets(tmp_path, capsys):
    words = ["sweep", "plan", "--preset", "paper"]
    assert run([*words, "--recipes", "truncated_bptt,hyperconnections", "--recurrences", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {entry["recipe"] for entry in answer["runs"]} == {"truncated_bptt", "hyperconnections"}
    for more, named in (
        (["--unrolled-layers", "8"], "--unrolled-layers with --preset paper"),
        (["--widths", "100"], "widths: 100 in the preset paper"),
        (["--preset", "desks"], "the nearest is desk"),
    ):
        assert run([*words, *more] if "--preset" not in more else ["sweep", "plan", *more]) == 2
        assert named in capsys.readouterr().err
    assert run(["sweep", "plan", "--budgets", "1e10"]) == 2
    assert "no --widths, --recurrences" in capsys.readouterr().err


def test_a_plan_on_a_corpus_that_is_not_here(tmp_path, capsys):
    part = ["--budgets", "4.64e17", "--widths", "640", "--recurrences", "1"]
    file, out = str(tmp_path / "plan.json"), str(tmp_path / "out")
    assert run(["sweep", "plan", "--preset", "paper", *part, "--out", file]) == 0
    assert "is not on this machine" in (told := capsys.readouterr().err)
    assert "plan with --corpus PATH" in told
    assert run(["sweep", "run", file, "--out", out]) == 2
    assert "bayeslaw sweep plan --preset paper --corpus PATH" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(flags, plan_flags, tmp_path, capsys):
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "out")
    assert run(command("train", flags, out=below)) == 1
    assert "cannot write the run directory" in capsys.readouterr().err
    assert run(command("sweep plan", plan_flags, out=f"{below}/plan.json")) == 1
    assert "cannot write" in capsys.readouterr().err
    assert run(command("sweep plan", plan_flags)) == 0
    assert run(["sweep", "run", str(tmp_path / "plan.json"), "--out", below]) == 1
    assert "choose another output folder with --out" in capsys.readouterr().err


def test_sweep(plan_flags, tmp_path, capsys):
    file, out = str(tmp_path / "plan.json"), str(tmp_path / "out")
    assert run([*command("sweep plan", plan_flags), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["study"] == "typed"
    assert planned["flops"] == pytest.approx(sum(entry["flops"] for entry in planned["runs"]))
    assert {"n_unique", "tokens", "flops_per_token", "flops", "config"} <= set(planned["runs"][0])
    assert run(command("sweep plan", plan_flags)) == 0
    assert "2 runs, 2.988e+09 FLOPs" in capsys.readouterr().out

    assert run(["sweep", "run", file, "--out", out, "--limit", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["planned"], len(answer["runs"])) == (2, 1)
    assert run(["sweep", "run", f"{file}.none", "--out", out]) == 2
    assert f"error: no such file: {file}.none" in capsys.readouterr().err
    assert run(["sweep", "run", file, "--out", out]) == 0
    assert "2 of 2 runs are finished, 1 since before; 0 went wrong" in capsys.readouterr().out
    assert len(load_runs("mlflow:typed").runs) == 2


def test_sync(finished, capsys):
    """Delivered once whatever happens twice; a damaged journal is named, and the others go on."""
    damaged = finished / "runs" / "damaged" / "journal.jsonl"
    damaged.parent.mkdir()
    damaged.write_text("no journal\nat all\n")
    for new in (True, False):
        assert run(["runs", "sync", str(finished), "--json"]) == 1
        printed = capsys.readouterr()
        good, bad = sorted(json.loads(printed.out)["runs"], key=lambda row: bool(row["error"]))
        assert good["state"] == "finished"
        assert (good["delivered"] == good["records"] > 0) if new else (good["delivered"] == 0)
        assert bad["path"] == str(damaged)
        assert str(damaged) in printed.err
        assert "1 of 2 journals" in printed.err
    damaged.unlink()
    assert run(["runs", "sync", str(finished)]) == 0
    assert len(load_runs("mlflow:tiny").runs) == 1


@pytest.mark.slow
def test_ctrl_c_in_a_sweep(plan_flags, tmp_path, monkeypatch, capsys):
    assert run(command("sweep plan", plan_flags)) == 0
    step, runs = Learner.step, [0]

    def interrupted(self, at, batch, **flags):
        runs[0] += at == 0
        if (runs[0], at) == (2, 2):
            raise KeyboardInterrupt
        return step(self, at, batch, **flags)

    monkeypatch.setattr(Learner, "step", interrupted)
    assert run(["sweep", "run", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]) == 130
    assert "finished runs, simulations and tasks are kept" in capsys.readouterr().err
    assert [read_journal(path).state for path in find_journals(tmp_path / "out")] == ["finished", "killed"]


@pytest.mark.slow
def test_a_run_that_fails_exits_1(plan_flags, tmp_path, monkeypatch, capsys):
    assert run(command("sweep plan", plan_flags)) == 0

    def fail(self, at, batch, **flags):
        raise OSError("no disk")

    monkeypatch.setattr(Learner, "step", fail)
    assert run(["sweep", "run", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert "OSError: no disk" in printed.err
    assert "0 of 2 runs are finished, 0 since before; 2 went wrong\n" in printed.out


@pytest.mark.slow
def test_two_sweeps_at_once(plan_flags, tmp_path, capsys):
    """Each trains what the other does not; what the other trains is no failure."""
    file, out = tmp_path / "plan.json", tmp_path / "out"
    assert run(command("sweep plan", plan_flags)) == 0
    held = run_directory(out, read_plan(file).runs[0].row["run_id"])
    with claimed(held):
        assert run(["sweep", "run", str(file), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert (
        "1 of 2 runs are finished, 0 since before; 0 went wrong; 1 is being trained by another process" in printed.out
    )
    assert "Error" not in printed.err


def test_a_model_without_memory_is_told(flags, capsys):
    assert run(command("train", flags, width_scale=None, d_model=1_000_000)) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: not enough memory: 26,000,519,000,000 parameters")


def test_a_plan_edited_by_hand_is_refused(plan_flags, tmp_path, capsys):
    file = tmp_path / "plan.json"
    assert run(command("sweep plan", plan_flags)) == 0
    file.write_text(file.read_text().replace('"flops": ', '"flops": -'))
    assert run(["sweep", "run", str(file), "--out", str(tmp_path / "out")]) == 1
    assert "was changed after planning" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_study_without_a_name(flags, plan_flags, tmp_path, capsys):
    for verb, typed in (("train", flags), ("sweep plan", plan_flags)):
        typed = {name: value for name, value in typed.items() if name != "study"}
        assert run([*command(verb, typed), "--study", ""]) == 2
        assert "study = ''\n  allowed: a name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "plan.json").exists()
