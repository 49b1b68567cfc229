"""Fits, readers and a browser that the report's tests share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
LONG = "run 🦊 \u05e9\u05dc\u05d5\u05dd " + "x" * 300

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


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
    return fit(runs, law="additive", draws=100, tune=200, chains=2, seed=1)


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


@pytest.fixture(scope="session")
def changed():
    """A function that gives a fit another spec and other parameters, in posterior and prior, without sampling."""

    def replaced(fit, drop=(), spec=None, levels=None, **parameters):
        tree = fit.data.copy()
        for group in ("posterior", "prior"):
            data = tree[group].to_dataset()
            values = {name: value(data) for name, value in parameters.items()}
            tree[group] = xr.DataTree(data.assign(values).drop_vars(drop))
        record = fit.attrs
        record["map_levels"] = levels or []
        tree.attrs["record"] = json.dumps(record)
        return replace(fit, data=tree, spec=replace(fit.spec, **(spec or {})))

    return replaced


@pytest.fixture(scope="session")
def with_map(isodepth_fit, changed):
    """A function that lets the baseline fit's phi be that of another map, whose parameters say about the same."""
    phi = {
        "bounded": {"gain": lambda data: 1.5 * np.exp(data["phi"]), "scale": lambda data: 2.5 * np.exp(data["phi"])},
        "log": {"slope": lambda data: 0.5 * np.exp(data["phi"])},
        "hill": {"gain": lambda data: 2 * np.exp(data["phi"]), "half": lambda data: 4 * np.exp(data["phi"])},
        "free": {f"phi_{r}": (lambda data, r=r: data["phi"] - 0.05 * (4 - r)) for r in (2, 4, 8)},
    }

    def replaced(name: str, **parameters):
        return changed(
            isodepth_fit, ["phi"], {"map": name}, [2.0, 4.0, 8.0] if name == "free" else None,
            **{**phi.get(name, {}), **parameters},
        )  # fmt: skip

    return replaced


@pytest.fixture(scope="session")
def quick():
    """A function that fits in seconds, with too few draws for the diagnostics."""
    from bayeslaw.fit import fit

    return lambda source, **settings: fit(
        source, **{"law": "additive", "draws": 150, "tune": 250, "chains": 2, "seed": 1, **settings}
    )


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH (Debian package: chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """A function that opens a file and waits until all is drawn; the page must keep quiet and ask for nothing."""
    contexts, complaints, requests = [], [], []

    def opened(path, *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready=true]", timeout=60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="session")
def drawn_in():
    """A function that names the figures of a page that have something drawn in them."""
    return lambda page: page.eval_on_selector_all(
        ".figure",
        "all => all.filter(e => e.querySelector('svg.main-svg .cartesianlayer .trace')).map(e => e.dataset.figure)",
    )
