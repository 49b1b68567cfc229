"""Evaluation on tasks: what is asked (probes made here, public tasks), and how a network is scored on it."""
