"""The measurements beside the step, each within a budget: float16 window, traced modules, buffers, hazards.

None waits for the device: their numbers come back through a readback of their own, a few steps later.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from amptui.engine.failure import explain
from amptui.engine.precision import Precision
from amptui.engine.probes.budget import BUFFERS_BUDGET, WINDOW_BUDGET, Cadence
from amptui.engine.probes.buffers import BufferWatch
from amptui.engine.probes.float16_window import Float16WindowProbe
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.probes.hazards import HazardWatch
from amptui.engine.probes.module_trace import ModuleTrace
from amptui.engine.readback import open_readback
from amptui.engine.setup import Prepared
from amptui.findings import ModulesTraced
from amptui.records import Note, Record

TRACE_STEPS = 3
"""Steps that hooks stay on, unless the first non-finite module is found before."""

TRACE_GAP_STEPS = 200
"""Trouble that goes on is not traced again before that many steps."""

BUFFERS_GAP_STEPS = 20
"""The same for a look at the buffers because of trouble."""

_CAPACITY = 8


@dataclass(slots=True)
class _Campaign:
    """Hooks on for a few steps in a row, until something is found."""

    answers: list[Callable[[str], object]]
    """Each is told once, when it is over, the reason where it found nothing: somebody asked for it."""
    steps_left: int = TRACE_STEPS
    best: ModulesTraced | None = None
    over: bool = False

    def add(self, found: ModulesTraced | None, *, last: bool) -> ModulesTraced | None:
        """Take in one step's trace (None: its numbers were lost); what to tell, once there is something."""
        if found is not None and (self.best is None or _range(found) > _range(self.best)):
            self.best = found
        self.over = last or (self.best is not None and self.best.first is not None)
        return self.best if self.over else None

    def end(self, trouble: str) -> None:
        """It is over, and what it found is told, or it came to ``trouble``."""
        self.over = True
        for answer in self.answers:
            answer(trouble)
        self.answers.clear()


