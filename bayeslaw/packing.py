"""Archives of files (.tar.xz): the same files give the same bytes, and what is unpacked is not trusted.

Unpacking writes plain files below one new folder and nothing else: no links, devices or folders of their own, no path
that is absolute or goes up, no file twice, no byte more than the archive's own list says, or than `MOST_BYTES` where it
has none.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bayeslaw.errors import BayeslawError, UsageError
from bayeslaw.files import written_whole

MOST_BYTES = 2**30
"""Of an archive without a list, unpacked."""

MOST_LIST_BYTES = 2**26
"""Of a list: half a million files."""

_HEADERS = 4096  # what tar adds to a file, at most: its header, its padding, a long name
_CHUNK = 2**20


class PackedError(BayeslawError):
    """An archive that is damaged, or holds what it must not."""


def pack(folder: Path, names: Sequence[str], archive: Path) -> None:
    """Write files of a folder to an archive, in the order given, whole or not at all.

    Parameters
    ----------
    folder : Path
    names : sequence of str
        Paths in the folder, with ``/``.
    archive : Path
        The .tar.xz file.

    Raises
    ------
    BayeslawError
        The archive cannot be written.
    """
    with written_whole(archive) as partial, tarfile.open(partial, "w:xz", preset=9) as packed:
        for name in names:
            path = folder / name
            entry = tarfile.TarInfo(name)  # time, owner and mode are those of every TarInfo
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                packed.addfile(entry, content)


def listing(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Name, size in bytes and sha256 of files of a folder, as `unpack` compares them."""
    listed = []
    for name in names:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        listed.append({"name": name, "size": (folder / name).stat().st_size, "sha256": digest})
    return listed


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to fill, which takes the name ``folder`` when the block ends without an error.

    Raises
    ------
    UsageError
        The folder exists.
    BayeslawError
        It cannot be written.
    """
    folder = folder.expanduser().absolute()
    if os.path.lexists(folder):
        raise UsageError(f"{folder} exists", allowed="a folder that does not exist yet", do="choose another --out")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(folder)
    except OSError as error:
        raise BayeslawError(f"cannot write {folder}: {error.strerror or error}", do="choose another --out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def unpack(archive: IO[bytes], folder: Path, *, list_name: str | None = None) -> dict[str, Any]:
    """Unpack an archive into a folder.

    Parameters
    ----------
    archive : binary file
    folder : Path
        Exists and is empty.
    list_name : str, optional
        The first file of the archive must have this name and be a JSON object whose ``members`` are a `listing` of all
        others; they are compared with it.

    Returns
    -------
    dict
        That object, empty without ``list_name``.

    Raises
    ------
    PackedError
        The archive is damaged, or holds what it must not; some files may have been written.
    OSError
        A file cannot be written.
    """
    about: dict[str, Any] = {}
    expected: dict[str, Mapping[str, Any]] | None = None
    try:
        with lzma.open(archive) as content:
            stream = _Bounded(content, MOST_LIST_BYTES if list_name else MOST_BYTES)
            with tarfile.open(fileobj=stream, mode="r|") as packed:
                for member in packed:
                    _require_plain(member)
                    if list_name and expected is None:
                        if member.name != list_name:
                            raise PackedError(f"{member.name!r} is its first file, not {list_name}")
                        _write(packed, member, folder)
                        about, expected = _read_list(folder / list_name)
                        total = sum(entry["size"] + _HEADERS for entry in expected.values())
                        if total > (free := shutil.disk_usage(folder).free):
                            raise PackedError(f"it holds {total:.3g} bytes, and {free:.3g} are free in {folder.parent}")
                        stream.left = total + _CHUNK
                        continue
                    entry = expected.pop(member.name, None) if expected is not None else None
                    if expected is not None and entry is None:
                        raise PackedError(f"{member.name!r} is not in its list, or comes twice")
                    if entry and member.size != entry["size"]:
                        raise PackedError(f"{member.name!r} has {member.size} bytes, not {entry['size']}")
                    digest = _write(packed, member, folder)
                    if entry and digest != entry["sha256"]:
                        raise PackedError(f"{member.name!r} is not what its sha256 says")
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, RecursionError) as error:
        raise PackedError(str(error)) from error
    if list_name and expected is None:
        raise PackedError(f"it has no {list_name}")
    if expected:
        raise PackedError(f"{len(expected)} files of its list are missing, such as {next(iter(expected))!r}")
    return about


class _Bounded(io.RawIOBase):
    """Reads so many bytes and no more, whatever a header says of sizes."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self.left = most
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        content = self._file.read(min(size, _CHUNK) if size >= 0 else _CHUNK)
        self.left -= len(content)
        if self.left < 0:
            raise tarfile.ReadError("it unpacks to more than it may")
        return content


def _require_plain(member: tarfile.TarInfo) -> None:
    """Refuse all but a plain file below the folder."""
    path = PurePosixPath(member.name)
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise PackedError(f"{member.name!r} is no plain file")
    if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != member.name or "\0" in member.name:
        raise PackedError(f"{member.name!r} is no path below a folder")


def _write(packed: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> str:
    """Write one file, never over another; its sha256."""
    content = packed.extractfile(member)
    assert content is not None  # a plain file
    digest = hashlib.sha256()
    path = folder / member.name
    if os.path.lexists(path):
        raise PackedError(f"{member.name!r} comes twice")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _read_list(path: Path) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    about = json.loads(path.read_bytes())
    members = about.get("members") if isinstance(about, dict) else None
    if not isinstance(members, list):
        raise PackedError(f"{path.name} lists no members")
    for entry in members:
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("name"), str)
            or type(entry.get("size")) is not int
            or entry["size"] < 0
            or not isinstance(entry.get("sha256"), str)
        ):
            raise PackedError(f"{path.name} has a member without name, size and sha256")
    return about, {entry["name"]: entry for entry in members}
