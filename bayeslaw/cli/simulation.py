"""``bayeslaw sweep plan --simulate``: the plan replayed on many GPUs, and the flags that say on which."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from bayeslaw.cli.flags import given
from bayeslaw.cli.lists import OptionalInteger
from bayeslaw.cli.output import own, print_json
from bayeslaw.errors import EXIT_OK, UsageError
from bayeslaw.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ReplayFlags:
    """The cluster of a simulation.

    Parameters
    ----------
    simulate
        Replay the plan on --gpus GPUs with failures and preemptions: makespan, what is lost, what limits it.
    gpus
        GPUs in all.
    gpus_per_run
        GPUs of one run, 1 by default; its speed is taken to grow in proportion.
    flops_per_second
        What one GPU gets done in training; without it the plan's expected hours (--speed) decide.
    mtbf_hours
        Mean time between failures of one GPU, 50700 by default.
    preempt_hours
        Mean time until a running worker is preempted; never by default.
    grace
        A preempted worker has the time to save its state, as it has by default.
    checkpoint_minutes
        Training between two checkpoints, 10 by default.
    checkpoint_seconds
        How long training stands still for one, 5 by default.
    restart_minutes
        From the end of a worker to its next step, 5 by default.
    points_per_second
        Metric points that a run records, 1 by default.
    tries
        Courses to average over, 10 by default.
    replay_seed
        Seed of the failures, 0 by default.
    """

    simulate: Annotated[bool, Parameter(negative="")] = False
    gpus: OptionalInteger = None
    gpus_per_run: OptionalInteger = None
    flops_per_second: float | None = None
    mtbf_hours: float | None = None
    preempt_hours: float | None = None
    grace: bool | None = None
    checkpoint_minutes: float | None = None
    checkpoint_seconds: float | None = None
    restart_minutes: float | None = None
    points_per_second: float | None = None
    tries: OptionalInteger = None
    replay_seed: OptionalInteger = None


Replayed = Annotated[ReplayFlags | None, Parameter(name="*", group=Group("Simulation", sort_key=7))]


def asked(replay: ReplayFlags | None) -> bool:
    """Whether a simulation is asked for.

    Raises
    ------
    UsageError
        Flags of a simulation without --simulate, or that without --gpus.
    """
    if replay is None:
        return False
    others = [name for name in given(replay) if name != "simulate"]
    if others and not replay.simulate:
        raise UsageError(f"--{others[0].replace('_', '-')} without --simulate", allowed="the two together")
    if replay.simulate and replay.gpus is None:
        raise UsageError("--simulate without --gpus", allowed="--simulate --gpus N")
    return replay.simulate


def print_replay(plan: Plan, replay: ReplayFlags, *, as_json: bool) -> int:
    """Replay the plan and print what becomes of it.

    Raises
    ------
    UsageError
        A number that cannot be meant, or nothing says how long a run takes.
    """
    fields = given(dataclasses.replace(replay, replay_seed=None, simulate=False))
    del fields["simulate"]
    if replay.replay_seed is not None:
        fields["seed"] = replay.replay_seed
    found = own("trainer.replay").simulate(plan, **fields)
    if as_json:
        print_json({"study": plan.study, **found.as_dict()})
    else:
        print(found)
    return EXIT_OK
