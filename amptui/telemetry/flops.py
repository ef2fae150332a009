"""Achieved FLOP/s of each precision, and the most that the GPU reaches."""

import math
from dataclasses import dataclass, field, replace

from amptui.findings import FlopsCounted
from amptui.records import PRECISIONS, RunStarted
from amptui.telemetry.peak_flops import peak_flops
from amptui.telemetry.view import Comparison, PrecisionFlops

_ONE_TYPE = {"ieee": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16"}
"""What nearly all of a precision's operations multiply; in ``fp32`` torch's flags decide, unknown here."""


@dataclass(slots=True, eq=False)
class FlopsWatch:
    """The newest count of each precision."""

    _counted: dict[str, FlopsCounted] = field(default_factory=dict)

    def add(self, record: FlopsCounted) -> None:
        """Take a count; one without operations says nothing."""
        if record.flops > 0:
            self._counted[record.precision] = record

    def flops(self, comparison: Comparison, run: RunStarted | None) -> tuple[PrecisionFlops, ...]:
        """In the order of ``PRECISIONS``; only counted steps, after warm-up, have a speed."""
        if not self._counted:
            return ()
        seconds = {
            row.precision: row.median_step_seconds for row in comparison.rows if not row.provisional_steps
        }
        counted = {name: self._borrowed(name) for name in seconds} | self._counted
        order = {name: place for place, name in enumerate(PRECISIONS)}
        names = sorted(counted, key=lambda name: order.get(name, len(order)))
        return tuple(flops_now(counted[name], seconds.get(name), run) for name in names)

    def _borrowed(self, precision: str) -> FlopsCounted:
        """Another precision's count: a compiled model is counted once, and computes as much in each."""
        other, number_type = next(iter(self._counted.values())), _ONE_TYPE.get(precision)
        return replace(
            other,
            precision=precision,
            flops_by_type={number_type: other.flops} if number_type is not None else {},
            nchw_flops=0,
            unaligned_flops=0,
            unaligned=(),
        )


def flops_now(counted: FlopsCounted, step_seconds: float | None, run: RunStarted | None) -> PrecisionFlops:
    """What ``counted`` operations in steps of ``step_seconds`` come to; a CPU has no known peak."""
    on_gpu = run is not None and run.device.startswith("cuda")
    known = step_seconds is not None and 0 < step_seconds < math.inf
    return PrecisionFlops(
        counted=counted,
        on_gpu=on_gpu,
        flops_per_second=counted.flops / step_seconds if step_seconds and known else None,
        peak_flops_per_second=peak_flops(run.device_name, counted.flops_by_type) if run and on_gpu else None,
    )
