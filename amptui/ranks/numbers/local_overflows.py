"""Which of a rank's own losses and gradients were not finite, before they were averaged over all ranks.

DDP averages gradients before anybody checks them: one rank's Inf reaches all. The rank's own loss tells at no
cost, since it stays on the device and is looked at only after trouble. Its gradients are checked in the few
steps that are likely to overflow, at the end of the backward pass, before the averages replace them.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from amptui.device.accelerator import capabilities
from amptui.probes.gradients import SEARCH_STEPS, STEPS_AFTER_TROUBLE, norm_of_each, together
from amptui.ranks.numbers.meter import (
    FINITE,
    GRADIENTS,
    LOSS,
    UNKNOWN,
)

_KEPT_STEPS = 512
"""More than are in flight between the host and the device."""

_KEPT_STATES = 128


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
