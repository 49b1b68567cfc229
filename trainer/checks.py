"""What the fields of a config are held to, and the words for it."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from bayeslaw.errors import UsageError


def nearest(given: object, allowed: Iterable[str], cutoff: float = 0.6) -> str | None:
    """A sentence that names the nearest of the allowed names, None when none is near."""
    close = difflib.get_close_matches(str(given), list(allowed), n=1, cutoff=cutoff)
    return f"the nearest is {close[0]}" if close else None


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def require_known(what: str, given: Iterable[str], known: Iterable[str], also: Iterable[str] = ()) -> None:
    """Refuse a name that is not known, with the nearest that is."""
    allowed = [*known, *also]
    for name in given:
        if name not in allowed:
            raise UsageError(f"{what} {name!r}", allowed=", ".join(allowed), do=nearest(name, allowed))


def require_multiple(name: str, value: int, of: str, unit: int) -> None:
    """Refuse what is no multiple, with the nearest one."""
    if value % unit:
        multiple = unit * max(1, round(value / unit))
        raise UsageError(
            f"{name} = {value!r} with {of} = {unit!r}", allowed=f"a multiple of {of}", do=f"the nearest is {multiple}"
        )


def is_positive(value: object) -> bool:
    """Whether the value is a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def require_text(config: Any, *names: str) -> None:
    """Refuse a field that is no text or an empty one."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, str) or not value:
            raise UsageError(f"{name} = {value!r}", allowed="a text that is not empty")


def require_whole(config: Any, *, only: Iterable[str] = (), but: Iterable[str] = (), **least: int) -> None:
    """Refuse a field that is no whole number of its least value (1 unless ``least`` says) or more; None passes."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if (only and field.name not in only) or field.name in but or value is None:
            continue
        require_count(field.name, value, least.get(field.name, 1))


def require_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number of ``least`` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} = {value!r}", allowed=f"a whole number, {least} or more")
