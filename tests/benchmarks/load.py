"""Who used the processor: each thread of some processes, and whatever else ran on the same cores.

From /proc/PID/task/TID/schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst), else from psutil,
in hundredths of a second; and from /proc/stat, in hundredths.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Used:
    """What one thread had used of the processor until now, in seconds."""

    running: float
    waiting: float
    """For a core while it could run; 0 where the kernel does not tell."""


@dataclass(frozen=True, slots=True)
class Busy:
    """What all programs together had used of the cores that this process may use, in seconds."""

    running: float
    stolen: float
    """By other virtual machines of the same host."""


def threads_of(pids: Iterable[int]) -> dict[tuple[int, int], Used]:
    """Each living thread of these processes, by process and native id; those that are gone are left out."""
    return {(pid, tid): used for pid in pids for tid, used in _threads(pid).items()}


def busy() -> Busy:
    """The cores' own count. Interrupts are left out: they are nobody's."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    running = stolen = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *numbers = line.split()
        if name in cores:
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, numbers[:8])
            running += user + nice + system
            stolen += steal
    return Busy(running / _TICKS_A_SECOND, stolen / _TICKS_A_SECOND)


def running_seconds(before: Mapping[tuple[int, int], Used], after: Mapping[tuple[int, int], Used]) -> float:
    """What all these threads used between two looks."""
    nothing = Used(0.0, 0.0)
    return sum(used.running - before.get(thread, nothing).running for thread, used in after.items())


def _threads(pid: int) -> dict[int, Used]:
    found = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            running, waiting, _ = (task / "schedstat").read_text(encoding="ascii").split()
            found[int(task.name)] = Used(int(running) / 1e9, int(waiting) / 1e9)
    except (OSError, ValueError):
        return found or _threads_by_ticks(pid)
    return found


def _threads_by_ticks(pid: int) -> dict[int, Used]:
    try:
        threads = psutil.Process(pid).threads()
    except psutil.Error:
        return {}
    return {thread.id: Used(thread.user_time + thread.system_time, 0.0) for thread in threads}
