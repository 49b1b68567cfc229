"""Journals of the studies that ship: packed into one archive a study, unpacked into a folder as a sweep leaves it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import IO

from bayeslaw import datasets, packing
from bayeslaw.errors import BayeslawError, NoRunsError, UsageError
from bayeslaw.journal import FILE_NAME, find_journals


def archive_name(study: str) -> str:
    """Name of the archive of a study's journals, which lies beside its table."""
    return f"{study.replace('-', '_')}_journals.tar.xz"


def unpack_journals(study: str, folder: Path) -> int:
    """Write the journals of a shipped study to ``folder/runs/RUN/journal.jsonl``, all or none.

    Parameters
    ----------
    study : str
        One of `bayeslaw.datasets.STUDIES`.
    folder : Path
        Must not exist yet.

    Returns
    -------
    int
        How many journals there are.

    Raises
    ------
    UsageError
        No journals of that name ship, or the folder exists.
    BayeslawError
        The folder cannot be written, or the archive is damaged.
    """
    if study not in datasets.STUDIES:
        raise UsageError(f"no journals ship with {study!r}", allowed=", ".join(datasets.STUDIES))
    with (resources.files(datasets) / archive_name(study)).open("rb") as archive:
        return extract(archive, folder)


def extract(archive: IO[bytes], folder: Path) -> int:
    """Unpack an archive of journals that `pack` wrote; parameters and errors as for `unpack_journals`."""
    with packing.new_folder(folder) as partial:
        try:
            packing.unpack(archive, partial)
        except packing.PackedError as error:
            raise BayeslawError(
                f"the archive of journals is damaged: {error.what}", do="install bayeslaw again"
            ) from error
        return len(find_journals(partial))


def pack(folder: Path, archive: Path) -> int:
    """Pack the journals of a sweep's runs; the same journals give the same bytes.

    Parameters
    ----------
    folder : Path
        What a sweep wrote: ``runs/RUN/journal.jsonl``.
    archive : Path
        The .tar.xz file, written whole or not at all.

    Returns
    -------
    int
        How many journals there are.

    Raises
    ------
    NoRunsError
        There is none.
    BayeslawError
        The archive cannot be written.
    """
    journals = sorted((folder / "runs").glob(f"*/{FILE_NAME}"))
    if not journals:
        raise NoRunsError(f"no runs/RUN/{FILE_NAME} in {folder}", do="name the --out folder of a sweep")
    packing.pack(folder, [journal.relative_to(folder).as_posix() for journal in journals], archive)
    return len(journals)
