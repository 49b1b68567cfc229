"""Checkpoints: all that a run needs to go on after it was killed, or its model elsewhere. No pickle.

A checkpoint is a directory, ``RUN_DIR/checkpoints/step-000000480/`` for the state after 480 steps:

- ``<part>.safetensors`` for each part (``model``, ``optimizer``): tensors by name;
- ``checkpoint.json``: ``format, step, facts, files, sha256`` - ``facts`` is a JSON object of the caller, ``files``
  holds the ``sha256`` and size in ``bytes`` of each part's file, and the last ``sha256`` is that of the record without
  it, as compact JSON. Numbers come back bit for bit; NaN and the infinities are written as the journal writes them.

A checkpoint is written under a hidden name, brought to the disk and renamed, so under its own name it is always whole.
Hidden names beside it: ``.step-000000480.partial`` is being written or removed and may go at any time;
``.step-000000480.replaced`` is the earlier checkpoint of a step while a new one takes its place, and counts where the
new one is not there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bayeslaw.errors import CheckpointError
from trainer.checks import some

FOLDER = "checkpoints"
"""Folder of a run directory that holds its checkpoints."""

FILE_NAME = "checkpoint.json"
FORMAT = 1
SUFFIX = ".safetensors"

BEST_BY = "val_loss"
"""The fact whose lowest value marks the best checkpoint."""

_NAME = re.compile(r"(?:step-(\d{9,})|\.step-(\d{9,})\.replaced)")


class _OtherFormatError(CheckpointError):
    """A checkpoint of another format version: whole, but not for us."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose record was read and whose files are there.

    Parameters
    ----------
    path : Path
        Its directory.
    step : int
        Steps done.
    facts : dict
        What the caller of `save` stated.
    files : dict
        For each file of tensors its ``sha256`` and size in ``bytes``.
    """

    path: Path
    step: int
    facts: dict[str, Any]
    files: dict[str, dict[str, Any]]

    @property
    def parts(self) -> list[str]:
        """Names of the parts."""
        return [name.removesuffix(SUFFIX) for name in self.files]

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of a part by name, on the CPU, once the file is found to be what was written.

        Raises
        ------
        CheckpointError
            There is no such part, or its file is missing or damaged.
        """
        if part not in self.parts:
            raise CheckpointError(f"the checkpoint {self.path} has no part {part!r}", allowed=", ".join(self.parts))
        self._verify(part + SUFFIX)
        try:
            return load_file(self.path / (part + SUFFIX))
        except (OSError, SafetensorError) as error:
            raise _damaged(self.path / (part + SUFFIX), str(error)) from error

    def verify(self) -> None:
        """Read every file through and compare it with its digest.

        Raises
        ------
        CheckpointError
            A file is missing or damaged.
        """
        for name in self.files:
            self._verify(name)

    def _verify(self, name: str) -> None:
        try:
            with open(self.path / name, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _damaged(self.path / name, error.strerror or str(error)) from error
        if digest != self.files[name]["sha256"]:
            raise _damaged(self.path / name, "its contents are not what was written (sha256 differs)")


def save(
    folder: Path, step: int, parts: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any], *, keep: int
) -> Path:
    """Write a checkpoint, whole or not at all, then remove those that are no longer needed.

    The last ``keep`` stay, and the best one by ``facts["val_loss"]``. Checkpoints of later steps go: the run was taken
    up before them and is about to reach them again. One writer at a time, readers at any time.

    Parameters
    ----------
    folder : Path
        ``RUN_DIR/checkpoints``; made when missing.
    step : int
        Steps done; a checkpoint of the same step is replaced.
    parts : mapping
        Part -> name -> tensor, on any device; tensors that share memory are written one by one.
    facts : mapping
        Whatever JSON can hold, under text keys.
    keep : int
        How many of the last to keep, this one included: 1 or more.

    Returns
    -------
    The checkpoint's directory.

    Raises
    ------
    CheckpointError
        It cannot be written; those that were there are still there.
    """
    assert keep >= 1, "the checkpoint just written must stay"
    target = folder / f"step-{step:09d}"
    partial = _partial(target)
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            _to_disk(folder.parent)
        tidy(folder)
        partial.mkdir()
        files = {part + SUFFIX: _write_part(partial / (part + SUFFIX), parts[part]) for part in parts}
        _write_record(partial, {"format": FORMAT, "step": step, "facts": dict(facts), "files": files})
        _to_disk(partial)
        if target.exists():  # a directory cannot be renamed onto another
            target.rename(folder / f".{target.name}.replaced")
        partial.rename(target)
        _to_disk(folder)
        _retire(folder, step, keep)
    except (OSError, SafetensorError) as error:
        tidy(folder)  # before the free space is counted
        raise _not_saved(target, parts, error) from error
    finally:
        tidy(folder)
    return target


