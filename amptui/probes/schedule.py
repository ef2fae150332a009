"""When to measure the float16 window, module traces, buffers and FLOPs, each within its budget.

No measurement waits for the device: its numbers arrive a few steps later, through a readback of their own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from amptui.base.script_signals import is_from_signal_handler
from amptui.device.failure import explain
from amptui.device.readback import open_readback
from amptui.probes.budget import BUFFERS_BUDGET, WINDOW_BUDGET, Cadence
from amptui.probes.buffers import BufferWatch
from amptui.probes.float16_window import Float16WindowProbe
from amptui.probes.flop_counter import FlopCounter, FlopSchedule, StepInputs
from amptui.probes.gradients import GradientProbe
from amptui.probes.module_trace import ModuleTrace, infinite_names
from amptui.recipe.precision import Precision
from amptui.recipe.trained import Trained
from amptui.records.findings import ModulesTraced, is_old
from amptui.records.run import Note, Record

TRACE_STEPS = 3
"""Steps that are traced in a row; fewer if one of them shows where NaN or Inf starts."""

TRACE_GAP_STEPS = 200
"""Steps between automatic traces while trouble lasts."""

BUFFERS_GAP_STEPS = 20
"""Steps between extra checks of the buffers while trouble lasts."""

_CAPACITY = 8

Answer = Callable[[str], object]
"""Answers a request once: takes "" when the result was emitted, else why there is none."""


@dataclass(slots=True)
class _TraceSeries:
    """Up to ``TRACE_STEPS`` traced steps in a row, and the best of their traces."""

    answers: list[Answer]
    steps_left: int = TRACE_STEPS
    best: ModulesTraced | None = None
    over: bool = False

    @property
    def active(self) -> bool:
        """Whether the next step is traced."""
        return self.steps_left > 0 and not self.over

    def add(self, trace: ModulesTraced | None, *, last: bool) -> ModulesTraced | None:
        """Add one step's trace (None if it was lost); return the best once no more are needed."""
        if trace is not None and (self.best is None or _rank(trace) > _rank(self.best)):
            self.best = trace
        self.over = last or (self.best is not None and _is_conclusive(self.best))
        return self.best if self.over else None

    def end(self, trouble: str) -> None:
        """Answer all requests: with ``trouble``, or "" if the result was emitted."""
        self.over = True
        _answer(self.answers, trouble)


