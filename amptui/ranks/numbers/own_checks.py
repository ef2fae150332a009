"""What a rank finds in its own numbers: what was not finite before the average, and a hash of its weights.

DDP averages gradients before anybody checks them: one rank's Inf reaches all. The rank's own loss tells at no
cost, since it stays on the device and is looked at only after trouble. Its gradients are checked in the few
steps that are likely to overflow, at the end of the backward pass, before the averages replace them.
Hashes show replicas whose weights are no longer the same.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from amptui.device.accelerator import capabilities
from amptui.probes.gradients import SEARCH_STEPS, STEPS_AFTER_TROUBLE, norm_of_each, together
from amptui.probes.probe import Cadence
from amptui.ranks.numbers.meter import (
    FINITE,
    GRADIENTS,
    LOSS,
    UNKNOWN,
)

_KEPT_STEPS = 512
"""More than are in flight between the host and the device."""

_KEPT_STATES = 128

WEIGHTS_BUDGET = 0.0005
"""The fraction of rank 0's time that hashes may take: 5 us of a step of 10 ms."""

MIN_HASH_SECONDS = 1.0
"""The time from one hash to the next at least: replicas that differ stay different."""

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd factor that moves each bit of a hash to its upper ones, which are told."""


class _Step(NamedTuple):
    """What a step has left on the device."""

    step: int
    loss: Tensor
    largest: Tensor | None
    """The largest absolute value of the rank's own gradients; None where they were not checked."""
    complete: bool
    """Whether all gradients were among those checked."""


class LocalOverflows:
    """Keeps what a rank's last steps have left on the device, and looks at it after trouble.

    Of the trainer's thread: :meth:`begin` before each step and :meth:`keep` after it; :meth:`judge` when the
    numbers of a step have arrived and show trouble, so that nobody has to wait for the device.
    ``parameters`` are those whose gradients are the rank's own until the backward pass ends.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._device = device
        self._reads_beside = capabilities(device).side_streams
        self._side_stream: torch.Stream | None = None
        self._steps: deque[_Step] = deque(maxlen=_KEPT_STEPS)
        self._step = self._scaled_steps = 0
        self._growth_step: int | None = None
        self._check_until = 0
        self._checks = False
        self._largest: Tensor | None = None
        self._complete = False
        self.states: dict[int, int] = {}
        """What was found in the newest steps that were judged."""
        self.overflowed: int | None = None
        """In how many of the judged steps something was not finite; None before one was."""
        if self._parameters:
            self._parameters[0].register_post_accumulate_grad_hook(self._check_later)

    # ------------------------------------------------------------------------------ each step

    def begin(self, step: int | None, *, scaled: bool) -> None:
        """A step begins, ``scaled`` by the loss scale; ``step`` may be left out but for the first."""
        self._step = self._step + 1 if step is None else step
        self._largest = None
        if not scaled:
            self._checks = False
            return
        self._scaled_steps += 1
        if self._growth_step is not None and self._step == self._growth_step + 1:
            self._check_until = max(self._check_until, self._growth_step + STEPS_AFTER_TROUBLE)
        self._checks = self._scaled_steps <= SEARCH_STEPS or self._step <= self._check_until

    def keep(self, loss: Tensor) -> None:
        """The step was sent to the device; ``loss`` is the rank's own."""
        self._steps.append(_Step(self._step, loss.detach(), self._largest, self._complete))
        self._largest = None

    def expect_growth(self, step: int) -> None:
        """The loss scale will double after ``step`` if nothing overflows until then."""
        self._growth_step = step

    def _check_later(self, _parameter: Tensor) -> None:
        """Check the gradients once all are there.

        DDP has its own function called at the end of the backward pass, which puts the averages in their
        place. It asks for that when the last parameter has its gradient: later than this hook of one does.
        """
        if self._checks:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._check)

    @torch.no_grad()
    def _check(self) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        own = [gradient for gradient in gradients if not gradient.is_sparse and gradient.numel()]
        self._complete = len(own) == len(self._parameters)
        if not own:
            return
        try:
            self._largest = torch.stack(together(norm_of_each(own, math.inf), own[0].device)).amax()
        except torch.OutOfMemoryError:  # no reason to end a run
            self._largest = None

    # -------------------------------------------------------------------------- after trouble

    def judge(self, step: int) -> None:
        """Find out whose fault the trouble of ``step`` was; its numbers have arrived."""
        if step in self.states:
            return
        remains = next((remains for remains in reversed(self._steps) if remains.step == step), None)
        state = UNKNOWN if remains is None else self._state(remains)
        self.states[step] = state
        if len(self.states) > _KEPT_STATES:
            del self.states[min(self.states)]
        self._check_until = max(self._check_until, self._step + STEPS_AFTER_TROUBLE)
        if state != UNKNOWN:
            self.overflowed = (self.overflowed or 0) + (state > FINITE)

    def _state(self, remains: _Step) -> int:
        if not math.isfinite(self._read(remains.loss)):
            return LOSS
        if remains.largest is None:
            return UNKNOWN
        if not math.isfinite(self._read(remains.largest)):
            return GRADIENTS
        return FINITE if remains.complete else UNKNOWN

    def _read(self, value: Tensor) -> float:
        """A value that the device has computed already: the work of later steps is not waited for."""
        if value.is_cpu or not self._reads_beside:
            return float(value.item())
        if self._side_stream is None:
            self._side_stream = torch.Stream(self._device)
        with self._side_stream:
            return float(value.item())


