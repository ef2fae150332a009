"""The bottleneck of a step in words: what it waits for, and the most that another precision can gain."""

from collections.abc import Iterable, Sequence

from amptui.base import units
from amptui.diagnosis.labels import family_label, precision_label
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import LOW_PRECISIONS, base_precision, is_emulated
from amptui.records.samples import GpuSample
from amptui.telemetry.comparison import LITTLE_SPEED, compare
from amptui.telemetry.timing import enqueued, kept_up, on_device, seconds_of, shares_of
from amptui.telemetry.view import Comparison, PrecisionTiming

AMP_PHASES = ("forward", "backward")
"""The parts under autocast. Clipping and the optimizer use FP32 gradients and weights in all precisions."""

LITTLE_REST = 0.05
"""If the other parts are a smaller fraction of the step, they allow 20 times: effectively no limit, since
Tensor Cores give at most 8 to 16 times FP32's throughput (NVIDIA's data sheets, V100 to H200)."""


def bound_words(timing: PrecisionTiming, *, ranks: int = 1) -> str:
    """``launch-bound``; empty if the cause is unknown.

    With several ``ranks`` forward and backward contain the communication.
    """
    if timing.bound == "compute" and ranks > 1:
        return "compute- or communication-bound"
    return "" if timing.bound in ("", "unknown") else f"{timing.bound}-bound"


def throttled_words(gpu: GpuSample, width: int) -> str:
    """Why the GPU is throttled: all reasons or, if too wide, the worst one; "" if it is not."""
    reasons = gpu.clocks_event_reasons or ()
    everything = f"⚠ throttled: {', '.join(reasons)}" if reasons else ""
    if len(reasons) < 2 or len(everything) <= width:
        return everything
    return f"⚠ throttled: {reasons[0]} +{len(reasons) - 1}"


def evidence(timing: PrecisionTiming) -> str:
    """The numbers behind a bottleneck; empty until enough steps were timed. Emulated steps have none."""
    if is_emulated(timing.precision):
        return "computed in float32: these times are not FP8's"
    phases, busy_percent = timing.phases, timing.utilization_percent
    waiting = f"{units.percent(_input_share(timing))} of the step" if timing.bound else ""
    on_gpu = units.milliseconds(sum(map(seconds_of, enqueued(phases))))
    text = ""
    if timing.bound in ("input", "compute") and not on_device(phases):
        text = f"the loop waits for data {waiting}"
    elif timing.bound == "input":
        waited = units.milliseconds(sum(phase.host_seconds for phase in phases if phase.name == "input"))
        text = f"the GPU waits for data or copies it {waiting}, the host waits {waited}"
    elif timing.bound == "unknown":
        idle = units.percent((100 - (busy_percent or 0.0)) / 100)
        text = f"the GPU is idle {idle} of the time, which neither data nor the host explains"
    elif timing.bound == "launch":
        host = units.milliseconds(sum(phase.host_seconds for phase in enqueued(phases)))
        text = f"the host takes {host} to launch kernels that the GPU runs in {on_gpu}"
        if busy_percent is not None:
            text += f", idle {units.percent((100 - busy_percent) / 100)} of the time"
    elif timing.bound == "compute" and busy_percent is not None:
        text = f"the GPU is busy {units.percent(busy_percent / 100)} of the time"
    elif timing.bound == "compute":
        text = f"the GPU takes {on_gpu}; launching takes the host {units.percent(kept_up(phases))} of that"
    return text


def _input_share(timing: PrecisionTiming) -> float:
    return shares_of(timing.phases).get("input", 0.0)


