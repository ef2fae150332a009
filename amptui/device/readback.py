"""Brings numbers from the device to the host without ever waiting for the device.

Each step pushes one row of float32 values. On a GPU the row is copied to pinned memory behind the step's
kernels and an event is recorded after it; ``drain`` delivers the rows whose event has passed. If the ring is
full, or there is no memory for the row, the row is dropped and None is delivered instead.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amptui.device.accelerator import capabilities

Deliver = Callable[[Sequence[float] | None, float | None], object]
"""Takes a row (None if it was dropped) and the step's seconds (None if they were not measured)."""

Delivered = tuple[Any, Sequence[float] | None, float | None]
"""What was pushed with a row, the row, and its seconds."""

DeliverSteps = Callable[[list[Delivered]], object]
"""Takes the steps that have arrived, oldest first, at least one."""

RING_ROWS = 1024
"""Rows in flight before new ones are dropped: how many steps the host may be ahead of the last drain."""

LOOK_INTERVAL_SECONDS = 0.48
"""Two looks a second, as often as a screen draws. A look costs mostly because its code is not in a cache."""

MAX_STEPS_BETWEEN_LOOKS = 256
"""A quarter of ``RING_ROWS``: the ring is drained before it can fill up and drop the rows of tiny steps."""

MAX_SCALED_STEPS_BETWEEN_LOOKS = 64
"""The same in float16, where every step may halve the loss scale. The guard has to act between
``MIN_LOSS_SCALE`` and 0, which is 126 halvings lower: with a scale of 0 a step makes the weights NaN."""

_SPARE_VALUES = 16
"""Extra values per row, so that the ring is not reallocated when a later step adds a few."""


def _deliver(arrived: Iterable[Delivered], deliver_steps: DeliverSteps) -> None:
    """Deliver rows in order: steps together with those around them, any other to what was pushed with it."""
    steps: list[Delivered] = []
    try:
        for facts, row, seconds in arrived:
            if not callable(facts):
                steps.append((facts, row, seconds))
                continue
            earlier, steps = steps, []
            if earlier:
                deliver_steps(earlier)
            facts(row, seconds)
    finally:
        if steps:
            deliver_steps(steps)


class HostReadback:
    """Takes a step's tensors and delivers their values later: on a CPU, where a row is known at once."""

    def __init__(self, clock: Callable[[], float], deliver_steps: DeliverSteps = list) -> None:
        self._clock = clock
        self._deliver_steps = deliver_steps
        self._interval_start = clock()
        self._arrived: deque[Delivered] = deque()

    def begin_interval(self) -> None:
        """Measure the next timed row from this moment instead of from the previous row."""
        self._interval_start = self._clock()

    def push(self, values: Sequence[Tensor | float], facts: Deliver | object, *, timed: bool) -> list[float]:
        """Deliver numbers and tensors of 0 or 1 dimension, in a row, at a later :meth:`drain`.

        They go to ``facts`` if that can be called; else it is a step, which is delivered with those around
        it. ``timed``: the row ends a step and its seconds are measured. Returns the row if it is known
        already.
        """
        row: list[float] = []
        for value in values:  # faster than concatenating them first
            if isinstance(value, float):
                row.append(value)
            elif value.dim() == 0:
                row.append(value.item())
            else:
                row += value.detach().reshape(-1).tolist()
        seconds = None
        if timed:
            now = self._clock()
            seconds, self._interval_start = now - self._interval_start, now
        self._arrived.append((facts, row, seconds))
        return row

    def drain(self) -> None:
        """Deliver what has arrived; never waits. :meth:`flush` waits, and delivers everything."""
        arrived = self._arrived
        _deliver(iter(lambda: arrived.popleft() if arrived else None, None), self._deliver_steps)

    flush = drain


class _Pending(NamedTuple):
    facts: object
    slot: int | None
    """None: the row was dropped."""
    length: int
    start: torch.Event | None
    """Where the step's time starts; None if it is not measured."""


