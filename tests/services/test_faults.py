"""Two tries of every fault; `benchmarks/faults.py` makes twenty, and a table."""

from __future__ import annotations

import subprocess

import pytest

from tests.services import faults
from tests.services.postgres import programs

pytestmark = [pytest.mark.service, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    site = faults.Site(tmp_path_factory.mktemp("site"))
    yield site
    site.close()


def can_mount(folder) -> bool:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True)
    return done.returncode == 0 and subprocess.run(["umount", "-l", folder]).returncode == 0


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_nothing_is_lost(fault, number, site, tmp_path):
    if fault == "disk full" and not can_mount(tmp_path):
        pytest.skip("no file system of a test's own may be mounted here")
    assert faults.tried(fault, number, site, tmp_path) == faults.Losses()


def test_nothing_is_lost_of_a_real_run(site, tmp_path):
    assert faults.tried_for_real("trainer killed", 1, site, tmp_path) == faults.Losses()
