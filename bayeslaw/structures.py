"""Structures and conventions under which a careful person would fit the same runs, to see what an answer hangs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STRUCTURES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "coupled, independent": {"law": "coupled"},
    "coupled, cells": {"law": "coupled", "noise": "cells"},
    "additive, independent": {"law": "additive"},
    "additive, cells": {"law": "additive", "noise": "cells"},
}
"""Settings of each, as `bayeslaw.fit.fit` takes them."""
