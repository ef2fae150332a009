"""Measurements beside the step, each within a budget: float16 window, module traces, buffers, unsafe code.

None waits for the device: their numbers arrive a few steps later, through a readback of their own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from amptui.base.script_signals import is_from_signal_handler
from amptui.engine.failure import explain
from amptui.engine.precision import Precision
from amptui.engine.probes.budget import BUFFERS_BUDGET, WINDOW_BUDGET, Cadence
from amptui.engine.probes.buffers import BufferWatch
from amptui.engine.probes.float16_window import Float16WindowProbe
from amptui.engine.probes.flop_counter import FlopCounter
from amptui.engine.probes.flop_schedule import FlopSchedule, StepInputs
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.probes.lost_weights import infinite_names
from amptui.engine.probes.module_trace import ModuleTrace
from amptui.engine.readback import open_readback
from amptui.engine.trained import Trained
from amptui.records.findings import ModulesTraced, is_old
from amptui.records.run import Note, Record

TRACE_STEPS = 3
"""Steps that are traced in a row, fewer if a non-finite module is found."""

TRACE_GAP_STEPS = 200
"""Steps before persistent trouble is traced again."""

BUFFERS_GAP_STEPS = 20
"""Steps before persistent trouble lets the buffers be checked again."""

_CAPACITY = 8

_UNSAFE = "binary_cross_entropy"

_UNSAFE_LOSS = (
    "binary_cross_entropy (BCELoss) is unsafe under CUDA autocast: it raises an error there; "
    "use binary_cross_entropy_with_logits (BCEWithLogitsLoss) and remove the sigmoid"
)


@contextmanager
def unsafe_loss_calls() -> Iterator[list[str]]:
    """Notices calls of ``binary_cross_entropy``, the one function that CUDA's autocast rejects.

    For one step; the list gets one sentence. Calls within ``torch.autocast(enabled=False)`` are
    safe and do not count; calls in TorchScript are not seen. Results do not change.

    Meanwhile the function that ``functional.binary_cross_entropy`` and ``nn.BCELoss`` call is replaced, for
    all threads. A TorchFunctionMode would do, but torch.compile compiles anew for each set of modes: compiled
    models would be compiled again in the second step.
    """
    found: list[str] = []
    original = torch._C._nn.binary_cross_entropy

    def noticed(*args: Any, **options: Any) -> Tensor:
        given = next(value for value in (*args, *options.values()) if isinstance(value, Tensor))
        if not _is_autocast_disabled(given.device.type):
            found[:] = [_UNSAFE_LOSS]
        result: Tensor = original(*args, **options)
        return result

    setattr(torch._C._nn, _UNSAFE, noticed)
    try:
        yield found
    finally:
        setattr(torch._C._nn, _UNSAFE, original)


def _is_autocast_disabled(device_type: str) -> bool:
    """Whether this runs within ``autocast(enabled=False)``, with or without an autocast around it."""
    # torch has no function that only reads the nesting.
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting > 0 and not torch.is_autocast_enabled(device_type)


Answer = Callable[[str], object]
"""Called once for somebody who asked, with the reason if there is no result."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """When and of what the newest float16 window was measured."""

    step: int
    seconds: float
    precision: str
    scale: float


@dataclass(slots=True)
class _TracedSteps:
    """A few traced steps in a row, until something is found."""

    answers: list[Answer]
    steps_left: int = TRACE_STEPS
    best: ModulesTraced | None = None
    over: bool = False

    @property
    def active(self) -> bool:
        """Whether the next step is traced."""
        return self.steps_left > 0 and not self.over

    def add(self, found: ModulesTraced | None, *, last: bool) -> ModulesTraced | None:
        """Add one step's trace (None: it was lost); the result, once there is one."""
        if found is not None and (self.best is None or _rank(found) > _rank(self.best)):
            self.best = found
        self.over = last or (self.best is not None and _is_conclusive(self.best))
        return self.best if self.over else None

    def end(self, trouble: str) -> None:
        """Answer everybody: with ``trouble``, or "" if the result was reported."""
        self.over = True
        for answer in self.answers:
            answer(trouble)
        self.answers.clear()


