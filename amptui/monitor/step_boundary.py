"""What is done between two steps wherever amptui owns the precision: in its own loop and in a script's.

The loop makes the steps. Precision switch, probes, X-ray and pauses are here, once for both.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from amptui.base.script_signals import is_from_signal_handler
from amptui.data.batches import count_samples
from amptui.device.failure import explain
from amptui.device.readback import MAX_SCALED_STEPS_BETWEEN_LOOKS
from amptui.monitor.allocator import AllocatorWatch
from amptui.monitor.divergence_guard import DivergenceGuard, PauseReason
from amptui.monitor.precision_switch import PrecisionSwitch
from amptui.monitor.reporting import StepReporter
from amptui.probes.flop_counter import step_inputs
from amptui.probes.gradient_norms import GradientNorms
from amptui.probes.memory_breakdown import break_down
from amptui.probes.schedule import Probes
from amptui.probes.xray import take_xray
from amptui.recipe.sharding import is_sharded
from amptui.recipe.trained import Trained
from amptui.records.control import (
    Control,
    HistogramRequest,
    PauseRequest,
    TraceRequest,
    XRayRequest,
)
from amptui.records.run import (
    LOW_PRECISIONS,
    MIN_SOUND_SCALE,
    Note,
    PauseChanged,
    Record,
    base_precision,
)
from amptui.records.steps import Steps


class BoundedSteps(Protocol):
    """The loop whose steps these are."""

    step: int
    """How many it has made."""
    allocator: AllocatorWatch

    def drain(self) -> None:
        """Deliver the numbers of its steps that have arrived."""

    def flush(self) -> None:
        """Deliver all of them, and those of the probes; waits for the device."""

    def begin_interval(self) -> None:
        """Leave the time until now out of the next step's."""


