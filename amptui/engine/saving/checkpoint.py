"""Checkpoints as files: what they hold, written whole or not at all, read without running code."""

import os
import re
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

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
    """All that training needs to go on after ``step``: plain values, and tensors in host memory."""

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
    """A file that is no whole checkpoint; the message says why in a few words."""


def checkpoint_name(step: int) -> str:
    """``step-000001200.pt``."""
    return f"step-{step:09d}.pt"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, the newest first; none where there is no such folder."""
    return sorted((path for path in _files(folder) if _NAME.fullmatch(path.name)), key=_step, reverse=True)


def prune(folder: Path) -> None:
    """Remove all but the newest ``KEPT``. Raises OSError."""
    for path in checkpoints(folder)[KEPT:]:
        path.unlink(missing_ok=True)


def clear(folder: Path, *, after: int) -> None:
    """Remove what a killed process left half written, and set aside what comes after that step.

    It is of a future that will not be: damaged, or another training's.
    """
    for path in _files(folder):
        with suppress(OSError):
            if _NAME.fullmatch(path.name.removesuffix(WRITING)) and path.name.endswith(WRITING):
                path.unlink()
            elif _NAME.fullmatch(path.name) and _step(path) > after:
                path.replace(path.with_name(path.name + SET_ASIDE))


def write(
    checkpoint: Checkpoint, folder: Path, *, before_it_counts: Callable[[], object] = lambda: None
) -> int:
    """Write ``checkpoint`` into ``folder``, which is made if need be; the bytes, which are on the disk.

    ``before_it_counts`` is called when all is on the disk and the file has not got its name yet. Raises
    OSError, and then no file is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / checkpoint_name(checkpoint.step)
    unfinished = path.with_name(path.name + WRITING)
    try:
        size_bytes = _write(checkpoint, unfinished)
        before_it_counts()
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    _sync(folder)
    return size_bytes


def read(path: Path) -> Checkpoint:
    """The checkpoint in ``path``, its tensors in host memory; raises DamagedError."""
    try:
        _check(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (DamagedError, MemoryError):
        raise
    except OSError as error:
        raise DamagedError(error.strerror or str(error)) from error
    except Exception as error:
        # A damaged archive, or the pickle in it, may raise anything.
        raise DamagedError(str(error).strip().partition("\n")[0] or type(error).__name__) from error
    found = content.pop("format", None) if isinstance(content, dict) else None
    if found != FORMAT:
        raise DamagedError(f"its format is {found}, and this amptui reads {FORMAT}")
    names = {each.name for each in fields(Checkpoint)}
    if content.keys() != names:
        raise DamagedError(f"not as it should be: {_listed(content.keys() ^ names)}")
    return Checkpoint(**content)


class _File:
    """Takes torch's bytes, and keeps an error of the disk for later.

    torch's writer is C++ code that is still open when an error passes through it: what it then does depends
    on its version, up to ending the process. So it sees none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write all of ``data``, unless something failed before."""
        left = memoryview(data).cast("B")
        try:
            while left and self.error is None:
                # In pieces, so that a slow disk does not hold pages of the whole file at once.
                left = left[os.write(self._descriptor, left[:_PIECE_BYTES]) :]
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


def _write(checkpoint: Checkpoint, path: Path) -> int:
    content = {each.name: getattr(checkpoint, each.name) for each in fields(Checkpoint)}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        file = _File(descriptor)
        torch.save({"format": FORMAT, **content}, file)  # type: ignore[arg-type]  # it asks for no more of a file
        if file.error is not None:
            raise file.error
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    """Bring a new name to the disk, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check(path: Path) -> None:
    """Compare every byte with its checksum, which torch itself does not."""
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise DamagedError(f"{wrong} in it does not match its checksum")


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _step(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found, "only files named so are asked"
    return int(found[1])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names)))
