"""`criticise` puts a fit under every check and says what is found, in order of weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bayeslaw.checks import influence, misfit, predictive, structures
from bayeslaw.checks.cards import FAILED, NOT_APPLICABLE, OK, CheckCard, NotApplicableError, judged, made
from bayeslaw.checks.cells import compute_of
from bayeslaw.checks.within import ELSEWHERE
from bayeslaw.diagnostics import NOT_IDENTIFIED, CheckResult
from bayeslaw.diagnostics import check as diagnose
from bayeslaw.inputs import Inputs, inputs_of
from bayeslaw.posterior import Fit
from bayeslaw.priors import HalfNormal, Prior, Priors
from bayeslaw.structure import Structure, structure_of

SURPRISED = 2.0
"""Standard deviations of its own forecast by which a rolling origin may be off."""

SHAPE = ("curvature", "offsets", "optimum")
"""Checks of the law's shape over size and budget: where two of them fail, it is the wrong law."""

BY_CELLS = (*SHAPE[:2], "within-between", "lack-of-fit", SHAPE[2])
"""Checks that need budget lines: where two of them could not be made, nothing is known about the law's shape."""

UNMADE = (NOT_APPLICABLE, FAILED)
"""Verdicts of a check that was not made."""

MOST_ADVICE = 3
"""Steps that the verdict names."""


