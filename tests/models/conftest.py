"""One thread: these networks are too small to gain from more, and more wait for each other on a busy machine."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
