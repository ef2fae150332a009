"""Brings numbers from the device to the host without ever waiting for the device.

Each step pushes one row of float32 values. On a GPU the row is copied to pinned memory behind the step's
kernels and an event is recorded after it; ``drain`` delivers the rows whose event has passed. If the ring is
full, or there is no memory for the row, the row is dropped and None is delivered instead.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amptui.device.accelerator import capabilities

Deliver = Callable[[Sequence[float] | None, float | None], object]
"""Takes a row (None if it was dropped) and the step's seconds (None if they were not measured)."""

Delivered = tuple[Any, Sequence[float] | None, float | None]
"""A step as it was pushed, its row, and its seconds."""

DeliverSteps = Callable[[list[Delivered]], object]
"""Takes the steps that have arrived, oldest first, at least one."""

RING_ROWS = 1024
"""Rows in flight before new ones are dropped: how many steps the host may be ahead of the last drain."""

LOOK_INTERVAL_SECONDS = 0.24
"""Four looks a second, as often as a screen draws. A look costs mostly because its code is not in a cache."""

MAX_STEPS_BETWEEN_LOOKS = 256
"""A quarter of ``RING_ROWS``: the ring is drained before it can fill up and drop the rows of tiny steps."""

MAX_SCALED_STEPS_BETWEEN_LOOKS = 64
"""The same in float16, where every step may halve the loss scale. The guard has to act between
``MIN_LOSS_SCALE`` and 0, which is 126 halvings lower: with a scale of 0 a step makes the weights NaN."""

_SPARE_VALUES = 16
"""Extra values per row, so that the ring is not reallocated when a later step adds a few."""


class HostReadback:
    """Takes a step's tensors and delivers their values later: on a CPU, where a row is known at once."""

    def __init__(self, clock: Callable[[], float], deliver_steps: DeliverSteps = list) -> None:
        self._clock = clock
        self._deliver_steps = deliver_steps
        self._interval_start = clock()
        self._steps: list[Delivered] = []
        """The steps since the last other push."""
        self._before: deque[tuple[list[Delivered], Deliver, list[float], float | None]] = deque()
        """The other pushes, each with the steps that came before it."""

    def begin_interval(self) -> None:
        """Measure the next timed row from this moment instead of from the previous row."""
        self._interval_start = self._clock()

    def push(self, values: Sequence[Tensor | float], deliver: Deliver, *, timed: bool) -> list[float]:
        """Pass numbers and tensors of 0 or 1 dimension, in a row, to ``deliver`` at a later :meth:`drain`.

        ``timed``: the row ends a step and its seconds are measured. Returns the row if it is known already.
        """
        row = self.push_step(values, None, timed=timed)
        _, _, seconds = self._steps.pop()
        steps, self._steps = self._steps, []
        self._before.append((steps, deliver, row, seconds))
        return row

    def push_step(self, values: Sequence[Tensor | float], facts: object, *, timed: bool) -> list[float]:
        """The same for the row of a step, which is delivered together with those around it."""
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
        self._steps.append((facts, row, seconds))
        return row

    def drain(self) -> None:
        """Deliver what has arrived; never waits. :meth:`flush` waits, and delivers everything."""
        while self._before:
            steps, deliver, row, seconds = self._before.popleft()
            if steps:
                self._deliver_steps(steps)
            deliver(row, seconds)
        steps, self._steps = self._steps, []
        if steps:
            self._deliver_steps(steps)

    flush = drain


class _Pending(NamedTuple):
    deliver: Deliver | None
    """None for a step, which has ``facts``."""
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

    def push(self, values: Sequence[Tensor | float], deliver: Deliver, *, timed: bool) -> None:
        self.push_step(values, None, timed=timed, deliver=deliver)

    def push_step(
        self, values: Sequence[Tensor | float], facts: object, *, timed: bool, deliver: Deliver | None = None
    ) -> None:
        if self._occupied >= self._capacity - 1:
            self._drop(deliver, facts)
            return
        try:
            row = self._row_of(values)
        except torch.OutOfMemoryError:
            self._drop(deliver, facts)  # the step itself succeeded: a missing row must not end the run
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
        self._pending.append(_Pending(deliver, facts, slot, row.numel(), start))
        # A timed row may start only at the event of the slot before its own: any other could be recorded
        # again before the row has been delivered. So an untimed row leaves no start.
        self._last_end = end if timed else None

    def drain(self) -> None:
        self._deliver(lambda pending: pending.slot is None or self._ends[pending.slot].query())

    def flush(self) -> None:
        self._wait()
        self._deliver(lambda _pending: True)

    def _deliver(self, has_arrived: Callable[[_Pending], bool]) -> None:
        steps: list[Delivered] = []
        try:
            while self._pending and has_arrived(self._pending[0]):
                pending = self._pending.popleft()
                row, seconds = self._read(pending)
                if pending.deliver is None:
                    steps.append((pending.facts, row, seconds))
                    continue
                earlier, steps = steps, []
                if earlier:
                    self._deliver_steps(earlier)
                pending.deliver(row, seconds)
        finally:
            if steps:
                self._deliver_steps(steps)

    def _new_event(self) -> torch.Event:
        return torch.Event(self._device, enable_timing=True)

    def _stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self._device.index)

    def _drop(self, deliver: Deliver | None, facts: object) -> None:
        self._pending.append(_Pending(deliver, facts, None, 0, None))
        self._last_end = None  # the next step's start was not recorded either

    def _wait(self) -> None:
        """Wait until the device has finished all work in the stream."""
        # Unlike a stream's synchronize(), an event's is no error in torch's sync debug mode.
        event = torch.Event(self._device, enable_timing=False)
        event.record(self._stream())
        event.synchronize()

    def _read(self, pending: _Pending) -> tuple[list[float] | None, float | None]:
        """The row and the seconds of a push that has arrived; frees its slot."""
        if pending.slot is None:
            return None, None
        seconds = None
        if pending.start is not None:
            seconds = pending.start.elapsed_time(self._ends[pending.slot]) / 1000
        values = self._row_values[pending.slot, : pending.length].tolist()
        self._occupied -= 1
        return values, seconds

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

    ``deliver_steps`` gets what comes by :meth:`HostReadback.push_step`.
    """
    if capabilities(device).timed_events:
        return DeviceReadback(device, capacity=capacity, deliver_steps=deliver_steps)
    return HostReadback(clock, deliver_steps)
