"""What a loop tells of its steps: each is measured, and sent on its way; requests are handled between two.

Between two looks, four a second, a step does what training needs, pushes its numbers and nothing else; a look
handles records, budgets, probes and switches. ``Control.attention``, one plain attribute, requests a look at
the next step boundary.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from amptui.base.script_signals import is_from_signal_handler
from amptui.data.batches import count_samples
from amptui.device.accelerator import capabilities
from amptui.device.failure import explain
from amptui.device.readback import (
    LOOK_INTERVAL_SECONDS,
    MAX_SCALED_STEPS_BETWEEN_LOOKS,
    MAX_STEPS_BETWEEN_LOOKS,
    open_readback,
)
from amptui.monitor.divergence_guard import DivergenceGuard, PauseReason
from amptui.monitor.precision_switch import PrecisionSwitch
from amptui.monitor.reporting import StepReporter
from amptui.monitor.step_rows import Step
from amptui.monitor.warm_up import WarmUp
from amptui.probes.flop_counter import step_inputs
from amptui.probes.gradients import GradientProbe
from amptui.probes.memory import AllocatorWatch, break_down
from amptui.probes.schedule import Probes
from amptui.probes.xray import take_xray
from amptui.recipe.lr_schedule import LearningRateReader
from amptui.recipe.sharding import is_sharded
from amptui.recipe.trained import Trained
from amptui.records.control import Control
from amptui.records.run import (
    LOW_PRECISIONS,
    MIN_SOUND_SCALE,
    Note,
    PauseChanged,
    PrecisionChanged,
    Record,
)
from amptui.records.steps import Steps


class Monitor:
    """Keeps track of one optimizer's steps, whoever makes them; used by the one thread that trains.

    Who makes a step, or sees how it is made, fills a :class:`Step` with what it knows and sends it. Where the
    precision is amptui's, :meth:`take_requests` adds the precision switch and its probes.

    ``name``: under which the steps are recorded; empty for the only or the first optimizer. ``gradients``
    measures them, without ``probes`` only where a step itself has to know.
    """

    takes_requests = False
    control: Control
    switch: PrecisionSwitch
    """Of these two there is none where no requests are taken."""
    guard: DivergenceGuard | None = None
    """May pause or end the run, if there is one: a script's training goes on as the script wants it."""
    no_xray = ""
    """Why no X-ray can be taken; empty if one can."""
    look_interval_seconds = LOOK_INTERVAL_SECONDS

    def __init__(
        self,
        device: torch.device,
        emit: Callable[[Record], object],
        *,
        name: str = "",
        gradients: GradientProbe | None = None,
        probes: bool = True,
    ) -> None:
        self.device, self.name, self._emit = device, name, emit
        self._reads_later = capabilities(device).timed_events
        self.step = 0
        """Steps that the loop has made; may be set before its first one, if it is resumed."""
        self.epoch = 1
        self._ended = time.perf_counter()
        """When the newest step ended."""
        self.probes = Probes(device, emit, gradients=gradients, enabled=probes, optimizer=name)
        self.reporter = StepReporter(self._report, self.probes.norms.probe, name)
        clock = partial(getattr, self, "_ended")
        self._readback = open_readback(device, clock=clock, deliver_steps=self.reporter.steps)
        self.allocator = AllocatorWatch(device)
        self._lrs = LearningRateReader()
        self._warm_up = WarmUp()
        """Where the precision is not amptui's: no step is one of the warm-up after the first that is not."""
        self._is_steady = False
        """Whether the next steps, until somebody looks, are none of the warm-up."""
        self._reported_precision = ""
        self._look_step, self._look_due = 0, 0.0

    def take_requests(self, trained: Trained, control: Control) -> None:
        """Handle what ``control`` is asked from now on, between the steps of what is ``trained``."""
        self.takes_requests, self._trained, self.control = True, trained, control
        self.switch = PrecisionSwitch(trained, control, self.allocator, self._emit)
        self._has_parts = is_sharded(trained.model)
        self.probes.add(trained)

    # ---------------------------------------------------------------------------------- the steps

    def send(self, step: Step) -> Sequence[float] | None:
        """Send the numbers of a step to the host; never waits. Returns its row if that is known already."""
        step.number, step.epoch, step.ended = self.step, self.epoch, self._ended
        loss, is_short = step.loss, step.scale is None and step.gradients is None and step.clip_norm is None
        if is_short and loss is not None and not (step.parts or step.lrs.on_device):
            values, step.loss = [loss], None  # the usual case without a scaler
        else:
            values = step.row()
        row = self._readback.push(values, step, timed=step.is_timed)
        if not step.is_timed:
            self._readback.begin_interval()
        return row

    def _report(self, record: Record) -> None:
        """Emit a record of the reporter's, and use the times of its steps."""
        if type(record) is not Steps:
            self._emit(record)
        elif self.takes_requests:
            self._emit(record)
            self.switch.take(record)
        else:
            before, now = self._reported_precision, record.precision
            self._reported_precision = now
            if before and before != now:
                began, step = record.times()[0], record.first_step
                self._emit(
                    PrecisionChanged(time=began, step=step, previous=before, current=now, optimizer=self.name)
                )
            self._warm_up.add(record.step_seconds)
            self._emit(record)

    def begin_interval(self) -> None:
        """Leave the time until now out of the next step's."""
        self._ended = time.perf_counter()
        self._readback.begin_interval()

    def push(self, values: Sequence[Tensor], deliver: Callable[..., object]) -> None:
        """Send other numbers, such as a validation's, after those of the steps before, and look soon.

        The time until now is left out of the next step's.
        """
        self._readback.push(values, deliver, timed=False)
        self.begin_interval()
        self._look_step = self.step

    def drain(self) -> None:
        """Deliver the numbers of the steps that have arrived."""
        self._readback.drain()
        self.probes.drain()

    def flush(self) -> None:
        """Deliver all numbers; waits for the device."""
        self._readback.flush()
        self.probes.flush()

    # ----------------------------------------------------------------------------------- the look

    def look(self) -> None:
        """Report the numbers that have arrived, and measure what they call for.

        Raises ExperimentError if the guard finds that training cannot recover.
        """
        if not self.takes_requests:
            self.drain()
            if not self.name:
                self.allocator.look(self._reported_precision, settled=False)
            return
        control, reporter = self.control, self.reporter
        control.look(self.step)  # first: requests that arrive later wait for the next look
        self.drain()
        if self.guard is not None:
            self.guard.check(self.switch.precision)
        self.allocator.look(self.switch.precision.name, settled=self.switch.settled)
        if trace_request := control.take("trace"):
            self.probes.trace.answers.append(partial(control.answer, trace_request))
        if window_request := control.take("histogram"):
            if self._has_parts and not self.probes.norms.probe.together:
                control.refuse(window_request, "unavailable", "each rank has only a part of the gradients")
            else:
                self.probes.window.answers.append(partial(control.answer, window_request))
        self.probes.between_steps(
            self.step, trouble_step=reporter.trouble_step, unexplained_step=reporter.unexplained_step
        )

    def plan(self) -> None:
        """Decide in which of the next steps to measure what, and when to look again at the latest."""
        step, most, next_growth = self.step, MAX_STEPS_BETWEEN_LOOKS, None
        if self.takes_requests:
            switch, precision = self.switch, self.switch.precision
            if not switch.on_trial:  # its first step may never have been
                self.probes.window.check_age(step, precision.name, self.loss_scale())
            if precision.scales:
                most = MAX_SCALED_STEPS_BETWEEN_LOOKS
            most, growth_interval = min(most, switch.steps_to_next_event(step)), precision.growth_interval
            if growth_interval is not None:
                next_growth = self.reporter.next_growth(growth_interval, step)
        steps = min(most, self.probes.plan(step, self.reporter.trouble_step, next_growth))
        self._look_step = step + (1 if self.reporter.in_trouble else steps)
        self._look_due = time.perf_counter() + self.look_interval_seconds

    def pause_if_wanted(self, handle: Callable[[], object]) -> None:
        """Pause, if somebody asks for it or the guard does, until asked to resume.

        ``handle`` handles the other requests meanwhile; the user may switch precisions.
        """
        control, guard = self.control, self.guard
        pause_request = control.take("pause")
        if pause_request is not None and control.stopping:
            control.refuse(pause_request, "unavailable", "the run is stopping")
            pause_request = None
        if pause_request is not None and not pause_request.paused:
            control.answer(pause_request)  # it is not paused
            pause_request = None
        if control.stopping or (pause_request is None and (guard is None or guard.pause_reason is None)):
            return
        self.flush()  # the numbers that arrive may be a reason themselves
        reason = None
        if guard is not None:
            reason, guard.pause_reason = guard.pause_reason, None
        if reason is not None and reason.cause == "loss scale":
            # If the user resumes, the scale stays here: at 0 a step would turn every weight into NaN.
            self.switch.hold_scale(self.reporter.loss_scale)
        why = (reason or PauseReason())._asdict()
        self._emit(PauseChanged(time=time.time(), step=self.step, paused=True, **why))
        resumed = control.wait_until_resumed(pause_request, handle)
        self._emit(PauseChanged(time=time.time(), step=self.step, paused=False))
        control.answer(resumed)
        self.begin_interval()

    def switch_if_wanted(self) -> None:
        """Switch precisions as requested."""
        if self.no_xray and (xray_request := self.control.take("x-ray")):
            self.control.refuse(xray_request, "unavailable", self.no_xray)
        self.switch.between_steps(self.step)

    # ------------------------------------------------------------------------------- measurements

    def loss_scale(self) -> float:
        """The scale that the next ``fp16`` step would start with, by the newest numbers."""
        scale, precision = self.reporter.loss_scale, self.switch.precision
        if scale is None or (scale < MIN_SOUND_SCALE and not precision.scales):
            return precision.first_scale
        return scale

    def break_down_memory(self, precision: str) -> None:
        """Emit where the memory of the last step went, if that is due."""
        if not self.switch.breakdown_is_due(self.step) or self._has_parts:
            return
        with self.probes.suppress_errors("memory breakdown"):
            trained, peak_bytes = self._trained, self.allocator.peak_bytes()
            measure = partial(break_down, trained.model, trained.optimizer, step=self.step)
            self._emit(measure(precision=precision, peak_allocated_bytes=peak_bytes))

    def xray(self, batches: Sequence[Any], *, counts_operations: bool) -> None:
        """Run the next step's batches in FP32 and in AMP and apply neither, if that was asked for.

        An error does not end the run. ``counts_operations``: whether ``batches`` show what a count of its
        operations stands for.
        """
        xray_request = self.control.take("x-ray")
        if xray_request is None:
            return
        self.flush()
        self.control.answer(xray_request, self._take_xray(batches, counts_operations=counts_operations))
        self.begin_interval()

    def _take_xray(self, batches: Sequence[Any], *, counts_operations: bool) -> str:
        """Emit an X-ray; return why there is none."""
        trained, precision = self._trained, self.switch.precision.name
        if precision not in LOW_PRECISIONS:
            precision = self.switch.low_precision
        scale = self.loss_scale() if trained.precisions[precision].scales else None
        try:
            with self.allocator.left_out():
                take = partial(take_xray, trained, batches)
                if counts_operations:
                    inputs = step_inputs([(count_samples(batch), batch) for batch in batches])
                    take = partial(take, emit=partial(self.probes.flops.add, inputs=inputs))
                self._emit(take(step=self.step + 1, precision=precision, loss_scale=scale))
        except Exception as error:  # a model may raise anything; the run must go on
            if is_from_signal_handler(error):
                raise
            size = trained.batch_size
            why = str(explain(error, doing="in the X-ray", batch_size=size, precision=precision))
            self._emit(Note(time=time.time(), severity="warning", text=f"no X-ray: {why}"))
            return why
        return ""
