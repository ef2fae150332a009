"""The GPUs: what torch can do with each, and what NVML tells of it."""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from amptui.device.nvml import Probe, open_probe
from amptui.doctor.check import Check, broken, fine, poor
from amptui.doctor.cuda import usable_gpus
from amptui.records import GpuSample
from amptui.units import bytes_of, number_of_bytes

_PATIENCE_SECONDS = 2.0
"""How long NVML may take: it starts in milliseconds where the driver stays loaded, in a second where not."""

_NEARLY_FULL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as torch sees it."""

    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    """Compute capability: (9, 0)."""

    @property
    def is_mig_instance(self) -> bool:
        """Whether it is a part of a GPU: its name then says which, as in ``NVIDIA A100 MIG 1g.5gb``."""
        return " MIG " in self.name


def gpu_checks() -> list[Check]:
    """Every GPU that torch can use, and every one that NVML lists."""
    import torch

    architectures = torch.cuda.get_arch_list()
    checks = [check_gpu(gpu, architectures) for gpu in read_gpus()]
    samples, note = look_at_nvml()
    return [*checks, *check_nvml(samples, note, expected=bool(checks))]


def read_gpus() -> list[Gpu]:
    """The GPUs that torch can use; none where it can use none."""
    import torch

    gpus = []
    for index in range(usable_gpus()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            Gpu(
                index=index,
                name=properties.name,
                memory_bytes=properties.total_memory,
                capability=(properties.major, properties.minor),
            )
        )
    return gpus


def check_gpu(gpu: Gpu, architectures: Sequence[str]) -> Check:
    """Whether this torch has code for the GPU; by default training takes the first one."""
    capability = f"{gpu.capability[0]}.{gpu.capability[1]}"
    kind = "MIG instance, " if gpu.is_mig_instance else ""
    text = f"cuda:{gpu.index} {gpu.name}, {kind}{number_of_bytes(gpu.memory_bytes)}, capability {capability}"
    facts: dict[str, object] = {**asdict(gpu), "capability": capability, "mig": gpu.is_mig_instance}
    name = f"cuda:{gpu.index}"
    if runs_on(gpu.capability, architectures):
        return fine(name, text, **facts)
    mend = f"install a torch whose build names sm_{capability.replace('.', '')}, or train with --device cpu"
    text = f"{text}: this torch has no code for it (it has {', '.join(architectures)})"
    return (broken if gpu.index == 0 else poor)(name, text, mend, **facts)


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether code for ``architectures`` (``sm_90``, ``sm_90a``, ``compute_120``) runs on ``capability``.

    CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility": machine code runs on its own
    major capability from its own minor one up, with an ``a`` on that very one; PTX runs on every later one.
    """
    return any(_serves(name, capability) for name in architectures)


def _serves(architecture: str, capability: tuple[int, int]) -> bool:
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
    if not found:
        return False
    kind, suffix = found[1], found[4]
    built_for = int(found[2]), int(found[3])
    if suffix == "a":
        return capability == built_for
    if kind == "compute" and not suffix:
        return capability >= built_for
    return capability[0] == built_for[0] and capability >= built_for


def look_at_nvml(
    open_probe: Callable[[], Probe] = open_probe, patience_seconds: float = _PATIENCE_SECONDS
) -> tuple[tuple[GpuSample, ...], str]:
    """One sample of every GPU, and NVML's note on what is missing.

    A call into a GPU that has fallen off its bus may never return, so it is made in a thread of its own.
    """
    answer: tuple[tuple[GpuSample, ...], str] = ((), "no GPU figures: NVML does not answer")

    def ask() -> None:
        nonlocal answer
        probe = open_probe()
        gpus = probe.sample()
        answer = gpus, probe.note
        probe.close()

    thread = threading.Thread(target=ask, name="doctor-nvml", daemon=True)
    thread.start()
    thread.join(patience_seconds)
    return answer


def check_nvml(samples: Sequence[GpuSample], note: str, *, expected: bool) -> list[Check]:
    """What NVML tells of each GPU; ``expected`` says whether torch can use any."""
    if samples:
        return [*(_check_sample(sample) for sample in samples), *_check_missing(samples, note)]
    why = note or "no NVIDIA GPU: NVML lists none"
    if expected or "does not answer" in why or "permission" in why or "differ" in why:
        mend = "see whether `nvidia-smi` works; the screen shows torch's own memory figures until then"
        return [poor("nvml", why, mend, gpus=0)]
    return [fine("nvml", f"nothing to sample: {why}", gpus=0)]


def _check_sample(sample: GpuSample) -> Check:
    figures, missing = _figures(sample)
    facts: dict[str, object] = {"uuid": sample.uuid, "missing": missing, **figures}
    who = f"NVML: {sample.name or sample.uuid}"
    if nearly_full(sample):
        memory = bytes_of(sample.memory_used_bytes, sample.memory_total_bytes)
        return poor("nvml", f"{who} is nearly full: {memory}", "see `nvidia-smi` for who holds it", **facts)
    apart = "; sensors belong to the whole GPU" if _is_mig_instance(sample) else ""
    return fine(
        "nvml", f"{who} tells {len(figures) - len(missing)} of {len(figures)} figures{apart}", **facts
    )


def _check_missing(samples: Sequence[GpuSample], note: str) -> list[Check]:
    """One line for all GPUs: a driver that refuses a figure refuses it for each of a kind."""
    missing = sorted({name for gpu in samples if not _is_mig_instance(gpu) for name in _figures(gpu)[1]})
    if not missing:
        return []
    mend = "what needs them reads n/a; a newer driver, or more rights for this container, may tell them"
    text = f"NVML does not tell {', '.join(name.replace('_', ' ') for name in missing)} ({note})"
    return [poor("nvml-missing", text, mend, missing=missing, note=note)]


def _figures(sample: GpuSample) -> tuple[dict[str, object], list[str]]:
    """Every figure that is sampled, and the names of those that were not told."""
    figures = {name: value for name, value in asdict(sample).items() if name not in ("uuid", "name")}
    return figures, [name for name, value in figures.items() if value is None]


def _is_mig_instance(sample: GpuSample) -> bool:
    return sample.uuid.startswith("MIG-")


def nearly_full(sample: GpuSample) -> bool:
    """Whether others, for this process holds next to nothing, have taken nine tenths of the GPU's memory."""
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    return used is not None and total is not None and used > _NEARLY_FULL * total
