"""What one look at the GPUs, torch's allocator and the host found."""

from dataclasses import dataclass

_CLOCKS_EVENT_REASONS = {
    0x08: "hw slowdown",
    0x40: "thermal (hw)",
    0x80: "power brake",
    0x20: "thermal (sw)",
    0x04: "power cap",
    0x400: "reliability",
    0x200: "board limit",
    0x10: "sync boost",
    0x02: "app clocks",
    0x100: "display clocks",
}
"""The bits of NVML's ``nvmlClocksEventReasons``, the most severe first."""

_IDLE = 0x01
"""Clocks are low because nothing runs: not reported, since there is nothing to do."""


def decode_clocks_event_reasons(mask: int) -> tuple[str, ...]:
    """Why clocks are throttled, the most severe reason first; empty if they are not, or only idle."""
    words = [word for bit, word in _CLOCKS_EVENT_REASONS.items() if mask & bit]
    unknown = mask & ~(_IDLE | sum(_CLOCKS_EVENT_REASONS))
    return (*words, *([f"unknown {unknown:#x}"] if unknown else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """What NVML says of one GPU; every field but the UUID may be missing."""

    uuid: str
    name: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_percent: float | None = None
    power_watts: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    clocks_event_reasons: tuple[str, ...] | None = None
    """Why clocks are held down, in NVML's words; empty when they are not."""
    energy_joules: float | None = None
    """Since the driver was loaded; differences count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSample:
    """What torch's CUDA allocator holds; the peak counts from the end of ``precision``'s warm-up."""

    precision: str
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """What the operating system says of this machine and of this process."""

    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    process_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One look at GPUs, torch's allocator and the host; ``note`` says why GPUs are missing."""

    time: float
    gpus: tuple[GpuSample, ...]
    host: HostSample
    allocator: AllocatorSample | None = None
    note: str = ""
