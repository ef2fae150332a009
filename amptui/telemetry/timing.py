"""Where the time of each precision's steps goes, and what they wait for."""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from amptui.records.findings import PhaseName, PhaseSeconds, StepTimed
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import LOW_PRECISIONS, precision_place
from amptui.telemetry.comparison import IDLE_GPU_PERCENT, INPUT_BOUND_SHARE, compare, median
from amptui.telemetry.finding import Finding, never_measured
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

_ORDER = get_args(PhaseName)


@dataclass(slots=True, eq=False)
class TimingWatch:
    """Medians over the newest timed steps of each precision, without warm-up."""

    _steps: dict[str, deque[tuple[PhaseSeconds, ...]]] = field(default_factory=dict)
    _medians: dict[str, tuple[PhaseSeconds, ...]] = field(default_factory=dict, init=False)
    """Since the last step of each."""

    def add(self, record: StepTimed) -> None:
        """Add a timed step; warm-up steps and those with invalid durations are left out."""
        if record.settling or not record.phases or not all(map(_is_sound, record.phases)):
            return
        self._medians.pop(record.precision, None)
        self._steps.setdefault(record.precision, deque(maxlen=WINDOW_STEPS)).append(record.phases)

    def timings(self, comparison: Comparison) -> tuple[PrecisionTiming, ...]:
        """In the order of ``PRECISION_ORDER``; ``comparison`` knows how busy the GPU was."""
        busy = {row.precision: row.utilization_percent for row in comparison.rows}
        for name in self._steps.keys() - self._medians.keys():
            self._medians[name] = _medians(self._steps[name])
        return tuple(
            PrecisionTiming(
                precision=name,
                steps=len(self._steps[name]),
                phases=self._medians[name],
                utilization_percent=busy.get(name),
            )
            for name in sorted(self._steps, key=precision_place)
        )


def _medians(steps: Collection[tuple[PhaseSeconds, ...]]) -> tuple[PhaseSeconds, ...]:
    """The median of each part; the device's only if all parts of all steps have it."""
    phases = [phase for step in steps for phase in step]
    on_device = all(phase.device_seconds is not None for phase in phases)
    medians = []
    for name in dict.fromkeys(sorted((phase.name for phase in phases), key=_ORDER.index)):
        own = [phase for phase in phases if phase.name == name]
        host = median([phase.host_seconds for phase in own]) or 0.0
        device = median([phase.device_seconds or 0.0 for phase in own]) if on_device else None
        medians.append(PhaseSeconds(name=name, host_seconds=host, device_seconds=device))
    return tuple(medians)


LITTLE_REST = 0.05
"""If the other parts are a smaller fraction of the step, they allow 20 times: effectively no limit, since
Tensor Cores give at most 8 to 16 times FP32's throughput (NVIDIA's data sheets, V100 to H200)."""

AMP_PHASES: tuple[PhaseName, ...] = ("forward", "backward")
"""The parts under autocast. Clipping and the optimizer use FP32 gradients and weights in all precisions."""


