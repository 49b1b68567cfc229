"""The plan file: what comes back, and what is refused."""

from __future__ import annotations

import json

import pytest

from bayeslaw.errors import JournalError, UsageError
from bayeslaw.plan import Plan, PlannedRun, _sha256, read_plan, write_plan


def planned(seed):
    return PlannedRun({"d_model": 16, "seed": seed, "rate": 0.1}, {"run_id": f"a/{seed}", "tokens": 256, "flops": 1e9})


@pytest.fixture
def file(tmp_path):
    """A plan of two runs."""
    write_plan(Plan("tiny", (planned(0), planned(1))), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def change(file, edit, *, sealed=False):
    """Edit the plan file's content; ``sealed`` gives it the hash of what it then holds."""
    content = json.loads(file.read_text())
    edit(content)
    if sealed:
        del content["plan_hash"]
        content["plan_hash"] = _sha256(content)
    file.write_text(json.dumps(content))


def test_there_and_back(file):
    plan = read_plan(file)
    assert plan == Plan("tiny", (planned(0), planned(1)))
    file.write_text(json.dumps(json.loads(file.read_text()), indent=4, sort_keys=True))  # layout says nothing
    assert read_plan(file) == plan


@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: plan["runs"].__setitem__(0, 5),
        lambda plan: plan["runs"][0].update(tokens=-3),
        lambda plan: plan["runs"][0].update(run_id="../../../tmp/evil"),
        lambda plan: plan["runs"][0]["config"].update(seed=7),
        lambda plan: plan["runs"].append(plan["runs"][0]),
        lambda plan: plan["runs"].clear(),
        lambda plan: plan.update(study=None),
        lambda plan: plan.update(study="other"),
        lambda plan: plan.update(more=1),
        lambda plan: plan.update(plan_hash="0" * 64),
        lambda plan: plan.pop("plan_hash"),
    ],
)
def test_any_edit_is_refused(file, edit):
    change(file, edit)
    with pytest.raises(JournalError, match=r"plan\.json was changed after planning.*\n  next: plan again"):
        read_plan(file)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda plan: plan.update(study=None), "study = None"),
        (lambda plan: plan.update(study=" "), "study = ' '"),
        (lambda plan: plan["runs"].clear(), "a plan of 0 runs"),
        (lambda plan: plan["runs"].append(plan["runs"][0]), "a plan of 3 runs, 2 of them different"),
        (lambda plan: plan["runs"].__setitem__(0, 5), "is not a sweep plan: entry 1 of its runs has no run_id"),
        (lambda plan: plan["runs"][1].pop("config"), "is not a sweep plan: entry 2 of its runs"),
        (lambda plan: plan.update(runs=5), "is not a sweep plan: it has no list of runs"),
        (lambda plan: plan.pop("study"), "study = ''"),
    ],
)
def test_what_no_planning_makes_is_refused_whatever_its_hash(file, edit, named):
    change(file, edit, sealed=True)
    with pytest.raises(JournalError, match=f"(?s)plan.json.*{named}.*next: "):
        read_plan(file)


def test_another_version_is_named(file):
    change(file, lambda plan: plan.update(schema_version=99))
    with pytest.raises(JournalError, match="has schema_version 99\n  allowed: 1\n  next: plan again"):
        read_plan(file)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "it is empty"),
        (b"[]", "it holds no JSON object"),
        (b"5", "it holds no JSON object"),
        (b"{}", "it has no schema_version"),
        (b'{"runs": []}', "it has no schema_version"),
        (b"no json", "it is no JSON from line 1, column 1 on"),
        (b'{"schema_version": 1,\n "runs": [', "it is no JSON from line 2, column 11 on"),
        (b"[" * 100_000, "it is no JSON"),
        (b"9" * 10_000, "it is no JSON"),
        (b'{"schema_version": 1, "runs": [NaN]}', "a number in it is not finite"),
        (b"\xff\xfe", "it is no text"),
    ],
)
def test_a_file_of_another_kind(file, content, wrong):
    file.write_bytes(content)
    with pytest.raises(JournalError, match="next: make one with") as error:
        read_plan(file)
    assert error.value.what == f"{file} is not a sweep plan: {wrong}"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"no such file: .*none\.json\n.*\n  next: make one with"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        read_plan(tmp_path)


@pytest.mark.parametrize("study", ["", " \t", None])
def test_a_plan_has_a_study(study):
    with pytest.raises(UsageError, match=r"study = .*\n  allowed: a name"):
        Plan(study, (planned(0),))


def test_the_longest_first():
    """By hours where all are known, else by FLOPs."""

    def run(seed, flops, **hours):
        return PlannedRun({"seed": seed}, {"run_id": f"a/{seed}", "tokens": 256, "flops": flops, **hours})

    def order(*runs):
        return [run.row["run_id"] for run in Plan("tiny", runs).longest_first.runs]

    assert order(run(0, 1e9), run(1, 3e9), run(2, 2e9)) == ["a/1", "a/2", "a/0"]
    assert order(run(0, 1e9, hours=3.0), run(1, 3e9, hours=1.0), run(2, 2e9, hours=2.0)) == ["a/0", "a/2", "a/1"]
    assert order(run(0, 1e9, hours=3.0), run(1, 3e9), run(2, 2e9, hours=2.0)) == ["a/1", "a/2", "a/0"]
