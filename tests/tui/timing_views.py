"""Session views of runs with timed steps."""

from collections.abc import Sequence
from dataclasses import replace

from amptui.records.findings import PhaseSeconds
from amptui.telemetry.timing import PhaseName
from amptui.telemetry.view import PrecisionTiming, SessionView
from tests.tui import views

NAMES: tuple[PhaseName, ...] = ("input", "forward", "backward", "clip", "optimizer")


def timing(
    precision: str,
    host: Sequence[float],
    device: Sequence[float | None] | None = None,
    *,
    steps: int = 200,
    busy_percent: float | None = None,
) -> PrecisionTiming:
    """Parts of a step, in milliseconds; where there are four, nothing was clipped."""
    names = NAMES if len(host) == len(NAMES) else [name for name in NAMES if name != "clip"]
    phases = tuple(
        PhaseSeconds(
            name=name, host_seconds=own / 1000, device_seconds=None if other is None else other / 1000
        )
        for name, own, other in zip(names, host, device or [None] * len(host), strict=True)
    )
    return PrecisionTiming(precision=precision, steps=steps, phases=phases, utilization_percent=busy_percent)


def compute_bound() -> SessionView:
    """FP32 and AMP on a GPU that the host keeps ahead of."""
    enqueue = (0.04, 0.42, 0.61, 0.12, 0.09)
    full = (0.05, 1.21, 2.31, 0.06, 0.28)
    half = (0.05, 0.58, 1.02, 0.06, 0.31)
    timings = (
        timing("fp32", enqueue, full, busy_percent=97.0),
        timing("fp16", enqueue, half, steps=173, busy_percent=93.0),
    )
    return replace(views.compared(), timings=timings)


def input_bound() -> SessionView:
    """A CPU that loads and trains in turns, timed in FP32 alone."""
    return replace(views.no_nvml(), timings=(timing("fp32", (2.52, 0.51, 0.82, 0.11), steps=64),))


def hardly_timed() -> SessionView:
    """Two steps so far."""
    return replace(views.no_nvml(), timings=(timing("fp32", (0.02, 0.51, 0.82, 0.11), steps=2),))


def every_precision() -> SessionView:
    """More than there is room for on a small screen."""
    seconds = (0.05, 1.21, 2.31, 0.28)
    names = ("fp32", "ieee", "tf32", "fp16", "bf16")
    timings = tuple(timing(name, seconds, seconds, busy_percent=99.0) for name in names)
    return replace(views.compared(), timings=timings)


ALL = {build.__name__: build for build in (compute_bound, input_bound, hardly_timed, every_precision)}
