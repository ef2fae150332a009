"""Whether torch can use CUDA here, and if not, the root cause."""

import ctypes
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from amptui.base.units import counted
from amptui.reports.doctor.report import Check, fact, fine, one_line, poor

_MIN_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""The oldest Linux driver that supports all minor versions of a CUDA: CUDA Toolkit release notes, table "CUDA
Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility"."""

_CHOOSE_BUILD = "see https://pytorch.org/get-started/locally"

_NO_DEVICE = 100

_REFUSALS = {
    46: (
        "the GPU is in exclusive mode and another process uses it",
        "wait for that process, or run `nvidia-smi -c DEFAULT`",
    ),
    _NO_DEVICE: ("CUDA finds no GPU", "check that `nvidia-smi -L` lists one; a container needs `--gpus all`"),
    802: ("the CUDA system is not ready", "start nvidia-fabricmanager, in the same version as the driver"),
    803: (
        "the driver and its library have different versions",
        "reboot, or reload the nvidia kernel modules",
    ),
    804: (
        "the CUDA compatibility library does not support this GPU",
        "remove cuda-compat from LD_LIBRARY_PATH, or update the driver",
    ),
}
"""What an error of ``cuInit`` (``CUresult`` in cuda.h) means, and the hint."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """Torch's CUDA, and the driver under it."""

    build: str | None
    """The CUDA version torch was built for: ``13.2``; None for a build without CUDA."""
    rocm: str | None
    gpu_count: int
    """GPUs that torch can use."""
    torch_says: str
    """Torch's reason if it can use none."""
    visible_devices: str | None
    """The environment variable ``CUDA_VISIBLE_DEVICES``."""
    driver: Driver
    other: str = ""
    """The accelerator that torch uses instead: ``MPS``."""


def cuda_checks() -> list[Check]:
    """The driver, and whether torch can use it."""
    import torch

    from amptui.device.accelerator import capabilities, default_device, device_count

    count, torch_says, device = device_count("cuda"), "", default_device()
    if not count:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            torch_says = one_line(error)
    cuda = Cuda(
        build=torch.version.cuda,
        rocm=torch.version.hip,
        gpu_count=count,
        torch_says=torch_says,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        driver=read_driver(initialize=not count),
        other="" if device.type in ("cpu", "cuda") else capabilities(device).title,
    )
    return [*check_driver(cuda.driver), check_cuda(cuda)]


def check_driver(driver: Driver) -> list[Check]:
    """The driver's version, if there is a driver; `check_cuda` reports its absence."""
    if not driver.loaded_version and driver.cuda is None:
        return []
    supports = f", supports CUDA up to {'.'.join(map(str, driver.cuda))}" if driver.cuda else ""
    return [fine("driver", f"NVIDIA driver {driver.loaded_version or 'of unknown version'}{supports}")]


def check_cuda(cuda: Cuda) -> Check:
    """Usable, or the root cause why not: fixing anything else first would change nothing."""
    if cuda.gpu_count:
        build = f"CUDA {cuda.build}" if cuda.build else f"ROCm {cuda.rocm}"
        return fine("cuda", f"{build}: {counted(cuda.gpu_count, 'GPU')} available")
    if cuda.other:
        return fact("cuda", f"not used: torch trains on {cuda.other}")
    if cuda.build is None and not cuda.driver.shows_a_gpu:
        return fact("cuda", "CPU-only build of torch, no NVIDIA GPU found")
    if cuda.build is None:
        reason = "this machine has an NVIDIA GPU, but torch is a CPU-only build"
        return poor("cuda", reason, f"install a CUDA build of torch: {_CHOOSE_BUILD}")
    reason, hint = next((reason, hint) for holds, reason, hint in _causes(cuda) if holds)
    # Without any sign of a GPU nothing is wrong.
    make = poor if cuda.driver.shows_a_gpu or cuda.driver.library_found else fact
    return make("cuda", f"training runs on the CPU: {reason}", hint)


