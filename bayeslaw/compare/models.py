"""`compare_models` fits models to the same runs and to parts of them, and holds their predictions side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from bayeslaw.compare.comparison import Comparison, Model
from bayeslaw.compare.parts import LEAVE, levels_of, splits_of
from bayeslaw.diagnostics import check
from bayeslaw.errors import FitError, UsageError
from bayeslaw.fit import fit
from bayeslaw.holdout import Candidate
from bayeslaw.maps import MAPS
from bayeslaw.priors import DEFAULT, Priors
from bayeslaw.ranking import loo
from bayeslaw.runs import RunTable
from bayeslaw.spec import LAWS, Spec
from bayeslaw.structure import Structure, free_parameters

REFITS: Mapping[str, int] = {"draws": 800, "tune": 500, "chains": 2}
"""Of every fit to a part of the runs: what its forecasts need, and no more."""

_WORDS: Mapping[str, tuple[str, Any]] = {
    "student": ("outliers", "student"), "cells": ("noise", "cells"), "deviation": ("deviation", True),
    "drift": ("drift", True),
}  # fmt: skip
_PLAIN: Mapping[str, Any] = {"outliers": "gaussian", "noise": "iid", "deviation": False, "drift": False}


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a model's name.

    Parameters
    ----------
    name : str
        "default", or a law and, behind commas, a map, "student", "cells", "deviation", "drift": what is not named is
        that of the plain law.

    Raises
    ------
    UsageError
        There is no such law, map or word.

    Examples
    --------
    >>> settings_of("coupled, bounded, student")
    {'law': 'coupled', 'map': 'bounded', 'outliers': 'student'}
    """
    law, *words = (word.strip() for word in name.split(","))
    if law == "default" and not words:
        return {}
    if law not in LAWS:
        raise UsageError(f"law {law!r}", allowed=", ".join(("default", *LAWS)))
    settings: dict[str, Any] = {"law": law}
    for word in words:
        if word in MAPS:
            settings["map"] = word
        elif word in _WORDS:
            key, value = _WORDS[word]
            settings[key] = value
        else:
            raise UsageError(f"{word!r} in the model {name!r}", allowed=", ".join((*MAPS, *_WORDS)))
    return settings


def name_of(settings: Mapping[str, Any]) -> str:
    """The name of a model's settings, the other way round of `settings_of`.

    The map is named wherever anything is besides the law, but power alone goes without saying.

    Examples
    --------
    >>> name_of({"law": "coupled", "outliers": "student"})
    'coupled, power, student'
    """
    if not settings:
        return "default"
    words = [word for word, (key, value) in _WORDS.items() if settings.get(key, _PLAIN[key]) == value]
    plain = "none" if settings["law"] == "chinchilla" else "power"
    chosen = settings.get("map") or plain
    shown = [chosen] if words or chosen != plain else []
    return ", ".join([settings["law"], *(shown if settings["law"] != "chinchilla" else []), *words])


def default_models(*, looped: bool, recipes: bool = False) -> dict[str, dict[str, Any]]:
    """The models that are worth comparing, by name.

    Parameters
    ----------
    looped : bool
        Whether any run loops: without one all maps say the same.
    recipes : bool
        Whether recipes are the question: then the maps are left out.
    """
    names = ["additive", "coupled", "default"]
    if looped and not recipes:
        names += [f"coupled, {name}, student" for name in ("power", "bounded", "hill", "free")]
    return {name: settings_of(name) for name in names}


