"""Parts of steps, timed on the host and the device, and what they are judged as."""

from amptui.records.findings import PhaseSeconds
from amptui.telemetry.timing import PhaseName, judged_timing
from amptui.telemetry.view import PrecisionTiming

NAMES: tuple[PhaseName, ...] = ("input", "forward", "backward", "clip", "optimizer")


def phases(*host: float | None, device: tuple[float | None, ...] = ()) -> tuple[PhaseSeconds, ...]:
    """Parts in their order, None for those that did not run."""
    on_device = device or (None,) * len(NAMES)
    return tuple(
        PhaseSeconds(name=name, host_seconds=seconds, device_seconds=other)
        for name, seconds, other in zip(NAMES, host, on_device, strict=True)
        if seconds is not None
    )


def judged(
    *host: float | None, device: tuple[float | None, ...] = (), busy: float | None = None, amp: bool = False
) -> PrecisionTiming:
    precision = "fp16" if amp else "fp32"
    return judged_timing(precision, phases(*host, device=device), steps=50, utilization_percent=busy)


HOST = (0.0001, 0.0004, 0.0006, 0.0001, 0.0001)
BUSY = (0.0001, 0.0020, 0.0040, 0.0001, 0.0006)
"""Of a device with much more to do than a host that takes ``HOST`` to launch it."""

ALIKE = (0.0001, 0.00041, 0.00062, 0.00011, 0.00012)
"""Of a device that is done when the host has launched."""
