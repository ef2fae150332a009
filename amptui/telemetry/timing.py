"""Where the time of each precision's steps goes, what they wait for, and what another precision can gain."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from amptui import units
from amptui.findings import PhaseSeconds, StepTimed
from amptui.records import AMP_PRECISIONS, PRECISIONS
from amptui.telemetry.comparison import median
from amptui.telemetry.explanations import IDLE_GPU_PERCENT, INPUT_BOUND_SHARE, LITTLE_SPEED
from amptui.telemetry.labels import precision_label
from amptui.telemetry.view import Comparison, PrecisionTiming

WINDOW_STEPS = 200
"""The medians are over so many of the newest timed steps."""

MIN_STEPS = 5
"""Timed steps needed to say what they wait for: the median of five is robust to two outliers."""

LAUNCH_BOUND_SHARE = 0.9
"""From here on the device waits for the host: in each part the host took at least this fraction of the
device's time. The rest allows for what only the device does, such as the last kernel of each part. It is
compared part by part because a host that runs ahead until its queue is full takes as long per step too, but
in other parts than the device."""

BUSY_GPU_PERCENT = 90.0
"""From this utilization on no loop is launch-bound: waiting for the host leaves gaps that NVML's samples
would find."""

AMP_PHASES = ("forward", "backward")
"""The parts under autocast. Clipping and the optimizer use FP32 gradients and weights in all precisions."""

LITTLE_REST = 0.05
"""If the other parts are a smaller fraction of the step, they allow 20 times: effectively no limit, since
Tensor Cores give at most 8 to 16 times FP32's throughput (NVIDIA's data sheets, V100 to H200)."""

Bound = Literal["compute", "input", "launch", ""]

PhaseName = Literal["input", "forward", "backward", "clip", "optimizer"]

_ORDER: tuple[PhaseName, ...] = ("input", "forward", "backward", "clip", "optimizer")


@dataclass(slots=True, eq=False)
class TimingWatch:
    """Medians over the newest timed steps of each precision, without warm-up, and what they mean."""

    _accounts: dict[str, "_Account"] = field(default_factory=dict)
    _told: tuple[Comparison, tuple[PrecisionTiming, ...]] | None = field(default=None, init=False)

    def add(self, record: StepTimed) -> None:
        """Add a timed step; warm-up steps and those with invalid durations are left out."""
        if record.settling or not record.phases or not all(map(_is_sound, record.phases)):
            return
        self._told = None
        self._accounts.setdefault(record.precision, _Account()).add(record)

    def timings(self, comparison: Comparison) -> tuple[PrecisionTiming, ...]:
        """In the order of ``PRECISIONS``; ``comparison`` knows how busy the GPU was, and what is compared."""
        if self._told is None or self._told[0] is not comparison:
            busy = {row.precision: row.utilization_percent for row in comparison.rows}
            order = {name: place for place, name in enumerate(PRECISIONS)}
            names = sorted(self._accounts, key=lambda name: order.get(name, len(order)))
            alone = [self._timing(name, busy.get(name)) for name in names]
            self._told = comparison, tuple(_beside_others(timing, alone, comparison) for timing in alone)
        return self._told[1]

    def _timing(self, precision: str, utilization_percent: float | None) -> PrecisionTiming:
        account = self._accounts[precision]
        return judged_timing(
            precision, account.medians(), steps=account.steps, utilization_percent=utilization_percent
        )


@dataclass(slots=True, eq=False)
class _Account:
    """One precision's newest timed steps, part by part."""

    steps: int = 0
    _host_seconds: dict[PhaseName, deque[float]] = field(default_factory=dict)
    _device_seconds: dict[PhaseName, deque[float]] = field(default_factory=dict)
    _medians: tuple[PhaseSeconds, ...] | None = field(default=None, init=False)

    def add(self, record: StepTimed) -> None:
        self._medians = None
        self.steps = min(WINDOW_STEPS, self.steps + 1)
        for phase in record.phases:
            self._host_seconds.setdefault(phase.name, deque(maxlen=WINDOW_STEPS)).append(phase.host_seconds)
            on_device = self._device_seconds.setdefault(phase.name, deque(maxlen=WINDOW_STEPS))
            if phase.device_seconds is not None:
                on_device.append(phase.device_seconds)

    def medians(self) -> tuple[PhaseSeconds, ...]:
        """The median of each part; the device's only if all parts of all steps have it."""
        if self._medians is None:
            names = sorted(self._host_seconds, key=_ORDER.index)
            on_device = all(
                len(self._device_seconds[name]) == len(self._host_seconds[name]) for name in names
            )
            self._medians = tuple(self._median(name, on_device=on_device) for name in names)
        return self._medians

    def _median(self, name: PhaseName, *, on_device: bool) -> PhaseSeconds:
        return PhaseSeconds(
            name=name,
            host_seconds=median(self._host_seconds[name]) or 0.0,
            device_seconds=median(self._device_seconds[name]) if on_device else None,
        )


