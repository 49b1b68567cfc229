"""A config from layers of fields: a preset's, those of its recipe, a TOML file's, flags. The later layer wins."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayeslaw.errors import CheckpointError, UsageError
from trainer.checks import require_known
from trainer.config import FIELDS, SECTIONS, TrainConfig
from trainer.execution import Execution
from trainer.presets import Preset, recipe_fields, shared_layers
from trainer.sections import TargetConfig

EXECUTION = "execution"
GIVEN = tuple(name for name in FIELDS if name != "continues")
"""Fields that a person may give: ``continues`` is the trainer's to fill in."""
TARGETS = tuple(field.name for field in dataclasses.fields(TargetConfig))


def layered(preset: Preset | None, *layers: Mapping[str, Any]) -> TrainConfig:
    """The config of flat layers on top of a preset; None in a layer means not given.

    A target (budget, tokens or steps) takes the place of another one below. The recipe's fields and the preset's
    partition of the depth are those of the recipe and the recurrences that come out on top.

    Parameters
    ----------
    preset : Preset, optional
    *layers : mapping of config fields
        From the lowest to the highest.

    Raises
    ------
    UsageError
        An unknown or missing name, or a value that cannot be trained.
    """
    defaults = dict(preset.fields) if preset else {}
    given: dict[str, Any] = {}
    for layer in layers:
        added = {name: value for name, value in layer.items() if value is not None}
        if any(name in TARGETS for name in added):
            defaults, given = _without_target(defaults), _without_target(given)
        given |= added
    recipe, recurrences = given.get("recipe", "baseline"), given.get("recurrences", 1)
    if isinstance(recipe, str) and isinstance(recurrences, int):  # else the config says what it wants
        defaults |= recipe_fields(recipe, recurrences)
        if preset and "shared_layers" not in given:
            defaults["shared_layers"] = shared_layers(preset.unrolled_layers, recurrences)
    return TrainConfig.of(**(defaults | given))


def _without_target(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in TARGETS}


def read_toml(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a TOML file: those of a config, flat, and those of its execution.

    The file has the sections of `TrainConfig` and ``[execution]``; recipe, seed and the like stand above the sections.

    Raises
    ------
    UsageError
        The file cannot be read, is no TOML, or holds an unknown section or field.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", do="name another --config") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}", allowed="a TOML file in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        last = f"at line {len(text.splitlines())}, the last"
        wrong = str(error).replace("at end of document", last)
        raise UsageError(f"{path} is no TOML: {wrong}", do="mend that line") from error
    sections = {**SECTIONS, EXECUTION: Execution}
    top = {name: value for name, value in content.items() if name not in sections}
    for name in top:
        if section := FIELDS.get(name):
            raise UsageError(f"{path}: {name} outside of its section", allowed=f"[{section}]", do="move it there")
    own = [name for name in GIVEN if not FIELDS[name]]
    require_known(f"{path}: field", top, own, also=[f"[{name}]" for name in sections])
    parts = {name: content.get(name, {}) for name in sections}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise UsageError(f"{path}: {name} = {part!r}", allowed=f"a section [{name}] of fields")
        known = [field.name for field in dataclasses.fields(sections[name])]
        require_known(f"{path}: field of [{name}]", part, known)
    execution = parts.pop(EXECUTION)
    return {**top, **{name: value for part in parts.values() for name, value in part.items()}}, execution


def recorded_config(facts: Mapping[str, Any], path: Path) -> TrainConfig:
    """The config in the facts of a checkpoint.

    Raises
    ------
    CheckpointError
        There is none, or this version does not know it.
    """
    try:
        return TrainConfig.from_dict(facts["config"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint {path} holds no config", do="use another checkpoint") from error
    except UsageError as error:
        raise CheckpointError(
            f"the checkpoint {path} holds a config of another version: {error.what}", allowed=error.allowed
        ) from error
