"""The version of bayeslaw, the one place it is written, and those of what it computes with."""

__version__ = "0.3.0"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, of bayeslaw and of installed packages, for a result's record."""
    import platform
    from importlib.metadata import version

    return {
        "python": platform.python_version(),
        "bayeslaw": __version__,
        **{name: version(name) for name in packages},
    }
