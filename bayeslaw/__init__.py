"""bayeslaw: what one recurrence of a looped language model is worth, and what to do about it.

Public names load on first use, so that importing the package costs nothing. The verbs are functions of the modules of
the same name: ``from bayeslaw.fit import fit``, ``from bayeslaw.allocate import allocate``.
"""

from __future__ import annotations

import importlib
from typing import Any

from bayeslaw.version import __version__

_HOMES = {
    "Architecture": "bayeslaw.architecture",
    "Family": "bayeslaw.family",
    "ISODEPTH": "bayeslaw.family",
    "RunTable": "bayeslaw.runs",
    "load_runs": "bayeslaw.runs",
    "Priors": "bayeslaw.priors",
    "Fit": "bayeslaw.posterior",
    "CheckResult": "bayeslaw.diagnostics",
    "check": "bayeslaw.diagnostics",
    "Prediction": "bayeslaw.predict",
    "Allocation": "bayeslaw.allocate",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bayeslaw' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
