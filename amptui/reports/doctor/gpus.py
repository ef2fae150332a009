"""The GPUs: whether torch supports each, and what NVML reports of it."""

import re
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from amptui.base.units import bytes_of, number_of_bytes
from amptui.device.nvml import Absence, NullProbe, Probe, open_probe
from amptui.records.samples import GpuSample
from amptui.reports.doctor.check import Check, broken, fine, poor

_PATIENCE_SECONDS = 2.0
"""How long NVML may take: it starts in milliseconds if the driver stays loaded, else in a second."""

_NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as torch sees it."""

    index: int
    name: str
    memory_bytes: int | None
    capability: tuple[int, int] | None = None
    """NVIDIA's compute capability: (9, 0)."""
    architecture: str = ""
    """AMD's name of it: ``gfx942``."""
    device_type: str = "cuda"

    @property
    def is_mig_instance(self) -> bool:
        """Whether it is a part of a GPU: its name then says so, as in ``NVIDIA A100 MIG 1g.5gb``."""
        return " MIG " in self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlLook:
    """One look at every GPU by NVML."""

    samples: tuple[GpuSample, ...] = ()
    note: str = ""
    """What is missing, and why."""
    absence: Absence | Literal["", "silent"] = ""
    """Why there are no samples; ``silent``: NVML did not respond."""


_SILENT = NvmlLook(note="NVML does not respond: no GPU readings", absence="silent")


def gpu_checks() -> list[Check]:
    """Every GPU that torch can use, and every one that NVML lists."""
    from amptui.device.accelerator import architectures, default_device

    device_type = default_device().type
    checks = [check_gpu(gpu, architectures()) for gpu in read_gpus()]
    limits = check_limits(device_type)
    return [*checks, *limits, *check_nvml(look_at_nvml(), expected=bool(checks) and not limits)]


def read_gpus() -> list[Gpu]:
    """The GPUs that torch can use."""
    import torch

    from amptui.device.accelerator import default_device, device_count, properties

    with warnings.catch_warnings():  # torch's, of a driver that `cuda_checks` explains
        warnings.simplefilter("ignore")
        device_type = default_device().type
        devices = [torch.device(device_type, index) for index in range(device_count(device_type))]
    return [
        Gpu(
            index=device.index,
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
            capability=gpu.compute_capability,
            architecture=gpu.architecture,
            device_type=device_type,
        )
        for device, gpu in zip(devices, map(properties, devices), strict=True)
    ]


def check_limits(device_type: str) -> list[Check]:
    """What amptui cannot measure or do on devices of this type; nothing on an NVIDIA GPU and on a CPU."""
    import torch

    from amptui.device.accelerator import capabilities

    kind = capabilities(torch.device(device_type))
    if device_type == "cpu" or not kind.shortcomings:
        return []
    return [
        fine("limits", f"amptui is not tested on {kind.title}; there it uses {'; '.join(kind.shortcomings)}")
    ]


