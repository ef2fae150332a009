"""Where a step's time goes: marks between its parts, on the host's clock and as CUDA events, in a few steps.

The host's clock tells what enqueuing a part took, an event when the device had done it. The device passes an
event after all work enqueued before it, so that the time between two of them is the part's work and whatever
the device waited for meanwhile.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch

from amptui.engine.probes.budget import TIMELINE_BUDGET, Cadence
from amptui.findings import PhaseSeconds, StepTimed

PhaseName = Literal["input", "forward", "backward", "clip", "optimizer"]

LONGEST_GAP_SECONDS = 0.2
"""A step is timed at least this often, or every step. So rarely only where the interpreter's lock is waited
for within marks: they themselves cost microseconds."""

RECORD_SECONDS = 20e-6
"""What becomes of a record in another thread, under the same lock: to encode it takes 15 us, to fold, write
and forget it a few more (measured on a 2-core server)."""

STRAY_SECONDS = 1e-3
"""From a boundary to the step's begin the loop only asks for the batch, of which it knows how long that took.
Where more time than this lies between besides, something else ran, which is no input of the step."""


class DeviceEvent(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> None:
        """Enqueue the event behind the device's work."""

    def query(self) -> bool:
        """Whether the device has passed it; never waits."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to ``end_event``, both passed."""


class StepTimer:
    """Marks between the parts of a step; one step at a time is timed, and its events are used again.

    Call ``drain`` as the last thing before the batch is asked for, ``begin`` when it is there, and ``mark``
    when a part ends; the step is told once ``optimizer`` was marked. Of a step in which a part was marked
    twice, one that failed and ran again, nothing is told. Nothing here waits for the device but ``flush``.
    """

    def __init__(
        self,
        device: torch.device,
        emit: Callable[[StepTimed], object],
        *,
        clock: Callable[[], float] = time.perf_counter,
        new_event: Callable[[], DeviceEvent] | None = None,
    ) -> None:
        self._emit = emit
        self._clock = clock
        if new_event is None and device.type == "cuda":
            new_event = _new_cuda_event
        self._events = None if new_event is None else _EventList(new_event)
        self._cadence = Cadence(TIMELINE_BUDGET, clock=clock)
        self._armed_at: float | None = None
        self._open: _Marks | None = None
        """Of the step that is timed now."""
        self._closed: _Marks | None = None
        """Of the step whose events the device may not have passed yet."""

    @property
    def armed(self) -> bool:
        """Whether the next step is to be timed."""
        return self._armed_at is not None

    def begin(self, step: int, precision: str, settling: bool, data_seconds: float) -> None:
        """A step begins, whose batch was waited for ``data_seconds``; it is timed if it is its turn."""
        if self._open is not None:
            self._abandon()
        armed_at, self._armed_at = self._armed_at, None
        if armed_at is None:
            return
        began = self._clock()
        if self._events is not None and began - armed_at - data_seconds > STRAY_SECONDS:
            return
        self._cadence.begin()
        self._open = _Marks(step, precision, settling, data_seconds, began)

    def mark(self, name: PhaseName) -> None:
        """The part just ended; of ``input`` the host's seconds are those that ``begin`` was told."""
        marks = self._open
        if marks is not None:
            self._mark(marks, name)

    def leave_out(self) -> None:
        """What ran since the last mark is no part of the step: a measurement of ours."""
        marks = self._open
        if marks is not None:
            self._mark(marks, None)

    def drain(self) -> None:
        """Tell of a timed step if the device is done with it, and see whether the next one is to be timed."""
        marks = self._closed
        if marks is not None and (self._events is None or self._events.passed()):
            self._tell(marks)
        self._armed_at = None
        if self._cadence.due():
            if self._events is not None:
                self._events.restart()
            self._armed_at = self._clock()

    def flush(self) -> None:
        """Tell of the step that is on its way; waits for the device."""
        marks = self._closed
        if marks is not None:
            if self._events is not None:
                self._events.wait()
            self._tell(marks)
        self._armed_at = None

    def _mark(self, marks: "_Marks", name: PhaseName | None) -> None:
        now = self._clock()
        if name is not None and name in marks.names:
            self._abandon()
            return
        marks.names.append(name)
        marks.host_seconds.append(marks.data_seconds if name == "input" else now - marks.resumed)
        if self._events is not None:
            self._events.record()
        if name == "optimizer":
            self._open, self._closed = None, marks
        marks.resumed = self._clock()
        marks.own_seconds += marks.resumed - now

    def _abandon(self) -> None:
        self._open = None
        self._cadence.charge(None)

    def _tell(self, marks: "_Marks") -> None:
        self._closed = None
        began = self._clock()
        device_seconds: list[float] | list[None] = [None] * len(marks.names)
        if self._events is not None:
            device_seconds = self._events.seconds()
        phases = tuple(
            PhaseSeconds(name=name, host_seconds=host, device_seconds=device)
            for name, host, device in zip(marks.names, marks.host_seconds, device_seconds, strict=True)
            if name is not None
        )
        self._emit(
            StepTimed(
                time=time.time(),
                step=marks.step,
                precision=marks.precision,
                settling=marks.settling,
                phases=phases,
            )
        )
        cost_seconds = marks.own_seconds + self._clock() - began + RECORD_SECONDS
        self._cadence.charge(min(cost_seconds, TIMELINE_BUDGET * LONGEST_GAP_SECONDS))


@dataclass(slots=True)
class _Marks:
    """What the host saw of one step."""

    step: int
    precision: str
    settling: bool
    data_seconds: float
    resumed: float
    """When the part that runs now began."""
    names: list[PhaseName | None] = field(default_factory=list)
    """None for what was left out."""
    host_seconds: list[float] = field(default_factory=list)
    own_seconds: float = 0.0
    """What the marks cost."""


class _EventList:
    """Events in the order of the marks, made in the first timed steps and used again in all others."""

    def __init__(self, new_event: Callable[[], DeviceEvent]) -> None:
        self._new_event = new_event
        self._events: list[DeviceEvent] = []
        self._used = 0

    def restart(self) -> None:
        """Record the first event: where the device stands before the input."""
        self._used = 0
        self.record()

    def record(self) -> None:
        """Record the next one."""
        if self._used == len(self._events):
            self._events.append(self._new_event())
        self._events[self._used].record()
        self._used += 1

    def passed(self) -> bool:
        """Whether the device has passed all that were recorded."""
        return self._events[self._used - 1].query()

    def wait(self) -> None:
        """Until it has."""
        # An event's wait, unlike the stream's, is no fault under torch's sync debug mode.
        self._events[self._used - 1].synchronize()

    def seconds(self) -> list[float]:
        """From each event to the next."""
        return [a.elapsed_time(b) / 1000 for a, b in pairwise(self._events[: self._used])]


def _new_cuda_event() -> DeviceEvent:
    event: DeviceEvent = torch.cuda.Event(enable_timing=True)
    return event
