"""Device numbers on the host without ever waiting for the device.

Each step pushes one row of float32 values. On CUDA the row is copied to pinned memory behind the step's
kernels and an event is recorded; at later step boundaries the rows whose event has passed are delivered,
in order. A full ring drops the row and says so by delivering None: a missing number, not a stalled step.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Deliver = Callable[[Sequence[float] | None, float | None], None]
"""Takes the row's values (None if they were dropped) and the step's seconds (None if not measured)."""

_SPARE_VALUES = 16
"""More than the first row needs: a loss scale may come with a switch, metrics with a validation, and a ring
that grows makes the host wait once."""


class Readback(Protocol):
    """The way from device scalars to Python floats."""

    def begin_interval(self) -> None:
        """The device's clock starts here: the next push measures from this moment, not from the last one."""

    def push(self, values: Sequence[Tensor], deliver: Deliver, *, timed: bool) -> None:
        """Send the 0- or 1-dimensional ``values``, concatenated, to ``deliver`` as soon as they are there.

        ``timed``: the row ends a step, whose seconds are wanted.
        """

    def drain(self) -> None:
        """Deliver what has arrived; never waits."""

    def flush(self) -> None:
        """Deliver everything; waits for the device. For pauses and the run's end."""


def open_readback(device: torch.device, *, clock: Callable[[], float], capacity: int = 64) -> Readback:
    """The ring for CUDA, and for a CPU its trivial counterpart timed by ``clock`` (seconds)."""
    if device.type == "cuda":
        return CudaReadback(device, capacity=capacity)
    return HostReadback(clock)


class HostReadback:
    """On a CPU the values are there when the step is: they are delivered at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._interval_start = clock()

    def begin_interval(self) -> None:
        """See :class:`Readback`."""
        self._interval_start = self._clock()

    def push(self, values: Sequence[Tensor], deliver: Deliver, *, timed: bool) -> None:
        """See :class:`Readback`."""
        row: list[float] = []
        for value in values:  # quicker than one tensor of them, where the host computes anyway
            row += [value.item()] if value.dim() == 0 else value.detach().reshape(-1).tolist()
        seconds = None
        if timed:
            now = self._clock()
            seconds, self._interval_start = now - self._interval_start, now
        deliver(row, seconds)

    def drain(self) -> None:
        """See :class:`Readback`."""

    def flush(self) -> None:
        """See :class:`Readback`."""


@dataclass(frozen=True, slots=True)
class _Pending:
    deliver: Deliver
    slot: int | None
    """None: the ring was full and the values were dropped."""
    length: int
    start: torch.cuda.Event | None
    """Where the step's time counts from; None if it is not wanted."""


class CudaReadback:
    """A ring of pinned rows and events; used by the one thread that talks to CUDA.

    A step's time is the device's, from the end of the step before to the end of this one. Its start is
    therefore the event of another slot, and a slot is free again only when the one after it is delivered.
    """

    def __init__(self, device: torch.device, *, capacity: int) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._capacity = capacity
        self._rows: Tensor | None = None
        self._ends = [torch.cuda.Event(enable_timing=True) for _ in range(capacity)]
        self._next_slot = 0
        self._pending: deque[_Pending] = deque()
        self._occupied = 0
        self._last_end: torch.cuda.Event | None = None

    def begin_interval(self) -> None:
        """See :class:`Readback`."""
        # An event of its own, not a slot's: gaps (validation, pauses) are rare.
        self._last_end = torch.cuda.Event(enable_timing=True)
        self._last_end.record(self._stream)

    def push(self, values: Sequence[Tensor], deliver: Deliver, *, timed: bool) -> None:
        """See :class:`Readback`."""
        if self._occupied >= self._capacity - 1:
            self._pending.append(_Pending(deliver, None, 0, None))
            self._last_end = None  # the next step's start was not recorded either
            return
        row = _concatenate(values)
        slot = self._next_slot
        self._next_slot = (slot + 1) % self._capacity
        self._occupied += 1
        self._row(slot, len(row)).copy_(row, non_blocking=True)
        end = self._ends[slot]
        end.record(self._stream)
        self._pending.append(_Pending(deliver, slot, len(row), self._last_end if timed else None))
        if timed:
            self._last_end = end

    def drain(self) -> None:
        """See :class:`Readback`."""
        while self._pending and self._arrived(self._pending[0]):
            self._deliver_next()

    def flush(self) -> None:
        """See :class:`Readback`."""
        self._wait()
        while self._pending:
            self._deliver_next()

    def _wait(self) -> None:
        """Until the device has done all it was given."""
        # An event's wait, unlike the stream's, is no fault under torch's sync debug mode, with which
        # people look for waits in steps.
        done = torch.cuda.Event()
        done.record(self._stream)
        done.synchronize()

    def _arrived(self, pending: _Pending) -> bool:
        return pending.slot is None or self._ends[pending.slot].query()

    def _deliver_next(self) -> None:
        pending = self._pending.popleft()
        if pending.slot is None:
            pending.deliver(None, None)
            return
        seconds = None
        if pending.start is not None:
            seconds = pending.start.elapsed_time(self._ends[pending.slot]) / 1000
        values = self._row(pending.slot, pending.length).tolist()
        self._occupied -= 1
        pending.deliver(values, seconds)

    def _row(self, slot: int, length: int) -> Tensor:
        """The pinned memory of a slot; the ring is made anew for rows longer than there is room for."""
        if self._rows is None or self._rows.shape[1] < length:
            room = length + _SPARE_VALUES
            longer = torch.empty((self._capacity, room), dtype=torch.float32, pin_memory=True)
            if self._rows is not None:
                self._wait()  # for what is on its way to the old ring
                longer[:, : self._rows.shape[1]] = self._rows
            self._rows = longer
        return self._rows[slot, :length]


def _concatenate(values: Sequence[Tensor]) -> Tensor:
    """One float32 row on the values' device; nothing at all is an empty row."""
    if not values:
        return torch.empty(0)
    return torch.cat([value.detach().reshape(-1).float() for value in values])
