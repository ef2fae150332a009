"""How many cores and how much memory this process may use, for example in a container."""

import math
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The number of cores of the machine, and how many this process may use."""

    machine: int
    allowed: int
    """In its CPU affinity mask."""
    limit: float | None
    """The control group's limit, in CPU seconds per second."""

    @property
    def usable(self) -> int:
        """How many threads can compute at once."""
        return max(1, min(self.allowed, math.ceil(self.limit or self.allowed)))

    @property
    def seconds(self) -> float:
        """CPU seconds per second that all threads together may use."""
        return min(self.allowed, self.limit or self.allowed)


def read_cores(root: Path = Path("/")) -> Cores:
    """The cores of this machine and process, with the smallest limit of its control groups and their parents.

    ``root`` is the folder that contains ``proc`` and ``sys``. Kernel documentation:
    admin-guide/cgroup-v2.rst (``cpu.max``, ``memory.max``). Version 1 is not read.
    """
    limits = [_quota(_read(folder / "cpu.max")) for folder in _control_groups(root)]
    machine, affinity = os.cpu_count() or 1, getattr(os, "sched_getaffinity", None)  # macOS has no mask
    return Cores(
        machine=machine,
        allowed=machine if affinity is None else len(affinity(0)),
        limit=min((limit for limit in limits if limit is not None), default=None),
    )


def memory_limits(root: Path = Path("/")) -> list[tuple[int, Path]]:
    """The limits of memory, in bytes, of this process's control groups, each with the group's folder."""
    limits = ((_read(folder / "memory.max").strip(), folder) for folder in _control_groups(root))
    return [(int(text), folder) for text, folder in limits if text.isdecimal()]


def _control_groups(root: Path) -> list[Path]:
    """The folders of this process's control group and its parents."""
    path = _read(root / "proc/self/cgroup").rpartition("0::")[2].partition("\n")[0]
    # A container may see its path on the host, which its own mount lacks: its group is then the mount itself.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath("sys/fs/cgroup", *parts[:depth]) for depth in range(len(parts) + 1)]


def _quota(text: str) -> float | None:
    """Microseconds of CPU time and of the period: ``200000 100000`` is 2; ``max`` means no limit."""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
