"""Records for the tests of telemetry: plain ones, with whatever a test wants to differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

from amptui.records.findings import (
    Float16Window,
    FlopsCounted,
    LayerAgreement,
    MemoryBreakdown,
    MemoryKind,
    ModuleRange,
    ModulesTraced,
    ParameterWindow,
    PhaseName,
    PhaseSeconds,
    PrecisionMeasured,
    PrecisionsCompared,
    UnalignedProduct,
    XRayTaken,
)
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.run import LossScaleChanged, NonFinite, StepSkipped
from amptui.records.samples import AllocatorSample, DeviceSample, GpuSample, HostSample
from amptui.telemetry.view import PrecisionTiming
from tests.builders import make_resumed as resumed
from tests.builders import make_started as run
from tests.builders import make_step as step
from tests.builders import make_steps as steps

__all__ = ["resumed", "run", "step", "steps"]

_Record = TypeVar("_Record")


def _like(record: _Record) -> Callable[..., _Record]:
    """Makes such a record at a step, of which a thousand take a second, with changes."""

    def at(number: int = record.step, **changes: Any) -> _Record:  # type: ignore[attr-defined]
        facts: dict[str, Any] = {"time": 100 + number / 1000, "step": number, **changes}
        return replace(record, **facts)  # type: ignore[type-var]

    return at


def _called(record: _Record) -> Callable[..., _Record]:
    """Makes such a record of another name, with changes."""

    def of(name: str = record.name, **changes: Any) -> _Record:  # type: ignore[attr-defined]
        return replace(record, name=name, **changes)  # type: ignore[type-var]

    return of


def followed(optimizer: str, **changes: Any) -> OptimizerFollowed:
    """Steps of another optimizer come beside those of the others."""
    record = OptimizerFollowed(
        time=100.0, optimizer=optimizer, step=0, kind="Adam", model="Discriminator", parameters=2_765_568
    )
    return replace(record, **changes)


dropped = _like(GradientsDropped(time=0.0, step=1, loss=math.nan, passes=2))
skip = _like(
    StepSkipped(
        time=0.0,
        step=1,
        loss_scale=131072.0,
        loss=0.5,
        names=("features.13.conv.weight", "a", "b"),
        count=3,
        consecutive=1,
    )
)
nonfinite = _like(NonFinite(time=0.0, step=1, what="loss", kind="nan", names=(), count=1))


def backoff(number: int, previous: float, optimizer: str = "") -> LossScaleChanged:
    return LossScaleChanged(
        time=100 + number / 1000,
        step=number,
        previous=previous,
        current=previous / 2,
        reason="backoff",
        optimizer=optimizer,
    )


def growth(number: int, previous: float, optimizer: str = "") -> LossScaleChanged:
    return replace(backoff(number, previous, optimizer), current=previous * 2, reason="growth")


def skip_row(
    first: int, count: int, scale: float, **changes: Any
) -> Sequence[StepSkipped | LossScaleChanged]:
    """``count`` skips in a row from ``scale`` on, each followed by its backoff."""
    records: list[StepSkipped | LossScaleChanged] = []
    for number in range(count):
        records.append(skip(first + number, loss_scale=scale, consecutive=number + 1, **changes))
        records.append(backoff(first + number, scale, changes.get("optimizer", "")))
        scale /= 2
    return records


def device(
    time: float,
    precision: str,
    peak_bytes: int | None,
    utilization_percent: float | None = None,
    energy_joules: float | None = None,
) -> DeviceSample:
    """A look at the GPU that trains in ``run()``, and at one that does not."""
    allocator = AllocatorSample(
        precision=precision, allocated_bytes=1, reserved_bytes=2, peak_allocated_bytes=peak_bytes
    )
    gpus = (
        GpuSample(uuid="GPU-other", utilization_percent=1.0, energy_joules=1e6 * time),
        GpuSample(uuid="GPU-1", utilization_percent=utilization_percent, energy_joules=energy_joules),
    )
    return DeviceSample(time=time, gpus=gpus, host=HostSample(), allocator=allocator)


window = _like(
    Float16Window(
        time=0.0,
        step=600,
        precision="fp32",
        loss_scale=65536.0,
        hypothetical=True,
        first_exponent=-30,
        counts=(0,) * 20 + (8000,) + (0,) * 27,
        elements=10_000,
        zeros=2000,
        flushed=0,
        subnormal=0,
        overflowing=0,
        nonfinite=0,
        worst=(),
        seconds=0.0003,
        steps_since=32,
        squares=8000 * 2.0**-20,
        flushed_squares=0.0,
        subnormal_squares=0.0,
    )
)
"""Gradients of an FP32 step that lie well within float16's range."""


