"""Whether torch can use CUDA here, and if not, why: torch's own reason, unless a simpler one comes first."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from amptui.base.units import counted
from amptui.reports.doctor.gpus import look_at_nvml
from amptui.reports.doctor.report import Check, fact, fine, one_line, poor


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
    has_gpu: bool
    """Whether there is an NVIDIA GPU with a driver."""
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
    driver = loaded_driver()
    cuda = Cuda(
        build=torch.version.cuda,
        rocm=torch.version.hip,
        gpu_count=count,
        torch_says=torch_says,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        has_gpu=driver is not None or bool(look_at_nvml().samples),
        other="" if device.type in ("cpu", "cuda") else capabilities(device).title,
    )
    checks = [check_cuda(cuda)]
    return checks if driver is None else [fine("driver", f"NVIDIA driver {driver}"), *checks]


def check_cuda(cuda: Cuda) -> Check:
    """Usable, or why not."""
    if cuda.gpu_count:
        build = f"CUDA {cuda.build}" if cuda.build else f"ROCm {cuda.rocm}"
        return fine("cuda", f"{build}: {counted(cuda.gpu_count, 'GPU')} available")
    if cuda.other:
        return fact("cuda", f"not used: torch trains on {cuda.other}")
    if cuda.build is None and not cuda.has_gpu:
        return fact("cuda", "CPU-only build of torch, no NVIDIA GPU found")
    if cuda.build is None:
        reason = "this machine has an NVIDIA GPU, but torch is a CPU-only build"
        return poor(
            "cuda", reason, "install a CUDA build of torch: see https://pytorch.org/get-started/locally"
        )
    reason = f"torch says: {cuda.torch_says}" if cuda.torch_says else "torch does not say why"
    if not cuda.has_gpu:  # nothing is wrong then
        hint = "if this machine has an NVIDIA GPU, install its driver; a container needs `--gpus all`"
        return fact("cuda", f"training runs on the CPU: {reason}", hint)
    hint = "`nvidia-smi` and `dmesg | grep NVRM` may say more"
    visible = cuda.visible_devices
    setting = f"CUDA_VISIBLE_DEVICES={visible!r}"
    # An empty or negative first entry hides every GPU.
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        reason = f"{setting} hides every GPU"
        hint = "unset CUDA_VISIBLE_DEVICES, or set it to a GPU that `nvidia-smi -L` lists"
    elif visible is not None:
        hint = f"check that `nvidia-smi -L` lists the GPU of {setting}; {hint}"
    return poor("cuda", f"training runs on the CPU: {reason}", hint)


def loaded_driver(root: Path = Path("/")) -> str | None:
    """The version of the loaded kernel module, ``580.65.06``; None if none is loaded."""
    with suppress(OSError):
        # ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...``
        text = (root / "proc/driver/nvidia/version").read_text()
        version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
        return version[1] if version else "of unknown version"
    return None
