"""Several processes that train one run: the losses, weights and errors of one process, in all of them."""

from __future__ import annotations

import copy
import dataclasses
import fcntl
import hashlib
import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from bayeslaw.errors import BayeslawError, JournalError, UsageError
from bayeslaw.journal import JournalWriter, read_journal
from bayeslaw.schema import METRIC_SKIPPED, METRIC_TRAIN_LOSS, METRIC_VAL_LOSS
from models.looped import LoopedTransformer
from tests.trainer.ranks import Ranks, together
from trainer import checkpoint, evaluate, learner
from trainer.config import TrainConfig
from trainer.data import Batches, load_corpus
from trainer.distributed import World, join
from trainer.execution import Execution
from trainer.learner import Learner
from trainer.loop import train
from trainer.run import PATIENCE
from trainer.rundir import BusyError, run_directory
from trainer.validation import validation_loss

STEPS = 12


@pytest.fixture(scope="module")
def short(fields) -> dict:
    """Config of a run of a few steps, each of them in the journal."""
    return {name: value for name, value in fields.items() if name != "tokens"} | {
        "steps": STEPS,
        "log_every": 1,
        "validate_every": 5,
        "validation_tokens": 16 * 13,
    }


# ------------------------------------------------------------------------------------------- in each of the processes


@dataclasses.dataclass
class Told:
    """What a process says of a run."""

    state: str
    skipped: int
    row: dict
    weights: str
    """Digest of the final weights."""


def training(fields, out, carried_out=None, double=False, spoilt=None, prepare=None) -> Told:
    """Train; do ``prepare()`` first, and let ``spoilt`` change losses by step in the process of the highest rank."""
    if double:
        torch.set_default_dtype(torch.float64)
    if prepare is not None:
        prepare()
    step, forward, at, learning = Learner.step, learner._Loss.forward, [-1], []

    def stepping(self, number, *arguments, **flags):
        at[0], learning[:] = number, [self]
        return step(self, number, *arguments, **flags)

    def losing(self, rows):
        world, loss = join("cpu"), forward(self, rows)
        return spoilt(loss, at[0]) if at[0] >= 0 and world.rank == world.size - 1 else loss

    Learner.step = stepping
    if spoilt is not None:
        learner._Loss.forward = losing
    result = train(TrainConfig.of(**fields), out, quiet=True, execution=Execution(**(carried_out or {})))
    return Told(result.state, result.skipped, result.row, digest(learning[0].model))


def digest(model) -> str:
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(parameter.detach().numpy().tobytes())
    return total.hexdigest()


def metrics(fields, out) -> list[tuple[int, dict]]:
    """Points of the curve but for what depends on the clock."""
    found = read_journal(run_directory(out, TrainConfig.of(**fields).run_id)).metrics
    return [(r["step"], {k: v for k, v in r["values"].items() if k != "train/tokens_per_second"}) for r in found]


def tensors(fields, out) -> dict[str, torch.Tensor]:
    point = checkpoint.read(run_directory(out, TrainConfig.of(**fields).run_id))
    return {f"{part}/{name}": tensor for part in point.parts for name, tensor in point.tensors(part).items()}


# ------------------------------------------------------------------------------------------------------ validation loss


COUNTS = (1, 2, 3, 4, 7, 41)


def losses(fields, sequences) -> list[tuple[float, float]]:
    """Validation loss and its error of the first so many sequences."""
    evaluate.EVALUATION_TOKENS = 70  # several passes, not as many in each process
    model = LoopedTransformer(TrainConfig.of(**fields).architecture, head_size=8)
    with torch.no_grad():
        model.head.normal_(generator=torch.Generator().manual_seed(0))
    return [validation_loss(model, sequences[:count], world=join("cpu")) for count in COUNTS]