def check_gpu(gpu: Gpu, architectures: Sequence[str]) -> Check:
    """Whether this build of torch supports the GPU; training uses the first one by default."""
    capability = ".".join(map(str, gpu.capability)) if gpu.capability else ""
    unit = f", compute capability {capability}" if capability else ""
    unit = f", {gpu.architecture}" if gpu.architecture else unit
    kind = "MIG instance, " if gpu.is_mig_instance else ""
    name = f"{gpu.device_type}:{gpu.index}"
    memory = "" if gpu.memory_bytes is None else f", {kind}{number_of_bytes(gpu.memory_bytes)}"
    text = f"{name} {gpu.name}{memory}{unit}"
    facts: dict[str, object] = {**asdict(gpu), "capability": capability or None, "mig": gpu.is_mig_instance}
    if gpu.capability is None and not gpu.architecture:
        return fine(name, text, **facts)
    if gpu.architecture in architectures or (gpu.capability and runs_on(gpu.capability, architectures)):
        return fine(name, text, **facts)
    wanted = gpu.architecture or f"sm_{capability.replace('.', '')}"
    hint = f"install a build of torch with {wanted}, or train with --device cpu"
    text = f"{text}: this build of torch does not support it (only {', '.join(architectures)})"
    return (broken if gpu.index == 0 else poor)(name, text, hint, **facts)


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether code for ``architectures`` (``sm_90``, ``sm_90a``, ``compute_120``) runs on ``capability``.

    CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility": machine code runs on the same
    major capability with the same or a higher minor one (with an ``a`` only on the same one); PTX runs on
    every later one.
    """
    return any(_serves(name, capability) for name in architectures)


def _serves(architecture: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
    if not match:
        return False
    kind, suffix = match[1], match[4]
    built_for = int(match[2]), int(match[3])
    if suffix == "a":
        return capability == built_for
    if kind == "compute" and not suffix:
        return capability >= built_for
    return capability[0] == built_for[0] and capability >= built_for


def look_at_nvml(
    open_probe: Callable[[], Probe] = open_probe, patience_seconds: float = _PATIENCE_SECONDS
) -> NvmlLook:
    """One sample of every GPU.

    A call for a GPU that has fallen off the bus may never return, so it runs in its own thread.
    """
    answer = _SILENT

    def ask() -> None:
        nonlocal answer
        probe = open_probe()
        samples, absence = probe.sample(), probe.absence if isinstance(probe, NullProbe) else ""
        answer = NvmlLook(samples=samples, note=probe.note, absence=absence)
        probe.close()

    thread = threading.Thread(target=ask, name="doctor-nvml", daemon=True)
    thread.start()
    thread.join(patience_seconds)
    return answer


def check_nvml(look: NvmlLook, *, expected: bool) -> list[Check]:
    """What NVML reports of each GPU; ``expected``: torch can use one."""
    if look.samples:
        return [*(_check_sample(sample) for sample in look.samples), *_check_missing(look)]
    why = look.note or "no NVIDIA GPU: NVML lists none"
    if expected or look.absence in ("refused", "silent"):
        hint = "check that `nvidia-smi` works; until then the screen shows only torch's memory figures"
        return [poor("nvml", why, hint, gpus=0)]
    return [fine("nvml", why, gpus=0)]


def _check_sample(sample: GpuSample) -> Check:
    figures, missing = _figures(sample)
    facts: dict[str, object] = {"uuid": sample.uuid, "missing": missing, **figures}
    who = f"NVML: {sample.name or sample.uuid}"
    if nearly_full(sample):
        memory = bytes_of(sample.memory_used_bytes, sample.memory_total_bytes)
        hint = "`nvidia-smi` lists the processes that use it"
        return poor("nvml", f"{who}: memory is nearly full, {memory}", hint, **facts)
    apart = "; a MIG instance has no sensors of its own" if _is_mig_instance(sample) else ""
    return fine("nvml", f"{who}: {len(figures) - len(missing)} of {len(figures)} readings{apart}", **facts)


def _check_missing(look: NvmlLook) -> list[Check]:
    """One line for all GPUs: a driver without a reading lacks it for every GPU of a kind."""
    missing = sorted({name for gpu in look.samples if not _is_mig_instance(gpu) for name in _figures(gpu)[1]})
    if not missing:
        return []
    hint = "the screen shows n/a instead; a newer driver or more permissions for this container may help"
    text = f"NVML does not report {', '.join(name.replace('_', ' ') for name in missing)} ({look.note})"
    return [poor("nvml-missing", text, hint, missing=missing, note=look.note)]


def _figures(sample: GpuSample) -> tuple[dict[str, object], list[str]]:
    """Every reading, and the names of those that are missing."""
    figures = {name: value for name, value in asdict(sample).items() if name not in ("uuid", "name")}
    return figures, [name for name, value in figures.items() if value is None]


def _is_mig_instance(sample: GpuSample) -> bool:
    return sample.uuid.startswith("MIG-")


def nearly_full(sample: GpuSample) -> bool:
    """Whether nine tenths of the GPU's memory are in use, by other processes: this one uses next to none."""
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    return used is not None and total is not None and used > _NEARLY_FULL * total
