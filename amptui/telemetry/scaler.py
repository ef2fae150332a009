"""The state of the GradScaler, from the steps and the scaler's records."""

import math
from collections import deque
from dataclasses import dataclass, field

from amptui.records.run import LossScaleChanged, StepSkipped
from amptui.records.steps import Steps
from amptui.telemetry.scaling import RECENT_STEPS, ScalerView


@dataclass(slots=True, eq=False)
class ScalerWatch:
    """Follows the scale, and counts applied and skipped ``fp16`` steps."""

    growth_interval: int | None = None
    _applied: int = 0
    _skipped: int = 0
    _skips_in_a_row: int = 0
    _recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Of skipped steps the place among the measured ones; its number if the loss was not finite, else 0."""
    _last: Steps | None = None
    """The row of the newest step with a scale."""
    _change: LossScaleChanged | None = None
    _has_grown: bool = False
    newest_skip: StepSkipped | None = None

    def add(self, steps: Steps) -> None:
        """Add steps; unmeasured ones count neither as applied nor as skipped."""
        if steps.precision != "fp16":
            return
        if any(steps.skipped):
            for step, (skip, loss) in enumerate(zip(steps.skips, steps.loss, strict=True), steps.first_step):
                if skip:
                    self._skipped += 1
                    self._skips_in_a_row += 1
                    is_finite = loss is None or math.isfinite(loss)
                    self._recent.append((self._applied + self._skipped, 0 if is_finite else step))
                elif skip is not None:
                    self._applied += 1
                    self._skips_in_a_row = 0
        elif applied := steps.count - steps.unmeasured:
            self._applied += applied
            self._skips_in_a_row = 0
        self._last = steps.newest("loss_scale") or self._last

    def add_change(self, change: LossScaleChanged) -> None:
        """Add a change of the scale."""
        self._change = change
        self._has_grown = self._has_grown or change.reason == "growth"

    def rewind(self, next_step: int) -> None:
        """Forget the scale of steps from ``next_step`` on, and their changes of it; the counts stay."""
        if self._last is not None and self._last.step >= next_step:
            self._last = None
        if self._change is not None and self._change.step >= next_step:
            self._change = None

    @property
    def scale(self) -> float | None:
        """The scale of the next ``fp16`` step; None while it is unknown."""
        change = self._newer_change()
        return change.current if change else self._last.loss_scale[0] if self._last else None

    def view(self) -> ScalerView:
        """The scaler after the newest known step."""
        growth_tracker = self._last.growth_tracker[0] if self._last else None
        steps = self._applied + self._skipped
        recent = [lost_step for place, lost_step in self._recent if steps - place < RECENT_STEPS]
        return ScalerView(
            scale=self.scale,
            # Growth and backoff both reset the tracker.
            growth_tracker=0 if self._newer_change() else growth_tracker,
            growth_interval=self.growth_interval,
            applied=self._applied,
            skipped=self._skipped,
            skips_in_a_row=self._skips_in_a_row,
            recent_skips=len(recent),
            lost_loss_step=next(filter(None, reversed(recent)), None),
            has_grown=self._has_grown,
            newest_skip=self.newest_skip,
            last_change=self._change,
        )

    def _newer_change(self) -> LossScaleChanged | None:
        """The last change, unless a step ran after it: a step's record has the scale that it ran with."""
        last, change = self._last, self._change
        return change if change is not None and (last is None or change.step >= last.step) else None
