"""bayeslaw's trainer package."""

import os

# Before torch loads its threads: those that wait for each other should soon sleep. They would spin for so long that a
# step takes many times as long where another process wants the same cores, and gain nothing where none does.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
