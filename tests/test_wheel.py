"""The built wheel, alone in a bare environment without torch, used from a folder with foreign packages in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = shutil.which("uv") or str(ROOT / ".tools/uv/bin/uv")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [
        UV,
        "build",
        "--quiet",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        str(out),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    """The `bayeslaw` command of a fresh environment that holds the wheel and what it asks for, nothing else."""
    home = tmp_path_factory.mktemp("bare")
    environment = home / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    pins = home / "constraints.txt"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins.write_text("\n".join(line.split(" ")[0] for line in lines if line[:1].isalnum()))
    python = environment / "bin" / "python"
    install = [UV, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(pins), str(wheel)]
    subprocess.run(install, check=True)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0
    return environment / "bin" / "bayeslaw"


@pytest.fixture
def foreign(tmp_path) -> Path:
    """A folder of somebody else's project: packages of the same names that must not be touched."""
    for name in ("models", "trainer", "reports"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('a foreign package was imported')\n")
    return tmp_path


def run(command: list[str | Path], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**environment, **variables})


def test_wheel_holds_the_packages_and_their_data_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"bayeslaw", "models", "reports", "trainer"}
    tables = {"isodepth_runs.csv", "isodepth_minima.csv", "desk_runs.csv", "desk_rates.csv"}
    archives = {"desk_journals.tar.xz", "desk_rates_journals.tar.xz"}
    assert {f"bayeslaw/datasets/{file}" for file in tables | archives} <= set(names)
    assert any(name.startswith("reports/") and name.endswith(".j2") for name in names)
    assert not any("test" in name for name in names)


def test_run_table_from_a_foreign_folder(bare, foreign):
    listed = run([bare, "runs", "isodepth", "--out", "runs.csv"], foreign)
    assert listed.returncode == 0, listed.stderr
    fitted = run([bare, "fit", "runs.csv", "--out", "fit.nc", "--json"], foreign)
    assert fitted.returncode == 0, fitted.stderr
    assert 0.45 <= json.loads(fitted.stdout)["parameters"]["phi"]["mean"] <= 0.48
    reported = run([bare, "report", "fit.nc", "--out", "report.html"], foreign)
    assert reported.returncode == 0, reported.stderr
    assert "phi" in (foreign / "report.html").read_text()


def test_plain_table_from_a_foreign_folder(bare, foreign, plain_table):
    plain_table.to_csv(foreign / "plain.csv", index=False)
    fitted = run([bare, "fit", "plain.csv", "--out", "fit.nc"], foreign)
    assert fitted.returncode == 0, fitted.stderr
    reported = run([bare, "report", "fit.nc", "--out", "report.html"], foreign)
    assert reported.returncode == 0, reported.stderr
    assert "--flops-rule 6nd" in (foreign / "report.html").read_text()
    decided = run([bare, "report", "fit.nc", "--out", "report.html", "--flops-rule", "6nd", "--json"], foreign)
    assert {card["state"] for card in json.loads(decided.stdout)["cards"]} == {"ok"}


def test_an_intruder_on_the_path_is_named(bare, foreign, isodepth_file):
    reported = run([bare, "report", isodepth_file, "--out", "report.html"], foreign, PYTHONPATH=str(foreign))
    assert reported.returncode == 1
    assert str(foreign / "reports") in reported.stderr
    assert "PYTHONPATH" in reported.stderr


def test_training_without_torch_says_what_to_install(bare, foreign):
    trained = run([bare, "train", "--d-model", "32", "--tokens", "1000"], foreign)
    assert trained.returncode == 1
    assert "bayeslaw[train]" in trained.stderr
