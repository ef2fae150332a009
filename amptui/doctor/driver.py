"""The NVIDIA driver as this process sees it: kernel module, device files and the driver's CUDA library."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NVIDIA = "0x10de"
"""NVIDIA's PCI vendor ID (pci.ids)."""

_DISPLAY_CLASS = "0x03"
"""The PCI class of display and 3D controllers begins with it (PCI Code and ID Assignment)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What is known of the driver without torch and without NVML."""

    gpus_on_bus: int
    """NVIDIA display controllers that the kernel lists, with or without a driver."""
    loaded_version: str | None
    """Version of the loaded kernel module: ``580.65.06``; None if none is loaded."""
    device_files: tuple[str, ...]
    """``/dev/nvidia*``: one for each GPU, and those that all share."""
    locked_files: tuple[str, ...]
    """Those of them that this user may not read and write."""
    library_found: bool
    """Whether ``libcuda.so.1``, the part of the driver that programs load, can be loaded."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver supports: (13, 0)."""
    refusal: int | None = None
    """What ``cuInit`` returned, 0 for success; None if it was not called."""

    @property
    def shows_a_gpu(self) -> bool:
        """Whether there is any sign of an NVIDIA GPU."""
        return bool(self.gpus_on_bus or self.loaded_version or self.device_files)


def read_driver(root: Path = Path("/"), *, initialize: bool = True) -> Driver:
    """Look for the driver; ``root`` is the folder that holds ``proc``, ``sys`` and ``dev``.

    ``initialize`` also calls ``cuInit``, which takes a second on a machine with many GPUs.
    """
    files = _device_files(root)
    locked = [path for path in files if not os.access(path, os.R_OK | os.W_OK)]
    library = _load_library()
    return Driver(
        gpus_on_bus=sum(1 for _ in _display_controllers(root)),
        loaded_version=_loaded_version(root),
        device_files=tuple(path.name for path in files),
        locked_files=tuple(path.name for path in locked),
        library_found=library is not None,
        cuda=None if library is None else _supported_cuda(library),
        refusal=None if library is None or not initialize else int(library.cuInit(0)),
    )


def _display_controllers(root: Path) -> Iterator[Path]:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS):
                yield device


def _loaded_version(root: Path) -> str | None:
    """From ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...``."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else "unknown"


def _device_files(root: Path) -> list[Path]:
    names = re.compile(r"nvidia(\d+|ctl|-uvm)")
    return sorted(path for path in (root / "dev").glob("nvidia*") if names.fullmatch(path.name))


def _load_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _supported_cuda(library: ctypes.CDLL) -> tuple[int, int] | None:
    """``cuDriverGetVersion`` returns 1000 x major + 10 x minor, and works without ``cuInit``."""
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) or version.value <= 0:
        return None
    return version.value // 1000, version.value % 1000 // 10