class Probes:
    """Decides when to measure, and emits the results; used by the trainer's thread."""

    def __init__(self, trained: Trained, gradients: GradientProbe, emit: Callable[[Record], object]) -> None:
        self._model = trained.model
        self._device = trained.device
        self._enabled = trained.probes
        self.flops = FlopSchedule(trained.model, emit)
        self._emit = emit
        self._readback = open_readback(trained.device, clock=time.perf_counter, capacity=_CAPACITY)
        self._together = gradients.together
        self._window = Float16WindowProbe(gradients)
        self._window_cadence = Cadence(WINDOW_BUDGET, free=1)
        self._newest_window: _Taken | None = None
        self._window_answers: list[Answer] = []
        """Of those who asked for a window that was not measured yet."""
        self._window_is_old = False
        self._buffers = BufferWatch(trained.model)
        self._buffers_cadence = Cadence(BUFFERS_BUDGET)
        self._buffers_trouble_step = -BUFFERS_GAP_STEPS
        self._infinite_at_start = infinite_names(trained.model)
        self._reported_failures: set[str] = set()
        self._traced: _TracedSteps | None = None
        self._trace_trouble_step = -TRACE_GAP_STEPS

    def take_over(self, before: "Probes") -> None:
        """Answer what ``before`` was asked for, whose model another one has replaced."""
        if before._device == self._device:
            self._readback = before._readback  # what was measured may still arrive
        else:
            before.flush()
        self._window_answers, before._window_answers = before._window_answers, []
        if before._traced is not None and before._traced.active:
            answers, before._traced.answers = before._traced.answers, []
            for answer in answers:
                self.arm_trace(answer)

    def arm_window(self, answer: Answer) -> None:
        """Measure the float16 window in the next step, whatever it costs; ``answer`` gets "" or why not."""
        self._window_answers.append(answer)

    def check_age(self, step: int, precision: str, scale: float) -> None:
        """Note whether the newest window is out of date for the step after ``step``."""
        newest = self._newest_window
        self._window_is_old = newest is not None and (
            newest.precision != precision or is_old(newest.step, newest.scale, now=step, scale_now=scale)
        )

    def arm_trace(self, answer: Answer | None = None) -> None:
        """Trace the modules in the next steps; ``answer`` gets "" when that is done, or why it failed."""
        traced = self._traced
        if traced is None or traced.over or not traced.answers:
            traced = self._traced = _TracedSteps([])
        if answer is not None:
            traced.answers.append(answer)

    @property
    def traces(self) -> bool:
        """Whether the next step is traced."""
        return self._traced is not None and self._traced.active

    @contextmanager
    def around_step(self, step: int, precision: Precision, inputs: StepInputs | None) -> Iterator[None]:
        """The context of a step's forward and backward pass; in nearly all steps it does nothing.

        ``inputs`` are those of a warm-up step; None for other steps.
        """
        traced = self._traced if self.traces else None
        counted = inputs if inputs is not None and self.flops.is_due(precision, inputs) else None
        if step > 1 and traced is None and counted is None:
            yield
            return
        with ExitStack() as stack:
            unsafe = stack.enter_context(unsafe_loss_calls()) if step == 1 else []
            trace = None if traced is None else stack.enter_context(self._trace())
            flops = None if counted is None else stack.enter_context(FlopCounter(self._model))
            yield
        for text in unsafe:
            self._emit(Note(time=time.time(), severity="warning", text=text))
        if flops is not None and counted is not None:
            self.flops.add(flops.counted(step=step, precision=precision.name), counted)
        if trace is not None and traced is not None:
            with self.suppress_errors("trace", failed=traced.end):
                self._send_trace(trace, traced, step, precision)

    @property
    def steps_due(self) -> int:
        """How many of the next steps are measured."""
        if self._traced is not None and self._traced.active:
            return self._traced.steps_left
        window = self.window_is_due and not self._together
        return int(window or (self._enabled and self._buffers_cadence.due()))

    @property
    def window_is_due(self) -> bool:
        """Whether it is time for another float16 window: somebody asked, or the budget has room.

        For one that is out of date the budget lends what it has not earned yet.
        """
        cadence = self._window_cadence
        is_urgent = self._window_is_old and cadence.may_borrow
        return bool(self._window_answers) or (self._enabled and (is_urgent or cadence.due()))

    def after_backward(
        self, step: int, precision: Precision, *, assumed_scale: float, window: bool | None = None
    ) -> None:
        """Measure gradients, as backward left them, and buffers if they are due.

        ``assumed_scale`` is the loss scale that ``fp16`` would start with, for steps in other precisions.
        ``window``: whether all ranks measure the float16 window now; None if it is measured when it is due.
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
        """Turn an error, such as a lack of memory, into a warning, once per ``what``; the run goes on."""
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
        """Deliver what has arrived, and measure more after trouble.

        ``trouble_step`` is the newest step with a non-finite value, ``unexplained_step`` the newest whose
        trouble is not the scaler's usual search for its scale; 0 if there is none.
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
        steps_since, seconds_since = self._since_last_window(step, precision, assumed_scale)
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
                    self._window.window(
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

    def _since_last_window(
        self, step: int, precision: Precision, scale: float
    ) -> tuple[int | None, float | None]:
        """Steps and seconds since the previous window; remembers this one."""
        before, now = self._newest_window, time.perf_counter()
        self._newest_window = _Taken(step, now, precision.name, scale)
        self._window_is_old = False
        return (None, None) if before is None else (step - before.step, now - before.seconds)

    def _trace(self) -> ModuleTrace:
        return ModuleTrace(self._model, infinite_at_start=self._infinite_at_start)

    def _send_trace(self, trace: ModuleTrace, traced: _TracedSteps, step: int, precision: Precision) -> None:
        traced.steps_left -= 1
        last = traced.steps_left == 0

        def deliver(values: Sequence[float] | None, scale: float | None, _seconds: float | None) -> None:
            found = None
            if values is not None:
                found = trace.traced(
                    values,
                    time=time.time(),
                    step=step,
                    precision=precision.name,
                    loss_scale=scale,
                    asked=bool(traced.answers),
                )
            result = None if traced.over else traced.add(found, last=last)
            if result is not None:
                self._emit(result)
            if traced.over:
                traced.end("" if result is not None else "its results were lost")

        self._push(trace.values(), precision.scale, deliver)

    def _send_buffers(self, step: int) -> None:
        began = time.perf_counter()
        row = self._buffers.measure()

        def deliver(values: Sequence[float] | None, _scale: float | None, _seconds: float | None) -> None:
            found = None if values is None else self._buffers.found(values, time=time.time(), step=step)
            if found is not None:
                self._emit(found)

        if row.numel():
            self._push(row, None, deliver)
        self._buffers_cadence.measured(began)

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


def _rank(found: ModulesTraced) -> tuple[bool, float]:
    """Orders traces: something non-finite first, then by the largest finite value."""
    return _is_conclusive(found), found.nearest[0].largest if found.nearest else 0.0


def _is_conclusive(found: ModulesTraced) -> bool:
    """Whether another step's trace would tell no more."""
    return found.first is not None or found.lost_count > 0