@dataclass(frozen=True, kw_only=True)
class Criticism:
    """All that was found about a fit.

    Parameters
    ----------
    cards : tuple of CheckCard
    phi : tuple of Row
        The answer under each structure and convention; empty where nothing was refitted.
    diagnostics : CheckResult
        Whether the sampler worked.
    headline : str
        The whole in one sentence.
    findings : tuple of str
        What is found, the heaviest first.
    advice : tuple of str
        What to do, the most urgent first.
    """

    cards: tuple[CheckCard, ...]
    phi: tuple[structures.Row, ...]
    diagnostics: CheckResult
    headline: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Headline, findings and advice as one text."""
        return " ".join([self.headline, *self.findings, *self.advice])

    def as_dict(self) -> dict[str, Any]:
        """The object that ``check --json`` prints."""
        return {
            "verdict": self.verdict,
            "cards": [card.as_dict() for card in self.cards],
            "phi": [row.as_dict() for row in self.phi],
            "diagnostics": self.diagnostics.as_dict(),
        }


def automatic_checks(fit: Fit) -> tuple[CheckCard, ...]:
    """The checks of `bayeslaw.checks.misfit.misfit_checks` and the posterior predictive one; nothing is refitted."""
    inputs, structure, priors = model_of(fit)
    compute = compute_of(fit.runs)
    replicated = fit.data["posterior_predictive"].to_dataset()["log_loss"]
    return (
        *misfit.misfit_checks(fit.posterior, structure, inputs, priors, compute=compute),
        made(
            "predictive", predictive.TITLE,
            lambda: predictive.predictive_check(
                fit.posterior, replicated, structure, inputs, ids=fit.runs["run_id"].astype(str).tolist(),
                compute=compute,
            ),
        ),
    )  # fmt: skip


def unsampled_checks(fit: Fit, diagnostics: CheckResult) -> tuple[CheckCard, ...]:
    """All cards that need no further sampling."""
    inputs, structure, priors = model_of(fit)
    bodies: dict[str, tuple[str, Callable[[str], CheckCard]]] = {
        "prior": ("What the data say and what the prior says", partial(_identified, fit, diagnostics)),
        influence.POWER: (
            influence.TITLES[influence.POWER],
            lambda title: influence.power_scaling(fit, structure, inputs, priors, title),
        ),
        influence.INFLUENCE: (influence.TITLES[influence.INFLUENCE], partial(influence.influence, fit)),
        "drift": ("Forecasts from lower budgets", partial(_origins, fit)),
    }
    return (
        *automatic_checks(fit),
        *(made(name, title, partial(body, title)) for name, (title, body) in bodies.items()),
    )


def criticise(fit: Fit, *, refit: bool = True, progress: Callable[[str], None] = lambda message: None) -> Criticism:
    """Every check of a fit.

    Parameters
    ----------
    fit : Fit
    refit : bool
        Whether to fit its runs under other structures and conventions too, which takes a minute.
    progress : callable
        Told in a few words what is being done.
    """
    diagnostics = diagnose(fit)
    progress("checking the fit")
    cards = list(unsampled_checks(fit, diagnostics))
    rows: tuple[structures.Row, ...] = ()
    if refit:

        def sided() -> CheckCard:
            nonlocal rows
            if not (fit.runs["recurrences"] > 1).any():
                raise NotApplicableError("no run repeats a block: no structure finds what a recurrence is worth")
            rows = structures.refits(fit, progress=progress)
            return structures.structures_card(rows)

        cards.append(made("structures", structures.TITLE, sided))
        if cards[-1].verdict not in UNMADE:
            told = "see the answer under each structure"
            cards = [replace(card, advice=card.advice.replace(ELSEWHERE, told)) for card in cards]
    return Criticism(
        cards=tuple(cards), phi=rows, diagnostics=diagnostics, headline=headline(fit, tuple(cards), diagnostics),
        findings=findings(tuple(cards)), advice=steps(tuple(cards)),
    )  # fmt: skip


def headline(fit: Fit, cards: tuple[CheckCard, ...], diagnostics: CheckResult) -> str:
    """Whether the law describes the runs, as far as it could be checked; no praise where the sampler failed."""
    state = {card.name: card.verdict for card in cards}
    warned = {card.name for card in cards if card.warns}
    asked = [card for card in cards if card.verdict not in UNMADE]
    absent = unmade(cards)
    shaped = all(state.get(name) == OK for name in SHAPE)
    law = f"the {fit.spec.law} law" + (" with deviations" if fit.spec.deviation else "")
    count = f"({len(warned)} of {len(asked)} checks warn)"
    left = f"; {absent[0]} could not be checked" if absent else ""
    sound = diagnostics.passed
    if len(warned & set(SHAPE)) > 1:
        told = f"{capital(law)} does not describe these runs {count}."
    elif len(absent) > 1:
        told = (
            f"Nothing is known about the shape of {law}: {len(absent)} checks could not be made ({', '.join(absent)}); "
            f"of the {len(asked)} others {len(warned) or 'none'} warn{'s' if len(warned) < 2 else ''}."
        )
    elif not sound:
        told = f"What follows rests on draws that are not to be trusted {count}."
    elif not warned:
        told = f"Nothing speaks against {law}: {len(asked)} checks, no warning{left}."
    elif shaped and "lack-of-fit" in warned:
        told = (
            f"{capital(law)} bends over size and budget as these runs do, but misses them by more than their noise "
            f"{count}."
        )
    elif shaped and not absent:
        told = f"{capital(law)} describes the shape of these runs, but for what follows {count}."
    else:
        told = f"Of {len(asked)} checks {len(warned)} speak{'s' if len(warned) == 1 else ''} against {law}{left}."
    return told if sound else f"{capital(diagnostics.messages[0])}. {told}"


def unmade(cards: tuple[CheckCard, ...]) -> list[str]:
    """The checks of `BY_CELLS` that were not made."""
    state = {card.name: card.verdict for card in cards}
    return [name for name in BY_CELLS if state.get(name, NOT_APPLICABLE) in UNMADE]


def findings(cards: tuple[CheckCard, ...]) -> tuple[str, ...]:
    """The readings of the cards that warn, the heaviest first, then what could not be checked."""
    warned = sorted((card for card in cards if card.warns), key=lambda card: -card.weight)
    failed = [f"The check {card.name} could not be made: {card.reading}." for card in cards if card.verdict == FAILED]
    return (*(f"{capital(card.reading)}." for card in warned), *failed)


def steps(cards: tuple[CheckCard, ...]) -> tuple[str, ...]:
    """What to do: the advice of the heaviest warnings, each said once."""
    warned = sorted((card for card in cards if card.warns and card.advice), key=lambda card: -card.weight)
    several = dict.fromkeys(f"{capital(part)}." for card in warned for part in card.advice.split("; "))
    blind = sum(card.name in BY_CELLS and card.verdict == NOT_APPLICABLE for card in cards) > 1
    first = (
        ("Record budgets or FLOPs, with four sizes or more at each: only they show the law's shape.",) if blind else ()
    )
    return (*first, *several)[:MOST_ADVICE]


def model_of(fit: Fit) -> tuple[Inputs, Structure, Priors]:
    """What a fit was fitted to, its vector of unknowns, and its priors, from its own record."""
    priors = priors_of(fit.attrs["priors"])
    inputs = inputs_of(fit.runs, injection_in=fit.spec.counted_in)
    return inputs, structure_of(inputs, fit.spec, priors), priors


def priors_of(record: dict[str, Any]) -> Priors:
    """The priors that a fit's record holds."""
    made_of: dict[str, Any] = {
        key: value if isinstance(value, str) else (HalfNormal if "scale" in value else Prior)(**value)
        for key, value in record.items()
    }
    return Priors(**made_of)


