"""What decides the result of one training run, and nothing else: no host, no output folder, no time.

A `TrainConfig` has sections, each a frozen dataclass: ``model``, ``optimizer``, ``data``, ``target``. No two of them
have a field of the same name, so a flat mapping of fields is a config too (`TrainConfig.of`): flags are flat, TOML
files and journals are in sections.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayeslaw.architecture import Architecture
from bayeslaw.errors import UsageError
from bayeslaw.plan import config_hash
from bayeslaw.schema import run_name
from trainer.checks import require_known, require_multiple, require_text, require_whole
from trainer.data import context_and_vocabulary
from trainer.rates import KINDS, RULES
from trainer.sections import DataConfig, ModelConfig, OptimizerConfig, TargetConfig

MOST_STEPS = 10**9
"""A run of more optimiser steps would take years: its budget is a slip of the pen."""


class BudgetError(UsageError):
    """A budget that does not buy one optimiser step."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Parameters
    ----------
    model : ModelConfig
    optimizer : OptimizerConfig
    data : DataConfig
    target : TargetConfig
    recipe : str
        Name of the recipe in the run table: letters, digits, ``_ - .``.
    seed : int
        Seed of starting values and data order.
    log_every, validate_every : int
        Steps between points of the training curve, and between validations before the last (0: the last only).
    continues : str, optional
        The checkpoint of another run that this one goes on from: ``<run_id>@<step>:<digest of its weights>``.

    Raises
    ------
    UsageError
        A value that cannot be trained; `BudgetError` when the budget is below one optimiser step.
    """

    model: ModelConfig
    target: TargetConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    recipe: str = "baseline"
    seed: int = 0
    log_every: int = 10
    validate_every: int = 0
    continues: str | None = None

    def __post_init__(self) -> None:
        require_text(self, "recipe")
        require_whole(self, seed=0, validate_every=0, only=("seed", "log_every", "validate_every"))
        if self.seed >= 2**63:
            raise UsageError(f"seed = {self.seed}", allowed="a whole number below 2^63")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.recipe):
            raise UsageError(f"recipe {self.recipe!r}", allowed="letters, digits, _ - .")
        batch_tokens, seq_len = self.optimizer.batch_tokens, self.model.seq_len
        require_multiple("batch_tokens", batch_tokens, "seq_len", seq_len)
        if self.target.tokens is not None:
            require_multiple("tokens", self.target.tokens, "batch_tokens", batch_tokens)
        if self.data.validation_tokens < seq_len:
            raise UsageError(
                f"validation_tokens = {self.data.validation_tokens} with seq_len = {seq_len}",
                allowed=f"at least one sequence, {seq_len}",
                do="raise --validation-tokens, or choose a shorter --seq-len",
            )
        self._require_steps()

    def _require_steps(self) -> None:
        """Refuse what is less than one optimiser step, or more than anybody would wait for."""
        batch_tokens = self.optimizer.batch_tokens
        step_flops = float(batch_tokens) * float(self.architecture.flops_per_token)
        budget = self.target.budget
        if budget is not None and budget < step_flops:
            raise BudgetError(
                f"budget = {budget:g} with d_model = {self.model.d_model}, recurrences = {self.model.recurrences} and "
                f"batch_tokens = {batch_tokens} is less than one optimiser step, which costs {step_flops!r} FLOPs",
                allowed=f"{step_flops!r} FLOPs or more",
                do="raise the budget, or lower d_model or batch_tokens",
            )
        if self.steps > MOST_STEPS:
            (given,) = (f"{name} = {value}" for name, value in vars(self.target).items() if value is not None)
            raise UsageError(
                f"{given} with batch_tokens = {batch_tokens} is a run of {self.steps:.3g} optimiser steps",
                allowed=f"at most {MOST_STEPS:.0e} steps: {MOST_STEPS * batch_tokens} tokens, "
                f"{MOST_STEPS * step_flops:.3g} FLOPs",
                do="lower the target, or raise d_model or batch_tokens",
            )

    @classmethod
    def of(cls, **fields: Any) -> TrainConfig:
        """The config of a flat mapping of fields, whatever section they belong to; None means the default.

        On packed shards the default of ``seq_len`` and ``vocab_size`` is what they were packed with, of the vocabulary
        256 at least.

        Raises
        ------
        UsageError
            An unknown or missing name, or a value that cannot be trained.
        DataError
            The meta files of the shards are damaged, or disagree.
        """
        require_known("config field", fields, FIELDS)
        fields = context_and_vocabulary(fields.get("corpus")) | {n: v for n, v in fields.items() if v is not None}
        parts: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
        for name, value in fields.items():
            parts[FIELDS[name]][name] = value
        return cls.from_dict({**parts.pop(""), **parts})

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TrainConfig:
        """The config of a TOML file, plan or journal, in sections.

        Raises
        ------
        UsageError
            An unknown or missing name, or a value that cannot be trained.
        """
        top = {name: value for name, value in config.items() if name not in SECTIONS}
        require_known("config field", top, [name for name, section in FIELDS.items() if not section], also=SECTIONS)
        made = {}
        for section, kind in SECTIONS.items():
            fields = config.get(section, {})
            if not isinstance(fields, Mapping):
                raise UsageError(f"{section} = {fields!r}", allowed=f"a section [{section}] of fields")
            known = {field.name: field for field in dataclasses.fields(kind)}
            require_known(f"config field of {section}", fields, known)
            missing = [n for n, f in known.items() if f.default is dataclasses.MISSING and n not in fields]
            if missing:
                raise UsageError(f"a config without {', '.join(missing)}", allowed=f"{section}: " + ", ".join(known))
            made[section] = kind(**fields)
        return cls(**made, **top)

    def to_dict(self) -> dict[str, Any]:
        """All fields in their sections as JSON can hold them; `from_dict` gives the same config back."""
        return dataclasses.asdict(self)

    @property
    def architecture(self) -> Architecture:
        """Counts and FLOPs of the network."""
        return self.model.architecture

    @property
    def rates(self) -> dict[str, float]:
        """Peak rate of each kind of parameter in this run, moved from the reference point by the rule."""
        factors = RULES[self.optimizer.rate_rule].factors(
            d_model=self.model.d_model,
            recurrences=self.model.recurrences,
            batch_tokens=self.optimizer.batch_tokens,
            tokens=self.train_tokens,
        )
        return {kind: getattr(self.optimizer, f"{kind}_rate") * factors[kind] for kind in KINDS}

    @property
    def train_tokens(self) -> int:
        """D, training tokens: as given, else whole batches for the budget."""
        target, batch_tokens = self.target, self.optimizer.batch_tokens
        if target.budget is not None:
            return self.architecture.tokens_for(target.budget, batch_tokens=batch_tokens)
        return target.tokens if target.tokens is not None else (target.steps or 0) * batch_tokens

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        return self.train_tokens // self.optimizer.batch_tokens

    @property
    def run_id(self) -> str:
        """Name of the run in every table.

        The last part tells configs apart that differ in what the others leave out, the text of the corpus excepted.
        """
        config = self.to_dict()
        del config["data"]["corpus_digest"]
        design = (self.recipe, self.model.recurrences, self.architecture.width_scale, self._budget, self.seed)
        return f"{run_name(*design)}/{config_hash(config)[:8]}"

    @property
    def _budget(self) -> float:
        spent = float(self.train_tokens) * float(self.architecture.flops_per_token)
        return spent if self.target.budget is None else self.target.budget

    @property
    def row(self) -> dict[str, Any]:
        """Run-table columns known before the run, see `bayeslaw.schema.COLUMNS`; device columns excepted."""
        architecture = self.architecture
        continues = {"training_run": self.continues.rpartition("@")[0]} if self.continues else {}
        return {
            "run_id": self.run_id,
            **continues,
            "recipe": self.recipe,
            "seed": self.seed,
            "recurrences": self.model.recurrences,
            "width_scale": architecture.width_scale,
            "d_model": self.model.d_model,
            "prelude_layers": self.model.prelude_layers,
            "shared_layers": self.model.shared_layers,
            "coda_layers": self.model.coda_layers,
            "seq_len": self.model.seq_len,
            "vocab_size": self.model.vocab_size,
            "injection": architecture.injection,
            "backprop_recurrences": architecture.backprop_recurrences,
            "n_once": architecture.n_once,
            "n_shared": architecture.n_shared,
            "n_injection": architecture.n_injection,
            "n_unique": architecture.n_unique,
            "budget": self._budget,
            "flops_per_token": float(architecture.flops_per_token),
        }


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "data": DataConfig,
    "target": TargetConfig,
}
"""Sections of a config."""

FIELDS: dict[str, str] = {
    **{field.name: section for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)},
    **{field.name: "" for field in dataclasses.fields(TrainConfig) if field.name not in SECTIONS},
}
"""Every field and its section, empty for those of the config itself."""
