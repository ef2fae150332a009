"""Whether torch can use CUDA here, and if not, the root cause."""

import os
import warnings
from dataclasses import dataclass

from amptui.doctor.check import Check, fine, one_line, poor
from amptui.doctor.driver import Driver, read_driver

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


def cuda_checks() -> list[Check]:
    """The driver, and whether torch can use it."""
    cuda = read_cuda()
    return [*check_driver(cuda.driver), check_cuda(cuda)]


def read_cuda() -> Cuda:
    """Ask torch, the environment and the driver."""
    import torch

    count = usable_gpus()
    return Cuda(
        build=torch.version.cuda,
        rocm=torch.version.hip,
        gpu_count=count,
        torch_says="" if count else _torch_refusal(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        driver=read_driver(initialize=not count),
    )


def usable_gpus() -> int:
    """How many GPUs torch can use; torch's warnings about it are suppressed."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_driver(driver: Driver) -> list[Check]:
    """The driver's version, if there is a driver; `check_cuda` reports its absence."""
    if not driver.loaded_version and driver.cuda is None:
        return []
    supports = f", supports CUDA up to {_dotted(driver.cuda)}" if driver.cuda else ""
    version = driver.loaded_version
    text = f"NVIDIA driver {version or 'of unknown version'}{supports}"
    return [fine("driver", text, version=version, cuda=_dotted(driver.cuda) if driver.cuda else None)]


def check_cuda(cuda: Cuda) -> Check:
    """Usable, or the root cause why not: fixing anything else first would change nothing."""
    if cuda.gpu_count:
        gpus = "1 GPU" if cuda.gpu_count == 1 else f"{cuda.gpu_count} GPUs"
        build = f"CUDA {cuda.build}" if cuda.build else f"ROCm {cuda.rocm}"
        return fine("cuda", f"{build}: {gpus} available", usable=True, build=cuda.build, gpus=cuda.gpu_count)
    if cuda.build is None:
        return _without_build(cuda)
    reason, hint = _absent(cuda) or _hidden(cuda) or _too_old(cuda) or _unreachable(cuda) or _refused(cuda)
    return poor(
        "cuda",
        f"training runs on the CPU: {reason}",
        hint,
        usable=False,
        build=cuda.build,
        torch=cuda.torch_says,
    )


_Trouble = tuple[str, str]
"""A reason and its hint."""


def _without_build(cuda: Cuda) -> Check:
    facts: dict[str, object] = {"usable": False, "build": None}
    if cuda.driver.shows_a_gpu:
        reason = "this machine has an NVIDIA GPU, but torch is a CPU-only build"
        return poor("cuda", reason, f"install a CUDA build of torch: {_CHOOSE_BUILD}", **facts)
    return fine("cuda", "CPU-only build of torch, no NVIDIA GPU found", **facts)


def _absent(cuda: Cuda) -> _Trouble | None:
    """No CUDA library: the driver is not installed, or this container has only a part of it."""
    driver = cuda.driver
    if driver.library_found:
        return None
    if driver.loaded_version or driver.device_files:
        return (
            "the NVIDIA driver is loaded, but its library libcuda.so.1 is missing",
            "install the driver's libraries; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    if driver.gpus_on_bus:
        return (
            "this machine has an NVIDIA GPU, but its driver is not loaded",
            "install the NVIDIA driver, or load it with `modprobe nvidia`",
        )
    return (
        "no NVIDIA driver found",
        "if this machine has an NVIDIA GPU, install its driver; a container needs `--gpus all`",
    )


def _hidden(cuda: Cuda) -> _Trouble | None:
    """An empty or negative first entry hides every GPU; so does an index that does not exist."""
    visible = cuda.visible_devices
    if visible is None:
        return None
    hides_all = not visible.strip() or visible.strip().startswith("-")
    names_none = cuda.driver.refusal == _NO_DEVICE and bool(cuda.driver.device_files)
    if not (hides_all or names_none):
        return None
    return (
        f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU",
        "unset CUDA_VISIBLE_DEVICES, or set it to a GPU that `nvidia-smi -L` lists",
    )


def _too_old(cuda: Cuda) -> _Trouble | None:
    """A driver supports every build for its own major CUDA version and for older ones."""
    if cuda.driver.cuda is None or cuda.build is None:
        return None
    needed, supported = int(cuda.build.split(".")[0]), cuda.driver.cuda
    if supported[0] >= needed:
        return None
    least = _MIN_DRIVERS.get(needed)
    update = f"update the driver to {least} or newer" if least else "update the driver"
    return (
        f"the driver supports CUDA {_dotted(supported)}, but torch is built for CUDA {cuda.build}",
        f"{update}, or install torch built for CUDA {supported[0]}: {_CHOOSE_BUILD}",
    )


def _unreachable(cuda: Cuda) -> _Trouble | None:
    """The library is there, but its device files are missing, or this user may not open them."""
    driver = cuda.driver
    if driver.locked_files:
        return (
            f"no permission to open /dev/{', /dev/'.join(driver.locked_files)}",
            "join the group that owns them (`ls -l /dev/nvidia*`) and log in again",
        )
    if driver.refusal == _NO_DEVICE and not driver.device_files:
        return (
            "there are no device files /dev/nvidia*",
            "a container needs `--gpus all`; otherwise run `nvidia-modprobe -u -c 0` as root",
        )
    return None


def _refused(cuda: Cuda) -> _Trouble:
    """The driver's error; if it has none, what torch says."""
    if cuda.driver.refusal in _REFUSALS:
        return _REFUSALS[cuda.driver.refusal]
    if not cuda.driver.refusal:
        says = cuda.torch_says or "torch does not say why"
        return (
            f"the driver works, but torch cannot use it ({says})",
            "check whether LD_LIBRARY_PATH points to another CUDA",
        )
    hint = "check `nvidia-smi` and `dmesg | grep NVRM`; if they show nothing, reboot"
    return f"CUDA does not start (error {cuda.driver.refusal})", hint


def _torch_refusal() -> str:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return one_line(error)
    return ""


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
