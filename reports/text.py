"""How the report writes numbers: as many digits as their uncertainty allows, with units a person says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bayeslaw.predict import interval

_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_MOST_DECIMALS = 4

# Numbers stay on one line with what belongs to them: no-break spaces.
GAP = "\N{NO-BREAK SPACE}"
PERCENT_90 = f"90{GAP}%"


def quantity(value: float, digits: int = 3) -> str:
    """A count of parameters or tokens: 124 M, 2.49 B; a dash where it is unknown."""
    if not math.isfinite(value):
        return "–"
    for unit, suffix in _SUFFIXES:
        if abs(value) >= unit:
            return f"{significant(value / unit, digits)}{GAP}{suffix}"
    return significant(value, digits)


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, trailing zeros kept; a dash where it is unknown."""
    if not math.isfinite(value):
        return "–"
    if value != 0 and not 1e-4 <= abs(value) < 10 ** max(digits, 4):
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{value:.{max(0, decimals)}f}"


def flops(value: float) -> str:
    """A training budget as the command line takes it: 2.15e+19; a dash where it is unknown."""
    return f"{value:.3g}" if math.isfinite(value) else "–"


def decimals_for(spread: float) -> int:
    """Decimals that show two digits of a standard deviation."""
    if not (math.isfinite(spread) and spread > 0):
        return 3
    return min(_MOST_DECIMALS, max(0, 1 - math.floor(math.log10(spread))))


def mean_and_range(draws: NDArray[np.float64], interval_name: str = f"{PERCENT_90} ", *, sign: str = "") -> str:
    """Mean and 90 % interval of draws: 0.464 (90 % 0.436 to 0.491); ``sign`` "+" shows the sign of every number."""
    summary = interval(draws)
    decimals = decimals_for(float(draws.std()))
    mean, low, high = (f"{summary[key]:{sign}.{decimals}f}" for key in ("mean", "q05", "q95"))
    return f"{mean} ({interval_name}{low} to {high})"


def quantity_and_range(draws: NDArray[np.float64]) -> str:
    """Median and 90 % interval of a count: 771 M (702 M to 845 M)."""
    low, middle, high = (quantity(value) for value in np.quantile(draws, [0.05, 0.5, 0.95]))
    return f"{middle} ({low} to {high})"


def figure_and_range(draws: NDArray[np.float64]) -> str:
    """Median and 90 % interval of a number of any magnitude: 1.23e+05 (2.05e+04 to 7.38e+05)."""
    low, middle, high = (significant(float(value), 3) for value in np.quantile(draws, [0.05, 0.5, 0.95]))
    return f"{middle} ({low} to {high})"


def probability(share: float, draws: int) -> str:
    """A probability that is estimated by a share of draws, which cannot tell it from 0 or 1 beyond their number."""
    least = max(1e-3, 1 / draws)
    if share > 1 - least:
        return f">{GAP}{1 - least:.3f}"
    if share < least:
        return f"<{GAP}{least:.3f}"
    return f"{share:.2f}" if 0.01 <= share <= 0.99 else f"{share:.3f}"


def capital(words: str) -> str:
    """The words with a capital first letter."""
    return words[:1].upper() + words[1:]


def sentence(words: str) -> str:
    """The words as a sentence; nothing where there are none."""
    return f"{capital(words)}." if words else ""


def shortened(items: Sequence[str], most: int) -> str:
    """Items as a phrase, those beyond ``most`` counted only: a, b and 7 more."""
    kept = [*items[:most], f"{len(items) - most} more"] if len(items) > most + 1 else items
    return listing(kept)


def listing(items: Iterable[str]) -> str:
    """Items as a phrase: a, b and c."""
    parts = list(items)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
