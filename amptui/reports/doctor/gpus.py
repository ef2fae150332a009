"""The GPUs: whether torch supports each, and what NVML reports of it."""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from amptui.base.units import bytes_of, number_of_bytes
from amptui.device.nvml import Absence, NullProbe, open_probe
from amptui.records.samples import GpuSample
from amptui.reports.doctor.report import Check, broken, fact, fine, poor

if TYPE_CHECKING:
    from amptui.device.accelerator import Properties

_PATIENCE_SECONDS = 2.0
"""How long NVML may take: it starts in milliseconds if the driver stays loaded, else in a second."""

_NEARLY_FULL = 0.9
"""Of a GPU's memory, used by other processes: this one uses next to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlLook:
    """One look at every GPU by NVML."""

    samples: tuple[GpuSample, ...] = ()
    note: str = ""
    """What is missing, and why."""
    absence: Absence | Literal["", "silent"] = ""
    """Why there are no samples; ``silent``: NVML did not respond."""


def gpu_checks() -> list[Check]:
    """Every GPU that torch can use, and every one that NVML lists."""
    from amptui.device.accelerator import architectures, default_device

    checks = [
        check_gpu(name, gpu, architectures(), is_first=place == 0)
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
    """What amptui cannot measure or do on devices of this type; nothing on an NVIDIA GPU and on a CPU."""
    import torch

    from amptui.device.accelerator import capabilities

    kind = capabilities(torch.device(device_type))
    if device_type == "cpu" or not kind.shortcomings:
        return []
    return [
        fact("limits", f"amptui is not tested on {kind.title}; there it uses {'; '.join(kind.shortcomings)}")
    ]


def check_gpu(name: str, gpu: "Properties", architectures: Sequence[str], *, is_first: bool = True) -> Check:
    """Whether this build of torch supports the GPU; training uses the first one by default."""
    capability = ".".join(map(str, gpu.compute_capability or ()))
    unit = f", compute capability {capability}" if capability else ""
    unit = f", {gpu.architecture}" if gpu.architecture else unit
    kind = "MIG instance, " if " MIG " in gpu.name else ""  # as in ``NVIDIA A100 MIG 1g.5gb``
    memory = "" if gpu.memory_bytes is None else f", {kind}{number_of_bytes(gpu.memory_bytes)}"
    text = f"{name} {gpu.name}{memory}{unit}"
    if gpu.compute_capability is None and not gpu.architecture:
        return fine(name, text)
    if gpu.architecture in architectures or runs_on(gpu.compute_capability, architectures):
        return fine(name, text)
    wanted = gpu.architecture or f"sm_{capability.replace('.', '')}"
    hint = f"install a build of torch with {wanted}, or train with --device cpu"
    text = f"{text}: this build of torch does not support it (only {', '.join(architectures)})"
    return (broken if is_first else poor)(name, text, hint)


def runs_on(capability: tuple[int, int] | None, architectures: Sequence[str]) -> bool:
    """Whether code for ``architectures`` (``sm_90``, ``sm_90a``, ``compute_120``) runs on ``capability``.

    CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility": machine code runs on the same
    major capability with the same or a higher minor one (with an ``a`` only on the same one); PTX runs on
    every later one.
    """
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None or capability is None:
            continue
        kind, suffix, built_for = match[1], match[4], (int(match[2]), int(match[3]))
        if suffix == "a":
            serves = capability == built_for
        else:
            serves = capability >= built_for and (
                (kind == "compute" and not suffix) or capability[0] == built_for[0]
            )
        if serves:
            return True
    return False


def look_at_nvml(patience_seconds: float = _PATIENCE_SECONDS) -> NvmlLook:
    """One sample of every GPU.

    A call for a GPU that has fallen off the bus may never return, so it runs in its own thread.
    """
    answer = NvmlLook(note="NVML does not respond: no GPU readings", absence="silent")

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
    if not look.samples:
        why = look.note or "no NVIDIA GPU: NVML lists none"
        if expected or look.absence in ("refused", "silent"):
            hint = "check that `nvidia-smi` works; until then the screen shows only torch's memory figures"
            return [poor("nvml", why, hint)]
        return []  # that there is no GPU has been said
    checks, all_missing = [], set[str]()
    for sample in look.samples:
        figures = {name: value for name, value in asdict(sample).items() if name not in ("uuid", "name")}
        missing = {name for name, value in figures.items() if value is None}
        is_mig_instance = sample.uuid.startswith("MIG-")
        all_missing |= set() if is_mig_instance else missing
        text = f"NVML: {sample.name or sample.uuid}"
        used, total = sample.memory_used_bytes, sample.memory_total_bytes
        if used is not None and total is not None and used > _NEARLY_FULL * total:
            text += f": memory is nearly full, {bytes_of(used, total)}"
            checks.append(poor("nvml", text, "`nvidia-smi` lists the processes that use it"))
        else:
            apart = "; a MIG instance has no sensors of its own" if is_mig_instance else ""
            text += f": {len(figures) - len(missing)} of {len(figures)} readings{apart}"
            checks.append(fine("nvml", text))
    if all_missing:  # one line for all GPUs: a driver without a reading lacks it for every GPU of a kind
        names = ", ".join(name.replace("_", " ") for name in sorted(all_missing))
        hint = "the screen shows n/a instead; a newer driver or more permissions for this container may help"
        checks.append(poor("nvml-missing", f"NVML does not report {names} ({look.note})", hint))
    return checks
