"""The tracking server: `mlflow server` with safe settings, in a process group of its own."""

from bayeslaw.server.process import Server
from bayeslaw.server.settings import Settings

__all__ = ["Server", "Settings"]
