"""Times forward and backward of one rank alone, up to where a step begins to wait for the others."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amptui.device.accelerator import capabilities


class ComputeTimer:
    """Times from the start of a forward pass to the gradient that comes last, before the all-reduce ends.

    Call :meth:`begin` as a step's first forward pass begins, after any wait for other ranks; a hook of the
    first parameter ends the time, since the backward pass comes to it last. A CPU is timed in all steps, by
    the host's clock. On a GPU two events around the work of one step are recorded, the host's clock knows
    nothing of it; the next step is timed after they have been read. Nobody waits for the device.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        device: torch.device,
        *,
        clock: Callable[[], float] = time.perf_counter,
        new_event: Callable[[], Any] | None = None,
    ) -> None:
        self._clock = clock
        self._begin_time: float | None = None
        self._seconds, self._steps = 0.0, 0
        self.ends_step = True
        """Whether the next backward pass is the last of its step: it alone ends the time."""
        if new_event is None and capabilities(device).timed_events:
            new_event = partial(torch.Event, device, enable_timing=True)
        self._events = None if new_event is None else _EventPair(device, new_event)
        first = next((parameter for parameter in parameters if parameter.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(self._end)

    def begin(self) -> None:
        """The first forward pass of a step begins."""
        if self._events is not None:
            self._events.begin()
        else:
            self._begin_time = self._clock()

    def forget(self) -> None:
        """Do not count the step under way."""
        self._begin_time = None
        if self._events is not None:
            self._events.forget()

    def take_seconds(self) -> float | None:
        """The mean over the steps timed since the last call; None without any."""
        if self._events is not None:
            return self._events.take_seconds()
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        return seconds / steps if steps else None

    def _end(self, _parameter: Tensor) -> None:
        if not self.ends_step:
            return
        if self._events is not None:
            self._events.end()
        elif self._begin_time is not None:
            self._seconds += self._clock() - self._begin_time
            self._steps += 1
            self._begin_time = None


class _EventPair:
    """Two events on the stream that computes."""

    def __init__(self, device: torch.device, new_event: Callable[[], Any]) -> None:
        self._device = device
        self._start, self._last = new_event(), new_event()
        self._is_wanted = True
        """Whether the next step is to be timed."""
        self._has_begun = self._has_ended = False
        self._stream: Any = None

    def begin(self) -> None:
        if self._is_wanted:
            self._is_wanted, self._has_begun = False, True
            # The backward pass runs in another thread, which may have another current stream.
            on_cpu = self._device.type == "cpu"
            self._stream = None if on_cpu else torch.accelerator.current_stream(self._device.index)
            self._start.record(self._stream)

    def forget(self) -> None:
        if self._has_begun:
            self._has_begun, self._is_wanted = False, True

    def end(self) -> None:
        if self._has_begun:
            self._has_begun, self._has_ended = False, True
            self._last.record(self._stream)

    def take_seconds(self) -> float | None:
        seconds: float | None = None
        if self._has_ended:
            if not self._last.query():
                return None
            seconds = self._start.elapsed_time(self._last) / 1000
        self._is_wanted, self._has_begun, self._has_ended = True, False, False
        return seconds
