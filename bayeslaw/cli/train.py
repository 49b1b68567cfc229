"""``bayeslaw train``: train one looped language model."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

from cyclopts import App

from bayeslaw.architecture import WIDTH_UNIT
from bayeslaw.cli import flags
from bayeslaw.cli.lists import OptionalInteger
from bayeslaw.cli.output import note, own, print_json, print_table
from bayeslaw.errors import EXIT_FAILURE, EXIT_OK, UsageError
from bayeslaw.journal import FILE_NAME, read_journal
from bayeslaw.schema import METRIC_MFU, METRIC_SKIPPED, METRIC_VAL_LOSS_SE

app = App(name="train", help="Train one looped language model.")


@app.default
def train(
    *,
    preset: str | None = None,
    config: Path | None = None,
    continue_from: Path | None = None,
    recipe: str | None = None,
    seed: OptionalInteger = None,
    target: flags.Target = None,
    size: flags.Size = None,
    model: flags.Model = None,
    optimizer: flags.Optimizer = None,
    data: flags.Data = None,
    execution: flags.Execution = None,
    study: str = "bayeslaw",
    out: Path = Path("bayeslaw-out"),
    tracking_uri: str | None = None,
    as_json: flags.Json = False,
) -> int:
    """Train one looped language model and write its journal; deliver it to MLflow when a store is named.

    What a run is comes from the preset, then the recipe, then the config file, then the flags; the later win. The same
    command again goes on where it was stopped. Under torchrun the batch is shared by all processes.

    Parameters
    ----------
    preset
        paper, paper-47b, desk, desk-rates or desk-probes: the fields of a family of runs.
    config
        A TOML file with the sections model, optimizer, data, target and execution; recipe and seed above them.
    continue_from
        A run directory or a checkpoint whose training goes on, as a run of its own, to a new target.
    recipe
        baseline, truncated_bptt, hyperconnections, additive or passthrough; any other name is only a label. baseline
        by default.
    seed
        Seed of starting values and data order, 0 by default.
    study
        MLflow experiment.
    out
        Output folder.
    tracking_uri
        MLflow store; default MLFLOW_TRACKING_URI, else sqlite:///mlflow.db. Where mlflow is missing, or the store away,
        the journal is kept for `bayeslaw runs sync`.
    as_json
        Print one JSON object.
    """
    trainer_loop, tracking_module = own("trainer.loop"), own("trainer.tracking")
    layering, presets = own("trainer.layering"), own("trainer.presets")
    fields = flags.given(size, model, optimizer, data, recipe=recipe, seed=seed)
    carried_out = flags.given(execution)
    if continue_from is not None:
        others = flags.given(preset=preset, config=config) | fields
        run_config = _continued(continue_from, flags.given(target), others)
    else:
        family = presets.preset(preset) if preset is not None else None
        from_file, file_execution = layering.read_toml(config) if config is not None else ({}, {})
        carried_out = file_execution | carried_out
        run_config = layering.layered(family, from_file, _with_width(fields) | flags.given(target))
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes one speaks
    if first and (doubt := presets.mistyped(run_config.recipe)):
        note(f"warning: {doubt}")
    with tracking_module.Tracking(tracking_uri) as tracking:
        result = trainer_loop.train(
            run_config,
            out,
            study=study,
            tracking=tracking,
            execution=own("trainer.execution").Execution(**carried_out),
            continue_from=continue_from,
        )
        if first and not result.trained:
            note(f"trained before with this config; its journal is in {result.run_dir}")
            tracking.follow(result.run_dir / FILE_NAME)
    if first:
        _print(result.row, result.run_dir, as_json)
        if result.state != "finished":
            note(f"the run {result.state}: its loss is no number any more\n  next: {_calmer(run_config)}")
    return EXIT_OK if result.state == "finished" else EXIT_FAILURE


def _continued(path: Path, target: dict[str, Any], others: dict[str, Any]) -> Any:
    """The config of the run to go on from with its new target."""
    if others:
        typed = ", ".join("--" + name.replace("_", "-") for name in others)
        raise UsageError(
            f"{typed} with --continue-from",
            allowed="--budget, --tokens or --steps: all else is as the run had it",
            do="leave it out, or train a new run",
        )
    layering, sections, checkpoint = map(own, ("trainer.layering", "trainer.sections", "trainer.checkpoint"))
    config = layering.recorded_config(checkpoint.read(path).facts, path)
    return dataclasses.replace(config, target=sections.TargetConfig(**target))


def _with_width(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with d_model in the place of width_scale."""
    scale = fields.pop("width_scale", None)
    if scale is None:
        return fields
    if "d_model" in fields:
        raise UsageError(f"--d-model {fields['d_model']} and --width-scale {scale:g}", allowed="one of the two")
    width = WIDTH_UNIT * scale
    if not 1 <= width < math.inf or width != round(width):
        raise UsageError(
            f"--width-scale {scale:g} is a width of {width:g}",
            allowed=f"a whole width, in steps of 1/{WIDTH_UNIT}",
            do=f"the nearest is --d-model {max(1, round(width))}" if math.isfinite(width) else None,
        )
    return fields | {"d_model": int(width)}


def _calmer(config: Any) -> str:
    """What to try after a run of this config that diverged."""
    lanes = config.model.injection == "hyperconnections"
    kinds = [kind for kind in own("trainer.rates").KINDS if lanes or kind != "lane"]
    shown = ", ".join(f"--{kind}-rate (now {getattr(config.optimizer, f'{kind}_rate'):g})" for kind in kinds)
    return f"train with lower learning rates: {shown}; only then with a smaller --d-model or a larger --batch-tokens"


def _loss(row: dict[str, Any], error: float) -> str:
    """The loss as the table shows it; a standard error takes more than one validation sequence."""
    if "loss" not in row:
        return "-"
    return f"{row['loss']:.4f}" + (f" +- {error:.4f}" if math.isfinite(error) else "") + " nats/token"


def _print(row: dict[str, Any], run_dir: Path, as_json: bool) -> None:
    newest = max(run_dir.glob("checkpoints/step-*"), default=None)
    if as_json:
        print_json({"run": row, "run_dir": str(run_dir), "checkpoint": str(newest) if newest else None})
        return
    last: dict[str, float] = {}
    for record in read_journal(run_dir / FILE_NAME).metrics:
        last |= record["values"]
    lines = {
        "run": row["run_id"],
        "state": row["state"],
        "loss": _loss(row, last.get(METRIC_VAL_LOSS_SE, math.nan)),
        "parameters": f"{row['n_unique']:,}",
        "tokens": f"{row.get('tokens', 0):,}",
        "FLOPs": f"{row.get('flops', 0.0):.3g}",
        "tokens/s": f"{row.get('tokens_per_second', 0.0):,.0f}",
    }
    if METRIC_MFU in last:
        lines["MFU"] = f"{last[METRIC_MFU]:.0%}"
    if last.get(METRIC_SKIPPED):
        lines["skipped steps"] = f"{last[METRIC_SKIPPED]:.0f}, loss or gradient was no number"
    lines["written to"] = str(run_dir)
    lines["checkpoint"] = newest.name if newest else "-"
    print_table(("what", "value"), lines.items())
