"""Files of plain tensors: what ``torch.save`` writes to, and what ``torch.load`` may read of them."""

import errno
import os
import re
import zlib
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch

from amptui.base.runfiles import is_still

_PIECE_BYTES = 2**22


class DiskFile:
    """A file for ``torch.save`` that keeps an error of the disk for later.

    torch's writer is C++ code. Depending on the version, an exception from this file may end the process, so
    it raises none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._opened = os.fstat(descriptor)
        self.error: OSError | None = None
        self.size_bytes = 0
        """What was to be written so far."""

    def write(self, data: bytes) -> int:
        """Write all of ``data``, unless an earlier write failed."""
        left = memoryview(data).cast("B")
        self.size_bytes += len(left)
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

    def sync(self) -> None:
        """Return when everything is on the disk. Raises OSError, also an earlier one."""
        if self.error is not None:
            raise self.error
        self.check()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor, unless it is another file's by now."""
        if is_still(self._descriptor, self._opened):
            os.close(self._descriptor)


def save_whole(content: object, descriptor: int) -> int:
    """``torch.save`` to ``descriptor``, and close it; the bytes, which are on the disk. Raises OSError."""
    file = DiskFile(descriptor)
    try:
        torch.save(content, file)  # type: ignore[arg-type]  # torch needs no more of a file
        file.sync()
        return file.size_bytes
    finally:
        file.close()


def load_plain(file: BinaryIO | Path) -> Any:
    """What ``torch.save`` wrote of tensors and plain containers, in host memory; no code in it is run.

    Raises ValueError for anything else, without torch's advice to load it by running its code, and whatever
    torch raises for a damaged archive.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        forbidden_global = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden_global is None:
        raise ValueError("it is damaged, or no file of torch.save")
    raise ValueError(
        f"it holds more than tensors ({forbidden_global[1]}), which loading would have to execute"
    )


class SummedFile(DiskFile):
    """A file whose checksum is known when it is written."""

    checksum = 0
    """The CRC-32 of what was written so far."""

    def write(self, data: bytes) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return super().write(data)
