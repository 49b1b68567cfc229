"""What tests of a run look at it with: its journal, its curve, and a hand in its steps."""

from __future__ import annotations

import torch

from bayeslaw.journal import find_journals, read_journal
from trainer.distributed import World
from trainer.learner import Learner

ALONE = World(0, 1, torch.device("cpu"))


def only_journal(out):
    (path,) = find_journals(out)
    return read_journal(path)


def curve(journal, name):
    return [record["values"][name] for record in journal.metrics if name in record["values"]]


def at_step(monkeypatch, number, action):
    """Do ``action`` before a step's own work."""
    step = Learner.step

    def replaced(self, at, batch, **flags):
        if at == number:
            action()
        return step(self, at, batch, **flags)

    monkeypatch.setattr(Learner, "step", replaced)


def raiser(error):
    def act():
        raise error

    return act
