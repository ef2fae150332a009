"""Records for the tests of telemetry: plain ones, with whatever a test wants to differ."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from amptui.records import (
    AllocatorSample,
    DataInfo,
    DeviceSample,
    HostSample,
    LossScaleChanged,
    NonFinite,
    RunStarted,
    StepRecord,
    StepSkipped,
)

_STEP = StepRecord(
    time=0.0,
    step=1,
    epoch=1,
    precision="fp32",
    loss=0.5,
    samples=256,
    step_seconds=0.004,
    data_seconds=1e-5,
    lr=1e-4,
    loss_scale=None,
    growth_tracker=None,
    skipped=False,
    grad_norm=1.0,
    nonfinite_gradients=0,
    settling=False,
)

_RUN = RunStarted(
    time=100.0,
    model="mnist-deep",
    device="cuda:0",
    device_name="NVIDIA H200",
    gpu_uuid="GPU-1",
    precision="fp32",
    amp_precision="fp16",
    unsupported={},
    config={},
    versions={},
    hardware={},
    data=DataInfo(name="MNIST", real=True, samples=60_000),
    parameters=14_740_522,
    batch_size=256,
    steps_per_epoch=234,
    total_epochs=10,
    total_steps=2340,
    growth_interval=2000,
)


def run(**changes: Any) -> RunStarted:
    return replace(_RUN, **changes)


def step(number: int, **changes: Any) -> StepRecord:
    """A step at 100 s and ``number`` milliseconds; an ``fp16`` one has a scale unless told otherwise."""
    if changes.get("precision") == "fp16":
        changes = {"loss_scale": 65536.0, "growth_tracker": 0} | changes
    return replace(_STEP, **{"step": number, "time": 100 + number / 1000} | changes)


def steps(first: int, last: int, **changes: Any) -> list[StepRecord]:
    return [step(number, **changes) for number in range(first, last + 1)]


def skip(number: int, **changes: Any) -> StepSkipped:
    record = StepSkipped(
        time=100 + number / 1000,
        step=number,
        loss_scale=131072.0,
        loss=0.5,
        names=("features.13.conv.weight", "a", "b"),
        count=3,
        consecutive=1,
    )
    return replace(record, **changes)


def backoff(number: int, previous: float) -> LossScaleChanged:
    return LossScaleChanged(
        time=100 + number / 1000, step=number, previous=previous, current=previous / 2, reason="backoff"
    )


def growth(number: int, previous: float) -> LossScaleChanged:
    return LossScaleChanged(
        time=100 + number / 1000, step=number, previous=previous, current=previous * 2, reason="growth"
    )


def nonfinite(number: int, **changes: Any) -> NonFinite:
    record = NonFinite(time=100 + number / 1000, step=number, what="loss", kind="nan", names=(), count=1)
    return replace(record, **changes)


def skip_row(
    first: int, count: int, scale: float, **changes: Any
) -> Sequence[StepSkipped | LossScaleChanged]:
    """``count`` skips in a row from ``scale`` on, each followed by its backoff."""
    records: list[StepSkipped | LossScaleChanged] = []
    for number in range(count):
        records.append(skip(first + number, loss_scale=scale, consecutive=number + 1, **changes))
        records.append(backoff(first + number, scale))
        scale /= 2
    return records


def device(time: float, precision: str, peak_bytes: int | None) -> DeviceSample:
    allocator = AllocatorSample(
        precision=precision, allocated_bytes=1, reserved_bytes=2, peak_allocated_bytes=peak_bytes
    )
    return DeviceSample(time=time, gpus=(), host=HostSample(), allocator=allocator)
