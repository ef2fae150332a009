"""Whether the Tensor Cores are used: achieved FLOP/s, their share of the peak, and what holds them back."""

import math
from collections.abc import Sequence

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.records.run import LOW_PRECISIONS
from amptui.telemetry.view import PrecisionFlops

MIN_SHARE = 0.1
"""Of a step's operations: what concerns less is not worth a hint."""

MAX_NAMES = 3
"""Operators without a formula that a sentence names."""


def rate_words(flops: PrecisionFlops) -> str:
    """``412 TFLOP/s``, or ``≥412 TFLOP/s`` where something could not be counted; n/a without a speed.

    Of several ranks, that of one: ``412 TFLOP/s each``.
    """
    value = flops.flops_per_second
    if value is None:
        return units.NOT_AVAILABLE
    scale, unit = next(((s, u) for s, u in ((1e12, "T"), (1e9, "G")) if value >= s), (1e6, "M"))
    least = "≥" if flops.counted.uncounted else ""
    suffix = " each" if flops.ranks > 1 else ""
    return f"{least}{_three_digits(value / scale)} {unit}FLOP/s{suffix}"


def mfu_words(flops: PrecisionFlops) -> str:
    """``42%``; n/a where the peak is not known."""
    if flops.mfu is None:
        return units.NOT_AVAILABLE
    return ("≥" if flops.counted.uncounted else "") + units.percent(flops.mfu)


def flops_line(flops: PrecisionFlops) -> str:
    """``AMP fp16: 412 TFLOP/s, 42% MFU (dense peak 989 TFLOP/s)``; empty without a speed."""
    if flops.flops_per_second is None:
        return ""
    line = f"{precision_label(flops.counted.precision)}: {rate_words(flops)}"
    if flops.peak_flops_per_second is None:
        return line
    peak = _three_digits(flops.peak_flops_per_second / 1e12)
    return f"{line}, {mfu_words(flops)} MFU (dense peak {peak} TFLOP/s)"


def flops_hints(precisions: Sequence[PrecisionFlops]) -> list[str]:
    """What keeps operations in AMP and FP8 from the Tensor Cores' full speed, a sentence each.

    If no count stands for the steps, that instead.
    """
    on_gpu = [flops for flops in precisions if flops.on_gpu]
    if any(flops.counted.shapes_vary for flops in on_gpu):
        return [
            "no FLOP/s: the operations of a sample vary with the input shapes, so one count does not fit all"
        ]
    hints = []
    if names := list(dict.fromkeys(name for flops in on_gpu for name in flops.counted.uncounted)):
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        hints = [f"FLOP/s are a lower bound: no formula for {', '.join(names[:MAX_NAMES])}{more}"]
    for flops in precisions:
        if flops.counted.precision in LOW_PRECISIONS:
            hints += _hints(flops)
    return list(dict.fromkeys(hints))


def _hints(flops: PrecisionFlops) -> list[str]:
    counted, hints = flops.counted, []
    label = precision_label(counted.precision)
    full = counted.flops_by_type.get("float32", 0) + counted.flops_by_type.get("tf32", 0)
    if full >= MIN_SHARE * counted.flops:
        part = units.percent(full / counted.flops)
        hints.append(f"{part} of the operations in {label} run in float32: an X-ray names the modules")
    if not flops.on_gpu:
        return hints
    worst = counted.unaligned[0] if counted.unaligned else None
    if worst is not None and worst.padded and counted.unaligned_flops >= MIN_SHARE * counted.flops:
        sizes = " × ".join(map(units.count, worst.sizes))
        part = units.percent(counted.unaligned_flops / counted.flops)
        pads = " and ".join(
            f"{units.count(size)} to {units.count(8 * math.ceil(size / 8))}" for size in worst.padded
        )
        hints.append(
            f"{part} of the operations have a size that is not a multiple of 8, "
            f"most of them in {worst.name} ({sizes}): pad {pads}, because Tensor Cores need multiples of 8"
        )
    if counted.nchw_flops >= MIN_SHARE * counted.flops:
        part = units.percent(counted.nchw_flops / counted.flops)
        hints.append(
            f"{part} of the operations are convolutions in NCHW, which Tensor Cores have to convert: "
            "try --channels-last"
        )
    return hints


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
