"""The version of bayeslaw, the one place it is written, and those of what it computes with."""

__version__ = "0.8.0"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, of bayeslaw's code and of installed packages, for a result's record."""
    import platform
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "bayeslaw": code_version(),
        **{name: version(name) for name in packages},
    }


def code_version() -> str:
    """The version, with the commit where the code runs from a git checkout: ``0.3.0+g1a2b3c4``.

    ``.dirty`` follows where files that git knows were changed since.
    """
    import subprocess
    from pathlib import Path

    root = Path(__file__).parent.parent
    if not (root / ".git").exists():  # installed
        return __version__
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=.dirty", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git, or another owner's checkout
        return __version__
    return f"{__version__}+g{commit}"
