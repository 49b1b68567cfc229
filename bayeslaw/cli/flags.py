"""Flags of training: the fields of a config and of its execution, each under its own name; not given is None.

What a flag is not given, a TOML file, a recipe, a preset or the field's default decides.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from bayeslaw.cli.lists import OptionalInteger

Json = Annotated[bool, Parameter(name="--json", negative="")]
"""Annotation of the flag --json."""


def _flags(group: str, order: int) -> Parameter:
    """Annotation of a dataclass whose fields are flags of one group in the help."""
    return Parameter(name="*", group=Group(group, sort_key=order))


@dataclass(frozen=True, kw_only=True)
class TargetFlags:
    """How long to train.

    Parameters
    ----------
    budget
        Training FLOPs aimed at. Give this, --tokens or --steps.
    tokens
        Training tokens, a multiple of --batch-tokens.
    steps
        Optimiser steps.
    """

    budget: float | None = None
    tokens: OptionalInteger = None
    steps: OptionalInteger = None


@dataclass(frozen=True, kw_only=True)
class SizeFlags:
    """Size of one network.

    Parameters
    ----------
    d_model
        Width, a multiple of the head size. Give this or --width-scale.
    width_scale
        Width in units of 64.
    recurrences
        How often the shared block runs, 1 by default.
    shared_layers
        Layers of the shared block, 4 by default; with a preset what makes its depth.
    backprop_recurrences
        The last recurrences that gradients pass through; all by default.
    """

    d_model: OptionalInteger = None
    width_scale: float | None = None
    recurrences: OptionalInteger = None
    shared_layers: OptionalInteger = None
    backprop_recurrences: OptionalInteger = None


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """The network but for its size.

    Parameters
    ----------
    prelude_layers
        Layers before the shared block, 1 by default.
    coda_layers
        Layers after the shared block, 1 by default.
    head_size
        Size of an attention head, an even number, 16 by default.
    seq_len
        Context in tokens, 64 by default; on packed shards theirs.
    vocab_size
        Rows of embedding and head, 256 by default; on packed shards theirs, 256 at least.
    injection
        How the prelude's output enters each recurrence: linear, additive, hyperconnections or passthrough.
    lanes
        Lanes of hyperconnections, 2 by default.
    """

    prelude_layers: OptionalInteger = None
    coda_layers: OptionalInteger = None
    head_size: OptionalInteger = None
    seq_len: OptionalInteger = None
    vocab_size: OptionalInteger = None
    injection: str | None = None
    lanes: OptionalInteger = None


@dataclass(frozen=True, kw_only=True)
class OptimizerFlags:
    """Batch and rates.

    Parameters
    ----------
    batch_tokens
        Tokens of an optimiser step, a multiple of the context, 512 by default.
    rate_rule
        How rates move from their reference point to this run: desk or paper, desk by default.
    matrix_rate
        Peak rate of matrices (MuonH) at the reference point; like the others the rule's own by default.
    embedding_rate
        Peak rate of the embedding.
    head_rate
        Peak rate of the head.
    gain_rate
        Peak rate of norm gains.
    lane_rate
        Peak rate of lane parameters.
    """

    batch_tokens: OptionalInteger = None
    rate_rule: str | None = None
    matrix_rate: float | None = None
    embedding_rate: float | None = None
    head_rate: float | None = None
    gain_rate: float | None = None
    lane_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """Text and curve.

    Parameters
    ----------
    corpus
        stdlib, or the path of a text file or a folder of them (a token is a byte), or of a folder of packed shards, or
        KristianS7/prepacked-fineweb-edu-llama2-32K-T2048 of the Hugging Face hub.
    corpus_digest
        Refuse a corpus of another digest.
    validation_tokens
        Held-out tokens of the validation loss, 65536 by default.
    log_every
        Steps between points of the training curve, 10 by default.
    validate_every
        Steps between validations, 0 by default: at the end only.
    """

    corpus: str | None = None
    corpus_digest: str | None = None
    validation_tokens: OptionalInteger = None
    log_every: OptionalInteger = None
    validate_every: OptionalInteger = None


@dataclass(frozen=True, kw_only=True)
class ExecutionFlags:
    """How a run is carried out; it changes losses by rounding only.

    Parameters
    ----------
    device
        cpu, cuda or auto: cuda where there is one.
    precision
        float32, bfloat16 or auto: bfloat16 on a GPU.
    compile
        on, off or auto: on a GPU, and long runs on a CPU.
    micro_batch
        Sequences of one pass on a device; by default what fits.
    activation_checkpointing
        Keep only the states between recurrences for the backward pass.
    checkpoint_every
        Steps between checkpoints, 0 by default: by time only.
    checkpoint_minutes
        Minutes between checkpoints, 10 by default.
    keep
        Newest checkpoints kept besides the best, 1 by default.
    """

    device: str | None = None
    precision: str | None = None
    compile: str | None = None
    micro_batch: OptionalInteger = None
    activation_checkpointing: bool | None = None
    checkpoint_every: OptionalInteger = None
    checkpoint_minutes: float | None = None
    keep: OptionalInteger = None


@dataclass(frozen=True, kw_only=True)
class WorkerFlags:
    """Who trains the runs of a sweep.

    Parameters
    ----------
    jobs
        Workers at a time, each at one run, 1 by default; several small runs share a GPU where there are fewer.
    gpus_per_run
        GPUs (with --device cpu processes) that train a run together, 1 by default; started by torchrun.
    retries
        How often a run that fails is tried again, 2 by default.
    executor
        local, the default, or slurm: the workers are a job array.
    """

    jobs: OptionalInteger = None
    gpus_per_run: OptionalInteger = None
    retries: OptionalInteger = None
    executor: str | None = None


@dataclass(frozen=True, kw_only=True)
class SlurmFlags:
    """The jobs, with --executor slurm.

    Parameters
    ----------
    partition
        By default the cluster's own.
    time_minutes
        Time limit of a job, 60 by default; one that comes to it saves its run and is requeued.
    nodes
        Machines that the GPUs of a run are spread over, 1 by default.
    slurm
        A further option of sbatch as KEY=VALUE; may be given several times.
    slurm_setup
        A shell line that every job runs before its worker; may be given several times.
    wait
        Wait until the jobs have ended.
    """

    partition: str | None = None
    time_minutes: OptionalInteger = None
    nodes: OptionalInteger = None
    slurm: Annotated[list[str] | None, Parameter(negative="")] = None
    slurm_setup: Annotated[list[str] | None, Parameter(negative="")] = None
    wait: Annotated[bool | None, Parameter(negative="")] = None


Target = Annotated[TargetFlags | None, _flags("Target", 1)]
Size = Annotated[SizeFlags | None, _flags("Size", 2)]
Model = Annotated[ModelFlags | None, _flags("Model", 3)]
Optimizer = Annotated[OptimizerFlags | None, _flags("Optimiser", 4)]
Data = Annotated[DataFlags | None, _flags("Data", 5)]
Execution = Annotated[ExecutionFlags | None, _flags("Execution", 6)]
Workers = Annotated[WorkerFlags | None, _flags("Workers", 4)]
Slurm = Annotated[SlurmFlags | None, _flags("Slurm", 5)]


def given(*flags: Any, **more: Any) -> dict[str, Any]:
    """The flags that were given, by field: those of the dataclasses and some more."""
    fields = more | {name: value for each in flags if each for name, value in dataclasses.asdict(each).items()}
    return {name: value for name, value in fields.items() if value is not None}
