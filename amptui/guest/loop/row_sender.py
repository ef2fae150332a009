"""Sends the numbers of steps of somebody else's loop to the host, from where they are reported in order."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from amptui.engine.precision import ScalerTensors
from amptui.engine.readback import open_readback
from amptui.engine.reporting import StepReporter
from amptui.engine.step_columns import StepFacts, StepKind
from amptui.guest.loop.loop_step import LoopStep

if TYPE_CHECKING:
    from amptui.records.own_loop import LossForm


class RowSender:
    """Sends one optimizer's numbers; ``samples`` are those of each of its steps, 0 if they are counted."""

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float],
        reporter: StepReporter,
        optimizer: str,
        samples: int,
    ) -> None:
        self._readback = open_readback(device, clock=clock, deliver_steps=reporter.steps)
        self._optimizer = optimizer
        self._kind = StepKind(0, "")
        self.samples = samples
        self.is_timed = True
        """Whether the time of the next step is measured."""

    def send(
        self,
        loop_step: LoopStep,
        scaler: ScalerTensors | None,
        step: int,
        epoch: int,
        precision: str,
        ended: float,
        *,
        warming_up: bool,
    ) -> None:
        """Send a step that ``ended`` at that time of ``perf_counter``."""
        lrs, asked, passes = loop_step.lrs, loop_step.asked, loop_step.passes
        layout, values = loop_step.row(scaler)
        samples = loop_step.trained_samples if passes.count else loop_step.samples
        is_single = passes.count == 1 and passes.closures == 1 and not passes.absence  # the usual case
        is_plain = is_single or loop_step.logged_loss is not None
        form: LossForm = "" if is_plain else passes.form
        kind = self._kind
        common = (
            *(epoch, precision, warming_up, layout),
            *(loop_step.norms_scaled, passes.count or 1, self._optimizer, form),
        )
        if kind != common:
            kind = self._kind = StepKind(*common)
        facts = StepFacts(
            kind,
            step,
            self.samples or samples,
            None if asked is None else loop_step.data_seconds,
            ended if asked is None else asked,
            lrs.first,
            lrs.groups,
        )
        self._readback.push_step(values, facts, timed=self.is_timed)
        if not self.is_timed:
            self.is_timed = True
            self._readback.begin_interval()

    def send_others(self, values: list[Tensor], deliver: Callable[..., object]) -> None:
        """Send other numbers, which ``deliver`` gets after the steps before."""
        self._readback.push(values, deliver, timed=False)

    def begin_interval(self) -> None:
        """Leave the time until now out of the next step's."""
        self._readback.begin_interval()

    def drain(self) -> None:
        """Deliver what has arrived."""
        self._readback.drain()

    def flush(self) -> None:
        """Deliver all; waits for the device."""
        self._readback.flush()
