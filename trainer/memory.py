"""Peak memory of a run, where the system can tell it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def restart_peak_memory() -> None:
    """Let the peak begin anew, so that a run in a sweep does not report the largest run before it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float | None:
    """Peak resident memory of the process since `restart_peak_memory`, in bytes; None where /proc does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    return None