class Probes:
    """Decides when to measure, measures, and emits the results; used by the thread that trains."""

    def __init__(
        self,
        trained: Trained,
        gradients: GradientProbe,
        emit: Callable[[Record], object],
    ) -> None:
        self._model = trained.model
        self._device = trained.device
        self._enabled = trained.probes
        self.flops = FlopSchedule(trained.model, emit)
        self._emit = emit
        self._readback = open_readback(trained.device, clock=time.perf_counter, capacity=_CAPACITY)
        self._together = gradients.together
        self._window = Float16WindowProbe(gradients)
        self._window_cadence = Cadence(WINDOW_BUDGET, free=1)
        self._newest_window: tuple[int, float, str, float] | None = None
        """Its step, time, precision and loss scale."""
        self._window_answers: list[Answer] = []
        """For the requests of a window that was not measured yet."""
        self._window_is_old = False
        self._infinite_at_start = infinite_names(trained.model)
        self._buffers = BufferWatch(trained.model, self._infinite_at_start)
        self._buffers_cadence = Cadence(BUFFERS_BUDGET)
        self._buffers_trouble_step = -BUFFERS_GAP_STEPS
        self._reported_failures: set[str] = set()
        self._series: _TraceSeries | None = None
        self._trace_trouble_step = -TRACE_GAP_STEPS

    def take_over(self, before: "Probes") -> None:
        """Take over the open requests of ``before``, the probes of the model that was trained until now."""
        if before._device == self._device:
            self._readback = before._readback  # what was measured may still arrive
        else:
            before.flush()
        self._window_answers, before._window_answers = before._window_answers, []
        if before._series is not None and before._series.active:
            answers, before._series.answers = before._series.answers, []
            for answer in answers:
                self.arm_trace(answer)

    def arm_window(self, answer: Answer) -> None:
        """Measure the float16 window in the next step, whatever the budget; ``answer`` gets "" or why not."""
        self._window_answers.append(answer)

    def check_age(self, step: int, precision: str, scale: float) -> None:
        """Note whether the newest window is out of date for the step after ``step``, by ``is_old``."""
        if self._newest_window is not None:
            measured, _, measured_in, measured_scale = self._newest_window
            is_outdated = is_old(measured, measured_scale, now=step, scale_now=scale)
            self._window_is_old = is_outdated or measured_in != precision

    def arm_trace(self, answer: Answer | None = None) -> None:
        """Trace the modules in the next steps; ``answer`` gets "" when that is done, or why it failed."""
        series = self._series
        if series is None or series.over or not series.answers:
            series = self._series = _TraceSeries([])
        if answer is not None:
            series.answers.append(answer)

    @property
    def traces(self) -> bool:
        """Whether the next step is traced."""
        return self._series is not None and self._series.active

    @contextmanager
    def around_step(self, step: int, precision: Precision, inputs: StepInputs | None) -> Iterator[None]:
        """The context of a step's forward and backward pass: traces modules and counts FLOPs where due.

        ``inputs`` are those of a warm-up step; None for other steps.
        """
        series = self._series if self.traces else None
        counted_inputs = inputs if inputs is not None and self.flops.is_due(precision, inputs) else None
        trace = None if series is None else ModuleTrace(self._model, self._infinite_at_start)
        flops = None if counted_inputs is None else FlopCounter(self._model)
        with trace or nullcontext(), flops or nullcontext():
            yield
        if flops is not None and counted_inputs is not None:
            self.flops.add(flops.record(step=step, precision=precision.name), counted_inputs)
        if trace is not None and series is not None:
            with self.suppress_errors("trace", failed=series.end):
                self._send_trace(trace, series, step, precision)

    @property
    def steps_due(self) -> int:
        """How many of the next steps are measured."""
        if self._series is not None and self.traces:
            return self._series.steps_left
        window = self.window_is_due and not self._together
        return int(window or (self._enabled and self._buffers_cadence.due()))

    @property
    def window_is_due(self) -> bool:
        """Whether it is time for another float16 window: one was requested, or the budget allows it.

        To replace one that is out of date, the budget may be overdrawn once.
        """
        cadence = self._window_cadence
        is_urgent = self._window_is_old and cadence.may_borrow
        return bool(self._window_answers) or (self._enabled and (is_urgent or cadence.due()))

    def after_backward(
        self, step: int, precision: Precision, *, assumed_scale: float, window: bool | None = None
    ) -> None:
        """Measure the float16 window of the gradients, as backward left them, and the buffers, where due.

        ``assumed_scale``: the loss scale that ``fp16`` would start with, for steps in other precisions.
        ``window``: whether all ranks have agreed to measure the window now; None to measure it when it is due
        here.
        """
        if self.window_is_due if window is None else window:
            answers, self._window_answers = self._window_answers, []
            with self.suppress_errors("float16 window", failed=partial(_answer, answers)):
                self._send_window(step, precision, answers, assumed_scale=assumed_scale)
        if self._enabled and self._buffers_cadence.due():
            with self.suppress_errors("buffer check"):
                self._send_buffers(step)

    @contextmanager
    def suppress_errors(
        self, what: str, *, failed: Callable[[str], object] = lambda _why: None
    ) -> Iterator[None]:
        """Turn an error, a lack of memory for example, into one warning per ``what``; the run goes on."""
        try:
            yield
        except Exception as error:  # a tensor subclass may raise anything; the run must go on
            if is_from_signal_handler(error):
                raise
            why = explain(error, doing="between two steps", batch_size=None).what
            failed(why)
            if what not in self._reported_failures:
                self._reported_failures.add(what)
                self._emit(Note(time=time.time(), severity="warning", text=f"no {what}: {why}"))

    def between_steps(self, step: int, *, trouble_step: int, unexplained_step: int) -> None:
        """Deliver the numbers that have arrived; after trouble check the buffers and start a trace.

        ``trouble_step`` is the newest step with a NaN or Inf, ``unexplained_step`` the newest whose NaN or
        Inf is not just the scaler's search for its scale; 0 if there is none.
        """
        self._readback.drain()
        if not self._enabled:
            return
        if trouble_step - self._buffers_trouble_step >= BUFFERS_GAP_STEPS and trouble_step:
            self._buffers_trouble_step = trouble_step
            with self.suppress_errors("buffer check"):
                self._send_buffers(step)
        if unexplained_step - self._trace_trouble_step >= TRACE_GAP_STEPS and unexplained_step:
            self._trace_trouble_step = unexplained_step
            self.arm_trace()

    def flush(self) -> None:
        """Deliver everything; waits for the device."""
        self._readback.flush()

    def _send_window(
        self, step: int, precision: Precision, answers: list[Answer], *, assumed_scale: float
    ) -> None:
        before, now = self._newest_window, time.perf_counter()
        steps_since, seconds_since = (None, None) if before is None else (step - before[0], now - before[1])
        self._newest_window, self._window_is_old = (step, now, precision.name, assumed_scale), False
        self._window_cadence.begin()
        self._readback.begin_interval()
        try:
            row = self._window.measure(1.0 if precision.scales else assumed_scale)
        except Exception:
            self._window_cadence.charge(None)  # there may be memory for the next one
            raise

        def deliver(counts: Sequence[float] | None, scale: float | None, seconds: float | None) -> None:
            began = time.perf_counter()
            if counts is None:
                _answer(answers, "its results were lost")
            elif counts and counts[0] < 0:
                with self.suppress_errors("float16 window", failed=partial(_answer, answers)):
                    raise RuntimeError("another rank could not measure it")
            else:
                self._emit(
                    self._window.record(
                        counts,
                        time=time.time(),
                        step=step,
                        precision=precision.name,
                        loss_scale=assumed_scale if scale is None else scale,
                        hypothetical=scale is None,
                        seconds=seconds,
                        steps_since=steps_since,
                        seconds_since=seconds_since,
                    )
                )
                # The host makes the record between two steps: charge its time like the device's.
                seconds = None if seconds is None else seconds + time.perf_counter() - began
                _answer(answers, "")
            self._window_cadence.charge(seconds)

        self._push(row, precision.scale, deliver, timed=True)

    def _send_trace(self, trace: ModuleTrace, series: _TraceSeries, step: int, precision: Precision) -> None:
        series.steps_left -= 1
        last = series.steps_left == 0

        def deliver(values: Sequence[float] | None, scale: float | None, _seconds: float | None) -> None:
            record = None
            if values is not None:
                record = trace.record(
                    values,
                    time=time.time(),
                    step=step,
                    precision=precision.name,
                    loss_scale=scale,
                    asked=bool(series.answers),
                )
            result = None if series.over else series.add(record, last=last)
            if result is not None:
                self._emit(result)
            if series.over:
                series.end("" if result is not None else "its results were lost")

        self._push(trace.values(), precision.scale, deliver)

    def _send_buffers(self, step: int) -> None:
        began = time.perf_counter()
        row = self._buffers.measure()

        def deliver(values: Sequence[float] | None, _scale: float | None, _seconds: float | None) -> None:
            record = None if values is None else self._buffers.record(values, time=time.time(), step=step)
            if record is not None:
                self._emit(record)

        if row.numel():
            self._push(row, None, deliver)
        self._buffers_cadence.charge_since(began)

    def _push(
        self,
        row: Tensor,
        scale: Tensor | None,
        deliver: Callable[[Sequence[float] | None, float | None, float | None], object],
        *,
        timed: bool = False,
    ) -> None:
        """Send ``row`` and the loss ``scale``; ``deliver`` gets both (None if lost) and the seconds."""

        def split(values: Sequence[float] | None, seconds: float | None) -> None:
            if values is None or scale is None:
                deliver(values, None, seconds)
            else:
                deliver(values[:-1], values[-1], seconds)

        self._readback.push([row] if scale is None else [row, scale], split, timed=timed)


def _answer(answers: list[Answer], trouble: str) -> None:
    """Answer everybody who asked, once."""
    while answers:
        answers.pop()(trouble)


def _rank(trace: ModulesTraced) -> tuple[bool, float]:
    """Sorts traces: one with NaN or Inf is above all others, which compare by their largest value."""
    return _is_conclusive(trace), trace.nearest[0].largest if trace.nearest else 0.0


def _is_conclusive(trace: ModulesTraced) -> bool:
    """Whether it shows where NaN or Inf starts, so that no other step needs to be traced."""
    return trace.first is not None or trace.lost_count > 0
