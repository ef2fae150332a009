"""The machine but for its GPUs: its software, cores, memory, terminal and folders."""

import importlib
import os
import platform
import shutil
import sys
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from amptui.base.cores import Cores, memory_limits, read_cores
from amptui.base.units import bytes_of, counted, number_of_bytes
from amptui.base.version import __version__
from amptui.reports.doctor.check import Check, broken, fact, fine, one_line, poor

_MIN_MEMORY_BYTES = 2 * 2**30
"""Enough for torch and a small model: a process with CUDA loaded takes 1 to 2 GiB."""

_MIN_SHARED_BYTES = 256 * 2**20
"""Docker's default is 64 MiB; the batches of a few DataLoader workers need more."""

_MIN_FREE_BYTES = 2**30
"""A day of short steps writes a few hundred MB of journal; checkpoints of a large model take more."""


# ------------------------------------------------------------------------------------- software


def software_checks() -> list[Check]:
    """One line with the versions that matter, and a real import of torch."""
    packages = ["torch", "torchvision", "numpy", "textual", "nvidia-ml-py"]
    versions = [f"Python {platform.python_version()}"]
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    return [fact("amptui", ", ".join([f"amptui {__version__}", *versions])), check_torch_loads()]


def check_torch_loads() -> Check:
    """Whether ``import torch`` works: only that finds a wheel for another system or a missing library."""
    try:
        torch = importlib.import_module("torch")
        versions = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
        built = next((f"built for {name} {number}" for name, number in versions.items() if number), "")
        return fine("torch-loads", f"torch {torch.__version__} imports, {built or 'built without CUDA'}")
    except Exception as error:  # noqa: BLE001 - a package that is broken raises what it likes
        why = f"{type(error).__name__}: {one_line(error)}"
        return broken("torch-loads", f"cannot import torch: {why}", "reinstall torch in this environment")


# ----------------------------------------------------------------------------- cores and memory


def machine_checks() -> list[Check]:
    """Cores, memory and shared memory: in a container, less than the machine has."""
    import torch

    shared = [check_shared_memory()] if sys.platform == "linux" else []  # elsewhere it has no folder
    memory = min((limit for limit, _ in memory_limits()), default=None)
    return [check_threads(torch.get_num_threads(), read_cores()), check_memory(memory), *shared]


def check_threads(threads: int, cores: Cores) -> Check:
    """More threads than cores wait for each other; torch does not know a container's limit.

    Fewer threads than half of the cores leave some idle: torch starts one for each physical core.
    """
    usable = f"{cores.usable} of " if cores.usable < cores.machine else ""
    text = f"torch uses {counted(threads, 'thread')} on {usable}{counted(cores.machine, 'core')}"
    if cores.limit is not None and cores.limit < cores.allowed:
        text += f" (container limit {cores.limit:g})"
    if threads > cores.usable:
        hint = f"set OMP_NUM_THREADS={cores.usable}: more threads than cores slow each other down"
        return poor("threads", text, hint)
    if 2 * threads < cores.usable:
        hint = "unset OMP_NUM_THREADS and MKL_NUM_THREADS, unless other programs need the other cores"
        return poor("threads", f"{text}: CPU training leaves most cores idle", hint)
    return fine("threads", text)


def check_memory(limit: int | None) -> Check:
    """Available memory, within the ``limit`` in bytes of what this process may use."""
    import psutil

    machine = psutil.virtual_memory()
    text, available = f"memory: {bytes_of(machine.available, machine.total)} available", machine.available
    if limit is not None and limit < machine.total:
        text += f" (container limit {number_of_bytes(limit)})"
        available = min(available, limit)
    if available < _MIN_MEMORY_BYTES:
        return poor(
            "memory", f"{text}: low", "stop other programs, raise the limit, or train a smaller model"
        )
    return fine("memory", text)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Check:  # noqa: S108 - looked at, never written to
    """Shared memory, through which DataLoader workers pass batches."""
    hint = "start the container with --shm-size=8g, or use num_workers=0"
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return poor("shared-memory", f"no shared memory at {folder}: DataLoader workers will fail", hint)
    text = f"shared memory: {bytes_of(usage.free, usage.total)} free"
    if usage.free < _MIN_SHARED_BYTES:
        return poor("shared-memory", f"{text}: low for DataLoader workers", hint)
    return fine("shared-memory", text)


# ------------------------------------------------------------------------------------- terminal


def terminal_checks() -> list[Check]:
    """Whether the screen can be shown here, and with which characters."""
    from amptui.base.text import terminal_speaks_utf8

    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    return [check_terminal(os.environ.get("TERM", ""), is_terminal=is_terminal, utf8=terminal_speaks_utf8())]


def check_terminal(term: str, *, is_terminal: bool, utf8: bool) -> Check:
    """Whether there is a terminal that can show the screen, and its dots and lines of Unicode."""
    if not is_terminal:
        return fact("terminal", "not a terminal: amptui writes plain lines")
    if term in ("", "dumb"):
        words = f"TERM={term}" if term else "TERM is not set"
        hint = "set TERM=xterm-256color"
        return poor("terminal", f"{words}: amptui writes plain lines instead of the screen", hint)
    if not utf8:
        hint = "set LC_ALL=C.UTF-8; the Linux console has no braille, use a graphical terminal or SSH"
        return poor("terminal", f"TERM={term}, without UTF-8: the screen uses ASCII", hint)
    return fine("terminal", f"TERM={term}, UTF-8")


# ------------------------------------------------------------------------------------- the runs


def storage_checks() -> list[Check]:
    """The folder of runs; leaves nothing behind in it."""
    from amptui.runs.rundir import default_base

    return [check_folder(default_base())]


def check_folder(folder: Path) -> Check:
    """Whether a file can be created in ``folder``, or in its nearest existing parent, and how much fits.

    A real file finds more than permission bits do: a full disk, a quota, a read-only file system.
    """
    instead = "train with --run-dir DIR"
    try:
        place = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = f"make the folder writable, set XDG_STATE_HOME, or {instead}"
        return broken("runs", f"cannot save runs in {folder}: {why}", hint)
    free = shutil.disk_usage(place).free
    text = f"runs are saved in {folder}, {number_of_bytes(free)} free"
    if free < _MIN_FREE_BYTES:
        return poor("runs", f"{text}: low", f"free some space, or {instead}")
    return fine("runs", text)
