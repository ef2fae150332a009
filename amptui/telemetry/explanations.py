"""Why AMP gave little or nothing, and what to do about it."""

from amptui import units
from amptui.telemetry.health import LITTLE_MEMORY
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import PrecisionStats

LITTLE_SPEED = 0.05
"""AMP that is faster by less than this part of the baseline's speed gave little: as much as the medians of
two stretches of the same precision may differ."""

INPUT_BOUND_SHARE = 0.3
"""Waiting for data this part of the steps' time, in both precisions, a loop is bound by its input: no
precision can win back more than the rest."""

IDLE_GPU_PERCENT = 70.0
"""Below this utilization the GPU waits for the host. NVML counts the time in which any kernel ran."""


def explain(
    baseline: PrecisionStats,
    amp: PrecisionStats,
    *,
    speedup: float | None,
    memory_saving: float | None,
    breakdown: str = "",
) -> tuple[str, ...]:
    """One or two sentences for each gain that AMP did not bring; none for those that it did.

    ``breakdown`` tells where the memory is, once breakdowns of both precisions or an X-ray tell.
    """
    told = []
    if speedup is not None and speedup < 1 + LITTLE_SPEED:
        told.append(_why_not_faster(baseline, amp, speedup))
    if memory_saving is not None and memory_saving < LITTLE_MEMORY:
        told.append(_why_not_smaller(memory_saving, breakdown))
    return tuple(text for text in told if text)


def _why_not_faster(baseline: PrecisionStats, amp: PrecisionStats, speedup: float) -> str:
    """Empty where nothing that was measured explains it."""
    percents = [p for p in (baseline.utilization_percent, amp.utilization_percent) if p is not None]
    # A busy GPU has work queued: the host may wait for data meanwhile and lose nothing.
    if any(percent >= IDLE_GPU_PERCENT for percent in percents):
        return ""
    waits = [row.data_fraction for row in (baseline, amp) if row.data_fraction is not None]
    if len(waits) == 2 and min(waits) > INPUT_BOUND_SHARE:
        return _input_bound(baseline, amp) if speedup > 1 - LITTLE_SPEED else ""
    if len(percents) == 2:
        idle = f"the GPU is idle {units.share(100 - percents[1], 100)} of the time"
        more = ", and AMP's casts add kernel launches" if speedup < 1 - LITTLE_SPEED else ""
        return f"launch-bound: {idle}{more}; {_LAUNCH_HINT}"
    return ""


_LAUNCH_HINT = "use larger batches, CUDA graphs or torch.compile"


def _input_bound(baseline: PrecisionStats, amp: PrecisionStats) -> str:
    full, half = units.share(baseline.data_fraction, 1), units.share(amp.data_fraction, 1)
    waits = f"{precision_label(baseline.precision)} waits for data {full} of each step"
    return f"input-bound: {waits}, {precision_label(amp.precision)} {half}; speed up data loading first"


def _why_not_smaller(memory_saving: float, breakdown: str) -> str:
    change = f"{units.percent(abs(memory_saving))} {'less' if memory_saving >= 0 else 'more'} peak memory"
    if breakdown:
        return f"{change}: {breakdown}"
    owners = "probably mostly weights, gradients and optimizer state, which stay FP32"
    return f"{change}: {owners}"