def tidy(folder: Path) -> None:
    """Remove what an interrupted save left, and put back what it was about to replace; never raises.

    One writer at a time, readers at any time.
    """
    with contextlib.suppress(OSError):
        for left in folder.glob(".step-*.replaced"):
            target = folder / left.name.removeprefix(".").removesuffix(".replaced")
            left.rename(_partial(target) if target.exists() else target)
        for left in folder.glob(".step-*.partial"):
            shutil.rmtree(left, ignore_errors=True)


def retire(folder: Path, step: int, keep: int) -> None:
    """Remove the checkpoints that `save` removes after one of this step; never raises."""
    with contextlib.suppress(OSError):
        _retire(folder, step, keep)
    tidy(folder)


def latest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint; damaged ones are passed over with a warning on stderr.

    Every file is read through. Nothing is changed, so the run may be going on meanwhile.

    Parameters
    ----------
    folder : Path
        ``RUN_DIR/checkpoints``; may be missing.

    Raises
    ------
    CheckpointError
        The newest is of another format version: not to be taken for none at all.
    """
    for path in _newest_first(folder):
        try:
            checkpoint = read(path)
            checkpoint.verify()
        except _OtherFormatError:
            raise
        except CheckpointError as error:
            print(f"warning: the checkpoint {path.name} is passed over: {error.what}", file=sys.stderr)
        else:
            return checkpoint
    return None


def read(path: Path) -> Checkpoint:
    """Read a checkpoint's record; its tensors are read when asked for.

    Parameters
    ----------
    path : Path
        A checkpoint's directory, or a run directory: then its newest whole checkpoint.

    Raises
    ------
    CheckpointError
        There is none, it is damaged, or of another format version.
    """
    if (path / FOLDER).is_dir():
        newest = latest(path / FOLDER)
        if newest is None:
            raise CheckpointError(
                f"{path} has no whole checkpoint", do="name another run directory, or train the run again"
            )
        return newest
    file = path / FILE_NAME
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        form, digest = record["format"], record.pop("sha256", None)
    except OSError as error:
        if _NAME.fullmatch(path.name):
            raise _damaged(file, error.strerror or str(error)) from error
        runs = _runs_below(path)
        raise CheckpointError(
            f"{path} is no checkpoint: {FILE_NAME}: {error.strerror}",
            allowed=f"a checkpoint's folder (RUN_DIR/{FOLDER}/step-...), or a run directory that has some",
            do=f"name a run: {some(runs)}" if runs else "name one of these",
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(file, f"no record of a checkpoint ({error})") from error
    if form != FORMAT:
        raise _OtherFormatError(
            f"the checkpoint {path} has the format version {form!r}",
            allowed=f"{FORMAT}, as this version of bayeslaw writes it",
            do="use the version of bayeslaw that wrote it, or train the run into another output folder",
        )
    if digest != _digest(record):
        raise _damaged(file, "its contents are not what was written (sha256 differs)")
    checkpoint = Checkpoint(path, record["step"], record["facts"], record["files"])
    for name, stated in checkpoint.files.items():
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            raise _damaged(path / name, error.strerror or str(error)) from error
        if size != stated["bytes"]:
            raise _damaged(path / name, f"it has {size:,} bytes, not {stated['bytes']:,}")
    return checkpoint


def _runs_below(path: Path) -> list[str]:
    """The run directories with checkpoints in an output folder, or in its folder of runs."""
    return sorted(str(place.parent) for runs in (path / "runs", path) for place in runs.glob(f"*/{FOLDER}"))


def _write_part(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write the tensors of a part to the disk; its entry in the record."""
    written: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        if plain.untyped_storage().data_ptr() in storages:  # safetensors refuses what shares memory
            plain = plain.clone()
        storages.add(plain.untyped_storage().data_ptr())
        written[name] = plain
    save_file(written, path)
    _to_disk(path)
    with open(path, "rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    with open(folder / FILE_NAME, "w", encoding="utf-8") as file:
        file.write(json.dumps({**record, "sha256": _digest(record)}, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    for name in record["files"]:
        shutil.copymode(folder / FILE_NAME, folder / name)  # safetensors lets nobody but the owner read


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, separators=(",", ":")).encode()).hexdigest()


def _to_disk(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _step(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found
    return int(found[1] or found[2])


def _newest_first(folder: Path) -> list[Path]:
    """Checkpoints by step; the one being replaced only after the one that replaces it."""
    there = [path for path in folder.glob("*step-*") if _NAME.fullmatch(path.name)]
    return sorted(there, key=lambda path: (_step(path), not path.name.startswith(".")), reverse=True)


def _retire(folder: Path, step: int, keep: int) -> None:
    """Set aside for removal all but the last checkpoints up to ``step`` and the best of them."""
    there = [path for path in _newest_first(folder) if not path.name.startswith(".")]
    whole = []
    for path in there:
        with contextlib.suppress(CheckpointError):  # no use to anybody, and must not push out one that is
            if _step(path) <= step:
                whole.append(read(path))
    staying = {checkpoint.path for checkpoint in whole[:keep]}
    rated = [checkpoint for checkpoint in whole if math.isfinite(_rating(checkpoint))]
    if rated:
        staying.add(min(rated, key=_rating).path)
    for path in there:
        if path not in staying:
            path.rename(_partial(path))  # half removed it must not be taken for a checkpoint


def _rating(checkpoint: Checkpoint) -> float:
    value = checkpoint.facts.get(BEST_BY)
    return float(value) if isinstance(value, int | float) else math.nan


def _damaged(file: Path, wrong: str) -> CheckpointError:
    return CheckpointError(
        f"damaged checkpoint, {file}: {wrong}",
        do="use another checkpoint of the run, bring a copy of the file back, or train the run again",
    )


def _not_saved(target: Path, parts: Mapping[str, Mapping[str, Tensor]], error: Exception) -> CheckpointError:
    size = sum(tensor.numel() * tensor.element_size() for tensors in parts.values() for tensor in tensors.values())
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    what = f"cannot save the checkpoint {target}: {reason}; it takes {size:,} bytes"
    elsewhere = "choose another output folder with --out; the checkpoints already there are intact"
    match _errno(error):
        case errno.EFBIG:
            return CheckpointError(what, do=f"raise the limit on the size of files (ulimit -f), or {elsewhere}")
        case errno.EDQUOT:
            return CheckpointError(what, do=f"free some of your disk quota, or {elsewhere}")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return CheckpointError(what, do=f"make the folder writable, or {elsewhere}")
    place = target.parent
    while not place.exists():
        place = place.parent
    free = "?"
    with contextlib.suppress(OSError):
        free = f"{shutil.disk_usage(place).free:,}"
    return CheckpointError(
        f"{what}, and {free} are free",
        do=f"free disk space or {elsewhere}",
    )


def _errno(error: Exception) -> int | None:
    """The system's number of an error; safetensors has it in its text alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
