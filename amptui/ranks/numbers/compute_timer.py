"""Times forward and backward of one rank alone, up to where a step begins to wait for the others."""

from collections.abc import Iterable
from time import perf_counter
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

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        self._device = device
        self._begin_time: float | None = None
        self._seconds, self._steps = 0.0, 0
        self._events: tuple[torch.Event, torch.Event] | None = None
        """On the stream that computes, at the start and the end of a step."""
        if capabilities(device).timed_events:
            self._events = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        self._stream: Any = None
        self._is_wanted = True
        """Whether the next step is to be timed by events."""
        self._has_begun = self._has_ended = False
        self.ends_step = True
        """Whether the next backward pass is the last of its step: it alone ends the time."""
        first = next((parameter for parameter in parameters if parameter.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(self._end)

    def begin(self) -> None:
        """The first forward pass of a step begins."""
        if self._events is None:
            self._begin_time = perf_counter()
        elif self._is_wanted:
            self._is_wanted, self._has_begun = False, True
            # The backward pass runs in another thread, which may have another current stream.
            self._stream = torch.accelerator.current_stream(self._device.index)
            self._events[0].record(self._stream)

    def forget(self) -> None:
        """Do not count the step under way."""
        self._begin_time = None
        if self._has_begun:
            self._has_begun, self._is_wanted = False, True

    def take_seconds(self) -> float | None:
        """The mean over the steps timed since the last call; None without any."""
        if self._events is not None and self._has_ended:
            start, end = self._events
            if not end.query():
                return None
            self._seconds, self._steps = start.elapsed_time(end) / 1000, 1
        self._is_wanted, self._has_begun, self._has_ended = True, False, False
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        return seconds / steps if steps else None

    def _end(self, _parameter: Tensor) -> None:
        if not self.ends_step:
            return
        if self._has_begun and self._events is not None:
            self._has_begun, self._has_ended = False, True
            self._events[1].record(self._stream)
        elif self._begin_time is not None:
            self._seconds += perf_counter() - self._begin_time
            self._steps += 1
            self._begin_time = None