@torch.no_grad()
def weights_hash(parameters: Iterable[Tensor]) -> Tensor:
    """[] int64: the bits of each of ``parameters`` xored, added up; the host does not wait for the device.

    Replicas that drift apart differ in many bits. That of values which change places is the same.
    """
    values = [torch.view_as_real(p.resolve_conj()) if p.is_complex() else p for p in parameters]
    hashes = [torch.hash_tensor(value).view(torch.int64) for value in values if value.numel()]
    if not hashes:
        return torch.zeros((), dtype=torch.int64, device="cpu")
    column = torch.stack(together(hashes, hashes[0].device))
    return (column * (torch.arange(1, 2 * len(column), 2, device=column.device) * _GOLDEN)).sum()


class WeightsCheck:
    """One rank's part in comparing weights: hashes them when rank 0 asks, and tells the result later.

    Used by the trainer's thread, which never waits for the device. ``leads``: this is rank 0, which asks as
    often as ``WEIGHTS_BUDGET`` allows.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device, *, leads: bool) -> None:
        self._parameters = parameters
        self._reads_later = capabilities(device).timed_events
        self._device = device
        self._leads = leads
        self._cadence = Cadence(WEIGHTS_BUDGET)
        self._is_asking = False
        self._asked_at = -MIN_HASH_SECONDS
        self._room: Tensor | None = None
        """Pinned memory, for one hash at a time."""
        self._pending: tuple[int, Tensor, torch.Event, torch.Event, float] | None = None
        """A hash on its way: its step, its place in pinned memory, its start, its end, the host's seconds."""
        self._newest: tuple[int, float | None] = -1, None

    def hash(self, step: int) -> None:
        """Hash the weights after ``step``, as all ranks do now."""
        self._is_asking = False
        try:
            self._begin(step)
        except (torch.OutOfMemoryError, NotImplementedError):  # of a dtype or device: no reason to end a run
            self._cadence.charge(None)
            self._newest = step, None

    def newest(self) -> tuple[int, float | None]:
        """The step after which the newest hash was computed, and 52 bits of it, which a float64 holds.

        The step is -1 before the first; the hash is None without one, for lack of memory too.
        """
        if self._pending is not None:
            step, value, start, end, host_seconds = self._pending
            if end.query():
                self._pending = None
                self._take(step, int(value), max(host_seconds, start.elapsed_time(end) / 1000))
        return self._newest

    def is_due(self) -> bool:
        """Of rank 0: whether all should hash their weights now; true once for each hash."""
        now = perf_counter()
        idle = self._leads and not self._is_asking and self._pending is None
        if not (idle and now - self._asked_at >= MIN_HASH_SECONDS and self._cadence.due()):
            return False
        self._is_asking, self._asked_at = True, now
        return True

    def _begin(self, step: int) -> None:
        self._cadence.begin()
        began = perf_counter()
        if not self._reads_later:
            value = int(weights_hash(self._parameters).item())
            self._take(step, value, perf_counter() - began)
            return
        stream = torch.accelerator.current_stream(self._device.index)
        start, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        start.record(stream)
        if self._room is None:
            self._room = torch.empty((), dtype=torch.int64, device="cpu", pin_memory=True)
        self._room.copy_(weights_hash(self._parameters), non_blocking=True)
        end.record(stream)
        self._pending = step, self._room, start, end, perf_counter() - began

    def _take(self, step: int, value: int, cost_seconds: float) -> None:
        self._cadence.charge(cost_seconds)
        self._newest = step, float(value % (1 << 64) >> 12)
