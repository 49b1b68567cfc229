"""bayeslaw: what one recurrence of a looped language model is worth, and what to do about it.

Public names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

from bayeslaw.version import __version__

_HOMES = {
    "Architecture": "bayeslaw.architecture",
    "Family": "bayeslaw.architecture",
    "ISODEPTH": "bayeslaw.architecture",
    "RunTable": "bayeslaw.runs",
    "load_runs": "bayeslaw.runs",
    "simulate": "bayeslaw.simulate",
    "Priors": "bayeslaw.priors",
    "Fit": "bayeslaw.fit",
    "fit": "bayeslaw.fit",
    "check": "bayeslaw.diagnostics",
    "predict": "bayeslaw.predict",
    "Allocation": "bayeslaw.allocate",
    "allocate": "bayeslaw.allocate",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bayeslaw' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
