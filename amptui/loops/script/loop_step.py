"""The step that somebody else's loop is making, and bad batches that the loop leaves out."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from amptui.device.readback import Readback
from amptui.loops.script.backward_pass import BackwardPass, all_of
from amptui.loops.script.pass_account import DroppedPasses
from amptui.monitor.step_rows import Step
from amptui.records.own_loop import GradientsDropped

_STEPS_OF_A_RULE = 3
"""A loop that drops gradients before so many steps in a row does so as a rule, as from its first step on."""


class LoopStep(Step):
    """Filled by the hooks. Most of it is the same in most steps: that stands in the class."""

    passes: BackwardPass = all_of(())
    """Its backward passes, once it is made."""
    is_scaled = False
    """Whether the newest of them was multiplied by a loss scale."""
    logs_loss = False
    """Whether ``loss`` is what the loop logged."""
    batches = 0
    """Loaded for it; until its passes are known, ``samples`` are theirs."""
    trained_samples: int | None = 0
    """Of the batches whose gradients it uses; None if those of any are not known."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Of the tensors in each batch, where they were asked for."""
    scaler: GradScaler | None = None
    """The one that has divided the gradients."""
    found_inf: Tensor | None = None
    """Whether it found an overflow."""
    awaits_update = False
    """Whether the weights are updated, and the scaler is not yet."""
    scale_before: Tensor | None = None

    def again(self) -> "LoopStep":
        """A new attempt at the same step, with the batches that were loaded for it."""
        other = LoopStep()
        other.load_start, other.data_seconds = self.load_start, self.data_seconds
        other.samples, other.batches, other.shapes = self.samples, self.batches, self.shapes
        other.is_timed = self.is_timed
        return other

    def add_samples(self, samples: int | None) -> None:
        """A backward pass used so many, or an unknown number."""
        total = self.trained_samples
        self.trained_samples = None if samples is None or total is None else total + samples

    def load(self, load_start: float, seconds: float, samples: int) -> None:
        """A batch was loaded for it."""
        if self.load_start is None:
            self.load_start = load_start
        self.data_seconds += seconds
        self.samples += samples
        self.batches += 1

    def log(self, loss: Tensor | None, values: Mapping[str, Tensor]) -> None:
        """The loop logged numbers with it, each without dimensions."""
        if loss is not None:
            self.loss, self.form, self.logs_loss = loss, "", True
        if values:
            self.parts = {**(self.parts or {}), **values}


class DroppedBatches:
    """Bad batches of one optimizer: not passes with a finite loss, as an adversarial one's, nor a rule."""

    def __init__(
        self, optimizer: str, readback: Readback, emit: Callable[[GradientsDropped], object]
    ) -> None:
        self._optimizer = optimizer
        self._readback = readback
        self._emit = emit
        self._last_step = -1
        self._streak_step = 0
        """The first of the newest steps in a row after each of which gradients were dropped."""

    def take(self, dropped_passes: DroppedPasses, step: int) -> None:
        """Gradients were cleared after ``step``: tell it if they would usually have made a step."""
        if step > self._last_step + 1:
            self._streak_step = step
        self._last_step = step
        is_rule = self._streak_step == 0 or step - self._streak_step >= _STEPS_OF_A_RULE
        if is_rule or dropped_passes.is_others:
            return
        passes = dropped_passes.passes
        loss = passes.loss
        values, report = [] if loss is None else [loss], partial(self._report, step, passes.count)
        self._readback.push(values, report, timed=False)

    def _report(self, step: int, count: int, row: Sequence[float] | None, _: float | None) -> None:
        loss = None if row is None or not len(row) else float(row[0])
        if loss is None or not math.isfinite(loss):
            now, name = time.time(), self._optimizer
            self._emit(GradientsDropped(time=now, step=step, loss=loss, passes=count, optimizer=name))
