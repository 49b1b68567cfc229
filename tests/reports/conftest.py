"""Fits and readers that the report's tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import numpy as np
import pytest

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
LONG = "run 🦊 \u05e9\u05dc\u05d5\u05dd " + "x" * 300


@dataclass
class Page(HTMLParser):
    """The elements, texts and addresses of a page."""

    tags: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action", "srcset", "data"):
                self.addresses.append(value)
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "id":
                self.ids.append(value)

    def handle_data(self, data):
        # Scripts and styles arrive here too: only what is shown counts.
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.texts.append(data.strip())


@pytest.fixture(scope="session")
def read_page() -> Callable[[str], Page]:
    def read(html: str) -> Page:
        page = Page()
        page.feed(html)
        return page

    return read


@pytest.fixture(scope="session")
def hostile_fit():
    """A quick fit of two recipes, whose names and run names are HTML; too few draws for its diagnostics."""
    from bayeslaw.datasets import load_dataset
    from bayeslaw.fit import fit

    runs = load_dataset("isodepth-recipes")
    runs = runs[runs["recipe"].isin(["baseline", "truncated_bptt"]) & (runs["recurrences"] < 8)].reset_index(drop=True)
    runs.loc[runs["recipe"] == "truncated_bptt", "recipe"] = SCRIPT
    names = runs["run_id"].astype(object)
    names.iloc[0], names.iloc[1], names.iloc[2] = IMAGE, SCRIPT, LONG
    runs["run_id"] = names
    return fit(runs, draws=100, tune=200, chains=2, seed=1)


@pytest.fixture(scope="session")
def with_phi(isodepth_fit):
    """A function that gives the baseline fit other draws of phi, normal with a mean and an sd."""

    def replaced(mean: float, sd: float):
        tree = isodepth_fit.data.copy()
        posterior = tree["posterior"].to_dataset()
        draws = np.random.default_rng(3).normal(mean, sd, posterior["phi"].shape)
        tree["posterior"] = tree["posterior"].assign(phi=posterior["phi"].copy(data=draws))
        return replace(isodepth_fit, data=tree)

    return replaced
