"""The errors users meet: what came, what is allowed, what to do next, and the exit code each one means."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_DIAGNOSTICS = 3
EXIT_NO_RUNS = 4
EXIT_INTERRUPTED = 130


class BayeslawError(Exception):
    """An error with a message for the person at the terminal.

    Parameters
    ----------
    what : str
        What came: the flag, column, file or value at fault, and its value.
    allowed : str, optional
        What would have been accepted.
    do : str, optional
        The next step that gets the person going again.
    """

    exit_code = EXIT_FAILURE

    def __init__(self, what: str, *, allowed: str | None = None, do: str | None = None) -> None:
        self.what = what
        self.allowed = allowed
        self.do = do
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.what]
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.do:
            parts.append(f"next: {self.do}")
        return "\n  ".join(parts)


class UsageError(BayeslawError):
    """A flag or argument that cannot be meant as it stands."""

    exit_code = EXIT_USAGE


class RunTableError(BayeslawError):
    """A run table, or the file it should come from, that cannot be used."""


class NoRunsError(BayeslawError):
    """The source was read but holds no run to work on."""

    exit_code = EXIT_NO_RUNS


class TrackingError(BayeslawError):
    """The MLflow store cannot be reached or refuses the request."""


class JournalError(BayeslawError):
    """A run journal, or a sweep plan, that cannot be read or written."""


class DataError(BayeslawError):
    """Documents or packed shards that are damaged, foreign, or not there."""


class CheckpointError(BayeslawError):
    """A checkpoint that cannot be written, read, or used for the model at hand."""


class FitError(BayeslawError):
    """A fit that cannot be made, or a fit file that cannot be read."""


class DecisionError(BayeslawError):
    """A decision asked of a fit that lacks what the decision needs."""