def judged_timing(
    precision: str,
    phases: tuple[PhaseSeconds, ...],
    *,
    steps: int,
    utilization_percent: float | None = None,
) -> PrecisionTiming:
    """What the medians of ``steps`` timed steps mean; nothing yet if there are too few.

    Shares are of the sum of the medians: on the device's clock if there is one, else on the host's.

    - input: its share is above ``INPUT_BOUND_SHARE``. On a device this is waiting for the batch or copying
      it; the host may wait at no cost as long as the device has work.
    - launch (on a device only): sum of min(host, device) by the sum of device, over forward, backward, clip
      and optimizer, is at least ``LAUNCH_BOUND_SHARE``, and the GPU is not busy as far as NVML knows.
    - compute: otherwise, unless NVML reports less than ``IDLE_GPU_PERCENT``: then the cause is unknown.

    The limit is Amdahl's: with a share p of the step in forward and backward, 1 / (1 - p) if they took no
    time at all; input-bound, 1 / (share of the input).
    """
    whole = sum(map(_seconds, phases))
    if steps < MIN_STEPS or whole <= 0:
        return PrecisionTiming(precision=precision, steps=steps, phases=phases)
    shares: dict[str, float] = {phase.name: _seconds(phase) / whole for phase in phases}
    bound = _bound(phases, shares, utilization_percent)
    evidence = {
        "input": _input_evidence,
        "launch": _launch_evidence,
        "compute": _compute_evidence,
        "": _idle_evidence,
    }[bound]
    return PrecisionTiming(
        precision=precision,
        steps=steps,
        phases=phases,
        bound=bound,
        evidence=evidence(phases, shares, utilization_percent),
        limit=_limit(bound, precision, shares),
    )


def _bound(
    phases: Sequence[PhaseSeconds], shares: Mapping[str, float], utilization_percent: float | None
) -> Bound:
    if shares.get("input", 0.0) > INPUT_BOUND_SHARE:
        return "input"
    if not _on_device(phases):
        return "compute"
    percent = math.nan if utilization_percent is None else utilization_percent
    if _kept_up(phases) >= LAUNCH_BOUND_SHARE and not percent >= BUSY_GPU_PERCENT:
        return "launch"
    return "" if percent < IDLE_GPU_PERCENT else "compute"


def _is_sound(phase: PhaseSeconds) -> bool:
    values = (phase.host_seconds, phase.device_seconds)
    return all(value is None or 0 <= value < math.inf for value in values)


def _on_device(phases: Iterable[PhaseSeconds]) -> bool:
    return all(phase.device_seconds is not None for phase in phases)


def _seconds(phase: PhaseSeconds) -> float:
    """On the device's clock if there is one, else on the host's."""
    return phase.host_seconds if phase.device_seconds is None else phase.device_seconds


def _enqueued(phases: Sequence[PhaseSeconds]) -> list[PhaseSeconds]:
    """The parts in which the host launches kernels and the device runs them."""
    return [phase for phase in phases if phase.name != "input"]


def _kept_up(phases: Sequence[PhaseSeconds]) -> float:
    """The share of the device's time that the host took too, part by part; 0 if there is none."""
    parts = _enqueued(phases)
    whole = sum(map(_seconds, parts))
    return sum(min(phase.host_seconds, _seconds(phase)) for phase in parts) / whole if whole else 0.0


def _input_evidence(
    phases: Sequence[PhaseSeconds], shares: Mapping[str, float], _utilization_percent: float | None
) -> str:
    part = f"{units.percent(shares['input'])} of the step"
    if not _on_device(phases):
        return f"the loop waits for data {part}"
    waited = sum(phase.host_seconds for phase in phases if phase.name == "input")
    return f"the GPU waits for data or copies it {part}, the host waits {units.milliseconds(waited)}"


