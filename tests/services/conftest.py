"""Services of the tests' own, each from a Debian package; where one is missing its tests are skipped, and say why."""

from tests.services.postgres import postgres
from tests.services.slurm import slurm, two_nodes

__all__ = ["postgres", "slurm", "two_nodes"]
