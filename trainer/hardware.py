"""The device of a run: its name, what it can do at best, and the memory that was used."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

import torch

BF16_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "B200": 2250e12,
    "RTX 4090": 165e12,
    "RTX 5090": 209e12,
}
"""Dense bfloat16 FLOPs per second by the makers' data sheets, by a part of the device's name; the first that fits."""


def device_name(device: torch.device) -> str:
    """What the run-table column ``device`` holds."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()}"


def peak_flops(device: torch.device) -> float | None:
    """Dense bfloat16 FLOPs per second at best, None where no data sheet is known here (every CPU)."""
    name = device_name(device)
    return next((flops for part, flops in BF16_FLOPS.items() if part in name), None)


def restart_peak_memory(device: torch.device) -> None:
    """Let the peak begin anew, so that a run in a sweep does not report the largest run before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> float | None:
    """Peak memory since `restart_peak_memory` in bytes: allocated on the GPU, else resident in the process.

    None where /proc does not say.
    """
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024.0 * int(line.split()[1])
    return None
