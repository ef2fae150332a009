"""How many cores and how much memory this process may use, for example in a container."""

import math
import os
from collections.abc import Iterator
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
    admin-guide/cgroup-v2.rst (``cpu.max``) and scheduler/sched-bwc.rst (``cpu.cfs_quota_us``).
    """
    limits = []
    for controllers, folder in control_groups(root):
        if not controllers:
            limits.append(_quota(_read(folder / "cpu.max")))
        elif "cpu" in controllers:
            period = _read(folder / "cpu.cfs_period_us")
            limits.append(_quota(f"{_read(folder / 'cpu.cfs_quota_us')} {period}"))
    machine, affinity = os.cpu_count() or 1, getattr(os, "sched_getaffinity", None)  # macOS has no mask
    return Cores(
        machine=machine,
        allowed=machine if affinity is None else len(affinity(0)),
        limit=min((limit for limit in limits if limit is not None), default=None),
    )


def memory_limit(root: Path = Path("/")) -> int | None:
    """The smallest limit of memory, in bytes, of this process's control groups; None if there is none.

    Kernel documentation: admin-guide/cgroup-v2.rst (``memory.max``) and admin-guide/cgroup-v1/memory.rst.
    """
    texts = [
        _read(folder / ("memory.limit_in_bytes" if controllers else "memory.max"))
        for controllers, folder in control_groups(root)
        if not controllers or "memory" in controllers
    ]
    return min((int(text) for text in texts if text.strip().isdecimal()), default=None)


def control_groups(root: Path) -> Iterator[tuple[list[str], Path]]:
    """Each control group of this process and its parents; version 2 has an empty list of controllers."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        controllers = [name for name in names.split(",") if name]
        # If both versions are mounted, version 2 is in a subfolder.
        mounts = [mount / names] if controllers else [mount, mount / "unified"]
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for base in mounts:
            # A container may see its path on the host, which its own mount lacks: its group is then the
            # mount itself.
            yield from ((controllers, base.joinpath(*parts[:depth])) for depth in range(len(parts) + 1))


def _quota(text: str) -> float | None:
    """Microseconds of CPU time and of the period: ``200000 100000`` is 2; ``max`` and -1 mean no limit."""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
