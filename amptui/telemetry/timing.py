"""Where the time of each precision's steps goes, and what they wait for."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.run import PRECISION_ORDER, is_emulated
from amptui.telemetry.comparison import IDLE_GPU_PERCENT, INPUT_BOUND_SHARE, median
from amptui.telemetry.view import Bound, Comparison, PrecisionTiming

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

PhaseName = Literal["input", "forward", "backward", "clip", "optimizer"]

_ORDER: tuple[PhaseName, ...] = ("input", "forward", "backward", "clip", "optimizer")


@dataclass(slots=True, eq=False)
class TimingWatch:
    """Medians over the newest timed steps of each precision, without warm-up."""

    _accounts: dict[str, "_Account"] = field(default_factory=dict)
    _timings: tuple[Comparison, tuple[PrecisionTiming, ...]] | None = field(default=None, init=False)

    def add(self, record: StepTimed) -> None:
        """Add a timed step; warm-up steps and those with invalid durations are left out."""
        if record.settling or not record.phases or not all(map(_is_sound, record.phases)):
            return
        self._timings = None
        self._accounts.setdefault(record.precision, _Account()).add(record)

    def timings(self, comparison: Comparison) -> tuple[PrecisionTiming, ...]:
        """In the order of ``PRECISION_ORDER``; ``comparison`` knows how busy the GPU was."""
        if self._timings is None or self._timings[0] is not comparison:
            busy = {row.precision: row.utilization_percent for row in comparison.rows}
            order = {name: place for place, name in enumerate(PRECISION_ORDER)}
            names = sorted(self._accounts, key=lambda name: order.get(name, len(order)))
            self._timings = (
                comparison,
                tuple(
                    judged_timing(
                        name,
                        self._accounts[name].medians(),
                        steps=self._accounts[name].steps,
                        utilization_percent=busy.get(name),
                    )
                    for name in names
                ),
            )
        return self._timings[1]


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
    """What the medians of ``steps`` timed steps wait for; nothing yet if there are too few.

    Shares are of the sum of the medians: on the device's clock if there is one, else on the host's.

    - input: its share is above ``INPUT_BOUND_SHARE``. On a device this is waiting for the batch or copying
      it; the host may wait at no cost as long as the device has work.
    - launch (on a device only): sum of min(host, device) by the sum of device, over forward, backward, clip
      and optimizer, is at least ``LAUNCH_BOUND_SHARE``, and the GPU is not busy as far as NVML knows.
    - compute: otherwise, unless NVML reports less than ``IDLE_GPU_PERCENT``: then the cause is unknown.

    Nothing for emulated steps, which take the time of other operations.
    """
    enough = steps >= MIN_STEPS and sum(map(seconds_of, phases)) > 0 and not is_emulated(precision)
    percent = math.nan if utilization_percent is None else utilization_percent
    is_busy = percent >= BUSY_GPU_PERCENT
    bound: Bound = ""
    if enough and shares_of(phases).get("input", 0.0) > INPUT_BOUND_SHARE:
        bound = "input"
    elif enough and on_device(phases) and kept_up(phases) >= LAUNCH_BOUND_SHARE and not is_busy:
        bound = "launch"
    elif enough:
        bound = "unknown" if on_device(phases) and percent < IDLE_GPU_PERCENT else "compute"
    return PrecisionTiming(
        precision=precision, steps=steps, phases=phases, bound=bound, utilization_percent=utilization_percent
    )


def shares_of(phases: Sequence[PhaseSeconds]) -> Mapping[str, float]:
    """The fraction of the step that each part takes, by its name."""
    whole = sum(map(seconds_of, phases))
    return {phase.name: seconds_of(phase) / whole for phase in phases}


def _is_sound(phase: PhaseSeconds) -> bool:
    values = (phase.host_seconds, phase.device_seconds)
    return all(value is None or 0 <= value < math.inf for value in values)


def on_device(phases: Iterable[PhaseSeconds]) -> bool:
    """Whether all parts were timed on the device's clock too."""
    return all(phase.device_seconds is not None for phase in phases)


def seconds_of(phase: PhaseSeconds) -> float:
    """On the device's clock if there is one, else on the host's."""
    return phase.host_seconds if phase.device_seconds is None else phase.device_seconds


def enqueued(phases: Sequence[PhaseSeconds]) -> list[PhaseSeconds]:
    """The parts in which the host launches kernels and the device runs them."""
    return [phase for phase in phases if phase.name != "input"]


def kept_up(phases: Sequence[PhaseSeconds]) -> float:
    """The share of the device's time that the host took too, part by part; 0 if there is none."""
    parts = enqueued(phases)
    whole = sum(map(seconds_of, parts))
    return sum(min(phase.host_seconds, seconds_of(phase)) for phase in parts) / whole if whole else 0.0