def limit(timing: PrecisionTiming, *, ranks: int = 1) -> str:
    """The most that another precision can gain, by Amdahl's law; empty until enough steps were timed.

    With a share p of the step in forward and backward this is 1 / (1 - p), if they took no time at all;
    input-bound, 1 / (share of the input). With several ``ranks`` forward and backward contain communication,
    which takes as long in any precision: there is no number then. Empty too where the weights are not
    float32, where what AMP would change is not known, and of emulated steps.
    """
    if not timing.bound or base_precision(timing.precision) in OTHER_PRECISIONS:
        return ""
    if timing.bound == "input":
        most = f"at most {1 / _input_share(timing):.1f}×"
        return f"loading data takes the same time in any precision: {most}"
    if timing.bound == "launch":
        return "launching kernels takes the same time in any precision: little to gain"
    return _amp_limit(timing, ranks)


def _amp_limit(timing: PrecisionTiming, ranks: int) -> str:
    shares = shares_of(timing.phases)
    amp = sum(shares.get(name, 0.0) for name in AMP_PHASES)
    part, most = f"{units.percent(amp)} of the step", f"at most {1 / (1 - amp):.1f}×" if amp < 1 else ""
    if base_precision(timing.precision) in LOW_PRECISIONS:
        takes = f"forward and backward still take {part}"
        if ranks > 1:
            name = family_label(timing.precision)
            return f"{takes}, including communication, which {name} does not speed up"
        return f"{takes}; little else takes time" if 1 - amp < LITTLE_REST else f"{takes}: {most} more"
    if ranks > 1:
        return f"AMP can speed up forward and backward, {part}, but not the communication in them"
    if 1 - amp < LITTLE_REST:
        return f"AMP can speed up forward and backward, {part}; little else takes time"
    return f"AMP can speed up only forward and backward, {part}: {most}"


def limit_beside(
    timing: PrecisionTiming, others: Sequence[PrecisionTiming], comparison: Comparison, *, ranks: int = 1
) -> str:
    """The limit of one of several timings; if AMP or FP8 was slower than its reference, that instead."""
    by_precision = {other.precision: other for other in others if other.bound}
    if timing.precision in LOW_PRECISIONS and timing.precision not in (comparison.baseline, comparison.low):
        comparison = compare(comparison.rows, timing.precision)
    baseline, low = by_precision.get(comparison.baseline or ""), by_precision.get(comparison.low or "")
    if baseline is None or low is None or timing not in (baseline, low) or is_emulated(low.precision):
        return limit(timing, ranks=ranks)
    # The parts of a step explain a loss of speed; whether there is one is said by the comparison alone.
    why = why_slower(baseline, low) if comparison.speedup and comparison.speedup < 1 else ""
    if why and timing is baseline:
        why = f"{precision_label(low.precision)} gains nothing"
    return why or limit(timing, ranks=ranks)


def why_slower(baseline: PrecisionTiming, other: PrecisionTiming) -> str:
    """``AMP bf16 took longer than FP32: forward 1.85 s instead of 366 ms``; empty if it did not.

    Lists the parts that took noticeably longer, relative to the baseline's step.
    """
    if _whole(other) <= (1 + LITTLE_SPEED) * _whole(baseline):
        return ""
    before = {phase.name: seconds_of(phase) for phase in baseline.phases}
    least = LITTLE_SPEED * _whole(baseline) / len(other.phases)
    names = [phase.name for phase in other.phases if seconds_of(phase) - before.get(phase.name, 0.0) >= least]
    name, than = precision_label(other.precision), precision_label(baseline.precision)
    return f"{name} took longer than {than}: {phase_changes(baseline, other, names)}"


def phase_changes(baseline: PrecisionTiming, other: PrecisionTiming, names: Iterable[str]) -> str:
    """``forward 185 ms instead of 366 ms, backward 1.66 s instead of 977 ms``: those of ``names``."""
    before = {phase.name: units.milliseconds(seconds_of(phase)) for phase in baseline.phases}
    return ", ".join(
        f"{phase.name} {units.milliseconds(seconds_of(phase))} instead of {before.get(phase.name, 'nothing')}"
        for phase in other.phases
        if phase.name in names
    )


def _whole(timing: PrecisionTiming) -> float:
    return sum(map(seconds_of, timing.phases))