def _causes(cuda: Cuda) -> list[tuple[bool, str, str]]:
    """Whether it is one, why torch finds no GPU then, and a hint; the first that holds is the root cause."""
    driver, visible = cuda.driver, cuda.visible_devices
    # A library that is missing: no driver, or a container that has only a part of it.
    has_none, is_loaded = not driver.library_found, bool(driver.loaded_version or driver.device_files)
    # An empty or negative first entry hides every GPU; so does an index that does not exist.
    finds_none = driver.refusal == _NO_DEVICE
    hides_all = visible is not None and (not visible.strip() or visible.strip().startswith("-"))
    hides_all |= visible is not None and finds_none and bool(driver.device_files)
    # A driver supports every build for its own major CUDA version and for older ones.
    needed, newest = int((cuda.build or "0").split(".")[0]), driver.cuda or (0, 0)
    newer = f" to {_MIN_DRIVERS[needed]} or newer" if needed in _MIN_DRIVERS else ""
    unknown = (
        f"CUDA does not start (error {driver.refusal})",
        "check `nvidia-smi` and `dmesg | grep NVRM`; if they show nothing, reboot",
    )
    return [
        (
            has_none and is_loaded,
            "the NVIDIA driver is loaded, but its library libcuda.so.1 is missing",
            "install the driver's libraries; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        (
            has_none and driver.gpus_on_bus > 0,
            "this machine has an NVIDIA GPU, but its driver is not loaded",
            "install the NVIDIA driver, or load it with `modprobe nvidia`",
        ),
        (
            has_none,
            "no NVIDIA driver found",
            "if this machine has an NVIDIA GPU, install its driver; a container needs `--gpus all`",
        ),
        (
            hides_all,
            f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU",
            "unset CUDA_VISIBLE_DEVICES, or set it to a GPU that `nvidia-smi -L` lists",
        ),
        (
            driver.cuda is not None and newest[0] < needed,
            f"the driver supports CUDA {newest[0]}.{newest[1]}, but torch is built for CUDA {cuda.build}",
            f"update the driver{newer}, or install torch built for CUDA {newest[0]}: {_CHOOSE_BUILD}",
        ),
        (
            bool(driver.locked_files),
            f"no permission to open /dev/{', /dev/'.join(driver.locked_files)}",
            "join the group that owns them (`ls -l /dev/nvidia*`) and log in again",
        ),
        (
            finds_none and not driver.device_files,
            "there are no device files /dev/nvidia*",
            "a container needs `--gpus all`; otherwise run `nvidia-modprobe -u -c 0` as root",
        ),
        (
            not driver.refusal,
            f"the driver works, but torch cannot use it ({cuda.torch_says or 'torch does not say why'})",
            "check whether LD_LIBRARY_PATH points to another CUDA",
        ),
        (True, *_REFUSALS.get(driver.refusal or 0, unknown)),
    ]


def read_driver(root: Path = Path("/"), *, initialize: bool = True) -> Driver:
    """Look for the driver; ``root`` is the folder that holds ``proc``, ``sys`` and ``dev``.

    ``initialize`` also calls ``cuInit``, which takes a second on a machine with many GPUs.
    """
    names = re.compile(r"nvidia(\d+|ctl|-uvm)")
    files = sorted(path for path in (root / "dev").glob("nvidia*") if names.fullmatch(path.name))
    gpus_on_bus, loaded_version = 0, None
    for device in (root / "sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            gpus_on_bus += vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS)
    with suppress(OSError):
        # ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...``
        version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", (root / "proc/driver/nvidia/version").read_text())
        loaded_version = version[1] if version else "unknown"
    driver = Driver(
        gpus_on_bus=gpus_on_bus,
        loaded_version=loaded_version,
        device_files=tuple(path.name for path in files),
        locked_files=tuple(path.name for path in files if not os.access(path, os.R_OK | os.W_OK)),
        library_found=False,
    )
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return driver
    # ``cuDriverGetVersion`` returns 1000 x major + 10 x minor, and works without ``cuInit``.
    newest = ctypes.c_int()
    is_known = not library.cuDriverGetVersion(ctypes.byref(newest)) and newest.value > 0
    return replace(
        driver,
        library_found=True,
        cuda=(newest.value // 1000, newest.value % 1000 // 10) if is_known else None,
        refusal=int(library.cuInit(0)) if initialize else None,
    )