class Probes:
    """Decides when to look closer, and emits what was seen; used by the trainer's thread."""

    def __init__(
        self, prepared: Prepared, gradients: GradientProbe, emit: Callable[[Record], object]
    ) -> None:
        self._model = prepared.model
        self._enabled = prepared.probes
        self._emit = emit
        self._readback = open_readback(prepared.device, clock=time.perf_counter, capacity=_CAPACITY)
        self._window = Float16WindowProbe(gradients)
        self._window_cadence = Cadence(WINDOW_BUDGET, free=1)
        self._last_window: tuple[int, float] | None = None
        self._buffers = BufferWatch(prepared.model)
        self._buffers_cadence = Cadence(BUFFERS_BUDGET)
        self._buffers_trouble_step = -BUFFERS_GAP_STEPS
        self._given_up: set[str] = set()
        self._campaign: _Campaign | None = None
        self._trace_trouble_step = -TRACE_GAP_STEPS

    def arm_trace(self, answer: Callable[[str], object] | None = None) -> None:
        """Put hooks on every module for the next steps; ``answer`` is told when that was done, or why not."""
        campaign = self._campaign
        if campaign is None or campaign.over or not campaign.answers:
            campaign = self._campaign = _Campaign([])
        if answer is not None:
            campaign.answers.append(answer)

    @contextmanager
    def around_step(self, step: int, precision: Precision) -> Iterator[None]:
        """What a step's forward and backward pass run in: nothing at all in nearly all of them."""
        campaign = self._campaign
        tracing = campaign is not None and campaign.steps_left > 0 and not campaign.over
        if step > 1 and not tracing:
            yield
            return
        with ExitStack() as stack:
            hazards = stack.enter_context(HazardWatch()) if step == 1 else None
            trace = stack.enter_context(ModuleTrace(self._model)) if tracing else None
            yield
        if hazards is not None:
            for text in hazards.found:
                self._emit(Note(time=time.time(), severity="warning", text=text))
        if trace is not None and campaign is not None:
            with self.unharmed("trace", failed=campaign.end):
                self._send_trace(trace, campaign, step, precision)

    @property
    def steps_due(self) -> int:
        """How many steps from the next one on are to be looked into."""
        if self._campaign is not None and self._campaign.steps_left > 0 and not self._campaign.over:
            return self._campaign.steps_left
        return int(self._enabled and (self._window_cadence.due() or self._buffers_cadence.due()))

    def after_backward(self, step: int, precision: Precision, *, assumed_scale: float) -> None:
        """Look at gradients, as backward left them, and at buffers if it is their turn.

        ``assumed_scale`` is the one that float16 would begin with, for the other precisions.
        """
        if not self._enabled:
            return
        if self._window_cadence.due():
            with self.unharmed("float16 window"):
                self._send_window(step, precision, assumed_scale=assumed_scale)
        if self._buffers_cadence.due():
            with self.unharmed("look at buffers"):
                self._send_buffers(step)

    @contextmanager
    def unharmed(self, what: str, *, failed: Callable[[str], object] = lambda _why: None) -> Iterator[None]:
        """What fails within, for want of memory say, is told of once, and the run goes on without it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - tensors come in kinds nobody foresaw; the run must go on
            why = explain(error, doing="between two steps", batch_size=None).what
            failed(why)
            if what not in self._given_up:
                self._given_up.add(what)
                self._emit(Note(time=time.time(), severity="warning", text=f"no {what}: {why}"))

    def between_steps(self, step: int, *, trouble_step: int, unexplained_step: int) -> None:
        """Deliver what has arrived, and look closer after trouble.

        ``trouble_step`` is the newest step with anything not finite, ``unexplained_step`` the newest whose
        trouble is not the scaler's everyday search for its scale; 0 where there is none.
        """
        self._readback.drain()
        if not self._enabled:
            return
        if trouble_step - self._buffers_trouble_step >= BUFFERS_GAP_STEPS and trouble_step:
            self._buffers_trouble_step = trouble_step
            with self.unharmed("look at buffers"):
                self._send_buffers(step)
        if unexplained_step - self._trace_trouble_step >= TRACE_GAP_STEPS and unexplained_step:
            self._trace_trouble_step = unexplained_step
            self.arm_trace()

    def flush(self) -> None:
        """Deliver everything; waits for the device."""
        self._readback.flush()

    def _send_window(self, step: int, precision: Precision, *, assumed_scale: float) -> None:
        steps_since, seconds_since = self._since_last_window(step)
        self._window_cadence.begin()
        self._readback.begin_interval()
        scale = precision.scale
        factor = 1.0 if precision.scales else assumed_scale
        try:
            row = self._window.measure(factor)
        except Exception:
            self._window_cadence.charge(None)  # a later one may find the memory
            raise
        tail = [] if scale is None else [scale]

        def deliver(values: Sequence[float] | None, seconds: float | None) -> None:
            began = time.perf_counter()
            if values is not None:
                tell(values, seconds)
                # The host's time for the record falls between two steps: it is paid for like the device's.
                seconds = None if seconds is None else seconds + time.perf_counter() - began
            self._window_cadence.charge(seconds)

        def tell(values: Sequence[float], seconds: float | None) -> None:
            counts = values if scale is None else values[:-1]
            self._emit(
                self._window.window(
                    counts,
                    time=time.time(),
                    step=step,
                    precision=precision.name,
                    loss_scale=assumed_scale if scale is None else values[-1],
                    hypothetical=scale is None,
                    seconds=seconds,
                    steps_since=steps_since,
                    seconds_since=seconds_since,
                )
            )

        self._readback.push([row, *tail], deliver, timed=True)

    def _since_last_window(self, step: int) -> tuple[int | None, float | None]:
        """Steps and seconds since the window before; this one's moment is kept for the next."""
        before, now = self._last_window, time.perf_counter()
        self._last_window = step, now
        return (None, None) if before is None else (step - before[0], now - before[1])

    def _send_trace(self, trace: ModuleTrace, campaign: _Campaign, step: int, precision: Precision) -> None:
        campaign.steps_left -= 1
        last = campaign.steps_left == 0
        scale = precision.scale

        def deliver(values: Sequence[float] | None, _seconds: float | None) -> None:
            found = None
            if values is not None:
                found = trace.traced(
                    values if scale is None else values[:-1],
                    time=time.time(),
                    step=step,
                    precision=precision.name,
                    loss_scale=None if scale is None else values[-1],
                    asked=bool(campaign.answers),
                )
            told = None if campaign.over else campaign.add(found, last=last)
            if told is not None:
                self._emit(told)
            if campaign.over:
                campaign.end("" if told is not None else "its results were lost")

        self._readback.push([trace.values(), *([] if scale is None else [scale])], deliver, timed=False)

    def _send_buffers(self, step: int) -> None:
        began = time.perf_counter()
        row = self._buffers.measure()

        def deliver(values: Sequence[float] | None, _seconds: float | None) -> None:
            found = None if values is None else self._buffers.found(values, time=time.time(), step=step)
            if found is not None:
                self._emit(found)

        if row.numel():
            self._readback.push([row], deliver, timed=False)
        self._buffers_cadence.measured(began)


def _range(found: ModulesTraced) -> tuple[bool, float]:
    """Traces in order of what they tell: something not finite, then the nearest to it."""
    return found.first is not None, found.nearest[0].largest if found.nearest else 0.0