parameter = _called(ParameterWindow(name="", elements=100, zeros=0, flushed=0, subnormal=0, overflowing=0))
module = _called(
    ModuleRange(name="features.12.conv", kind="Conv2d", way="forward", dtype="float16", largest=41_200.0)
)


traced = _like(
    ModulesTraced(
        time=0.0,
        step=615,
        precision="fp16",
        loss_scale=65536.0,
        asked=False,
        first=None,
        nearest=(module(), module("head", kind="Linear", way="backward", largest=0.25)),
        modules=43,
        seconds=None,
    )
)


def layer(name: str, cosine: float | None, **changes: Any) -> LayerAgreement:
    record = LayerAgreement(
        name=name,
        kind="Conv2d",
        elements=1000,
        cosine=cosine,
        relative_error=0.0312,
        lost=0.0,
        output_dtype="float16",
    )
    return replace(record, **changes)


xray = _like(
    XRayTaken(
        time=0.0,
        step=700,
        precision="fp16",
        loss_scale=65536.0,
        loss_fp32=0.5,
        loss_amp=0.501,
        layers=(layer("features.0", 0.99999), layer("features.12", 0.99917)),
        output_dtypes={},
        random=False,
        seconds=0.12,
    )
)
"""Two layers that agree, with much to save in memory."""


def measured(precision: str, **changes: Any) -> PrecisionMeasured:
    """One precision of a comparison; without changes the baseline, else as much faster as it says."""
    times = changes.get("speedup") or 1.0
    row = PrecisionMeasured(
        precision=precision,
        blocks=12,
        steps=240,
        step_seconds=0.004 / times,
        samples_per_second=64_000.0 * times,
        speedup=None,
        speedup_low=None,
        speedup_high=None,
        peak_allocated_bytes=2 * 2**30,
        skipped=0,
        first_loss=0.5,
        last_loss=0.4,
    )
    return replace(row, **changes)


def faster(**changes: Any) -> PrecisionMeasured:
    """AMP fp16 beside it, faster and with less memory."""
    gains: dict[str, Any] = {"speedup": 1.71, "speedup_low": 1.68, "speedup_high": 1.74}
    return measured("fp16", **{**gains, "peak_allocated_bytes": int(1.24 * 2**30), **changes})


compared = _like(
    PrecisionsCompared(
        time=0.0,
        step=700,
        baseline="fp32",
        block_steps=20,
        rounds=12,
        most_rounds=24,
        rows=(measured("fp32"), faster()),
        over=True,
        reason="narrow",
    )
)
"""A comparison that is over."""

_FLOPS = FlopsCounted(
    time=100.001,
    step=1,
    precision="fp32",
    flops=4_000_000_000,
    flops_by_type={"float32": 4_000_000_000},
    nchw_flops=0,
    unaligned_flops=0,
    unaligned=(),
    uncounted=(),
)


def flops(precision: str = "fp32", **changes: Any) -> FlopsCounted:
    types = {"fp16": "float16", "bf16": "bfloat16"}
    counted = {types.get(precision, "float32"): changes.get("flops", _FLOPS.flops)}
    return replace(_FLOPS, **{"precision": precision, "flops_by_type": counted, **changes})


product = _called(UnalignedProduct(name="head", sizes=(256, 10, 512), flops=1_000_000_000, padded=(10,)))