def chosen_models(laws: Sequence[str] | None, maps: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Every law with every map, as the flags of `bayeslaw fit` mean them, and the default model for reference.

    Raises
    ------
    UsageError
        There is no such law or map, or none is left.
    """
    for flag, given, allowed in (("--laws", laws, LAWS), ("--maps", maps, tuple(MAPS))):
        if unknown := [name for name in given or () if name not in allowed]:
            raise UsageError(f"{flag} {','.join(unknown)}", allowed=", ".join(allowed))
    out: dict[str, dict[str, Any]] = {}
    for law in laws or ("additive", "coupled"):
        for each in (None,) if law == "chinchilla" else maps or (None,):
            settings = {"law": law} | ({"map": each} if each else {})
            out[name_of(settings)] = settings
    return {**out, "default": {}}


def complexity(structure: Structure) -> int:
    """Number of free numbers of a model, by which the simpler of two that tie is known.

    The law's parameters and the errors' scale; one more for every spread that pools others (of deviations, whose sizes
    their spread bears, and of recipes), for every effect of groups and for a scale that changes with compute.
    """
    spreads = sum(name.endswith("_spread") for name in structure.hyper)
    return free_parameters(structure.blocks) + spreads + len(structure.scales) - 1


def compare_models(
    table: RunTable,
    models: Mapping[str, Mapping[str, Any]],
    *,
    priors: Priors = DEFAULT,
    leave: Collection[str] = LEAVE,
    progress: Callable[[str], None] = lambda message: None,
    **settings: Any,
) -> Comparison:
    """Fit models to all runs and to parts of them, and score what they say of the others.

    Parameters
    ----------
    table : RunTable
    models : mapping of str to mapping
        Settings of each, as `bayeslaw.fit.fit` takes them; see `default_models`.
    priors : Priors
    leave : collection of str
        Of `LEAVE`: groups that are left out in turn. Forward chaining is always done where there are budgets enough.
    progress : callable
        Told in a few words what is being done.
    **settings
        For all models: injection_in, recipe, draws, tune, chains, seed.

    Raises
    ------
    UsageError
        A kind of groups, or a setting, that there is not.
    FitError
        No model has as few parameters as there are runs.
    """
    if unknown := [kind for kind in leave if kind not in LEAVE]:
        raise UsageError(f"leave {', '.join(unknown)}", allowed=", ".join(LEAVE))
    if unknown := sorted(set(settings) - {field.name for field in fields(Spec)}):
        raise UsageError(f"no setting {', '.join(unknown)}", allowed=", ".join(field.name for field in fields(Spec)))
    candidates, notes = _candidates(table, models, settings, priors)
    first = next(iter(candidates.values())).inputs
    needed = max(free_parameters(each.structure.blocks) for each in candidates.values())
    splits, skipped = splits_of(first, levels_of(table, first), leave=leave, needed=needed)
    made: dict[str, Model] = {}
    for place, (name, candidate) in enumerate(candidates.items()):
        label = f"{name} ({place + 1} of {len(candidates)})"
        result = fit(
            table, priors=priors, progress=lambda text, label=label: progress(f"{label}: {text}"),  # type: ignore[misc]
            **{**models[name], **settings},
        )  # fmt: skip
        if splits:
            progress(f"{label}: {len(splits)} fits to parts of the runs")
        made[name] = Model(
            name=name,
            complexity=complexity(candidate.structure),
            passed=check(result).passed,
            loo=loo(result.data["log_likelihood"].to_dataset()),
            forecasts=tuple(candidate.forecast(split.trained, split.held) for split in splits),
        )
    return Comparison(
        source=table.source, n_runs=len(table.runs), models=made, splits=splits, notes=(*notes, *skipped)
    )  # fmt: skip


def _candidates(
    table: RunTable, models: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any], priors: Priors
) -> tuple[dict[str, Candidate], tuple[str, ...]]:
    """The models that there are runs enough for, ready for fits to parts; what is said of the others."""
    if not models:
        raise UsageError("no model to compare", allowed="one or more")
    out, notes = {}, []
    for name, own in models.items():
        spec = Spec.of(**{**own, **settings})
        spec = replace(spec, **{key: min(getattr(spec, key), most) for key, most in REFITS.items()})
        candidate = Candidate.of(table, spec, priors=priors)
        runs, free = len(candidate.inputs.run.levels), free_parameters(candidate.structure.blocks)
        if runs < free:
            notes.append(f"{name} is left out: {runs} runs for {free} free parameters")
        else:
            out[name] = candidate
    if not out:
        raise FitError(
            f"{table.source} has too few runs for any model here: {'; '.join(notes)}",
            allowed="at least as many runs as a model has free parameters",
            do="add runs, or compare them with a larger table by --against",
        )
    return out, tuple(notes)
