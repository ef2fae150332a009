"""Brings numbers from the device to the host without ever waiting for the device.

Each step pushes one row of float32 values. On CUDA the row is copied to pinned memory behind the step's
kernels and an event is recorded after it; ``drain`` delivers the rows whose event has passed. A ring that is
full drops its newest row rather than wait, and says so by delivering None, as it does where the row found
no memory.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Deliver = Callable[[Sequence[float] | None, float | None], object]
"""Takes a row (None: its values were dropped) and the step's seconds (None: not measured)."""

RING_ROWS = 256
"""Steps under way at most before rows are dropped: a host with tiny steps is that far ahead of its looks."""

_SPARE_VALUES = 16
"""Room in a row for values that later steps add, so that the ring is not made anew at once."""


class Readback(Protocol):
    """Where a step leaves its numbers."""

    def begin_interval(self) -> None:
        """The device's clock starts here: the next push measures from this moment, not from the last one."""

    def push(self, values: Sequence[Tensor], deliver: Deliver, *, timed: bool) -> Sequence[float] | None:
        """Send the 0- or 1-dimensional ``values``, concatenated, to ``deliver`` at a later :meth:`drain`.

        ``timed``: the row ends a step, whose seconds are wanted. Returns the row where it is known at once.
        """

    def drain(self) -> None:
        """Deliver what has arrived; never waits."""

    def flush(self) -> None:
        """Deliver everything; waits for the device. For pauses and the run's end."""


def open_readback(device: torch.device, *, clock: Callable[[], float], capacity: int = RING_ROWS) -> Readback:
    """The ring for CUDA, and for a CPU its trivial counterpart timed by ``clock`` (seconds)."""
    if device.type == "cuda":
        return CudaReadback(device, capacity=capacity)
    return HostReadback(clock)


class HostReadback:
    """On a CPU the values are there when the step is; they only wait for the next look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._interval_start = clock()
        self._pending: deque[tuple[Deliver, list[float], float | None]] = deque()

    def begin_interval(self) -> None:
        """See :class:`Readback`."""
        self._interval_start = self._clock()

    def push(self, values: Sequence[Tensor], deliver: Deliver, *, timed: bool) -> list[float]:
        """See :class:`Readback`."""
        row: list[float] = []
        for value in values:  # quicker than one tensor of them, where the host computes anyway
            if value.dim() == 0:
                row.append(value.item())
            else:
                row += value.detach().reshape(-1).tolist()
        seconds = None
        if timed:
            now = self._clock()
            seconds, self._interval_start = now - self._interval_start, now
        self._pending.append((deliver, row, seconds))
        return row

    def drain(self) -> None:
        """See :class:`Readback`."""
        while self._pending:
            deliver, row, seconds = self._pending.popleft()
            deliver(row, seconds)

    def flush(self) -> None:
        """See :class:`Readback`."""
        self.drain()


class _Pending(NamedTuple):
    deliver: Deliver
    slot: int | None
    """None: the ring was full, or no memory was left, and the values were dropped."""
    length: int
    start: torch.cuda.Event | None
    """Where the step's time counts from; None if it is not wanted."""


class CudaReadback:
    """A ring of pinned rows and events; used by the one thread that talks to CUDA.

    A step's time is the device's, from the end of the step before to the end of this one. Its start is
    therefore the event of another slot, and a slot is free again only when the one after it is delivered.
    """

    def __init__(self, device: torch.device, *, capacity: int) -> None:
        self._device = device
        self._capacity = capacity
        self._rows: Tensor | None = None
        self._row_values: Any = None
        """The same memory as a numpy array: reading a row of it takes no torch call."""
        self._slots: dict[int, list[Tensor]] = {}
        """Slices of the ring by their length, cut once."""
        self._ends = [torch.cuda.Event(enable_timing=True) for _ in range(capacity)]
        self._next_slot = 0
        self._pending: deque[_Pending] = deque()
        self._occupied = 0
        self._last_end: torch.cuda.Event | None = None

    def begin_interval(self) -> None:
        """See :class:`Readback`."""
        # An event of its own, not a slot's: gaps (validation, pauses) are rare.
        self._last_end = torch.cuda.Event(enable_timing=True)
        self._last_end.record(self._stream())

    def push(self, values: Sequence[Tensor], deliver: Deliver, *, timed: bool) -> None:
        """See :class:`Readback`."""
        if self._occupied >= self._capacity - 1:
            self._drop(deliver)
            return
        try:
            row = _concatenate(values, self._device)
        except torch.OutOfMemoryError:
            self._drop(deliver)  # a step that was made must not end the run for want of a row
            return
        slot = self._next_slot
        self._next_slot = (slot + 1) % self._capacity
        self._occupied += 1
        # Copy and event go to the stream that computed the values, whichever the loop made current.
        stream = self._stream()
        self._slot(slot, row.numel()).copy_(row, non_blocking=True)
        end = self._ends[slot]
        end.record(stream)
        self._pending.append(_Pending(deliver, slot, row.numel(), self._last_end if timed else None))
        # A slot's event serves as a start only if the next push is its own slot's neighbour in time. What is
        # not timed leaves none: its event would be recorded anew while a later row still counts from it.
        self._last_end = end if timed else None

    def drain(self) -> None:
        """See :class:`Readback`."""
        while self._pending and self._arrived(self._pending[0]):
            self._deliver_next()

    def flush(self) -> None:
        """See :class:`Readback`."""
        self._wait()
        while self._pending:
            self._deliver_next()

    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def _drop(self, deliver: Deliver) -> None:
        self._pending.append(_Pending(deliver, None, 0, None))
        self._last_end = None  # the next step's start was not recorded either

    def _wait(self) -> None:
        """Until the device has done all it was given."""
        # An event's wait, unlike the stream's, is no fault under torch's sync debug mode, with which
        # people look for waits in steps.
        done = torch.cuda.Event()
        done.record(self._stream())
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
        values = self._row_values[pending.slot, : pending.length].tolist()
        self._occupied -= 1
        pending.deliver(values, seconds)

    def _slot(self, slot: int, length: int) -> Tensor:
        """The pinned memory of a slot; the ring is made anew for rows longer than there is room for."""
        if self._rows is None or self._rows.shape[1] < length:
            self._lengthen(length + _SPARE_VALUES)
        slices = self._slots.get(length)
        if slices is None:
            assert self._rows is not None, "made above"
            slices = self._slots[length] = list(self._rows[:, :length].unbind())
        return slices[slot]

    def _lengthen(self, room: int) -> None:
        shape = self._capacity, room
        longer = torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=True)
        if self._rows is not None:
            self._wait()  # for what is on its way to the old ring
            longer[:, : self._rows.shape[1]] = self._rows
        self._rows, self._row_values, self._slots = longer, longer.numpy(), {}


def _concatenate(values: Sequence[Tensor], device: torch.device) -> Tensor:
    """One float32 row on ``device``; nothing at all is an empty row. A value on the host is sent along."""
    if len(values) == 1 and values[0].is_cuda and values[0].dtype is torch.float32:
        return values[0].detach().reshape(-1)
    if not values:
        return torch.empty(0, device=device)
    return torch.cat([_on_device(value, device) for value in values])


def _on_device(value: Tensor, device: torch.device) -> Tensor:
    flat = value.detach().reshape(-1).float()
    if flat.device == device:
        return flat
    if flat.is_cuda:
        return flat.to(device, non_blocking=True)
    # A metric that was computed on the host: from pinned memory the copy waits for nothing.
    return flat.pin_memory().to(device, non_blocking=True)