def _identified(fit: Fit, diagnostics: CheckResult, title: str) -> CheckCard:
    """Posterior against prior width of every parameter of the law."""
    known = diagnostics.parameters[np.isfinite(diagnostics.parameters["sd_ratio"])]
    carried = [*diagnostics.not_identified, *diagnostics.confounded]
    widest = known["sd_ratio"].idxmax()
    plain = [name for name in known.index if not name.startswith("deviation_")]
    widest = known.loc[plain, "sd_ratio"].idxmax() if plain else widest
    ratio = float(known.loc[widest, "sd_ratio"])
    parts = [f"the prior carries {', '.join(diagnostics.not_identified)}"] if diagnostics.not_identified else []
    if diagnostics.confounded:
        groups = " and of ".join(f"({group})" for group in diagnostics.confounded)
        parts.append(f"only the prior tells apart the members of {groups}")
    reading = (
        "; ".join(parts)
        if carried
        else f"the data identify every parameter; the widest, {widest}, is {ratio:.2f} times as wide as its prior"
    )
    return CheckCard(
        name="prior",
        title=title,
        verdict=judged(bool(carried)),
        value=ratio,
        threshold=NOT_IDENTIFIED,
        weight=1.2 if carried else ratio / NOT_IDENTIFIED,
        reading=reading,
        advice="vary N, D and r independently of each other, or say that the prior decides" if carried else "",
        header=("parameter", "mean", "sd", "sd / prior sd", "finding"),
        rows=tuple(
            (
                str(name),
                f"{row['mean']:.4g}",
                f"{row['sd']:.3g}",
                f"{row['sd_ratio']:.2f}",
                _said_by(str(name), diagnostics),
            )
            for name, row in known.iterrows()
        ),
        arrays={"names": [str(name) for name in known.index], "ratio": known["sd_ratio"].to_numpy()},
    )


def _said_by(name: str, diagnostics: CheckResult) -> str:
    if name in diagnostics.not_identified:
        return "carried by the prior"
    if any(name.split("[")[0] in group.split(", ") for group in diagnostics.confounded):
        return "told apart from others by the prior"
    if name.startswith("deviation_"):
        return "pooled with the other deviations"
    return "identified by the data"


def _origins(fit: Fit, title: str) -> CheckCard:
    """Errors of forecasts from lower budgets, in standard deviations of the forecasts themselves."""
    origins = fit.attrs["drift"].get("origins", []) if fit.attrs["drift"] else []
    if not origins:
        raise NotApplicableError("this fit has no drift: rolling origins belong to --drift on, and need three budgets")
    rows, steps, errors, sds = [], [], [], []
    for origin in origins:
        cells = origin["cells"]
        error, sd = (np.array([cell[key] for cell in cells]) for key in ("error", "sd"))
        at = np.array([cell["steps"] for cell in cells])
        steps.append(at)
        errors.append(error)
        sds.append(sd)
        for step in np.unique(np.round(at)):
            here = np.round(at) == step
            rows.append(
                (
                    f"{origin['trained_to']:.3g}", f"{step:.0f}", f"{error[here].mean():+.4f}",
                    f"{sd[here].mean():.4f}", f"{(error[here] / sd[here]).mean():+.1f}",
                )
            )  # fmt: skip
    joined = {"steps": np.concatenate(steps), "error": np.concatenate(errors), "sd": np.concatenate(sds)}
    standard = joined["error"] / joined["sd"]
    rms = float(np.sqrt((standard**2).mean()))
    slope = float((joined["steps"] @ joined["error"]) / (joined["steps"] @ joined["steps"]))
    scale = float(fit.data["drift"]["scale"].median())
    trained = np.repeat([origin["trained_to"] for origin in origins], [len(each) for each in steps])
    return CheckCard(
        name="drift",
        title=title,
        verdict=judged(rms > SURPRISED),
        value=rms,
        threshold=SURPRISED,
        weight=rms / SURPRISED,
        reading=f"forecasts of higher budgets from lower ones were off by {rms:.1f} of their own standard deviations "
        f"rms, by {slope:+.4f} of log loss a step on average; beyond the trained budgets the fit allows {scale:.4f} a "
        "step",
        advice="do not forecast beyond the trained budgets with this law" if rms > SURPRISED else "",
        header=("trained to, FLOPs", "steps", "error", "sd", "error / sd"),
        rows=tuple(rows),
        arrays={**joined, "trained_to": trained},
    )


def capital(words: str) -> str:
    """The words with a capital first letter; phi keeps its own."""
    return words if words.startswith(("phi ", "phi[")) else words[:1].upper() + words[1:]
