"""The precision of the steps: switches between two steps, and the stretches of steps in between."""

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
"""Counted steps after which the allocator has seen the stretch's peak: it restarts with the first of them."""


_FAR_STEPS = 1 << 30


@dataclass(frozen=True, slots=True)
class _Trial:
    """A precision's first step after a switch: what to return to if it fails."""

    previous: str
    before: Snapshot
    counters: "_Counters"


class _Counters:
    """The optimizer's single numbers, Adam's ``step`` say, counted up before any weight changes.

    Moments are not kept, which take twice the weights' memory: an optimizer that is not fused and runs out of
    memory halfway has taken a gradient into them twice.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._kept = {
            parameter: {name: _copied(value) for name, value in state.items() if _is_number(value)}
            for parameter, state in optimizer.state.items()
        }

    def restore(self) -> None:
        """Bring them back, and forget states that were not there."""
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
    """The current precision, changed by a user's request or by a comparison.

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
        self._alternation: ABTest | None = None
        self._trial: _Trial | None = None
        self._tried_for: list[Asked[PrecisionRequest]] = []
        """The request that the trial step will answer."""
        self.precision: Precision = prepared.precisions[prepared.precision]
        """The precision of the next step."""
        self.held_scale: float | None = None
        """What the loss scale may not fall below in this stretch."""
        self._first_step = 1
        self._steps = self._counted = 0
        self._warm_up = WarmUp()
        self._settled = False
        self._told_of_waits = self._told_of_no_scaler = False

    @property
    def settled(self) -> bool:
        """Whether the newest step of this stretch counts in statistics."""
        return self._settled

    @property
    def on_trial(self) -> bool:
        """Whether the next step is the first of its precision."""
        return self._trial is not None

    @property
    def chosen(self) -> str:
        """The precision to go on in after an interruption: no comparison's, and none that may yet fail."""
        if self._alternation is not None:
            return self._alternation.chosen
        return self.precision.name if self._trial is None else self._trial.previous

    @contextmanager
    def of_steps_made(self) -> Iterator[Precision]:
        """The precision of the steps so far, for what belongs to them: one on trial may fail."""
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
    def needs_care(self) -> bool:
        """Whether more than training may happen in the next step: it is on trial, or memory is looked at."""
        return self._trial is not None or (
            self._counted == _BREAKDOWN_STEPS - 1 and self._alternation is None
        )

    @property
    def steps_to_news(self) -> int:
        """After how many more steps something may have to be decided here; 1: look before each."""
        if not self._settled or (self._counted < _BREAKDOWN_STEPS and self._alternation is None):
            return 1
        return _FAR_STEPS if self._alternation is None else max(1, self._alternation.steps_left)

    @property
    def breakdown_is_due(self) -> bool:
        """Whether this is the step of the stretch after which its memory is looked at."""
        return self._counted == _BREAKDOWN_STEPS and self._alternation is None

    def begin_step(self) -> bool:
        """Count a step into its stretch; whether it is a warm-up step still. After them peaks restart."""
        self._steps += 1
        if self._settled:
            self._counted += 1
            return False
        settling = self._warm_up.begin_step()
        self._counted += not settling
        if not settling:
            self._settled = True
            self._allocator.restart_peak()
        return settling

    def take(self, record: StepRecord) -> None:
        """Learn from a step's numbers as they arrive."""
        if record.step >= self._first_step:
            self._warm_up.add(record.step_seconds)
        alternation = self._alternation
        # The result is told at the boundary, where the last block's peak is known.
        if alternation is not None and alternation.take(record) and not alternation.over:
            self._emit(alternation.record(record.step))

    def hold_scale(self, least: float | None) -> None:
        """Let the loss scale, if there is one, fall to ``least`` and no further until the next switch."""
        self.held_scale = least
        self.precision.hold_scale(least)

    def between_steps(self, step: int) -> None:
        """Handle the requests; ``step`` is the last one sent to the device."""
        asked = self._control.take(PrecisionRequest)
        if asked is not None:
            self._stop_comparing(step)
            self._switch(asked.request.precision, step, asked)
        comparison = self._control.take(ComparisonRequest)
        if comparison is not None:
            self._compare(comparison, step)
        if self._alternation is not None:
            self._alternate(self._alternation, step)
        if self.precision.scales and not self._told_of_waits:
            self._tell_of_waits()

    def attempt(self, step: int, doing: str, run: Callable[[Precision], T]) -> T:
        """``run`` in this precision; where it is a stretch's first and fails, again in the one before it."""
        trial, self._trial = self._trial, None
        try:
            made = run(self.precision)
        except Exception as error:
            if trial is None or is_device_lost(error):
                raise
            size = self._prepared.experiment.batch_size
            why = str(explain(error, doing=doing, batch_size=size, precision=self.precision.name))
        else:
            if trial is not None and self._tried_for:
                self._tell_of_no_scaler(trial.previous)
            self._answer_tried()
            return made
        # Outside of the handler: the error's traceback would keep the failed pass's tensors alive.
        self._undo(trial, why, step)
        return run(self.precision)

    def finish(self, step: int) -> None:
        """Report the stretch that the run ends with."""
        self._stop_comparing(step)
        self._finish_stretch(step)

    def _switch(self, name: str, step: int, asked: Asked[PrecisionRequest] | None = None) -> None:
        if name == self.precision.name:
            if asked is not None and self._trial is not None:
                self._tried_for.append(asked)
            else:
                self._control.answer(asked)
            return
        if self._is_unsupported(name, asked):
            return
        previous = self.precision.name
        try:
            before = Snapshot.take(self._prepared.model, self._prepared.device)
            counters = _Counters(self._prepared.optimizer)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            why = f"not enough memory to try {name} safely; staying in {previous}"
            self._say("error", why)
            self._control.answer(asked, why)
            self._leave_out(name, "not enough memory to try it safely", step)
            return
        self._enter(name, step, first_step=step + 1)
        self._trial = _Trial(previous, before, counters)
        for earlier in self._tried_for:
            self._control.refuse(earlier, "overruled")
        self._tried_for = [] if asked is None else [asked]

    def _is_unsupported(self, name: str, asked: Asked[Any] | None) -> bool:
        """Whether the device does not support ``name``, which is then reported."""
        why = self._prepared.unsupported.get(name)
        if why is not None:
            self._say("warning", f"no {name} here: {why}")
            self._control.refuse(asked, "unavailable", why)
        return why is not None

    def _answer_tried(self, trouble: str = "") -> None:
        """Answer once the first step in a precision has succeeded or failed."""
        for asked in self._tried_for:
            self._control.answer(asked, trouble)
        self._tried_for.clear()

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
        self._say("error", trouble)
        self._answer_tried(trouble)
        self._leave_out(failed, why, step)
        self._enter(trial.previous, step, first_step=step)
        self.begin_step()

    def _compare(self, asked: Asked[ComparisonRequest], step: int) -> None:
        """Begin to alternate between precisions; none of them ends that. One comparison runs at a time."""
        running, precisions = self._alternation, asked.request.precisions
        if running is not None and precisions:
            self._control.refuse(asked, "comparison running")
            return
        if any(self._is_unsupported(name, asked) for name in precisions):
            return
        if running is not None:
            self._stop_comparing(step)
            self._switch(running.chosen, step)
        elif precisions:
            rounds = self._prepared.max_rounds or MAX_ROUNDS
            self._alternation = ABTest(precisions, chosen=self.precision.name, most_rounds=rounds)
            self._emit(self._alternation.record(step))
        self._control.answer(asked)

    def _alternate(self, alternation: ABTest, step: int) -> None:
        if alternation.over:
            self._stop_comparing(step)
        self._switch(alternation.wanted, step)

    def _leave_out(self, precision: str, why: str, step: int) -> None:
        """Let a comparison, if one runs, go on without a precision that cannot be entered, or end."""
        if self._alternation is not None:
            self._alternation.leave_out(precision, why)
            if self._alternation.over:
                self._stop_comparing(step)
            else:
                self._emit(self._alternation.record(step))

    def _stop_comparing(self, step: int) -> None:
        """End the comparison, if one is running, and report its result."""
        alternation, self._alternation = self._alternation, None
        if alternation is not None:
            alternation.take_peak(
                self.precision.name, self._allocator.peak_bytes() if self._settled else None
            )
            alternation.stop()
            self._emit(alternation.record(step))

    def _finish_stretch(self, step: int) -> None:
        """Report the steps since the last switch."""
        if not self._steps:
            return
        peak = self._allocator.peak_bytes() if self._settled else None
        if self._alternation is not None:
            self._alternation.take_peak(self.precision.name, peak)
        self._emit(
            BlockFinished(
                time=time.time(),
                step=step,
                precision=self.precision.name,
                steps=self._steps,
                peak_allocated_bytes=peak,
            )
        )

    def _tell_of_no_scaler(self, previous: str) -> None:
        """Hint once, at a user's first switch to bf16 or away from the scaler, at what no longer protects."""
        name, leaves_scaler = self.precision.name, self._prepared.precisions[previous].scales
        if self._told_of_no_scaler or not (name == "bf16" or leaves_scaler):
            return
        self._told_of_no_scaler = True
        text = f"{name} has no loss scaler: an Inf gradient would make weights NaN, and the run would stop"
        self._say("info", text)

    def _tell_of_waits(self) -> None:
        """Hint once at what GradScaler does with an optimizer that does not take the scale itself."""
        self._told_of_waits = True
        optimizer, schedule = self._prepared.optimizer, self._prepared.lr_schedule
        if self._prepared.device.type != "cuda":
            return
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            if schedule is not None and schedule.reason_to_wait:
                why = f"the schedule must know whether it was skipped; {schedule.reason_to_wait}"
                self._say("info", f"each {self.precision.name} step waits for the GPU because {why}")
            return
        name = type(optimizer).__name__
        hint = (
            f"build {name} with fused=True" if "fused" in optimizer.defaults else f"{name} has no fused form"
        )
        self._say(
            "info",
            f"each {self.precision.name} step waits for the GPU because the optimizer is not fused; {hint}",
        )

    def _say(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))