class DeviceReadback:
    """A ring of rows in pinned memory, with an event for each; used by the one thread that uses the device.

    A step's time is the device's, from the event that ended the previous step to its own event. The previous
    event belongs to another slot, so a slot is free again only when the row after it has been delivered.
    """

    def __init__(self, device: torch.device, *, capacity: int, deliver_steps: DeliverSteps = list) -> None:
        self._device = device
        self._deliver_steps = deliver_steps
        self._capacity = capacity
        self._rows: Tensor | None = None
        self._row_values: Any = None
        """The same memory as a numpy array, to read a row without a torch call."""
        self._slots: dict[int, list[Tensor]] = {}
        """The ring's slots, cut to each length of a row that was needed so far."""
        self._ends = [self._new_event() for _ in range(capacity)]
        self._next_slot = 0
        self._pending: deque[_Pending] = deque()
        self._occupied = 0
        self._last_end: torch.Event | None = None

    def begin_interval(self) -> None:
        # A new event, not a slot's: intervals (validation, pauses) are rare.
        self._last_end = self._new_event()
        self._last_end.record(self._stream())

    def push(self, values: Sequence[Tensor | float], facts: Deliver | object, *, timed: bool) -> None:
        if self._occupied >= self._capacity - 1:
            self._drop(facts)
            return
        try:
            row = self._row_of(values)
        except torch.OutOfMemoryError:
            self._drop(facts)  # the step itself succeeded: a missing row must not end the run
            return
        slot = self._next_slot
        self._next_slot = (slot + 1) % self._capacity
        self._occupied += 1
        # Copy and record on the stream that computed the values: the current one.
        stream = self._stream()
        self._slot(slot, row.numel()).copy_(row, non_blocking=True)
        end = self._ends[slot]
        end.record(stream)
        start = self._last_end if timed else None
        self._pending.append(_Pending(facts, slot, row.numel(), start))
        # A timed row may start only at the event of the slot before its own: any other could be recorded
        # again before the row has been delivered. So an untimed row leaves no start.
        self._last_end = end if timed else None

    def drain(self) -> None:
        _deliver(self._arrived(), self._deliver_steps)

    def flush(self) -> None:
        self._wait()
        _deliver(self._arrived(is_sure=True), self._deliver_steps)

    def _arrived(self, *, is_sure: bool = False) -> Iterator[Delivered]:
        """What the device has finished, or all of it if that ``is_sure``; frees the slots."""
        while self._pending:
            facts, slot, length, start = self._pending[0]
            if slot is None:
                self._pending.popleft()
                yield facts, None, None
                continue
            if not (is_sure or self._ends[slot].query()):
                break
            self._pending.popleft()
            seconds = None if start is None else start.elapsed_time(self._ends[slot]) / 1000
            self._occupied -= 1
            yield facts, self._row_values[slot, :length].tolist(), seconds

    def _new_event(self) -> torch.Event:
        return torch.Event(self._device, enable_timing=True)

    def _stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self._device.index)

    def _drop(self, facts: object) -> None:
        self._pending.append(_Pending(facts, None, 0, None))
        self._last_end = None  # the next step's start was not recorded either

    def _wait(self) -> None:
        """Wait until the device has finished all work in the stream."""
        # Unlike a stream's synchronize(), an event's is no error in torch's sync debug mode.
        event = torch.Event(self._device, enable_timing=False)
        event.record(self._stream())
        event.synchronize()

    def _slot(self, slot: int, length: int) -> Tensor:
        """The pinned memory of a slot; reallocates the ring if its rows are shorter than ``length``."""
        rows = self._rows
        if rows is None or rows.shape[1] < length:
            shape = self._capacity, length + _SPARE_VALUES
            longer = torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=True)
            if rows is not None:
                self._wait()  # copies to the old ring may be in flight
                longer[:, : rows.shape[1]] = rows
            self._rows, self._row_values, self._slots = longer, longer.numpy(), {}
            rows = longer
        slices = self._slots.get(length)
        if slices is None:
            slices = self._slots[length] = list(rows[:, :length].unbind())
        return slices[slot]

    def _row_of(self, numbers: Sequence[Tensor | float]) -> Tensor:
        """One float32 row on the device, empty without numbers; those on the host are copied there."""
        # In float32 whatever the script's default is: in 16 bits a loss would be rounded.
        values = [
            one if isinstance(one, Tensor) else torch.tensor(one, dtype=torch.float32, device="cpu")
            for one in numbers
        ]
        if len(values) == 1 and not values[0].is_cpu and values[0].dtype is torch.float32:
            return values[0].detach().reshape(-1)
        if not values:
            return torch.empty(0, device=self._device)
        row = [value.detach().reshape(-1).float() for value in values]
        for index, value in enumerate(row):
            if value.device != self._device:
                # A metric may be computed on the host: a copy from pinned memory does not wait.
                movable = value.pin_memory() if value.is_cpu else value
                row[index] = movable.to(self._device, non_blocking=True)
        return torch.cat(row)


Readback = HostReadback | DeviceReadback


def open_readback(
    device: torch.device,
    *,
    clock: Callable[[], float],
    capacity: int = RING_ROWS,
    deliver_steps: DeliverSteps = list,
) -> Readback:
    """A ring of ``capacity`` rows where there are timed events; else a queue timed by ``clock`` (seconds).

    ``deliver_steps`` gets the rows of steps.
    """
    if capabilities(device).timed_events:
        return DeviceReadback(device, capacity=capacity, deliver_steps=deliver_steps)
    return HostReadback(clock, deliver_steps)
