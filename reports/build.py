"""From a fit to one HTML file that needs nothing else: no network, no folder beside it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bayeslaw.diagnostics import NOT_IDENTIFIED
from bayeslaw.errors import BayeslawError
from bayeslaw.posterior import Fit
from bayeslaw.spec import MAX_R_HAT, MIN_ESS
from reports import cards, checks, decisions
from reports.cards import Body, Card
from reports.record import record
from reports.study import Study
from reports.verdict import Verdict, verdict
from reports.worth import how_to_read, worth

_ISO_FLOP = (
    "Each curve spends one training budget on models of growing size, so tokens shrink from left to right; its lowest "
    "point is the best model for that budget. Line and band: posterior mean of the law and its 90 % interval, without "
    "the scatter of single runs and cells. Dots: the runs."
)
_FRONTIER = (
    "For every budget, the unique parameters and the tokens of least loss: medians with 90 % bands. In the shaded part "
    "no run was trained: there the law is carried on, and the bands hold only if it stays true."
)
_RUNS = "One row a run, as fitted. N counts unique parameters without embeddings; C counts training FLOPs."
_CRITICISM = (
    "Each check holds a number that the runs give by themselves against the same number by the law. A warning is a "
    "finding about the law, not about the sampler; “not applicable” means that these runs cannot answer."
)
_DIAGNOSTICS = (
    f"R-hat below {MAX_R_HAT} and effective sample sizes (ESS) of at least {MIN_ESS:.0f} mean that the chains agree "
    "and that quantiles can be trusted. “sd / prior sd” tells what the data added: near 0 much, near 1 nothing; from "
    f"{NOT_IDENTIFIED:.2f} on the prior says more than the data."
)
_RECORD = "All that decides the numbers above; the same source, options and seed give them again."


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished report.

    Parameters
    ----------
    html : str
        The whole page.
    verdict : Verdict
    cards : tuple of Card
        In the order of the page.
    """

    html: str
    verdict: Verdict
    cards: tuple[Card, ...]


def make_report(
    fit: Fit, *, family: str | None = None, flops_rule: str | None = None, title: str | None = None
) -> Report:
    """Compute the verdict and every card of a fit and lay them out.

    Parameters
    ----------
    fit : Fit
    family : str, optional
        A named family for the decisions; default the one that the runs span.
    flops_rule : "6nd", optional
        Count C = 6 N D, for runs without an architecture.
    title : str, optional
        Heading of the page.

    Raises
    ------
    UsageError
        ``family`` and ``flops_rule`` are both given, or one that there is not.

    See Also
    --------
    bayeslaw.allocate.allocate : takes the same ``family`` and ``flops_rule``.
    """
    study = Study(fit=fit, family=family, flops_rule=flops_rule)
    made = make_cards(study)
    judged = verdict(study)
    subject = "What one recurrence is worth" if study.worths and study.looped else "The loss law"
    heading = title or f"{subject}: {fit.attrs['source']}"
    return Report(html=page(heading, judged, made), verdict=judged, cards=made)


def build_report(
    fit: Fit, *, family: str | None = None, flops_rule: str | None = None, title: str | None = None
) -> str:
    """The report as one HTML text; parameters as for `make_report`."""
    return make_report(fit, family=family, flops_rule=flops_rule, title=title).html


def write_report(
    fit: Fit,
    path: str | Path,
    *,
    family: str | None = None,
    flops_rule: str | None = None,
    title: str | None = None,
) -> Report:
    """Write the report, whole or not at all.

    Parameters
    ----------
    path : str or Path
        The HTML file; folders above it are made.
    fit, family, flops_rule, title
        As for `make_report`.

    Raises
    ------
    BayeslawError
        The file cannot be written.
    """
    report = make_report(fit, family=family, flops_rule=flops_rule, title=title)
    write_page(report.html, path)
    return report


def write_page(html: str, path: str | Path) -> None:
    """Write a page, whole or not at all; folders above it are made.

    Raises
    ------
    BayeslawError
        The file cannot be written.
    """
    path = Path(path)
    partial_file = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_file.write_text(html, encoding="utf-8")
        os.replace(partial_file, path)
    except OSError as error:
        raise BayeslawError(
            f"cannot write the report {path}: {error.strerror or error}", do="choose another --out"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # a folder out of reach, which has been said already
            partial_file.unlink(missing_ok=True)


def make_cards(study: Study) -> tuple[Card, ...]:
    """All cards in the order of the page, the deciding ones once for each recipe."""
    recipes = study.fit.recipes
    iso_flop, frontier = [], []
    for place, recipe in enumerate(recipes):
        suffix, whose = (f"-{place + 1}", f": {recipe}") if len(recipes) > 1 else ("", "")
        iso_flop.append(
            cards.make(
                f"iso-flop{suffix}", f"Loss along each budget{whose}", _ISO_FLOP,
                partial(decisions.iso_flop, study, recipe),
            )
        )  # fmt: skip
        frontier.append(
            cards.make(
                f"frontier{suffix}", f"Best size and tokens for a budget{whose}", _FRONTIER,
                partial(decisions.frontier, study, recipe),
            )
        )  # fmt: skip
    single: dict[str, tuple[str, str, Callable[[Study], Body]]] = {
        "worth": ("What a recurrence is worth", how_to_read(study), worth),
        "criticism": ("What speaks against this fit", _CRITICISM, checks.criticism),
        "runs": ("Runs", _RUNS, cards.runs),
        "diagnostics": ("Can the numbers be trusted?", _DIAGNOSTICS, cards.diagnostics),
        "record": ("How this was made", _RECORD, record),
    }
    first, *rest = (cards.make(name, title, how, partial(body, study)) for name, (title, how, body) in single.items())
    return (first, *iso_flop, *frontier, *rest)


def page(title: str, judged: Verdict, made: tuple[Card, ...]) -> str:
    """One HTML page: a heading, a verdict and cards."""
    from plotly.offline import get_plotlyjs

    scripts = (get_plotlyjs(), _resource("page.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Scripts and figures are ours and are made safe here; every other text is escaped by the template.
    return environment.from_string(_resource("template.html.j2")).render(
        title=title,
        verdict=judged,
        cards=made,
        style=Markup(_resource("page.css")),
        scripts=[Markup(script) for script in scripts],
        script_hashes=[_content_hash(script) for script in scripts],
        figures=Markup(_figures_json(made)),
    )


def _figures_json(made: tuple[Card, ...]) -> str:
    """The figures by card name, as JSON that cannot end the script element it stands in."""
    parts = (f'"{card.name}":{card.figure.to_json()}' for card in made if card.figure is not None)
    text = "{" + ",".join(parts) + "}"
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _content_hash(script: str) -> str:
    """What the page's security policy names the script by: only our two scripts may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _resource(name: str) -> str:
    return resources.files(__package__ or "reports").joinpath(name).read_text(encoding="utf-8")