def test_the_validation_loss_does_not_depend_on_the_processes(short, tmp_path):
    """Nor where they get unequal shares, or some of them nothing."""
    sequences = torch.randint(0, 256, (max(COUNTS), 17), generator=torch.Generator().manual_seed(0))
    (alone,) = together(losses, short, sequences, size=1, folder=tmp_path)
    assert len({loss for loss, _ in alone}) == len(COUNTS)
    for size in (2, 4):
        found = together(losses, short, sequences, size=size, folder=tmp_path)
        assert all(repr(of_rank) == repr(found[0]) for of_rank in found)
        for (loss, error), (expected, its_error) in zip(found[0], alone, strict=True):
            assert loss == pytest.approx(expected, abs=1e-6)
            assert error == pytest.approx(its_error, abs=1e-6, nan_ok=True)


# ------------------------------------------------------------------------------------------------- the same as in one


VARIANTS = {
    "plain": ({}, {}),
    "small passes": ({"recurrences": 1}, {"micro_batch": 1}),
    "truncated, computed twice": (
        {"recurrences": 3, "backprop_recurrences": 2},
        {"micro_batch": 2, "activation_checkpointing": True},
    ),
    "lanes": ({"injection": "hyperconnections", "coda_layers": 1}, {"micro_batch": 2}),
    "lanes, computed twice": (
        {"injection": "hyperconnections", "recurrences": 3},
        {"activation_checkpointing": True},
    ),
    "added": ({"injection": "additive", "backprop_recurrences": 1}, {"activation_checkpointing": True}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_two_processes_train_as_one(short, tmp_path, name):
    """Every point of the curve, weights and state of the optimisers, in float64, where rounding hides no fault."""
    changes, carried_out = VARIANTS[name]
    fields = short | changes
    together(training, fields, tmp_path / "one", None, True, size=1, folder=tmp_path)
    found = together(training, fields, tmp_path / "two", carried_out, True, size=2, folder=tmp_path)
    assert found[0].weights == found[1].weights
    assert found[0].row == found[1].row | {name: found[0].row[name] for name in ("tokens_per_second", "peak_memory")}
    assert_alike(fields, tmp_path / "two", tmp_path / "one")
    assert found[0].row["device_count"] == 2


def assert_alike(fields, out, expected):
    """But for the last digits of float64."""
    for (step, values), (at, others) in zip(metrics(fields, out), metrics(fields, expected), strict=True):
        assert step == at
        assert values == pytest.approx(others, rel=1e-6), step
    found, others = tensors(fields, out), tensors(fields, expected)
    assert found.keys() == others.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(
            tensor, others[name], rtol=1e-6, atol=1e-8, check_dtype=False, msg=lambda text, name=name: name + text
        )


def sums(fields) -> list[bool]:
    """Whether each pass of two steps sums gradients over the processes."""
    config = TrainConfig.of(**fields)
    learning = Learner(config, Execution(micro_batch=1), join("cpu"))
    forward, summing = DistributedDataParallel.forward, []

    def forwarding(self, *arguments):
        summing.append(self.require_backward_grad_sync)
        return forward(self, *arguments)

    DistributedDataParallel.forward = forwarding
    for number in range(2):
        learning.step(number, torch.zeros(4, 17, dtype=torch.int64))
    return summing


def test_gradients_are_summed_once_a_step(short, tmp_path):
    assert together(sums, short, size=2, folder=tmp_path) == [[False, False, False, True] * 2] * 2


def test_float32_differs_by_rounding_alone(short, tmp_path):
    together(training, short, tmp_path / "one", size=1, folder=tmp_path)
    found = together(training, short, tmp_path / "four", size=4, folder=tmp_path)
    assert len({told.weights for told in found}) == 1
    kinds = [{name: t.dtype for name, t in tensors(short, tmp_path / out).items()} for out in ("one", "four")]
    assert kinds[0] == kinds[1]
    for name in (METRIC_TRAIN_LOSS, METRIC_VAL_LOSS):
        curves = [[v[name] for _, v in metrics(short, tmp_path / out) if name in v] for out in ("one", "four")]
        assert curves[1] == pytest.approx(curves[0], abs=1e-4)


# ------------------------------------------------------------------------------------------------------- sharded state


def shard(fields, state=None):
    """Names in this process's own state of each optimiser, elements that it keeps, and the whole state after steps."""
    torch.set_default_dtype(torch.float64)
    config, world = TrainConfig.of(**fields), join("cpu")
    learning = Learner(config, Execution(), world)
    if state is not None:
        learning.load(copy.deepcopy(state))  # what comes from the parent is shared memory
    batches = Batches(load_corpus(config.data.corpus).train, 16, 8, 0)
    for number in range(2):
        learning.step(number, torch.from_numpy(batches.at(number, world.rank, world.size)))
    names = {id(parameter): name for name, parameter in learning.model.named_parameters()}
    own, storages = [], {}
    for part in learning.optimizers._parts:
        mine = part.optim.state if isinstance(part, ZeroRedundancyOptimizer) else part.state
        own += [names[id(parameter)] for parameter in mine]
        for states in (mine, part.state):
            for entries in filter(None, states.values()):
                for tensor in entries.values():
                    storages[tensor.untyped_storage().data_ptr()] = tensor.numel()
    return own, sum(storages.values()), learning.parts()["optimizer"], dict(learning.model.state_dict())


def test_the_state_of_the_optimisers_is_shared_out(short, tmp_path):
    """Each parameter's in one process, when new and when loaded; the checkpoint has it whole, as from one process."""
    fields = short | {"shared_layers": 2}
    ((every, kept, whole, model),) = together(shard, fields, size=1, folder=tmp_path)
    for state in (None, {"model": model, "optimizer": whole}):
        ((_, _, expected, _),) = together(shard, fields, state, size=1, folder=tmp_path)
        (first, first_kept, given, _), (second, second_kept, nothing, _) = together(
            shard, fields, state, size=2, folder=tmp_path
        )
        assert sorted(first + second) == sorted(every)
        assert first_kept + second_kept == kept
        assert max(first_kept, second_kept) < 0.75 * kept
        assert not nothing
        assert given.keys() == expected.keys()
        for name, tensor in given.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-10, check_dtype=False)


# ------------------------------------------------------------------------------------------------ numbers that are none


def bad_loss(loss, step):
    return loss * math.nan if step == 5 else loss


def bad_gradient(loss, step):
    """Infinite gradients of a loss that is a number."""
    if step == 5:
        loss.register_hook(lambda gradient: gradient * math.inf)
    return loss


def bad_from_the_third_on(loss, step):
    return loss * math.nan if step >= 3 else loss


@pytest.mark.parametrize("spoilt", [bad_loss, bad_gradient])
def test_a_number_that_is_none_in_one_process_is_skipped_by_all(short, tmp_path, spoilt):
    """Counted once; and the run goes on as one process does that skips it."""
    found = together(training, short, tmp_path / "two", None, True, spoilt, size=2, folder=tmp_path)
    assert [(told.state, told.skipped) for told in found] == [("finished", 1)] * 2
    assert found[0].weights == found[1].weights
    together(training, short, tmp_path / "one", None, True, spoilt, size=1, folder=tmp_path)
    curves = [
        [(step, values) for step, values in metrics(short, tmp_path / out) if step != 6] for out in ("two", "one")
    ]
    for (step, values), (_, others) in zip(*curves, strict=True):
        assert values == pytest.approx(others, rel=1e-6), step
    assert [values[METRIC_SKIPPED] for step, values in curves[0] if METRIC_SKIPPED in values] == [0] * 5 + [1] * 6


def test_numbers_that_are_none_end_the_run_in_all_processes(short, tmp_path):
    found = together(training, short, tmp_path, None, False, bad_from_the_third_on, size=2, folder=tmp_path)
    assert [(told.state, told.skipped) for told in found] == [("diverged", PATIENCE)] * 2
    assert found[0].weights == found[1].weights
    journal = read_journal(run_directory(tmp_path, TrainConfig.of(**short).run_id))
    assert journal.state == "diverged"
    assert [record["step"] for record in journal.metrics][-1] == 3 + PATIENCE


# ------------------------------------------------------------------------------------------- errors, in all processes


def refused(fields, out, size, folder, kind, prepare=None) -> BayeslawError:
    """The error that each process raises, the same in all."""
    found = Ranks(training, fields, out, None, False, None, prepare, size=size, folder=folder).outcomes()
    assert [type(error) for error in found] == [kind] * size
    assert len({str(error) for error in found}) == 1
    return found[0]


def test_a_batch_that_cannot_be_shared_out(short, tmp_path):
    error = refused(short, tmp_path / "out", 3, tmp_path, UsageError)
    assert error.what == "a batch of 8 sequences in 3 processes"
    assert error.do == "start 2 processes, or change batch_tokens"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_told_by_all(short, tmp_path):
    (tmp_path / "file").touch()
    error = refused(short, tmp_path / "file", 2, tmp_path, JournalError)
    assert "--out" in error.do


def test_a_run_that_others_train_is_refused_by_all(short, tmp_path):
    run_dir = run_directory(tmp_path / "out", TrainConfig.of(**short).run_id)
    run_dir.mkdir(parents=True)
    with open(run_dir / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(short, tmp_path / "out", 2, tmp_path, BusyError)


def full(method):
    """A disk that is full when the first process comes to some method of its journal."""

    def fail(self, *arguments, **more):
        raise JournalError("no space left on device", do="free some disk space")

    if join("cpu").first:
        setattr(JournalWriter, method, fail)


def full_at_the_start():
    full("start")


def full_at_a_checkpoint():
    full("sync")


def full_on_the_way():
    full("metrics")


@pytest.mark.parametrize("prepare", [full_at_the_start, full_at_a_checkpoint])
def test_a_journal_that_cannot_be_written_is_told_by_all(short, tmp_path, prepare):
    refused(short, tmp_path / "out", 2, tmp_path, JournalError, prepare)


def test_nobody_waits_for_a_process_that_failed(short, tmp_path):
    found = Ranks(
        training, short, tmp_path / "out", None, False, None, full_on_the_way, size=2, folder=tmp_path
    ).outcomes()
    assert [type(error) for error in found] == [JournalError, RuntimeError]


def test_a_settled_run_is_returned_by_all(short, tmp_path):
    first = together(training, short, tmp_path, size=2, folder=tmp_path)
    again = together(settled, short, tmp_path, size=2, folder=tmp_path)
    assert [trained for trained, _ in again] == [False] * 2
    assert [row["loss"] for _, row in again] == [first[0].row["loss"]] * 2


def settled(fields, out):
    result = train(TrainConfig.of(**fields), out, quiet=True)
    return result.trained, result.row


@pytest.mark.parametrize(
    ("device", "gpus", "here", "refused"),
    [
        ("auto", 0, 2, False),
        ("auto", 1, 2, True),
        ("cuda", 1, 2, True),
        ("cuda", 0, 1, True),
        ("cpu", 1, 2, False),
    ],
)
@pytest.mark.parametrize("local", [0, 1])
def test_all_processes_of_a_machine_compute_on_gpus_or_none(monkeypatch, device, gpus, here, refused, local):
    """One on the CPU would wait for ever for those on GPUs, and they for it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for name, value in {"WORLD_SIZE": here, "RANK": local, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": here}.items():
        monkeypatch.setenv(name, str(value))
    if not refused:
        assert join(device) == World(local, here, torch.device("cpu"))
        return
    with pytest.raises(UsageError, match=f"which has {gpus} GPU") as error:
        join(device)
    assert "--device cpu" in error.value.do


# ---------------------------------------------------------------------------------------------------------- compiled


WIDE = {"d_model": 128, "batch_tokens": 64}
"""More gradients than DDP sums at once."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "twice"),
    [({}, False), (WIDE | {"injection": "hyperconnections"}, True), (WIDE | {"backprop_recurrences": 1}, True)],
    ids=["linear", "lanes, computed twice", "truncated, computed twice"],
)
def test_compiled_in_two_processes(short, tmp_path, changes, twice):
    """With gradients in one bucket and in several, between which dynamo cuts the graph."""
    fields = short | changes | {"steps": 4, "validate_every": 0}
    carried_out = {"compile": "on", "micro_batch": 2, "activation_checkpointing": twice}
    one = together(training, fields, tmp_path / "one", {"micro_batch": 2}, size=2, folder=tmp_path)
    two = together(training, fields, tmp_path / "two", carried_out, size=2, folder=tmp_path)
    assert two[0].weights == two[1].weights
    assert two[0].row["loss"] == pytest.approx(one[0].row["loss"], abs=1e-4)