def _launch_evidence(
    phases: Sequence[PhaseSeconds], _shares: Mapping[str, float], utilization_percent: float | None
) -> str:
    parts = _enqueued(phases)
    host = units.milliseconds(sum(phase.host_seconds for phase in parts))
    device = units.milliseconds(sum(map(_seconds, parts)))
    text = f"the host takes {host} to launch what the GPU runs in {device}"
    if utilization_percent is None:
        return text
    return f"{text}, idle {units.percent(1 - utilization_percent / 100)} of the time"


def _compute_evidence(
    phases: Sequence[PhaseSeconds], shares: Mapping[str, float], utilization_percent: float | None
) -> str:
    if not _on_device(phases):
        return f"the loop waits for data {units.percent(shares.get('input', 0.0))} of the step"
    if utilization_percent is not None:
        return f"the GPU is busy {units.percent(utilization_percent / 100)} of the time"
    device = units.milliseconds(sum(map(_seconds, _enqueued(phases))))
    return f"the GPU takes {device}, the host {units.percent(_kept_up(phases))} of that to launch it"


def _idle_evidence(
    _phases: Sequence[PhaseSeconds], _shares: Mapping[str, float], utilization_percent: float | None
) -> str:
    idle = units.percent(1 - (utilization_percent or 0.0) / 100)
    return f"the GPU is idle {idle} of the time, which neither data nor the host explains"


def _limit(bound: Bound, precision: str, shares: Mapping[str, float]) -> str:
    if bound == "input":
        return f"data takes as long in any precision: {_times(1 / shares['input'])} at most"
    if bound == "launch":
        return "launching takes as long in any precision: little to gain"
    amp = sum(shares.get(name, 0.0) for name in AMP_PHASES)
    part = f"{units.percent(amp)} of the step"
    used = precision in AMP_PRECISIONS
    if 1 - amp < LITTLE_REST:
        who = "what AMP speeds up is still" if used else "AMP can speed up forward and backward:"
        return f"{who} {part}, little else limits it"
    if used:
        return f"what AMP speeds up is still {part}: {_times(1 / (1 - amp))} more at most"
    return f"AMP can speed up only forward and backward, {part}: {_times(1 / (1 - amp))} at most"


# ------------------------------------------------------------------------- beside each other


def _beside_others(
    timing: PrecisionTiming, all_: Sequence[PrecisionTiming], comparison: Comparison
) -> PrecisionTiming:
    """``timing``; if AMP was slower than the baseline, its limit says so instead."""
    judged = {each.precision: each for each in all_ if each.limit}
    compared = timing.precision if timing.precision in AMP_PRECISIONS else comparison.amp
    baseline, amp = judged.get(comparison.baseline or ""), judged.get(compared or "")
    if baseline is None or amp is None or timing not in (baseline, amp):
        return timing
    why = why_slower(baseline, amp)
    if why and timing is baseline:
        times = _times(_whole(amp) / _whole(baseline))
        why = f"no gain from {precision_label(amp.precision)}: its steps take {times} as long"
    return replace(timing, limit=why or timing.limit)


def why_slower(baseline: PrecisionTiming, other: PrecisionTiming) -> str:
    """``AMP bf16 took longer than FP32: forward 1.85 s instead of 366 ms``; empty if it did not.

    Lists the parts that took noticeably longer, relative to the baseline's step.
    """
    if _whole(other) <= (1 + LITTLE_SPEED) * _whole(baseline):
        return ""
    before = {phase.name: _seconds(phase) for phase in baseline.phases}
    least = LITTLE_SPEED * _whole(baseline) / len(other.phases)
    names = [phase.name for phase in other.phases if _seconds(phase) - before.get(phase.name, 0.0) >= least]
    name, than = precision_label(other.precision), precision_label(baseline.precision)
    return f"{name} took longer than {than}: {phase_changes(baseline, other, names)}"


def phase_changes(baseline: PrecisionTiming, other: PrecisionTiming, names: Iterable[str]) -> str:
    """``forward 185 ms instead of 366 ms, backward 1.66 s instead of 977 ms``: those of ``names``."""
    before = {phase.name: units.milliseconds(_seconds(phase)) for phase in baseline.phases}
    return ", ".join(
        f"{phase.name} {units.milliseconds(_seconds(phase))} instead of {before.get(phase.name, 'nothing')}"
        for phase in other.phases
        if phase.name in names
    )


def _whole(timing: PrecisionTiming) -> float:
    return sum(map(_seconds, timing.phases))


def _times(value: float) -> str:
    """``2.6×``: a bound, for which a tenth is precise enough."""
    return f"{value:.1f}×"
