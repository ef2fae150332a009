"""CPU and memory use of this machine and this process."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from amptui.base.cores import memory_limits
from amptui.records.samples import HostSample

_Value = TypeVar("_Value")

_MIN_CPU_SECONDS = 0.1
"""The minimum interval for CPU usage: psutil's documentation asks for at least 0.1 s."""


class HostProbe:
    """CPU, memory and this process's memory, as a container sees them. Nothing here raises.

    psutil counts CPU time from the last call *of the same thread*: make the probe in the thread that
    samples. ``root`` is the folder in which ``proc`` and ``sys`` are looked for.
    """

    def __init__(self, *, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._cpu_since_seconds = clock()
        _or_none(psutil.cpu_percent)  # the next call counts from here

    def sample(self) -> HostSample:
        """One sample; ``cpu_percent`` is the mean over all cores since the last sample."""
        used_bytes, total_bytes = self._memory()
        now, cpu_percent = self._clock(), None
        if now - self._cpu_since_seconds >= _MIN_CPU_SECONDS:
            self._cpu_since_seconds = now
            cpu_percent = _or_none(psutil.cpu_percent)
        return HostSample(
            cpu_percent=cpu_percent,
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            process_rss_bytes=_or_none(lambda: psutil.Process().memory_info().rss),
        )

    def _memory(self) -> tuple[int | None, int | None]:
        """Used and total bytes under the tightest limit on this process: a cgroup's or the machine's."""
        machine = _or_none(psutil.virtual_memory)
        total_bytes = None if machine is None else machine.total
        limit = min(memory_limits(self._root), default=None)
        if limit is not None and (total_bytes is None or limit[0] < total_bytes):
            return _or_none(partial(_cgroup_used_bytes, limit[1])), limit[0]
        # "available" and not "free": the kernel frees the page cache when memory is needed.
        return (None if machine is None else machine.total - machine.available), total_bytes


def _cgroup_used_bytes(folder: Path) -> int:
    """A cgroup's memory use without the file cache that the kernel frees first.

    Kubernetes and Docker show the same difference; ``memory.current`` alone grows with every file read.
    """
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return max(0, int((folder / "memory.current").read_text()) - int(statistics["inactive_file"]))


def _or_none(read: Callable[[], _Value]) -> _Value | None:
    """What ``read`` returns, or None if this system does not provide it.

    Sandboxes have a partial or different /proc, for which psutil raises any of these.
    """
    try:
        return read()
    except (psutil.Error, OSError, ValueError, LookupError, RuntimeError):
        return None
