"""Switches precisions between two steps, and reports each stretch of steps in one precision."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from amptui.control import Asked, ComparisonRequest, Control, PrecisionRequest
from amptui.engine.ab_test import MAX_ROUNDS, ABTest
from amptui.engine.allocator import AllocatorWatch
from amptui.engine.failure import explain, is_device_lost, is_out_of_memory
from amptui.engine.precision import Precision
from amptui.engine.setup import Prepared
from amptui.engine.snapshot import Snapshot
from amptui.engine.warm_up import WarmUp
from amptui.records import BlockFinished, Note, PrecisionChanged, Record, Severity, StepRecord

T = TypeVar("T")

_BREAKDOWN_STEPS = 5
"""Steps after warm-up until the memory breakdown: by then the allocator has seen the peak."""

_NO_EVENT_STEPS = 1 << 30


@dataclass(frozen=True, slots=True)
class _Trial:
    """The first step after a switch: what to return to if it fails."""

    previous: str
    before: Snapshot
    counters: "_Counters"


class _Counters:
    """Copies of the optimizer's counters, such as Adam's ``step``, which change before any weight does.

    Moments are not copied: they take twice the memory of the weights. If an optimizer that is not fused runs
    out of memory halfway, some moments contain a gradient twice.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._kept = {
            parameter: {name: _copied(value) for name, value in state.items() if _is_number(value)}
            for parameter, state in optimizer.state.items()
        }

    def restore(self) -> None:
        """Restore them, and delete states that did not exist."""
        states = self._optimizer.state
        for parameter in [parameter for parameter in states if parameter not in self._kept]:
            del states[parameter]
        for parameter, kept in self._kept.items():
            for name, value in kept.items():
                if isinstance(value, Tensor):
                    states[parameter][name].copy_(value)
                else:
                    states[parameter][name] = value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


