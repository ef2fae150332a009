"""The cores and the memory that this process may use: in a container, less than the machine has."""

import shutil
import sys
from pathlib import Path

from amptui.base.cores import Cores, Limits, read_cores, read_limits
from amptui.base.units import bytes_of, number_of_bytes
from amptui.reports.doctor.check import Check, fine, poor

_MIN_MEMORY_BYTES = 2 * 2**30
"""Enough for torch and a small model: a process with CUDA loaded takes 1 to 2 GiB."""

_MIN_SHARED_BYTES = 256 * 2**20
"""Docker's default is 64 MiB; the batches of a few DataLoader workers need more."""


def machine_checks() -> list[Check]:
    """Cores, memory and shared memory."""
    limits = read_limits()
    shared = [check_shared_memory()] if sys.platform == "linux" else []  # elsewhere it has no folder
    return [check_cores(read_cores(limits)), check_memory(limits), *shared]


def thread_checks() -> list[Check]:
    """Torch's thread count against the number of cores."""
    import torch

    return [check_threads(torch.get_num_threads(), read_cores(read_limits()))]


def check_cores(cores: Cores) -> Check:
    """How many cores this process may use."""
    facts: dict[str, object] = {"machine": cores.machine, "usable": cores.usable, "limit": cores.limit}
    text = f"{_cores(cores.usable)} available"
    if cores.usable < cores.machine:
        text = f"{cores.usable} of {_cores(cores.machine)} available"
    if cores.limit is not None and cores.limit < cores.allowed:
        text += f" (container limit {cores.limit:g})"
    return fine("cores", text, **facts)


def check_threads(threads: int, cores: Cores) -> Check:
    """More threads than cores wait for each other; torch does not know a container's limit.

    Fewer threads than half of the cores leave some idle: torch starts one for each physical core.
    """
    facts: dict[str, object] = {"threads": threads, "cores": cores.usable}
    counted = "1 thread" if threads == 1 else f"{threads} threads"
    text = f"torch uses {counted} on {_cores(cores.usable)}"
    if threads > cores.usable:
        hint = f"set OMP_NUM_THREADS={cores.usable}: more threads than cores slow each other down"
        return poor("threads", text, hint, **facts)
    if 2 * threads < cores.usable:
        hint = "unset OMP_NUM_THREADS and MKL_NUM_THREADS, unless other programs need the other cores"
        return poor("threads", f"{text}: CPU training leaves most cores idle", hint, **facts)
    return fine("threads", text, **facts)


def check_memory(limits: Limits) -> Check:
    """Available memory, within what this process may use."""
    import psutil

    machine = psutil.virtual_memory()
    limit = limits.memory_bytes
    bound = limit is not None and limit < machine.total
    total = limit if bound else machine.total
    available = min(machine.available, total) if total is not None else machine.available
    facts: dict[str, object] = {
        "available_bytes": machine.available,
        "total_bytes": machine.total,
        "limit_bytes": limit if bound else None,
    }
    text = f"memory: {bytes_of(machine.available, machine.total)} available"
    if bound:
        text += f" (container limit {number_of_bytes(limit)})"
    if available < _MIN_MEMORY_BYTES:
        hint = "stop other programs, raise the limit, or train a smaller model"
        return poor("memory", f"{text}: low", hint, **facts)
    return fine("memory", text, **facts)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Check:  # noqa: S108 - looked at, never written to
    """Shared memory, through which DataLoader workers pass batches."""
    hint = "start the container with --shm-size=8g, or use num_workers=0"
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        text = f"no shared memory at {folder}: DataLoader workers will fail"
        return poor("shared-memory", text, hint, free_bytes=None)
    text = f"shared memory: {bytes_of(usage.free, usage.total)} free"
    if usage.free < _MIN_SHARED_BYTES:
        return poor("shared-memory", f"{text}: low for DataLoader workers", hint, free_bytes=usage.free)
    return fine("shared-memory", text, free_bytes=usage.free)


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
