"""Names, units and kinds of what a run is described by: run-table columns, MLflow params, metrics and tags.

Standard library only: the trainer on a node without pandas or mlflow uses the same names as the reader of its runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 1
"""Version of the run table, the journal, the plan and every ``--json`` answer."""

MLFLOW_INFINITY = 1e308
"""MLflow stores an infinity as +-1.797e308: any magnitude from here on is not finite."""

LOSS_UNIT = "nats/token"


@dataclass(frozen=True)
class Column:
    """One column of the run table.

    Parameters
    ----------
    kind : "text", "int" or "float"
        An int column holds whole numbers below 2^53.
    unit : str
        The unit, empty for names and plain counts.
    result : bool
        True for what is known only when the run has ended; MLflow holds these as metrics, the others as params.
    meaning : str
        One line for tables and messages.
    positive : bool
        Values must be above 0 (numbers only).
    """

    kind: Literal["text", "int", "float"]
    unit: str
    meaning: str
    result: bool = False
    positive: bool = False


COLUMNS: dict[str, Column] = {
    "run_id": Column("text", "", "unique name of the run"),
    "training_run": Column("text", "", "the training run that a row is a checkpoint of, where a run has several rows"),
    "source": Column("text", "", "data set, file or experiment that the run was read from"),
    "recipe": Column("text", "", "training recipe: baseline, truncated_bptt, hyperconnections, ..."),
    "state": Column("text", "", "finished, running, failed, killed or diverged"),
    "seed": Column("int", "", "random seed"),
    "recurrences": Column("float", "", "r, how often the shared block runs", positive=True),
    "width_scale": Column("float", "", "s = d_model / 64", positive=True),
    "d_model": Column("int", "", "width", positive=True),
    "prelude_layers": Column("int", "layers", "layers before the recurrent block"),
    "shared_layers": Column("int", "layers", "layers inside the recurrent block", positive=True),
    "coda_layers": Column("int", "layers", "layers after the recurrent block"),
    "seq_len": Column("int", "tokens", "context length", positive=True),
    "vocab_size": Column("int", "tokens", "rows of embedding and head", positive=True),
    "injection": Column("text", "", "none, linear, additive, passthrough or hyperconnections"),
    "backprop_recurrences": Column("int", "", "last recurrences that gradients pass through", positive=True),
    "n_once": Column("int", "parameters", "run once per token: prelude, coda, model norms", positive=True),
    "n_shared": Column("int", "parameters", "the shared block, without injection"),
    "n_injection": Column("int", "parameters", "the linear injection"),
    "n_unique": Column("int", "parameters", "n_once + n_shared + n_injection", positive=True),
    "tokens": Column("int", "tokens", "D, training tokens", result=True, positive=True),
    "epochs": Column("float", "", "passes over the training data", result=True, positive=True),
    "budget": Column("float", "FLOPs", "training budget aimed at", positive=True),
    "flops_per_token": Column("float", "FLOPs/token", "training FLOPs per token", positive=True),
    "flops": Column("float", "FLOPs", "C, training FLOPs spent: tokens x flops_per_token", result=True, positive=True),
    "loss": Column("float", LOSS_UNIT, "final validation loss", result=True, positive=True),
    "loss_se": Column("float", LOSS_UNIT, "standard error of the loss", result=True),
    "loss_unit": Column("text", "", f"unit of the loss where it is not {LOSS_UNIT}"),
    "tokens_per_second": Column("float", "tokens/s", "training throughput", result=True, positive=True),
    "peak_memory": Column("float", "bytes", "peak memory of the run", result=True, positive=True),
    "device": Column("text", "", "what the run was trained on"),
    "device_count": Column("int", "", "how many of them", positive=True),
}

REQUIRED = ("recurrences", "n_once", "n_shared", "tokens", "loss")
"""What the law needs of every run."""

COUNTS = ("n_once", "n_shared", "n_injection", "n_unique")
"""Parameter counts."""

PARTITION = ("prelude_layers", "shared_layers", "coda_layers", "injection")
"""What, with a width and r, gives all counts."""

BASELINE = "baseline"
"""The recipe that others are held against, and that of runs without one."""

PLAIN = ("n", "tokens", "loss")
"""Columns of a plain table: r = 1, all of n run once, no architecture."""

STATES = ("finished", "running", "failed", "killed", "diverged")

INJECTION_IN = ("once", "rec", "nowhere", "regression")
"""Where the injection's parameters count: with n_once, with n_shared (N_rec), not at all, or as a line of n_unique over
1 / r splits them (the published fits)."""

STEP = 10 ** (1 / 3)
"""Factor of training FLOPs in one step of compute: the spacing of published grids."""

STUDENT_NU = 4
"""Degrees of freedom of Student errors on log loss, fixed: one bad run of .15 nats then moves little."""

TAG_PREFIX = "bayeslaw."
TAG_RUN_ID = "bayeslaw.run_id"
TAG_STATE = "bayeslaw.state"
TAG_CONFIG_HASH = "bayeslaw.config_hash"
TAG_CODE_VERSION = "bayeslaw.code_version"
TAG_DELIVERED = "bayeslaw.delivered"
"""Number of journal records that have reached MLflow."""
TAG_RESUMES = "bayeslaw.resumes"
TAG_RECIPE = "bayeslaw.recipe"
TAG_BUDGET = "bayeslaw.budget"
TAG_HOST = "bayeslaw.host"
"""Machine that trains the run, or did last."""
TAG_HEARTBEAT = "bayeslaw.heartbeat"
"""Time of the newest record that has reached MLflow, in milliseconds since 1970 (13 digits)."""
TAG_UPDATED = "bayeslaw.updated"
"""When MLflow was last told of the run, in milliseconds since 1970 (13 digits, so that text order is time order)."""
TAG_SWEEP = "bayeslaw.sweep"
"""First sixteen digits of the plan's hash: of a run that a sweep trains, and of the run that stands for the sweep."""
TAG_PLANNED = "bayeslaw.planned_runs"
"""Runs of the plan, on the run that stands for the sweep: it is finished when so many have come to their end."""
TAG_EVALUATIONS = "bayeslaw.evaluations"
"""Digest of the evaluations of the run that have reached MLflow."""
TAG_ERROR = "bayeslaw.error"

METRIC_TRAIN_LOSS = "train/loss"
METRIC_VAL_LOSS = "val/loss"
METRIC_VAL_LOSS_SE = "val/loss_se"
"""Standard error from the choice of held-out text: common to all runs that are validated on it."""
METRIC_LEARNING_RATE = "train/learning_rate/"
"""With the kind of parameters appended: matrix, embedding, head, gain, lane."""
METRIC_GRADIENT_NORM = "train/gradient_norm"
METRIC_STATE_SIZE = "train/state_rms/"
"""Root mean square of the shared block's output, with the recurrence (from 1) appended."""
METRIC_FLOPS = "train/flops"
METRIC_SKIPPED = "train/skipped_steps"
METRIC_TOKENS_PER_SECOND = "train/tokens_per_second"
METRIC_MFU = "train/mfu"
"""Share of the device's best bfloat16 FLOPs per second."""


def run_name(recipe: str, recurrences: float, width_scale: float, budget: float, seed: int | None = None) -> str:
    """The run_id of a run that has no other name: recipe/r/s/budget, and /seed where one is given."""
    name = f"{recipe}/{recurrences:g}/{width_scale:g}/{budget:.4g}"
    return name if seed is None else f"{name}/{seed}"
