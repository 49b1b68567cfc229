"""What the code must not do with data: unpickle it, or run it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for package in ("bayeslaw", "trainer", "models", "reports") for path in (ROOT / package).rglob("*.py")]
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "np.load", "numpy.load", "pd.read_pickle", "yaml.load"}


def unsafe(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS:
            found.append(ast.unparse(node.func))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_code_comes_from_data(path):
    assert unsafe(path.read_text(encoding="utf-8")) == []


def test_what_would_be_found():
    text = "import pickle\nfrom joblib import load\neval('1')\ntorch.load(path)\nmodel.eval()"
    assert unsafe(text) == ["pickle", "joblib", "eval", "torch.load"]
