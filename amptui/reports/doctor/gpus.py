"""The GPUs: whether torch can use them, and if not, why; and what NVML reports of each."""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from amptui.base.units import bytes_of, counted, number_of_bytes
from amptui.device.nvml import Absence, NullProbe, open_probe
from amptui.records.samples import GpuSample
from amptui.reports.doctor.check import Check, broken, fact, fine, one_line, poor

if TYPE_CHECKING:
    from amptui.device.accelerator import Properties

_PATIENCE_SECONDS = 2.0
"""How long NVML may take: it starts in milliseconds if the driver stays loaded, else in a second."""

_NEARLY_FULL = 0.9
"""Of a GPU's memory, used by other processes: this one uses next to none."""


NvmlLook: TypeAlias = tuple[Sequence[GpuSample], str, Absence | Literal["silent"]]
"""One sample of every GPU, what is missing with its reason, and why there are none; ``silent``: NVML did not
respond."""


def cuda_checks() -> list[Check]:
    """The driver, and whether torch can use it."""
    import torch

    from amptui.device.accelerator import capabilities, default_device, device_count

    driver, device = loaded_driver(), default_device()
    checks = [] if driver is None else [fine("driver", f"NVIDIA driver {driver}")]
    if count := device_count("cuda"):
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        return [*checks, fine("cuda", f"{build}: {counted(count, 'GPU')} available")]
    torch_says = ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        torch_says = one_line(error)
    unused = check_unused_cuda(
        torch_says,
        build=torch.version.cuda,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        has_gpu=driver is not None or bool(look_at_nvml()[0]),
        other="" if device.type in ("cpu", "cuda") else capabilities(device).title,
    )
    return [*checks, unused]


def check_unused_cuda(
    torch_says: str, *, build: str | None, visible: str | None, has_gpu: bool, other: str = ""
) -> Check:
    """Why torch can use no GPU by CUDA: its own reason ``torch_says``, unless a simpler one comes first.

    ``build`` is the CUDA version that torch was built for, ``visible`` the variable ``CUDA_VISIBLE_DEVICES``,
    ``has_gpu`` whether there is an NVIDIA GPU with a driver, ``other`` the accelerator that torch uses
    instead.
    """
    if other:
        return fact("cuda", f"not used: torch trains on {other}")
    if build is None and not has_gpu:
        return fact("cuda", "CPU-only build of torch, no NVIDIA GPU found")
    if build is None:
        reason = "this machine has an NVIDIA GPU, but torch is a CPU-only build"
        return poor(
            "cuda", reason, "install a CUDA build of torch: see https://pytorch.org/get-started/locally"
        )
    reason = f"torch says: {torch_says}" if torch_says else "torch does not say why"
    if not has_gpu:  # nothing is wrong then
        hint = "if this machine has an NVIDIA GPU, install its driver; a container needs `--gpus all`"
        return fact("cuda", f"training runs on the CPU: {reason}", hint)
    hint = "`nvidia-smi` and `dmesg | grep NVRM` may say more"
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


def gpu_checks() -> list[Check]:
    """Every GPU that torch can use, and every one that NVML lists."""
    from amptui.device.accelerator import default_device

    checks = [
        check_gpu(name, gpu, use(name), is_first=place == 0)
        for place, (name, gpu) in enumerate(read_gpus().items())
    ]
    limits = check_limits(default_device().type)
    return [*checks, *limits, *check_nvml(look_at_nvml(), expected=bool(checks) and not limits)]


def read_gpus() -> Mapping[str, "Properties"]:
    """The GPUs that torch can use, by its names for them: ``cuda:0``."""
    import torch

    from amptui.device.accelerator import default_device, device_count, properties

    kind = default_device().type
    names = [f"{kind}:{index}" for index in range(device_count(kind))]
    return {name: properties(torch.device(name)) for name in names}


def check_limits(device_type: str) -> list[Check]:
    """That amptui is not tested on devices of this type; nothing on an NVIDIA GPU and on a CPU."""
    import torch

    from amptui.device.accelerator import capabilities

    title = capabilities(torch.device(device_type)).title
    if title in ("CPU", "CUDA"):
        return []
    return [fact("limits", f"amptui is not tested on {title}: what it cannot measure there is n/a")]


def use(name: str) -> str:
    """Why a device computes nothing; empty if it does. A build of torch may lack code for it."""
    import torch

    try:
        (torch.ones(2, device=name) * 2).sum().item()
    except RuntimeError as error:
        return one_line(error)
    return ""


def check_gpu(name: str, gpu: "Properties", trouble: str, *, is_first: bool = True) -> Check:
    """Whether a GPU computes, or what is the ``trouble``; training uses the first one by default."""
    capability = ".".join(map(str, gpu.compute_capability or ()))
    unit = f", compute capability {capability}" if capability else ""
    unit = f", {gpu.architecture}" if gpu.architecture else unit
    kind = "MIG instance, " if " MIG " in gpu.name else ""  # as in ``NVIDIA A100 MIG 1g.5gb``
    memory = "" if gpu.memory_bytes is None else f", {kind}{number_of_bytes(gpu.memory_bytes)}"
    text = f"{name} {gpu.name}{memory}{unit}"
    if not trouble:
        return fine(name, text)
    hint = "if torch has no kernel for this GPU, install a build that has, or train with --device cpu"
    return (broken if is_first else poor)(name, f"{text}: {trouble}", hint)


def look_at_nvml(patience_seconds: float = _PATIENCE_SECONDS) -> NvmlLook:
    """One sample of every GPU.

    A call for a GPU that has fallen off the bus may never return, so it runs in its own thread.
    """
    answer: NvmlLook = (), "NVML does not respond: no GPU readings", "silent"

    def ask() -> None:
        nonlocal answer
        probe = open_probe()
        answer = probe.sample(), probe.note, probe.absence if isinstance(probe, NullProbe) else ""
        probe.close()

    thread = threading.Thread(target=ask, name="doctor-nvml", daemon=True)
    thread.start()
    thread.join(patience_seconds)
    return answer


def check_nvml(look: NvmlLook, *, expected: bool) -> list[Check]:
    """What NVML reports of each GPU; ``expected``: torch can use one."""
    samples, note, absence = look
    if not samples:
        why = note or "no NVIDIA GPU: NVML lists none"
        if expected or absence in ("refused", "silent"):
            hint = "check that `nvidia-smi` works; until then the screen shows only torch's memory figures"
            return [poor("nvml", why, hint)]
        return []  # that there is no GPU has been said
    checks = []
    for sample in samples:
        text = f"NVML: {sample.name or sample.uuid}"
        used, total = sample.memory_used_bytes, sample.memory_total_bytes
        if used is not None and total is not None and used > _NEARLY_FULL * total:
            text += f": memory is nearly full, {bytes_of(used, total)}"
            checks.append(poor("nvml", text, "`nvidia-smi` lists the processes that use it"))
        else:
            checks.append(fine("nvml", text))
    if note:
        hint = "the screen shows n/a instead; a newer driver or more permissions for this container may help"
        checks.append(poor("nvml-missing", f"NVML: {note}", hint))
    return checks
