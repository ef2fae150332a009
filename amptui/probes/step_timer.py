"""Times the phases of a few steps, on the host's clock and with events of the device.

The host's clock says how long it took to enqueue a phase, the events how long the device took. The device
passes an event after all work that was enqueued before it: the time between two events is the phase's work,
and any wait for the host in between.

It is no :class:`Probe`: it measures no phase, but where one ends, which only the loop that makes the step can
mark.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from amptui.device.accelerator import capabilities
from amptui.probes.probe import TIMELINE_BUDGET, Cadence
from amptui.records.findings import PhaseName, PhaseSeconds, StepTimed

LONGEST_GAP_SECONDS = 0.2
"""Steps are timed at least this often. Marks cost microseconds, but one may wait for the interpreter's lock:
the budget alone would then put off the next timed step for long."""

RECORD_SECONDS = 20e-6
"""What a record costs other threads, which hold the same lock: 15 us to encode it, a few to fold and write it
(measured on a 2-core server)."""

STRAY_SECONDS = 1e-3
"""Between ``drain`` and ``begin`` the loop only fetches the batch, and knows how long that took. If more than
this passes besides, other code ran, whose device work is not part of the step's input: the step is not
timed."""


class StepTimer:
    """Times the phases of one step at a time, as often as ``TIMELINE_BUDGET`` allows.

    Call ``drain`` last before the batch is fetched, ``begin`` when it is there, and ``mark`` when a phase
    ends; the step is reported after ``optimizer`` was marked. A phase that is marked several times, in a
    step of several batches, is summed. A step that failed and ran again is not reported. Only ``flush`` waits
    for the device.
    """

    def __init__(self, device: torch.device, emit: Callable[[StepTimed], object]) -> None:
        self._device = device
        self._emit = emit
        self._has_events = capabilities(device).timed_events
        """Else the host alone is timed."""
        self._events: list[torch.Event] = []
        """Those of the timed step, in order; created as needed and reused."""
        self._used_events = 0
        self._cadence = Cadence(TIMELINE_BUDGET)
        self._armed_at: float | None = None
        self._open: _Marks | None = None
        """Of the step that is being timed."""
        self._closed: _Marks | None = None
        """Of the last timed step, until the device has passed its events."""

    @property
    def armed(self) -> bool:
        """Whether the next step is to be timed."""
        return self._armed_at is not None

    def begin(self, step: int, precision: str, settling: bool, data_seconds: float) -> None:
        """Begin a step that waited ``data_seconds`` for its batch; it is timed if :attr:`armed`."""
        if self._open is not None:
            self._abandon()
        armed_at, self._armed_at = self._armed_at, None
        if armed_at is None:
            return
        began = time.perf_counter()
        if self._has_events and began - armed_at - data_seconds > STRAY_SECONDS:
            return
        self._cadence.begin()
        self._open = _Marks(step, precision, settling, data_seconds, began)

    def begin_attempt(self) -> None:
        """The step's computation begins; if it began before, and failed, the step is not reported."""
        if self._open is not None and len(self._open.names) > 1:
            self._abandon()

    def mark(self, name: PhaseName | None) -> None:
        """A phase ended; None leaves out what ran since the last mark: our own measurements.

        The host's seconds of ``input`` are the ``data_seconds`` of :meth:`begin`.
        """
        marks = self._open
        if marks is None:
            return
        now = time.perf_counter()
        marks.names.append(name)
        marks.host_seconds.append(marks.data_seconds if name == "input" else now - marks.resumed)
        self._record_event()
        if name == "optimizer":
            self._open, self._closed = None, marks
        marks.resumed = time.perf_counter()
        marks.own_seconds += marks.resumed - now

    def drain(self) -> None:
        """Report a timed step if the device has finished it; arm the timer if the next step is due."""
        marks = self._closed
        if marks is not None and (not self._has_events or self._events[self._used_events - 1].query()):
            self._report(marks)
        self._armed_at = None
        if self._cadence.due():
            self._used_events = 0
            self._record_event()  # before the input
            self._armed_at = time.perf_counter()

    def flush(self) -> None:
        """Report the step in flight; waits for the device."""
        marks = self._closed
        if marks is not None:
            if self._has_events:
                # Unlike a stream's synchronize(), an event's is no error in torch's sync debug mode.
                self._events[self._used_events - 1].synchronize()
            self._report(marks)
        self._armed_at = None

    def _abandon(self) -> None:
        self._open = None
        self._cadence.charge(None)

    def _report(self, marks: "_Marks") -> None:
        self._closed = None
        began = time.perf_counter()
        between = pairwise(self._events[: self._used_events])
        device_seconds = [before.elapsed_time(after) / 1000 for before, after in between]
        phases: dict[PhaseName, PhaseSeconds] = {}
        for number, name in enumerate(marks.names):
            if name is not None:  # the seconds of several batches are summed
                host, device = marks.host_seconds[number], device_seconds[number] if device_seconds else None
                if before := phases.get(name):
                    host += before.host_seconds
                    device = None if device is None else device + (before.device_seconds or 0.0)
                phases[name] = PhaseSeconds(name=name, host_seconds=host, device_seconds=device)
        self._emit(
            StepTimed(
                time=time.time(),
                step=marks.step,
                precision=marks.precision,
                settling=marks.settling,
                phases=tuple(phases.values()),
            )
        )
        cost_seconds = marks.own_seconds + time.perf_counter() - began + RECORD_SECONDS
        self._cadence.charge(min(cost_seconds, TIMELINE_BUDGET * LONGEST_GAP_SECONDS))

    def _record_event(self) -> None:
        if not self._has_events:
            return
        if self._used_events == len(self._events):
            self._events.append(torch.Event(self._device, enable_timing=True))
        self._events[self._used_events].record()
        self._used_events += 1


@dataclass(slots=True)
class _Marks:
    """What the host measured in one step."""

    step: int
    precision: str
    settling: bool
    data_seconds: float
    resumed: float
    """When the current phase began."""
    names: list[PhaseName | None] = field(default_factory=list)
    """None for what is left out."""
    host_seconds: list[float] = field(default_factory=list)
    own_seconds: float = 0.0
    """The cost of the marks."""
