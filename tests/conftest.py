"""Fits and an empty MLflow store that several tests use, made once a session."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

# numba's cache knows a function by its own file only: one cache for each state of all kernels.
_KERNELS = sorted((Path(__file__).parents[1] / "bayeslaw").rglob("*.py"))
_STATE = hashlib.sha256(b"".join(path.read_bytes() for path in _KERNELS if b"njit" in path.read_bytes())).hexdigest()[
    :12
]
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"bayeslaw-kernels-{_STATE}"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """What is read from MLflow is cached apart from what the person has cached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def isodepth_fit():
    """The posterior of the shipped baseline runs under the additive law."""
    from bayeslaw.fit import fit

    return fit("isodepth", law="additive", noise="iid", outliers="gaussian", injection_in="once")


@pytest.fixture(scope="session")
def default_fit():
    """The posterior of the shipped baseline runs under the default model, of half the usual draws."""
    from bayeslaw.fit import fit

    return fit("isodepth", draws=500, tune=500)


@pytest.fixture(scope="session")
def isodepth_file(isodepth_fit, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "isodepth.nc"
    isodepth_fit.save(path)
    return path


@pytest.fixture(scope="session")
def plain_table():
    """Forty plain runs n, tokens, loss of a known additive law."""
    import numpy as np
    import pandas as pd

    from bayeslaw import law

    n, tokens = (grid.ravel() for grid in np.meshgrid(np.geomspace(3e7, 3e9, 8), np.geomspace(1e9, 1e11, 5)))
    curve = law.loss(n, tokens, E=1.7, A=400.0, B=410.0, alpha=0.34, beta=0.28)
    error = np.random.default_rng(5).normal(0, 0.003, n.size)
    return pd.DataFrame({"n": np.round(n), "tokens": np.round(tokens), "loss": curve * np.exp(error)})


@pytest.fixture(scope="session")
def plain_fit(plain_table):
    """The posterior of the plain table."""
    from bayeslaw.fit import fit

    return fit(plain_table, law="additive")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """An MLflow database without runs: making one takes seconds, copying it nothing."""
    from bayeslaw import store

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    store.connect(f"sqlite:///{path}", create=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else the copy lacks what stands in the -wal file
    connection.close()
    return path


@pytest.fixture
def store_uri(empty_store, tmp_path) -> str:
    """An MLflow store without runs."""
    path = tmp_path / "store" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(empty_store, path)
    return f"sqlite:///{path}"