class PrecisionSwitch:
    """The current precision, which a user's request or an A/B test changes.

    If the first step in a precision fails, the run returns to the previous one: a switch must not end it.
    """

    def __init__(
        self,
        prepared: Prepared,
        control: Control,
        allocator: AllocatorWatch,
        emit: Callable[[Record], object],
    ) -> None:
        self._prepared = prepared
        self._control = control
        self._allocator = allocator
        self._emit = emit
        self._ab_test: ABTest | None = None
        self._trial: _Trial | None = None
        self._trial_requests: list[Asked[PrecisionRequest]] = []
        """The requests that the trial step will answer."""
        self.precision: Precision = prepared.precisions[prepared.precision]
        """The precision of the next step."""
        self.held_scale: float | None = None
        """The lower limit of the loss scale in this stretch."""
        self._first_step = 1
        self._steps = self._counted = 0
        self._warm_up = WarmUp()
        self._settled = False
        self._noted_waits = self._noted_no_scaler = False

    @property
    def settled(self) -> bool:
        """Whether the warm-up of this stretch is over."""
        return self._settled

    @property
    def on_trial(self) -> bool:
        """Whether the next step is the first of its precision."""
        return self._trial is not None

    @property
    def chosen(self) -> str:
        """The precision to resume in: neither an A/B test's nor one on trial."""
        if self._ab_test is not None:
            return self._ab_test.chosen
        return self.precision.name if self._trial is None else self._trial.previous

    @contextmanager
    def validation_precision(self) -> Iterator[Precision]:
        """The precision to validate in: that of the steps so far, since one on trial may fail."""
        entered = self.precision
        made = entered if self._trial is None else self._prepared.precisions[self._trial.previous]
        if made is not entered:
            made.enter()
        try:
            yield made
        finally:
            if made is not entered:
                entered.enter()

    @property
    def needs_observation(self) -> bool:
        """Whether to observe the next step: it is on trial, or its memory is to be measured."""
        return self._trial is not None or (self._counted == _BREAKDOWN_STEPS - 1 and self._ab_test is None)

    @property
    def steps_to_next_event(self) -> int:
        """Steps until something may have to be decided here; 1 looks before each step."""
        if not self._settled or (self._counted < _BREAKDOWN_STEPS and self._ab_test is None):
            return 1
        return _NO_EVENT_STEPS if self._ab_test is None else max(1, self._ab_test.steps_left)

    @property
    def breakdown_is_due(self) -> bool:
        """Whether to measure the memory of this step."""
        return self._counted == _BREAKDOWN_STEPS and self._ab_test is None

    def begin_step(self) -> bool:
        """Count a step; return whether it is a warm-up step. The memory peak restarts after the warm-up."""
        self._steps += 1
        if self._settled:
            self._counted += 1
            return False
        warming_up = self._warm_up.begin_step()
        self._counted += not warming_up
        if not warming_up:
            self._settled = True
            self._allocator.restart_peak()
        return warming_up

    def take(self, record: StepRecord) -> None:
        """Take a step's numbers when they arrive."""
        if record.step >= self._first_step:
            self._warm_up.add(record.step_seconds)
        ab_test = self._ab_test
        # The result is emitted at the step boundary, when the last block's peak is known.
        if ab_test is not None and ab_test.add(record) and not ab_test.over:
            self._emit(ab_test.record(record.step))

    def hold_scale(self, least: float | None) -> None:
        """Keep the loss scale, if there is one, at ``least`` or above until the next switch."""
        self.held_scale = least
        self.precision.hold_scale(least)

    def between_steps(self, step: int) -> None:
        """Handle the requests; ``step`` is the last one sent to the device."""
        asked = self._control.take(PrecisionRequest)
        if asked is not None:
            self._stop_ab_test(step)
            self._switch(asked.request.precision, step, asked)
        comparison = self._control.take(ComparisonRequest)
        if comparison is not None:
            self._start_or_stop_ab_test(comparison, step)
        if self._ab_test is not None:
            self._continue_ab_test(self._ab_test, step)
        if self.precision.scales and not self._noted_waits:
            self._note_waits()

    def attempt(self, step: int, doing: str, run: Callable[[Precision], T]) -> T:
        """Call ``run`` in this precision; if it is on trial and fails, in the previous one."""
        trial, self._trial = self._trial, None
        try:
            made = run(self.precision)
        except Exception as error:
            if trial is None or is_device_lost(error):
                raise
            size = self._prepared.experiment.batch_size
            why = str(explain(error, doing=doing, batch_size=size, precision=self.precision.name))
        else:
            if trial is not None and self._trial_requests:
                self._note_no_scaler(trial.previous)
            self._answer_trial_requests()
            return made
        # Outside the handler: the traceback would keep the failed pass's tensors alive.
        self._undo(trial, why, step)
        return run(self.precision)

    def finish(self, step: int) -> None:
        """Report the stretch that the run ends with."""
        self._stop_ab_test(step)
        self._finish_stretch(step)

    def _switch(self, name: str, step: int, asked: Asked[PrecisionRequest] | None = None) -> None:
        if name == self.precision.name:
            if asked is not None and self._trial is not None:
                self._trial_requests.append(asked)
            else:
                self._control.answer(asked)
            return
        if self._is_unsupported(name, asked):
            return
        previous = self.precision.name
        try:
            before = Snapshot(self._prepared.model, self._prepared.device)
            counters = _Counters(self._prepared.optimizer)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            why = f"not enough memory to try {name} safely; staying in {previous}"
            self._note("error", why)
            self._control.answer(asked, why)
            self._exclude(name, "not enough memory to try it safely", step)
            return
        self._enter(name, step, first_step=step + 1)
        self._trial = _Trial(previous, before, counters)
        for earlier in self._trial_requests:
            self._control.refuse(earlier, "overruled")
        self._trial_requests = [] if asked is None else [asked]

    def _is_unsupported(self, name: str, asked: Asked[Any] | None) -> bool:
        """Whether the device does not support ``name``; reports it."""
        why = self._prepared.unsupported.get(name)
        if why is not None:
            self._note("warning", f"no {name} here: {why}")
            self._control.refuse(asked, "unavailable", why)
        return why is not None

    def _answer_trial_requests(self, trouble: str = "") -> None:
        """Answer once the first step in a precision has succeeded or failed."""
        for asked in self._trial_requests:
            self._control.answer(asked, trouble)
        self._trial_requests.clear()

    def _enter(self, name: str, step: int, *, first_step: int) -> None:
        self._finish_stretch(step)
        previous, self.precision = self.precision.name, self._prepared.precisions[name]
        self.precision.enter()
        self.hold_scale(None)
        self.precision.restart_collapsed_scale()
        self._first_step = first_step
        self._steps = self._counted = 0
        self._warm_up, self._settled = WarmUp(), False
        self._emit(PrecisionChanged(time=time.time(), step=first_step, previous=previous, current=name))

    def _undo(self, trial: _Trial, why: str, step: int) -> None:
        failed = self.precision.name
        self._prepared.optimizer.zero_grad(set_to_none=True)
        self.precision.abandon_step()
        trial.before.restore()
        trial.counters.restore()
        self._allocator.free_unused()
        trouble = f"{failed} failed in its first step; back to {trial.previous}: {why}"
        self._note("error", trouble)
        self._answer_trial_requests(trouble)
        self._exclude(failed, why, step)
        self._enter(trial.previous, step, first_step=step)
        self.begin_step()

    def _start_or_stop_ab_test(self, asked: Asked[ComparisonRequest], step: int) -> None:
        """Start an A/B test of the requested precisions, or stop it if there are none. One runs at a time."""
        running, precisions = self._ab_test, asked.request.precisions
        if running is not None and precisions:
            self._control.refuse(asked, "comparison running")
            return
        if any(self._is_unsupported(name, asked) for name in precisions):
            return
        if running is not None:
            self._stop_ab_test(step)
            self._switch(running.chosen, step)
        elif precisions:
            rounds = self._prepared.max_rounds or MAX_ROUNDS
            self._ab_test = ABTest(precisions, chosen=self.precision.name, max_rounds=rounds)
            self._emit(self._ab_test.record(step))
        self._control.answer(asked)

    def _continue_ab_test(self, ab_test: ABTest, step: int) -> None:
        if ab_test.over:
            self._stop_ab_test(step)
        self._switch(ab_test.precision, step)

    def _exclude(self, precision: str, why: str, step: int) -> None:
        """Continue an A/B test without a precision that failed, or end it."""
        if self._ab_test is not None:
            self._ab_test.exclude(precision, why)
            if self._ab_test.over:
                self._stop_ab_test(step)
            else:
                self._emit(self._ab_test.record(step))

    def _stop_ab_test(self, step: int) -> None:
        """End the A/B test, if one is running, and report its result."""
        ab_test, self._ab_test = self._ab_test, None
        if ab_test is not None:
            ab_test.add_peak(self.precision.name, self._allocator.peak_bytes() if self._settled else None)
            ab_test.stop()
            self._emit(ab_test.record(step))

    def _finish_stretch(self, step: int) -> None:
        """Report the steps since the last switch."""
        if not self._steps:
            return
        peak = self._allocator.peak_bytes() if self._settled else None
        if self._ab_test is not None:
            self._ab_test.add_peak(self.precision.name, peak)
        self._emit(
            BlockFinished(
                time=time.time(),
                step=step,
                precision=self.precision.name,
                steps=self._steps,
                peak_allocated_bytes=peak,
            )
        )

    def _note_no_scaler(self, previous: str) -> None:
        """Explain once, at the first switch to bf16 or away from fp16, what a missing loss scaler means."""
        name, leaves_scaler = self.precision.name, self._prepared.precisions[previous].scales
        if self._noted_no_scaler or not (name == "bf16" or leaves_scaler):
            return
        self._noted_no_scaler = True
        text = f"{name} has no loss scaler: an Inf gradient would make weights NaN, and the run would stop"
        self._note("info", text)

    def _note_waits(self) -> None:
        """Explain once why each step waits for the GPU, if it does."""
        self._noted_waits = True
        optimizer, schedule = self._prepared.optimizer, self._prepared.lr_schedule
        if self._prepared.device.type != "cuda":
            return
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            if schedule is not None and schedule.reason_to_wait:
                why = f"the schedule must know whether it was skipped; {schedule.reason_to_wait}"
                self._note("info", f"each {self.precision.name} step waits for the GPU because {why}")
            return
        name = type(optimizer).__name__
        hint = (
            f"build {name} with fused=True" if "fused" in optimizer.defaults else f"{name} has no fused form"
        )
        self._note(
            "info",
            f"each {self.precision.name} step waits for the GPU because the optimizer is not fused; {hint}",
        )

    def _note(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))
