"""Switches precisions between two steps, and reports each stretch of steps in one precision."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from amptui.base.errors import DeviceError
from amptui.base.script_signals import is_from_signal_handler
from amptui.device.accelerator import capabilities, empty_cache
from amptui.device.failure import explain, is_device_lost, is_out_of_memory
from amptui.monitor.ab_test import MAX_ROUNDS, ABTest
from amptui.monitor.warm_up import WarmUp
from amptui.probes.memory import AllocatorWatch
from amptui.probes.snapshot import before_step
from amptui.recipe.precision import Precision
from amptui.recipe.trained import Trained
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import (
    LOW_PRECISIONS,
    BlockFinished,
    Note,
    PrecisionChanged,
    Record,
    Severity,
)
from amptui.records.steps import Steps

T = TypeVar("T")

_BREAKDOWN_STEPS = 5
"""Steps after warm-up until the memory breakdown: by then the allocator has seen the peak."""

_NO_EVENT_STEPS = 1 << 30


@dataclass(frozen=True, slots=True)
class _Trial:
    """The first step after a switch: what to return to if it fails."""

    previous: str
    restore: Callable[[], object] | None
    """Undoes what the step has changed; None if it cannot be run again."""


class TrialFailedError(DeviceError):
    """The first step in a precision failed on one rank; all have agreed to undo it."""


class PrecisionSwitch:
    """The current precision, which a user's request or an A/B test changes.

    If the first step in a precision fails, the run returns to the previous one: a switch must not end it.
    """

    def __init__(
        self,
        trained: Trained,
        control: Control,
        allocator: AllocatorWatch,
        emit: Callable[[Record], object],
    ) -> None:
        self._trained = trained
        self._control = control
        self._ranks = control.ranks
        """With other ranks, all switch after the same step, once they have agreed."""
        self._allocator = allocator
        self._emit = emit
        self._ab_test: ABTest | None = None
        self._trial: _Trial | None = None
        self._trial_requests: list[RequestMade] = []
        """The requests that the trial step will answer."""
        self.precision: Precision = trained.precisions[trained.precision]
        """The precision of the next step."""
        self.low_precision = trained.amp_precision
        """The AMP precision or FP8 that ran last, before this stretch."""
        self.held_scale: float | None = None
        """The lower limit of the loss scale in this stretch."""
        self.can_retry = self._ranks is None
        """Whether a step that fails can be run again in another precision.

        With other ranks only if each can run the model alone: else a step that failed on one of them leaves
        the others inside a collective, which nobody can take back. The run then ends, and names the rank."""
        self.agree: Callable[[str], str] = lambda trouble: trouble
        """Tells other ranks this one's trouble, or "" if it has none; returns that of any of them."""
        self._first_step = self._settled_step = 0
        """Of this stretch, the first step and the first after the warm-up; 0 if there is none yet."""
        self._warm_up = WarmUp()
        self.settled = False
        """Whether the warm-up of this stretch is over."""
        self._noted_waits = False
        self._told_float8 = False

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
        current = self.precision
        precision = current if self._trial is None else self._trained.precisions[self._trial.previous]
        if precision is not current:
            precision.enter()
        try:
            yield precision
        finally:
            if precision is not current:
                current.enter()

    def needs_observation(self, step: int) -> bool:
        """Whether to observe the one after ``step``: it is on trial, or its memory is to be measured."""
        return self._trial is not None or self.breakdown_is_due(step + 1)

    def steps_to_next_event(self, step: int) -> int:
        """Steps after ``step`` until something may have to be decided here; 1 looks before each step."""
        if not self.settled or (step < self._settled_step + _BREAKDOWN_STEPS - 1 and self._ab_test is None):
            return 1
        return _NO_EVENT_STEPS if self._ab_test is None else max(1, self._ab_test.steps_left)

    def breakdown_is_due(self, step: int) -> bool:
        """Whether to measure the memory of ``step``."""
        is_settled = self.settled and step == self._settled_step + _BREAKDOWN_STEPS - 1
        return is_settled and self._ab_test is None

    def begin_step(self, step: int) -> bool:
        """Whether ``step`` is one of the warm-up, until a first is not. The memory peak restarts after it."""
        self._first_step = self._first_step or step
        if self.settled:
            return False
        warming_up = self._warm_up.begin_step()
        if not warming_up:
            self.settled, self._settled_step = True, step
            self._allocator.restart_peak()
        return warming_up

    def take(self, steps: Steps) -> None:
        """Take the numbers of steps when they arrive."""
        self._warm_up.add(steps.step_seconds[max(0, self._first_step - steps.first_step) :])
        if self._ab_test is not None:
            for index in range(steps.count):
                # The result is emitted at the step boundary, when the last block's peak is known.
                if self._ab_test.add(steps, index) and not self._ab_test.over:
                    self._emit(self._ab_test.record(steps.first_step + index))

    def hold_scale(self, least: float | None) -> None:
        """Keep the loss scale, if there is one, at ``least`` or above until the next switch."""
        self.held_scale = least
        self.precision.hold_scale(least)

    def between_steps(self, step: int) -> None:
        """Handle the requests; ``step`` is the last one sent to the device."""
        if self._ranks is not None and (turn := self._ranks.take_turn()):
            self._switch(turn, step)
        switch_request = self._control.take("precision")
        if switch_request is not None:
            self._stop_ab_test(step)
            self._switch(switch_request.precision or "", step, switch_request)
        # A comparison starts with a switch, which would overrule one whose first step is still to come.
        comparison = None if self._trial_requests else self._control.take("comparison")
        if comparison is not None:
            self._start_or_stop_ab_test(comparison, step)
        if (ab_test := self._ab_test) is not None:
            if ab_test.over:
                self._stop_ab_test(step)
            self._turn(ab_test.precision, step)
        if self.precision.scales and not self._noted_waits:
            self._note_waits()
        precision, linears = self.precision, self.precision.linears
        if precision.float8 and not self._told_float8:
            assert linears is not None, "a float8 precision has layers"
            self._told_float8 = True
            # A script's first step is made before anything is told.
            self._emit(linears.record(step=self._first_step or step + 1, precision=precision.name))

    def attempt(self, step: int, doing: str, run: Callable[[Precision], T]) -> T:
        """Call ``run`` in this precision; if it is on trial and fails, in the previous one."""
        trial, self._trial = self._trial, None
        try:
            result = run(self.precision)
        except Exception as error:
            if trial is None or trial.restore is None or is_device_lost(error):
                raise
            if is_from_signal_handler(error):
                raise
            if self._ranks is not None and not isinstance(error, TrialFailedError):
                raise  # the others may have made the step
            restore = trial.restore
            size = self._trained.batch_size
            why = str(explain(error, doing=doing, batch_size=size, precision=self.precision.name))
        else:
            self.confirm()
            return result
        # Outside the handler: the traceback would keep the failed pass's tensors alive.
        self._undo(trial.previous, restore, why, step)
        return run(self.precision)

    def confirm(self) -> None:
        """End the trial of this precision, if there is one: its first step has succeeded."""
        self._trial = None
        self._answer_trial_requests()

    def finish(self, step: int) -> None:
        """Report the stretch that the run ends with."""
        self._stop_ab_test(step)
        self._finish_stretch(step)

    def _switch(self, name: str, step: int, switch_request: RequestMade | None = None) -> None:
        if name == self.precision.name:
            if switch_request is not None and self._trial is not None:
                self._trial_requests.append(switch_request)
            else:
                self._control.answer(switch_request)
            return
        if self._is_unsupported(name, switch_request):
            return
        previous = self.precision.name
        restore, why = self._prepare(name)
        if why:
            trouble = f"no {name}, staying in {previous}: {why}"
            self._note("error", trouble)
            self._control.answer(switch_request, trouble)
            self._exclude(name, why, step)
            return
        self._enter(name, step, first_step=step + 1)
        self._trial = _Trial(previous, restore)
        for earlier in self._trial_requests:
            self._control.refuse(earlier, "overruled")
        self._trial_requests = [] if switch_request is None else [switch_request]

    def _prepare(self, name: str) -> tuple[Callable[[], None] | None, str]:
        """What undoes the next step if it fails, None if nothing can; and why ``name`` is not to be tried.

        If that is so on one rank, it is so on all.
        """
        if not self.can_retry:
            return None, ""
        restore, why = None, self._trained.precisions[name].reason_not_to_enter()
        try:
            if not why:
                restore = before_step(self._trained.model, self._trained.optimizer, self._trained.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            why = "not enough memory to try it safely"
        return restore, self.agree(why)

    def _is_unsupported(self, name: str, request: RequestMade | None) -> bool:
        """Whether the device does not support ``name``; reports it."""
        why = self._trained.unsupported.get(name)
        if why is None and (self._ranks is None or not self.can_retry):  # else all agree on it
            why = self._trained.precisions[name].reason_not_to_enter() or None
        if why is not None:
            self._note("warning", f"{name} is not available: {why}")
            self._control.refuse(request, "unavailable", why)
        return why is not None

    def _answer_trial_requests(self, trouble: str = "") -> None:
        """Answer once the first step in a precision has succeeded or failed."""
        for request in self._trial_requests:
            self._control.answer(request, trouble)
        self._trial_requests.clear()

    def _enter(self, name: str, step: int, *, first_step: int) -> None:
        self._finish_stretch(step)
        previous, self.precision = self.precision.name, self._trained.precisions[name]
        self.precision.enter()
        self.hold_scale(None)
        self.precision.restart_collapsed_scale()
        self._first_step = first_step
        self._warm_up, self.settled = WarmUp(), False
        self._emit(PrecisionChanged(time=time.time(), step=first_step, previous=previous, current=name))

    def _undo(self, previous: str, restore: Callable[[], object], why: str, step: int) -> None:
        failed = self.precision.name
        self._trained.optimizer.zero_grad(set_to_none=True)
        self.precision.abandon_step()
        restore()
        empty_cache(self._trained.device)  # which may be fragmented
        trouble = f"{failed} failed in its first step; back to {previous}: {why}"
        self._note("error", trouble)
        self._answer_trial_requests(trouble)
        self._exclude(failed, why, step)
        self._enter(previous, step, first_step=step)
        self.begin_step(step)

    def _start_or_stop_ab_test(self, comparison: RequestMade, step: int) -> None:
        """Start an A/B test of the requested precisions, or stop it if there are none. One runs at a time."""
        running, precisions = self._ab_test, comparison.precisions
        if running is not None and precisions:
            self._control.refuse(comparison, "comparison running")
            return
        if any(self._is_unsupported(name, comparison) for name in precisions):
            return
        if running is not None:
            self._stop_ab_test(step)
            self._turn(running.chosen, step)
        elif precisions:
            rounds = self._trained.max_rounds or MAX_ROUNDS
            self._ab_test = ABTest(precisions, chosen=self.precision.name, max_rounds=rounds)
            self._emit(self._ab_test.record(step))
        self._control.answer(comparison)

    def _turn(self, name: str, step: int) -> None:
        """Switch for the A/B test: at once, or with other ranks as soon as they have agreed."""
        if self._ranks is None:
            self._switch(name, step)
        else:
            self._ranks.want_turn(name, now=self.precision.name)

    def _exclude(self, precision: str, why: str, step: int) -> None:
        """Continue an A/B test without a precision that failed, or end it."""
        if self._ab_test is not None:
            self._ab_test.exclude(precision, why)
            if self._ab_test.over:
                self._stop_ab_test(step)
            else:
                self._emit(self._ab_test.record(step))

    def cannot_compare(self, why: str) -> None:
        """End an A/B test of precisions that are not what they are called, without a verdict."""
        if self._ab_test is not None:
            self._ab_test.exclude(self.precision.name, why)

    def _stop_ab_test(self, step: int) -> None:
        """End the A/B test, if one is running, and report its result."""
        ab_test, self._ab_test = self._ab_test, None
        if ab_test is not None:
            self._add_peak(ab_test)
            ab_test.stop()
            self._emit(ab_test.record(step))

    def _add_peak(self, ab_test: ABTest | None) -> int | None:
        """The peak of this stretch, which counts in an A/B test; None while it settles.

        Replayed graphs allocate nothing, so that theirs would be too low.
        """
        peak = self._allocator.peak_bytes() if self.settled else None
        if ab_test is not None:
            ab_test.add_peak(self.precision.name, None if self.precision.replays_graphs else peak)
        return peak

    def _finish_stretch(self, step: int) -> None:
        """Report the steps since the last switch."""
        if not 0 < self._first_step <= step:
            return
        if (name := self.precision.name) in LOW_PRECISIONS:
            self.low_precision = name
        peak = self._add_peak(self._ab_test)
        self._emit(
            BlockFinished(
                time=time.time(),
                step=step,
                precision=self.precision.name,
                steps=step + 1 - self._first_step,
                peak_allocated_bytes=peak,
            )
        )

    def _note_waits(self) -> None:
        """Explain once why each step waits for the GPU, if it does."""
        self._noted_waits = True
        optimizer, schedule = self._trained.optimizer, self._trained.lr_schedule
        if not capabilities(self._trained.device).timed_events:
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
