"""The version names the commit where there is one."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from bayeslaw import version

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_and_whether_files_changed_since(tmp_path, monkeypatch):
    (tmp_path / "bayeslaw").mkdir()
    file = tmp_path / "bayeslaw" / "version.py"
    file.write_text("1")
    monkeypatch.setattr(version, "__file__", str(file))
    assert version.code_version() == version.__version__
    git(tmp_path, "init", "-q")
    assert version.code_version() == version.__version__  # no commit yet
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert version.code_version() == f"{version.__version__}+g{commit}"
    file.write_text("2")
    assert version.code_version() == f"{version.__version__}+g{commit}.dirty"
