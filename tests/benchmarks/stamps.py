"""When each step of a training began, written by its process and read by another one while it grows.

The file is mapped into memory: a stamp costs two clock reads and 16 bytes, alike for every loop.
"""

import mmap
import struct
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

VARIABLE = "AMPTUI_BENCHMARK_STAMPS"
"""The environment variable that names the file."""

_HEADER = struct.Struct("qd")
"""How many stamps there are, and the first step's loss."""

_STAMP = struct.Struct("dd")
"""The monotonic clock and the calling thread's processor time, in seconds."""

_MAX_STAMPS = 4_000_000


class StampWriter:
    """Writes stamps into a new file at ``path``, from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("w+b") as file:
            file.truncate(_HEADER.size + _MAX_STAMPS * _STAMP.size)  # sparse: takes what is written
            self._map = mmap.mmap(file.fileno(), 0)
        self._count = 0
        self._first_loss = 0.0

    def stamp(self) -> None:
        """A step begins now, in this thread."""
        place = _HEADER.size + self._count * _STAMP.size
        _STAMP.pack_into(self._map, place, time.perf_counter(), time.thread_time())
        self._count += 1
        _HEADER.pack_into(self._map, 0, self._count, self._first_loss)

    @property
    def lacks_loss(self) -> bool:
        """Whether the first step's loss is still to be told."""
        return self._count == 1

    def tell_loss(self, loss: float) -> None:
        """Keep the first step's loss."""
        self._first_loss = loss


class StampReader:
    """Reads a file of stamps that may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def count(self) -> int:
        """Steps begun so far."""
        return self._header()[0]

    @property
    def first_loss(self) -> float:
        """The first step's loss; 0 before the second step."""
        return self._header()[1]

    def between(self, began: float, ended: float) -> npt.NDArray[np.float64]:
        """The stamps between two times of the monotonic clock, [N, 2]: that clock, processor time."""
        stamps = np.memmap(self._path, dtype=np.float64, mode="r", offset=_HEADER.size)
        rows = stamps[: 2 * self.count].reshape(-1, 2)
        first, last = np.searchsorted(rows[:, 0], (began, ended))
        return np.array(rows[first:last])

    def _header(self) -> tuple[int, float]:
        try:
            with self._path.open("rb") as file:
                header = file.read(_HEADER.size)
        except FileNotFoundError:
            return 0, 0.0
        if len(header) < _HEADER.size:
            return 0, 0.0
        count, loss = _HEADER.unpack(header)
        return int(count), float(loss)
