"""Checkpoint files: written completely or not at all, and read without running code."""

import errno
import os
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from amptui.runfiles import FOLDER_MODE, is_still, names_in, open_new, open_to_read, opened_folder

FORMAT = 1
"""Increased when the meaning of a file's content changes."""

KEPT = 3
"""How many checkpoints are kept, in case the newest gets damaged."""

WRITING = ".writing"
"""The suffix of an unfinished file."""

SET_ASIDE = ".old"
"""The suffix of a file that resuming ignores."""

_NAME = re.compile(r"step-(\d{9,})\.pt")

_PIECE_BYTES = 2**22

Place = tuple[int, int, int, str]
"""Step, epoch, finished batches of the epoch, precision."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """Everything needed to resume after ``step``: plain values, and tensors in host memory."""

    step: int
    epoch: int
    """The epoch that the next step or validation belongs to; the number of epochs + 1 at the end."""
    batches: int
    """How many of its batches were trained on."""
    seconds: float
    """How long the run had lasted."""
    precision: str
    identity: dict[str, Any]
    """Settings that distinguish this training from others."""
    model: dict[str, Any]
    """``state_dict()``."""
    model_versions: dict[str, Any]
    """The ``_metadata`` of ``model``: the versions of its modules' states."""
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    extras: dict[str, Any]
    """States of other objects of the experiment, such as a learning-rate scheduler, by attribute."""
    draws: dict[str, Any]
    """Every random generator after ``step``."""
    epoch_draws: dict[str, Any]
    """Every random generator before the epoch's first batch."""
    loop: dict[str, Any]
    """The state of the training loop."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """Of the other ranks from rank 1 on: their ``batches``, ``draws`` and ``epoch_draws``, and the number of
    their ``gpu``; empty for a single process, whose file then has no such entry."""

    @property
    def world_size(self) -> int:
        """How many ranks wrote it."""
        return 1 + len(self.ranks)

    @property
    def place(self) -> Place:
        """The point in the training; no two checkpoints of a run share it."""
        return self.step, self.epoch, self.batches, self.precision


class DamagedError(Exception):
    """A damaged or incomplete checkpoint; the message says why."""


def checkpoint_name(step: int) -> str:
    """``step-000001200.pt``."""
    return f"step-{step:09d}.pt"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest first; empty if it does not exist."""
    names = sorted(filter(_NAME.fullmatch, names_in(folder)), key=_step, reverse=True)
    return [folder / name for name in names]


def prune(folder: Path) -> None:
    """Remove all but the newest ``KEPT`` checkpoints. Raises OSError."""
    with opened_folder(folder) as opened:
        for path in checkpoints(folder)[KEPT:]:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=opened)


def clear(folder: Path, *, after: int) -> None:
    """Remove unfinished files of a killed process, and set aside checkpoints after step ``after``.

    The run does not continue from those: they are damaged, or of another training.
    """
    with suppress(OSError), opened_folder(folder) as opened:
        for name in os.listdir(opened):  # noqa: PTH208 - a descriptor, not a path
            with suppress(OSError):
                if _NAME.fullmatch(name.removesuffix(WRITING)) and name.endswith(WRITING):
                    os.unlink(name, dir_fd=opened)
                elif _NAME.fullmatch(name) and _step(name) > after:
                    os.replace(name, name + SET_ASIDE, src_dir_fd=opened, dst_dir_fd=opened)


def write(
    checkpoint: Checkpoint, folder: Path, *, before_it_counts: Callable[[], object] = lambda: None
) -> int:
    """Write ``checkpoint`` into ``folder``, which is created if missing, and return its size in bytes.

    ``before_it_counts`` is called when the file is on the disk but has not got its name yet. If this raises
    OSError, no file is left.
    """
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    name = checkpoint_name(checkpoint.step)
    unfinished = name + WRITING
    with opened_folder(folder) as opened:
        try:
            size_bytes = _write(checkpoint, open_new(unfinished, folder=opened))
            before_it_counts()
            os.replace(unfinished, name, src_dir_fd=opened, dst_dir_fd=opened)
        finally:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=opened)
        with suppress(OSError):  # not every file system can sync a folder
            os.fsync(opened)
    return size_bytes


def read(path: Path) -> Checkpoint:
    """The checkpoint in ``path``, with its tensors in host memory. Raises DamagedError."""
    try:
        with opened_folder(path.parent) as folder, open_to_read(path.name, folder=folder) as file:
            # torch checks no checksums.
            with zipfile.ZipFile(file) as archive:
                wrong = archive.testzip()
            if wrong is not None:
                raise DamagedError(f"checksum mismatch in {wrong}")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (DamagedError, MemoryError):
        raise
    except OSError as error:
        raise DamagedError(error.strerror or str(error)) from error
    except Exception as error:
        # A damaged archive, or the pickle in it, may raise anything.
        raise DamagedError(str(error).strip().partition("\n")[0] or type(error).__name__) from error
    found = content.pop("format", None) if isinstance(content, dict) else None
    if found != FORMAT:
        raise DamagedError(f"its format is {found}, but this amptui reads {FORMAT}")
    names = {each.name for each in fields(Checkpoint)}
    content.setdefault("ranks", [])
    if content.keys() != names:
        different = ", ".join(sorted(map(str, content.keys() ^ names)))
        raise DamagedError(f"unexpected or missing entries: {different}")
    return Checkpoint(**content)


class _File:
    """A file for ``torch.save`` that keeps an error of the disk for later.

    torch's writer is C++ code. Depending on the version, an exception from this file may end the process, so
    it raises none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._opened = os.fstat(descriptor)
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write all of ``data``, unless an earlier write failed."""
        left = memoryview(data).cast("B")
        try:
            while left and self.error is None:
                self.check()
                # In pieces, so that not all pages of the file wait for a slow disk at once.
                left = left[os.write(self._descriptor, left[:_PIECE_BYTES]) :]
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def check(self) -> None:
        """Raise OSError if other code has closed the descriptor."""
        if not is_still(self._descriptor, self._opened):
            raise OSError(errno.EBADF, "other code closed the file")

    def close(self) -> None:
        """Close the descriptor, unless it is another file's by now."""
        if is_still(self._descriptor, self._opened):
            os.close(self._descriptor)


def _write(checkpoint: Checkpoint, descriptor: int) -> int:
    """Write to ``descriptor``, close it, and return the size in bytes."""
    content = {each.name: getattr(checkpoint, each.name) for each in fields(Checkpoint)}
    if not checkpoint.ranks:
        del content["ranks"]
    return save_whole({"format": FORMAT, **content}, descriptor)


def save_whole(content: object, descriptor: int) -> int:
    """``torch.save`` to ``descriptor``, and close it; the bytes, which are on the disk. Raises OSError."""
    file = _File(descriptor)
    try:
        torch.save(content, file)  # type: ignore[arg-type]  # torch needs no more of a file
        if file.error is not None:
            raise file.error
        file.check()
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        file.close()


def _step(name: str) -> int:
    found = _NAME.fullmatch(name)
    assert found, "the name of a checkpoint"
    return int(found[1])