# ------------------------------------------------------------------------- float16 histograms


def spread(exponents: dict[int, int], zeros: int = 0, scale: float = 65536.0) -> Float16Window:
    """A window of gradients that all lie in the middle of their bins."""
    squares = {exponent: count * (1.5 * 2.0**exponent) ** 2 for exponent, count in exponents.items()}
    return window(
        loss_scale=scale,
        first_exponent=-60,
        counts=tuple(exponents.get(exponent, 0) for exponent in range(-60, 41)),
        elements=sum(exponents.values()) + zeros,
        zeros=zeros,
        flushed=sum(count for exponent, count in exponents.items() if exponent <= -26),
        subnormal=sum(count for exponent, count in exponents.items() if -25 <= exponent < -14),
        overflowing=sum(count for exponent, count in exponents.items() if exponent >= 16),
        squares=sum(squares.values()),
        flushed_squares=sum(square for exponent, square in squares.items() if exponent <= -26),
        subnormal_squares=sum(square for exponent, square in squares.items() if -25 <= exponent < -14),
    )


def losing(share: float, step: int = 600, **changes: Any) -> Float16Window:
    """A window of which this share of the norm underflows, half of its squares as subnormals."""
    half = share**2 / 2
    return window(step, **squares_of(flushed=half, subnormal=half), **changes)


def squares_of(*, flushed: float = 0.0, subnormal: float = 0.0, whole: float = 1.0) -> dict[str, Any]:
    """Sums of squares, as fields of a window or a parameter."""
    return {"squares": whole, "flushed_squares": flushed, "subnormal_squares": subnormal}


# ------------------------------------------- the memory of a model of 56 MiB that Adam trains

MIB = 2**20

_LIVES_ON: tuple[tuple[Literal["weights", "gradients", "optimizer", "buffers"], str, int], ...] = (
    ("weights", "float32", 56 * MIB),
    ("gradients", "float32", 56 * MIB),
    ("optimizer", "float32", 112 * MIB),
    ("buffers", "float32", 30 * 1024),
    ("buffers", "int64", 112),
)


def memory(
    precision: str,
    *,
    activations: int | None = None,
    peak: int | None = None,
    step: int = 412,
) -> MemoryBreakdown:
    """A breakdown with these activations, if any."""
    kinds = [MemoryKind(kind=kind, dtype=dtype, size_bytes=size) for kind, dtype, size in _LIVES_ON]
    if activations is not None:
        kinds.append(MemoryKind(kind="activations", dtype="", size_bytes=activations))
    return MemoryBreakdown(
        time=100 + step / 1000,
        step=step,
        precision=precision,
        kinds=tuple(kinds),
        peak_allocated_bytes=peak,
    )


# ------------------------------------------------------------------- the parts of a step, timed

NAMES = get_args(PhaseName)


def phases(*host: float | None, device: tuple[float | None, ...] = ()) -> tuple[PhaseSeconds, ...]:
    """Parts in their order, None for those that did not run."""
    on_device = device or (None,) * len(NAMES)
    return tuple(
        PhaseSeconds(name=name, host_seconds=seconds, device_seconds=other)
        for name, seconds, other in zip(NAMES, host, on_device, strict=True)
        if seconds is not None
    )


def timed(
    *host: float | None,
    device: tuple[float | None, ...] = (),
    busy: float | None = None,
    precision: str = "fp32",
    steps: int = 50,
) -> PrecisionTiming:
    """The seconds of the parts on either clock."""
    return PrecisionTiming(
        precision=precision, steps=steps, phases=phases(*host, device=device), utilization_percent=busy
    )


HOST = (0.0001, 0.0004, 0.0006, 0.0001, 0.0001)
BUSY = (0.0001, 0.0020, 0.0040, 0.0001, 0.0006)
"""Of a device with much more to do than a host that takes ``HOST`` to launch it."""

ALIKE = (0.0001, 0.00041, 0.00062, 0.00011, 0.00012)
"""Of a device that is done when the host has launched."""