def judge_limit(timing: PrecisionTiming, *, about: str = "", ranks: int = 1) -> Finding:
    """What the steps wait for, by their medians, and the most that another precision can gain.

    Shares are of the sum of the medians: on the device's clock if there is one, else on the host's.

    - input: its share is above ``INPUT_BOUND_SHARE``. On a device this is waiting for the batch or copying
      it; the host may wait at no cost as long as the device has work.
    - launch (on a device only): sum of min(host, device) by the sum of device, over forward, backward, clip
      and optimizer, is at least ``LAUNCH_BOUND_SHARE``, and the GPU is not busy as far as NVML knows.
    - compute: otherwise, unless NVML reports less than ``IDLE_GPU_PERCENT``: then the cause is unknown.
      With several ``ranks`` it may be communication as well, which takes as long in any precision.

    The gain is at most 1 / (1 - p) for a share p of the step in forward and backward, if they took no time at
    all (Amdahl's law); input-bound, 1 / (share of the input). It is unknown where the weights are not
    float32. ``about``: the precision in question, if that is not the one that was timed.
    """
    phases, precision, busy = timing.phases, timing.precision, timing.utilization_percent
    if timing.steps < MIN_STEPS or sum(map(seconds_of, phases)) <= 0:
        return never_measured("limit", about, state="too few steps", precision=precision)
    state, numbers = _wait(phases, busy)
    shares = shares_of(phases)
    share = shares["input"] if state == "input" else sum(shares.get(name, 0.0) for name in AMP_PHASES)
    most = 1 / share if state == "input" else 1 / (1 - share) if 1 - share >= LITTLE_REST else None
    if not about and precision in LOW_PRECISIONS:
        about = precision
    is_known = precision not in OTHER_PRECISIONS
    if state == "compute" and ranks > 1:
        state = "communication"
    return Finding(
        subject="limit",
        state=state,
        grade="neutral",
        about=about,
        numbers={
            "step_share": share if is_known or state in ("input", "communication") else None,
            # FP8 has Linear layers only.
            "most": most if is_known and not (about == "fp8" != precision) else None,
            **numbers,
        },
        precision=precision,
    )


def _wait(phases: Sequence[PhaseSeconds], utilization_percent: float | None) -> tuple[str, dict[str, float]]:
    """What steps wait for, and the numbers that show it."""
    waiting, percent = shares_of(phases).get("input", 0.0), utilization_percent
    has_device = all(phase.device_seconds is not None for phase in phases)
    if waiting > INPUT_BOUND_SHARE:
        input_seconds = sum(phase.host_seconds for phase in phases if phase.name == "input")
        return "input", {"waiting": waiting, "input_seconds": input_seconds} if has_device else {}
    if not has_device:
        return "compute", {"waiting": waiting}
    launched = [phase for phase in phases if phase.name != "input"]  # where the host launches kernels
    device_seconds = sum(map(seconds_of, launched))
    kept_up = sum(min(phase.host_seconds, seconds_of(phase)) for phase in launched)
    launching = kept_up / device_seconds if device_seconds else 0.0
    if launching >= LAUNCH_BOUND_SHARE and not (percent is not None and percent >= BUSY_GPU_PERCENT):
        launch_seconds = sum(phase.host_seconds for phase in launched)
        idle = {} if percent is None else {"idle": 1 - percent / 100}
        return "launch", {"launch_seconds": launch_seconds, "device_seconds": device_seconds, **idle}
    if percent is None or math.isnan(percent):
        return "compute", {"device_seconds": device_seconds, "launching": launching}
    if percent < IDLE_GPU_PERCENT:
        return "unknown", {"idle": 1 - percent / 100}
    return "compute", {"busy": percent / 100}


def judge_gain(timing: PrecisionTiming, comparison: Comparison, *, ranks: int = 1) -> Finding:
    """The limit of one of several timings, without a possible gain where AMP or FP8 was slower.

    Whether it was is said by the comparison alone.
    """
    limit = judge_limit(timing, ranks=ranks)
    if timing.precision in LOW_PRECISIONS and timing.precision not in (comparison.baseline, comparison.low):
        comparison = compare(comparison.rows, timing.precision)
    speedup = comparison.speedup
    if speedup is None or speedup >= 1 or timing.precision not in (comparison.baseline, comparison.low):
        return limit
    share = None if limit.state == "compute" else limit.numbers.get("step_share")
    return replace(limit, numbers={**limit.numbers, "step_share": share, "most": None})


def shares_of(phases: Sequence[PhaseSeconds]) -> Mapping[str, float]:
    """The fraction of the step that each part takes, by its name."""
    whole = sum(map(seconds_of, phases))
    return {phase.name: seconds_of(phase) / whole for phase in phases}


def _is_sound(phase: PhaseSeconds) -> bool:
    values = (phase.host_seconds, phase.device_seconds)
    return all(value is None or 0 <= value < math.inf for value in values)


def seconds_of(phase: PhaseSeconds) -> float:
    """On the device's clock if there is one, else on the host's."""
    return phase.host_seconds if phase.device_seconds is None else phase.device_seconds
