"""Checkpoint files: their contents, written completely or not at all, read without running code."""

import errno
import os
import re
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch

from amptui.runfiles import FOLDER_MODE, is_still, names_in, open_new, open_to_read, opened_folder

FORMAT = 1
"""Counted up when a file's content changes its meaning."""

KEPT = 3
"""Newest checkpoints that stay: should the disk damage one, there is one before it."""

WRITING = ".writing"
"""Ends the name of a file that is not whole yet."""

SET_ASIDE = ".old"
"""Ends the name of a file that no resume looks at."""

_NAME = re.compile(r"step-(\d{9,})\.pt")

_PIECE_BYTES = 2**22

Place = tuple[int, int, int, str]
"""Step, epoch, batches of it that are done, precision."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """Everything needed to resume after ``step``: plain values, and tensors in host memory."""

    step: int
    epoch: int
    """The one that ``step`` is followed by a step or a validation of; past the last one when all is done."""
    batches: int
    """How many of its batches were trained on."""
    seconds: float
    """How long the run had lasted."""
    precision: str
    identity: dict[str, Any]
    """What tells this training from another."""
    model: dict[str, Any]
    """``state_dict()``."""
    model_versions: dict[str, Any]
    """The versions of its modules' states."""
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    extras: dict[str, Any]
    """The states of what else the experiment holds, a learning rate's schedule say, by attribute."""
    draws: dict[str, Any]
    """Every random generator after ``step``."""
    epoch_draws: dict[str, Any]
    """The same before the epoch's first batch."""
    loop: dict[str, Any]
    """What the loop itself has counted and been told."""

    @property
    def place(self) -> "Place":
        """What it is the only one of."""
        return self.step, self.epoch, self.batches, self.precision


class DamagedError(Exception):
    """A damaged or incomplete checkpoint; the message says briefly why."""


def checkpoint_name(step: int) -> str:
    """``step-000001200.pt``."""
    return f"step-{step:09d}.pt"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, the newest first; none where there is no such folder."""
    names = sorted(filter(_NAME.fullmatch, names_in(folder)), key=_step, reverse=True)
    return [folder / name for name in names]


def prune(folder: Path) -> None:
    """Remove all but the newest ``KEPT``. Raises OSError."""
    with opened_folder(folder) as opened:
        for path in checkpoints(folder)[KEPT:]:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=opened)


def clear(folder: Path, *, after: int) -> None:
    """Remove what a killed process left half written, and set aside what comes after that step.

    It is of a future that will not be: damaged, or another training's.
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
    """Write ``checkpoint`` into ``folder``, which is made if need be; the bytes, which are on the disk.

    ``before_it_counts`` is called when all is on the disk and the file has not got its name yet. Raises
    OSError, and then no file is left.
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
        with suppress(OSError):  # not every file system can bring a new name to the disk
            os.fsync(opened)
    return size_bytes


def read(path: Path) -> Checkpoint:
    """The checkpoint in ``path``, its tensors in host memory; raises DamagedError."""
    try:
        with opened_folder(path.parent) as folder, open_to_read(path.name, folder=folder) as file:
            _check(file)
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
    if content.keys() != names:
        raise DamagedError(f"unexpected or missing entries: {_listed(content.keys() ^ names)}")
    return Checkpoint(**content)


class _File:
    """Takes torch's bytes, and keeps an error of the disk for later.

    torch's writer is C++ code that is still open when an error passes through it: what it then does depends
    on its version, up to ending the process. So it sees none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._opened = os.fstat(descriptor)
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write all of ``data``, unless something failed before."""
        left = memoryview(data).cast("B")
        try:
            while left and self.error is None:
                self.check()
                # In pieces, so that a slow disk does not hold pages of the whole file at once.
                left = left[os.write(self._descriptor, left[:_PIECE_BYTES]) :]
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def check(self) -> None:
        """Raise OSError where somebody has closed it."""
        if not is_still(self._descriptor, self._opened):
            raise OSError(errno.EBADF, "other code closed the file")

    def close(self) -> None:
        """Close it, and no other."""
        if is_still(self._descriptor, self._opened):
            os.close(self._descriptor)


def _write(checkpoint: Checkpoint, descriptor: int) -> int:
    """Write to ``descriptor`` and close it; the bytes."""
    content = {each.name: getattr(checkpoint, each.name) for each in fields(Checkpoint)}
    file = _File(descriptor)
    try:
        torch.save({"format": FORMAT, **content}, file)  # type: ignore[arg-type]  # it asks for no more of a file
        if file.error is not None:
            raise file.error
        file.check()
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        file.close()


def _check(file: BinaryIO) -> None:
    """Compare every byte with its checksum, which torch itself does not."""
    with zipfile.ZipFile(file) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise DamagedError(f"checksum mismatch in {wrong}")


def _step(name: str) -> int:
    found = _NAME.fullmatch(name)
    assert found, "only files named so are asked"
    return int(found[1])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names)))
