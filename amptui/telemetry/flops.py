"""Achieved FLOP/s of each precision, and the most that the GPU reaches."""

import math
from dataclasses import dataclass, field, replace

from amptui.records.findings import FlopsCounted
from amptui.records.run import EAGER_SUFFIX, PRECISION_ORDER, RunStarted, base_precision
from amptui.telemetry.comparison import PrecisionLedger
from amptui.telemetry.peak_flops import peak_flops
from amptui.telemetry.view import PrecisionFlops

_ONE_TYPE = {"ieee": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16"}
"""What nearly all of a precision's operations multiply; in ``fp32`` torch's flags decide, unknown here."""


MAX_SIZES = 8
"""Numbers of samples of one precision whose counts are kept, the newest ones."""


@dataclass(slots=True, eq=False)
class FlopsWatch:
    """The newest count of each precision and number of samples."""

    _counts: dict[str, list[FlopsCounted]] = field(default_factory=dict)
    """By precision; each number of samples once."""
    _shapes_vary: bool = False

    def add(self, record: FlopsCounted) -> None:
        """Take a count; one without operations says nothing."""
        self._shapes_vary |= record.shapes_vary
        if record.flops > 0:
            others = [
                each for each in self._counts.get(record.precision, ()) if each.samples != record.samples
            ]
            self._counts[record.precision] = [*others[1 - MAX_SIZES :], record]

    def flops(self, ledger: PrecisionLedger, run: RunStarted | None) -> tuple[PrecisionFlops, ...]:
        """In the order of ``PRECISION_ORDER``; only counted steps, after warm-up, have a speed."""
        if not self._counts:
            return ()
        order = {name: place for place, name in enumerate(PRECISION_ORDER)}
        names = {row.precision for row in ledger.comparison().rows} | set(self._counts)
        in_order = sorted(names, key=lambda name: (order.get(name, len(order)), name))
        return tuple(self._of(name, ledger, run) for name in in_order)

    def _of(self, precision: str, ledger: PrecisionLedger, run: RunStarted | None) -> PrecisionFlops:
        """The count that stands for the most steps, and their speed."""
        counts = self._counts.get(precision) or self._borrowed(precision)
        told = [(counted, ledger.steps_of(precision, counted.samples)) for counted in counts]
        counted, steps = max(told, key=lambda each: each[1].steps)
        if self._shapes_vary:
            counted = replace(counted, shapes_vary=True)
        return replace(flops_now(counted, steps.median_seconds, run), other_sizes=steps.others)

    def _borrowed(self, precision: str) -> list[FlopsCounted]:
        """Another precision's counts: a compiled model is counted once, and computes as much in each.

        Run eagerly beside it, the same precision computes the same.
        """
        eager = self._counts.get(precision + EAGER_SUFFIX)
        if eager is not None:
            return [replace(each, precision=precision) for each in eager]
        number_type = _ONE_TYPE.get(base_precision(precision))
        return [
            replace(
                each,
                precision=precision,
                flops_by_type={number_type: each.flops} if number_type is not None else {},
                nchw_flops=0,
                unaligned_flops=0,
                unaligned=(),
            )
            for each in next(iter(self._counts.values()))
        ]


def flops_now(counted: FlopsCounted, step_seconds: float | None, run: RunStarted | None) -> PrecisionFlops:
    """What ``counted`` operations in steps of ``step_seconds`` come to; a CPU has no known peak."""
    on_gpu = run is not None and run.device.startswith("cuda")
    known = step_seconds is not None and 0 < step_seconds < math.inf and not counted.shapes_vary
    return PrecisionFlops(
        counted=counted,
        on_gpu=on_gpu,
        flops_per_second=counted.flops / step_seconds if step_seconds and known else None,
        peak_flops_per_second=peak_flops(run.device_name, counted.flops_by_type) if run and on_gpu else None,
        ranks=1 if run is None else run.world_size,
    )
