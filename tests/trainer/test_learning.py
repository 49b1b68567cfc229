"""What the arms must show of learning, whatever their losses are: benchmarks/learning.py measures those."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.config import TrainConfig
from trainer.loop import train


@pytest.mark.slow
def test_a_loop_without_injection_learns_worse(tmp_path):
    """Eight recurrences of one layer, three seeds: by much more than the seeds differ."""
    losses = {}
    for injection in ("linear", "passthrough"):
        configs = [
            TrainConfig.of(
                d_model=32,
                recurrences=8,
                shared_layers=1,
                injection=injection,
                batch_tokens=1024,
                tokens=2**16,
                validation_tokens=2**14,
                seed=seed,
            )
            for seed in range(3)
        ]
        losses[injection] = np.array([train(c, tmp_path / injection, quiet=True).row["loss"] for c in configs])
    worse = losses["passthrough"] - losses["linear"]
    assert worse.min() > 0
    assert worse.mean() > 3 * losses["linear"].std(ddof=1)
