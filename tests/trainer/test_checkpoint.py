"""Checkpoints: what was written comes back bit for bit or not at all, whatever happens on the way."""

from __future__ import annotations

import errno
import json
import math
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from bayeslaw.errors import CheckpointError
from trainer import checkpoint
from trainer.checkpoint import FILE_NAME, latest, read, save
from trainer.states import optimizer_state, optimizer_tensors, require_same


def parts_of(value=1.0):
    return {
        "model": {
            "embedding": torch.full((5, 3), value),
            "gain": torch.full((3,), value, dtype=torch.bfloat16),
            "positions": torch.arange(7),
        },
        "optimizer": {"step/embedding": torch.tensor(value), "mask/gain": torch.tensor([True, False])},
    }


def equal(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == tensor.dtype and one[name].shape == tensor.shape and torch.equal(one[name], tensor)
        for name, tensor in other.items()
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def steps(folder):
    return [int(name.removeprefix("step-")) for name in names(folder)]


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints, of steps 10 and 20, in a run directory."""
    folder = tmp_path / "run" / "checkpoints"
    for step in (10, 20):
        save(folder, step, parts_of(float(step)), {"at": step}, keep=3)
    return folder


# ----------------------------------------------------------------------------------------------------- round trips


def test_comes_back_as_it_was(tmp_path):
    facts = {
        "val_loss": 0.1 + 0.2,
        "tiny": 5e-324,
        "nan": math.nan,
        "bounds": [-math.inf, math.inf],
        "generator": {"state": 2**128 - 1, "text": "é\u2028"},
        "none": None,
    }
    path = save(tmp_path / "run" / "checkpoints", 480, parts_of(), facts, keep=1)
    assert path == tmp_path / "run" / "checkpoints" / "step-000000480"
    assert names(path) == [FILE_NAME, "model.safetensors", "optimizer.safetensors"]
    assert len({(path / name).stat().st_mode for name in names(path)}) == 1  # who may read one may read all
    for found in (read(path), read(tmp_path / "run"), latest(tmp_path / "run" / "checkpoints")):
        assert (found.path, found.step, found.parts) == (path, 480, ["model", "optimizer"])
        assert repr(found.facts) == repr(facts)
        for part, tensors in parts_of().items():
            assert equal(found.tensors(part), tensors)


def test_tensors_that_safetensors_refuses(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    weight = torch.nn.Parameter(whole.clone())
    tensors = {
        "whole": whole,
        "turned": whole.T,
        "row": whole[1],
        "tied": whole,
        "weight": weight,
        "none": torch.empty(0, 4),
        "none of another": torch.empty(0),
    }
    path = save(tmp_path, 1, {"model": tensors, "optimizer": {}}, {}, keep=1)
    assert equal(read(path).tensors("model"), {name: tensor.detach() for name, tensor in tensors.items()})
    assert read(path).tensors("optimizer") == {}


def test_what_was_read_is_free_of_its_file(folder):
    """Training changes the tensors in place, and the checkpoint is removed meanwhile."""
    found = latest(folder)
    first, second = found.tensors("model"), found.tensors("model")
    first["embedding"].add_(1.0)
    assert equal(found.tensors("model"), parts_of(20.0)["model"])
    shutil.rmtree(folder)
    assert equal(second, parts_of(20.0)["model"])


def make_optimizer(model, order):
    """AdamW with the parameters in two groups, taken in an order of its own."""
    named = dict(model.named_parameters())
    groups = [{"params": [named[name] for name in order[:2]], "lr": 0.1}, {"params": [named[order[2]]], "lr": 0.01}]
    return torch.optim.AdamW(groups)


def trained(order):
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 1, bias=False)})
    return model, make_optimizer(model, order)


def train(model, optimizer, steps):
    for number in range(steps):
        optimizer.zero_grad()
        model["b"](model["a"](torch.full((2, 3), number + 1.0))).square().mean().backward()
        optimizer.step()


def test_an_optimiser_goes_on_under_another_grouping(tmp_path):
    first, second = ["a.weight", "a.bias", "b.weight"], ["b.weight", "a.weight", "a.bias"]
    model, optimizer = trained(first)
    train(model, optimizer, 3)
    parts = {"model": model.state_dict(), "optimizer": optimizer_tensors(optimizer.state_dict(), first)}
    assert set(parts["optimizer"]) == {f"{key}/{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in first}
    found = read(save(tmp_path, 3, parts, {}, keep=1))

    other_model, other = trained(second)
    rates = [group["lr"] for group in other.param_groups]
    other_model.load_state_dict(found.tensors("model"))
    other.load_state_dict(optimizer_state(found.tensors("optimizer"), other.state_dict()["param_groups"], second))
    assert [group["lr"] for group in other.param_groups] == rates
    again = optimizer_tensors(other.state_dict(), second)
    assert equal(again, parts["optimizer"])
    assert again["step/a.bias"].shape == ()

    part = optimizer_state(parts["optimizer"], [{"params": [0]}], ["a.bias"])  # an optimiser of one parameter
    assert part["state"].keys() == {0}
    assert part["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_an_optimiser_without_state(tmp_path):
    order = ["a.weight", "a.bias", "b.weight"]
    _, optimizer = trained(order)
    assert optimizer_tensors(optimizer.state_dict(), order) == {}
    assert optimizer_state({}, optimizer.state_dict()["param_groups"], order)["state"] == {}


def test_names_that_cannot_be_those_of_the_optimiser():
    order = ["a.weight", "a.bias", "b.weight"]
    _, optimizer = trained(order)
    for wrong in (order[:2], [*order[:2], "a.bias"]):
        with pytest.raises(AssertionError, match="different names for 3 parameters"):
            optimizer_tensors(optimizer.state_dict(), wrong)
    state = {"state": {0: {"step": 3}}, "param_groups": [{"params": [0]}]}
    with pytest.raises(AssertionError, match="step of a is no tensor"):
        optimizer_tensors(state, ["a"])


def test_another_architecture_is_told_by_what_differs():
    there = {"a": torch.zeros(2, 3), "old": torch.zeros(1), "same": torch.zeros(4)}
    wanted = {"a": torch.zeros(2, 4), "same": torch.zeros(4)} | {f"new{i}": torch.zeros(1) for i in range(5)}
    require_same(there, there)
    with pytest.raises(CheckpointError) as error:
        require_same(there, wanted)
    assert "missing: new0, new1, new2 and 2 more; unexpected: old;" in error.value.what
    assert "other shapes: a [2, 3] instead of [2, 4]" in error.value.what
    assert "config" in error.value.do


# ---------------------------------------------------------------------------------------------- which of them stay


def test_the_last_and_the_best_stay(tmp_path):
    losses = {10: None, 20: 3.0, 30: 2.0, 40: math.nan, 50: -math.inf, 60: 2.5, 70: "low"}
    for step, loss in losses.items():
        save(tmp_path, step, parts_of(), {} if loss is None else {"val_loss": loss}, keep=2)
    assert steps(tmp_path) == [30, 60, 70]
    save(tmp_path, 80, parts_of(), {"val_loss": 1.0}, keep=1)
    assert steps(tmp_path) == [80]


def test_without_losses_the_last_stay(tmp_path):
    for step in (5, 10, 999_999_999, 1_000_000_000):
        save(tmp_path, step, parts_of(), {}, keep=2)
    assert names(tmp_path) == ["step-1000000000", "step-999999999"]
    assert latest(tmp_path).step == 1_000_000_000


def test_what_was_left_behind_by_going_back_goes(folder):
    """Else the run would be taken up from there after the next kill."""
    save(folder, 30, parts_of(), {"val_loss": 0.1}, keep=3)
    save(folder, 15, parts_of(), {}, keep=3)
    assert steps(folder) == [10, 15]


def test_a_damaged_one_pushes_out_none_that_is_whole(folder):
    (folder / "step-000000020" / FILE_NAME).unlink()
    save(folder, 30, parts_of(), {}, keep=2)
    assert steps(folder) == [10, 30]


def test_a_step_done_again_is_replaced(folder):
    save(folder, 20, parts_of(7.0), {"at": "again"}, keep=3)
    assert steps(folder) == [10, 20]
    assert latest(folder).facts == {"at": "again"}
    assert equal(latest(folder).tensors("model"), parts_of(7.0)["model"])


# --------------------------------------------------------------------------------------------------------- damage


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    contents = bytearray(path.read_bytes())
    contents[-1 if path.suffix == ".safetensors" else contents.index(b"20")] ^= 1
    path.write_bytes(contents)


def empty(path):
    path.write_bytes(b"")


def other_json(path):
    path.write_text("[1, 2]")


MODEL = "model.safetensors"


@pytest.mark.parametrize(
    ("file", "damage", "told"),
    [
        (MODEL, cut, r"model.safetensors: it has .* bytes, not"),
        (MODEL, empty, r"model.safetensors: it has 0 bytes, not"),
        (MODEL, flip, r"model.safetensors: its contents are not what was written"),
        (MODEL, Path.unlink, r"model.safetensors: No such file"),
        (FILE_NAME, cut, r"checkpoint.json: no record of a checkpoint"),
        (FILE_NAME, empty, r"checkpoint.json: no record of a checkpoint"),
        (FILE_NAME, other_json, r"checkpoint.json: no record of a checkpoint"),
        (FILE_NAME, flip, r"checkpoint.json: its contents are not what was written"),
        (FILE_NAME, Path.unlink, r"checkpoint.json: No such file"),
    ],
)
def test_damage_is_named_and_passed_over(folder, capsys, file, damage, told):
    newest = folder / "step-000000020"
    damage(newest / file)
    with pytest.raises(CheckpointError, match=told) as error:
        read(newest).tensors("model")
    assert "train the run again" in error.value.do
    found = latest(folder)
    assert found.step == 10
    assert equal(found.tensors("model"), parts_of(10.0)["model"])
    warned = capsys.readouterr()
    assert warned.out == ""
    assert warned.err.count("warning: the checkpoint step-000000020 is passed over: damaged") == 1
    assert read(folder.parent).step == 10


def test_nothing_is_handed_out_of_a_file_damaged_meanwhile(folder):
    found = latest(folder)
    flip(found.path / MODEL)
    assert equal(found.tensors("optimizer"), parts_of(20.0)["optimizer"])
    with pytest.raises(CheckpointError, match="sha256 differs"):
        found.tensors("model")


def test_another_format_is_not_taken_for_none(folder):
    file = folder / "step-000000020" / FILE_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    for reader, path in ((read, file.parent), (latest, folder), (read, folder.parent)):
        with pytest.raises(CheckpointError, match="has the format version 2") as error:
            reader(path)
        assert error.value.allowed.startswith("1,")


def test_paths_that_hold_none(folder, tmp_path):
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    for path in (tmp_path, tmp_path / "nowhere", folder / "step-000000010" / MODEL):
        with pytest.raises(CheckpointError, match="is no checkpoint") as error:
            read(path)
        assert "RUN_DIR/checkpoints" in error.value.allowed
    for path in folder.iterdir():
        cut(path / FILE_NAME)
    assert latest(folder) is None
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        read(folder.parent)


def test_a_part_that_is_not_there(folder):
    with pytest.raises(CheckpointError, match="no part 'ema'") as error:
        latest(folder).tensors("ema")
    assert error.value.allowed == "model, optimizer"


# ------------------------------------------------------------------------------------ disks that fail, and sudden ends


@pytest.mark.parametrize("call", ["fsync", "save_file", "rename"])
@pytest.mark.parametrize("step", [20, 30])
def test_a_full_disk_leaves_what_was_there(folder, monkeypatch, call, step):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    where = {"fsync": checkpoint.os, "save_file": checkpoint, "rename": Path}[call]
    with monkeypatch.context() as patch:
        patch.setattr(where, call, fail)
        with pytest.raises(CheckpointError, match=f"cannot save .*step-0000000{step}: No space left") as error:
            save(folder, step, parts_of(5.0), {}, keep=1)
    size = 5 * 3 * 4 + 3 * 2 + 7 * 8 + 4 + 2
    assert f"it takes {size} bytes, and " in error.value.what
    assert "free disk space" in error.value.do
    assert steps(folder) == [10, 20]
    assert latest(folder).facts == {"at": 20}


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EFBIG, "File too large"), "ulimit -f"),
        (SafetensorError("I/O error: File too large (os error 27)"), "ulimit -f"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "your disk quota"),
        (OSError(errno.EACCES, "Permission denied"), "make the folder writable"),
    ],
)
def test_what_no_free_disk_space_would_mend(folder, monkeypatch, error, advice):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(CheckpointError, match="cannot save") as caught:
        save(folder, 30, parts_of(5.0), {}, keep=1)
    assert advice in caught.value.do
    assert "choose another output folder with --out" in caught.value.do
    assert "are free" not in caught.value.what
    assert "disk space" not in caught.value.do


def test_a_limit_on_the_size_of_files(folder):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large") as caught:
            save(folder, 30, parts_of(5.0), {}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "ulimit -f" in caught.value.do
    assert steps(folder) == [10, 20]


def test_any_error_leaves_what_was_there(folder):
    with pytest.raises(TypeError):
        save(folder, 30, parts_of(), {"not": object()}, keep=1)
    assert steps(folder) == [10, 20]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot save .* are free"):
        save(tmp_path / "file" / "checkpoints", 1, parts_of(), {}, keep=1)


def test_what_a_kill_left_is_removed_or_put_back(folder, capsys):
    (folder / ".step-000000030.partial").mkdir()
    (folder / "step-000000020").rename(folder / ".step-000000020.replaced")
    assert latest(folder).facts == {"at": 20}
    assert read(folder.parent).step == 20
    save(folder, 40, parts_of(), {}, keep=3)
    assert steps(folder) == [10, 20, 40]
    shutil.copytree(folder / "step-000000020", folder / ".step-000000020.replaced")
    save(folder, 50, parts_of(), {}, keep=4)
    assert steps(folder) == [10, 20, 40, 50]
    assert capsys.readouterr().err == ""


KILLED = """
import os, random, resource, signal, sys, time
from pathlib import Path
import torch
from bayeslaw.errors import CheckpointError
from trainer.checkpoint import latest, read, save

torch.set_num_threads(1)
folder = Path(sys.argv[1])
parts = {"model": {"a": torch.zeros(50_000)}, "optimizer": {"b": torch.zeros(3)}}

def write(step, value, keep=1):
    for tensors in parts.values():
        for tensor in tensors.values():
            tensor.fill_(value)
    save(folder, step, parts, {"value": value}, keep=keep)

def whole():
    for path in folder.glob("step-*"):
        read(path).verify()  # old ones that were about to be removed, too
    found = latest(folder)
    for part in found.parts:
        for tensor in found.tensors(part).values():
            assert (tensor == found.facts["value"]).all()
    return found

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(9)
    return pid

def ends(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def at_event(number, step, value):
    left = [number]
    def hook(event, arguments):
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "open"):
            left[0] -= 1
            if left[0] == 0:
                os._exit(7)
    sys.addaudithook(hook)
    write(step, value)

# Every call that changes a folder, one after the other: the step done again, then the next one.
places = 0
for again in (True, False):
    for number in range(1, 200):
        for left in folder.glob("step-*"):
            left.rename(folder.parent / f"gone-{again}-{number}")
        write(20, 1.0)
        code = ends(child(lambda: at_event(number, 20 if again else 30, 2.0)))
        found = whole()
        assert (found.step, found.facts["value"]) in [(20, 1.0), (20 if again else 30, 2.0)], found
        write(40, 3.0)
        assert [path.name for path in folder.iterdir()] == ["step-000000040"]
        if code == 0:
            break
        assert code == 7, code
        places += 1

# Any moment.
ready, tell = os.pipe()

def go_on(first):
    os.write(tell, b".")
    for number in range(first, first + 10_000):
        write(number // 2, float(number), keep=1 + number % 2)

draw = random.Random(1)
last, done = 100, 0
begun = time.perf_counter()
write(last // 2, float(last))
span = time.perf_counter() - begun
for _ in range(25):
    pid = child(lambda: go_on(last + 1))
    os.read(ready, 1)
    time.sleep(draw.uniform(0, 3 * span))
    os.kill(pid, signal.SIGKILL)
    assert ends(pid) == -signal.SIGKILL
    found = whole()
    assert found.facts["value"] >= last, (found, last)
    done += found.facts["value"] > last
    last = int(found.facts["value"])

# A disk that is full, as far as a process can tell.
def no_room():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        write(last, -1.0)
    except CheckpointError as error:
        assert "File too large" in error.what and "it takes 200,012 bytes" in error.what, error.what
        os._exit(5)

before = sorted(folder.rglob("step-*/*"))
assert ends(child(no_room)) == 5
assert sorted(folder.rglob("*.*")) == before, "something was left behind"
assert whole().facts["value"] == last
print(places, done)
"""


@pytest.mark.slow
def test_killed_anywhere_and_out_of_room(tmp_path):
    """Whenever it ends, the newest checkpoint is the earlier or the new one, and whole; nothing stays behind."""
    folder = tmp_path / "run" / "checkpoints"
    command = [sys.executable, "-c", KILLED, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    places, advanced = map(int, done.stdout.split())
    assert places >= 30
    assert advanced >= 1
