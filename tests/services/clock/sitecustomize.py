"""A clock that jumps, for every Python process that finds this on its path: by the seconds that a file holds."""

import os
import time

_real = time.time


def _time() -> float:
    try:
        with open(os.environ["BAYESLAW_CLOCK"]) as file:
            return _real() + float(file.read() or 0.0)
    except (OSError, KeyError, ValueError):
        return _real()


time.time = _time
