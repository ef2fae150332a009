"""Why AMP brought little or no gain, and what to do about it."""

from amptui import units
from amptui.telemetry.health import LITTLE_MEMORY
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import PrecisionStats

LITTLE_SPEED = 0.05
"""A speed-up below this fraction is no gain: the medians of two stretches in the same precision may differ by
as much."""

INPUT_BOUND_SHARE = 0.3
"""A loop that waits for data for more than this fraction of its steps, in both precisions, is input-bound: a
faster precision can only speed up the rest."""

IDLE_GPU_PERCENT = 70.0
"""Below this utilization the GPU waits for the host. NVML reports the time in which any kernel ran."""


def explain(
    baseline: PrecisionStats,
    amp: PrecisionStats,
    *,
    speedup: float | None,
    memory_saving: float | None,
    breakdown: str = "",
) -> tuple[str, ...]:
    """One or two sentences for each gain that AMP did not bring; none for those that it did.

    ``breakdown`` says where the memory goes, once breakdowns of both precisions or an X-ray exist.
    """
    told = []
    if speedup is not None and speedup < 1 + LITTLE_SPEED:
        told.append(_why_not_faster(baseline, amp, speedup))
    if memory_saving is not None and memory_saving < LITTLE_MEMORY:
        told.append(_why_not_smaller(memory_saving, breakdown))
    return tuple(text for text in told if text)


def _why_not_faster(baseline: PrecisionStats, amp: PrecisionStats, speedup: float) -> str:
    """Empty if nothing measured explains it."""
    percents = [p for p in (baseline.utilization_percent, amp.utilization_percent) if p is not None]
    # A busy GPU has work queued: the host may wait for data meanwhile at no cost.
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


_LAUNCH_HINT = "use larger batches or --compile reduce-overhead"


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