class StepBoundary:
    """Handles what comes up between two steps; used by the thread that trains.

    ``reporter`` gets the numbers that ``loop`` delivers, and from here on emits through the boundary;
    ``norms`` are those of the loop's gradients.
    """

    guard: DivergenceGuard | None = None
    """May pause or end the run, if there is one: a script's training goes on as the script wants it."""
    no_xray = ""
    """Why no X-ray can be taken; empty if one can."""

    def __init__(
        self,
        loop: BoundedSteps,
        trained: Trained,
        control: Control,
        reporter: StepReporter,
        norms: GradientNorms,
        emit: Callable[[Record], object],
    ) -> None:
        self._loop = loop
        self._trained = trained
        self._control = control
        self._reporter = reporter
        self._norms = norms
        self._emit = emit
        self.switch = PrecisionSwitch(trained, control, loop.allocator, emit)
        reporter.emit = self._report
        self._probe_model()

    def follow_model(self) -> None:
        """Probe the model that is trained from now on."""
        before = self.probes
        self._probe_model()
        self.probes.take_over(before)

    def _probe_model(self) -> None:
        self._is_sharded = is_sharded(self._trained.model)
        self.probes = Probes(self._trained, self._norms.probe, self._emit)
        self._norms.suppress_errors = self.probes.suppress_errors

    def _report(self, record: Record) -> None:
        """Emit a record of the reporter's; the switch uses the times of steps."""
        self._emit(record)
        if type(record) is Steps:
            self.switch.take(record)

    # ---------------------------------------------------------------------------------- the look

    def look(self) -> None:
        """Report the numbers that have arrived, and measure what they call for.

        Raises ExperimentError if the guard finds that training cannot recover.
        """
        loop, control, reporter, switch = self._loop, self._control, self._reporter, self.switch
        control.look(loop.step)  # first: requests that arrive later wait for the next look
        loop.drain()
        if self.guard is not None:
            self.guard.check(switch.precision)
        loop.allocator.look(switch.precision.name, settled=switch.settled)
        if trace_request := control.take(TraceRequest):
            self.probes.arm_trace(partial(control.answer, trace_request))
        if window_request := control.take(HistogramRequest):
            if self._is_sharded and not self._norms.probe.together:
                control.refuse(window_request, "unavailable", "each rank has only a part of the gradients")
            else:
                self.probes.arm_window(partial(control.answer, window_request))
        self.probes.between_steps(
            loop.step, trouble_step=reporter.trouble_step, unexplained_step=reporter.unexplained_step
        )

    def pause_if_wanted(self, handle: Callable[[], object]) -> None:
        """Pause, if somebody asks for it or the guard does, until asked to resume.

        ``handle`` handles the other requests meanwhile; the user may switch precisions.
        """
        control, guard = self._control, self.guard
        pause_request = control.take(PauseRequest)
        if pause_request is not None and control.stopping:
            control.refuse(pause_request, "unavailable", "the run is stopping")
            pause_request = None
        if pause_request is not None and not pause_request.request.paused:
            control.answer(pause_request)  # it is not paused
            pause_request = None
        if control.stopping or (pause_request is None and (guard is None or guard.pause_reason is None)):
            return
        self._loop.flush()  # the numbers that arrive may be a reason themselves
        reason = None
        if guard is not None:
            reason, guard.pause_reason = guard.pause_reason, None
        if reason is not None and reason.cause == "loss scale":
            # If the user resumes, the scale stays here: at 0 a step would turn every weight into NaN.
            self.switch.hold_scale(self._reporter.loss_scale)
        why = (reason or PauseReason())._asdict()
        self._emit(PauseChanged(time=time.time(), step=self._loop.step, paused=True, **why))
        resumed = control.wait_until_resumed(pause_request, handle)
        self._emit(PauseChanged(time=time.time(), step=self._loop.step, paused=False))
        control.answer(resumed)
        self._loop.begin_interval()

    def handle_requests(self) -> None:
        """Switch precisions as requested."""
        if self.no_xray and (xray_request := self._control.take(XRayRequest)):
            self._control.refuse(xray_request, "unavailable", self.no_xray)
        self.switch.between_steps(self._loop.step)

    def plan_look(self) -> int:
        """Decide in which steps to measure gradients; return after how many to look again, at the latest."""
        precision = self.switch.precision
        if not self.switch.on_trial:  # its first step may never have been
            self.probes.check_age(self._loop.step, precision.name, self.loss_scale())
        growth_interval = precision.growth_interval
        steps = self._norms.look(self._loop.step, self._reporter, growth_interval)
        if precision.scales:
            steps = min(steps, MAX_SCALED_STEPS_BETWEEN_LOOKS)
        return 1 if self._reporter.in_trouble else min(steps, self.switch.steps_to_next_event)

    # --------------------------------------------------------------------------- measurements

    def loss_scale(self) -> float:
        """The scale that the next ``fp16`` step would start with, by the newest numbers."""
        scale, precision = self._reporter.loss_scale, self.switch.precision
        if scale is None or (scale < MIN_SOUND_SCALE and not precision.scales):
            return precision.first_scale
        return scale

    def break_down_memory(self, precision: str, loss: Tensor | None = None) -> None:
        """Emit where the memory of the last step went, if that is due; ``loss`` is its loss, with a graph."""
        if not self.switch.breakdown_is_due or self._is_sharded:
            return
        with self.probes.suppress_errors("memory breakdown"):
            trained, peak_bytes = self._trained, self._loop.allocator.peak_bytes()
            measure = partial(break_down, trained.model, trained.optimizer, step=self._loop.step, loss=loss)
            self._emit(measure(precision=precision, peak_allocated_bytes=peak_bytes))

    def xray(
        self,
        batches: Sequence[Any],
        *,
        counts_operations: bool,
        around: Callable[[Callable[[], str]], str | None] | None = None,
    ) -> None:
        """Run the next step's batches in FP32 and in AMP and apply neither, if that was asked for.

        An error does not end the run. ``counts_operations``: whether ``batches`` show what a count of its
        operations stands for. ``around`` gets what takes the X-ray, and calls it where it may be taken.
        """
        xray_request = self._control.take(XRayRequest)
        if xray_request is None:
            return
        self._loop.flush()
        take = partial(self._take_xray, batches, counts_operations=counts_operations)
        why = take() if around is None else around(take)
        self._control.answer(xray_request, why or "")
        self._loop.begin_interval()

    def _take_xray(self, batches: Sequence[Any], *, counts_operations: bool) -> str:
        """Emit an X-ray; return why there is none."""
        trained, precision = self._trained, base_precision(self.switch.precision.name)
        if precision not in LOW_PRECISIONS:
            precision = self.switch.low_precision
        scale = self.loss_scale() if trained.precisions[precision].scales else None
        try:
            with self._loop.allocator.left_out():
                take = partial(take_xray, trained, batches)
                if counts_operations:
                    inputs = step_inputs([(count_samples(batch), batch) for batch in batches])
                    take = partial(take, emit=partial(self.probes.flops.add, inputs=inputs))
                self._emit(take(step=self._loop.step + 1, precision=precision, loss_scale=scale))
        except Exception as error:  # a model may raise anything; the run must go on
            if is_from_signal_handler(error):
                raise
            size = trained.batch_size
            why = str(explain(error, doing="in the X-ray", batch_size=size, precision=precision))
            self._emit(Note(time=time.time(), severity="warning", text=f"no X-ray: {why}"))
            return why
        return ""
