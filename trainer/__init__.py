"""bayeslaw's trainer package."""

import os

# Before torch loads its threads: those that wait for each other should sleep. Spinning, which is the default, slows a
# step many times over where another process wants the same cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
